"""The page without a browser: what it says, what it may not contain, how large it is."""

import base64
import csv
import dataclasses
import hashlib
import html.parser
import io
import json
import re
import time

import numpy as np
import pytest
from hard_cases import HOSTILE, big_sources, hostile_source, many_answers, refused, without_gold
from hypothesis import given
from hypothesis import strategies as st

import kleash
from kleash.errors import OptionError
from kleash.report.page import csv_text, embed_json, report_page
from kleash.report.sources import read_sources, source_of
from kleash.report.words import advice, shown


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


def test_the_page_says_what_was_found_in_order(files):
    page = report_page(read_sources([files["run"]]), command="kleash report run -o page.html")
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


def test_nothing_is_fetched_and_only_its_own_script_runs(files):
    page = report_page(read_sources([files["run"], files["forecast_json"]]))
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


def test_hostile_text_is_text(sweep):
    source = hostile_source(sweep)
    page = report_page([source, source_of(sweep, name="b")], title=HOSTILE[0], command=HOSTILE[1])
    page.encode("utf-8")
    plain = report_page([source_of(sweep, name="a"), source_of(sweep, name="b")])
    scripts = [attributes for tag, attributes in Elements(page).found if tag == "script"]
    assert len(scripts) == len([1 for tag, _ in Elements(plain).found if tag == "script"]) == 2
    assert {tag for tag, _ in Elements(page).found} <= {tag for tag, _ in Elements(plain).found} | {"code", "pre"}
    assert "".join(Elements(page).text).count("x" * 10_000) >= 2
    text = "".join(Elements(page).text)
    for hostile in HOSTILE:
        assert shown(hostile) in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)


@given(st.recursive(st.text() | st.floats(allow_nan=False, allow_infinity=False), lambda x: st.lists(x, max_size=3)))
def test_embedded_json_is_read_back_and_cannot_end_its_element(value):
    text = embed_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)


def test_the_table_and_the_csv_are_the_frontiers(files, sweep):
    (source,) = read_sources([files["run"]])
    rows = list(csv.DictReader(io.StringIO(csv_text([source]))))
    assert [float(row["gold"]) for row in rows[:-1]] == sweep.frontier.gold.value.tolist()
    assert rows[-1]["status"] == "reference"
    page = report_page([source])
    (encoded,) = re.findall(r'href="data:text/csv;charset=utf-8;base64,([^"]*)"', page)
    assert base64.b64decode(encoded).decode() == csv_text([source])
    payload = json.loads(re.search(r'id="data">(.*?)</script>', page, flags=re.S)[1])
    assert [row["value"]["gold"] for row in payload["dials"][0]["rows"][:-1]] == sweep.frontier.gold.value.tolist()
    for row in payload["dials"][0]["rows"]:
        assert f"<td>{row['reward']}" in page
        assert row["gold"] in page


def test_needles_and_leash_are_to_scale(sweep):
    page = report_page([source_of(sweep)])
    (dial,) = json.loads(re.search(r'id="data">(.*?)</script>', page, flags=re.S)[1])["dials"]
    values = np.array([[r["value"]["reward"], r["reward_turn"], r["value"]["kl"], r["leash"]] for r in dial["rows"]]).T
    assert np.corrcoef(values[0], values[1])[0, 1] == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(values[3] / values[3].max(), values[2] / values[2].max(), atol=1e-4)
    assert (np.abs(values[1]) <= 105).all()


def test_the_same_sources_give_the_same_bytes(files):
    sources = read_sources([files["run"], files["forecast_json"]])
    assert report_page(sources) == report_page(sources)


MISSING = {
    "no gold": (without_gold, ("True quality was not measured", "not measured")),
    "everything refused": (refused, ("Every beta is beyond what the data can say", "every beta is beyond")),
    "no answers": (lambda f: f, ("No answers were kept",)),
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_parts_are_said(name, forecast):
    change, words = MISSING[name]
    page = report_page([change(forecast.frontier)])
    for word in words:
        assert word in page


def test_one_beta_says_so():
    page = report_page([kleash.exact_frontier(kleash.kitchen(), [15.0])])
    assert "One beta says nothing about where quality turns" in page


def test_a_check_alone_is_a_page(files):
    page = report_page(read_sources([files["check_json"]]))
    assert "1 problem found." in page
    assert "Score with the reference that trained." in page
    assert "the mean is 1.4, not 1" in page
    assert "Turn the dial" not in page
    with pytest.raises(OptionError, match="at least one"):
        report_page([])


def test_answers_that_are_left_out_are_counted(sweep):
    answers = [{"beta": 0.0, "prompt": "p", "answer": f"a{i}", "reward": 1.0, "gold": 1.0} for i in range(30)]
    page = report_page([dataclasses.replace(source_of(sweep), answers=tuple(answers))])
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
    page = report_page([dataclasses.replace(source, answers=many_answers(betas.tolist(), 200, 300))])
    assert len(page.encode()) < 3_000_000
    assert page.count('class="answer foreign"') == 144  # twelve at each beta
    long = tuple({**row, "answer": "y" * 100_000} for row in many_answers(betas.tolist(), 200, 3))
    assert len(report_page([dataclasses.replace(source, answers=long)]).encode()) < 3_000_000


def test_two_hundred_betas_of_five_sources_are_below_three_megabytes():
    began = time.process_time()
    page = report_page(big_sources())
    assert time.process_time() - began < 20
    assert len(page.encode()) < 3_000_000
