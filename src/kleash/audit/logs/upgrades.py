"""Which releases changed the KL of an unchanged script? UPGRADE, from what is known of the trainer."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kleash.audit.engine import check
from kleash.audit.findings import Evidence, Finding
from kleash.audit.logs.needs import VERSION
from kleash.trainers.options import dotted

if TYPE_CHECKING:
    from kleash.audit.logs.view import LogView
    from kleash.trainers.facts import Change

__all__ = ["upgrade", "upgrade_between"]


def _stated(view: LogView, change: Change) -> bool:
    names = {str(key).rpartition(".")[2] for key in view.log.config} | set(view.log.config)
    return any(key in names for key in change.key)


@check("UPGRADE", VERSION, problem="two runs on both sides of a change, and the KL went missing")
def upgrade(view: LogView, level: float) -> Finding:
    """Did a release change the KL of this script?

    One log never makes a ``problem``: it does not say which version the script was written for.
    """
    version = view.version
    assert version is not None
    past = [c for c in view.trainer.changes if c.version <= version and not _stated(view, c)]
    evidence = Evidence(
        version=dotted(version),
        changes=[{"since": dotted(c.version), "what": c.what, "source": c.source} for c in past],
    )
    gone = [c for c in past if c.visible == "kl-gone" and view.kl is None]
    if gone and view.settings.beta is None:
        c = gone[-1]
        return evidence.cannot_tell(
            f"no KL in this run; since {dotted(c.version)} {c.what}",
            "a script written for an earlier version",
            fix=f"state {c.key[0]} if a penalty is wanted",
        )
    text = f"{len(past)} changes up to {dotted(version)} rest on a default" if past else "no change rests on a default"
    return evidence.ok(text)


def upgrade_between(views: list[LogView]) -> list[Finding]:
    """Runs of one trainer on both sides of a change: the penalty that went missing is a problem of the later one."""
    found = []
    by = sorted((v for v in views if v.version is not None), key=lambda v: (v.trainer.name, v.version or ()))
    for old, new in pairwise(by):
        if old.trainer is not new.trainer or old.version is None or new.version is None:
            continue
        for c in new.trainer.changes:
            crossed = old.version < c.version <= new.version
            lost = c.visible == "kl-gone" and old.kl is not None and new.kl is None
            if not crossed or not lost or _stated(new, c):
                continue
            evidence = Evidence(
                old=dotted(old.version), new=dotted(new.version), what=c.what, source=c.source, other_run=old.log.run
            )
            lost_here = evidence.problem(
                f"run {old.log.run} ({dotted(old.version)}) has a KL, this one ({dotted(new.version)}) has "
                f"none: {c.what}",
                "the default changed between the two versions",
                fix=f"state {' and '.join(c.key)} in the configuration",
            )
            found.append(replace(lost_here, code="UPGRADE", input=new.label))
    return found
