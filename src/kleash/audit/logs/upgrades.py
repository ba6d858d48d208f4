"""Which releases changed the KL of an unchanged script? UPGRADE, from a table of versions with sources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding
from kleash.audit.logs.needs import VERSION

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView

__all__ = ["CHANGES", "Change", "crossed", "upgrade", "upgrade_between"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One release that gives the same settings another KL.

    Parameters
    ----------
    trainer, version
        The first version (numbers) with the new behaviour.
    key
        Settings, any of which, if stated, make the change harmless.
    what
        Old and new behaviour.
    source
        Where it was read.
    visible
        Whether the change removes the KL from the log (``kl-gone``) or moves numbers only.
    """

    trainer: str
    version: tuple[int, ...]
    key: tuple[str, ...]
    what: str
    source: str
    visible: str = "numbers"


CHANGES: tuple[Change, ...] = (
    Change(
        trainer="trl-grpo",
        version=(0, 19),
        key=("beta",),
        visible="kl-gone",
        what="beta defaults to 0.0 instead of 0.04: no penalty, no reference model, no kl in the log",
        source="trl grpo_config.py, v0.18 and v0.19",
    ),
    Change(
        trainer="trl-grpo",
        version=(0, 17),
        key=("loss_type",),
        what="the loss is a token mean (bnpo) instead of a mean of answers' means: loss is no longer beta * kl",
        source="trl grpo_config.py, v0.16 and v0.17",
    ),
    Change(
        trainer="trl-grpo",
        version=(0, 22),
        key=("loss_type",),
        what="loss_type defaults to dapo (all active tokens) instead of bnpo",
        source="trl grpo_config.py, v0.22",
    ),
    Change(
        trainer="trl-grpo",
        version=(0, 18),
        key=("temperature",),
        what="temperature defaults to 1.0 instead of 0.9",
        source="trl grpo_config.py, v0.18",
    ),
    Change(
        trainer="trl-grpo",
        version=(1, 16),
        key=("use_bias_correction_kl",),
        what="use_bias_correction_kl defaults to True (somewhere after 1.10, by PR 6503): the gradient is that of the "
        "reverse KL, not of the forward KL",
        source="trl 1.16.0 as installed, 1.10.0.dev0",
    ),
    Change(
        trainer="trl-ppo",
        version=(0, 12),
        key=("kl_coef",),
        what="a fixed kl_coef of 0.05 instead of an adaptive one from 0.2 to a target of 6 nats",
        source="trl PR 2480, ppo_trainer.py v0.11.4",
    ),
    Change(
        trainer="trl-rloo",
        version=(0, 22),
        key=("token_level_kl",),
        what="kl is logged as a mean per token, it was a sum per answer; the penalty still takes the sum",
        source="trl rloo_trainer.py; the older class up to 0.2x",
    ),
    Change(
        trainer="verl",
        version=(0, 3),
        key=("use_kl_in_reward", "use_kl_loss"),
        visible="kl-gone",
        what="use_kl_loss False means no penalty; before, it meant one in the reward with kl_coef 0.001",
        source="verl PR 644 (March 2025)",
    ),
    Change(
        trainer="verl",
        version=(0, 5),
        key=(),
        what="kl_loss is logged times the number of micro-batches (until 0.7): the log's KL is too large, the penalty "
        "is not",
        source="verl PRs 4711, 4778",
    ),
    Change(
        trainer="nemo-rl",
        version=(0, 5),
        key=("kl_input_clamp_value",),
        what="the log ratio is clamped to 20 and the KL to 10",
        source="NeMo-RL calculate_kl, 0.4 and 0.5",
    ),
    Change(
        trainer="openrlhf",
        version=(0, 10, 2),
        key=("algo.kl.init_coef",),
        what="flags are renamed (--algo.kl.*): an old name in a launcher is not read",
        source="OpenRLHF cli, 0.10.2",
    ),
)


def crossed(trainer: str, old: tuple[int, ...], new: tuple[int, ...]) -> tuple[Change, ...]:
    """The changes between two versions of a trainer.

    Examples
    --------
    >>> [change.key for change in crossed("trl-grpo", (0, 18, 2), (0, 19))]
    [('beta',)]
    """
    return tuple(c for c in CHANGES if c.trainer == trainer and old < c.version <= new)


def _stated(view: LogView, change: Change) -> bool:
    names = {str(key).rpartition(".")[2] for key in view.log.config} | set(view.log.config)
    return any(key in names for key in change.key)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@check("UPGRADE", VERSION, problem="two runs on both sides of a change, and the KL went missing")
def upgrade(view: LogView, level: float) -> Finding:
    """Did a release change the KL of this script?

    One log never makes a ``problem``: it does not say which version the script was written for.
    """
    version = view.version
    assert version is not None
    past = [c for c in CHANGES if c.trainer == view.trainer and c.version <= version and not _stated(view, c)]
    evidence = Evidence(
        version=_dotted(version),
        changes=[{"since": _dotted(c.version), "what": c.what, "source": c.source} for c in past],
    )
    gone = [c for c in past if c.visible == "kl-gone" and view.kl is None]
    if gone and view.settings.beta is None:
        c = gone[-1]
        return evidence.cannot_tell(
            f"no KL in this run; since {_dotted(c.version)} {c.what}",
            "a script written for an earlier version",
            fix=f"state {c.key[0]} if a penalty is wanted",
        )
    text = f"{len(past)} changes up to {_dotted(version)} rest on a default" if past else "none rests on a default"
    return evidence.ok(text)


def upgrade_between(views: list[LogView]) -> list[Finding]:
    """Runs of one trainer on both sides of a change: the penalty that went missing is a problem of the later one."""
    found = []
    by = sorted((v for v in views if v.version is not None), key=lambda v: (v.trainer, v.version or ()))
    for old, new in pairwise(by):
        if old.trainer != new.trainer or old.version is None or new.version is None:
            continue
        for c in crossed(old.trainer, old.version, new.version):
            lost = c.visible == "kl-gone" and old.kl is not None and new.kl is None
            if not lost or _stated(new, c):
                continue
            evidence = Evidence(
                old=_dotted(old.version), new=_dotted(new.version), what=c.what, source=c.source, other_run=old.log.run
            )
            lost_here = evidence.problem(
                f"run {old.log.run} ({_dotted(old.version)}) has a KL, this one ({_dotted(new.version)}) has "
                f"none: {c.what}",
                "the default changed between the two versions",
                fix=f"state {' and '.join(c.key)} in the configuration",
            )
            found.append(replace(lost_here, code="UPGRADE", input=new.label))
    return found
