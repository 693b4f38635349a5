"""Verdicts on claims at one size.

A claim is *judged* in two steps. Its check is applied to every part of the results that it is
about. Then each condition's number gets a 95 % interval over seeds. "fails" needs an interval that
excludes the claim. A difference within the noise is undecided.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from theodolite_papers.ledger._claims import RATIO, Claim, Condition, Outcome, Scope, all_of
from theodolite_papers.ledger._results import Result, Results, counted, run_label
from theodolite_papers.ledger._statistics import pass_rate, student_interval

__all__ = ["DECIDED", "ONE_SEED", "Decider", "Verdict", "judge_claim"]

DECIDED = ("holds", "fails", "mixed")  # statuses of a verdict that the runs decide
ONE_SEED = "one seed"
_SIGN_TEST = 5  # this many agreeing seeds show that more than half of all seeds would agree


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
    """The verdict on a claim at one size.

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
            noun = "runs"
            if self.claim.apart:
                held = [c.holds for one in self.outcomes.values() for c in one.conditions]
                noun = "comparisons"
            if len(set(held)) > 1:
                return f"one {self.repeat}: holds in {sum(held)} of {len(held)} {noun}"
            if held[0]:
                return f"one {self.repeat}: holds"
            return f"one {self.repeat}: {self.reason or 'does not hold'}"
        if self.status == "undecided" and self.reason:
            return f"undecided ({self.reason})"
        if self.status not in (*DECIDED, "undecided"):
            return self.status
        support = self.support()
        return f"{self.status} ({support})" if support else self.status

    def support(self) -> str:
        """Unit, number, and the exact bound on the pass rate, in a few words."""
        if self.claim.unit == "calculation":
            return "an identity or a calculation, seeds do not matter"
        if self.seeds < 2:
            if self.decider is None or self.decider.unit == counted(self.seeds, self.repeat):
                return counted(self.seeds, self.repeat)
            return f"{self.decider.unit} of one {self.repeat}"
        if self.passed is None:
            return f"over {counted(self.seeds, self.repeat)}"
        if self.open:
            decide, do = self.seeds - self.open, "does" if self.open == 1 else "do"
            noun = f"{counted(decide, self.repeat)} that decide{'s' if decide == 1 else ''}"
            return f"{self.passed} of {noun}; {self.open} {do} not"
        text = f"{self.passed} of {counted(self.seeds, self.repeat)}"
        measured = self.decider is not None and math.isfinite(self.decider.low)
        if self.status == "undecided" and measured and self.passed in (0, self.seeds):
            return f"{text}, but the interval reaches the other side of the bound"
        low, high = pass_rate(self.passed, self.seeds)
        if self.passed == self.seeds:
            return f"{text}, pass rate at least {100 * low:.0f} %"
        if self.passed == 0:
            return f"{text}, pass rate at most {100 * high:.0f} %"
        return f"{text}, pass rate {100 * low:.0f} to {100 * high:.0f} %"


def judge_claim(
    claim: Claim, size: str, results: Results, repeat: str = "seed", *, excuse: str = ""
) -> Verdict:
    """Judge a claim on all runs of one size.

    Args:
        claim: what is judged.
        size: of the runs.
        results: the runs.
        repeat: what a seed numbers.
        excuse: why missing the bound does not fail the claim, such as "misses a bound that we set".
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
        premise = f"a condition was not met: {claim.premise}"
        reason = premise if claim.premise else "these runs cannot decide it"
    missed = not any(one.holds for one in outcomes.values())
    if excuse and (status in ("fails", "mixed") or (status == ONE_SEED and missed)):
        status = ONE_SEED if status == ONE_SEED else "undecided"
        reason = excuse if missed else f"{excuse} on some runs"
    if size not in claim.sizes:
        status = "reported"
    if held is None or claim.apart:
        passed, undecided = None, 0
    else:
        passed, undecided = held.count(True), held.count(None)
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
    """Runs that repeat each other: the seeds of one point, if each run is judged separately."""
    if claim.scope != "run" or (claim.unit == "network" and len(results.by_seed()) == 1):
        return [results]
    points: dict[str, list[Result]] = {}
    for run in results:
        points.setdefault(run_label(0, run.point), []).append(run)
    return [Results(tuple(runs)) for runs in points.values()]


@dataclass(frozen=True)
class _Group:
    """The outcomes of the repeats of one setting.

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
            places = [place for _, place, _ in conditions]
            status = _status(found, places, count)
            if claim.apart and None not in found:
                each = zip(*(one.conditions for one in outcomes), strict=True)
                status = _combined(
                    [
                        _status([one.holds for one in same], [place], count)
                        for same, place in zip(each, places, strict=True)
                    ]
                )
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
        clear = set(places) == {"inside"} if known else agree
        return "holds" if clear else "undecided"
    if not any(found):
        # If seeds agree and no interval excludes the claim, the claim does not fail.
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
    """Order of conditions: failed, within the noise, met; then by the distance from the bound."""
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
        mean, interval = _mean_of(np.array([one.value for one in same]), first.possible)
        found.append(_placed(_loosest(same), mean, interval, unit))
    return found


def _mean_of(
    values: np.ndarray, possible: tuple[float, float]
) -> tuple[float, tuple[float, float]]:
    """Mean with its interval; of ratios, which vary by factors, the geometric one."""
    if possible == RATIO and (values > 0).all():
        middle, (low, high) = _mean_of(np.log(values), (-math.inf, math.inf))
        return math.exp(middle), (math.exp(low), math.exp(high))
    mean, error = float(values.mean()), math.nan
    if len(values) > 1:
        error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean, student_interval(mean, error, len(values))


def _loosest(same: Sequence[Condition]) -> Condition:
    """One condition for repeats with slightly different bounds, such as chance levels."""
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
        found.append(_placed(one, one.value, student_interval(one.value, error, count), unit))
    return found


def _placed(
    condition: Condition, value: float, interval: tuple[float, float], unit: str
) -> tuple[Decider, str, float]:
    """A condition with its interval: inside the bounds, outside, around one, or unknown."""
    low, high = (float(np.clip(end, *condition.possible)) for end in interval)
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
