"""The ledger: every claim at every size with what was measured, as a page and as a table."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import numpy as np

from theodolite.report.pages import (
    DARK,
    LIGHT,
    content_policy,
    css_variables,
    json_for_html,
    plain,
    static_text,
)
from theodolite_papers.ledger._claims import Results, Verdict, judge_claim
from theodolite_papers.ledger._panels import plotly_panel
from theodolite_papers.ledger._runs import load_results, own_results
from theodolite_papers.ledger._study import PAPERS, Erratum, Paper, Study, all_studies

__all__ = [
    "Chapter",
    "Entry",
    "Sized",
    "Spread",
    "chapters",
    "errata_of",
    "ledger_markdown",
    "spread_of",
    "write_ledger",
]

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
    """The numbers that were judged: middle value and range over the outcomes."""
    names = dict.fromkeys(name for j in verdict.outcomes.values() for name in j.numbers)
    spreads = []
    for name in names:
        values = np.array([j.numbers.get(name, math.nan) for j in verdict.outcomes.values()])
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
    results = Results(())
    if size in study.configs:
        results = own_results(study, size, load_results(root, study, size))
    verdicts = tuple(judge_claim(claim, size, results) for claim in study.claims)
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


_WORDS = {
    "holds": "on every seed; where the claim is about means over seeds, there",
    "fails": "on no seed; where the claim is about means over seeds, not there",
    "mixed": "holds on some seeds and fails on others",
    "undecided": "the runs cannot decide it",
    "reported": "numbers without a verdict at this size",
    "not run": "no records",
}


def write_ledger(results: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Write ``index.html`` and ``README.md`` from the records in ``results``.

    Returns:
        The path of the page.

    Raises:
        RecordError: If a record is damaged; the message names its folder.
    """
    book = chapters(results)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    (target / "README.md").write_text(ledger_markdown(book), encoding="utf-8")
    page = target / "index.html"
    page.write_text(_page(book), encoding="utf-8")
    return page


def ledger_markdown(book: Sequence[Chapter]) -> str:
    """Every claim of every paper in one table per paper."""
    lines = [
        "# Ledger",
        "",
        "What the five papers claim, and what was measured here. Written by `theodolite study "
        "ledger` from the records beside it, together with the page `index.html`, which has "
        "the pictures and is not kept in the repository.",
        "Numbers are the middle value over the seeds (smallest to largest); a claim that fails "
        "stays, with what was measured.",
        "",
        "| verdict | meaning |",
        "|---|---|",
        *(f"| {status} | {words} |" for status, words in _WORDS.items()),
    ]
    for chapter in book:
        lines += ["", f"## {chapter.paper.key}: {chapter.paper.title}", "", _tally(chapter), ""]
        lines += ["| study | shows | claim | size | runs | measured | verdict |",
                  "|---|---|---|---|---|---|---|"]  # fmt: skip
        lines += [row for entry in chapter.entries for row in _markdown_rows(entry)]
        if chapter.errata:
            lines += ["", "| erratum | the paper says | what is true, or was chosen |",
                      "|---|---|---|"]  # fmt: skip
            lines += [f"| {e.id} | {_cell(e.printed)} | {_cell(e.true)} |" for e in chapter.errata]
    return "\n".join(lines) + "\n"


def _markdown_rows(entry: Entry) -> list[str]:
    study, rows = entry.study, []
    for sized in entry.sizes:
        if not len(sized.results):
            cells = [study.id, ", ".join(study.shows), f"all {len(study.claims)} claims",
                     sized.size, "0", sized.remark, "not run"]  # fmt: skip
            rows.append(_row(cells))
            continue
        for verdict in sized.verdicts:
            measured = ", ".join(_spread_text(spread) for spread in spread_of(verdict))
            cells = [study.id, ", ".join(study.shows), verdict.claim.text, sized.size,
                     _runs_text(sized), measured, verdict.status]  # fmt: skip
            rows.append(_row(cells))
    return rows


def _runs_text(sized: Sized) -> str:
    done = len(sized.results)
    return f"{done}" if done == sized.planned else f"{done} of {sized.planned}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _spread_text(spread: Spread) -> str:
    text = f"{spread.name} {_number(spread.middle)}"
    if spread.high > spread.low:
        text += f" ({_number(spread.low)} to {_number(spread.high)})"
    if spread.published is not None and spread.difference is not None:
        text += f" [paper {_number(spread.published)}, difference {_number(spread.difference)}]"
    return text


def _tally(chapter: Chapter) -> str:
    counts = chapter.counts()
    listed = ", ".join(f"{number} {status}" for status, number in counts.items())
    text = (
        f"{sum(counts.values())} claims in {len(chapter.entries)} studies, each counted at the "
        f"largest size that judged it: {listed}."
    )
    if differing := chapter.differing():
        text += f" Of these, {differing} came out differently at a smaller size."
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.3g}"


def _page(book: Sequence[Chapter]) -> str:
    import jinja2

    figures: dict[str, Any] = {}
    views = [_chapter_view(chapter, figures) for chapter in book]
    scripts = [static_text("plotly-cartesian.min.js"), _file("static/ledger.js")]
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    light, dark = css_variables(LIGHT), css_variables(DARK)
    return environment.from_string(_file("templates/ledger.html.j2")).render(
        chapters=views,
        words=_WORDS,
        policy=content_policy(scripts),
        scripts=scripts,
        data=json_for_html({"palettes": {"light": LIGHT, "dark": DARK}, "figures": figures}),
        style=f":root{{{light}}}:root[data-theme=dark]{{{dark}}}" + _file("static/ledger.css"),
    )


def _chapter_view(chapter: Chapter, figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "paper": chapter.paper,
        "tally": _tally(chapter),
        "errata": chapter.errata,
        "entries": [_entry_view(entry, figures) for entry in chapter.entries],
    }


def _entry_view(entry: Entry, figures: dict[str, Any]) -> dict[str, Any]:
    drawn = entry.drawn
    panels = [] if drawn is None else [plotly_panel(p) for p in entry.study.draw(drawn.results)]
    figures[entry.study.id] = panels
    return {
        "study": entry.study,
        "drawn": None if drawn is None else drawn.size,
        "panels": [plain(panel["title"]) for panel in panels],
        "sizes": [_sized_view(sized) for sized in entry.sizes],
    }


def _sized_view(sized: Sized) -> dict[str, Any]:
    return {
        "size": sized.size,
        "seeds": sized.seeds,
        "runs": len(sized.results),
        "planned": sized.planned,
        "seconds": _duration(sized),
        "remark": sized.remark,
        "verdicts": [
            {
                "claim": verdict.claim,
                "status": verdict.status,
                "numbers": [_spread_view(spread) for spread in spread_of(verdict)],
            }
            for verdict in sized.verdicts
        ],
    }


def _duration(sized: Sized) -> str:
    text = f"{sized.seconds:.0f} s by the clock"
    if sized.processor_seconds >= 0:
        text += f" ({sized.processor_seconds:.0f} s of processor time)"
    return text


def _spread_view(spread: Spread) -> dict[str, str]:
    return {
        "name": spread.name.replace("_", " "),
        "middle": _number(spread.middle),
        "range": f"{_number(spread.low)} to {_number(spread.high)}"
        if spread.high > spread.low
        else "",
        "published": "" if spread.published is None else _number(spread.published),
        "difference": "" if spread.difference is None else _number(spread.difference),
    }


def _file(name: str) -> str:
    return resources.files("theodolite_papers.ledger").joinpath(name).read_text(encoding="utf-8")
