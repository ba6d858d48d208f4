"""The play page in headless Chromium: its numbers, its verdicts, its drawings, and whether everybody can use it."""

import json
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from screens import faults, screenshot, show_page

from kleash import tilt, worlds
from kleash.frontier import exact_frontier
from kleash.playground import drawing, kitchen
from kleash.playground.page import COURSE, SCENES, play
from kleash.reporting.page_assets import embed_json
from kleash.window import find_window

browser_test = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # selenium leaves its pipes to the collector
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("play") / "play.html"
    path.write_text(play(), encoding="utf-8")
    return path


@pytest.fixture
def driver(browser):
    return browser


def opened(driver, page, *, unlock=True, **options):
    show_page(driver, page, **options)
    if unlock and options.get("script", True):
        click(driver, "guess-skip")
    return driver


def by_id(driver, name):
    return driver.find_element("id", name)


def click(driver, name):
    by_id(driver, name).click()


def shown(driver):
    """The numbers that stand in the page, with all their digits, and the verdict."""
    return driver.execute_script(
        "const value = (id) => document.getElementById(id).dataset.value;"
        "return {beta: value('now-beta'), reward: value('now-reward'), gold: value('now-gold'), kl: value('now-kl'),"
        "gain: value('now-gain'), verdict: value('verdict'), policy: kleashPlay.reading().policy,"
        "words: [document.getElementById('verdict-headline').textContent,"
        "        document.getElementById('verdict-detail').textContent]};"
    )


def turned(driver, beta, love=1.0, oversalt=0.0505):
    setting = "Infinity" if math.isinf(beta) else repr(beta)
    driver.execute_script(f"kleashPlay.set({setting}, {love!r}, {oversalt!r})")
    return shown(driver)


def random_settings(n=50):
    rng = np.random.default_rng(6)
    betas = np.exp(rng.uniform(np.log(0.1), np.log(1e4), n))
    loves = 0.25 * 16 ** rng.uniform(0, 1, n)
    oversalts = 1e-5 * 2e4 ** rng.uniform(0, 1, n)
    betas[:4], betas[4:8], oversalts[6:9] = 0.0, np.inf, 0.0
    betas[13] = 1e9  # far past the dial's end, where KL is 1e-19
    loves[9:11], oversalts[11:13] = (0.25, 4.0), (1e-5, 0.2)
    return list(zip(betas.tolist(), loves.tolist(), oversalts.tolist(), strict=True))


# -------------------------------------------------------------------------------------------------- without a browser


def test_the_page_needs_nothing_but_itself():
    text = play()
    assert not re.search(r"""(?:src|href|action)=["'](?!data:)""", text)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src &#39;none&#39;" in text
    assert len(text) < 200_000


def test_the_page_is_the_same_each_time():
    assert play() == play()


def test_the_embedded_data_cannot_end_its_element():
    assert not set("<>&") & set(embed_json({"a": "</script><!--&<script>"}))
    data = play().split('<script type="application/json" id="data">')[1].split("</script>")[0]
    assert not set("<>&") & set(data)
    world = json.loads(data)["world"]
    assert world["gold"] == worlds.kitchen().gold[0].tolist()
    assert world["bomb"] == worlds.kitchen(oversalt=1.0).log_reference[0].tolist()


def test_the_table_holds_the_courses_numbers_and_stays_as_near_as_the_page_says():
    for beta, judge, quality in COURSE:
        now = kitchen.read(beta)
        assert abs(now.reward - judge) < 0.09
        assert abs(now.gold - quality) < 0.008


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.title)
def test_what_a_scene_tells_is_so(scene):
    start, end = (kitchen.read(scene.betas[i], love=scene.love, oversalt=scene.oversalt) for i in (0, -1))
    told = scene.answer()
    assert "{" not in told
    assert "-" not in told.split()
    match scene.title:
        case "Let him loose" | "Is the critic cured?":
            assert end.gold < 1e-6
            assert end.reward == end.levels.max() * scene.love
        case "Forbid everything":
            assert (end.reward, end.gold, end.kl) == (end.reference_reward, end.reference_gold, 0.0)
        case "The course's five settings":
            golds = [kitchen.read(beta).gold for beta in scene.betas]
            assert golds == sorted(golds)
            assert golds[-1] < end.reference_gold
            assert end.verdict.kind == "no-useful-range"
        case "A steadier cook":
            assert end.verdict.kind == "useful-range"
            assert end.small
            assert end.beta == pytest.approx(end.verdict.best_beta)
        case "A critic twice as fond of salt":
            mild = kitchen.read(start.beta, oversalt=scene.oversalt)
            assert end.verdict.best_beta == pytest.approx(2 * mild.verdict.best_beta)
            assert end.beta == pytest.approx(end.verdict.best_beta)
            assert end.gain == pytest.approx(mild.gain)
        case other:
            pytest.fail(f"no test of scene {other!r}")


@pytest.mark.parametrize("beta", [0.0, 1e-3, 0.1, 0.5, 15.0, 1e4, 1e6, math.inf])
def test_places_on_the_dial_and_betas_are_inverse(beta):
    assert kitchen.beta_at(kitchen.position(beta)) == pytest.approx(beta, rel=1e-9)


def test_the_dial_turns_one_way():
    places = [kitchen.position(beta) for beta in [0.0, 1e-3, 0.0999, 0.1, 1.0, 9e3, 1e4, 1.001e4, 1e9, math.inf]]
    assert np.all(np.diff(places) > 0)
    assert (places[0], places[-1]) == (0.0, 1.0)


def test_a_drawing_is_well_formed_and_moves():
    loose, tight = kitchen.read(0.0), kitchen.read(math.inf)
    for name, draw in drawing.DRAW.items():
        ET.fromstring(f"<svg>{draw(loose)}</svg>")
        assert draw(loose) != draw(tight), name


# ------------------------------------------------------------------------------------------------------ in a browser


class TestInChromium:
    pytestmark = browser_test

    def test_opens_from_a_file_without_errors_and_without_network(self, driver, page):
        opened(driver, page, unlock=False)
        driver.execute_script("kleashPlay.set(3); console.log('the end')")
        said = []
        while not any("the end" in entry["message"] for entry in said):  # entries may come late
            said += driver.get_log("browser")
        assert len(said) == 1, said
        sent = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        urls = {m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"}
        assert {url for url in urls if not url.startswith("data:")} == {page.as_uri()}

    def test_the_numbers_are_those_of_the_closed_form(self, driver, page):
        opened(driver, page)
        for beta, love, oversalt in random_settings():
            got = turned(driver, beta, love, oversalt)
            world = worlds.kitchen(love=love, oversalt=oversalt)
            at = tilt.moments(world, [beta, np.inf])
            policy = np.exp(tilt.tilt_policy(world, [beta])[0, 0])
            setting = f"beta {beta}, love {love}, oversalt {oversalt}"
            assert float(got["beta"]) == beta
            for name in ("reward", "gold", "kl"):
                exact = getattr(at, name)[0]
                assert float(got[name]) == pytest.approx(exact, rel=1e-9, abs=1e-30), f"{name} at {setting}"
            assert float(got["gain"]) == pytest.approx(at.gold[0] - at.gold[1], abs=1e-12), setting
            np.testing.assert_allclose(got["policy"], policy, rtol=1e-9, atol=1e-30, err_msg=setting)

    def test_the_verdicts_are_those_of_the_window(self, driver, page):
        opened(driver, page)
        kinds = set()
        for beta, love, oversalt in random_settings():
            got = turned(driver, beta, love, oversalt)
            verdict, told = json.loads(got["verdict"]), got["words"]
            exact = find_window(exact_frontier(worlds.kitchen(love=love, oversalt=oversalt)))
            setting = f"love {love}, oversalt {oversalt}"
            kinds.add(exact.kind)
            assert verdict["kind"] == exact.kind, setting
            for name, value in (
                ("best", exact.best_beta),
                ("safe", exact.safe_beta),
                ("loose", exact.loose_edge),
                ("tight", exact.tight_edge),
            ):
                if value is None:
                    assert verdict[name] is None, f"{name} at {setting}"
                else:
                    assert verdict[name] == pytest.approx(value, rel=1e-9), f"{name} at {setting}"
            assert tuple(told) == kitchen.verdict_words(kitchen.read(beta, love=love, oversalt=oversalt)), setting
        assert kinds == {"useful-range", "no-useful-range"}

    @pytest.mark.parametrize(
        "setting",
        [
            (0.0, 1.0, 0.0505),
            (5.0, 1.0, 0.0505),
            (math.inf, 1.0, 0.2),
            (7.25, 1.0, 0.0005),
            (3.0, 0.25, 0.0),
            (99.0, 4.0, 0.01),
        ],
        ids=str,
    )
    def test_the_page_draws_what_python_draws(self, driver, page, setting):
        opened(driver, page)
        turned(driver, *setting)
        now = kitchen.read(setting[0], love=setting[1], oversalt=setting[2])
        for name, draw in drawing.DRAW.items():
            there = by_id(driver, f"picture-{name}").get_attribute("innerHTML")
            same_drawing(there, draw(now), name)

    def test_the_dials_move_by_keyboard(self, driver, page):
        from selenium.webdriver.common.keys import Keys

        opened(driver, page)
        slider = by_id(driver, "beta")
        slider.send_keys(Keys.HOME)
        assert float(shown(driver)["beta"]) == 0.0
        assert by_id(driver, "now-gold").text == "0.000"
        slider.send_keys(Keys.END)
        assert shown(driver)["beta"] == "Infinity"
        assert slider.get_attribute("aria-valuetext") == "reference"
        slider.send_keys(Keys.ARROW_LEFT)
        assert 1e3 < float(shown(driver)["beta"]) < math.inf
        before = shown(driver)
        by_id(driver, "love").send_keys(Keys.ARROW_RIGHT)
        by_id(driver, "oversalt").send_keys(Keys.HOME)
        after = shown(driver)
        assert json.loads(after["verdict"])["kind"] == "useful-range"
        assert after["beta"] == before["beta"]
        assert by_id(driver, "oversalt-words").text == "never"

    def test_the_dial_moves_by_mouse(self, driver, page):
        from selenium.webdriver.common.action_chains import ActionChains

        opened(driver, page)
        slider = by_id(driver, "beta")
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", slider)
        ActionChains(driver).move_to_element(slider).click_and_hold().move_by_offset(60, 0).release().perform()
        assert float(shown(driver)["beta"]) > 50

    @pytest.mark.parametrize(
        ("typed", "beta"),
        [("7.25", "7.25"), ("0", "0"), ("Reference", "Infinity"), ("0.01", None), ("salt", None), ("", None)],
    )
    def test_a_beta_can_be_typed_and_what_is_none_is_refused(self, driver, page, typed, beta):
        from selenium.webdriver.common.keys import Keys

        opened(driver, page)
        field = by_id(driver, "beta-exact")
        field.clear()
        field.send_keys(typed, Keys.TAB)
        wrong = "wrong" in by_id(driver, "beta-help").get_attribute("class")
        assert shown(driver)["beta"] == ("15" if beta is None else beta)
        assert wrong == (beta is None)

    def test_the_kitchen_is_closed_until_the_reader_has_guessed(self, driver, page):
        from selenium.webdriver.common.keys import Keys

        opened(driver, page, unlock=False)
        assert by_id(driver, "kitchen").get_property("inert") is True
        by_id(driver, "guess-beta").send_keys(Keys.HOME)
        by_id(driver, "guess-done").send_keys(Keys.ENTER)
        assert by_id(driver, "kitchen").get_property("inert") is False
        assert not by_id(driver, "guess").is_displayed()
        told = by_id(driver, "reveal").text
        assert "You said beta 0: the guests get 0.000. The untouched house serves 1.798." in told
        assert driver.switch_to.active_element.get_attribute("id") == "reveal"
        assert by_id(driver, "guess-key").is_displayed()

    @pytest.mark.parametrize(
        ("fragment", "setting"),
        [
            ("beta=7.25&love=2&oversalt=0.0005", (7.25, 2.0, 0.0005)),
            ("beta=reference", (math.inf, 1.0, 0.0505)),
            ("beta=7.25&love=9", None),
            ("beta=7&oversalt=salt", None),
            ("other", None),
        ],
    )
    def test_an_address_may_name_a_setting(self, driver, page, fragment, setting):
        opened(driver, page, unlock=False, fragment=f"#{fragment}")
        assert by_id(driver, "kitchen").get_property("inert") is (setting is None)
        beta, love, oversalt = setting or (15.0, 1.0, 0.0505)
        exact = kitchen.read(beta, love=love, oversalt=oversalt)
        assert float(shown(driver)["gold"]) == pytest.approx(exact.gold, rel=1e-9)

    @pytest.mark.parametrize("number", range(len(SCENES)))
    def test_a_scene_asks_shows_and_tells(self, driver, page, number):
        opened(driver, page)
        for _ in range(number):
            click(driver, "scene-next")
        scene, card = SCENES[number], driver.find_element("css selector", ".scene.shown")
        answer = card.find_element("class name", "answer")
        assert not answer.is_displayed()
        card.find_element("css selector", f'[data-option="{scene.right}"]').click()
        assert answer.text == "You saw it. " + scene.answer()
        got = shown(driver)
        assert float(got["beta"]) == scene.betas[-1]
        assert float(got["gold"]) == pytest.approx(
            kitchen.read(scene.betas[-1], love=scene.love, oversalt=scene.oversalt).gold, rel=1e-9
        )

    def test_with_motion_the_dial_turns_and_arrives(self, driver, page):
        from selenium.webdriver.support.ui import WebDriverWait

        opened(driver, page, motion="no-preference")
        driver.find_element("css selector", 'button[data-beta="60"]').click()
        seen = set()

        def arrived(chrome):
            seen.add(shown(chrome)["beta"])
            return chrome.find_element("tag name", "html").get_attribute("data-turning") == "no"

        WebDriverWait(driver, 10, poll_frequency=0.05).until(arrived)
        assert shown(driver)["beta"] == "60"
        assert any(15 < float(beta) < 60 for beta in seen)
        row = driver.find_element("css selector", "tr.here")
        assert row.get_attribute("data-row") == "60"

    def test_without_javascript_picture_table_and_answers_are_there(self, driver, page):
        opened(driver, page, script=False)
        text = driver.find_element("tag name", "body").text
        for words in ("15", "12.88", "1.541", "No useful range", "31.7", SCENES[3].answer()):
            assert words in text
        assert not by_id(driver, "beta").is_displayed()
        assert by_id(driver, "picture-leash").is_displayed()
        screenshot(driver, "play-static-1280")

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("width", [1280, 390])
    def test_everybody_can_use_it_and_it_has_its_picture_taken(self, driver, page, width, scheme):
        opened(driver, page, width=width, scheme=scheme, unlock=False)
        assert faults(driver) == []
        click(driver, "guess-done")
        card = driver.find_element("css selector", ".scene.shown")
        driver.execute_script("arguments[0].click()", card.find_element("css selector", '[data-option="0"]'))
        turned(driver, 7.25, 1.0, 0.0005)
        assert faults(driver) == []
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width
        screenshot(driver, f"play-{scheme}-{width}")

    def test_it_fits_at_twice_the_size(self, driver, page):
        opened(driver, page, width=640)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 640

    def test_it_prints_with_every_answer(self, driver, page):
        opened(driver, page, width=794, scheme="dark", media="print", unlock=False)
        text = driver.find_element("tag name", "body").text
        assert all(scene.answer() in text for scene in SCENES)
        assert not by_id(driver, "dials").is_displayed()
        screenshot(driver, "play-print")


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def same_drawing(one, other, name):
    """Equal elements with equal attributes; numbers to a hundredth of a unit, the rest to the letter."""
    first, second = (
        list(ET.fromstring(re.sub(r'xmlns="[^"]*"', "", f"<svg>{text}</svg>")).iter()) for text in (one, other)
    )
    assert [e.tag for e in first] == [e.tag for e in second], name
    for a, b in zip(first, second, strict=True):
        for x, y in [*((a.get(k, ""), b.get(k, "")) for k in {*a.keys(), *b.keys()}), (a.text or "", b.text or "")]:
            assert NUMBER.sub("#", x) == NUMBER.sub("#", y), (name, x, y)
            got, expected = (np.array([float(n) for n in NUMBER.findall(text)]) for text in (x, y))
            np.testing.assert_allclose(got, expected, atol=0.0101, rtol=0, err_msg=f"{name}: {x} {y}")
