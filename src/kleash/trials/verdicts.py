"""What runs of a trainer say about its fixed point: not converged, the wrong one, another objective, or the tilt."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import stats

from kleash.trials.roots import Objective, Puzzle, answer_kl, expected_update, root, tilt_logits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kleash.estimates import Floats
    from kleash.trials.cases import Case

__all__ = ["Conformance", "Point", "Prediction", "drift_test", "judge", "predict"]

Outcome = Literal["tilt", "another objective, as documented", "wrong fixed point", "not converged"]

ALARM = 1e-3
"""Level of the drift test: of twenty honest configurations one in fifty tables holds a false alarm."""
_ROUNDING = 2e-5
"""Share of the update at the reference below which a mean is float32 rounding: logits are set to within 2e-5."""
_NEGLIGIBLE = 1e-4  # a drift that moves score or KL by less is none, however sure: float32, or rounding over a small SD
_SAME = 1e-3  # two policies are one if no answer's probability differs by more: below what the runs can resolve
_BLOCKS = 5  # neighbouring steps are correlated over a handful of steps; a run's second half holds many of those
_CLOSE = 0.02  # a run has arrived if its score is within 2 % of the scores' range, beside three standard errors


@dataclass(frozen=True, kw_only=True)
class Point:
    """Judge's score (reward units) and KL (nats per answer) of a policy, with 95 % half-widths where measured."""

    reward: float
    kl: float
    reward_within: float | None = None
    kl_within: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """Where the settings lead: the root (None: there is none), the tilt, and where the update is to be measured.

    ``hold`` the logits at which it is measured, ``update`` the mean update predicted there, ``unit`` what the trainer's
    loss is divided by.
    """

    root: Floats | None
    tilt: Floats
    hold: Floats
    update: Floats
    is_tilt: bool


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """One configuration: predicted, measured, and what follows.

    ``predicted`` is the root that the settings imply (None: no finite one), ``tilt`` the optimum of reward - beta KL at
    ``tilt_beta``. ``drift_p`` is the p value of zero mean update at the root (of the predicted update at the tilt,
    where there is no root), ``implied`` the root that the measured mean update points to. ``runs`` are the policies
    that training from the reference arrived at. ``gap_kl`` and ``gap_reward`` are the trained policy's KL and score
    against the tilt's, as a share of the tilt's.
    """

    label: str
    trainer: str
    world: str
    settings: dict[str, Any]
    tilt_beta: float
    predicted: Point | None
    tilt: Point
    drift_p: float
    implied: Point | None
    runs: tuple[Point, ...]
    gap_kl: float
    gap_reward: float
    outcome: Outcome
    note: str
    steps: int
    batch: int

    @property
    def passed(self) -> bool:
        """Whether the trainer does what its settings say."""
        return self.outcome in ("tilt", "another objective, as documented")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready plain data."""
        return {**asdict(self), "passed": self.passed}

    def to_row(self) -> dict[str, Any]:
        """One flat row, for CSV."""
        flat = {
            "trainer": self.trainer,
            "world": self.world,
            "settings": ", ".join(f"{key} {value}" for key, value in self.settings.items()),
            "outcome": self.outcome,
            "passed": self.passed,
            "drift_p": self.drift_p,
            "tilt_beta": self.tilt_beta,
            "gap_reward": self.gap_reward,
            "gap_kl": self.gap_kl,
        }
        points = {"predicted": self.predicted, "implied": self.implied, "tilt": self.tilt}
        points |= {f"run{i}": run for i, run in enumerate(self.runs, start=1)}
        for name, point in points.items():
            for quantity in ("reward", "kl", "reward_within", "kl_within"):
                flat[f"{name}_{quantity}"] = None if point is None else getattr(point, quantity)
        return flat

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Conformance:
        """What :meth:`to_dict` gave."""

        def point(p: dict[str, Any] | None) -> Point | None:
            return None if p is None else Point(**p)

        rest = {k: v for k, v in row.items() if k not in ("passed", "predicted", "tilt", "implied", "runs")}
        tilt = Point(**row["tilt"])
        runs = tuple(Point(**p) for p in row["runs"])
        return cls(**rest, tilt=tilt, predicted=point(row["predicted"]), implied=point(row["implied"]), runs=runs)


def predict(puzzle: Puzzle, objective: Objective) -> Prediction:
    """The root, the tilt, and the update predicted where it will be measured."""
    tilt = tilt_logits(puzzle, objective.tilt_beta)
    there = root(puzzle, objective)
    hold = tilt if there is None else there
    update = expected_update(puzzle, hold, objective) if there is None else np.zeros_like(hold)
    is_tilt = there is not None and bool(
        np.abs(np.exp(puzzle.log_policy(there)) - np.exp(puzzle.log_policy(tilt))).max() < _SAME
    )
    return Prediction(root=there, tilt=tilt, hold=hold, update=update, is_tilt=is_tilt)


def drift_test(update: Floats, expected: Floats, *, floor: float) -> float:
    """P value of a mean update equal to ``expected``: Hotelling's T-squared over batches.

    ``update`` has shape (N, ...), one per independent batch, ``expected`` (...). A deviation of the mean below
    ``floor`` counts as none: rounding. Where no batch deviates at all (RLOO at the tilt, where every answer's penalised
    score is the same), p is 1.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> drift_test(rng.normal(size=(200, 2)), np.zeros(2), floor=0.0) > 0.001
    True
    """
    n = len(update)
    rows = (update - expected).reshape(n, -1)
    mean = rows.mean(axis=0)
    if np.abs(mean).max() <= floor:
        return 1.0
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(rows.T)))
    # Logits have a direction per prefix that no update moves: there both mean and variance are rounding.
    keep = values > np.maximum(values.max() * 1e-9, (floor**2))
    if not keep.any() or np.abs(mean @ vectors[:, ~keep]).max(initial=0.0) > floor:
        return 0.0  # a pull that is the same in every batch: no noise could make it
    along = mean @ vectors[:, keep]
    k = int(keep.sum())
    statistic = n * float((along**2 / values[keep]).sum())
    return float(stats.f.sf(statistic * (n - k) / (k * (n - 1)), k, n - k))


def implied_root(puzzle: Puzzle, objective: Objective, logits: Floats, update: Floats, unit: float) -> Point:
    """Score and KL at the root that a measured mean update points to, with 95 % half-widths; first order.

    One step of Newton's method from the predicted root with the Jacobian of the predicted update.
    """
    flat = logits.ravel()
    step = 1e-5
    shape = logits.shape

    def at(x: Floats) -> Floats:
        return expected_update(puzzle, x.reshape(shape), objective).ravel()

    steps = list(np.eye(flat.size) * step)
    jacobian = np.stack([(at(flat + e) - at(flat - e)) / (2 * step) for e in steps], axis=1)
    moves = -(update.reshape(len(update), -1) * unit) @ np.linalg.pinv(jacobian, rcond=1e-8).T
    found = []
    for function in (puzzle.mean_reward, lambda x: answer_kl(puzzle, x)):
        slope = np.array([function((flat + e).reshape(shape)) - function((flat - e).reshape(shape)) for e in steps])
        shift = moves @ slope / (2 * step)
        found.append((function(logits) + shift.mean(), 1.96 * shift.std(ddof=1) / np.sqrt(len(shift))))
    (reward, reward_within), (kl, kl_within) = found
    return Point(reward=float(reward), kl=float(kl), reward_within=float(reward_within), kl_within=float(kl_within))


def judge(
    case: Case,
    puzzle: Puzzle,
    prediction: Prediction,
    *,
    unit: float,
    held: Floats,
    paths: Sequence[Floats],
    batch: int,
) -> Conformance:
    """Both parts together.

    ``held`` are updates measured at ``prediction.hold``, shape (N, n_prefixes, vocabulary), as the trainer gives them;
    ``paths`` has for each run from the reference the logits after each step, shape (M, n_prefixes, vocabulary).

    Notes
    -----
    The drift test decides whether the fixed point is the predicted one; the runs say whether training goes there. Where
    the drift is zero but the runs end elsewhere, they have either settled there (another stable root: wrong fixed
    point) or are still moving (not converged).
    """
    objective = case.objective
    start = expected_update(puzzle, puzzle.reference_logits, objective)
    floor = _ROUNDING * float(np.abs(start).max()) / unit
    p = drift_test(held, prediction.update / unit, floor=floor)
    halves = [path[len(path) // 2 :] for path in paths]
    runs = tuple(_arrived(puzzle, half) for half in halves)
    reward, kl = (float(np.mean([getattr(run, name) for run in runs])) for name in ("reward", "kl"))
    tilt = _point(puzzle, prediction.tilt)
    predicted = implied = None
    if prediction.root is not None:
        predicted = _point(puzzle, prediction.root)
        implied = implied_root(puzzle, objective, prediction.root, held, unit)
    outcome, note = _outcome(puzzle, prediction, predicted, implied, p, halves, runs)
    return Conformance(
        label=case.label,
        trainer=case.trainer,
        world=case.world,
        settings=dict(case.settings),
        tilt_beta=objective.tilt_beta,
        predicted=predicted,
        tilt=tilt,
        drift_p=p,
        implied=implied,
        runs=runs,
        gap_kl=kl / tilt.kl - 1.0,
        gap_reward=reward / tilt.reward - 1.0,
        outcome=outcome,
        note=note,
        steps=len(paths[0]),
        batch=batch,
    )


def _outcome(
    puzzle: Puzzle,
    prediction: Prediction,
    predicted: Point | None,
    implied: Point | None,
    p: float,
    halves: Sequence[Floats],
    runs: Sequence[Point],
) -> tuple[Outcome, str]:
    if p < ALARM and _moved(puzzle, predicted, implied):
        where = "at the predicted root" if predicted is not None else "at the tilt"
        return "wrong fixed point", f"the mean update {where} is not the predicted one (p = {p:.1g})"
    if predicted is None:
        tilt = answer_kl(puzzle, prediction.tilt)
        if all(run.kl > tilt for run in runs):
            return "another objective, as documented", "no finite optimum: the KL grows as long as it trains"
        return "not converged", "no finite optimum is predicted, but the runs have not passed the tilt"
    span = float(np.ptp(puzzle.reward))
    missed = [
        run for run in runs if abs(run.reward - predicted.reward) > 1.5 * (run.reward_within or 0.0) + _CLOSE * span
    ]
    if not missed:
        return ("tilt", "") if prediction.is_tilt else ("another objective, as documented", "")
    if all(_settled(puzzle, half, predicted.reward) for half in halves):
        return "wrong fixed point", f"the runs settle at a score of {missed[0].reward:.4g}: another stable root"
    return "not converged", f"still moving at a score of {missed[0].reward:.4g}"


def _moved(puzzle: Puzzle, predicted: Point | None, implied: Point | None) -> bool:
    """Whether the root that the drift points to differs from the predicted one by more than rounding can do."""
    if predicted is None or implied is None:
        return True
    score = abs(implied.reward - predicted.reward) / float(np.ptp(puzzle.reward))
    return max(score, abs(implied.kl - predicted.kl)) > _NEGLIGIBLE


def _arrived(puzzle: Puzzle, half: Floats) -> Point:
    """Score and KL of the mean policy over blocks of a run's second half, with 95 % half-widths from the blocks."""
    blocks = [_point(puzzle, block.mean(axis=0)) for block in np.array_split(half, _BLOCKS)]
    values = np.array([(block.reward, block.kl) for block in blocks])
    within = stats.t.ppf(0.975, _BLOCKS - 1) * values.std(axis=0, ddof=1) / np.sqrt(_BLOCKS)
    reward, kl = within.tolist()
    return replace(_point(puzzle, half.mean(axis=0)), reward_within=reward, kl_within=kl)


def _point(puzzle: Puzzle, logits: Floats) -> Point:
    return Point(reward=puzzle.mean_reward(logits), kl=answer_kl(puzzle, logits))


def _settled(puzzle: Puzzle, half: Floats, target: float) -> bool:
    """Whether a run's second half has no slope (two-sided test at 1 %), or would need ten more such halves to arrive.

    The second condition is for paths whose steps are correlated so much that the test sees slopes in a random walk.
    """
    values = [puzzle.mean_reward(b.mean(axis=0)) for b in np.array_split(half, 2 * _BLOCKS)]
    if stats.linregress(range(len(values)), values).pvalue > 0.01:
        return True
    return bool(abs(values[-1] - values[0]) < 0.1 * abs(target - values[-1]))
