"""The ledger: every claim at every size with what was measured, and as tables in one file."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from theodolite_papers.ledger._claims import DECIDED, LARGE, Results, Verdict, counted, judge_claim
from theodolite_papers.ledger._published import SOURCES, origin_of, size_text
from theodolite_papers.ledger._runs import (
    claims_hash,
    load_results,
    own_results,
    withdrawn_verdicts,
)
from theodolite_papers.ledger._study import PAPERS, Erratum, Paper, Study, all_studies

__all__ = [
    "VERDICTS",
    "Chapter",
    "Entry",
    "Sized",
    "Spread",
    "chapters",
    "errata_of",
    "ledger_markdown",
    "number_text",
    "origin_text",
    "provenance_of",
    "spread_of",
    "spread_text",
    "tally_of",
    "write_ledger",
]

_JUDGED = ("lite", *LARGE)
_ROUNDING = 1e-15
VERDICTS = {
    "holds": "on every seed; where the claim is about means over seeds, there",
    "fails": "on no seed; where the claim is about means over seeds, not there",
    "mixed": "holds on some seeds and fails on others",
    "undecided": "the runs cannot decide it, or its premise did not come about",
    "reported": "numbers without a verdict at this size",
    "not run": "no records",
}


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
        """What the records say about the code, the machine and the claims behind them."""
        known = [run for run in self.results if run.claims]
        if not known:
            return "Records before 0.2.0"
        commits = _listed(run.commit or "an unknown commit" for run in known)
        devices = _listed(f"{run.device}, {counted(run.threads, 'thread')}" for run in known)
        before = "" if len(known) == len(self.results) else f"{len(known)} of the records: "
        changed = {run.claims for run in known} != {claims_hash(study)}
        claims = "claims have changed since some of these runs" if changed else "claims as then"
        return f"{before}commit {commits}; {devices}; {claims}"

    def verdict_text(self, verdict: Verdict) -> str:
        """The verdict with its seeds and resamples, and whether it rests on a stand-in."""
        decided = verdict.status in DECIDED
        return f"{verdict}, on a stand-in" if decided and self.stand_in else str(verdict)

    def spreads(self, verdict: Verdict) -> list[Spread]:
        """The numbers that were judged; a stand-in's are not compared with the paper's."""
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


def _listed(texts: Iterable[str]) -> str:
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
        """Verdicts on a claim, of the sizes that judge it, smallest first."""
        verdicts = [sized.verdicts[claim] for sized in self.sizes if len(sized.results)]
        return [verdict for verdict in verdicts if verdict.status != "reported"]

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

    def counts(self) -> Mapping[str, int]:
        """Status -> number of claims, each at its largest size that was run."""
        statuses = [entry.final_status(k) for entry, k in self._claims()]
        return {status: statuses.count(status) for status in dict.fromkeys(sorted(statuses))}

    def differing(self) -> int:
        """Number of claims that came out differently at the sizes that judged them."""
        return sum(len({v.status for v in entry.judged(k)}) > 1 for entry, k in self._claims())

    def on_one_seed(self) -> int:
        """Number of claims that hold or fail at their largest size on a single seed."""
        return sum(verdict.seeds == 1 for _, verdict in self._decided())

    def on_a_stand_in(self) -> int:
        """Number of claims that hold, fail or are mixed at their largest size on a stand-in."""
        return sum(verdict.size in entry.study.stand_in for entry, verdict in self._decided())

    def _decided(self) -> list[tuple[Entry, Verdict]]:
        last = [(entry, v) for entry, k in self._claims() for v in entry.judged(k)[-1:]]
        return [(entry, v) for entry, v in last if v.status in DECIDED]

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
    verdicts = [judge_claim(claim, size, results, study.repeat) for claim in study.claims]
    return Sized.of(study, size, results, verdicts)


def errata_of(paper: Paper) -> tuple[Erratum, ...]:
    """What in a paper is not as printed; nothing of our own studies."""
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


def write_ledger(results: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Write ``README.md``, every claim in tables, from the records in ``results``.

    Returns:
        The path of the file.

    Raises:
        RecordError: If a record is damaged; the message names its folder.
    """
    target = Path(folder) / "README.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(ledger_markdown(chapters(results)), encoding="utf-8")
    return target


def ledger_markdown(book: Sequence[Chapter]) -> str:
    """Every claim of every paper, in one table per study."""
    lines = [
        "# Ledger",
        "",
        "What the five papers claim, and what was measured here. Written by `theodolite study "
        "ledger` from the records beside it; the documentation site (`make docs`) has the same "
        "with pictures, a summary and a page for each paper.",
        "Numbers are the middle value over the seeds (smallest to largest); a claim that fails "
        "stays, with what was measured. Behind a verdict stand the number of seeds and how often "
        "the claim holds when as many seeds are drawn again with replacement; a verdict on one "
        "seed has no such number and is weak evidence.",
        provenance_of(book),
        "",
        "| verdict | meaning |",
        "|---|---|",
        *(f"| {status} | {words} |" for status, words in VERDICTS.items()),
        "",
        "| claim | is |",
        "|---|---|",
        *(f"| {source} | {words} |" for source, words in SOURCES.items()),
    ]
    for chapter in book:
        lines += ["", f"## {chapter.paper.key}: {chapter.paper.title}", "", tally_of(chapter)]
        for entry in chapter.entries:
            lines += _markdown_study(entry)
        if chapter.withdrawn:
            lines += ["", "Withdrawn: verdicts on claims or settings that have changed since.", ""]
            lines += ["| claim as it was | size | verdict then | reason |", "|---|---|---|---|"]
            lines += [
                _row([one["text"], one["size"], one["verdict"], f"{one['reason']} ({one['date']})"])
                for one in chapter.withdrawn
            ]
        if chapter.errata:
            lines += ["", "| erratum | the paper says | what is true, or was chosen |"]
            lines += ["|---|---|---|"]
            lines += [_row([e.id, e.printed, e.true]) for e in chapter.errata]
    return "\n".join(lines) + "\n"


def provenance_of(book: Sequence[Chapter]) -> str:
    """For which records it can be shown that claims were fixed before the run."""
    sizes = [sized for chapter in book for entry in chapter.entries for sized in entry.sizes]
    runs = [run for sized in sizes for run in sized.results]
    known = sum(bool(run.claims) for run in runs)
    return (
        f"All {len(runs)} records carry their date, settings and versions of packages. {known} "
        "carry the commit, the device, the threads and a digest of the claims at the time of the "
        "run as well: the commit has the claims as they were judged, so for these it can be shown "
        f"that claims were fixed before the run. For the other {len(runs) - known}, made before "
        "version 0.2.0, it cannot be shown; some of these studies were run more than once, where "
        "networks had not learned what they should. Each size of a study says which it is."
    )


def _markdown_study(entry: Entry) -> list[str]:
    study = entry.study
    lines = ["", f"### {study.id}: {study.title}", "", f"Shows {', '.join(study.shows)}.", ""]
    for sized in entry.sizes:
        told = [sized.description(), *([sized.provenance(study)] if len(sized.results) else [])]
        lines.append(f"- {_cell('. '.join(told))}")
    done = [sized for sized in entry.sizes if len(sized.results)]
    if not done:
        return [*lines, "", f"{len(study.claims)} claims: not run."]
    lines += ["", "| claim | whose | size | measured | verdict |", "|---|---|---|---|---|"]
    for sized in done:
        for verdict in sized.verdicts:
            measured = ", ".join(spread_text(spread) for spread in sized.spreads(verdict))
            whose = origin_text(study, verdict.claim.id)
            text = sized.verdict_text(verdict)
            lines.append(_row([verdict.claim.text, whose, sized.size, measured, text]))
    return lines


def origin_text(study: Study, claim: str) -> str:
    origin = origin_of(study, claim)
    if origin is None:
        return ""
    text = f"{origin.source}, {origin.section}" if origin.section else origin.source
    return f"{text}: {origin.note}" if origin.note else text


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def spread_text(spread: Spread) -> str:
    text = f"{spread.name} {number_text(spread.middle)}"
    if spread.high > spread.low:
        text += f" ({number_text(spread.low)} to {number_text(spread.high)})"
    if spread.published is not None and spread.difference is not None:
        text += (
            f" [paper {number_text(spread.published)}, difference {number_text(spread.difference)}]"
        )
    return text


def tally_of(chapter: Chapter) -> str:
    counts = chapter.counts()
    listed = ", ".join(f"{number} {status}" for status, number in counts.items())
    text = (
        f"{sum(counts.values())} claims in {len(chapter.entries)} studies, each counted at the "
        f"largest size that judged it: {listed}."
    )
    if differing := chapter.differing():
        text += f" Of these, {differing} came out differently at a smaller size."
    if single := chapter.on_one_seed():
        text += f" {single} of the verdicts rest on one seed."
    if replaced := chapter.on_a_stand_in():
        text += f" {replaced} rest on a stand-in."
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def number_text(value: float) -> str:
    """Three digits; what float64 rounds, which differs between machines, is 0."""
    if abs(value) < _ROUNDING:
        return "0"
    return "undefined" if math.isnan(value) else f"{value:.3g}"
