"""Make the pictures of the README, into docs/pictures/. Needs Debian's chromium and chromium-driver."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kleash
from kleash.playground.animation import animate
from kleash.playground.page import play

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
)


def report() -> str:
    samples = kleash.read_samples(
        ROOT / "examples" / "word_problems.csv",
        prompt_column="task_id",
        reward_columns="judge_score",
        gold_column="correct",
    )
    result = kleash.forecast(samples, reward_max=100, gold_min=0)
    return kleash.report([result], title="Word problems, scored by a language model")


PAGES: dict[str, tuple[Callable[[], str], str, int, str]] = {
    "report": (report, "", 1100, "section[aria-labelledby=h-charts]"),
    "play": (play, "#beta=7.25&oversalt=0.0005", 1280, ".show"),
}
"""Name of the picture -> what makes its page, the setting in its address, width in pixels, what it ends with."""


def browser() -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in FLAGS:
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    animate(FOLDER / "leash.gif")
    print(FOLDER / "leash.gif")
    driver = browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, (make, setting, width, last) in PAGES.items():
                page = Path(folder) / f"{name}.html"
                page.write_text(make(), encoding="utf-8")
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                driver.get(page.as_uri() + setting)
                end = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
                clip = {"x": 0, "y": 0, "width": width, "height": driver.execute_script(end, last) + 16, "scale": 1}
                whole = {"captureBeyondViewport": True, "clip": clip}
                shot = driver.execute_cdp_cmd("Page.captureScreenshot", whole)
                (FOLDER / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
                print(FOLDER / f"{name}.png")
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
