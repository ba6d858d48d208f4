"""Frontier: the one table of kleash. For each beta: judge's score, true quality, KL, how sure, and from where."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kleash import _checks, _files, tilt
from kleash.envelope import SCHEMA, check_schema
from kleash.errors import DataError, MissingFileError, OptionError
from kleash.estimates import Estimates, Floats, Gold, Replicates
from kleash.rows import opened
from kleash.worlds import World

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Estimates", "Frontier", "Gold", "Replicates", "Source", "Status", "exact_frontier"]

Source = Literal["exact", "forecast", "sweep", "log"]
"""Where a Frontier came from: a world's closed form, reference samples, training, or a trainer's logs."""
Status = Literal["ok", "weak", "beyond"]
"""How far a row can be trusted: ``beyond`` rows carry no estimates and enter no verdict."""

_QUANTITIES = ("reward", "gold", "kl", "gold_gain")
_MEASURED = ("gold", "gold_gain", "reference_gold")  # of a Gold: in a file null may be measured, or not
_COLUMNS = {name + end for name in _QUANTITIES for end in ("", "_se", "_lo", "_hi")} | {"beta", "n", "status"}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Frontier:
    """Judge's score, true quality and KL for every beta, with their uncertainty and origin.

    Parameters
    ----------
    source
        Where the numbers came from.
    beta
        Finite coefficients in reward units per nat, shape (B,), ascending; the reference (beta infinity) stands apart.
    reward, gold, kl
        :class:`Estimates` of shape (B,); KL in nats per answer. ``gold``, a :class:`Gold` with ``gain`` and
        ``reference``, is None where nothing is known of it.
    reference_reward
        :class:`Estimates` of shape () for the untouched reference.
    n
        Independent units behind each row, shape (B,): prompts of a forecast (answers, where prompts are fixed), seeds
        of a sweep, 0 for an exact table.
    status
        ``ok``, ``weak`` or ``beyond`` per row, shape (B,).
    diagnostics
        Further columns of shape (B,) by name (``chi2``, ``ess``, ``khat``, ...).
    replicates
        Draws for paired comparisons; None for an exact table.
    gold_range
        Largest minus smallest possible (or seen) gold; sets the default tolerance of a verdict.
    provenance
        Plain data: inputs, settings, version, seed, notes.

    Examples
    --------
    >>> from kleash.worlds import kitchen
    >>> frontier = exact_frontier(kitchen(), [5.0, 15.0])
    >>> frontier.gold.value.round(3)
    array([0.29 , 1.541])
    >>> frontier.to_frame().columns[:3]
    ['beta', 'reward', 'reward_se']
    """

    source: Source
    beta: Floats
    reward: Estimates
    kl: Estimates
    reference_reward: Estimates
    gold: Gold | None = None
    n: NDArray[np.int64]
    status: NDArray[np.str_]
    diagnostics: Mapping[str, Floats] = dataclasses.field(default_factory=dict)
    replicates: Replicates | None = None
    gold_range: float | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _checks.choice(self.source, get_args(Source), name="source")
        beta = _checks.betas(self.beta, infinite=False)
        if (np.diff(beta) <= 0).any():
            raise OptionError(_checks.message("beta", expected="ascending, distinct values", got=beta.tolist()))
        columns = {name: column.value for name, column in self._columns().items() if column is not None}
        status = np.asarray(self.status, dtype=np.str_)
        for value in np.unique(status):
            _checks.choice(str(value), get_args(Status), name="status")
        n = np.asarray(self.n, dtype=np.int64)
        diagnostics = {name: np.asarray(array, dtype=np.float64) for name, array in self.diagnostics.items()}
        taken = sorted(diagnostics.keys() & _COLUMNS)
        if taken:
            raise OptionError(_checks.message("diagnostics", expected="names of their own", got=", ".join(taken)))
        draws = {} if self.replicates is None else {"replicates": self.replicates.reward[0]}
        _checks.same_shape(beta=beta, n=n, status=status, **columns, **diagnostics, **draws)
        for name, value in (("beta", beta), ("n", n), ("status", status), ("diagnostics", diagnostics)):
            object.__setattr__(self, name, value)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Rows that may enter a verdict: everything that is not ``beyond``."""
        return np.asarray(self.status != "beyond")

    def _columns(self) -> dict[str, Estimates | None]:
        gain = None if self.gold is None else self.gold.gain
        return {"reward": self.reward, "gold": self.gold, "kl": self.kl, "gold_gain": gain}

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per beta; None where a value does not exist."""
        columns: dict[str, list[Any]] = {"beta": self.beta.tolist()}
        for name, column in self._columns().items():
            columns |= _estimate_columns(name, column, self.beta.size)
        columns |= {name: _files.finite_or_none(array) for name, array in self.diagnostics.items()}
        columns |= {"n": self.n.tolist(), "status": self.status.tolist()}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def reference(self) -> dict[str, Any]:
        """The untouched reference as a plain dictionary."""
        columns = _estimate_columns("reward", self.reference_reward[None], 1)
        columns |= _estimate_columns("gold", None if self.gold is None else self.gold.reference[None], 1)
        return {name: values[0] for name, values in columns.items()}

    def to_dict(self, *, replicates: bool = False) -> dict[str, Any]:
        """JSON-ready plain data: ``rows``, ``reference`` and what they came from; :meth:`from_dict` reads it.

        Parameters
        ----------
        replicates
            With the draws: a few of seeds, thousands of a bootstrap.

        Returns
        -------
        dict
        """
        content = {
            "schema": SCHEMA,
            "kind": "frontier",
            "source": self.source,
            "measured": list(_MEASURED if self.gold is not None else ()),
            "rows": self.rows(),
            "reference": self.reference(),
            "gold_range": self.gold_range,
            "provenance": dict(self.provenance),
        }
        if replicates and self.replicates is not None:
            content["replicates"] = _draws(self.replicates)
        return content

    def to_frame(self) -> pl.DataFrame:
        """A polars frame with a row per beta; null where a value does not exist."""
        import polars as pl

        rows = self.rows()
        kinds: dict[str, Any] = {"n": pl.Int64, "status": pl.String}
        return pl.DataFrame(rows, schema={name: kinds.get(name, pl.Float64) for name in rows[0]})

    def save(self, path: str | Path) -> None:
        """Write everything, replicates included, to ``.json`` or ``.parquet``; atomic, exact to the last bit.

        NaN and infinities become null, and NaN when read again.
        """
        path = Path(path)
        form = _checks.choice(path.suffix, (".json", ".parquet"), name="frontier file")
        content = self.to_dict(replicates=True)
        if form == ".json":
            _files.write_atomic(path, _files.dump_json(content) + "\n")
            return
        import io

        buffer = io.BytesIO()
        rest = {key: value for key, value in content.items() if key != "rows"}
        self.to_frame().write_parquet(buffer, metadata={"kleash": _files.dump_json(rest)})
        _files.write_atomic(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Frontier:
        """Read a frontier written by :meth:`save`.

        Raises
        ------
        MissingFileError
            There is no such file.
        DataError
            The file is not a frontier, or one of a newer schema.
        """
        path = Path(path)
        form = _checks.choice(path.suffix, (".json", ".parquet"), name="frontier file")
        try:
            if form == ".json":
                content = json.loads(_files.read_text(path))
            else:
                with opened(path) as source:
                    content = json.loads(source.metadata()["kleash"])
                    content["rows"] = [row for _, row in source.rows()]
            return cls.from_dict(content)
        except FileNotFoundError as error:
            raise MissingFileError(f"{path}: no such file") from error
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}", path=path) from error
        except DataError as error:
            raise DataError(str(error).removeprefix(f"{path}: "), path=path) from error
        except Exception as error:  # any other failure means that the content is not what save() writes
            raise DataError("is not a frontier written by kleash", path=path) from error

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Frontier:
        """A frontier from what :meth:`to_dict` gave; of a schema this kleash does not read, a DataError."""
        check_schema(content["schema"])
        rows, reference = content["rows"], content["reference"]
        gold = Gold.of(
            _read_estimates("gold", rows),
            gain=_read_estimates("gold_gain", rows),
            reference=_read_estimates("gold", [reference])[0],
        )
        replicates = content.get("replicates")
        if replicates is not None:
            kept = {k: v for k, v in replicates.items() if k != "kind"}
            draws = {k: _numbers(np.asarray(v, dtype=np.float64), f"replicates.{k}") for k, v in kept.items()}
            replicates = Replicates(kind=replicates["kind"], **draws)
        return cls(
            source=content["source"],
            beta=np.asarray([row["beta"] for row in rows]),
            n=np.asarray([row["n"] for row in rows]),
            status=np.asarray([row["status"] for row in rows]),
            reference_reward=_read_estimates("reward", [reference])[0],
            reward=_read_estimates("reward", rows),
            kl=_read_estimates("kl", rows),
            gold=gold if "gold" in content["measured"] else None,
            diagnostics={name: _column(rows, name) for name in rows[0] if name not in _COLUMNS},
            replicates=replicates,
            gold_range=content["gold_range"],
            provenance=content["provenance"],
        )


def exact_frontier(world: World, beta: ArrayLike | None = None, *, n_grid: int = 200) -> Frontier:
    """The exact table of a world: the optimum at every beta, by the closed form.

    Parameters
    ----------
    world
        The world.
    beta
        Coefficients, shape (B,), finite; default: 0, a logarithmic grid from where the policy has all but left the
        reference to where it has all but reached it, and every beta at which the gold has a maximum.
    n_grid
        Size of the default grid.

    Returns
    -------
    Frontier
        Source ``exact``; standard errors are 0.

    Examples
    --------
    >>> from kleash.worlds import two_arm
    >>> exact_frontier(two_arm(0.2), [1.0]).reward.value.round(4)
    array([0.4046])
    """
    if beta is None:
        spread, widest = tilt.reward_spread(world)
        ends = (1e-2 * spread, max(1e3 * spread, 10.0 * widest)) if spread > 0 else (1e-2, 1e3)  # any beta is as good
        grid = np.geomspace(*ends, _checks.integer(n_grid, name="n_grid", at_least=2))
        beta = np.concatenate([[0.0], grid, tilt.stationary_betas(world)])
    array = np.unique(_checks.betas(beta, infinite=False))
    at = tilt.moments(world, array)
    reference = tilt.moments(world, np.inf)
    possible = np.isfinite(world.log_reference)
    return Frontier(
        source="exact",
        beta=array,
        reward=Estimates.exact(at.reward),
        gold=Gold.of(
            Estimates.exact(at.gold),
            gain=Estimates.exact(at.gold - reference.gold),
            reference=Estimates.exact(reference.gold[0]),
        ),
        kl=Estimates.exact(at.kl),
        reference_reward=Estimates.exact(reference.reward[0]),
        n=np.zeros(array.size, dtype=np.int64),
        status=np.full(array.size, "ok"),
        diagnostics={"chi2": at.chi2},
        gold_range=float(np.ptp(world.gold[possible])),
        provenance={"world": world.name},
    )


def _draws(replicates: Replicates) -> dict[str, Any]:
    named = {f.name: getattr(replicates, f.name) for f in dataclasses.fields(replicates)}
    return {
        name: _nested(value) if isinstance(value, np.ndarray) else value
        for name, value in named.items()
        if value is not None
    }


def _nested(array: Floats) -> list[Any]:
    """Nested lists with None for NaN: the draws of a row that is ``beyond``."""
    cells = array.astype(object)
    cells[np.isnan(array)] = None
    return list(cells.tolist())


def _estimate_columns(name: str, estimates: Estimates | None, size: int) -> dict[str, list[Any]]:
    ends = (("", "value"), ("_se", "se"), ("_lo", "lo"), ("_hi", "hi"))
    if estimates is None:
        return {name + end: [None] * size for end, _ in ends}
    return {name + end: _files.finite_or_none(getattr(estimates, field)) for end, field in ends}


LARGEST = 1e100
"""Scores and nats beyond it are refused where they are read: sums of their squares are no floats."""


def _column(rows: list[dict[str, Any]], name: str) -> Floats:
    return _numbers(np.asarray([np.nan if row[name] is None else row[name] for row in rows], dtype=np.float64), name)


def _numbers(values: Floats, name: str) -> Floats:
    """The same, if every value is null (NaN) or a number whose square is one; else a DataError."""
    if (np.abs(values) > LARGEST).any():
        raise DataError(_checks.message(name, expected=f"null or numbers of at most {LARGEST:g}", got="a larger one"))
    return values


def _read_estimates(name: str, rows: list[dict[str, Any]]) -> Estimates:
    value, se, lo, hi = (_column(rows, name + end) for end in ("", "_se", "_lo", "_hi"))
    return Estimates(value=value, se=se, lo=lo, hi=hi)
