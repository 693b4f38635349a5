"""The ledger as files: a page with the pictures, and a table in Markdown."""

import math
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from theodolite.report.pages import (
    DARK,
    LIGHT,
    content_policy,
    css_variables,
    json_for_html,
    plain,
    static_text,
)
from theodolite_papers.ledger._entries import Chapter, Entry, Sized, Spread, chapters, spread_of
from theodolite_papers.ledger._plotly import plotly_panel

__all__ = ["ledger_markdown", "write_ledger"]

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
