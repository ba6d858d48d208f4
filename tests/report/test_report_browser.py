"""The page in headless Chromium, opened from a file with the network off."""

import dataclasses
import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hard_cases import HOSTILE, big_sources, hostile_source, many_answers, refused, without_gold
from screens import screenshot

import kleash
from kleash.report.page import report_page
from kleash.report.sources import read_sources, source_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning:selenium"),  # its pipes are closed when it is collected
]
AXE = Path(find_spec("axe_playwright_python").submodule_search_locations[0]) / "axe.min.js"


def value(driver, name):
    text = driver.find_element("id", f"{name}-value").get_attribute("data-value")
    return float(text) if text else None


def text(driver, name):
    return driver.find_element("id", f"{name}-value").text


def quiet(driver):
    assert driver.get_log("browser") == []
    assert driver.execute_script("return window.hit") is None
    fetched = driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []


def faults(driver):
    driver.execute_script(AXE.read_text(encoding="utf-8"))
    found = driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']}).then(done)"
    )
    return [
        (fault["id"], fault["impact"], [node["html"][:120] for node in fault["nodes"][:3]])
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


def test_the_dial_turns_by_keyboard_and_mouse_and_shows_the_frontier(files, sweep, open_page):
    from selenium.webdriver import ActionChains, Keys

    driver = open_page(report_page(read_sources([files["run"]])))
    quiet(driver)
    slider = driver.find_element("id", "beta")
    frontier = sweep.frontier
    slider.send_keys(Keys.HOME)
    for i, beta in enumerate(frontier.beta):
        assert value(driver, "beta") == beta
        assert value(driver, "reward") == frontier.reward.value[i]
        assert value(driver, "gold") == frontier.gold.value[i]
        assert value(driver, "kl") == frontier.kl.value[i]
        assert float(text(driver, "reward")) == pytest.approx(frontier.reward.value[i], abs=0.006)
        assert float(text(driver, "gold")) == pytest.approx(frontier.gold.value[i], abs=0.0006)
        assert f"beta {beta:g}:" in slider.get_attribute("aria-valuetext")
        now = driver.find_elements("css selector", "tr.now th")
        assert [cell.text for cell in now] == [f"{beta:g}"]
        shown = [p.text for p in driver.find_elements("css selector", ".stop h3") if p.is_displayed()]
        assert shown == [f"beta {beta:g}"]
        slider.send_keys(Keys.ARROW_RIGHT)
    assert text(driver, "beta") == "the reference"
    assert value(driver, "gold") == float(frontier.reference_gold.value)
    assert value(driver, "kl") == 0
    assert driver.find_element("id", "rope").get_attribute("x2") == "40"
    size = slider.size["width"]
    ActionChains(driver).move_to_element_with_offset(slider, -size // 2 + 2, 0).click().perform()
    assert value(driver, "beta") == 0
    ActionChains(driver).click_and_hold(slider).move_by_offset(size // 2 - 2, 0).release().perform()
    assert text(driver, "beta") == "the reference"


def test_the_markers_follow_the_dial(files, sweep, open_page):
    from selenium.webdriver import Keys

    driver = open_page(report_page(read_sources([files["run"]])))
    slider = driver.find_element("id", "beta")
    slider.send_keys(Keys.HOME)
    script = """return [...document.querySelectorAll('.plot.wide [class*=marker_dial_gold] line')]
        .map(line => [line.getAttribute('opacity'), line.getBoundingClientRect().x]);"""
    dots = driver.execute_script(
        """return [...document.querySelector('.plot.wide').querySelectorAll('path')]
        .filter(path => path.getAttribute('fill') === '#00629b' && path.getAttribute('stroke') === '#00629b')
        .map(path => { const box = path.getBoundingClientRect(); return box.x + box.width / 2; });"""
    )
    assert len(dots) == sweep.frontier.beta.size
    for dot in sorted(dots):
        ((opacity, x),) = driver.execute_script(script)
        assert float(opacity) > 0.5
        assert x == pytest.approx(dot, abs=2.0)
        slider.send_keys(Keys.ARROW_RIGHT)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_no_serious_fault_and_pictures(width, dark, files, open_page):
    sources = read_sources([files["run"]]) if not dark else read_sources([files["forecast_json"], files["sweep_json"]])
    if not dark:
        (source,) = sources
        answers = many_answers(source.frontier.beta.tolist(), 60, 30)
        sources = (dataclasses.replace(source, answers=source.answers + answers),)
    driver = open_page(report_page(sources, command="kleash report run -o page.html"), width=width, dark=dark)
    screenshot(driver, f"report-{width}-{'dark' if dark else 'light'}.png")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert faults(driver) == []
    quiet(driver)


def test_hostile_text_does_not_run(sweep, open_page):
    driver = open_page(
        report_page([hostile_source(sweep), source_of(sweep, name="b")], title=HOSTILE[0], command=HOSTILE[1])
    )
    quiet(driver)
    body = driver.execute_script("return document.body.textContent")
    assert "<script>window.hit=1</script>" in body
    assert "{{ 7*7 }}" in body
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 1280
    assert faults(driver) == []


def test_a_script_that_got_into_the_page_would_not_run(sweep, open_page):
    """The policy is the second wall: a planted script is refused, with an error in the console."""
    page = report_page([source_of(sweep)]).replace("</main>", "<script>window.hit=1</script></main>")
    driver = open_page(page)
    assert driver.execute_script("return window.hit") is None
    assert any("Content Security Policy" in entry["message"] for entry in driver.get_log("browser"))


def test_it_is_read_without_javascript(files, open_page):
    driver = open_page(report_page(read_sources([files["run"]])), script=False)
    assert not driver.find_element("id", "beta").is_displayed()
    assert text(driver, "beta") == "8"
    assert text(driver, "gold")
    assert all(stop.is_displayed() for stop in driver.find_elements("css selector", ".stop"))
    assert "The dial turns with JavaScript" in driver.find_element("tag name", "main").text


def test_sources_are_chosen(sweep, forecast, open_page):
    driver = open_page(report_page([source_of(sweep, name="one"), source_of(forecast, name="two")]))
    assert value(driver, "beta") == sweep.verdict.safe_beta
    driver.find_elements("css selector", "input[name=source]")[1].click()
    assert value(driver, "beta") == forecast.verdict.safe_beta
    assert driver.find_element("id", "no-answers").is_displayed()
    quiet(driver)


@pytest.mark.parametrize("change", [without_gold, refused])
def test_missing_parts(change, forecast, open_page):
    driver = open_page(report_page([change(forecast.frontier)]))
    quiet(driver)
    assert value(driver, "gold") is None or text(driver, "beta") == "the reference"
    assert faults(driver) == []


def opening(driver):
    """Seconds from the first byte to a page that can be used."""
    timing = driver.execute_script("return performance.getEntriesByType('navigation')[0].toJSON()")
    return timing["loadEventEnd"] / 1000


def test_a_page_with_two_hundred_answers_opens_in_two_seconds(open_page):
    betas = np.geomspace(0.5, 100, 12)
    source = source_of(kleash.exact_frontier(kleash.kitchen(oversalt=0.0005), betas))
    driver = open_page(report_page([dataclasses.replace(source, answers=many_answers(betas.tolist(), 200, 300))]))
    assert opening(driver) < 2


def test_two_hundred_betas_of_five_sources_are_usable(open_page):
    driver = open_page(report_page(big_sources()))
    screenshot(driver, "report-many.png")
    assert opening(driver) < 4
    took = driver.execute_script(
        """const slider = document.getElementById('beta'), start = performance.now();
        for (let i = 0; i < 100; i++) {
            slider.value = String(i);
            slider.dispatchEvent(new Event('input'));
            slider.offsetTop;
        }
        return (performance.now() - start) / 100;"""
    )
    assert took < 50  # milliseconds a step
    quiet(driver)


def test_it_prints(files, open_page):
    import base64

    driver = open_page(report_page(read_sources([files["run"]])))
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    pdf = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    data = base64.b64decode(pdf)
    assert data.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 6
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not driver.find_element("id", "beta").is_displayed()
    screenshot(driver, "report-print.png")
    assert json.loads(driver.find_element("id", "data").get_attribute("textContent"))["dials"]
