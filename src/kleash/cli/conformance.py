"""``kleash conformance``: a trainer on worlds that can be enumerated."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from kleash.cli._output import Format, debug_option, emit, format_option, progress, seed_option, settings_of

if TYPE_CHECKING:
    from kleash.trials.conformance import ConformanceResult
    from kleash.trials.loss_conformance import LossConformance


@click.command(short_help="What your trainer's beta means, by running it.")
@click.argument("name", metavar="NAME|MODULE:LOSS")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML with the trainer's own settings (beta, scale_rewards, ...) and a world, instead of the built-in ones; "
    "of a loss: beta, group_size, its further keywords.",
)
@click.option("--quick", is_flag=True, help="Two configurations, with fewer and smaller batches.")
@click.option("--beta", type=float, default=0.5, show_default=True, help="Of a loss: the coefficient it is asked with.")
@click.option(
    "--group-size", type=int, metavar="G", default=4, show_default=True, help="Of a loss: answers to a prompt."
)
@click.option("--offline", is_flag=True, help="Of a loss: its answers are the reference's, as in preference data.")
@click.option("--set", "given", metavar="NAME=VALUE", multiple=True, help="Of a loss: a further keyword. Repeatable.")
@seed_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep a result per configuration, and go on with those there.",
)
@format_option
@debug_option
def conformance(
    name: str,
    config: Path | None,
    quick: bool,
    beta: float,
    group_size: int,
    offline: bool,
    given: tuple[str, ...],
    seed: int,
    out: Path | None,
    form: Format,
) -> int:
    """Train in worlds of a few answers and hold the result against the exact fixed point.

    NAME is kleash, trl-grpo, trl-rloo or trl-dpo. Two parts per configuration: at the fixed point that the settings
    imply, the mean update over many batches must be zero; and two runs from the reference must arrive there. Told
    apart: the tilt, another objective that is documented, a wrong fixed point, and a run that has not converged.

    MODULE:LOSS is a loss of your own in torch, loss(logp, old_logp, ref_logp, reward, mask, *, beta, group_size): its
    faults, what its penalty ties to and with which gradient, and where its exact mean update comes to rest.

    Exit code 1 for a wrong fixed point, a run that has not converged, and a fault of a loss.
    """
    from kleash import _files
    from kleash.config import read_table
    from kleash.trials.cases import NAMES, read_case
    from kleash.trials.conformance import conformance
    from kleash.trials.table import conformance_table, loss_table

    if ":" in name:
        table = {} if config is None else read_table(config)
        table |= {key: _value(value) for key, value in settings_of(given).items()}
        how = {"beta": beta, "group_size": group_size} | {k: table.pop(k) for k in ("beta", "group_size") if k in table}
        how |= {"settings": table, "offline": offline}
        asked = cast("LossConformance", conformance(name, **how))
        emit(form, data=asked.to_dict, rows=asked.rows, show=loss_table(asked))
        return 0 if asked.passed else 1
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "a loss of your own is module:function"
        known = ", ".join(NAMES)
        raise click.BadParameter(f"expected {known} or MODULE:LOSS, got {name!r}; {hint}", param_hint="NAME")
    cases = None if config is None else [read_case(name, config)]
    inputs = [] if config is None else [{"path": str(config), "sha256": _files.sha256(config), "rows": 1}]
    with progress("Training") as move:
        found = conformance(name, cases=cases, quick=quick, seed=seed, folder=out, inputs=inputs, progress=move)
    result = cast("ConformanceResult", found)
    emit(form, data=result.to_dict, rows=lambda: [row.to_row() for row in result.rows], show=conformance_table(result))
    return 0 if result.passed else 1


def _value(text: str) -> object:
    """A number, true or false, or the text itself."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return text
