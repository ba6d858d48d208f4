"""``kleash convert``: what a coefficient is called elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import click

from kleash.cli._output import (
    Format,
    debug_option,
    emit,
    format_option,
    lowered,
    out_option,
    setting_option,
    settings_of,
)


class _Convert(click.Command):
    """A negative BETA is a bad number, not an unknown option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and re.fullmatch(r"-(\d.*|\.\d.*|inf)", args[0]):
            raise click.UsageError(f"BETA: expected a number above 0, got {args[0]}", ctx)
        return super().parse_args(ctx, args)


@click.command(cls=_Convert, short_help="What the tilt's beta is in a trainer, and the other way round.")
@click.argument("beta", metavar="BETA", type=float, required=False)
@click.option(
    "--from",
    "source",
    callback=lowered,
    metavar="NAME",
    default="tilt",
    show_default=True,
    help="Whose coefficient BETA is.",
)
@click.option(
    "--to",
    "target",
    callback=lowered,
    metavar="NAME",
    default="tilt",
    show_default=True,
    help="Into whose it is translated.",
)
@click.option("--reward-sd", type=float, metavar="S", help="SD of the judge's score, where rewards are standardised.")
@click.option("--reward-sd-spread", type=float, metavar="S2", help="SD over prompts of the prompts' reward SDs.")
@click.option("--length", type=float, metavar="L", help="Mean tokens per answer.")
@click.option("--group-size", type=int, metavar="G", help="Answers per prompt and step.")
@click.option("--p-ref", type=float, metavar="P", help="Reward 0 or 1: the reference's success rate, for k3 as a loss.")
@click.option("--list", "listed", is_flag=True, help="Print the trainers that are known.")
@setting_option
@out_option
@format_option
@debug_option
def convert(
    beta: float | None,
    source: str,
    target: str,
    reward_sd: float | None,
    reward_sd_spread: float | None,
    length: float | None,
    group_size: int | None,
    p_ref: float | None,
    listed: bool,
    given: tuple[str, ...],
    out: Path | None,
    form: Format,
) -> int:
    """Translate a coefficient between the tilt (reward units per nat of KL per answer) and a trainer.

    \b
    kleash convert 0.5 --to trl-rloo
    kleash convert 0.5 --to trl-grpo --set scale_rewards=none --group-size 8
    kleash convert 0.04 --from open-instruct --group-size 8 --set kl_estimator=1

    --list names the trainers. --set takes their own option names, where they are not at the trainer's defaults. Exit
    code 1 where there is no translation, 2 where something needed was not given.
    """  # noqa: D301  the mark is for click: lines below it stay as they are
    from kleash.translate import convert, trainer_names

    if listed:
        click.echo("\n".join(trainer_names()))
        return 0
    if beta is None:
        raise click.UsageError("Missing argument 'BETA'; --list names the trainers.")
    found = convert(
        beta,
        source=source,
        target=target,
        reward_sd=reward_sd,
        reward_sd_spread=reward_sd_spread,
        length=length,
        group_size=group_size,
        p_ref=p_ref,
        settings=settings_of(given),
    )
    emit(form, data=found.to_dict, rows=found.rows, show=found, out=out)
    return 0 if found.refused is None else 1
