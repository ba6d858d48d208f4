"""The printed table: what fits 80 columns, what is marked, what is left out."""

import io

import numpy as np
import pytest
from rich.console import Console

from kleash import terminal
from kleash.frontier import Estimates, Frontier, Gold, exact_frontier
from kleash.window import Verdict, find_window
from kleash.worlds import kitchen


def estimates(values, se=0.01):
    values = np.asarray(values, dtype=float)
    return Estimates(value=values, se=np.full_like(values, se), lo=values - 2 * se, hi=values + 2 * se)


def forecast(size=48, *, gold=True, se=0.01):
    """A table as a forecast makes it: the loosest quarter out of reach."""
    beta = np.geomspace(0.123456, 1234.56, size)
    status = np.where(np.arange(size) < size // 4, "beyond", "ok")
    known = status == "ok"
    column = estimates(np.linspace(0.9, 0.6, size), se).where(known)
    return Frontier(
        source="forecast",
        beta=beta,
        reward=estimates(np.linspace(98.7, 12.3, size), 1.234).where(known),
        kl=estimates(np.geomspace(3.2, 1e-6, size), se).where(known),
        gold=Gold.of(column, gain=column, reference=estimates(0.6, se)[()]) if gold else None,
        reference_reward=estimates(12.0)[()],
        n=np.full(size, 100),
        status=status,
    )


def body(text):
    """Rows of the table, from below the rule to the reference."""
    lines = text.splitlines()
    rule = next(i for i, line in enumerate(lines) if set(line) == {"─"})
    return [line for line in lines[rule + 1 :] if line]


def test_a_forecasts_table_fits_and_says_how_sure():
    frontier = forecast()
    verdict = Verdict(kind="useful-range", best_beta=frontier.beta[20], safe_beta=frontier.beta[25], reasons=("R.",))
    text = terminal.to_text(terminal.frontier_table(frontier, verdict, intervals=True, status=True, max_rows=14))
    assert max(map(len, text.splitlines())) <= 80
    rows = body(text)
    assert rows[0].split() == ["0.123", "-", "-", "-", "beyond"]
    assert sum("±" in row for row in rows) >= 10
    assert rows[-1].split()[0] == "reference"
    assert len(rows) <= 15
    assert [row.split()[0] for row in rows if row[0] in "★●"] == ["★", "●"]
    assert any("[" in row and row.endswith("ok") for row in rows)


def test_all_rows_without_a_limit_and_no_column_of_marks_without_a_verdict():
    rows = body(terminal.to_text(terminal.frontier_table(forecast())))
    assert len(rows) == 49
    assert rows[-1].startswith("reference, untouched")


def test_best_and_safe_on_one_row_are_marked_together():
    frontier = forecast()
    beta = float(frontier.beta[30])
    verdict = Verdict(kind="useful-range", best_beta=beta, safe_beta=beta)
    text = terminal.to_text(terminal.page(frontier, verdict))
    assert sum("★●" in line for line in text.splitlines()) == 1
    assert "★ best true quality   ● safe" in text


def test_a_safe_beta_between_rows_is_in_the_words_alone():
    verdict = Verdict(kind="useful-range", best_beta=float(forecast().beta[30]), safe_beta=77.7, safe_kl=0.25)
    text = terminal.to_text(terminal.page(forecast(), verdict))
    assert "●" not in text
    assert "Safe beta 77.7" in text
    assert "KL 0.25 nats" in text


def test_a_table_without_gold():
    rows = body(terminal.to_text(terminal.frontier_table(forecast(gold=False), intervals=True, status=True)))
    assert rows[-1].split() == ["reference", "12.00", "±", "0.01", "-", "0"]


def test_errors_are_left_out_where_they_would_print_as_nothing():
    text = terminal.to_text(terminal.frontier_table(forecast(se=1e-5)))
    assert "± 1.23" in text
    assert "± 0.000" not in text
    assert "<0.0001" in text  # a KL that is small is not a KL of nothing
    exact = terminal.to_text(terminal.frontier_table(exact_frontier(kitchen())))
    assert "±" not in exact


@pytest.mark.parametrize(
    ("values", "shown"),
    [([31.7, 1.0], "31.70"), ([1.8], "1.800"), ([0.85], "0.850"), ([0.0123], "0.0123"), ([12345.6], "12346")],
)
def test_three_or_four_digits(values, shown):
    assert terminal._Form.of([Estimates.exact(values)]).text(values[0]) == shown


def test_betas_have_the_digits_that_keep_them_apart():
    frontier = exact_frontier(kitchen(), [0.0, 1.0, 5.0, 5.001, 2000.0])
    assert terminal._betas(frontier) == ["0", "1", "5", "5.001", "2000"]
    assert terminal._betas(exact_frontier(kitchen(), [0.00001, 1e7])) == ["1e-05", "1e+07"]


@pytest.mark.parametrize(
    ("lo", "hi", "said"),
    [
        (1.0, 2.0, "(between 1 and 2)"),
        (None, 2.0, "(at most 2)"),
        (1.0, None, "(at least 1)"),
        (None, None, "Best beta 1.5."),
    ],
)
def test_open_intervals_are_said_in_words(lo, hi, said):
    assert said in terminal.verdict_text(Verdict(kind="useful-range", best_beta=1.5, best_lo=lo, best_hi=hi)).plain


def test_the_verdict_says_edges_and_needs():
    verdict = find_window(exact_frontier(kitchen(oversalt=0.0005)))
    text = terminal.verdict_text(verdict).plain
    assert text.startswith("Useful range. ")
    assert "the judge is being cheated" in text
    assert "hardly anything is gained" in text
    needy = Verdict(kind="cannot-tell", reasons=("So.",), needs=("more prompts", "labels"))
    assert terminal.verdict_text(needy).plain == "Cannot tell. So.\nIt would take more prompts.\nIt would take labels."


def test_texts_are_never_read_as_markup():
    text = terminal.to_text(
        terminal.page(forecast(), Verdict(kind="cannot-tell"), title="[bold]x[/]", caption=["[red]"])
    )
    assert "[bold]x[/]" in text
    assert "[red]" in text


def test_rows_out_of_reach_are_dim_on_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80, no_color=False)
    console.print(terminal.frontier_table(forecast(), status=True))
    lines = console.file.getvalue().splitlines()
    assert all(line.startswith("\x1b[2m") for line in lines if "beyond" in line)
    assert not any("\x1b[2m" in line for line in lines if "±" in line)


def test_an_interval_that_shows_no_other_digits_is_left_out():
    form = terminal._Form.of([Estimates.exact([0.29, 1.5])])
    narrow = Estimates(value=[0.29], se=[1e-5], lo=[0.28999], hi=[0.29001])
    wide = Estimates(value=[0.29], se=[0.01], lo=[0.27], hi=[0.31])
    assert form.cell(narrow, 0, interval=True) == "0.290"
    assert form.cell(wide, 0, interval=True) == "0.290 [0.270, 0.310]"
