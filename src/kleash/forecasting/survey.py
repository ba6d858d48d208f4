"""The sources of a set of answers looked over: how far each is from a tilt, and whether it is what it claims to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kleash._checks import message
from kleash.errors import DataError
from kleash.forecasting.effective import Effective, effective_of
from kleash.forecasting.identity import Identity, identity_of
from kleash.forecasting.tail import Tail, score_tail
from kleash.samples import Samples, Sources

__all__ = ["SourceReport", "Survey", "sources_tail", "survey"]

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceReport:
    """A source in a few numbers: answers, KL to the reference and effective beta (None: no slope), drift, identity.

    ``tilt_spread`` is the SD within prompts of what the score does not explain of the log ratio, in nats.
    """

    name: str
    n_samples: int
    kl: float
    effective_beta: float | None
    tilt_spread: float | None
    identity: Identity | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        content = dataclasses.asdict(self)
        return content | {"identity": None if self.identity is None else self.identity.to_dict()}

    def __str__(self) -> str:
        if self.name == "reference":
            return f"reference: {self.n_samples:,} answers."
        near = "no tilt (its log ratio does not rise with the score)"
        if self.effective_beta is not None:
            near = f"nearest to the tilt at beta {self.effective_beta:.3g}"
        drift = "" if self.tilt_spread is None else f", {self.tilt_spread:.2g} nats of drift from it"
        return f"{self.name}: {self.n_samples:,} answers, KL {self.kl:.3g}, {near}{drift}."


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """What is known of the sources: the samples without those that are not what they claim, and why they are left out.

    ``effective`` has an entry for each source that is left, None for the reference; ``reports`` one for each there was.
    ``drifted`` are those left, by number, that are too far from any tilt to be weighed back to one, if others are not.
    """

    samples: Samples
    effective: tuple[Effective | None, ...]
    reports: tuple[SourceReport, ...]
    notes: tuple[str, ...]
    drifted: tuple[int, ...] = ()


def survey(samples: Samples) -> Survey:
    """Look over the sources of samples, and leave out those whose log ratios do not fit their answers.

    Parameters
    ----------
    samples
        With sources.

    Returns
    -------
    Survey

    Raises
    ------
    DataError
        No source is what it claims to be.
    """
    sources = samples.sources
    assert sources is not None  # the caller has sources
    prompt = np.repeat(np.arange(samples.n_prompts), samples.counts)
    found = [_looked_at(samples, sources, prompt, number) for number in range(len(sources.names))]
    bad = [i for i, (report, _) in enumerate(found) if report.identity is not None and not report.identity.holds]
    notes = [_refusal(found[i][0]) for i in bad]
    flat = [i for i, (_, near) in enumerate(found) if near is not None and near.collapsed and i not in bad]
    if len(bad) + len(flat) < len(found):
        named = ", ".join(repr(sources.names[i]) for i in flat)
        notes += [f"Left out, as their answers score too nearly alike to say: {named}."] if flat else []
        bad += flat
    if len(bad) == len(found):
        raise DataError(" ".join(notes), path=", ".join(str(row["path"]) for row in samples.inputs) or None)
    kept = samples.keeping(~np.isin(sources.code, bad)) if bad else samples
    effective = tuple(entry for i, (_, entry) in enumerate(found) if i not in bad)
    drifted = _drifted(kept, effective)
    if drifted and kept.sources is not None:
        named = ", ".join(repr(kept.sources.names[i]) for i in drifted)
        notes.append(f"Left out of the rows, as their drift leaves fewer than one answer to a prompt: {named}.")
    return Survey(
        samples=kept,
        effective=effective,
        drifted=drifted,
        reports=tuple(report for report, _ in found),
        notes=tuple(notes),
    )


def _drifted(samples: Samples, effective: Sequence[Effective | None]) -> tuple[int, ...]:
    """Sources too far from any tilt to be weighed back to one; none where some prompt has too few answers of others."""
    far = [i for i, near in enumerate(effective) if near is not None and near.drifted]
    if not far or samples.sources is None:
        return ()
    others = np.add.reduceat((~np.isin(samples.sources.code, far)).astype(np.int64), samples.offsets[:-1])
    return tuple(far) if (others > 1).all() else ()


def _looked_at(
    samples: Samples, sources: Sources, prompt: NDArray[np.int64], number: int
) -> tuple[SourceReport, Effective | None]:
    mine = sources.code == number
    size = int(mine.sum())
    if sources.reference and number == 0:
        of_reference = SourceReport(
            name=sources.names[0], n_samples=size, kl=0.0, effective_beta=None, tilt_spread=None, identity=None
        )
        return of_reference, None
    near = effective_of(
        prompt[mine], samples.reward[mine], sources.log_ratio[mine, number], n_prompts=samples.n_prompts
    )
    report = SourceReport(
        name=sources.names[number],
        n_samples=size,
        kl=near.kl,
        effective_beta=near.beta,
        tilt_spread=None if np.isnan(near.spread) else near.spread,
        identity=identity_of(sources, prompt, number),
    )
    return report, near


def _refusal(report: SourceReport) -> str:
    assert report.identity is not None  # it failed
    off = f"{abs(report.identity.z):.1f} standard errors off"
    against = "exp(-log_ratio) with mean 1"
    got = f"mean {report.identity.mean:.3g}, {off}"
    if report.identity.test == "reference":
        against, got = "log ratios that fit its answers and the reference's", off
    fix = "log ratios are sums over tokens, of the policy that drew the answer, as it was sampled (temperature, top-p)"
    return message(f"source {report.name!r} is left out", expected=against, got=got, fix=fix) + "."


def sources_tail(samples: Samples, *, reward_max: float | None) -> Tail:
    """The tail of the scores, each answer seen against those of its own source to the same prompt."""
    sources = samples.sources
    assert sources is not None  # the caller has sources
    prompt = np.repeat(np.arange(samples.n_prompts), samples.counts)
    group = prompt * len(sources.names) + sources.code
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    offsets = np.concatenate([[0], np.cumsum(sizes[sizes > 0])]).astype(np.int64)
    return score_tail(
        dataclasses.replace(samples, reward=samples.reward[order], offsets=offsets), reward_max=reward_max
    )
