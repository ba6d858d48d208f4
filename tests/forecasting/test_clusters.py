"""Groups of prompts are drawn together: their number, not that of the prompts, says how sure a mean is."""

import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.special import stdtrit

from kleash import forecast, read_samples
from kleash.cli.forecast import forecast as command
from kleash.errors import DataError, MissingColumnError, OptionError
from kleash.forecasting.intervals import Prompts

G, P = 30, 120
GROUP = np.repeat(np.arange(G), P // G)


def drawn(clusters, values):
    prompts = Prompts.draw(values.shape[0], rng=np.random.default_rng(0), n_draws=400, clusters=clusters)
    return prompts.mean(values, known=np.ones(values.shape[0], dtype=bool))


def test_prompts_that_are_all_alike_in_a_group_are_worth_one():
    """The error is that of the G means: 2 % more would fail."""
    means = np.random.default_rng(1).normal(size=(G, 1))
    estimates, draws = drawn(GROUP, np.repeat(means, P // G, axis=0))
    se = means.std(ddof=1) / np.sqrt(G)
    assert estimates.se == pytest.approx(se)
    assert estimates.hi - estimates.value == pytest.approx(stdtrit(G - 1, 0.975) * se)
    assert draws.std() == pytest.approx(se, rel=0.15)


def test_a_large_group_counts_by_its_prompts_and_costs_degrees_of_freedom():
    sizes = np.array([40, 10, 10, 10, 10, 10, 10, 10, 10])
    group, rng = np.repeat(np.arange(9), sizes), np.random.default_rng(2)
    errors = []
    for _ in range(400):
        values = rng.normal(size=9)[group][:, None]
        estimates, _ = Prompts(counts=np.ones((1, 120), dtype=np.uint16), clusters=group).mean(
            values, known=np.ones(120, dtype=bool)
        )
        errors.append([estimates.value[0], estimates.lo[0] <= 0 <= estimates.hi[0]])
    value, covered = np.array(errors).T
    assert value.std() == pytest.approx(np.sqrt((sizes**2).sum()) / 120, rel=0.15)
    assert covered.mean() > 0.93  # .79 if the 120 prompts counted one by one


def rows_of(*, group):
    rng = np.random.default_rng(3)
    return [{"prompt": f"p{p}", "reward": rng.normal(), "document": group(p)} for p in range(12) for _ in range(6)]


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_column_is_read_and_widens(tmp_path):
    path = written(tmp_path / "s.jsonl", rows_of(group=lambda p: f"d{p // 3}" if p < 9 else None))
    samples = read_samples(path, cluster_column="document")
    assert samples.clusters.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 5]
    alone = forecast(dataclasses.replace(samples, clusters=None), beta=[2.0]).frontier
    together = forecast(samples, beta=[2.0]).frontier
    assert (alone.n[0], together.n[0]) == (12, 6)
    assert together.reward.value == pytest.approx(alone.reward.value)
    shown = CliRunner().invoke(command, [str(path), "--cluster-column", "document", "--format", "json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["n_prompts"] == 12


@pytest.mark.parametrize(
    ("group", "column", "error", "says"),
    [
        (
            lambda p: "all",
            "document",
            DataError,
            "clusters: expected at least two, got one; leave --cluster-column out",
        ),
        (lambda p: f"d{p}", "documnt", MissingColumnError, "did you mean 'document'"),
    ],
)
def test_groups_that_cannot_be(tmp_path, group, column, error, says):
    with pytest.raises(error, match=says):
        read_samples(written(tmp_path / "s.jsonl", rows_of(group=group)), cluster_column=column)


def test_a_prompt_in_two_groups_is_an_error_with_its_line(tmp_path):
    rows = rows_of(group=lambda p: f"d{p // 2}")
    rows[4]["document"] = "d9"
    with pytest.raises(DataError, match=r"s.jsonl:5: cluster of prompt p0: expected one, got d0 and d9"):
        read_samples(written(tmp_path / "s.jsonl", rows), cluster_column="document")


def test_groups_of_a_whole_population_are_refused(tmp_path):
    path = tmp_path / "samples.csv"
    rows = [f"p{p},{p % 3},{k}" for p in range(6) for k in range(8)]
    path.write_text("prompt,user,reward\n" + "\n".join(rows) + "\n")
    with pytest.raises(OptionError, match="prompts: expected sampled with a column of clusters, got fixed"):
        forecast(read_samples(path, cluster_column="user"), prompts="fixed")
