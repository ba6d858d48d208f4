"""``kleash check``: whether the leash is attached."""

from __future__ import annotations

from pathlib import Path

import click

from kleash.cli._output import Format, debug_option, emit, format_option, out_option


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
@click.option("--trainer", metavar="NAME", help="Logs: who wrote them, where keys leave it open (trl-grpo, trl-rloo).")
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

    Exit code 1 if any check found a problem, 2 for input that cannot be read.
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
    report = audit.check(paths, config=config, beta=beta, reward_range=reward_range, gold=gold, trainer=trainer)
    emit(form, data=report.to_dict, rows=report.rows, show=report, out=out)
    return report.exit_code
