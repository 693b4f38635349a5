"""Theodolite measures alignment inside neural networks.

Every name loads on first use, so that ``import theodolite.records`` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from theodolite._version import __version__ as __version__

if TYPE_CHECKING:
    from theodolite import advice, engine, integrations, interventions, measures, metrics, theory
    from theodolite.engine import features, gradient_alignment, tangent_features, tangent_kernels
    from theodolite.surveys import Comparison as Comparison
    from theodolite.surveys import History as History
    from theodolite.surveys import Monitor, compare, load, survey, survey_features, transfer
    from theodolite.surveys import Survey as Survey
    from theodolite.surveys import Transfer as Transfer
    from theodolite.theory.learning import learning_curve as learning_curve

__all__ = [
    "Monitor",
    "advice",
    "compare",
    "engine",
    "features",
    "gradient_alignment",
    "integrations",
    "interventions",
    "load",
    "measures",
    "metrics",
    "survey",
    "survey_features",
    "tangent_features",
    "tangent_kernels",
    "theory",
    "transfer",
]

# Name -> (module, attribute; None for the module itself). The same imports stand under
# TYPE_CHECKING above, for type checkers and editors. Types of results are there for annotations.
_HOMES: dict[str, tuple[str, str | None]] = {
    "Comparison": ("theodolite.surveys", "Comparison"),
    "History": ("theodolite.surveys", "History"),
    "Monitor": ("theodolite.surveys", "Monitor"),
    "Survey": ("theodolite.surveys", "Survey"),
    "Transfer": ("theodolite.surveys", "Transfer"),
    "advice": ("theodolite.advice", None),
    "compare": ("theodolite.surveys", "compare"),
    "engine": ("theodolite.engine", None),
    "features": ("theodolite.engine", "features"),
    "gradient_alignment": ("theodolite.engine", "gradient_alignment"),
    "integrations": ("theodolite.integrations", None),
    "interventions": ("theodolite.interventions", None),
    "learning_curve": ("theodolite.theory.learning", "learning_curve"),
    "load": ("theodolite.surveys", "load"),
    "measures": ("theodolite.measures", None),
    "metrics": ("theodolite.metrics", None),
    "survey": ("theodolite.surveys", "survey"),
    "survey_features": ("theodolite.surveys", "survey_features"),
    "tangent_features": ("theodolite.engine", "tangent_features"),
    "tangent_kernels": ("theodolite.engine", "tangent_kernels"),
    "theory": ("theodolite.theory", None),
    "transfer": ("theodolite.surveys", "transfer"),
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
    return list(__all__)
