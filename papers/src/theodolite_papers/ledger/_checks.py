"""Checks that many studies need.

Numbers are means over the runs that a claim is about; if it is about single runs, the numbers of
the run. Arguments are mappings: label -> name of the number in the records.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from theodolite_papers.ledger._claims import (
    Check,
    Condition,
    Outcome,
    above,
    decided,
    shown_as,
)
from theodolite_papers.ledger._results import Number, Results

__all__ = [
    "between",
    "exceeds",
    "in_order",
    "largest",
    "named",
    "ordered",
    "provided",
    "smallest",
    "within",
]


def named(*labels: str, prefix: str = "", suffix: str = "") -> dict[str, str]:
    """Label -> name, where a name is the label with a prefix or suffix.

    Example:
        >>> named("network", "rbf", prefix="area_")
        {'network': 'area_network', 'rbf': 'area_rbf'}
    """
    return {label: f"{prefix}{label}{suffix}" for label in labels}


def between(
    numbers: Mapping[str, str],
    low: float = -math.inf,
    high: float = math.inf,
    beside: Sequence[str] = (),
) -> Check:
    """Every number lies strictly between two bounds; those of ``beside`` are only shown.

    Example:
        >>> from theodolite_papers.ledger import Result
        >>> between({"share": "share_a"}, low=0.5)(Results((Result({"share_a": 0.7}),))).holds
        True
    """

    def check(runs: Results) -> Outcome:
        values = runs.means(numbers)
        conditions = [Condition(label, value, low, high) for label, value in values.items()]
        return decided(*conditions, **runs.means(named(*beside)))

    return check


def within(
    numbers: Mapping[str, str],
    low: float = -math.inf,
    high: float = math.inf,
    beside: Mapping[str, str] | None = None,
) -> Check:
    """Every number lies between two bounds, or on one; those of ``beside`` are only shown.

    Example:
        >>> from theodolite_papers.ledger import Result
        >>> within({"share": "share_a"}, low=0.5)(Results((Result({"share_a": 0.5}),))).holds
        True
    """

    def check(runs: Results) -> Outcome:
        values = runs.means(numbers)
        conditions = [Condition(label, v, low, high, False) for label, v in values.items()]
        return decided(*conditions, **runs.means(beside or {}))

    return check


def in_order(numbers: Mapping[str, str], *, falling: bool = False) -> Check:
    """The numbers grow (or fall) strictly in the order in which they are named.

    Example:
        >>> from theodolite_papers.ledger import Result
        >>> runs = Results((Result({"area_1": 0.2, "area_2": 0.3}),))
        >>> in_order(named("1", "2", prefix="area_"))(runs).holds
        True
    """

    def check(runs: Results) -> Outcome:
        values = runs.means(numbers)
        return ordered(values, falling=falling)

    return check


def ordered(values: Mapping[str, float], *, falling: bool = False, **beside: Number) -> Outcome:
    """An outcome that holds if the values grow (or fall) strictly in their order.

    Example:
        >>> ordered({"a": 0.1, "b": 0.3, "c": 0.2}).holds
        False
    """
    sign = -1 if falling else 1
    steps = [
        above(f"{a} minus {b}" if falling else f"{b} minus {a}", sign * (values[b] - values[a]))
        for a, b in pairwise(values)
    ]
    return shown_as(decided(*steps), **values, **beside)


def exceeds(winner: str, values: Mapping[str, float], *, sign: int = 1) -> Outcome:
    """An outcome that holds if one value is larger (sign -1: smaller) than every other.

    Example:
        >>> exceeds("net", {"net": 0.2, "rbf": 0.1}).holds
        True
    """
    gaps = [
        above(
            f"{winner} minus {label}" if sign > 0 else f"{label} minus {winner}",
            sign * (values[winner] - value),
        )
        for label, value in values.items()
        if label != winner
    ]
    return shown_as(decided(*gaps), **values)


def largest(winner: str, numbers: Mapping[str, str]) -> Check:
    """One of the numbers is larger than every other.

    Example:
        >>> from theodolite_papers.ledger import Result
        >>> runs = Results((Result({"area_net": 0.2, "area_rbf": 0.1}),))
        >>> largest("net", named("net", "rbf", prefix="area_"))(runs).holds
        True
    """
    return _extreme(winner, numbers, sign=1)


def smallest(winner: str, numbers: Mapping[str, str]) -> Check:
    """One of the numbers is smaller than every other."""
    return _extreme(winner, numbers, sign=-1)


def _extreme(winner: str, numbers: Mapping[str, str], sign: int) -> Check:
    def check(runs: Results) -> Outcome:
        return exceeds(winner, runs.means(numbers), sign=sign)

    return check


def provided(premise: Callable[[Results], bool], check: Check) -> Check:
    """A check that decides nothing if its premise is not met."""

    def checked(runs: Results) -> Outcome:
        found = check(runs)
        return found if premise(runs) else Outcome(None, found.numbers, found.conditions)

    return checked
