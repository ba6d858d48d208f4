import itertools
import json
from pathlib import Path

import pytest

import kleash

ROOT = Path(__file__).parents[2]
CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
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


@pytest.fixture(scope="session")
def sweep():
    """A real sweep of a kitchen with a useful range."""
    return kleash.sweep(settings={"oversalt": 0.0005}, beta=[0.0, 2.0, 5.0, 8.0, 15.0, 60.0], seeds=3)


@pytest.fixture(scope="session")
def forecast():
    """A forecast of the shipped example."""
    samples = kleash.read_samples(
        ROOT / "examples" / "word_problems.csv",
        prompt_column="task_id",
        reward_columns="judge_score",
        gold_column="correct",
    )
    return kleash.forecast(samples, reward_max=100, gold_min=0)


@pytest.fixture(scope="session")
def files(sweep, forecast, tmp_path_factory):
    """One of everything the commands write: name -> path."""
    folder = tmp_path_factory.mktemp("sources")
    sweep.save(folder / "run")
    sweep.frontier.save(folder / "frontier.json")
    sweep.frontier.save(folder / "frontier.parquet")
    for name, result in (("sweep", sweep), ("forecast", forecast)):
        (folder / f"{name}.json").write_text(json.dumps(result.to_dict()))
    check = {
        "schema": 1,
        "version": "0.1.0",
        "source": "check",
        "seed": None,
        "inputs": [{"path": "a.jsonl", "sha256": "00", "kind": "rollouts", "trainer": None, "rows": 4, "facts": {}}],
        "findings": [finding("IDENTITY", "problem", "the mean is 1.4, not 1"), finding("PADDING", "ok", "fine")],
        "frontier": None,
    }
    (folder / "check.json").write_text(json.dumps(check))
    names = ("run", "frontier.json", "frontier.parquet", "sweep.json", "forecast.json", "check.json")
    return {name.replace(".", "_"): folder / name for name in names}


def finding(code, status, message):
    causes = ["the wrong reference"] if status == "problem" else []
    fix = "score with the reference that trained" if status == "problem" else None
    return {
        "code": code,
        "input": "a.jsonl",
        "status": status,
        "message": message,
        "evidence": {},
        "causes": causes,
        "fix": fix,
    }


@pytest.fixture(scope="session")
def browser():
    """A function that gives a headless Chromium, one for all tests; ``script=False``: one without JavaScript."""
    absent = [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]
    if absent:
        pytest.skip(f"no {' and no '.join(absent)}: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    drivers = {}

    def get(*, script):
        if script in drivers:
            return drivers[script]
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in FLAGS:
            options.add_argument(flag)
        if not script:
            options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        drivers[script] = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
        return drivers[script]

    yield get
    for driver in drivers.values():
        driver.quit()


@pytest.fixture
def open_page(browser, tmp_path):
    """A function that writes HTML to a file and opens it in headless Chromium with the network off."""
    count = itertools.count()

    def start(html, *, width=1280, height=900, dark=False, script=True):
        driver = browser(script=script)
        driver.get("about:blank")
        driver.get_log("browser")  # what came before is another test's
        driver.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": scheme})
        path = tmp_path / f"page-{next(count)}.html"
        path.write_text(html, encoding="utf-8")
        driver.get(path.as_uri())
        return driver

    return start
