"""Every row of the registry, and every formula of a paper, with its law."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules

import numpy as np

from tests.conformance.inputs import draw
from tests.conformance.laws import covariance, gradient, kernel, representation, tangent
from tests.conformance.laws.law import Law
from theodolite.measures.registry import MEASURES, Measure, read_measures

FAMILIES = {
    "representation": representation,
    "covariance": covariance,
    "kernel": kernel,
    "tangent": tangent,
    "gradient": gradient,
}
LAWS = {name: law for family in FAMILIES.values() for name, law in family.LAWS.items()}


@dataclass(frozen=True)
class Row(Law, Measure):
    """A measure and its law."""

    @property
    def differentiable(self) -> dict[str, bool]:
        """For each array of real numbers: whether gradients flow to it."""
        return {
            name: name in self.gradients
            for name, value in draw(self.inputs, "random").items()
            if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        }


ROWS = {name: Row(**vars(measure), **vars(LAWS[name])) for name, measure in MEASURES.items()}


PAPERS = {
    "representation": "imani2022",
    "covariance": "maennel2020",
    "kernel": "canatar2022",
    "tangent": "lou2022",
    "gradient": "mehta2021",
}


def formula(family: str, name: str):
    """The function of that name among the formulas of a family's paper."""
    package = importlib.import_module(f"theodolite_papers.{PAPERS[family]}.formulas")
    modules = [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for module in iter_modules(package.__path__)
    ]
    return next(getattr(module, name) for module in modules if hasattr(module, name))


_FORMULAS = read_measures((Path(__file__).parent.parent / "formulas.csv").read_text(), formula)
FORMULAS = {name: Row(**vars(measure), **vars(LAWS[name])) for name, measure in _FORMULAS.items()}
