"""Results of runs, claims about them, and verdicts.

A *run* of a study leaves a :class:`Result`. A :class:`Claim` has a *check*: results -> an
:class:`Outcome`, which says whether the claim holds on these runs, and by which numbers. To *judge*
a claim is to apply its check to every part of the results that it is about, which gives a
:class:`Verdict`. Checks that many studies need are made by the functions at the end of this file.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain, combinations_with_replacement, pairwise
from operator import getitem
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from theodolite.errors import UnknownNameError

__all__ = [
    "DECIDED",
    "LARGE",
    "Check",
    "Claim",
    "Measured",
    "Number",
    "Outcome",
    "Result",
    "Results",
    "Verdict",
    "all_of",
    "between",
    "clearly_positive",
    "correlation_interval",
    "correlation_threshold",
    "counted",
    "in_order",
    "judge_claim",
    "largest",
    "named",
    "outcome",
    "pearson",
    "provided",
    "run_label",
    "smallest",
    "spearman",
    "within",
]

Number = float | int | np.number[Any]
Numbers = Sequence[float] | np.ndarray
Scope = Literal["run", "seed", "all"]
LARGE = ("reduced", "published")  # sizes on the paper's own data
DECIDED = ("holds", "fails", "mixed")  # statuses of a verdict that the runs decide
_ROUNDING = 8 * np.finfo(np.float64).eps  # of the largest number: what varies less is constant
_ENUMERATED, _DRAWS = 5, 200  # of seeds: all draws up to the first number, beyond the second


@dataclass(frozen=True)
class Measured:
    """What the function of a study returns: named numbers, and arrays for its figure.

    Args:
        numbers: name -> value; nan where it is undefined.
        arrays: name -> small array (float32 is enough for a picture).
        notes: name -> text, such as which data set stood in.
    """

    numbers: Mapping[str, Number]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result(Measured):
    """A run: what was measured, and where.

    Args:
        point: settings of a sweep; empty if nothing was swept.
        seed: of the run.
        size: "smoke", "lite", "reduced" or "published".
        seconds: how long it took by the clock.
        processor_seconds: how long its process computed on the CPU; nan if not known.
        config: every setting, as plain data.
        claims: digest of the study's claims when it was made. This and what follows is empty in
            records before version 0.2.0.
        commit: of the code.
        device: where networks were trained, with its name.
        threads: of the process.
    """

    point: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    size: str = ""
    seconds: float = 0.0
    processor_seconds: float = math.nan
    config: Mapping[str, Any] = field(default_factory=dict)
    claims: str = ""
    commit: str = ""
    device: str = ""
    threads: int = 0

    def __getitem__(self, name: str) -> float:
        """One number."""
        if name not in self.numbers:
            raise UnknownNameError("number", name, self.numbers)
        return float(self.numbers[name])


@dataclass(frozen=True)
class Results:
    """Runs of one study, in order of point and seed."""

    runs: tuple[Result, ...]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, name: str) -> np.ndarray:
        """One number of every run."""
        return np.array([run[name] for run in self.runs], dtype=np.float64)

    @property
    def first(self) -> Result:
        """The first run; the only one where a claim is about single runs."""
        return self.runs[0]

    def array(self, name: str) -> np.ndarray:
        """One array of every run, stacked along a new first axis."""
        return np.stack([run.arrays[name] for run in self.runs])

    def mean(self, name: str) -> float:
        """One number averaged over the runs."""
        return float(self[name].mean())

    def means(self, names: Mapping[str, str]) -> dict[str, float]:
        """Label -> mean over the runs, from label -> name of a number."""
        return {label: self.mean(name) for label, name in names.items()}

    def where(self, **settings: Any) -> "Results":
        """The runs whose point has these settings."""
        return self.chosen(lambda run: all(run.point.get(k) == v for k, v in settings.items()))

    def chosen(self, keep: Callable[[Result], bool]) -> "Results":
        """The runs that ``keep`` accepts."""
        return Results(tuple(run for run in self.runs if keep(run)))

    def by_seed(self) -> Mapping[int, "Results"]:
        """The runs of each seed."""
        seeds: Sequence[int] = sorted({run.seed for run in self.runs})
        return {s: Results(tuple(run for run in self.runs if run.seed == s)) for s in seeds}

    @cached_property
    def resamples(self) -> Sequence[tuple["Results", float]]:
        """As many seeds drawn with replacement, many times, with the weight of each draw.

        Up to five seeds every draw is there with its probability; beyond, 200 are drawn. A seed
        that was drawn twice counts as two. The claims of a study share the draws.
        """
        parts = list(self.by_seed().values())
        count = len(parts)
        if count <= _ENUMERATED:
            draws = list(combinations_with_replacement(range(count), count))
            ways = [
                math.factorial(count) / math.prod(math.factorial(draw.count(k)) for k in set(draw))
                for draw in draws
            ]
        else:
            generator = np.random.default_rng(0)
            draws = [tuple(generator.integers(0, count, count).tolist()) for _ in range(_DRAWS)]
            ways = [1.0] * _DRAWS
        placed = [  # place in the draw, part -> its runs with the place as their seed
            [tuple(replace(run, seed=place) for run in part) for part in parts]
            for place in range(count)
        ]
        drawn = [Results(tuple(chain(*map(getitem, placed, draw)))) for draw in draws]
        return list(zip(drawn, ways, strict=True))


@dataclass(frozen=True)
class Outcome:
    """Whether a claim holds on some runs, with the numbers that decided.

    Args:
        holds: None where these runs cannot decide it.
        numbers: what was compared, by name.
    """

    holds: bool | None
    numbers: Mapping[str, float]


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
    """

    id: str
    text: str
    check: Check
    scope: Scope = "run"
    sizes: tuple[str, ...] = ("lite", *LARGE)
    published: Mapping[str, Number] = field(default_factory=dict)
    fragile: str = ""


@dataclass(frozen=True)
class Verdict:
    """What became of a claim at one size.

    Args:
        status: "holds", "fails", "mixed" (over seeds), "undecided", "reported" or "not run".
        outcomes: label of the runs ("seed 101") -> outcome.
        seeds: number of seeds behind it.
        resampled: share of resamples of the seeds, with replacement, on which the claim holds; None
            for one seed, or where nothing was decided.
        repeat: what a seed numbers.
    """

    claim: Claim
    size: str
    status: str
    outcomes: Mapping[str, Outcome]
    seeds: int = 0
    resampled: float | None = None
    repeat: str = "seed"

    def __str__(self) -> str:
        """``holds (5 seeds, 100 % of resamples)``, ``fails (1 seed)``."""
        if self.status not in DECIDED:
            return self.status
        parts = [counted(self.seeds, self.repeat)]
        if self.resampled is not None:
            parts.append(f"holds in {100 * self.resampled:.0f} % of resamples")
        return f"{self.status} ({', '.join(parts)})"


def outcome(holds: bool | np.bool | None, **numbers: Number) -> Outcome:
    """An outcome; numbers that are compared are named after what they are.

    Example:
        >>> outcome(0.7 > 0.5, trained=0.7, initial=0.5).holds
        True
    """
    decided = None if holds is None else bool(holds)
    return Outcome(decided, {name: float(value) for name, value in numbers.items()})


def counted(number: int, noun: str) -> str:
    """``1 seed``, ``5 seeds``."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


def judge_claim(claim: Claim, size: str, results: Results, repeat: str = "seed") -> Verdict:
    """Judge a claim on all runs of one size, whose seeds number repeats of this kind."""
    if not len(results):
        return Verdict(claim, size, "not run", {})
    outcomes = {label: claim.check(part) for label, part in _parts(claim.scope, results)}
    found = {one.holds for one in outcomes.values()}
    if size not in claim.sizes:
        status = "reported"
    elif found in ({True}, {False}):
        status = "holds" if found == {True} else "fails"
    else:
        status = "mixed" if {True, False} <= found else "undecided"
    share = _resampled(claim, results) if status in DECIDED else None
    return Verdict(claim, size, status, outcomes, len(results.by_seed()), share, repeat)


def _resampled(claim: Claim, results: Results) -> float | None:
    """How often a claim holds when as many seeds are drawn with replacement."""
    parts = list(results.by_seed().values())
    if len(parts) < 2:
        return None
    if claim.scope != "all":
        held = [all(claim.check(part).holds for _, part in _parts(claim.scope, p)) for p in parts]
        return float(np.mean(held)) ** len(parts)
    held = [bool(claim.check(drawn).holds) for drawn, _ in results.resamples]
    return float(np.average(held, weights=[weight for _, weight in results.resamples]))


def _parts(scope: Scope, results: Results) -> list[tuple[str, Results]]:
    if scope == "all":
        return [("all runs", results)]
    if scope == "seed":
        return [(f"seed {seed}", part) for seed, part in results.by_seed().items()]
    return [(run_label(run.seed, run.point), Results((run,))) for run in results]


def run_label(seed: int, point: Mapping[str, object]) -> str:
    """What a run is called where it is told of: its seed, and its settings if any."""
    settings = ", ".join(f"{name} {value}" for name, value in point.items())
    return f"seed {seed}, {settings}" if settings else f"seed {seed}"


# Checks that many studies need. Numbers are means over the runs that a claim is about: where it is
# about single runs, those of the run. They are given as label -> name of the number in the records.


def named(*labels: str, prefix: str = "", suffix: str = "") -> dict[str, str]:
    """Label -> name, where names are labels with something before or after.

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
        >>> between({"share": "share_a"}, low=0.5)(Results((Result({"share_a": 0.7}),)))
        Outcome(holds=True, numbers={'share': 0.7})
    """

    def check(runs: Results) -> Outcome:
        values = runs.means(numbers)
        holds = all(low < value < high for value in values.values())
        return outcome(holds, **values, **runs.means(named(*beside)))

    return check


def within(
    numbers: Mapping[str, str],
    low: float = -math.inf,
    high: float = math.inf,
    beside: Mapping[str, str] | None = None,
) -> Check:
    """Every number lies between two bounds, or on one; those of ``beside`` are only shown.

    Example:
        >>> within({"share": "share_a"}, low=0.5)(Results((Result({"share_a": 0.5}),))).holds
        True
    """

    def check(runs: Results) -> Outcome:
        values = runs.means(numbers)
        holds = all(low <= value <= high for value in values.values())
        return outcome(holds, **values, **runs.means(beside or {}))

    return check


def in_order(numbers: Mapping[str, str], *, falling: bool = False) -> Check:
    """The numbers grow (or fall) strictly in the order in which they are named.

    Example:
        >>> runs = Results((Result({"area_1": 0.2, "area_2": 0.3}),))
        >>> in_order(named("1", "2", prefix="area_"))(runs).holds
        True
    """

    def check(runs: Results) -> Outcome:
        values = runs.means(numbers)
        steps = [b - a for a, b in pairwise(values.values())]
        return outcome(max(steps) < 0 if falling else min(steps) > 0, **values)

    return check


def largest(winner: str, numbers: Mapping[str, str]) -> Check:
    """One of the numbers is larger than every other.

    Example:
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
        values = runs.means(numbers)
        others = [sign * value for label, value in values.items() if label != winner]
        return outcome(sign * values[winner] > max(others), **values)

    return check


def provided(premise: Callable[[Results], bool], check: Check) -> Check:
    """A check that decides nothing where its premise did not come about."""

    def checked(runs: Results) -> Outcome:
        found = check(runs)
        return found if premise(runs) else Outcome(None, found.numbers)

    return checked


def clearly_positive(differences: Numbers) -> bool | None:
    """Whether the mean is positive, or negative (False), by two standard errors; None within them.

    Example:
        >>> clearly_positive([0.9, 1.1, 1.0]), clearly_positive([1.0, -0.9, 0.1])
        (True, None)
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    mean, error = values.mean(), values.std(ddof=1) / math.sqrt(len(values))
    return None if abs(mean) <= 2 * error else bool(mean > 0)


def all_of(found: Sequence[bool | None]) -> bool | None:
    """False if one of them is, None if one of the others is undecided, else True."""
    return False if False in found else None if None in found else True


def spearman(first: Numbers, second: Numbers) -> float:
    """Rank correlation of the finite pairs, equal values sharing the mean of their ranks.

    nan for fewer than two pairs or a constant list.
    """
    from scipy.stats import rankdata  # a second to import

    return _correlation(first, second, rankdata)


def pearson(first: Numbers, second: Numbers) -> float:
    """Linear correlation of the finite pairs; nan for fewer than two or a constant list."""
    return _correlation(first, second, np.asarray)


def _correlation(
    first: Numbers, second: Numbers, read: Callable[[np.ndarray], np.ndarray]
) -> float:
    pair = np.array([first, second], dtype=np.float64)
    a, b = pair[:, np.isfinite(pair).all(0)]
    if len(a) < 2 or any(np.ptp(v) <= _ROUNDING * np.abs(v).max() for v in (a, b)):
        return math.nan
    return float(np.corrcoef(read(a), read(b))[0, 1])


def correlation_threshold(runs: int, level: float = 0.05) -> float:
    r"""Smallest absolute correlation over so many runs that is significant, two-sided.

    .. math:: |r| > \frac{t}{\sqrt{m - 2 + t^2}}

    with :math:`t` the quantile of Student's distribution with m - 2 degrees of freedom; nan for
    two runs, which always correlate perfectly.

    Example:
        >>> round(correlation_threshold(36), 3), round(correlation_threshold(36, level=0.01), 3)
        (0.329, 0.424)
    """
    t = float(stdtrit(runs - 2, 1 - level / 2)) if runs > 2 else math.nan
    return t / math.sqrt(runs - 2 + t * t)


@cache
def _draws_of(groups: int, draws: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    return np.array([generator.choice(groups, groups) for _ in range(draws)])


def correlation_interval(
    first: np.ndarray, second: np.ndarray, groups: np.ndarray, draws: int = 1000
) -> tuple[float, float, float]:
    """Linear correlation with a 95 % bootstrap interval; whole groups are drawn.

    Networks of one group (a seed) share their data and their first draw, so that they are not
    independent. One group has no interval: its ends are nan.
    """
    names = np.unique(groups)
    if len(names) < 2:
        return pearson(first, second), math.nan, math.nan
    keep = np.isfinite(first) & np.isfinite(second)
    x, y, member = first[keep], second[keep], groups[keep][:, None] == names
    # Of every group the sums that a correlation needs; a draw adds those of its groups.
    moments = member.T.astype(float) @ np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)
    n, sx, sy, sxx, syy, sxy = moments[_draws_of(len(names), draws)].sum(1).T
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (n * sxy - sx * sy) / np.sqrt((n * sxx - sx**2) * (n * syy - sy**2))
    low, high = np.nanquantile(found, [0.025, 0.975])
    return pearson(first, second), float(low), float(high)
