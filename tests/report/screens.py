"""Pictures of pages, for people to look at."""

import base64
from pathlib import Path

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"


def screenshot(driver, name):
    """The whole page as PNG under build/screenshots."""
    width, height = driver.execute_script("return [window.innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / name).write_bytes(base64.b64decode(shot["data"]))
