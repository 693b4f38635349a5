"""Every measure in one table, ``registry.csv``: range, direction, gradients, reference, meaning.

A row is a measure or one of its estimators. The conformance tests hold each measure to its row; the
page of measures in the documentation lists it.
"""

import csv
from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import ModuleType
from typing import Any

from theodolite.measures import covariance, gradient, kernel, representation, tangent

__all__ = ["MEASURES", "Measure"]

_FAMILIES: dict[str, ModuleType] = {
    "representation": representation,
    "covariance": covariance,
    "kernel": kernel,
    "tangent": tangent,
    "gradient": gradient,
}


@dataclass(frozen=True)
class Measure:
    """The row of a measure, or of one of its estimators, in ``registry.csv``.

    Args:
        name: name of the function, with a suffix if estimators differ: "linear_cka.biased".
        function: the function.
        family: family of the measure.
        meaning: what the number says, in one sentence.
        reference: the source, such as "[key], Eq. (2)".
        range: lowest and highest value.
        larger_is_more_aligned: None if neither direction means aligned.
        gradients: the arguments by which autograd can differentiate.
        options: fixed keywords of this row.
        result: field of a structured result that holds the number; empty if it is the result.
    """

    name: str
    function: Callable[..., Any]
    family: str
    meaning: str
    reference: str
    range: tuple[float, float]
    larger_is_more_aligned: bool | None
    gradients: tuple[str, ...]
    options: Mapping[str, Any]
    result: str

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        """The measure with this row's options."""
        result = self.function(*args, **{**self.options, **arguments})
        return getattr(result, self.result) if self.result else result


def read_measures(
    table: str, function_of: Callable[[str, str], Callable[..., Any]]
) -> dict[str, Measure]:
    """Rows of a table with the columns of ``registry.csv``, by name.

    Args:
        table: comma-separated, with a line of headings.
        function_of: the function of a family and a name.
    """
    return {
        row["name"]: _measure(row, function_of(row["family"], row["name"].split(".")[0]))
        for row in csv.DictReader(table.splitlines())
    }


def _measure(row: Mapping[str, str], function: Callable[..., Any]) -> Measure:
    options = (option.split("=", 1) for option in row["options"].split())
    return Measure(
        name=row["name"],
        function=function,
        family=row["family"],
        meaning=row["meaning"],
        reference=row["reference"],
        range=(float(row["low"]), float(row["high"])),
        larger_is_more_aligned={"larger": True, "smaller": False, "neither": None}[row["aligned"]],
        gradients=tuple(row["gradients"].split()),
        options={name: literal_eval(value) for name, value in options},
        result=row["result"],
    )


_TABLE = files("theodolite.measures").joinpath("registry.csv").read_text(encoding="utf-8")
MEASURES = read_measures(_TABLE, lambda family, name: getattr(_FAMILIES[family], name))
