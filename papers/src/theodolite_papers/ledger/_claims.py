"""Claims about results, and the conditions that decide them.

A *run* of a study gives a :class:`Result`. The *check* of a :class:`Claim` turns results into an
:class:`Outcome`: whether the claim holds on these runs, with the :class:`Condition` that decides
it. A condition is a number and its bounds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from theodolite_papers.ledger._results import LARGE, Number, Numbers, Results
from theodolite_papers.ledger._statistics import fisher_interval, pass_rate, student_interval

__all__ = [
    "CORRELATION",
    "RATIO",
    "SHARE",
    "Check",
    "Claim",
    "Condition",
    "Outcome",
    "Scope",
    "above",
    "all_of",
    "below",
    "decided",
    "inside",
    "mean_condition",
    "merged",
    "outcome",
    "rank_condition",
    "share_condition",
    "shown_as",
]

Scope = Literal["run", "seed", "all"]
# Possible values, where an interval ends. Intervals of ratios are computed from logarithms.
CORRELATION, SHARE, RATIO = (-1.0, 1.0), (0.0, 1.0), (0.0, math.inf)


@dataclass(frozen=True)
class Condition:
    """A number that must lie between two bounds for a claim to hold.

    Args:
        name: of the number.
        value: on these runs.
        low: the number must be larger.
        high: the number must be smaller.
        strict: whether the bounds themselves are outside.
        interval: 95 % interval of the value, where the check has one of its own, over networks or
            examples.
        unit: what that interval is over, such as "26 networks".
        possible: the least and the largest value that there can be; an interval ends there.
    """

    name: str
    value: float
    low: float = -math.inf
    high: float = math.inf
    strict: bool = True
    interval: tuple[float, float] | None = None
    unit: str = ""
    possible: tuple[float, float] = (-math.inf, math.inf)

    @property
    def holds(self) -> bool:
        """Whether the value lies between the bounds; never where it is undefined.

        Of equal bounds: whether its own interval contains them.
        """
        if self.low == self.high and self.interval is not None:
            return self.interval[0] <= self.low <= self.interval[1]
        if self.strict:
            return self.low < self.value < self.high
        return self.low <= self.value <= self.high

    @property
    def bounds(self) -> str:
        """``above 0.9``, ``at most 0.05``, ``0.4 to 0.8``."""
        more, less = ("above", "below") if self.strict else ("at least", "at most")
        if self.low == self.high:
            return f"equal to {self.low:.3g}"
        if math.isinf(self.high):
            return f"{more} {self.low:.3g}"
        if math.isinf(self.low):
            return f"{less} {self.high:.3g}"
        return f"{self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True)
class Outcome:
    """Whether a claim holds on some runs, with the numbers that decided.

    Args:
        holds: None where these runs cannot decide it.
        numbers: what was measured, by name.
        conditions: what must be met, all of them.
        members: whether it holds on each network, where the claim is about single networks and a
            run has several.
    """

    holds: bool | None
    numbers: Mapping[str, float]
    conditions: tuple[Condition, ...] = ()
    members: tuple[bool, ...] = ()


Check = Callable[[Results], Outcome]


@dataclass(frozen=True)
class Claim:
    """A statement that can fail.

    Args:
        id: ``"<study>.<name>"``.
        text: the statement, with its threshold.
        check: runs -> outcome. It sees the runs of its scope alone.
        scope: "run" (each record by itself), "seed" (all points of a seed together) or "all".
        sizes: where it is judged; elsewhere its numbers are reported without a verdict.
        published: the paper's value of a judged number, by the number's name.
        fragile: why the paper's sentence may not be expected to hold, if so.
        unit: "network" where an interval over the runs of a single seed makes sense, since each is
            a network of its own; "calculation" where nothing is
            random, or an identity is checked up to rounding.
        kept: the runs that the check looks at, where it leaves some aside; these are counted.
        premise: what must have come about for anything to be decided.
        apart: whether each condition is a comparison of its own, such as one for each data set, or
            for each reading of the paper's words: met by some and missed by others is mixed.
    """

    id: str
    text: str
    check: Check
    scope: Scope = "run"
    sizes: tuple[str, ...] = ("lite", *LARGE)
    published: Mapping[str, Number] = field(default_factory=dict)
    fragile: str = ""
    unit: Literal["", "network", "calculation"] = ""
    kept: Callable[[Results], Results] | None = None
    premise: str = ""
    apart: bool = False


def outcome(holds: bool | np.bool | None, **numbers: Number) -> Outcome:
    """An outcome without conditions: it only reports numbers.

    Example:
        >>> outcome(None, cases=2).holds is None
        True
    """
    found = None if holds is None else bool(holds)
    return Outcome(found, {name: float(value) for name, value in numbers.items()})


def decided(
    *conditions: Condition, premise: bool | np.bool | Number = True, **numbers: Number
) -> Outcome:
    """An outcome that holds if all conditions hold; None if its premise is not met.

    Example:
        >>> decided(above("gain", 0.7 - 0.5), trained=0.7, initial=0.5).holds
        True
    """
    shown = {one.name: float(one.value) for one in conditions}
    shown |= {name: float(value) for name, value in numbers.items()}
    holds = all(one.holds for one in conditions) if premise else None
    return Outcome(holds, shown, conditions)


def above(
    name: str,
    value: Number,
    bound: Number = 0.0,
    *,
    strict: bool = True,
    possible: tuple[float, float] = (-math.inf, math.inf),
) -> Condition:
    """The condition that a number is larger than a bound."""
    return Condition(name, float(value), low=float(bound), strict=strict, possible=possible)


def below(
    name: str,
    value: Number,
    bound: Number = 0.0,
    *,
    strict: bool = True,
    possible: tuple[float, float] = (-math.inf, math.inf),
) -> Condition:
    """The condition that a number is smaller than a bound."""
    return Condition(name, float(value), high=float(bound), strict=strict, possible=possible)


def inside(
    name: str,
    value: Number,
    low: Number,
    high: Number,
    *,
    strict: bool = True,
    possible: tuple[float, float] = (-math.inf, math.inf),
) -> Condition:
    """The condition that a number lies between two bounds."""
    return Condition(name, float(value), float(low), float(high), strict, possible=possible)


def mean_condition(name: str, values: Numbers, units: str) -> Condition:
    """The condition that a mean over networks or examples is positive, with its 95 % interval.

    Example:
        >>> mean_condition("gain", [0.9, 1.1, 1.0], "pairs").unit
        '3 pairs'
    """
    found = np.asarray(values, dtype=np.float64)
    mean, error = float(found.mean()), math.nan
    if len(found) > 1:
        error = float(found.std(ddof=1)) / math.sqrt(len(found))
    interval = student_interval(mean, error, len(found))
    return Condition(name, mean, low=0.0, interval=interval, unit=f"{len(found)} {units}")


def share_condition(
    name: str,
    held: Sequence[bool] | np.ndarray,
    bound: float,
    *,
    strict: bool = False,
    units: str = "networks",
) -> Condition:
    """The condition that a share of networks is large, with its exact interval.

    Example:
        >>> [round(end, 2) for end in share_condition("share", [True] * 46, 0.9).interval]
        [0.94, 1.0]
    """
    passed, count = int(np.sum(held)), len(held)
    interval = pass_rate(passed, count)
    unit = f"{count} {units}"
    return Condition(name, passed / count, bound, strict=strict, interval=interval, unit=unit)


def rank_condition(name: str, rank: float, count: int, bound: float) -> Condition:
    """The condition that a rank correlation over networks is large, with Fisher's 95 % interval."""
    interval = fisher_interval(rank, count, inflation=1.03)
    return Condition(name, rank, bound, strict=False, interval=interval, unit=f"{count} networks")


def merged(parts: Mapping[str, Outcome]) -> Outcome:
    """One outcome from those of several data sets, which must all hold; names get a prefix."""
    conditions = [
        replace(one, name=f"{label} {one.name}" if label else one.name)
        for label, part in parts.items()
        for one in part.conditions
    ]
    numbers = {
        f"{label}_{name}" if label else name: value
        for label, part in parts.items()
        for name, value in part.numbers.items()
    }
    if not parts:
        return outcome(None, data_sets=0)
    holds = all_of([part.holds for part in parts.values()])
    return Outcome(holds, numbers, tuple(conditions))


def shown_as(found: Outcome, **numbers: Number) -> Outcome:
    """The same outcome, shown with other numbers."""
    return Outcome(found.holds, {k: float(v) for k, v in numbers.items()}, found.conditions)


def all_of(found: Sequence[bool | None]) -> bool | None:
    """False if one of them is, None if one of the others is undecided, else True."""
    return False if False in found else None if None in found else True
