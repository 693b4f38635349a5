"""Results of runs, claims about them, and verdicts.

A *run* of a study leaves a :class:`Result`. A :class:`Claim` has a *check*: results -> an
:class:`Outcome`, which says whether the claim holds on these runs, and by which
:class:`Condition`: a number and its bounds. To *judge* a claim is to apply its check to every part
of the results that it is about, and to put a 95 % interval over seeds around each condition's
number. That gives a :class:`Verdict`. "fails" needs an interval that excludes the claim: what lies
inside the noise is undecided. Checks that many studies need are made by the functions at the end of
this file.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from scipy.special import betaincinv, stdtrit

from theodolite.errors import UnknownNameError

__all__ = [
    "DECIDED",
    "LARGE",
    "Check",
    "Claim",
    "Condition",
    "Decider",
    "Measured",
    "Number",
    "Outcome",
    "Result",
    "Results",
    "Verdict",
    "above",
    "all_of",
    "below",
    "between",
    "correlation_interval",
    "correlation_threshold",
    "counted",
    "decided",
    "exceeds",
    "in_order",
    "inside",
    "judge_claim",
    "largest",
    "mean_condition",
    "merged",
    "named",
    "ordered",
    "outcome",
    "pass_rate",
    "pearson",
    "provided",
    "rank_condition",
    "run_label",
    "share_condition",
    "shown_as",
    "smallest",
    "spearman",
    "within",
]

Number = float | int | np.number[Any]
Numbers = Sequence[float] | np.ndarray
Scope = Literal["run", "seed", "all"]
LARGE = ("reduced", "published")  # sizes on the paper's own data
DECIDED = ("holds", "fails", "mixed")  # statuses of a verdict that the runs decide
ONE_SEED = "one seed"
_ROUNDING = 8 * np.finfo(np.float64).eps  # of the largest number: what varies less is constant
_LEVEL = 0.05  # of intervals and bounds
_SIGN_TEST = 5  # so many agreeing seeds show by themselves that more than half would agree


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

    def without_each(self, networks: bool = False) -> list["Results"]:
        """The runs without those of one seed, for every seed; or without one run, for every run."""
        if networks:
            runs = self.runs
            return [Results(runs[:k] + runs[k + 1 :]) for k in range(len(runs))]
        seeds = sorted({run.seed for run in self.runs})
        return [Results(tuple(run for run in self.runs if run.seed != s)) for s in seeds]


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
        limit: the largest absolute value that there can be: 1 of a correlation.
    """

    name: str
    value: float
    low: float = -math.inf
    high: float = math.inf
    strict: bool = True
    interval: tuple[float, float] | None = None
    unit: str = ""
    limit: float = math.inf

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
            a network of its own; "calculation" where nothing is random.
        kept: the runs that the check looks at, where it leaves some aside; these are counted.
        premise: what must have come about for anything to be decided.
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


@dataclass(frozen=True)
class Decider:
    """The number that decided a verdict.

    Args:
        name: of the number.
        value: over all units.
        low: lower end of its 95 % interval; nan where there is none.
        high: upper end.
        bounds: what the claim asks of it, such as "above 0.9".
        unit: what the interval is over, such as "5 seeds".
    """

    name: str
    value: float
    low: float
    high: float
    bounds: str
    unit: str


@dataclass(frozen=True)
class Verdict:
    """What became of a claim at one size.

    Args:
        status: "holds", "fails", "mixed", "undecided", "one seed", "reported" or "not run".
        outcomes: label of the runs ("seed 101") -> outcome.
        seeds: number of seeds behind it.
        passed: number of seeds on which it holds; None where it is about all runs together.
        open: number of seeds that cannot decide it.
        decider: the number that decided, or would have; None where the claim has no conditions.
        repeat: what a seed numbers.
        reason: why nothing was decided, where that is not the noise.
    """

    claim: Claim
    size: str
    status: str
    outcomes: Mapping[str, Outcome]
    seeds: int = 0
    passed: int | None = None
    open: int = 0
    decider: Decider | None = None
    repeat: str = "seed"
    reason: str = ""

    def __str__(self) -> str:
        """``holds (5 of 5 seeds, pass rate at least 55 %)``, ``one seed: holds``."""
        if self.status == ONE_SEED:
            held = [bool(one.holds) for one in self.outcomes.values()]
            if len(set(held)) > 1:
                return f"one {self.repeat}: holds in {sum(held)} of {len(held)} runs"
            if held[0]:
                return f"one {self.repeat}: holds"
            return (
                f"one {self.repeat}: {'misses a bound of ours' if self.reason else 'does not hold'}"
            )
        if self.status == "undecided" and self.reason:
            return f"undecided ({self.reason})"
        if self.status not in (*DECIDED, "undecided"):
            return self.status
        support = self.support()
        return f"{self.status} ({support})" if support else self.status

    def support(self) -> str:
        """Unit, number, and the exact bound on the pass rate, in a few words."""
        if self.claim.unit == "calculation":
            return "a calculation, nothing is random"
        if self.seeds < 2:
            return self.decider.unit if self.decider else counted(self.seeds, self.repeat)
        if self.passed is None:
            return f"over {counted(self.seeds, self.repeat)}"
        if self.open:
            decide, do = self.seeds - self.open, "does" if self.open == 1 else "do"
            noun = f"{counted(decide, self.repeat)} that decide{'s' if decide == 1 else ''}"
            return f"{self.passed} of {noun}; {self.open} {do} not"
        text = f"{self.passed} of {counted(self.seeds, self.repeat)}"
        low, high = pass_rate(self.passed, self.seeds)
        if self.passed == self.seeds:
            return f"{text}, pass rate at least {100 * low:.0f} %"
        if self.passed == 0:
            return f"{text}, pass rate at most {100 * high:.0f} %"
        return f"{text}, pass rate {100 * low:.0f} to {100 * high:.0f} %"


def pass_rate(passed: int, of: int) -> tuple[float, float]:
    """Exact (Clopper-Pearson) 95 % bounds on the share of seeds on which a claim holds.

    One-sided where all or none passed.

    Example:
        >>> [round(bound, 2) for bound in pass_rate(5, 5)], round(pass_rate(2, 2)[0], 2)
        ([0.55, 1.0], 0.22)
    """
    level = _LEVEL if passed in (0, of) else _LEVEL / 2
    low = 0.0 if passed == 0 else float(betaincinv(passed, of - passed + 1, level))
    high = 1.0 if passed == of else float(betaincinv(passed + 1, of - passed, 1 - level))
    return low, high


def outcome(holds: bool | np.bool | None, **numbers: Number) -> Outcome:
    """An outcome without conditions: one that only reports, or that has no number to bound.

    Example:
        >>> outcome(None, cases=2).holds is None
        True
    """
    found = None if holds is None else bool(holds)
    return Outcome(found, {name: float(value) for name, value in numbers.items()})


def decided(
    *conditions: Condition, premise: bool | np.bool | Number = True, **numbers: Number
) -> Outcome:
    """An outcome that holds if all conditions do; None where its premise did not come about.

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
    limit: float = math.inf,
) -> Condition:
    """The condition that a number is larger than a bound."""
    return Condition(name, float(value), low=float(bound), strict=strict, limit=limit)


def below(
    name: str,
    value: Number,
    bound: Number = 0.0,
    *,
    strict: bool = True,
    limit: float = math.inf,
) -> Condition:
    """The condition that a number is smaller than a bound."""
    return Condition(name, float(value), high=float(bound), strict=strict, limit=limit)


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
    interval = _student(mean, error, len(found))
    return Condition(name, mean, low=0.0, interval=interval, unit=f"{len(found)} {units}")


def share_condition(name: str, held: Sequence[bool] | np.ndarray, bound: float) -> Condition:
    """The condition that a share of networks is large, with its exact interval.

    Example:
        >>> [round(end, 2) for end in share_condition("share", [True] * 46, 0.9).interval]
        [0.94, 1.0]
    """
    passed, count = int(np.sum(held)), len(held)
    interval = pass_rate(passed, count)
    unit = f"{count} networks"
    return Condition(name, passed / count, bound, strict=False, interval=interval, unit=unit)


def rank_condition(name: str, rank: float, count: int, bound: float) -> Condition:
    """The condition that a rank correlation over networks is large, with Fisher's 95 % interval."""
    half = 1.96 * 1.03 / math.sqrt(count - 3) if count > 3 else math.inf
    centre = math.atanh(min(max(rank, -0.999999), 0.999999))
    interval = math.tanh(centre - half), math.tanh(centre + half)
    return Condition(name, rank, bound, strict=False, interval=interval, unit=f"{count} networks")


def merged(parts: Mapping[str, Outcome]) -> Outcome:
    """One outcome from those of several data sets: all must hold; names get theirs in front."""
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


def inside(
    name: str,
    value: Number,
    low: Number,
    high: Number,
    *,
    strict: bool = True,
    limit: float = math.inf,
) -> Condition:
    """The condition that a number lies between two bounds."""
    return Condition(name, float(value), float(low), float(high), strict, limit=limit)


def counted(number: int, noun: str) -> str:
    """``1 seed``, ``5 seeds``."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


def judge_claim(
    claim: Claim, size: str, results: Results, repeat: str = "seed", *, own_bound: bool = False
) -> Verdict:
    """Judge a claim on all runs of one size.

    Args:
        claim: what is judged.
        size: of the runs.
        results: the runs.
        repeat: what a seed numbers.
        own_bound: whether the bound is ours and not the paper's: missing it never fails the claim.
    """
    if not len(results):
        return Verdict(claim, size, "not run", {})
    outcomes = {label: claim.check(part) for label, part in _parts(claim.scope, results)}
    seeds = len(results.by_seed())
    members = [held for one in outcomes.values() for held in one.members]
    if members:
        return _of_networks(claim, size, outcomes, members)
    held = None if claim.scope == "all" else _by_seed(claim, results, outcomes)
    groups = [_Group.of(claim, results, part, repeat) for part in _groups(claim, results)]
    decider = min((d for group in groups for d in group.deciders), key=_rank, default=None)
    shown = None if decider is None else decider[0]
    status = _combined([group.status for group in groups])
    reason = ""
    if all(one.holds is None for one in outcomes.values()):
        missed = f"its premise did not come about: {claim.premise}"
        reason = missed if claim.premise else "these runs cannot decide it"
    if own_bound and status in ("fails", ONE_SEED) and not any(o.holds for o in outcomes.values()):
        status = "undecided" if status == "fails" else status
        reason = "it misses a bound of ours that the paper does not name"
    if size not in claim.sizes:
        status = "reported"
    passed, undecided = (None, 0) if held is None else (held.count(True), held.count(None))
    return Verdict(claim, size, status, outcomes, seeds, passed, undecided, shown, repeat, reason)


def _of_networks(
    claim: Claim, size: str, outcomes: Mapping[str, Outcome], members: Sequence[bool]
) -> Verdict:
    """The verdict on a claim about single networks: holds or fails where enough of them agree."""
    held = members.count(True)
    status = "mixed"
    if held in (0, len(members)):
        status = "undecided"
        if len(members) >= _SIGN_TEST:
            status = "holds" if held else "fails"
    if size not in claim.sizes:
        status = "reported"
    return Verdict(claim, size, status, outcomes, len(members), held, repeat="network")


def _by_seed(claim: Claim, results: Results, outcomes: Mapping[str, Outcome]) -> list[bool | None]:
    """Whether all parts of a claim hold, for each seed; None where it cannot decide."""
    found: dict[int, list[bool | None]] = {}
    for label, part in _parts(claim.scope, results):
        found.setdefault(part.first.seed, []).append(outcomes[label].holds)
    return [all_of(held) for held in found.values()]


def _groups(claim: Claim, results: Results) -> list[Results]:
    """Runs that repeat one another: the seeds of one point, where each run is judged by itself."""
    if claim.scope != "run" or (claim.unit == "network" and len(results.by_seed()) == 1):
        return [results]
    points: dict[str, list[Result]] = {}
    for run in results:
        points.setdefault(run_label(0, run.point), []).append(run)
    return [Results(tuple(runs)) for runs in points.values()]


@dataclass(frozen=True)
class _Group:
    """What repeats of one setting say about a claim.

    Args:
        status: of the claim there.
        deciders: with each, whether its interval lies on the claim's side, outside, or neither, and
            how far the value is from its bound in half-widths of the interval.
    """

    status: str
    deciders: tuple[tuple[Decider, str, float], ...]

    @classmethod
    def of(cls, claim: Claim, results: Results, part: Results, repeat: str) -> "_Group":
        networks = claim.unit == "network" and len(results.by_seed()) == 1
        if claim.scope == "all" or (networks and claim.scope == "seed"):
            part = part if claim.kept is None else claim.kept(part)
            outcomes = [claim.check(part)]
            conditions = _jackknifed(claim, part, outcomes[0], networks, repeat)
            count = len(part) if networks else len(part.by_seed())
        else:
            outcomes = [claim.check(one) for _, one in _parts(claim.scope, part)]
            unit = counted(len(outcomes), "network" if networks else repeat)
            conditions = _averaged(outcomes, unit)
            count = len(outcomes)
        found = [one.holds for one in outcomes]
        if claim.unit == "calculation":
            conditions = [
                (replace(one, low=math.nan, high=math.nan, unit="calculation"), place, distance)
                for one, place, distance in conditions
            ]
            status = {True: "holds", False: "fails", None: "undecided"}[all_of(found)]
        else:
            status = _status(found, [place for _, place, _ in conditions], count)
        return cls(status, tuple(conditions))


def _status(found: Sequence[bool | None], places: Sequence[str], count: int) -> str:
    """Status from the outcomes of repeats and the places of the conditions' intervals."""
    if None in found:
        return "mixed" if {True, False} <= set(found) else "undecided"
    known = bool(places) and "unknown" not in places
    if count < 2 and not known:
        return ONE_SEED
    agree = len(found) >= _SIGN_TEST
    if all(found):
        return "holds" if agree or (known and set(places) == {"inside"}) else "undecided"
    if not any(found):
        # Agreeing seeds without an interval that excludes the claim are no failure of the paper.
        return "fails" if "outside" in places or (agree and not places) else "undecided"
    return "mixed" if "outside" in places or (known and set(places) == {"inside"}) else "undecided"


def _combined(found: Sequence[str]) -> str:
    """Status of a claim that is about several settings, from the status at each."""
    if len(set(found)) == 1:
        return found[0]
    if "mixed" in found or {"holds", "fails"} <= set(found):
        return "mixed"
    return "undecided"


def _rank(decider: tuple[Decider, str, float]) -> tuple[int, float]:
    """Conditions that fail come first, then those inside the noise; the nearest to its bound."""
    _, place, distance = decider
    return {"outside": 0, "unknown": 1, "around": 1, "inside": 2}[place], distance


def _averaged(outcomes: Sequence[Outcome], unit: str) -> list[tuple[Decider, str, float]]:
    """The conditions of repeats: mean of each number with Student's 95 % interval."""
    found = []
    for place, first in enumerate(outcomes[0].conditions):
        if any(len(one.conditions) != len(outcomes[0].conditions) for one in outcomes):
            return []
        same = [one.conditions[place] for one in outcomes]
        if len(same) == 1 and first.interval is not None:
            found.append(_placed(first, first.value, first.interval, first.unit))
            continue
        values = np.array([one.value for one in same])
        mean, error = float(values.mean()), math.nan
        if len(values) > 1:
            error = float(values.std(ddof=1)) / math.sqrt(len(values))
        found.append(_placed(_loosest(same), mean, _student(mean, error, len(values)), unit))
    return found


def _loosest(same: Sequence[Condition]) -> Condition:
    """One condition for repeats whose bounds differ a little, as chance levels do."""
    first = same[0]
    low, high = float(np.mean([c.low for c in same])), float(np.mean([c.high for c in same]))
    return replace(first, low=low, high=high, interval=None)


def _jackknifed(
    claim: Claim, part: Results, whole: Outcome, networks: bool, repeat: str
) -> list[tuple[Decider, str, float]]:
    """The conditions on all runs: jackknife intervals over seeds, or over runs of one seed."""
    if not whole.conditions:
        return []
    known = all(one.interval is not None for one in whole.conditions)
    single = not networks and len(part.by_seed()) == 1
    left = [] if known or single else [claim.check(r) for r in part.without_each(networks)]
    count = len(left)
    unit = counted(count, "network" if networks else repeat) if count else f"1 {repeat}"
    found = []
    for place, one in enumerate(whole.conditions):
        if one.interval is not None:
            found.append(_placed(one, one.value, one.interval, one.unit))
            continue
        values = [o.conditions[place].value for o in left if len(o.conditions) > place]
        error = math.nan
        if count > 1 and len(values) == count:
            error = math.sqrt((count - 1) * float(np.var(values)))
        found.append(_placed(one, one.value, _student(one.value, error, count), unit))
    return found


def _student(mean: float, error: float, count: int) -> tuple[float, float]:
    if count < 2 or not math.isfinite(error):
        return math.nan, math.nan
    half = float(stdtrit(count - 1, 1 - _LEVEL / 2)) * error
    return mean - half, mean + half


def _placed(
    condition: Condition, value: float, interval: tuple[float, float], unit: str
) -> tuple[Decider, str, float]:
    """A condition with its interval: inside the bounds, outside, around one, or unknown."""
    low, high = (float(np.clip(end, -condition.limit, condition.limit)) for end in interval)
    margin = min(value - condition.low, condition.high - value)
    if math.isnan(low) or math.isnan(high):
        place = "unknown"
    elif condition.low == condition.high:
        place = "inside" if low <= condition.low <= high else "outside"
    elif replace(condition, value=low).holds and replace(condition, value=high).holds:
        place = "inside"
    elif high < condition.low or low > condition.high or (low == high and not condition.holds):
        place = "outside"
    else:
        place = "around"
    half = (high - low) / 2
    distance = margin / half if half > 0 else math.copysign(math.inf, margin) if margin else 0.0
    decider = Decider(condition.name, value, low, high, condition.bounds, unit)
    return decider, place, -math.inf if math.isnan(distance) else distance


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


def shown_as(found: Outcome, **numbers: Number) -> Outcome:
    """The same outcome with other numbers beside it."""
    return Outcome(found.holds, {k: float(v) for k, v in numbers.items()}, found.conditions)


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
        return exceeds(winner, runs.means(numbers), sign=sign)

    return check


def provided(premise: Callable[[Results], bool], check: Check) -> Check:
    """A check that decides nothing where its premise did not come about."""

    def checked(runs: Results) -> Outcome:
        found = check(runs)
        return found if premise(runs) else Outcome(None, found.numbers, found.conditions)

    return checked


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
