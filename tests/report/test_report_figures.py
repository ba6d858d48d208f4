"""Figures: their data are the table's, what is printed beside them is true, and they can be drawn."""

import dataclasses
import html
import math
import re

import numpy as np
import pytest

import kleash
from kleash.frontier import Estimates, Gold
from kleash.reporting import drawing, figures, figures_runs
from kleash.reporting.palette import DIAL, SERIES, draw_png, draw_svg, inline_svg, theme
from kleash.reporting.plots import save_plots
from kleash.reporting.sources import read_sources, source_of


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", [*SERIES, *DIAL])
def test_lines_and_their_names_stand_out_from_white(colour):
    assert 1.05 / (luminance(colour) + 0.05) >= 4.5


def test_the_rows_of_a_figure_are_the_table(sweep):
    source = source_of(sweep)
    data = figures.dial_data([source])
    mine = [row for row in data.rows if row["panel"] == "gold"]
    assert [row["y"] for row in mine] == sweep.frontier.gold.value.tolist()
    assert [row["lo"] for row in mine] == sweep.frontier.gold.lo.tolist()
    assert [row["beta"] for row in mine] == sweep.frontier.beta.tolist()


def test_zero_and_the_reference_have_places_of_their_own(sweep):
    axis = figures.dial_axis([source_of(sweep)])
    assert axis.lo < axis.beta(0.0) < axis.beta(2.0) < axis.beta(60.0) < axis.beta(math.inf) < axis.hi
    assert axis.beta(60.0) == pytest.approx(math.log10(60.0))
    labels = [text for _, text in axis.ticks]
    assert labels == ["0", "2", "5", "8", "15", "60", "reference"]


@pytest.mark.parametrize("betas", [[0.0], [3.0], [0.0, 1e-9], [1e-3, 1e6]])
def test_any_betas_have_an_axis(betas):
    source = source_of(kleash.exact_frontier(kleash.kitchen(), betas))
    axis = figures.dial_axis([source])
    places = [axis.fraction(axis.beta(b)) for b in (*betas, math.inf)]
    assert all(0 < place < 1 for place in places)
    assert places == sorted(places)
    draw_svg(drawing.dial_chart(figures.dial_data([source])))
    draw_svg(drawing.travel_chart(figures.travel_data([source])))


def test_the_window_is_shaded_from_edge_to_edge(sweep):
    source = source_of(sweep)
    (span,) = figures.dial_data([source]).spans
    axis = figures.dial_axis([source])
    assert span["what"] == "window"
    assert span["x"] == axis.beta(sweep.verdict.loose_edge[1])
    no_range = source_of(kleash.exact_frontier(kleash.kitchen(), [1.0, 15.0]))
    assert figures.dial_data([no_range]).spans == ()


def test_the_window_ends_at_the_tight_edge_that_is_good():
    """From the first beta that still gains to the last one that does: none that is shaded gains less than a tenth."""
    source = source_of(kleash.exact_frontier(kleash.kitchen(oversalt=0.0005)))
    bad, good = source.verdict.tight_edge
    (span,) = figures.dial_data([source]).spans
    axis = figures.dial_axis([source])
    assert axis.beta(bad) > span["x2"] == axis.beta(good)
    places = np.array([axis.beta(beta) for beta in source.frontier.beta.tolist()])
    gain = source.frontier.gold.gain.value
    shaded = (places >= span["x"]) & (places <= span["x2"])
    assert (gain[shaded] >= 0.1 * gain.max()).all()
    assert gain[places > span["x2"]].max() < 0.1 * gain.max()


def test_rows_that_are_beyond_are_hatched_and_not_drawn():
    whole = kleash.exact_frontier(kleash.kitchen(), [1.0, 10.0, 100.0, 1000.0])
    status = np.array(["beyond", "beyond", "ok", "ok"])
    frontier = dataclasses.replace(whole, status=status, source="forecast")
    data = figures.dial_data([source_of(frontier)])
    assert {row["beta"] for row in data.rows} == {100.0, 1000.0}
    (span,) = [s for s in data.spans if s["what"] == "beyond"]
    assert (span["x"], span["x2"]) == (0.0, 1.5)
    lines = draw_svg(drawing.dial_chart(data)).count('stroke="#b9c0c7"')
    assert lines > 20


def test_no_policy_passes_the_limits_of_a_known_world(files):
    """Random policies of the world stay below the curves; the curve without its factor would be passed."""
    (source,) = read_sources([files["run"]])
    world = kleash.kitchen(oversalt=0.0005)
    data = figures.travel_data([source])
    curves = {
        what: np.array([[row["x"], row["y"]] for row in data.curves if row["what"] == what]).T
        for what in (figures.HIGHEST, figures.PERFECT)
    }
    rng = np.random.default_rng(0)
    log_reference = world.log_reference[0]
    passed = 0
    for _ in range(400):
        tilt = rng.normal() * world.reward[0] / 4 + rng.normal() * 3 * world.gold[0] + rng.normal(size=41)
        log_policy = log_reference + tilt
        log_policy -= np.log(np.exp(log_policy).sum())
        policy = np.exp(log_policy)
        x = math.sqrt(policy @ (log_policy - log_reference))
        if x > data.axis.hi:
            continue
        reward, gold = policy @ world.reward[0], policy @ world.gold[0]
        assert reward <= np.interp(x, *curves[figures.HIGHEST]) + 0.02  # the grid's interpolation
        assert gold <= np.interp(x, *curves[figures.PERFECT]) + 0.005
        passed += gold > np.interp(x, *curves[figures.PERFECT]) - 0.3
    assert passed > 20  # the limit is near: it could be passed


def test_the_limit_from_few_betas_is_one_between_them(sweep):
    """In a world of a user's own the optimum is known at the trained betas alone; a line through it would be passed."""
    world = kleash.kitchen()
    source = dataclasses.replace(source_of(sweep), optimum=kleash.exact_frontier(world, [0.0, 1.0, 5.0, 15.0, 60.0]))
    data = figures.travel_data([source])
    curve = np.array([[row["x"], row["y"]] for row in data.curves if row["what"] == figures.HIGHEST]).T
    fine = kleash.exact_frontier(world, np.geomspace(0.1, 60.0, 300))
    x, best = np.sqrt(fine.kl.value), fine.reward.value
    seen = x <= data.axis.hi
    limit = np.interp(x[seen], *curve)
    assert (best[seen] <= limit + 0.02).all()
    coarse = source.optimum
    straight = np.interp(x[seen], np.sqrt(coarse.kl.value[::-1]), coarse.reward.value[::-1])
    assert (best[seen] > straight + 0.1).any()
    for kl, reward in zip(coarse.kl.value, coarse.reward.value, strict=True):
        assert np.interp(np.sqrt(kl), *curve) == pytest.approx(reward, abs=1e-9)


def test_the_limit_of_a_scale_holds_where_the_standard_deviation_would_not():
    frontier = kleash.exact_frontier(kleash.kitchen(), [1.0, 5.0, 15.0])
    provenance = {"reward_range": 31.7}
    source = source_of(dataclasses.replace(frontier, source="sweep", provenance=provenance))
    data = figures.travel_data([source])
    curve = np.array([[row["x"], row["y"]] for row in data.curves]).T
    for kl, reward in zip(frontier.kl.value, frontier.reward.value, strict=True):
        limit = min(np.interp(math.sqrt(kl), *curve), 31.7)
        assert reward <= limit + 1e-9
    world = kleash.kitchen()
    sd = math.sqrt(np.exp(world.log_reference[0]) @ (world.reward[0] - frontier.reference_reward.value) ** 2)
    assert frontier.reward.value[0] - frontier.reference_reward.value > sd * math.sqrt(2 * frontier.kl.value[0])


def test_the_limit_of_a_scale_is_reached_and_never_passed():
    """Of all judges on a scale of that width, one that gives even odds its two ends comes nearest to the limit."""
    frontier = kleash.exact_frontier(kleash.two_arm(0.5), np.geomspace(0.5, 1000.0, 60))
    source = source_of(dataclasses.replace(frontier, source="sweep", provenance={"reward_range": 1.0}))
    data = figures.travel_data([source])
    curve = np.array([[row["x"], row["y"]] for row in data.curves if row["what"] == figures.HIGHEST]).T
    x = np.sqrt(frontier.kl.value)
    seen = x <= curve[0].max()
    start = float(frontier.reference_reward.value)
    gain, room = frontier.reward.value[seen] - start, np.interp(x[seen], *curve) - start
    assert (gain <= room * (1 + 1e-9)).all()
    assert (gain / room).max() > 0.999


def test_a_seen_range_makes_no_limit(forecast):
    kinds = {row["what"] for row in figures.travel_data([source_of(forecast)]).curves}
    assert kinds == {"best of n, no training"}


def test_several_sources_are_told_apart_and_share_no_limit(sweep, forecast):
    sources = [source_of(sweep, name="a"), source_of(forecast, name="b")]
    data = figures.travel_data(sources)
    assert data.names == ("a", "b")
    assert {row["what"] for row in data.curves} == {"best of n, no training"}
    svg = draw_svg(drawing.travel_chart(data))
    assert SERIES[0] in svg
    assert SERIES[1] in svg


def test_training_is_the_mean_over_seeds(sweep):
    rows = figures_runs.training_data(source_of(sweep))
    last = [row for row in rows if row["step"] == sweep.history.step[-1] and row["panel"] == "gold"]
    np.testing.assert_allclose([row["y"] for row in last], sweep.history.gold[-1].mean(axis=1), rtol=1e-12)
    theme(figures_runs.training_chart(rows))


def test_prompts_are_dots_at_their_beta(sweep):
    spread = tuple(
        {"beta": beta, "prompt": f"p{i}", "reward": beta + i, "gold": None, "n": 2}
        for beta in (0.0, 2.0)
        for i in range(5)
    )
    rows = figures_runs.spread_data(dataclasses.replace(source_of(sweep), spread=spread))
    assert {row["panel"] for row in rows} == {"reward"}
    assert [row["y"] for row in rows if row["beta"] == 2.0] == [2.0, 3.0, 4.0, 5.0, 6.0]
    svg = draw_svg(figures_runs.spread_chart(rows))
    assert svg.count('fill="#b8470b"') == 10


def test_findings_begin_with_problems(files):
    (source,) = read_sources([files["check_json"]])
    rows = figures_runs.findings_data([source])
    assert [row["status"] for row in rows] == ["problem", "ok"]
    assert "IDENTITY" in draw_svg(figures_runs.findings_chart(rows))


def test_names_in_a_drawing_are_text(sweep):
    sources = [source_of(sweep, name='<script>"&'), source_of(sweep, name="b")]
    svg = inline_svg(draw_svg(drawing.dial_chart(figures.dial_data(sources))), label='a "<b>"', prefix="z")
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg
    assert "<b>" not in svg


def test_a_frontier_plots_itself(sweep, forecast):
    for against in ("beta", "kl"):
        assert theme(kleash.plot(sweep.frontier, against=against))["vconcat"]
    both = drawing.plot([sweep.frontier, sweep.frontier, forecast])
    assert "sweep (2)" in str(theme(both))
    with pytest.raises(kleash.KleashError, match="beta, kl"):
        kleash.plot(sweep.frontier, against="time")


@pytest.mark.slow
def test_plots_are_saved_with_their_data(files, tmp_path):
    sources = read_sources([files["run"], files["check_json"]])
    written = save_plots(sources, tmp_path / "new" / "plots")
    assert {path.name for path in written} == {
        f"{name}.{end}" for name in ("dial", "travel", "training", "checks") for end in ("svg", "png", "json")
    }
    assert (tmp_path / "new/plots/dial.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_data_give_the_same_drawing(forecast):
    charts = [drawing.travel_chart(figures.travel_data([source_of(forecast)])) for _ in range(2)]
    assert draw_svg(charts[0]) == draw_svg(charts[1])
    assert draw_png(charts[0]) == draw_png(charts[1])


def chart_texts(chart):
    """What stands in a drawing of a page."""
    svg = inline_svg(draw_svg(chart), label="a", prefix="z")
    return [html.unescape(found) for found in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def test_numbers_on_an_axis_are_whole():
    """Coordinates are rounded to make the page small; numbers that a reader sees are not."""
    source = source_of(kleash.exact_frontier(kleash.kitchen(), [0.001, 0.002, 0.005]))
    texts = chart_texts(drawing.dial_chart(figures.dial_data([source])))
    assert {"0.001", "0.002", "0.005"} <= set(texts)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_ticks_differ_at_every_scale(scale, forecast):
    def scaled(part):
        return Estimates(**{name: getattr(part, name) * scale for name in ("value", "se", "lo", "hi")})

    gold = forecast.frontier.gold
    gold = Gold.of(scaled(gold), gain=scaled(gold.gain), reference=scaled(gold.reference))
    frontier = dataclasses.replace(forecast.frontier, gold=gold, replicates=None)
    data = figures.dial_data([source_of(frontier)])
    gold = dataclasses.replace(data, rows=tuple(row for row in data.rows if row["panel"] == "gold"), spans=())
    numbers = [text for text in chart_texts(drawing.dial_chart(gold)) if text[:1].isdigit() and "." in text + "."]
    vertical = [float(text.replace(",", "")) for text in numbers if float(text.replace(",", "")) <= scale]
    assert len(set(vertical)) == len(vertical)
    assert sum(0.3 * scale < value for value in vertical) >= 2
    assert max(map(len, numbers)) < 9


def test_a_name_like_a_reference_in_svg_is_a_name(sweep):
    name = 'url(#x) id="y" role="z" 0.12345'
    sources = [source_of(sweep, name=name), source_of(sweep, name="b")]
    texts = chart_texts(drawing.dial_chart(figures.dial_data(sources)))
    assert name[:20] in " ".join(text[:20] for text in texts)


def test_a_range_is_called_useful_only_where_both_its_ends_were_seen(sweep, forecast):
    words = {source.kind: figures.dial_data([source]).spans[-1]["text"] for source in map(source_of, (sweep, forecast))}
    assert words == {"sweep": "useful range", "forecast": "quality gains"}
