"""The page without a browser: what it says, what it may not contain, how large it is."""

import base64
import csv
import dataclasses
import hashlib
import html.parser
import io
import json
import re

import numpy as np
import pytest
from hard_cases import HOSTILE, many_answers, refused, without_gold
from hypothesis import given
from hypothesis import strategies as st

import kleash
from kleash.errors import OptionError
from kleash.playground.page import play
from kleash.reporting.dial import LEASH
from kleash.reporting.page import csv_text, report
from kleash.reporting.page_assets import asset, embed_json, palette
from kleash.reporting.sentences import advice, shown
from kleash.reporting.sources import read_sources, source_of


class Elements(html.parser.HTMLParser):
    """Every element of a page with its attributes, and all text outside scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text, self.inside = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        if tag in self.inside:
            while self.inside.pop() != tag:
                pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.inside):
            self.text.append(data)


def test_the_page_says_what_was_found_in_order(run_page):
    page = run_page
    headings = re.findall(r"<h2 [^>]*>(.*?)</h2>", page)
    assert headings == [
        "Turn the dial",
        "The whole dial",
        "Answers",
        "The table",
        "How sure, and why",
        "Make this page again",
    ]
    assert page.index("Useful range.") < page.index("Set beta to 8,") < page.index("Turn the dial")
    assert "kleash report run -o page.html" in page


def test_nothing_is_fetched_and_only_its_own_script_runs(both_page):
    page = both_page
    elements = Elements(page)
    for tag, attributes in elements.found:
        assert tag not in ("iframe", "object", "embed", "base", "form", "img", "video", "audio")
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name != "style"  # the policy would drop it
            if name in ("src", "href", "xlink:href"):
                assert value.startswith("data:")
    assert re.findall(r"url\((?!#)", page) == []
    (policy,) = [a["content"] for t, a in elements.found if t == "meta" and "Policy" in a.get("http-equiv", "")]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for kind in ("style", "script"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, flags=re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_hostile_text_is_text(hostile_page, both_page):
    page, plain = hostile_page, both_page
    page.encode("utf-8")
    scripts = [attributes for tag, attributes in Elements(page).found if tag == "script"]
    assert len(scripts) == len([1 for tag, _ in Elements(plain).found if tag == "script"]) == 2
    assert {tag for tag, _ in Elements(page).found} <= {tag for tag, _ in Elements(plain).found} | {"code", "pre"}
    assert "".join(Elements(page).text).count("x" * 10_000) >= 2
    text = "".join(Elements(page).text)
    for hostile in HOSTILE:
        assert shown(hostile) in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\u2060\ufeff\U000e0041]", page)


@given(st.recursive(st.text() | st.floats(allow_nan=False, allow_infinity=False), lambda x: st.lists(x, max_size=3)))
def test_embedded_json_is_read_back_and_cannot_end_its_element(value):
    text = embed_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)


def test_the_table_and_the_csv_are_the_frontiers(files, sweep, run_page):
    (source,) = read_sources([files["run"]])
    rows = list(csv.DictReader(io.StringIO(csv_text([source]))))
    assert [float(row["gold"]) for row in rows[:-1]] == sweep.frontier.gold.value.tolist()
    assert [float(row["gold_gain_lo"]) for row in rows[:-1]] == sweep.frontier.gold.gain.lo.tolist()
    assert rows[-1]["status"] == "reference"
    page = run_page
    (encoded,) = re.findall(r'href="data:text/csv;charset=utf-8;base64,([^"]*)"', page)
    assert base64.b64decode(encoded).decode() == csv_text([source])
    payload = json.loads(re.search(r'id="data">(.*?)</script>', page, flags=re.S)[1])
    assert [row["value"]["gold"] for row in payload["dials"][0]["rows"][:-1]] == sweep.frontier.gold.value.tolist()
    for row in payload["dials"][0]["rows"]:
        assert f"<td>{row['reward']}" in page
        assert row["gold"] in page


def test_needles_and_leash_are_to_scale(run_page):
    (dial,) = json.loads(re.search(r'id="data">(.*?)</script>', run_page, flags=re.S)[1])["dials"]
    columns = (
        [row["value"]["reward"], row["reward_turn"], row["value"]["kl"], row["who"] - LEASH["near"]]
        for row in dial["rows"]
    )
    reward, turn, kl, leash = np.array(list(columns)).T
    assert np.corrcoef(reward, turn)[0, 1] == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(leash / leash.max(), np.sqrt(kl / kl.max()), atol=1e-4)
    assert leash[-1] == 0
    assert (np.abs(turn) <= 90).all()


def test_the_gain_beside_the_needle_is_the_paired_one(both_page, forecast):
    (dial, _) = json.loads(re.search(r'id="data">(.*?)</script>', both_page, flags=re.S)[1])["dials"]
    gain = forecast.frontier.gold.gain
    for i, row in enumerate(dial["rows"][:-1]):
        numbers = [float(x) for x in re.findall(r"[+-][\d.e-]+", row["gain"].replace("\N{MINUS SIGN}", "-"))]
        np.testing.assert_allclose(numbers, [gain.value[i], gain.lo[i], gain.hi[i]], rtol=6e-3)
    assert dial["rows"][-1]["gain"] == ""


def test_the_interval_of_the_leash_lies_on_the_ground(both_page, forecast):
    (dial, _) = json.loads(re.search(r'id="data">(.*?)</script>', both_page, flags=re.S)[1])["dials"]
    kl = forecast.frontier.kl
    for i, row in enumerate(dial["rows"][:-1]):
        lo, hi = map(float, re.fullmatch(r"M([\d.]+) 112H([\d.]+)", row["drift"]).groups())
        assert lo <= row["who"] <= hi <= LEASH["far"]
        for end, there in ((kl.lo[i], lo), (kl.hi[i], hi)):
            ratio = (there - LEASH["near"]) / (row["who"] - LEASH["near"])
            assert ratio == pytest.approx(np.sqrt(max(end, 0) / kl.value[i]), rel=2e-2)


def test_both_pages_have_one_palette_and_one_base(run_page):
    for text in (*re.findall(r"--[a-z]+:#[0-9a-f]{6};", palette()), asset("base.css")):
        assert text in run_page
        assert text in play()


def test_a_name_is_no_formula_in_a_spreadsheet(sweep):
    rows = list(csv.DictReader(io.StringIO(csv_text([source_of(sweep, name="=HYPERLINK(1)")]))))
    assert {row["source"] for row in rows} == {"'=HYPERLINK(1)"}


def test_the_same_sources_give_the_same_bytes(files, both_page):
    sources = read_sources([files["forecast_json"], files["sweep_json"]])
    assert report(sources) == both_page


MISSING = {
    "no gold": (without_gold, ("True quality was not measured", "not measured")),
    "everything refused": (refused, ("Every beta is beyond what the data can say", "every beta is beyond")),
    "no answers": (lambda f: f, ("No answers were kept",)),
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_parts_are_said(name, forecast):
    change, words = MISSING[name]
    page = report([change(forecast.frontier)])
    for word in words:
        assert word in page


@pytest.mark.usefixtures("no_charts")
def test_one_beta_says_so():
    page = report([kleash.exact_frontier(kleash.kitchen(), [15.0])])
    assert "One beta says nothing about where quality turns" in page


def test_a_check_alone_is_a_page(files):
    page = report(read_sources([files["check_json"]]))
    assert "1 problem found." in page
    assert 'class="verdict bad"' in page
    assert "Score with the reference that trained." in page
    assert "the mean is 1.4, not 1" in page
    assert "Turn the dial" not in page
    with pytest.raises(OptionError, match="at least one"):
        report([])


def test_a_check_without_a_problem_is_not_called_good(files):
    (source,) = read_sources([files["check_json"]])
    page = report([dataclasses.replace(source, findings=source.findings[1:])])
    assert "No problem found." in page
    assert 'class="verdict open"' in page


@pytest.mark.usefixtures("no_charts")
def test_answers_that_are_left_out_are_counted(sweep):
    answers = [{"beta": 0.0, "prompt": "p", "answer": f"a{i}", "reward": 1.0, "gold": 1.0} for i in range(30)]
    page = report([dataclasses.replace(source_of(sweep), answers=tuple(answers))])
    assert page.count('class="answer foreign"') == 12
    assert "18 more are in the files" in page


def test_what_to_set_is_the_trainers_own_where_it_is_known(forecast):
    source = source_of(forecast)
    trainer = {"name": "trl-grpo", "parameter": "beta", "value": 0.25, "assumes": ["length 100"], "refused": None}
    assert advice(dataclasses.replace(source, trainer=trainer)) == [
        "In trl-grpo, set beta = 0.25.",
        "This assumes length 100.",
    ]
    refusal = trainer | {"value": None, "refused": "it standardises rewards."}
    assert "standardises" in advice(dataclasses.replace(source, trainer=refusal))[0]
    assert "Set beta to 15.9" in advice(source)[0]
    own = dataclasses.replace(source, facts=(("objective", "group-standardised"),))
    assert advice(own) == ["Set the trainer's own coefficient to 15.9."]


def test_twelve_betas_with_two_hundred_answers_are_below_three_megabytes():
    betas = np.geomspace(0.5, 100, 12)
    source = source_of(kleash.exact_frontier(kleash.kitchen(oversalt=0.0005), betas))
    page = report([dataclasses.replace(source, answers=many_answers(betas.tolist(), 200, 300))])
    assert len(page.encode()) < 3_000_000
    assert page.count('class="answer foreign"') == 144  # twelve at each beta
    long = tuple({**row, "answer": "y" * 100_000} for row in many_answers(betas.tolist(), 200, 3))
    assert len(report([dataclasses.replace(source, answers=long)]).encode()) < 3_000_000
