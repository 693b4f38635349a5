"""Claims: sentences of a paper as checks over measured numbers, and their verdicts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from theodolite_papers.ledger._results import Number, Results

__all__ = ["Claim", "Judgment", "Verdict", "judge", "run_label", "verdict_of"]

Scope = Literal["run", "seed", "all"]


@dataclass(frozen=True)
class Judgment:
    """Whether a claim holds on some runs, with the numbers that decided.

    Args:
        holds: None where these runs cannot decide it.
        numbers: what was compared, by name.
    """

    holds: bool | None
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class Claim:
    """A statement that can fail.

    Args:
        id: ``"<study>.<name>"``.
        text: the statement, with its threshold.
        check: runs -> judgment. It sees the runs of its scope alone.
        scope: "run" (each record by itself), "seed" (all points of a seed together) or "all".
        sizes: where it is judged; elsewhere its numbers are reported without a verdict.
        published: the paper's value of a judged number, by the number's name.
        fragile: why the paper's sentence may not be expected to hold, if so.
    """

    id: str
    text: str
    check: Callable[[Results], Judgment]
    scope: Scope = "run"
    sizes: tuple[str, ...] = ("lite", "paper")
    published: Mapping[str, Number] = field(default_factory=dict)
    fragile: str = ""


@dataclass(frozen=True)
class Verdict:
    """What became of a claim at one size.

    Args:
        status: "holds", "fails", "mixed" (over seeds), "undecided", "reported" or "not run".
        judgments: label of the runs ("seed 101") -> judgment.
    """

    claim: Claim
    size: str
    status: str
    judgments: Mapping[str, Judgment]


def judge(holds: bool | np.bool | None, **numbers: Number) -> Judgment:
    """A judgment; numbers that are compared are named after what they are.

    Example:
        >>> judge(0.7 > 0.5, trained=0.7, initial=0.5).holds
        True
    """
    decided = None if holds is None else bool(holds)
    return Judgment(decided, {name: float(value) for name, value in numbers.items()})


def verdict_of(claim: Claim, size: str, results: Results) -> Verdict:
    """Judge a claim on all runs of one size."""
    if not len(results):
        return Verdict(claim, size, "not run", {})
    judgments = {label: claim.check(part) for label, part in _parts(claim.scope, results)}
    outcomes = {judgment.holds for judgment in judgments.values()}
    return Verdict(claim, size, _status(outcomes, size in claim.sizes), judgments)


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


def _status(outcomes: set[bool | None], is_judged: bool) -> str:
    if not is_judged:
        return "reported"
    if outcomes == {True}:
        return "holds"
    if outcomes == {False}:
        return "fails"
    return "mixed" if {True, False} <= outcomes else "undecided"
