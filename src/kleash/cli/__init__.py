"""The command line: ``kleash COMMAND``. Each command is a thin file of its own, loaded when it is called.

Exit codes: 0 good, 1 a check failed, 2 wrong use, bad input or an unexpected error (one line on stderr), 128 and the
number of the signal that ended it (130 interrupted, 143 terminated).
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click

from kleash.cli._signals import Ended, unwinding

__all__ = ["cli", "main"]

COMMANDS = {
    "sweep": ("kleash.cli.sweep", "Train at several betas at once and see what the dial does."),
    "sample": ("kleash.cli.sample", "Draw answers, have them judged: samples for a forecast."),
    "forecast": ("kleash.cli.forecast", "Read the same table off scored samples, before training."),
    "check": ("kleash.cli.check", "Is the leash attached? Check dumps and logs of a run."),
    "convert": ("kleash.cli.convert", "What the tilt's beta is in a trainer, and the other way round."),
    "conformance": ("kleash.cli.conformance", "What your trainer's beta means, by running it."),
    "report": ("kleash.cli.report", "One page to show: verdict, dial, charts, answers, table."),
    "play": ("kleash.cli.play", "Write the kitchen's dial page: turn the leash by hand."),
}
"""Name -> module and one line of help, so that ``kleash --help`` loads none of them."""

LONGEST = 1_000
"""Characters of an error's one line; what is behind them is left out."""

_STORY = """\
\b
A chef cooks for a critic who loves salt. Trained on the critic's praise, the
chef serves salt bombs: top score, nothing anybody would eat. So the chef is
kept on a leash to the house recipes: every step away costs beta.

\b
kleash sweep                          turn the leash from loose to tight
kleash sweep --set oversalt=0.0005    the same dial in a steadier kitchen
kleash sample prompts.csv --help      draw and score the answers yourself
kleash forecast samples.csv           your judge, your samples, no training
kleash check rollouts.jsonl           is your trainer's leash attached?
kleash convert 0.5 --to trl-rloo      what to set in your trainer
kleash report RUN -o page.html        show it: the dial, charts, answers

\b
Often no setting helps, and then the answer is: fix the judge.
"""


class _Group(click.Group):
    """Commands by name from a static table; every error a person can mend is one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"unknown command {args[0]!r}; {_nearest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **_: Any
    ) -> NoReturn:
        """Run, and leave with the exit code."""
        arguments = list(sys.argv[1:] if args is None else args)
        sys.exit(_run(self, arguments, prog_name or "kleash"))


def _run(group: click.Group, arguments: list[str], prog_name: str) -> int:
    from kleash.errors import KleashError

    state = {"debug": False}
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115  closed by the caller: it holds nothing
    if sys.stdout is None:  # closed by the caller
        return _stopped(2, "stdout: closed; give it a place, or use --out", state)
    try:
        with unwinding(), group.make_context(prog_name, arguments, obj=state) as ctx:
            code = group.invoke(ctx)
        sys.stdout.flush()
        return int(code or 0)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as bare:
        click.echo(bare.format_message())
        return 0
    except (click.ClickException, KleashError) as error:
        return _stopped(2, _one_line(error), state)
    except (KeyboardInterrupt, click.Abort) as stop:
        said, number = (f"ended by {stop}", stop.number) if isinstance(stop, Ended) else ("interrupted", signal.SIGINT)
        said = "interrupted" if number == signal.SIGINT else said
        return _stopped(128 + number, f"{said}; a run that was given --out can be taken up with --resume", state)
    except BrokenPipeError:  # the reader has seen enough: be as quiet about it as any program that dies of SIGPIPE
        _unplug()
        return 141
    except (
        OSError
    ) as error:  # the system's word, not a fault of kleash: a full disk behind stdout, a folder without access
        _unplug()
        where = "stdout" if error.filename is None else os.fsdecode(error.filename)
        return _stopped(2, f"{where}: {error.strerror or error}", state)
    except MemoryError:
        return _stopped(2, "not enough memory for this much at once; give fewer rows, prompts or betas", state)
    except Exception as error:  # noqa: BLE001  1 means that a check failed: a fault of kleash itself must never say so
        told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        hint = "" if state["debug"] else "; --debug prints the traceback"
        return _stopped(2, f"unexpected error, a fault of kleash: {told}{hint}", state)


def _unplug() -> None:
    """Send what is left in stdout nowhere: the interpreter would fail at it once more when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stopped(code: int, text: str, state: Mapping[str, bool]) -> int:
    if state["debug"]:
        import traceback

        traceback.print_exc()
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)  # a path may hold escapes
    plain = plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 1]}…"  # so may a name of 50,000 letters
    if sys.stderr is not None:
        with suppress(OSError):
            print(f"kleash: {plain}", file=sys.stderr)  # noqa: T201
    return code


def _one_line(error: Exception) -> str:
    """The message of an error, click's own with the nearest flag or choice named."""
    if not isinstance(error, click.ClickException):
        return " ".join(str(error).split())
    text = error.format_message()
    if isinstance(error, click.NoSuchOption):
        known = [name for p in error.ctx.command.params for name in p.opts] if error.ctx is not None else []
        text = f"unknown option {error.option_name}; {_nearest(error.option_name, known)}"
    elif isinstance(error, click.BadParameter) and isinstance(getattr(error.param, "type", None), click.Choice):
        got = error.message.partition(" is not one of ")[0].strip("'")
        text = f"{text.rstrip('.')}; {_nearest(got, error.param.type.choices)}"  # type: ignore[union-attr]
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else "kleash"
    return " ".join(f"{text.rstrip('.')} (see {path} --help)".split())


def _nearest(word: str, known: Iterable[object]) -> str:
    words = [str(name) for name in known]
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "known: " + ", ".join(words)


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from kleash._version import version

        click.echo(f"kleash {version()}")
        ctx.exit()


@click.group(
    name="kleash",
    cls=_Group,
    epilog=_STORY,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """How far can a model be pulled towards a judge before it cheats? The KL leash, measured."""
    ctx.ensure_object(dict)["debug"] = debug


def main() -> NoReturn:
    """The entry point of the ``kleash`` command."""
    cli.main()
