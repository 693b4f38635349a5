"""Lines of the ledger: every claim at every size, with what was measured."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from theodolite_papers.ledger._claims import Verdict, verdict_of
from theodolite_papers.ledger._papers import PAPERS, Erratum, Paper
from theodolite_papers.ledger._registry import all_studies
from theodolite_papers.ledger._results import Results
from theodolite_papers.ledger._store import own_results
from theodolite_papers.ledger._study import Study

__all__ = ["Chapter", "Entry", "Sized", "Spread", "chapters", "errata_of", "spread_of"]

_JUDGED = ("lite", "paper")


@dataclass(frozen=True)
class Spread:
    """A judged number over the seeds, beside what the paper prints."""

    name: str
    middle: float
    low: float
    high: float
    published: float | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.published is None else self.middle - self.published


@dataclass(frozen=True)
class Sized:
    """A study at one size: its runs out of those planned, and the verdicts on its claims."""

    size: str
    results: Results
    verdicts: tuple[Verdict, ...]
    remark: str
    planned: int

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.results.by_seed())

    @property
    def seconds(self) -> float:
        """Time of all runs together, by the clock."""
        return math.fsum(run.seconds for run in self.results)

    @property
    def processor_seconds(self) -> float:
        """Time that all runs computed on the CPU; nan where a record does not tell."""
        return math.fsum(run.processor_seconds for run in self.results)


@dataclass(frozen=True)
class Entry:
    """A study in the ledger."""

    study: Study
    sizes: tuple[Sized, ...]

    @property
    def drawn(self) -> Sized | None:
        """The largest size that was run: its picture is shown."""
        done = [sized for sized in self.sizes if len(sized.results)]
        return done[-1] if done else None


@dataclass(frozen=True)
class Chapter:
    """A paper in the ledger."""

    paper: Paper
    entries: tuple[Entry, ...]
    errata: tuple[Erratum, ...]

    def counts(self) -> Mapping[str, int]:
        """Status -> number of claims, each at its largest size that was run."""
        statuses = [_final_status(entry, k) for entry in self.entries
                    for k in range(len(entry.study.claims))]  # fmt: skip
        return {status: statuses.count(status) for status in dict.fromkeys(sorted(statuses))}

    def differing(self) -> int:
        """Number of claims that came out differently at the sizes that judged them."""
        return sum(len(set(_judged_statuses(entry, k))) > 1
                   for entry in self.entries for k in range(len(entry.study.claims)))  # fmt: skip


def chapters(root: str | os.PathLike[str]) -> list[Chapter]:
    """The whole ledger from the records in a folder.

    Raises:
        RecordError: If a record is damaged; the message names its folder.
    """
    studies = all_studies().values()
    return [
        Chapter(
            paper,
            tuple(_entry(root, study) for study in studies if study.paper == paper.key),
            errata_of(paper),
        )
        for paper in PAPERS.values()
    ]


def errata_of(paper: Paper) -> tuple[Erratum, ...]:
    """What in a paper is not as printed."""
    module = import_module(f"theodolite_papers.{paper.key}._errata")
    return tuple(module.ERRATA)


def spread_of(verdict: Verdict) -> list[Spread]:
    """The numbers that were judged: middle value and range over the judgments."""
    names = dict.fromkeys(name for j in verdict.judgments.values() for name in j.numbers)
    spreads = []
    for name in names:
        values = np.array([j.numbers.get(name, math.nan) for j in verdict.judgments.values()])
        finite = values[np.isfinite(values)]
        low, middle, high = np.quantile(finite, [0, 0.5, 1]) if len(finite) else [math.nan] * 3
        printed = verdict.claim.published.get(name)
        published = None if printed is None else float(printed)
        spreads.append(Spread(name, float(middle), float(low), float(high), published))
    return spreads


def _entry(root: str | os.PathLike[str], study: Study) -> Entry:
    return Entry(study, tuple(_sized(root, study, s) for s in _JUDGED if _is_shown(study, s)))


def _is_shown(study: Study, size: str) -> bool:
    return size in study.configs or size in study.not_run


def _sized(root: str | os.PathLike[str], study: Study, size: str) -> Sized:
    results = own_results(root, study, size) if size in study.configs else Results(())
    verdicts = tuple(verdict_of(claim, size, results) for claim in study.claims)
    remark = study.stand_in.get(size, "")
    if not len(results):
        remark = study.not_run.get(size, f"no records; run 'theodolite study run {study.id}'")
    planned = len(study.points_at(size)) * len(study.seeds_at(size))
    return Sized(size, results, verdicts, remark, planned)


def _final_status(entry: Entry, claim: int) -> str:
    judged = _judged_statuses(entry, claim)
    was_run = any(len(sized.results) for sized in entry.sizes)
    return judged[-1] if judged else ("reported" if was_run else "not run")


def _judged_statuses(entry: Entry, claim: int) -> list[str]:
    run = [sized.verdicts[claim].status for sized in entry.sizes if len(sized.results)]
    return [status for status in run if status != "reported"]
