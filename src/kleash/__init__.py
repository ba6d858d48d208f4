"""kleash, the KL leash: choose the KL penalty before training against a judge, and check it while training.

``kleash.forecast`` reads beta, judge's score, true quality and KL off scored samples of the reference, before
anything is trained; ``kleash.sweep`` trains in a world where the truth is known; both end in a verdict. Names load
what they need when they are first used, so ``import kleash`` is light.

Examples
--------
>>> import kleash
>>> world = kleash.kitchen(oversalt=0.0005)
>>> kleash.find_window(kleash.exact_frontier(world)).kind
'useful-range'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kleash.audit import CheckReport, check
    from kleash.errors import KleashError
    from kleash.forecasting.forecast import forecast
    from kleash.forecasting.result import Forecast
    from kleash.frontier import Estimates, Frontier, Gold, Replicates, exact_frontier
    from kleash.kl import KLSpec, full_kl, k1, k2, k3
    from kleash.playground.page import play
    from kleash.reporting.drawing import plot
    from kleash.reporting.page import report
    from kleash.samples import Samples, read_samples
    from kleash.sampling.labels import label_sheet, merge_labels
    from kleash.sampling.result import Sampled
    from kleash.sampling.run import sample
    from kleash.tilt import best_of_n, moments, stationary_betas, tilt_policy
    from kleash.train.sweep import SweepResult, sweep
    from kleash.translate import Translation, convert
    from kleash.trials.conformance import conformance
    from kleash.window import Verdict, find_window
    from kleash.world_files import load_world
    from kleash.worlds import World, heavy_tail, kitchen, random_world, two_arm

    __version__: str

__all__ = [
    "CheckReport",
    "Estimates",
    "Forecast",
    "Frontier",
    "Gold",
    "KLSpec",
    "KleashError",
    "Replicates",
    "Sampled",
    "Samples",
    "SweepResult",
    "Translation",
    "Verdict",
    "World",
    "__version__",
    "best_of_n",
    "check",
    "conformance",
    "convert",
    "exact_frontier",
    "find_window",
    "forecast",
    "full_kl",
    "heavy_tail",
    "k1",
    "k2",
    "k3",
    "kitchen",
    "label_sheet",
    "load_world",
    "merge_labels",
    "moments",
    "play",
    "plot",
    "random_world",
    "read_samples",
    "report",
    "sample",
    "stationary_betas",
    "sweep",
    "tilt_policy",
    "two_arm",
]

# No module of the package may have the name of something here: importing the module would put itself in its place.
_HOME = {
    "kleash.audit": ("CheckReport", "check"),
    "kleash.errors": ("KleashError",),
    "kleash.forecasting.forecast": ("forecast",),
    "kleash.forecasting.result": ("Forecast",),
    "kleash.frontier": ("Estimates", "Frontier", "Gold", "Replicates", "exact_frontier"),
    "kleash.kl": ("KLSpec", "full_kl", "k1", "k2", "k3"),
    "kleash.playground.page": ("play",),
    "kleash.reporting.drawing": ("plot",),
    "kleash.reporting.page": ("report",),
    "kleash.samples": ("Samples", "read_samples"),
    "kleash.sampling.labels": ("label_sheet", "merge_labels"),
    "kleash.sampling.result": ("Sampled",),
    "kleash.sampling.run": ("sample",),
    "kleash.tilt": ("best_of_n", "moments", "stationary_betas", "tilt_policy"),
    "kleash.train.sweep": ("SweepResult", "sweep"),
    "kleash.translate": ("Translation", "convert"),
    "kleash.trials.conformance": ("conformance",),
    "kleash.window": ("Verdict", "find_window"),
    "kleash.world_files": ("load_world",),
    "kleash.worlds": ("World", "heavy_tail", "kitchen", "random_world", "two_arm"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}
_RENAMED = {"report_page": "report", "translate_beta": "convert"}  # old names, for one release


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from kleash._version import version

        value: Any = version()
    elif name in _RENAMED:
        from warnings import warn

        warn(f"kleash.{name} is now kleash.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return __getattr__(_RENAMED[name])
    elif name in _MODULE:
        value = getattr(import_module(_MODULE[name]), name)
    else:
        raise AttributeError(f"module 'kleash' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
