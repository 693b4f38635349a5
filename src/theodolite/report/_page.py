"""Runs to one HTML file that needs nothing else."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from theodolite.records import FAMILIES, Run
from theodolite.report._between import depth_figures
from theodolite.report._catalog import family_figures, history_figures
from theodolite.report._figure import Figure, panel_layout, states_of, with_ranges
from theodolite.report._memorisation import MEANING, memorization_sentence
from theodolite.report._overview import overview_of, whole_numbers
from theodolite.report._reading import Group, RunView, groups_of
from theodolite.report._sentences import headline_sentence, opening_sentence, quiet_reason
from theodolite.report._traces import Trace
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

__all__ = ["fragment_html", "page_html"]

_MOST_STEPS = 60


def page_html(runs: Sequence[Run], title: str = "") -> str:
    """The whole page."""
    groups = groups_of(runs, _MOST_STEPS)
    views = [_group_view(group) for group in groups]
    compared = depth_figures(groups) if len(runs) > 1 else []
    comparison = [_figure_view(figure, "all", [0]) for figure in compared]
    figures = [
        figure for view in views for section in view["sections"] for figure in section["figures"]
    ]
    payload = {
        "palettes": {"light": LIGHT, "dark": DARK},
        "steps": [group.steps for group in groups],
        "figures": {figure["id"]: figure.pop("payload") for figure in figures + comparison},
    }
    scripts = [static_text("plotly-cartesian.min.js"), static_text("page.js")]
    return render(
        "page.html.j2",
        title=plain(title) if title else _title(groups),
        groups=views,
        comparison=comparison,
        data=json_for_html(payload),
        scripts=scripts,
        policy=content_policy(scripts),
        style=_style() + static_text("page.css"),
        about=[_about(run) for group in groups for run in group.runs],
    )


def fragment_html(runs: Sequence[Run]) -> str:
    """The overview alone: no scripts, so that it shows wherever HTML does."""
    groups = groups_of(runs, _MOST_STEPS)
    views = [
        {"overview": overview_of(g), "lead": opening_sentence(g), "runs": _runs(g)} for g in groups
    ]
    return render("fragment.html.j2", groups=views, style=_style())


def _group_view(group: Group) -> dict[str, Any]:
    sections = [_family_section(group, family) for family in FAMILIES]
    told = memorization_sentence(group)
    if told:
        section = _section(group, "memorisation", "Learning or memorising", [])
        sections.append(section | {"meaning": MEANING, "sentence": told})
    over_steps = history_figures(group) if group.is_history else []
    if over_steps:
        sections.append(_section(group, "steps", "Layers over time", over_steps))
    return {
        "index": group.index,
        "name": plain(group.name),
        "lead": opening_sentence(group),
        "overview": overview_of(group),
        "runs": _runs(group),
        "sections": sections,
        "steps": group.steps if group.is_history else [],
        "note": _band_note(group),
    }


def _family_section(group: Group, family: str) -> dict[str, Any]:
    words = FAMILIES[family]
    section = _section(group, family, words.title, family_figures(group, family))
    sentence = headline_sentence(group, family)
    if not section["figures"]:
        sentence = f"Not shown: {quiet_reason(group, family)}."
    whole = whole_numbers(group, family)
    told = {"meaning": words.question, "sentence": sentence.replace("..", "."), "whole": whole}
    return section | told


def _section(group: Group, key: str, title: str, figures: Sequence[Figure]) -> dict[str, Any]:
    drawn = [_figure_view(figure, str(group.index), group.steps) for figure in figures]
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
    drawn = [states_of(panel, steps) for panel in panels]
    layouts = with_ranges(
        [panel_layout(p) for p in panels], [states for states, _ in drawn], shared=figure.shared
    )
    findings = [figure.finding(step) for step in steps]
    same = len(set(findings)) == 1
    return {
        "id": f"g{group}-{figure.key}",
        "title": figure.title,
        "reading": figure.reading,
        "finding": findings[-1],
        "titles": [panel.title for panel in figure.panels],
        "more": [panel.title for panel in figure.more],
        "styles": [panel.style for panel in panels],
        "columns": figure.columns,
        "roomy": figure.roomy,
        "payload": {
            "group": group,
            "titles": [panel.title for panel in panels],
            "findings": findings[-1:] if same else findings,
            "panels": [
                {"layout": layout, "frames": frames, **_split(states)}
                for layout, (states, frames) in zip(layouts, drawn, strict=True)
            ],
        },
    }


def _split(states: list[list[Trace]]) -> dict[str, Any]:
    """Traces parted into what never changes and what a step changes."""
    counts = {len(state) for state in states}
    if len(states) == 1 or len(counts) != 1:
        return {"fixed": None, "states": [_identified(state) for state in states]}
    fixed: list[Trace] = []
    for versions in zip(*map(_identified, states), strict=True):
        first = versions[0]
        fixed.append({k: v for k, v in first.items() if all(w.get(k) == v for w in versions)})
    changing = [
        [
            {k: v for k, v in trace.items() if k not in kept}
            for trace, kept in zip(_identified(state), fixed, strict=True)
        ]
        for state in states
    ]
    return {"fixed": fixed, "states": changing}


def _identified(traces: Sequence[Trace]) -> list[Trace]:
    """Traces whose drawing can be found: Plotly puts the uid into the class of an SVG group."""
    return [trace | {"uid": f"t{i}"} for i, trace in enumerate(traces)]


def _band_note(group: Group) -> str:
    rows: Any = group.runs[0].last.record.contents.get("rows", [])
    if all(row.get("null_mean") is None for row in rows):
        return ""
    whose = f" in “{plain(group.runs[0].name)}”" if len(group.runs) > 1 else ""
    return f"Grey band: what chance gives{whose}, mean ± 2 standard deviations at the latest step."


def _runs(group: Group) -> list[str]:
    return [plain(run.name) for run in group.runs]


def _title(groups: Sequence[Group]) -> str:
    return "Theodolite: " + ", ".join(plain(run.name) for group in groups for run in group.runs)


def _about(run: RunView) -> dict[str, Any]:
    contents = run.last.record.contents
    head = run.run.head.contents
    facts = {
        key: _words(head.get(key) or contents.get(key) or {})
        for key in ("data", "config", "versions")
    }
    facts |= {key: _words(contents.get(key) or {}) for key in ("routes", "seconds")}
    warnings: Any = contents.get("warnings", [])
    return {
        "name": plain(run.name),
        "facts": facts,
        "warnings": [_warning(item) for item in warnings],
        "undefined": _undefined(run),
    }


def _words(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    texts = {
        k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False, default=str)
        for k, v in facts.items()
    }
    return [(plain(key.replace("_", " ")), plain(text)) for key, text in texts.items()]


def _warning(item: Mapping[str, Any]) -> str:
    where = ", ".join(
        plain(str(item[key])) for key in ("layer", "family", "measure") if item.get(key)
    )
    count = f" ({item['count']} times)" if item.get("count", 1) > 1 else ""
    return f"{where + ': ' if where else ''}{plain(str(item.get('text', '')))}{count}"


def _undefined(run: RunView) -> list[str]:
    rows: Any = run.last.record.contents.get("rows", [])
    found = [(row, plain(row.get("layer") or "model")) for row in rows if row.get("reason")]
    return [
        f"{layer}, {row['measure'].replace('_', ' ')}: {plain(str(row['reason']))}"
        for row, layer in found
    ]


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
