"""The ledger in the documentation site: a summary, open runs, and a page for each paper.

Pages are Markdown with tables in HTML. Numbers, verdicts, settings and pictures come from the
records and from each paper's ``published.toml``; nothing is copied by hand.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from theodolite import __version__
from theodolite.records import plain
from theodolite.report.pages import DARK, LIGHT, css_variables, json_for_html, static_text
from theodolite_papers.ledger._book import VERDICTS, Chapter, Entry, Sized, Spread, chapters
from theodolite_papers.ledger._pages import (
    FILE,
    counted_statuses,
    decider_text,
    exhibit_of,
    ledger_json,
    number_text,
    origin_text,
    provenance_of,
    spread_text,
    tally_of,
    withdrawn_groups,
)
from theodolite_papers.ledger._panels import plotly_panel
from theodolite_papers.ledger._published import (
    SOURCES,
    Headline,
    Origin,
    core_ratio,
    differences,
    estimated_hours,
    headlines_of,
    lesson_of,
    listed_open,
    origin_of,
    printed_panels,
    setting_text,
    settings_of,
    size_name,
    unstudied_of,
)
from theodolite_papers.ledger._results import LARGE, counted
from theodolite_papers.ledger._study import SIZES
from theodolite_papers.ledger._verdicts import ONE_SEED, Verdict

__all__ = ["OpenRuns", "open_runs", "write_site"]


def write_site(results: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[Path]:
    """Write the ledger's pages of the documentation site, and the files that they load.

    Args:
        results: folder of records.
        folder: where the pages go; ``docs/ledger`` in this repository.

    Returns:
        The pages.

    Raises:
        RecordError: If a record is damaged; the message names its folder.
    """
    book = chapters(results)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    light, dark = css_variables(LIGHT), css_variables(DARK)
    colors = f".ledger{{{light}}}[data-md-color-scheme=slate] .ledger{{{dark}}}"
    files = {
        "plotly-cartesian.min.js": static_text("plotly-cartesian.min.js"),
        "ledger.js": _file("static/ledger.js"),
        "ledger.css": colors + _file("static/ledger.css"),
        FILE: ledger_json(book),
    }
    keys = [chapter.paper.key for chapter in book]
    pages = {"index.md": _rendered("summary.md.j2", keys=keys, **_summary(book))}
    for chapter in book:
        pages[f"{chapter.paper.key}.md"] = _rendered("paper.md.j2", keys=keys, **_paper(chapter))
    for name, text in (files | pages).items():
        (target / name).write_text(text, encoding="utf-8")
    return [target / name for name in pages]


def _rendered(template: str, **values: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    text = environment.from_string(_file(f"templates/{template}")).render(
        version=__version__, **values
    )
    return text.replace("\n\n\n", "\n\n")


def _file(name: str) -> str:
    return resources.files("theodolite_papers.ledger").joinpath(name).read_text(encoding="utf-8")


# The summary.


def _summary(book: Sequence[Chapter]) -> dict[str, Any]:
    papers: list[dict[str, Any]] = [
        {"paper": chapter.paper, "lines": [_headline(chapter, *one) for one in _headlines(chapter)]}
        for chapter in book
    ]
    lines = [line for paper in papers for line in paper["lines"]]
    tallies = {
        words: _tally([line for line in lines if line["source"] == source])
        for source, words in _WHOSE.items()
    }
    return {
        "papers": papers,
        "own": [chapter.paper for chapter in book if chapter.paper.own],
        "count": len(lines),
        "hypotheses": sum(len(p["lines"]) for p in papers if p["paper"].own),
        "most": max((len(p["lines"]) for p in papers), default=0),
        "tallies": {words: tally for words, tally in tallies.items() if tally},
        "words": VERDICTS,
        "sources": SOURCES,
        "provenance": provenance_of(book),
        "open": [_open_view(one) for one in open_runs(book)],
    }


_WHOSE = {"paper": "the papers' own", "weakened": "weakened", "ours": "ours"}


def _tally(lines: Sequence[Mapping[str, Any]]) -> str:
    replaced = Counter(line["kind"] for line in lines if line["stand_in"])
    proofs = Counter(line["kind"] for line in lines if line["in_a_proof"])
    return counted_statuses(Counter(line["kind"] for line in lines), replaced, proofs)


def _headlines(chapter: Chapter) -> list[tuple[Entry, int, Headline]]:
    """For each headline: its study, the number of its claim, and its text in the summary."""
    places = {
        claim.id: (entry, k)
        for entry in chapter.entries
        for k, claim in enumerate(entry.study.claims)
    }
    return [(*places[claim], one) for claim, one in headlines_of(chapter.paper.key).items()]


def _headline(chapter: Chapter, entry: Entry, place: int, headline: Headline) -> dict[str, Any]:
    claim = entry.study.claims[place]
    judged = entry.judged(place)
    verdict = judged[-1] if judged else None
    origin = origin_of(entry.study, claim.id) or Origin("ours")
    line = {
        "sentence": headline.says,
        "claim": claim.id,
        "page": f"{chapter.paper.key}.md",
        "source": origin.source,
        "section": origin.section,
        "in_a_proof": origin.in_a_proof,
        "kind": entry.final_status(place),
        "status": entry.final_status(place),
        "weak": verdict is not None and verdict.status == ONE_SEED,
        "stand_in": entry.on_a_stand_in(place),
        "size": "",
        "evidence": "",
        "measured": "",
    }
    if verdict is None:
        return line
    sized = next(sized for sized in entry.sizes if sized.size == verdict.size)
    return line | {
        "size": size_name(entry.study, sized.size, sized.results),
        "evidence": _evidence(entry, sized, verdict),
        "status": _shown_status(verdict),
        "measured": _measured(sized, verdict, headline.numbers),
    }


def _shown_status(verdict: Verdict) -> str:
    """The status; with one seed also on which side the number lies."""
    return str(verdict) if verdict.status == ONE_SEED else verdict.status


def _measured(sized: Sized, verdict: Verdict, phrases: Mapping[str, str]) -> str:
    """The deciding number with its interval, then the other numbers that have a phrase."""
    decider = verdict.decider
    spreads = {one.name.replace("_", " "): one for one in sized.spreads(verdict)}
    named = {name.replace("_", " "): phrase for name, phrase in phrases.items()}
    parts = []
    if verdict.repeat == "network" and verdict.passed is not None:
        parts = [f"holds on {verdict.passed} of {verdict.seeds} networks"]
    if decider is not None:
        name = decider.name.replace("_", " ")
        printed = _paper_value(spreads[name]) if name in spreads else ""
        parts = [decider_text(replace(decider, name=named.pop(name, name))) + printed]
    others = {phrase: spreads[name] for name, phrase in named.items()}
    parts += [f"{p} {number_text(one.middle)}{_paper_value(one)}" for p, one in others.items()]
    return "; ".join(parts)


def _paper_value(one: Spread) -> str:
    return "" if one.published is None else f" (paper {number_text(one.published)})"


def _evidence(entry: Entry, sized: Sized, verdict: Verdict) -> str:
    """Units, runs, pass rate, ratios and stand-in of a verdict, in short."""
    study, made = entry.study, len(sized.results)
    found = differences(study, sized.size, sized.results)
    missed = verdict.status == ONE_SEED  # the verdict has the reason
    parts = [verdict.support() if missed or not verdict.reason else verdict.reason]
    if verdict.claim.unit == "calculation":
        return parts[0]
    if made != sized.planned:
        parts.append(f"{made} of the {sized.planned} runs that are planned")
    parts += [f"the paper has {one.paper} seeds" for one in found if one.name == "seeds"]
    parts += [
        str(one) if one.ratio is None else f"{one.name} x{one.ratio:.2g}"
        for one in found
        if one.name != "seeds" and (one.ratio is not None or not sized.stand_in)
    ]
    parts += [f"stand-in: {sized.stand_in}"] if sized.stand_in else []
    return "; ".join(parts)


# What is open.


@dataclass(frozen=True)
class OpenRuns:
    """Runs on the paper's data that are not done.

    Args:
        study: its id.
        size: its size.
        missing: number of runs.
        hours: on the accelerator, of all of them; nan where nothing is known.
        core_hours: on two processor cores, of all of them; nan where nothing is known.
        basis: "measured" from the runs of this size that were made, or "estimated".
        reason: why they were not made.
        command: what makes them; runs that have a record are not made again.
    """

    study: str
    size: str
    missing: int
    hours: float
    core_hours: float
    basis: str
    reason: str
    command: str


def open_runs(book: Sequence[Chapter]) -> list[OpenRuns]:
    """Every run on the papers' data that is planned and not done, the cheapest first.

    Our own studies list their missing runs themselves.
    """
    entries = [e for chapter in book if not chapter.paper.own for e in chapter.entries]
    found = [_open(entry, sized) for entry in entries for sized in entry.sizes]
    listed = [
        OpenRuns(
            f"{chapter.paper.key}.{one['study']}",
            one["size"],
            one["missing"],
            float(one["gpu_hours"]),
            _core_hours(one, chapter.paper.key),
            "estimated",
            one["reason"],
            one["command"],
        )
        for chapter in book
        for one in listed_open(chapter.paper.key)
    ]
    known = [one for one in found if one is not None]
    return sorted([*known, *listed], key=_cheapest)


def _core_hours(listed: Mapping[str, Any], paper: str) -> float:
    ratio = core_ratio(paper, listed["study"])
    return float(listed.get("core_hours", ratio * listed["gpu_hours"]))


def _cheapest(one: OpenRuns) -> tuple[bool, float]:
    known = [hours for hours in (one.core_hours, one.hours) if not math.isnan(hours)]
    return not known, min(known, default=0.0)


def _open(entry: Entry, sized: Sized) -> OpenRuns | None:
    study, size, made = entry.study, sized.size, len(sized.results)
    if size not in LARGE or size not in study.configs or made >= sized.planned:
        return None
    if entry.drawn is not None and SIZES.index(size) < SIZES.index(entry.drawn.size):
        return None  # a larger size was run
    missing = sized.planned - made
    command = f"theodolite study run {study.id} --size {size} --device cuda"
    command += " --results papers/records"
    ratio = core_ratio(study.paper, study.id.split(".", 1)[1])
    hours = estimated_hours(study, size)
    core_hours = ratio * hours
    basis, reason = "estimated", study.not_run.get(size, "not run yet")
    if made:
        basis, reason = "measured", f"{made} of {sized.planned} runs made"
        each = math.fsum(run.seconds for run in sized.results) / made / 3600
        if all(run.device.startswith("cpu") for run in sized.results):
            core_hours = missing * each / 2  # two runs at a time
            hours = core_hours / ratio
        else:  # those before version 0.2.0 do not say: they were made on an accelerator
            hours = missing * each
            core_hours = ratio * hours
    return OpenRuns(study.id, size, missing, hours, core_hours, basis, reason, command)


def _open_view(one: OpenRuns) -> dict[str, Any]:
    return {**vars(one), "hours": _hours(one.hours), "core_hours": _hours(one.core_hours)}


def _hours(hours: float) -> str:
    return "not known" if math.isnan(hours) else f"{float(f'{hours:.2g}'):,g}"


# A paper.


def _paper(chapter: Chapter) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    entries = [_study_view(entry, figures) for entry in chapter.entries]
    return {
        "paper": chapter.paper,
        "lesson": lesson_of(chapter.paper.key),
        "tally": tally_of(chapter),
        "entries": entries,
        "exhibits": [
            {**vars(exhibit_of(entry)), "id": entry.study.id} for entry in chapter.entries
        ],
        "unstudied": unstudied_of(chapter.paper.key),
        "withdrawn": withdrawn_groups(chapter.withdrawn),
        "errata": chapter.errata,
        "data": json_for_html({"palettes": {"light": LIGHT, "dark": DARK}, "figures": figures}),
    }


def _study_view(entry: Entry, figures: dict[str, Any]) -> dict[str, Any]:
    drawn, study = entry.drawn, entry.study
    measured = [] if drawn is None else list(study.draw(drawn.results))
    panels = [*printed_panels(study), *sorted(measured, key=lambda panel: not panel.printed)]
    figures[study.id] = [plotly_panel(panel) for panel in panels]
    return {
        "study": study,
        "anchor": study.id.split(".", 1)[1],
        "drawn": None if drawn is None else drawn.size,
        "panels": [{"title": plain(panel.title), "printed": panel.printed} for panel in panels],
        "sizes": [
            {
                "size": sized.size,
                "description": sized.description(),
                "provenance": sized.provenance(study) if len(sized.results) else "",
                "seconds": _duration(sized) if len(sized.results) else "",
            }
            for sized in entry.sizes
        ],
        "settings": _settings(entry),
        "claims": [_claim_view(entry, place) for place in range(len(study.claims))],
    }


def _settings(entry: Entry) -> dict[str, Any]:
    """Settings of the paper beside those of every size that was run or is planned."""
    study = entry.study
    sizes = [sized.size for sized in entry.sizes if sized.size in study.configs]
    columns = [
        settings_of(study, sized.size, sized.results)
        for sized in entry.sizes
        if sized.size in study.configs
    ]
    rows = [
        {
            "name": settings[0].name,
            "paper": "not printed"
            if settings[0].paper is None
            else setting_text(settings[0].paper),
            "ours": [setting_text(setting.ours) for setting in settings],
        }
        for settings in zip(*columns, strict=True)
    ]
    return {"sizes": sizes, "rows": rows}


def _claim_view(entry: Entry, place: int) -> dict[str, Any]:
    """A claim at the largest size that judged it; smaller sizes are folded."""
    claim = entry.study.claims[place]
    lines = [
        {
            "size": sized.size,
            "status": _shown_status(verdict),
            "kind": verdict.status,
            "support": sized.verdict_text(verdict)
            .removeprefix(_shown_status(verdict))
            .lstrip(", "),
            "decider": "" if verdict.decider is None else decider_text(verdict.decider),
            "numbers": [spread_text(one) for one in sized.spreads(verdict) if _new(one, verdict)],
        }
        for sized in entry.sizes
        if len(sized.results)
        for verdict in (sized.verdicts[place],)
    ]
    judged = [line for line in lines if line["kind"] != "reported"] or lines
    shown = judged[-1] if judged else None
    return {
        "claim": claim,
        "whose": origin_text(entry.study, claim.id),
        "shown": shown,
        "folded": [line for line in lines if line is not shown],
    }


def _new(spread: Spread, verdict: Verdict) -> bool:
    """Whether a number says more than the deciding number beside it."""
    decider = verdict.decider
    same = decider is not None and decider.name.replace("_", " ") == spread.name.replace("_", " ")
    return not same or spread.published is not None


def _duration(sized: Sized) -> str:
    text = f"It took {_time(math.fsum(run.seconds for run in sized.results))}"
    processor = math.fsum(run.processor_seconds for run in sized.results)
    return f"{text} ({_time(processor)} of processor time)" if processor >= 0 else text


def _time(seconds: float) -> str:
    """``40 seconds``, ``26 minutes``, ``3.5 hours``."""
    if round(seconds) < 1:
        return "less than a second"
    if seconds < 100:
        return counted(round(seconds), "second")
    minutes = seconds / 60
    return counted(round(minutes), "minute") if minutes < 100 else f"{minutes / 60:.2g} hours"
