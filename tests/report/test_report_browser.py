"""The page in headless Chromium, opened from a file with the network off."""

import dataclasses
import json
import re

import numpy as np
import pytest
from hard_cases import big_sources, many_answers, refused, without_gold
from screens import faults, screenshot

import kleash
from kleash.reporting.dial import LEASH
from kleash.reporting.page import report
from kleash.reporting.sources import read_sources, source_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning:selenium"),  # its pipes are closed when it is collected
]


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


def test_the_dial_turns_by_keyboard_and_mouse_and_shows_the_frontier(run_page, sweep, open_page):
    from selenium.webdriver import ActionChains, Keys

    driver = open_page(run_page)
    quiet(driver)
    slider = driver.find_element("id", "beta")
    frontier = sweep.frontier
    rows = json.loads(driver.find_element("id", "data").get_attribute("textContent"))["dials"][0]["rows"]
    slider.send_keys(Keys.HOME)
    for i, beta in enumerate(frontier.beta):
        assert value(driver, "beta") == beta
        assert value(driver, "reward") == frontier.reward.value[i]
        assert value(driver, "gold") == frontier.gold.value[i]
        assert value(driver, "kl") == frontier.kl.value[i]
        assert float(text(driver, "reward")) == pytest.approx(frontier.reward.value[i], abs=0.006)
        assert float(text(driver, "gold")) == pytest.approx(frontier.gold.value[i], abs=0.0006)
        assert f"beta {beta:g}:" in slider.get_attribute("aria-valuetext")
        row = rows[i]
        assert driver.find_element("id", "gain").text == row["gain"] != ""
        assert driver.find_element("id", "strap").get_attribute("d") == row["strap"]
        assert driver.find_element("id", "drift").get_attribute("d") == row["drift"]
        assert driver.find_element("id", "who").get_attribute("transform") == f"translate({row['who']:g} 0)"
        assert (
            driver.find_element("id", "gold-hand").get_attribute("transform") == f"rotate({row['gold_turn']:g} 110 112)"
        )
        now = driver.find_elements("css selector", "tr.now th")
        assert [cell.text for cell in now] == [f"{beta:g}"]
        shown = [p.text for p in driver.find_elements("css selector", ".stop h3") if p.is_displayed()]
        assert shown == [f"beta {beta:g}"]
        slider.send_keys(Keys.ARROW_RIGHT)
    assert text(driver, "beta") == "the reference"
    assert value(driver, "gold") == float(frontier.gold.reference.value)
    assert value(driver, "kl") == 0
    assert driver.find_element("id", "who").get_attribute("transform") == f"translate({LEASH['near']:g} 0)"
    size = slider.size["width"]
    ActionChains(driver).move_to_element_with_offset(slider, -size // 2 + 2, 0).click().perform()
    assert value(driver, "beta") == 0
    ActionChains(driver).click_and_hold(slider).move_by_offset(size // 2 - 2, 0).release().perform()
    assert text(driver, "beta") == "the reference"


def test_the_markers_follow_the_dial(run_page, sweep, open_page):
    from selenium.webdriver import Keys

    driver = open_page(run_page)
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


@pytest.fixture(scope="module")
def pages(files, both_page):
    """Two pages to look at: a run with many answers, and two sources laid over each other."""
    (source,) = read_sources([files["run"]])
    answers = many_answers(source.frontier.beta.tolist(), 60, 30)
    sources = [dataclasses.replace(source, answers=source.answers + answers)]
    return {"light": report(sources, command="kleash report run -o page.html"), "dark": both_page}


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_and_pictures(width, scheme, pages, open_page):
    driver = open_page(pages[scheme], width=width, scheme=scheme)
    screenshot(driver, f"report-{width}-{scheme}")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert faults(driver) == []
    quiet(driver)


def test_it_fits_at_twice_the_size(pages, open_page):
    """A window of 1280 pixels at 200 % has room for 640."""
    for page in pages.values():
        driver = open_page(page, width=640)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 640


def test_everything_is_reached_by_keyboard_and_seen_to_be(both_page, open_page):
    from selenium.webdriver import Keys

    driver = open_page(both_page)
    reached = []
    for _ in range(12):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        now = driver.switch_to.active_element
        outline = driver.execute_script("const s = getComputedStyle(arguments[0]); return s.outlineWidth", now)
        if now.tag_name != "body":
            assert float(outline.removesuffix("px")) >= 2
        reached.append(now.get_attribute("id") or now.get_attribute("name") or now.get_attribute("class"))
    for place in ("source", "beta", "scroll", "button"):
        assert place in reached


def test_hostile_text_does_not_run(hostile_page, open_page):
    driver = open_page(hostile_page)
    quiet(driver)
    body = driver.execute_script("return document.body.textContent")
    assert "<script>window.hit=1</script>" in body
    assert "{{ 7*7 }}" in body
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 1280
    assert faults(driver) == []


def test_a_script_that_got_into_the_page_would_not_run(run_page, open_page):
    """The policy is the second wall: a planted script is refused, with an error in the console."""
    page = run_page.replace("</main>", "<script>window.hit=1</script></main>")
    driver = open_page(page)
    assert driver.execute_script("return window.hit") is None
    assert any("Content Security Policy" in entry["message"] for entry in driver.get_log("browser"))


def test_it_is_read_without_javascript(run_page, open_page):
    driver = open_page(run_page, script=False)
    assert not driver.find_element("id", "beta").is_displayed()
    assert text(driver, "beta") == "8"
    assert text(driver, "gold")
    assert all(stop.is_displayed() for stop in driver.find_elements("css selector", ".stop"))
    assert "The dial turns with JavaScript" in driver.find_element("tag name", "main").text


def test_sources_are_chosen(sweep, forecast, both_page, open_page):
    driver = open_page(both_page)
    assert value(driver, "beta") == forecast.verdict.safe_beta
    driver.find_elements("css selector", "input[name=source]")[1].click()
    assert value(driver, "beta") == sweep.verdict.safe_beta
    driver.find_elements("css selector", "input[name=source]")[0].click()
    assert driver.find_element("id", "no-answers").is_displayed()
    quiet(driver)


@pytest.mark.parametrize("change", [without_gold, refused])
def test_missing_parts(change, forecast, open_page):
    driver = open_page(report([change(forecast.frontier)]))
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
    driver = open_page(report([dataclasses.replace(source, answers=many_answers(betas.tolist(), 200, 300))]))
    assert opening(driver) < 2


def test_two_hundred_betas_of_five_sources_are_usable(open_page):
    page = report(big_sources())
    assert len(page.encode()) < 3_000_000
    driver = open_page(page)
    screenshot(driver, "report-many")
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


def test_it_prints(run_page, open_page):
    import base64

    driver = open_page(run_page)
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    pdf = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    data = base64.b64decode(pdf)
    assert data.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 6
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not driver.find_element("id", "beta").is_displayed()
    screenshot(driver, "report-print")
    assert json.loads(driver.find_element("id", "data").get_attribute("textContent"))["dials"]
