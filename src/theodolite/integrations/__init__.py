"""Thin adapters to other people's training loops, trackers and benchmarks.

- ``theodolite.integrations.lightning.AlignmentCallback`` for a Lightning ``Trainer``
- ``theodolite.integrations.transformers.AlignmentCallback`` for a Hugging Face ``Trainer``
- ``TensorBoardTracker``, ``WandbTracker``, ``MLflowTracker``: settings, scalars per layer and
  family, the report as an artifact; ``track`` sends them a whole run
- ``MLflowSweep`` for many runs of one function: a run for the sweep, and one below it per point
- ``theodolite.integrations.similarity.SIMILARITIES`` for ReSi and similarity-repository

Names load on first use, and each adapter imports its package when it is made.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from theodolite.integrations.mlflow import MLflowSweep, MLflowTracker
    from theodolite.integrations.tracking import (
        TensorBoardTracker,
        Tracker,
        WandbTracker,
        scalars,
        track,
    )

__all__ = [
    "MLflowSweep",
    "MLflowTracker",
    "TensorBoardTracker",
    "Tracker",
    "WandbTracker",
    "lightning",
    "mlflow",
    "scalars",
    "similarity",
    "track",
    "transformers",
]

_MODULES = ("lightning", "mlflow", "similarity", "transformers")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    home = "mlflow" if name.startswith("MLflow") else "tracking"
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return list(__all__)
