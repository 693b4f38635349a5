"""Adapters to training loops and trackers of other packages.

- ``theodolite.integrations.lightning.AlignmentCallback`` for a Lightning ``Trainer``
- ``theodolite.integrations.transformers.AlignmentCallback`` for a Hugging Face ``Trainer``
- ``TensorBoardTracker``, ``WandbTracker``, ``MLflowTracker``: they log settings, numbers per layer
  and family, and the report; ``track`` sends a whole run to them

Names load on first use. Each adapter imports its package when it is created.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from theodolite.integrations.mlflow import MLflowTracker
    from theodolite.integrations.tracking import (
        TensorBoardTracker,
        Tracker,
        WandbTracker,
        scalars,
        track,
    )

__all__ = [
    "MLflowTracker",
    "TensorBoardTracker",
    "Tracker",
    "WandbTracker",
    "lightning",
    "mlflow",
    "scalars",
    "track",
    "transformers",
]

_MODULES = ("lightning", "mlflow", "transformers")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    home = "mlflow" if name.startswith("MLflow") else "tracking"
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return list(__all__)
