"""Runs to one HTML file that needs nothing else.

What a step changes on the page, apart from figures, is a ``_Varying`` text: the file shows it at
the latest step, and the script exchanges it when the slider moves.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from theodolite.records import FAMILIES, Answer, Run
from theodolite.report._answers import QUESTIONS, group_answers
from theodolite.report._catalog import family_figures, history_figures
from theodolite.report._figures import HOUSE_STYLE, Figure, states_of, tone, with_ranges
from theodolite.report._maps import pair_map
from theodolite.report._overview import Overview, Reading, overview_of, readings_of, whole_numbers
from theodolite.report._profiles import depth_figures
from theodolite.report._reading import Group, RunView, groups_of
from theodolite.report._sentences import (
    count_of,
    family_sentence,
    opening_sentence,
    trend_sentence,
)
from theodolite.report.pages import (
    DARK,
    LIGHT,
    content_policy,
    css_variables,
    json_for_html,
    plain,
    render,
    static_text,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["fragment_html", "page_html"]

_MOST_STEPS = 60
_TOKENS = {color: name for name, color in LIGHT.items()}


class _Varying:
    """Texts of one group by step; equal ones are kept once."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.entries: dict[str, Any] = {}

    def add(self, key: str, at: Callable[[int], Any]) -> Any:
        """Keep what a place shows at each step; returns what it shows at the latest."""
        states: list[Any] = []
        frames = []
        for step in self.group.steps:
            value = at(step)
            if value not in states:
                states.append(value)
            frames.append(states.index(value))
        if len(states) > 1:
            self.entries[key] = {"states": states, "frames": frames}
        return states[frames[-1]]


def page_html(runs: Sequence[Run], title: str = "", pairs: "pd.DataFrame | None" = None) -> str:
    """The whole page; ``pairs`` has CKA of all layers of the first run with all of the second."""
    groups = groups_of(runs, _MOST_STEPS)
    views = [_group_view(group) for group in groups]
    compared = depth_figures(groups) if len(runs) > 1 else []
    if pairs is not None:
        compared = [pair_map(pairs, (runs[0].name, runs[1].name)), *compared]
    comparison = [_figure_view(figure, "all", [0]) for figure in compared]
    figures = [figure for view in views for part in view["sections"] for figure in part["figures"]]
    payload = {
        "colors": {LIGHT[name]: color for name, color in DARK.items()},
        "template": HOUSE_STYLE.to_plotly_json(),
        "steps": [group.steps for group in groups],
        "texts": [view.pop("texts") for view in views],
        "figures": {figure["id"]: figure.pop("payload") for figure in figures + comparison},
    }
    scripts = [static_text("plotly-cartesian.min.js"), static_text("page.js")]
    about = [_about(run) for group in groups for run in group.runs]
    warnings = sum(len(run["warnings"]) for run in about)
    named = ", ".join(plain(run.name) for group in groups for run in group.runs)
    return render(
        "page.html.j2",
        title=plain(title) if title else named,
        groups=views,
        comparison=comparison,
        open_comparison=pairs is not None,
        compares="CKA of every pair of layers; every run over relative depth."
        if pairs is not None
        else "Every run at its latest step, over relative depth.",
        data=json_for_html(payload),
        scripts=scripts,
        policy=content_policy(scripts),
        style=_style() + static_text("page.css"),
        about=about,
        noted=count_of(warnings, "warning") if warnings else "Data, settings, versions",
    )


def fragment_html(runs: Sequence[Run]) -> str:
    """Sentences and overview alone: no scripts, so that it shows wherever HTML does."""
    views = [
        {
            "lead": opening_sentence(group),
            "answers": [_answer_view(answer, {}) for answer in group_answers(group)],
            "table": _table_view(group, overview_of(group), None),
        }
        for group in groups_of(runs, _MOST_STEPS)
    ]
    return render("fragment.html.j2", groups=views, style=_style())


def _group_view(group: Group) -> dict[str, Any]:
    texts = _Varying(group)
    told = [f for f in FAMILIES if group.measured(f) or group.whole(f) != ["loss"]]  # it is above
    sections = [_family_section(group, family, texts) for family in told]
    over_steps = history_figures(group) if group.is_history else []
    if over_steps:
        section = _section(group, "steps", "Over training", over_steps)
        sections.append(section | {"sentence": trend_sentence(group)})
    shown = [part for part in sections if part["figures"] or part["whole"]]
    titles = {f["key"]: (f["title"], f["id"]) for part in shown for f in part["figures"]}

    answered = {step: {a.question: a for a in group_answers(group, step)} for step in group.steps}

    def answer_at(question: str) -> Callable[[int], Any]:
        unknown = Answer(question, "Not measured up to this step.", "open", "see later steps")
        return lambda step: _answer_view(answered[step].get(question, unknown), titles)

    asked = answered[group.steps[-1]]
    answers = [texts.add(f"answer-{question}", answer_at(question)) for question in asked]
    return {
        "index": group.index,
        "name": plain(group.name),
        "lead": texts.add("lead", lambda step: opening_sentence(group, step)),
        "answers": answers,
        "table": _table_view(group, overview_of(group), texts),
        "sections": shown,
        "steps": group.steps if group.is_history else [],
        "texts": texts.entries,
    }


def _answer_view(answer: Answer, titles: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """A sentence with links to those of its figures that the page has."""
    return {
        "key": answer.question,
        "question": QUESTIONS[answer.question],
        "class": f"answer {answer.certainty}",
        "parts": {"text": answer.text, "certainty": answer.certainty, "why": answer.why},
        "links": [titles[key] for key in dict.fromkeys(answer.evidence) if key in titles],
    }


def _table_view(group: Group, overview: Overview, texts: _Varying | None) -> dict[str, Any]:
    """The overview; with ``texts``, its numbers at every step."""
    rows = []
    for i, layer in enumerate(overview.layers):
        cells = []
        for column in overview.columns:
            cell = column.cells[i]
            readings = [_reading_view(reading) for reading in cell.readings]
            key = f"cell-{i}-{column.family.headline.replace('_', '-')}"
            if texts is not None:
                at = {s: readings_of(group, column.family, layer, s) for s in group.steps}
                for place in range(len(readings)):
                    texts.add(f"{key}-{place}", _reader(at, place))
            view = {"family": column.family, "picture": cell.picture, "quiet": cell.quiet}
            cells.append(view | {"key": key, "readings": readings})
        rows.append({"layer": plain(layer), "cells": cells})
    chance = any(r.chance for c in overview.columns for cell in c.cells for r in cell.readings)
    return {
        "rows": rows,
        "columns": [{"family": c.family, "sentence": c.sentence} for c in overview.columns],
        "note": overview.note,
        "absent": overview.absent,
        "runs": [plain(run.name) for run in group.runs],
        "tones": [_TOKENS[tone(group, "muted", i)] for i in range(len(group.runs))],
        "chance": chance,
        "band": group.is_history and chance,
    }


def _reader(at: Mapping[int, Sequence[Reading]], place: int) -> Callable[[int], Any]:
    """A reading as [number, error, chance, class, source]: there are many thousands of them."""

    def state(step: int) -> list[Any]:
        view = _reading_view(at[step][place])
        source = json.loads(view["source"])
        where = source and [source["run"], source["step"], source["path"][1]]
        return [*view["parts"].values(), view["class"].removeprefix("reading "), where]

    return state


def _reading_view(reading: Reading) -> dict[str, Any]:
    marks = {"within": reading.within, "top": reading.top}
    flags = "".join(f" {name}" for name, holds in marks.items() if holds)
    error = f"±{reading.error}" if reading.error else ""
    return {
        "class": f"reading run{reading.order % 6}{flags}",
        "parts": {"number": reading.number, "error": error, "chance": reading.chance},
        "source": reading.source,
        "run": reading.run,
    }


def _family_section(group: Group, family: str, texts: _Varying) -> dict[str, Any]:
    words = FAMILIES[family]
    section = _section(group, family, words.title, family_figures(group, family))
    sentence = texts.add(f"says-{family}", lambda step: family_sentence(group, family, step))
    whole = []
    by_step = {step: whole_numbers(group, family, step) for step in group.steps}
    for i, (run, numbers) in enumerate(whole_numbers(group, family)):
        entries = []
        for j, (name, number, source, meaning) in enumerate(numbers):
            key = f"whole-{family}-{i}-{j}"
            texts.add(key, _whole_reader(by_step, i, j))
            entry = {"key": key, "name": name, "number": number, "source": source}
            entries.append(entry | {"meaning": meaning})
        whole.append({"run": run if len(group.runs) > 1 else "", "numbers": entries})
    return section | {"meaning": words.question, "sentence": sentence, "whole": whole}


def _whole_reader(whole: Mapping[int, Any], i: int, j: int) -> Callable[[int], Any]:
    """The j-th number of the i-th run; a dash where a step has none."""

    def at(step: int) -> Any:
        found = whole[step]
        known = i < len(found) and j < len(found[i][1])
        _, number, source, _ = found[i][1][j] if known else ("", "–", "null", "")
        return {"class": "value", "parts": {"number": number}, "source": source}

    return at


def _section(group: Group, key: str, title: str, figures: Sequence[Figure]) -> dict[str, Any]:
    drawn = [_figure_view(figure, str(group.index), group.steps) for figure in figures]
    alone = [view for view in drawn if len(view["styles"]) < 2]
    if len(alone) % 2:  # two stand side by side; the last would leave a hole
        alone[-1]["wide"] = True
    return {
        "key": key,
        "title": title,
        "figures": drawn,
        "meaning": "",
        "sentence": "",
        "whole": [],
    }


def _figure_view(figure: Figure, group: str, steps: Sequence[int]) -> dict[str, Any]:
    """What the template needs, and under "payload" what the script draws from."""
    panels = figure.all_panels
    states = [states_of(panel, steps) for panel in panels]
    layouts = with_ranges(panels, [found for found, _ in states], shared=figure.shared)
    findings = [figure.finding(step) for step in steps]
    drawn = []
    for panel, layout, (found, frames) in zip(panels, layouts, states, strict=True):
        looks = [series.look.to_plotly_json() for series in panel.series]
        # Plotly puts the uid into the class of an SVG group: a drawing can be found by it.
        named = [look | {"uid": f"t{i}"} for i, look in enumerate(looks)]
        entry = {"layout": layout, "looks": named, "states": found, "frames": frames}
        drawn.append(entry | {"cursor": panel.cursor})
    return {
        "id": f"g{group}-{figure.key}",
        "key": figure.key,
        "title": figure.words.title,
        "reading": figure.words.reading,
        "finding": findings[-1],
        "legend": [
            {"name": k.name, "mark": k.mark, "dash": k.dash, "opacity": k.opacity,
             "token": _TOKENS[k.color]}
            for k in figure.legend
        ],
        "titles": [panel.title for panel in figure.panels],
        "more": [panel.title for panel in figure.more],
        "styles": [panel.style for panel in panels],
        "columns": figure.columns,
        "roomy": figure.roomy,
        "wide": False,
        "payload": {
            "group": group,
            "titles": [panel.title for panel in panels],
            "findings": findings[-1:] if len(set(findings)) == 1 else findings,
            "panels": drawn,
        },
    }  # fmt: skip


def _about(run: RunView) -> dict[str, Any]:
    contents = run.last.record.contents
    head = run.run.head.contents
    facts = {
        key: _words(head.get(key) or contents.get(key) or {})
        for key in ("data", "config", "versions")
    }
    facts |= {key: _words(contents.get(key) or {}) for key in ("routes", "seconds")}
    warnings = [_warning(item) for item in contents.get("warnings", [])]
    undefined = [
        f"{plain(row.get('layer') or 'model')}, {row['measure'].replace('_', ' ')}:"
        f" {plain(str(row['reason']))}"
        for row in contents.get("rows", [])
        if row.get("reason")
    ]
    unreadable = [
        f"{plain(layer)}, covariance: {why}" for layer, why in run.last.unreadable.items()
    ]
    return {
        "name": plain(run.name),
        "facts": facts,
        "warnings": warnings,
        "undefined": undefined + unreadable,
    }


def _words(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for key, value in facts.items():
        text = f"{value:.4g}" if isinstance(value, float) else value
        if not isinstance(text, str):
            text = json.dumps(text, ensure_ascii=False, default=str)
        found.append((plain(key.replace("_", " ")), plain(text)))
    return found


def _warning(item: Mapping[str, Any]) -> str:
    where = ", ".join(
        plain(str(item[key])) for key in ("layer", "family", "measure") if item.get(key)
    )
    count = f" ({item['count']} times)" if item.get("count", 1) > 1 else ""
    return f"{where + ': ' if where else ''}{plain(str(item.get('text', '')))}{count}"


def _style() -> str:
    """Colors of both themes, then the rules that notebooks and pages share."""
    light = f"{css_variables(LIGHT)}color-scheme:light"
    dark = f"{css_variables(DARK)}color-scheme:dark"
    system = "screen and (prefers-color-scheme:dark)"
    return (
        f".theodolite{{{light}}}"
        f"@media {system}{{.theodolite:not(.light){{{dark}}}}}"
        f"@media screen{{.theodolite.dark{{{dark}}}}}"
    ) + static_text("overview.css")
