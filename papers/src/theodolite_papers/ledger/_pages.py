"""The ledger as a short table, and as data; the texts that the pages of the site share."""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from theodolite_papers.ledger._book import VERDICTS, Chapter, Entry, Spread, chapters, distinct
from theodolite_papers.ledger._published import (
    SOURCES,
    Setting,
    differences,
    origin_of,
    setting_text,
    settings_of,
    unstudied_of,
)
from theodolite_papers.ledger._results import Results, counted
from theodolite_papers.ledger._runs import claims_hash
from theodolite_papers.ledger._study import Study
from theodolite_papers.ledger._verdicts import DECIDED, Decider, Verdict

__all__ = [
    "FILE",
    "Exhibit",
    "counted_statuses",
    "decider_text",
    "exhibit_of",
    "ledger_json",
    "ledger_markdown",
    "number_text",
    "origin_text",
    "provenance_of",
    "spread_text",
    "tally_of",
    "verdict_document",
    "withdrawn_groups",
    "write_ledger",
]

_ROUNDING = 1e-15
FILE = "ledger.json"  # every claim at every size, one per line


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
    """One table per paper: its figures and tables, what was run, and the verdicts on its claims."""
    lines = [
        "# Ledger",
        "",
        "This page compares what the five papers claim with what we measured. `theodolite study "
        "ledger` writes it from the records in this folder. The command also writes "
        f"`{FILE}`, which has every claim at every size as data and is not in the repository. The "
        "documentation site (`make docs`) shows everything with pictures.",
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
        lines += ["| figure or table | study | our size | runs | the paper's claims | our claims |"]
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
    theirs, own = (counted_statuses(tallies[ours]) for ours in (False, True))
    return Exhibit(", ".join(study.shows), setting, size, units, theirs, own)


def _printed(setting: Setting) -> str:
    return f"{setting.name} {setting_text(setting.paper)}"


def counted_statuses(
    tally: Mapping[str, int],
    replaced: Mapping[str, int] | None = None,
    proofs: Mapping[str, int] | None = None,
) -> str:
    """``8 hold (2 on a stand-in), 3 undecided``; stand-ins are counted for decided claims.

    Steps of a proof are counted too, because they are not the theorem.
    """
    parts = []
    for status in VERDICTS:
        if status in tally:
            some = (replaced or {}).get(status, 0) if status in DECIDED else 0
            steps = (proofs or {}).get(status, 0)
            notes = [f"{some} on a stand-in"] if some else []
            notes += [f"{steps} about a step of a proof, not a theorem"] if steps else []
            count = f"{tally[status]} {_plural(status, tally[status])}"
            parts.append(count + (f" ({', '.join(notes)})" if notes else ""))
    return ", ".join(parts)


def _plural(status: str, count: int) -> str:
    """``1 holds``, ``2 hold``; the other verdicts have one form."""
    return {"holds": "hold", "fails": "fail"}.get(status, status) if count > 1 else status


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
        words = Counter(one["verdict"].partition(" (")[0] for one in members)
        tally = ", ".join(f"{count} {_plural(word, count)}" for word, count in words.items())
        studies = distinct(one["claim"].rpartition(".")[0].partition(".")[2] for one in members)
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
    """A number with six digits for strict JSON; null if it is undefined."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def verdict_document(study: Study, verdict: Verdict, runs: Results) -> dict[str, Any]:
    """A verdict as a JSON document: what was run, how it differs from the paper, and the interval.

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
    value, tiny = decider.value, 0 < abs(decider.value) < _ROUNDING
    text = f"{decider.name.replace('_', ' ')} {f'{value:.0e}' if tiny else number_text(value)}"
    if math.isfinite(decider.low) and decider.high > decider.low:
        ends = f"{number_text(decider.low)} to {number_text(decider.high)}"
        return f"{text} (95 % interval {ends} over {decider.unit}; needed: {decider.bounds})"
    return f"{text} (needed: {decider.bounds})"


def provenance_of(book: Sequence[Chapter]) -> str:
    """Which records show that the claims were fixed before the run."""
    sizes = [sized for chapter in book for entry in chapter.entries for sized in entry.sizes]
    runs = [run for sized in sizes for run in sized.results]
    known = sum(bool(run.claims) for run in runs)
    changed = [
        (entry.study.id, run)
        for chapter in book
        for entry in chapter.entries
        for sized in entry.sizes
        for run in sized.results
        if run.claims and run.claims != claims_hash(entry.study)
    ]
    since = (
        f"In {counted(len(changed), 'record')} of "
        f"{len({study for study, _ in changed})} studies a claim has changed since. "
        if changed
        else ""
    )
    return (
        f"All {len(runs):,} records have their date, settings and versions of packages. "
        f"{known:,} also have the commit, the device, the number of threads and a digest of the "
        "claims: their names, sentences, scopes and sizes at the time of the run. This digest "
        f"shows that the sentences were fixed before the run. {since}The digest does not cover "
        "checks, bounds that a sentence does not name, and the rule of verdicts. This rule changed "
        "after most runs; the verdicts that we withdrew for it are listed below. The other "
        f"{len(runs) - known:,} records are from before version 0.2.0 and have no digest. We ran "
        "some of these studies again if networks had not learned their task. The pages of the "
        "site say for each size whether it has a digest."
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
    text = f"{spread.name.replace('_', ' ')} {number_text(spread.middle)}"
    if spread.high > spread.low:
        text += f" ({number_text(spread.low)} to {number_text(spread.high)})"
    if spread.published is not None and spread.difference is not None:
        text += (
            f" [paper {number_text(spread.published)}, difference {number_text(spread.difference)}]"
        )
    return text


def tally_of(chapter: Chapter) -> str:
    """Number of claims by source and verdict, each at the largest size that judged it."""
    names = {"paper": "The paper's own", "weakened": "Weakened", "ours": "Ours"}
    replaced = chapter.counts(on_a_stand_in=True)
    proofs = chapter.counts(in_a_proof=True)
    parts = [
        f"{names[source]}: {counted_statuses(tally, replaced.get(source), proofs.get(source))}."
        for source, tally in chapter.counts().items()
    ]
    total = sum(sum(tally.values()) for tally in chapter.counts().values())
    text = f"{total} claims in {len(chapter.entries)} studies, each at its largest judged size."
    text = " ".join([text, *parts])
    if differing := chapter.differing():
        text += f" {differing} had another verdict at a smaller size."
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def number_text(value: float) -> str:
    """Three digits; numbers at the rounding of float64, which differ between machines, are 0."""
    if abs(value) < _ROUNDING:
        return "0"
    if math.isnan(value):
        return "undefined"
    rounded = f"{value:.3g}"
    return f"{float(rounded):,.0f}" if 1000 <= abs(value) < 1e7 else rounded
