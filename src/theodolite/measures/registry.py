"""Every measure in one table, ``registry.csv``: range, direction, gradients, reference, meaning.

A row is a measure or one of its estimators. The conformance tests hold each measure to its row; the
page of measures in the documentation is :func:`markdown_page`.
"""

import csv
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from math import isinf
from types import ModuleType
from typing import Any

from theodolite.measures import covariance, gradient, kernel, representation, tangent

__all__ = ["MEASURES", "Measure", "markdown_page", "read_measures"]

_FAMILIES: dict[str, ModuleType] = {
    "representation": representation,
    "covariance": covariance,
    "kernel": kernel,
    "tangent": tangent,
    "gradient": gradient,
}


@dataclass(frozen=True)
class Measure:
    """What is known about a measure, or about one of its estimators."""

    name: str  # of the function, with a suffix where estimators differ: "linear_cka.biased"
    function: Callable[..., Any]
    family: str
    meaning: str  # one sentence: what does the number tell me?
    reference: str  # "[key], Eq. (2)"
    range: tuple[float, float]
    larger_is_more_aligned: bool | None  # None: neither direction means aligned
    gradients: tuple[str, ...]  # the arguments that gradients flow to
    options: Mapping[str, Any]  # fixed keywords of this row
    result: str  # the field of a structured result that holds the number; empty: it is the result

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

_HEAD = """# Measures

This page lists every measure of arrays (`theodolite.measures.registry.MEASURES`). *Direction* says
whether a larger or a smaller value means more aligned. *Gradients* names the arguments that
autograd can differentiate by. The *label mass* of a direction is the squared length of the labels
along it. A *mode* is an eigenvector of a kernel.

"""
_DIRECTIONS = {True: "larger", False: "smaller", None: "neither"}


def markdown_page() -> str:
    """One table per family, one row per measure or estimator.

    Examples:
        >>> "| `vector_alignment` | [-1, 1] | larger |" in markdown_page()
        True
    """
    families = groupby(MEASURES.values(), key=lambda row: row.family)
    return _HEAD + "\n".join(_section(family, rows) for family, rows in families)


def _section(family: str, rows: Iterable[Measure]) -> str:
    lines = [
        f"## {family}",
        "",
        "| measure | range | direction | what it measures | gradients | reference |",
        "|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Measure) -> str:
    low, high = row.range
    left = "(-inf" if isinf(low) else f"[{low:g}"
    right = "inf)" if isinf(high) else f"{high:g}]"
    smooth = ", ".join(f"`{name}`" for name in row.gradients) or "none"
    direction = _DIRECTIONS[row.larger_is_more_aligned]
    cells = (f"`{row.name}`", f"{left}, {right}", direction, row.meaning, smooth, row.reference)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
