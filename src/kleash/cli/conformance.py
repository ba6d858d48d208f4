"""``kleash conformance``: a trainer on worlds that can be enumerated."""

from __future__ import annotations

from pathlib import Path

import click

from kleash.cli._output import Format, debug_option, emit, format_option, progress, seed_option


@click.command(short_help="What your trainer's beta means, by running it.")
@click.argument("name", metavar="NAME", type=click.Choice(["kleash", "trl-grpo", "trl-rloo", "trl-dpo"]))
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML with the trainer's own settings (beta, scale_rewards, ...) and a world, instead of the built-in ones.",
)
@click.option("--quick", is_flag=True, help="Two configurations, with fewer and smaller batches.")
@seed_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep a result per configuration, and go on with those there.",
)
@format_option
@debug_option
def conformance(name: str, config: Path | None, quick: bool, seed: int, out: Path | None, form: Format) -> int:
    """Train in worlds of a few answers and hold the result against the exact fixed point.

    Two parts per configuration: at the fixed point that the settings imply, the mean update over many batches must be
    zero; and two runs from the reference must arrive there. Told apart: the tilt, another objective that is documented,
    a wrong fixed point, and a run that has not converged. Exit code 1 for the last two.
    """
    from kleash import _files
    from kleash.trials.cases import read_case
    from kleash.trials.conformance import conformance
    from kleash.trials.table import conformance_table

    cases = None if config is None else [read_case(name, config)]
    inputs = [] if config is None else [{"path": str(config), "sha256": _files.sha256(config), "rows": 1}]
    with progress("Training") as move:
        result = conformance(name, cases=cases, quick=quick, seed=seed, folder=out, inputs=inputs, progress=move)
    emit(form, data=result.to_dict, rows=lambda: [row.to_row() for row in result.rows], show=conformance_table(result))
    return 0 if result.passed else 1
