"""Every formula of the papers with its law."""

import importlib
from pathlib import Path
from pkgutil import iter_modules

from papers.tests.laws import covariance, gradient, kernel, representation, tangent
from tests.conformance.laws import Row
from theodolite.measures.registry import read_measures

PAPERS = {
    "representation": "imani2022",
    "covariance": "maennel2020",
    "kernel": "canatar2022",
    "tangent": "lou2022",
    "gradient": "mehta2021",
}
_FAMILIES = (representation, covariance, kernel, tangent, gradient)
LAWS = {name: law for family in _FAMILIES for name, law in family.LAWS.items()}


def formula(family: str, name: str):
    """The function of that name among the formulas of a family's paper."""
    package = importlib.import_module(f"theodolite_papers.{PAPERS[family]}.formulas")
    modules = [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for module in iter_modules(package.__path__)
    ]
    return next(getattr(module, name) for module in modules if hasattr(module, name))


_MEASURES = read_measures(Path(__file__).with_name("formulas.csv").read_text(), formula)
FORMULAS = {name: Row(**vars(measure), **vars(LAWS[name])) for name, measure in _MEASURES.items()}
