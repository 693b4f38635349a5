"""Theodolite measures alignment inside neural networks.

Every name loads on first use, so that ``import theodolite.records`` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from theodolite._version import __version__ as __version__

if TYPE_CHECKING:
    from theodolite import measures, metrics, quantities, theory, workbench
    from theodolite._load import Comparison, compare, load
    from theodolite._monitor import History, Monitor
    from theodolite._survey import Survey, survey
    from theodolite.quantities import features, gradient_alignment, tangent_kernels

__all__ = [
    "Comparison",
    "History",
    "Monitor",
    "Survey",
    "compare",
    "features",
    "gradient_alignment",
    "load",
    "measures",
    "metrics",
    "quantities",
    "survey",
    "tangent_kernels",
    "theory",
    "workbench",
]

# Public name -> (module, attribute; None for the module itself). The same imports stand under
# TYPE_CHECKING above, for type checkers and editors.
_HOMES: dict[str, tuple[str, str | None]] = {
    "Comparison": ("theodolite._load", "Comparison"),
    "History": ("theodolite._monitor", "History"),
    "Monitor": ("theodolite._monitor", "Monitor"),
    "Survey": ("theodolite._survey", "Survey"),
    "compare": ("theodolite._load", "compare"),
    "features": ("theodolite.quantities", "features"),
    "gradient_alignment": ("theodolite.quantities", "gradient_alignment"),
    "load": ("theodolite._load", "load"),
    "measures": ("theodolite.measures", None),
    "metrics": ("theodolite.metrics", None),
    "quantities": ("theodolite.quantities", None),
    "survey": ("theodolite._survey", "survey"),
    "tangent_kernels": ("theodolite.quantities", "tangent_kernels"),
    "theory": ("theodolite.theory", None),
    "workbench": ("theodolite.workbench", None),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, attribute = _HOMES[name]
    module = import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
