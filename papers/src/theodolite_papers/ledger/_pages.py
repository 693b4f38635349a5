"""The ledger: every claim at every size with what was measured; a short table, and as data."""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from theodolite_papers.ledger._published import (
    SOURCES,
    Setting,
    differences,
    excuse_of,
    origin_of,
    setting_text,
    settings_of,
    size_text,
    unstudied_of,
)
from theodolite_papers.ledger._results import LARGE, Results, counted
from theodolite_papers.ledger._runs import (
    claims_hash,
    load_results,
    own_results,
    withdrawn_verdicts,
)
from theodolite_papers.ledger._study import PAPERS, Erratum, Paper, Study, all_studies
from theodolite_papers.ledger._verdicts import DECIDED, ONE_SEED, Decider, Verdict, judge_claim

__all__ = [
    "VERDICTS",
    "Chapter",
    "Entry",
    "Exhibit",
    "Sized",
    "Spread",
    "chapters",
    "decider_text",
    "errata_of",
    "exhibit_of",
    "ledger_json",
    "ledger_markdown",
    "number_text",
    "origin_text",
    "provenance_of",
    "spread_of",
    "spread_text",
    "tally_of",
    "verdict_document",
    "withdrawn_groups",
    "write_ledger",
]

_JUDGED = ("lite", *LARGE)
_ROUNDING = 1e-15
VERDICTS = {
    "holds": "on every seed, and the 95 % interval of the deciding number (over seeds, else over "
    "networks) lies on the claim's side, or five seeds or more agree",
    "fails": "on no seed, and that interval excludes the claim",
    "mixed": "clearly holds in some settings and not in others, or on some networks and not on "
    "others; the pass rate says how far that can be generalised",
    "undecided": "the difference is inside the noise, the premise did not come about, or a bound "
    "that is missed is ours and not the paper's",
    ONE_SEED: "one run and no interval: which side it lies on is said, nothing is decided",
    "reported": "numbers without a verdict at this size",
    "not run": "no records",
}
FILE = "ledger.json"  # every claim at every size, one per line


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
        """The verdict with its units, and whether it rests on a stand-in."""
        said = verdict.status in (*DECIDED, ONE_SEED) and verdict.claim.unit != "calculation"
        return f"{verdict}, on a stand-in" if said and self.stand_in else str(verdict)

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

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Whose -> status -> number of claims, each at its largest size that judged it."""
        found: dict[str, dict[str, int]] = {}
        for entry, k in self._claims():
            origin = origin_of(entry.study, entry.study.claims[k].id)
            of_source = found.setdefault(origin.source if origin else "ours", {})
            status = entry.final_status(k)
            of_source[status] = of_source.get(status, 0) + 1
        return {
            source: {status: tally[status] for status in VERDICTS if status in tally}
            for source in SOURCES
            if (tally := found.get(source))
        }

    def differing(self) -> int:
        """Number of claims that came out differently at the sizes that judged them."""
        return sum(len({v.status for v in entry.judged(k)}) > 1 for entry, k in self._claims())

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
    verdicts = [
        judge_claim(claim, size, results, study.repeat, excuse=excuse_of(study, claim.id, size))
        for claim in study.claims
    ]
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
    """Write ``README.md``, a table for each paper, and ``ledger.json``, every claim at every size.

    Returns:
        The path of the table.

    Raises:
        RecordError: If a record is damaged; the message names its folder.
    """
    target = Path(folder) / "README.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    book = chapters(results)
    target.write_text(ledger_markdown(book), encoding="utf-8")
    (target.parent / FILE).write_text(ledger_json(book), encoding="utf-8")
    return target


def ledger_markdown(book: Sequence[Chapter]) -> str:
    """One table per paper: its figures and tables, what was run, and what became of its claims."""
    lines = [
        "# Ledger",
        "",
        "What the five papers claim, and what was measured here. Written by `theodolite study "
        "ledger` from the records beside it, with every claim at every size as data in "
        f"`{FILE}`. The documentation site (`make docs`) shows all of it with pictures, and has "
        "the same file.",
        "",
        provenance_of(book),
        "",
        "| verdict | meaning |",
        "|---|---|",
        *(_row([status, words]) for status, words in VERDICTS.items()),
        "",
        "| claim | is |",
        "|---|---|",
        *(_row([source, words]) for source, words in SOURCES.items()),
    ]
    for chapter in book:
        lines += ["", f"## {chapter.paper.key}: {chapter.paper.title}", "", tally_of(chapter), ""]
        lines += ["| exhibit | study | our size | runs | the paper's claims | ours |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [_row(_exhibit_cells(entry)) for entry in chapter.entries]
        lines += [
            _row([", ".join(one["shows"]), "", "not run", "", one["reason"], ""])
            for one in unstudied_of(chapter.paper.key)
        ]
        if chapter.withdrawn:
            lines += ["", "Withdrawn:", ""]
            lines += [f"- {_cell(one.text)}" for one in withdrawn_groups(chapter.withdrawn)]
    return "\n".join(lines) + "\n"


def _exhibit_cells(entry: Entry) -> list[str]:
    row = exhibit_of(entry)
    study = f"`{entry.study.id}`"
    return [row.shows, study, row.size, row.units, row.verdicts, row.own_verdicts]


@dataclass(frozen=True)
class Exhibit:
    """A figure or table of a paper in one row.

    Args:
        shows: its name.
        setting: the paper's settings, as far as they are printed.
        size: the largest size that was run, with its ratios and stand-in.
        units: seeds and runs.
        verdicts: on the paper's claims, weakened ones included, at the largest size that judged.
        own_verdicts: on ours.
    """

    shows: str
    setting: str
    size: str
    units: str
    verdicts: str
    own_verdicts: str


def exhibit_of(entry: Entry) -> Exhibit:
    """The row of a study."""
    study, drawn = entry.study, entry.drawn
    printed = settings_of(study, drawn.size if drawn else study.default_size)
    setting = "; ".join(_printed(one) for one in printed if one.paper is not None)
    size, units = "not run", ""
    if drawn is not None:
        size = f"{drawn.text}. Stand-in: {drawn.stand_in}" if drawn.stand_in else drawn.text
        units = f"{counted(drawn.seeds, study.repeat)}, {counted(len(drawn.results), 'run')}"
        networks = max((v.seeds for v in drawn.verdicts if v.repeat == "network"), default=0)
        if networks > len(drawn.results):
            units += f", {counted(networks, 'network')}"
    tallies: dict[bool, dict[str, int]] = {True: {}, False: {}}
    for k, claim in enumerate(study.claims):
        origin = origin_of(study, claim.id)
        tally = tallies[origin is None or origin.source == "ours"]
        status = entry.final_status(k)
        tally[status] = tally.get(status, 0) + 1
    theirs, own = (_counted_statuses(tallies[ours]) for ours in (False, True))
    return Exhibit(", ".join(study.shows), setting, size, units, theirs, own)


def _printed(setting: Setting) -> str:
    return f"{setting.name} {setting_text(setting.paper)}"


def _counted_statuses(tally: Mapping[str, int]) -> str:
    return ", ".join(f"{tally[status]} {status}" for status in VERDICTS if status in tally)


@dataclass(frozen=True)
class WithdrawnGroup:
    """Verdicts of a paper that were withdrawn for one reason."""

    text: str
    members: tuple[Mapping[str, Any], ...]


def withdrawn_groups(withdrawn: Sequence[Mapping[str, Any]]) -> list[WithdrawnGroup]:
    """One line per date and reason, with the studies that it is about."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in withdrawn:
        groups.setdefault((one["date"], one["reason"]), []).append(one)
    found = []
    for (date, reason), members in groups.items():
        words = [one["verdict"].partition(" (")[0] for one in members]
        tally = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        studies = _listed(one["claim"].rpartition(".")[0].partition(".")[2] for one in members)
        text = f"{counted(len(members), 'verdict')} ({tally}) of {studies}: {reason} ({date})"
        found.append(WithdrawnGroup(text, tuple(members)))
    return found


def ledger_json(book: Sequence[Chapter]) -> str:
    """Every claim at every size that was run, and what was withdrawn: one JSON object per line."""
    lines = [
        verdict_document(entry.study, verdict, sized.results)
        for chapter in book
        for entry in chapter.entries
        for sized in entry.sizes
        if len(sized.results)
        for verdict in sized.verdicts
    ]
    lines += [{"withdrawn": True, **one} for chapter in book for one in chapter.withdrawn]
    texts = [json.dumps(_finite(line), ensure_ascii=False, allow_nan=False) for line in lines]
    return "[\n" + ",\n".join(texts) + "\n]\n"


def _finite(value: Any) -> Any:
    """As strict JSON has it, with six digits: null where a number is undefined."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def verdict_document(study: Study, verdict: Verdict, runs: Results) -> dict[str, Any]:
    """A verdict as JSON shows it: what was run beside the paper, and how firm it is.

    ``settings`` are those in which the runs are not as published, with the ratio of numbers;
    ``stand_in`` is null where nothing stands in; ``decider`` is the number that decided with its
    interval; ``passed`` is null where a claim is about all runs together; ``records`` counts the
    runs, and those that say which commit, device and claims they were made with.
    """
    origin = origin_of(study, verdict.claim.id)
    return {
        "claim": verdict.claim.id,
        "text": verdict.claim.text,
        "whose": None if origin is None else vars(origin),
        "size": verdict.size,
        "settings": [
            {"name": one.name, "ours": one.ours, "paper": one.paper, "ratio": one.ratio}
            for one in differences(study, verdict.size, runs)
        ],
        "stand_in": study.stand_in.get(verdict.size),
        "status": verdict.status,
        "verdict": str(verdict),
        "decider": None if verdict.decider is None else vars(verdict.decider),
        "unit": verdict.repeat,
        "units": verdict.seeds,
        "passed": verdict.passed,
        "records": {
            "runs": len(runs),
            "with_provenance": sum(bool(run.claims) for run in runs),
            "commits": sorted({run.commit for run in runs if run.commit}),
        },
        "published": {name: float(value) for name, value in verdict.claim.published.items()},
        "outcomes": {
            label: {"holds": one.holds, "numbers": dict(one.numbers)}
            for label, one in verdict.outcomes.items()
        },
    }


def decider_text(decider: Decider) -> str:
    """``gain 0.12 (95 % interval 0.08 to 0.15 over 5 seeds; the claim needs above 0)``."""
    text = f"{decider.name.replace('_', ' ')} {number_text(decider.value)}"
    if math.isfinite(decider.low) and decider.high > decider.low:
        ends = f"{number_text(decider.low)} to {number_text(decider.high)}"
        return f"{text} (95 % interval {ends} over {decider.unit}; needed: {decider.bounds})"
    return f"{text} (needed: {decider.bounds})"


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
    """How many claims of each kind came out how, at the largest size that judged each."""
    names = {"paper": "The paper's own", "weakened": "Weakened", "ours": "Ours"}
    parts = [
        f"{names[source]}: {_counted_statuses(tally)}."
        for source, tally in chapter.counts().items()
    ]
    total = sum(sum(tally.values()) for tally in chapter.counts().values())
    text = f"{total} claims in {len(chapter.entries)} studies, each at its largest judged size."
    text = " ".join([text, *parts])
    if differing := chapter.differing():
        text += f" {differing} came out differently at a smaller size."
    if replaced := chapter.on_a_stand_in():
        text += f" {replaced} of those that hold, fail or are mixed rest on a stand-in."
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def number_text(value: float) -> str:
    """Three digits; what float64 rounds, which differs between machines, is 0."""
    if abs(value) < _ROUNDING:
        return "0"
    return "undefined" if math.isnan(value) else f"{value:.3g}"
