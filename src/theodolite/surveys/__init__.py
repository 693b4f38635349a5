"""Model and data to Survey, training loop to History, in as few passes as possible.

Names load on first use: saved results are read and shown without torch.

- ``run``: one survey. ``monitor``: surveys of a training. ``arrays``: surveys of given features.
- ``families``: all parts in order; each family has its file. ``fit``: accuracies, linear probes.
- ``context``: what families read, collected once. ``record``: what they write.
- ``probe``: the examples, drawn from the data (``targets``, ``positions``, ``copies``, ``shards``).
- ``layers``: what is shown. ``plan``: memory. ``schedule``, ``progress``: time.
- ``results``, ``model_comparison``: what users get, alone and side by side.
- ``transfers``: rankings of models (``transfer_*``, ``heads``, ``named_models``).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from theodolite.surveys.arrays import survey_features
    from theodolite.surveys.monitor import Budget, Monitor
    from theodolite.surveys.options import (
        MONITOR_SIZES,
        SIZES,
        SurveyOptions,
    )
    from theodolite.surveys.probe import Probe, draw_probe
    from theodolite.surveys.results import Comparison, History, Shown, Survey, compare, load
    from theodolite.surveys.run import survey, versions
    from theodolite.surveys.transfer_results import Transfer
    from theodolite.surveys.transfers import TransferOptions, transfer

__all__ = [
    "MONITOR_SIZES",
    "SIZES",
    "Budget",
    "Comparison",
    "History",
    "Monitor",
    "Probe",
    "Shown",
    "Survey",
    "SurveyOptions",
    "Transfer",
    "TransferOptions",
    "compare",
    "draw_probe",
    "load",
    "survey",
    "survey_features",
    "transfer",
    "versions",
]

# Module -> its public names; the same imports stand under TYPE_CHECKING above.
_HOMES = {
    "arrays": ("survey_features",),
    "monitor": ("Budget", "Monitor"),
    "options": ("MONITOR_SIZES", "SIZES", "SurveyOptions"),
    "probe": ("Probe", "draw_probe"),
    "results": ("Comparison", "History", "Shown", "Survey", "compare", "load"),
    "run": ("survey", "versions"),
    "transfer_results": ("Transfer",),
    "transfers": ("TransferOptions", "transfer"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
