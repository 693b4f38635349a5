"""The ledger as a book: a chapter for each paper, an entry for each study, verdicts by size."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from theodolite_papers.ledger._published import (
    SOURCES,
    excuse_of,
    origin_of,
    size_text,
)
from theodolite_papers.ledger._results import LARGE, Results, counted
from theodolite_papers.ledger._runs import (
    claims_hash,
    load_results,
    own_results,
    withdrawn_verdicts,
)
from theodolite_papers.ledger._study import PAPERS, Erratum, Paper, Study, all_studies
from theodolite_papers.ledger._verdicts import DECIDED, ONE_SEED, Verdict, judge_claim

__all__ = [
    "VERDICTS",
    "Chapter",
    "Entry",
    "Sized",
    "Spread",
    "chapters",
    "distinct",
    "errata_of",
    "spread_of",
]

_JUDGED = ("lite", *LARGE)
VERDICTS = {
    "holds": "the claim is true on every seed (or over all runs, if it is about all of them). The "
    "95 % interval of the deciding number, over seeds or else over networks, lies on the side of "
    "the claim. Without an interval, at least five seeds agree. The pass rate is the share of "
    "seeds on which a claim holds; its 95 % bounds follow from the number of seeds.",
    "fails": "the claim is true on no seed (or not over all runs), and the 95 % interval excludes "
    "it",
    "mixed": "the claim clearly holds in some settings, for some interpretations of the paper's "
    "words, or on some networks, and not in others. Its pass rate is a share of networks.",
    "undecided": "one of four reasons. The difference is within the noise. A condition of the "
    "claim was not met. The number misses a bound that we set. The number misses one that the "
    "paper prints for other settings. Claims with such bounds can hold and cannot fail.",
    ONE_SEED: "one seed, without an interval. The table says on which side the number lies; this "
    "decides nothing.",
    "reported": "numbers without a verdict at this size",
    "not run": "no records",
}


@dataclass(frozen=True)
class Spread:
    """A judged number over the seeds, and the number that the paper prints."""

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
    """A study at one size: its runs out of those planned, and the verdicts on its claims.

    Args:
        size: its name.
        text: the name with the ratios of its settings to the paper's.
        stand_in: what stands in for the paper's data, network or setting.
        remark: what the paper leaves open, or why there are no records.
        results: the runs.
        planned: number of runs that the size consists of.
        verdicts: one for each claim.
        repeat: what a seed numbers.
    """

    size: str
    text: str
    stand_in: str
    remark: str
    results: Results
    planned: int
    verdicts: tuple[Verdict, ...]
    repeat: str = "seed"

    @classmethod
    def of(cls, study: Study, size: str, results: Results, verdicts: Sequence[Verdict]) -> "Sized":
        """A study at a size with these runs, which may be none."""
        remark = study.remarks.get(size, "")
        if not len(results):
            remark = study.not_run.get(size, f"no records; run 'theodolite study run {study.id}'")
        return cls(
            size,
            size_text(study, size, results) if size in study.configs else size,
            study.stand_in.get(size, ""),
            remark,
            results,
            len(study.points_at(size)) * len(study.seeds_at(size)),
            tuple(verdicts),
            study.repeat,
        )

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.results.by_seed())

    def provenance(self, study: Study) -> str:
        """Which records have a commit, a machine and a digest of the claims."""
        known = [run for run in self.results if run.claims]
        if not known:
            return "Records from before version 0.2.0"
        commits = distinct(run.commit or "an unknown commit" for run in known)
        devices = distinct(f"{run.device}, {counted(run.threads, 'thread')}" for run in known)
        before = "" if len(known) == len(self.results) else f"{len(known)} of the records: "
        changed = {run.claims for run in known} != {claims_hash(study)}
        claims = "a claim has changed since" if changed else "claims unchanged since"
        return f"{before}commit {commits}; {devices}; {claims}"

    def verdict_text(self, verdict: Verdict) -> str:
        """The verdict with its units; a note if other data stand in for the paper's."""
        said = verdict.status in (*DECIDED, ONE_SEED) and verdict.claim.unit != "calculation"
        return f"{verdict}, on a stand-in" if said and self.stand_in else str(verdict)

    def spreads(self, verdict: Verdict) -> list[Spread]:
        """The judged numbers; those of a stand-in are not compared with the paper's."""
        found = spread_of(verdict)
        return [replace(one, published=None) for one in found] if self.stand_in else found

    def description(self) -> str:
        """Size with ratios, runs, stand-in and remark, as one line."""
        if not len(self.results):
            return f"{self.text}. Not run: {self.remark}"
        done = len(self.results)
        runs = counted(done, "run") if done == self.planned else f"{done} of {self.planned} runs"
        parts = [f"{self.text}. {counted(self.seeds, self.repeat)}, {runs}"]
        parts += [f"Stand-in: {self.stand_in}"] if self.stand_in else []
        return ". ".join([*parts, self.remark] if self.remark else parts)


def distinct(texts: Iterable[str]) -> str:
    """Each text once, separated by commas."""
    return ", ".join(dict.fromkeys(texts))


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

    def judged(self, claim: int) -> list[Verdict]:
        """Verdicts on a claim at the sizes that judge it, smallest first."""
        verdicts = [sized.verdicts[claim] for sized in self.sizes if len(sized.results)]
        return [verdict for verdict in verdicts if verdict.status != "reported"]

    def on_a_stand_in(self, claim: int) -> bool:
        """Whether other data stand in for the paper's at the largest size that judged a claim."""
        judged = self.judged(claim)
        calculated = self.study.claims[claim].unit == "calculation"
        return bool(judged) and judged[-1].size in self.study.stand_in and not calculated

    def final_status(self, claim: int) -> str:
        """The status of a claim at the largest size that judged it."""
        judged = self.judged(claim)
        was_run = any(len(sized.results) for sized in self.sizes)
        return judged[-1].status if judged else ("reported" if was_run else "not run")


@dataclass(frozen=True)
class Chapter:
    """A paper in the ledger."""

    paper: Paper
    entries: tuple[Entry, ...]
    errata: tuple[Erratum, ...]
    withdrawn: tuple[Mapping[str, Any], ...] = ()

    def counts(
        self, *, on_a_stand_in: bool = False, in_a_proof: bool = False
    ) -> Mapping[str, Mapping[str, int]]:
        """Source -> status -> number of claims, each at the largest size that judged it.

        Args:
            on_a_stand_in: count only those whose verdict rests on a stand-in.
            in_a_proof: count only steps of a proof.
        """
        found: dict[str, dict[str, int]] = {}
        for entry, k in self._claims():
            if on_a_stand_in and not entry.on_a_stand_in(k):
                continue
            origin = origin_of(entry.study, entry.study.claims[k].id)
            if in_a_proof and not (origin and origin.in_a_proof):
                continue
            of_source = found.setdefault(origin.source if origin else "ours", {})
            status = entry.final_status(k)
            of_source[status] = of_source.get(status, 0) + 1
        return {
            source: {status: tally[status] for status in VERDICTS if status in tally}
            for source in SOURCES
            if (tally := found.get(source))
        }

    def differing(self) -> int:
        """Number of claims whose verdict differs between sizes."""
        return sum(len({v.status for v in entry.judged(k)}) > 1 for entry, k in self._claims())

    def _claims(self) -> list[tuple[Entry, int]]:
        return [(entry, k) for entry in self.entries for k in range(len(entry.study.claims))]


def chapters(root: str | os.PathLike[str]) -> list[Chapter]:
    """The whole ledger from the records in a folder.

    Raises:
        RecordError: If a record is damaged; the message names its folder.
    """
    studies = all_studies().values()
    withdrawn = withdrawn_verdicts(root)
    return [
        Chapter(
            paper,
            tuple(_entry(root, study) for study in studies if study.paper == paper.key),
            errata_of(paper),
            tuple(one for one in withdrawn if one["claim"].split(".")[0] == paper.key),
        )
        for paper in PAPERS.values()
    ]


def _entry(root: str | os.PathLike[str], study: Study) -> Entry:
    sizes = [s for s in _JUDGED if s in study.configs or s in study.not_run]
    return Entry(study, tuple(_sized(root, study, size) for size in sizes))


def _sized(root: str | os.PathLike[str], study: Study, size: str) -> Sized:
    results = Results(())
    if size in study.configs:
        results = own_results(study, size, load_results(root, study, size))
    verdicts = [
        judge_claim(claim, size, results, study.repeat, excuse=excuse_of(study, claim.id, size))
        for claim in study.claims
    ]
    return Sized.of(study, size, results, verdicts)


def errata_of(paper: Paper) -> tuple[Erratum, ...]:
    """Errors of a paper and choices that it leaves open; empty for our own studies."""
    if paper.own:
        return ()
    module = import_module(f"theodolite_papers.{paper.key}._errata")
    return tuple(module.ERRATA)


def spread_of(verdict: Verdict) -> list[Spread]:
    """The numbers that were judged: middle value and range over the outcomes."""
    names = dict.fromkeys(name for one in verdict.outcomes.values() for name in one.numbers)
    spreads = []
    for name in names:
        values = np.array([o.numbers.get(name, math.nan) for o in verdict.outcomes.values()])
        finite = values[np.isfinite(values)]
        low, middle, high = np.quantile(finite, [0, 0.5, 1]) if len(finite) else [math.nan] * 3
        printed = verdict.claim.published.get(name)
        published = None if printed is None else float(printed)
        spreads.append(Spread(name, float(middle), float(low), float(high), published))
    return spreads
