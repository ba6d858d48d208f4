"""``kleash check``: whether the leash is attached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from kleash.cli._output import Format, debug_option, emit, format_option, lowered, out_option


@click.command(short_help="Is the leash attached? Check dumps and logs of a run.")
@click.argument("paths", metavar="PATH...", nargs=-1)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML, YAML or JSON: beta, reward_min, reward_max, estimator, placement, columns; or a trainer's own.",
)
@click.option("--beta", type=float, help="The coefficient the run is believed to have, reward units per nat.")
@click.option("--reward-range", type=(float, float), metavar="MIN MAX", help="The scores the judge can give.")
@click.option("--gold", metavar="NAME", help="Logs: the column with true quality, e.g. a reward function of weight 0.")
@click.option(
    "--trainer",
    callback=lowered,
    metavar="NAME",
    help="Logs: who wrote them, where keys leave it open (trl-grpo, trl-rloo).",
)
@click.option("--follow", is_flag=True, help="Follow a log that is being written: a line per finding as it appears.")
@click.option("--kl-budget", type=float, metavar="NATS", help="With --follow: stop at this KL, nats per answer.")
@click.option("--on-stop", metavar="COMMAND", help="With --follow: what to run when a rule fires, e.g. 'touch stop'.")
@click.option(
    "--idle",
    type=click.FloatRange(min=0),
    default=60.0,
    metavar="MINUTES",
    help="With --follow: end after so long a silence.",
)
@click.option("--list", "listed", is_flag=True, help="Print the catalogue: what is checked and what it needs.")
@out_option
@format_option
@debug_option
def check(
    paths: tuple[str, ...],
    config: Path | None,
    beta: float | None,
    reward_range: tuple[float, float] | None,
    gold: str | None,
    trainer: str | None,
    follow: bool,
    kl_budget: float | None,
    on_stop: str | None,
    idle: float,
    listed: bool,
    out: Path | None,
    form: Format,
) -> int:
    """Is the leash attached? Check what a run has dumped.

    A rollout dump is JSONL (also .gz, or - for stdin) or Parquet, a row per answer: logp and ref_logp, a list each
    with a number per token in nats; optional mask, behavior_logp, entropy, reward, prompt_id, gold, step, probe_id;
    or the sums seq_logp and seq_ref_logp. A training log is what a trainer writes (TRL, verl, OpenRLHF and twenty
    more), or a table (CSV, JSONL; its columns are named in --config); a folder may hold anything. Each check
    answers ok, problem, cannot-tell or not-run.

    With --follow one log is read again as it grows; a gold that falls from its best or a KL budget ends it.

    Exit code 1 if any check found a problem or a rule has fired, 2 for input that cannot be read.
    """
    from kleash import audit

    if listed:
        if paths:
            raise click.UsageError("--list takes no PATH")
        catalogue = audit.list_checks()
        emit(form, data=catalogue.to_dict, rows=catalogue.rows, show=catalogue, out=out)
        return 0
    if not paths:
        raise click.UsageError(
            "expected a rollout dump, a training log or a folder, got none; --list prints what is checked"
        )
    told: dict[str, Any] = {
        "config": config,
        "beta": beta,
        "reward_range": reward_range,
        "gold": gold,
        "trainer": trainer,
    }
    if follow:
        return _follow(paths, told, kl_budget=kl_budget, on_stop=on_stop, idle=60 * idle, out=out, form=form)
    if kl_budget is not None or on_stop is not None:
        raise click.UsageError("--kl-budget and --on-stop go with --follow")
    report = audit.check(paths, **told)
    emit(form, data=report.to_dict, rows=report.rows, show=report, out=out)
    return report.exit_code


def _follow(
    paths: tuple[str, ...],
    options: dict[str, Any],
    *,
    kl_budget: float | None,
    on_stop: str | None,
    idle: float,
    out: Path | None,
    form: Format,
) -> int:
    """One line per event; the exit code."""
    from kleash._checks import printable
    from kleash.audit.follow import Follower, events, run_command

    if len(paths) != 1:
        raise click.UsageError(f"--follow: expected one log, got {len(paths)} paths")
    if out is not None:
        raise click.UsageError("--follow prints as it reads: send its output to a file with >")
    if form == "csv":
        raise click.UsageError("--follow prints lines: --format table or json")
    follower = Follower(path=Path(paths[0]), options=options, kl_budget=kl_budget)
    found = False
    for event in events(follower, idle=idle):
        found = found or event.kind == "stop" or bool(follower.problems)
        text = json.dumps(event.to_dict(), allow_nan=False) if form == "json" else printable(str(event))
        click.echo(text, err=event.kind == "wait")
    if follower.stopped is not None and on_stop is not None:
        wrong = run_command(on_stop)
        if wrong is not None:
            click.echo(f"kleash: {wrong}", err=True)
    return 1 if found else 0
