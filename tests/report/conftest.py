import itertools
import json
from pathlib import Path

import pytest
from hard_cases import HOSTILE, hostile_source
from screens import CHROMIUM, DRIVER, show_page, start_browser

import kleash
from kleash.reporting.page import report
from kleash.reporting.sources import read_sources, source_of

ROOT = Path(__file__).parents[2]


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


@pytest.fixture
def no_charts(monkeypatch):
    """Pages without charts, which take nearly all of the time that a page takes: for tests of the rest."""
    monkeypatch.setattr("kleash.reporting.page._figures", lambda sources: [])


@pytest.fixture(scope="session")
def run_page(files):
    """The page of a run, as the command makes it."""
    return report(read_sources([files["run"]]), command="kleash report run -o page.html")


@pytest.fixture(scope="session")
def both_page(files):
    """The page of two sources laid over each other."""
    return report(read_sources([files["forecast_json"], files["sweep_json"]]))


@pytest.fixture(scope="session")
def hostile_page(sweep):
    """A page in which everything that is not ours is hostile, beside another source."""
    sources = [hostile_source(sweep), source_of(sweep, name="b")]
    return report(sources, title=HOSTILE[0], command=HOSTILE[1])


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium, one for all tests."""
    absent = [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]
    if absent:
        pytest.skip(f"no {' and no '.join(absent)}: apt-get install chromium chromium-driver")
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture
def open_page(browser, tmp_path):
    """A function that writes HTML to a file and opens it with the network off."""
    count = itertools.count()

    def start(html, **options):
        path = tmp_path / f"page-{next(count)}.html"
        path.write_text(html, encoding="utf-8")
        return show_page(browser, path, **options)

    return start
