"""``kleash forecast``: the table from scored samples of the reference, before anyone trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kleash.cli._output import (
    Format,
    debug_option,
    emit,
    format_option,
    lowered,
    must_not_be_read,
    out_option,
    progress,
    seed_option,
    setting_option,
    settings_of,
)

if TYPE_CHECKING:
    from kleash.forecasting.result import Forecast


@click.command(short_help="Read the same table off scored samples, before training.")
@click.argument("samples", metavar="SAMPLES...", nargs=-1, required=True)
@click.option(
    "--reward-column", "reward_columns", metavar="C[:WEIGHT]", multiple=True, help="Judge's score. Repeatable: summed."
)
@click.option("--gold-column", metavar="C", help="True quality; may be empty on some rows.")
@click.option("--prompt-column", metavar="C", help="What tells the prompts apart.")
@click.option("--answer-column", metavar="C", help="Answer texts, for examples at each beta.")
@click.option("--label-probability-column", metavar="C", help="Chance with which a row was chosen for its gold label.")
@click.option("--cluster-column", metavar="C", help="Groups of prompts that share something: resampled together.")
@click.option(
    "--beta", "betas", type=float, multiple=True, help="A setting of the dial. Repeatable; default 48 values."
)
@click.option("--reward-max", type=float, metavar="R", help="The largest score the judge can give.")
@click.option("--gold-min", type=float, metavar="G", help="What a worthless answer is worth.")
@click.option("--tolerance", type=float, metavar="T", help="Gold that does not matter; default 5 % of its range.")
@click.option(
    "--objective",
    type=click.Choice(["tilt", "group-standardised"]),
    help="reward - beta KL, or GRPO with standardised rewards. Default: what --trainer follows, else tilt.",
)
@click.option("--group-size", type=int, metavar="G", help="Answers per group: of group-standardised, or of --trainer.")
@click.option(
    "--prompts",
    type=click.Choice(["sampled", "fixed"]),
    default="sampled",
    show_default=True,
    help="Whether the prompts stand for others, or are all there are.",
)
@click.option(
    "--trainer", callback=lowered, metavar="NAME", help="Say what to set in this trainer; names as in kleash convert."
)
@click.option("--length", type=float, metavar="L", help="Mean tokens per answer, for --trainer.")
@setting_option
@click.option("--have", type=float, metavar="BETA", help="Your setting today, of --trainer if named: what to change.")
@seed_option
@click.option("--plan", is_flag=True, help="Also how far more answers reach, and how wide intervals get with labels.")
@click.option("--no-correction", is_flag=True, help="Plain estimates, which lean towards the reference.")
@click.option("--require-range", is_flag=True, help="Exit with 1 if no beta is shown to help.")
@format_option
@out_option
@debug_option
@click.pass_context
def forecast(
    ctx: click.Context,
    samples: tuple[str, ...],
    reward_columns: tuple[str, ...],
    gold_column: str | None,
    prompt_column: str | None,
    answer_column: str | None,
    label_probability_column: str | None,
    cluster_column: str | None,
    betas: tuple[float, ...],
    reward_max: float | None,
    gold_min: float | None,
    tolerance: float | None,
    objective: str | None,
    group_size: int | None,
    prompts: str,
    trainer: str | None,
    length: float | None,
    given: tuple[str, ...],
    have: float | None,
    seed: int,
    plan: bool,
    no_correction: bool,
    require_range: bool,
    form: Format,
    out: Path | None,
) -> None:
    """Forecast judge's score, true quality and KL at every beta from scored samples of the reference.

    SAMPLES are CSV, JSONL (also .gz) or Parquet files, or - for standard input: a row per answer with its prompt,
    the judge's score, and the true quality where it is known; or run folders that keep answers. Answers must have been
    drawn from the reference at temperature 1 without top-k or top-p, or from a policy whose log ratio to the reference
    each row carries (log_ratio, or logp and ref_logp; source names the policy). Betas that the samples cannot speak
    about are refused.
    """
    from kleash.forecasting.forecast import forecast as run
    from kleash.samples import read_samples

    must_not_be_read(out, samples, flag="--out")
    read = read_samples(
        samples,
        prompt_column=prompt_column,
        reward_columns=reward_columns or None,
        gold_column=gold_column,
        answer_column=answer_column,
        label_probability_column=label_probability_column,
        cluster_column=cluster_column,
    )
    with progress("reweighting") as move:
        result = run(
            read,
            beta=betas or None,
            reward_max=reward_max,
            gold_min=gold_min,
            tolerance=tolerance,
            objective=objective,  # type: ignore[arg-type]  # click.Choice holds the same words
            group_size=group_size,
            prompts=prompts,  # type: ignore[arg-type]
            seed=seed,
            correction=not no_correction,
            trainer=trainer,
            length=length,
            settings=settings_of(given) or None,
            have=have,
            progress=move,
        )
    emit(form, data=result.to_dict, rows=result.frontier.rows, show=_shown(result, plan=plan), out=out)
    if require_range and not result.verdict.gain_shown:
        ctx.exit(1)


def _shown(result: Forecast, *, plan: bool) -> object:
    """What is printed as the table: the forecast, and its plan where that was asked for."""
    if not plan:
        return result
    from rich.console import Group
    from rich.text import Text

    without = "No plan: it is made for the tilt, from the reference's answers to sampled prompts."
    return Group(result, Text(), result.plan or Text(without))
