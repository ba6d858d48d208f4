"""A page in headless Chromium: opened as a reader opens it, its faults, and pictures for people to look at."""

import base64
from importlib.util import find_spec
from pathlib import Path

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
AXE = Path(find_spec("axe_playwright_python").submodule_search_locations[0]) / "axe.min.js"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)


def start_browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_script_timeout(30)
    return driver


def show_page(
    driver,
    path,
    *,
    width=1280,
    height=900,
    scheme="light",
    motion="reduce",
    media="",
    script=True,
    fragment="",
):
    """Open a file with the network off."""
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    driver.get("about:blank")
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": motion},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
    for log in ("browser", "performance"):
        driver.get_log(log)  # what came before is another test's
    driver.get(path.as_uri() + fragment)
    return driver


def faults(driver):
    """Serious and critical faults that axe-core finds, as rule, place and reason."""
    driver.execute_script(AXE.read_text(encoding="utf-8"))
    found = driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']}).then(done)"
    )
    assert len(found["passes"]) > 15
    return [
        (rule["id"], node["target"], node.get("failureSummary"))
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def screenshot(driver, name):
    """The whole page as PNG under build/screenshots."""
    width, height = driver.execute_script("return [window.innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
