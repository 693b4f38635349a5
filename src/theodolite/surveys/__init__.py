"""Model and data to Survey, training loop to History, in as few passes as possible.

Names load on first use: saved results are read and shown without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from theodolite.surveys._compare import Comparison, compare, load
    from theodolite.surveys._history import History
    from theodolite.surveys._measure import measure_model, versions
    from theodolite.surveys._monitor import MONITOR_SIZES, Monitor
    from theodolite.surveys._probe import Probe, draw_probe
    from theodolite.surveys._result import Survey
    from theodolite.surveys._settings import FAMILIES, SIZES, Labeling, Loss, Pool, Settings
    from theodolite.surveys._shown import Shown
    from theodolite.surveys._survey import place_of, survey

__all__ = [
    "FAMILIES",
    "MONITOR_SIZES",
    "SIZES",
    "Comparison",
    "History",
    "Labeling",
    "Loss",
    "Monitor",
    "Pool",
    "Probe",
    "Settings",
    "Shown",
    "Survey",
    "compare",
    "draw_probe",
    "load",
    "measure_model",
    "place_of",
    "survey",
    "versions",
]

# Module -> its public names; the same imports stand under TYPE_CHECKING above.
_HOMES = {
    "_compare": ("Comparison", "compare", "load"),
    "_history": ("History",),
    "_measure": ("measure_model", "versions"),
    "_monitor": ("MONITOR_SIZES", "Monitor"),
    "_probe": ("Probe", "draw_probe"),
    "_result": ("Survey",),
    "_settings": ("FAMILIES", "SIZES", "Labeling", "Loss", "Pool", "Settings"),
    "_shown": ("Shown",),
    "_survey": ("place_of", "survey"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
