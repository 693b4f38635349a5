"""From runs to one HTML file that works offline.

A text that depends on the step is a ``_Varying`` text. The file shows it at the latest step, and
the script replaces it when the slider moves.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from theodolite.advice.captions import (
    CHANCE_BAND,
    CHANCE_DIFFERENCES,
    family_sentence,
    layer_count,
    opening_sentence,
    trend_sentence,
)
from theodolite.advice.comparing import QUESTIONS, group_answers
from theodolite.advice.pairs import LayerPairs
from theodolite.advice.reasons import count_of, notes_in, words_of
from theodolite.records import (
    FAMILIES,
    PROBES,
    Answer,
    Group,
    Run,
    RunView,
    groups_of,
    plain,
)
from theodolite.report._catalog import (
    STRIP,
    family_figures,
    headline_charts,
    history_figures,
)
from theodolite.report._depth import (
    Block,
    Chart,
    blocks_of,
    depth_chart,
    difference_charts,
    headlines,
    is_shortcut,
    token,
)
from theodolite.report._figures import HOUSE_STYLE, Figure, Key, tone, with_ranges
from theodolite.report._maps import pair_maps
from theodolite.report._overview import notes_of, table_of, whole_numbers
from theodolite.report.pages import (
    DARK,
    LIGHT,
    content_policy,
    distinct,
    json_for_html,
    render,
    short,
    static_text,
    style,
)

_FACTS = {
    "config": "settings",
    "routes": "how each family was computed",
    "null": "chance level",
}
_INTERNAL = ("checked", "contractions")  # facts of the record that no page explains
_MOST_STEPS = 60
_MOST_LAST = 4  # values printed at the end of a chart
_MOST_NUMBERS = 3000  # layers times steps that a page carries of each measure
_WIDTHS = {"screen": 780.0, "phone": 320.0}  # pixels of a chart
_LETTER, _GAP = 6.6, 7.0  # pixels of a letter, and between two names


class _Varying:
    """Texts of one group by step; equal ones are kept once."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.entries: dict[str, Any] = {}

    def add(self, key: str, at: Callable[[int], Any]) -> Any:
        """Keep what a place shows at each step; returns what it shows at the latest."""
        states, frames = distinct(map(at, self.group.steps))
        if len(states) > 1:
            self.entries[key] = {"states": states, "frames": frames}
        return states[frames[-1]]


def page_html(runs: Sequence[Run], title: str = "", pairs: LayerPairs | None = None) -> str:
    """The whole page; ``pairs`` has the similarities of the layers of the first two runs."""
    groups = groups_of(runs, _MOST_STEPS, _MOST_NUMBERS)
    views = [_group_view(group) for group in groups]
    comparison = []
    if pairs is not None:
        names = (runs[0].name, runs[1].name)
        comparison += [_figure_view(figure, "all", [0]) for figure in pair_maps(pairs, names)]
    depths = _depths_view(groups) if len(groups) > 1 else None
    drawn = [f for v in views for part in v["sections"] for f in part["figures"]] + comparison
    strips = [v.get(part) for v in views for part in ("strips", "differences")] + [depths]
    drawn += [strip for view in strips if view for strip in view["charts"]]
    payload = {
        "colors": {LIGHT[name]: color for name, color in DARK.items()},
        "template": HOUSE_STYLE.to_plotly_json(),
        "steps": [group.steps for group in groups],
        "layers": [
            [[plain(layer), int(is_shortcut(layer))] for layer in group.layers] for group in groups
        ],
        "texts": [view.pop("texts") for view in views],
        "charts": {f["id"]: f.pop("chart") for f in drawn if "chart" in f},
        "figures": {f["id"]: f.pop("payload") for f in drawn if "payload" in f},
    }
    plotly, own = static_text("plotly-cartesian.min.js"), static_text("page.js")
    about = [_about(group, run) for group in groups for run in group.runs]
    warnings = sum(len(run["warnings"]) for run in about)
    named = ", ".join(plain(run.name) for group in groups for run in group.runs)
    return render(
        "page.html.j2",
        title=plain(title) if title else named,
        groups=views,
        comparison=comparison,
        depths=depths,
        data=json_for_html(payload),
        plotly=plotly,
        script=own,
        policy=content_policy([plotly, own]),
        style=style("overview.css", "page.css"),
        about=about,
        noted=count_of(warnings, "warning") if warnings else "Data, settings, versions",
    )


def fragment_html(runs: Sequence[Run]) -> str:
    """Sentences, charts and table without scripts, for all programs that show HTML."""
    views = []
    for group in groups_of(runs, _MOST_STEPS, _MOST_NUMBERS):
        charts = headline_charts(group)
        view = {
            "lead": opening_sentence(group),
            "answers": [_answer_view(answer, {}) for answer in group_answers(group)],
            "strips": _strips_view(group, charts, titles=True),
            "table": table_of(group, charts),
            "notes": notes_of(group),
        }
        views.append(view)
    return render("fragment.html.j2", groups=views, style=style("overview.css"))


def _group_view(group: Group) -> dict[str, Any]:
    texts = _Varying(group)
    # The loss of the whole model stands above all sections.
    families = [
        f for f in FAMILIES if group.measured(f) or group.whole_model_measures(f) != ["loss"]
    ]
    sections = [_family_section(group, family, texts) for family in families]
    over_steps = history_figures(group) if group.is_history else []
    if over_steps:
        section = _section(group, "steps", "Over training", over_steps)
        sections.append(section | {"sentence": trend_sentence(group)})
    shown = [part for part in sections if part["figures"] or part["whole"]]
    charts = headline_charts(group)
    strips = _strips_view(group, charts)
    named = [f for part in shown for f in part["figures"]] + (strips["charts"] if strips else [])
    titles = {f["key"]: (f["title"], f["id"]) for f in named}

    answered = {step: {a.question: a for a in group_answers(group, step)} for step in group.steps}

    def answer_at(question: str) -> Callable[[int], Any]:
        unknown = Answer(question, "Not measured up to this step.", "undecided")
        return lambda step: _answer_view(answered[step].get(question, unknown), titles)

    asked = answered[group.steps[-1]]
    answers = [texts.add(f"answer-{question}", answer_at(question)) for question in asked]
    return {
        "index": group.index,
        "name": plain(group.name),
        "lead": texts.add("lead", lambda step: opening_sentence(group, step)),
        "answers": answers,
        "strips": strips,
        "differences": _differences_view(group),
        "table": table_of(group, charts),
        "notes": notes_of(group),
        "sections": shown,
        "steps": group.steps if group.is_history else [],
        "texts": texts.entries,
    }


def _strips_view(
    group: Group, charts: Sequence[Chart], *, titles: bool = False
) -> dict[str, Any] | None:
    """Charts of the headlines under each other, on one axis of layers; None without any."""
    if not charts:
        return None
    keys = dict.fromkeys(key for chart in charts for key in chart.legend if key.mark != "band")
    chance = any(key.mark == "band" for chart in charts for key in chart.legend)
    if chance:
        keys[Key(CHANCE_BAND, LIGHT["null"], "band")] = None
    if any(map(is_shortcut, group.layers)):
        keys[Key("shortcut layers", LIGHT["muted"], "ring")] = None
    return {
        "charts": [_chart_view(c, str(group.index), group.steps, titles=titles) for c in charts],
        "blocks": _block_labels(blocks_of(group.layers), group.layers),
        "legend": [_key_view(key) for key in keys],
        "title": "",
        "reading": "",
    }


def _differences_view(group: Group) -> dict[str, Any] | None:
    """Every run minus the first, over depth; None for a single run."""
    if len(group.runs) < 2 or len(group.layers) < 2:
        return None
    charts = difference_charts(group, STRIP)
    others = [
        Key(plain(run.name), tone(group, "muted", i))
        for i, run in enumerate(group.runs[1:], start=1)
    ]
    band = Key(CHANCE_DIFFERENCES, LIGHT["null"], "band")
    return {
        "charts": [_chart_view(chart, str(group.index), group.steps) for chart in charts],
        "blocks": _block_labels(blocks_of(group.layers), group.layers),
        "legend": [_key_view(key) for key in (*others, band)],
        "title": f"Difference from {plain(group.runs[0].name)}",
        "reading": "Above 0: the number is higher than in the first run.",
    } if charts else None  # fmt: skip


def _depths_view(groups: Sequence[Group]) -> dict[str, Any] | None:
    """Networks with different layers over relative depth; None without a common measure."""
    measures = dict.fromkeys(
        entry
        for group in groups
        for entry in headlines(group)
        if len(group.measured(*entry[:2])) > 1
    )
    found = [depth_chart(groups, *entry, STRIP) for entry in measures]
    charts = [chart for chart in found if chart is not None]
    if not charts:
        return None
    names = dict.fromkeys(Key(t.name, t.color) for chart in charts for t in chart.traces)
    return {
        "charts": [_chart_view(chart, "all", [groups[0].steps[-1]]) for chart in charts],
        "blocks": [],
        "legend": [_key_view(key) for key in names],
        "title": "All networks over relative depth",
        "reading": "Input on the left, output on the right, at the latest step.",
    }


def _chart_view(
    chart: Chart, group: str, steps: Sequence[int], *, titles: bool = False
) -> dict[str, Any]:
    top, bottom = chart.ends(steps)
    question = next(
        (f.question for f in (*PROBES.values(), *FAMILIES.values())
         if f.headline == chart.traces[0].line.measure), ""
    )  # fmt: skip
    return {
        "id": f"g{group}-{chart.key}",
        "key": chart.key,
        "title": chart.words.title,
        "reading": chart.words.reading,
        "question": question,
        "family": chart.family,
        "finding": chart.finding(steps[-1]),
        "svg": chart.svg(steps, titles=titles),
        "roomy": False,
        "wide": False,
        "top": top,
        "bottom": bottom,
        "last": chart.last(steps[-1], _MOST_LAST),
        "legend": [_key_view(key) for key in chart.legend],
        "chart": chart.payload(group, steps),
    }


def _block_labels(blocks: Sequence[Block], layers: Sequence[str]) -> list[dict[str, Any]]:
    """Names above the charts, for a screen and for a phone; the first and last layer without one.

    The style sheet hides the names of class "screen" on a phone, and those of "phone" elsewhere.
    """
    sets = {kind: _labels_within(width, blocks, layers) for kind, width in _WIDTHS.items()}
    if sets["screen"] == sets["phone"]:
        sets = {"": sets["screen"]}
    if not any(sets.values()):
        ends = ((layers[0], 0.0, "left"), (layers[-1], 0.5, "right"))
        sets = {kind: [(short(name, 22), name, left, 0.5)] for name, left, kind in ends}
    return [
        {"text": plain(text), "name": plain(name), "kind": kind}
        | {"style": f"left:{100 * left:.3f}%;width:{100 * width:.3f}%"}
        for kind, labels in sets.items()
        for text, name, left, width in labels
    ]


def _labels_within(
    width: float, blocks: Sequence[Block], layers: Sequence[str]
) -> list[tuple[str, str, float, float]]:
    """Text, name, start and share of the width for blocks whose names do not overlap.

    Blocks of equal size are named in equal steps, the last included. Otherwise names that fit
    above their own block come first.
    """
    tails = [block.name.rpartition(".")[2] for block in blocks]
    tails = tails if len(set(tails)) == len(tails) else [short(b.name, 22) for b in blocks]
    found: list[tuple[str, str, float, float]] = []
    fitting: list[int] = []
    for i, block in enumerate(blocks):
        room = width * (block.stop - block.start) / len(layers)
        names = (block.name, block.name.rpartition(".")[2])
        fits = next((name for name in names if _LETTER * len(name) <= room), None)
        fitting += [i] if fits else []
        text = fits or tails[i]
        size = min(width, _LETTER * len(text) + _GAP)
        middle = width * (block.start + block.stop) / 2 / len(layers)
        left = min(max(middle - size / 2, 0.0), width - size)
        found.append((text, block.name, left / width, size / width))

    if len(fitting) == len(blocks):
        return [
            (text, name, block.start / len(layers), (block.stop - block.start) / len(layers))
            for (text, name, _, _), block in zip(found, blocks, strict=True)
        ]

    def overlap(chosen: Sequence[int]) -> bool:
        pairs = pairwise(sorted(found[i][2:] for i in chosen))
        return any(left + size > after + 1e-9 for (left, size), (after, _) in pairs)

    if len({block.stop - block.start for block in blocks}) == 1:
        last = len(blocks) - 1  # its name replaces one that is too near
        steps = ([*range(0, last - step // 2, step), last] for step in range(1, last + 1))
        kept = next((chosen for chosen in steps if not overlap(chosen)), [])
    else:
        kept = []
        for i in (*fitting, *(i for i in range(len(blocks)) if i not in fitting)):
            kept += [] if overlap([*kept, i]) else [i]
    return [found[i] for i in sorted(kept)]


def _key_view(key: Key) -> dict[str, Any]:
    parts = {"name": key.name, "mark": key.mark, "dash": key.dash, "opacity": key.opacity}
    return parts | {"token": token(key.color)}


def _answer_view(answer: Answer, titles: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """A sentence with links to those of its figures that the page has."""
    return {
        "key": answer.question,
        "question": QUESTIONS[answer.question],
        "class": f"answer {answer.certainty}",
        "parts": {
            "text": answer.text,
            "certainty": answer.certainty,
            "why": answer.evidence,
            "advice": answer.advice,
        },
        "links": [titles[key] for key in dict.fromkeys(answer.figures) if key in titles],
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


def _section(
    group: Group, key: str, title: str, figures: Sequence[Figure | Chart]
) -> dict[str, Any]:
    drawn = [
        _chart_view(figure, str(group.index), group.steps)
        if isinstance(figure, Chart)
        else _figure_view(figure, str(group.index), group.steps)
        for figure in figures
    ]
    alone = [view for view in drawn if len(view.get("styles", ())) < 2]
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
    """The data for the template; "payload" has the data for the script."""
    panels = figure.all_panels
    states = [panel.states(steps) for panel in panels]
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
        "alt": f"{figure.words.title}. {findings[-1]}".strip(),
        "legend": [_key_view(key) for key in figure.legend],
        "titles": [panel.title for panel in figure.panels],
        "more": [panel.title for panel in figure.more],
        "styles": [panel.style for panel in panels],
        "columns": figure.columns,
        "roomy": figure.roomy,
        "svg": "",
        "wide": False,
        "payload": {
            "group": group,
            "titles": [panel.title for panel in panels],
            "findings": findings[-1:] if len(set(findings)) == 1 else findings,
            "panels": drawn,
        },
    }  # fmt: skip


def _about(group: Group, run: RunView) -> dict[str, Any]:
    contents = run.last.record.contents
    head = run.run.head.contents
    facts = {
        key: _words(head.get(key) or contents.get(key) or {})
        for key in ("data", "config", "versions")
    }
    facts |= {key: _words(contents.get(key) or {}) for key in ("routes", "seconds")}
    above = {measure for _, measure, _ in headlines(group)}  # the notes above name these
    missing = [row for row in contents.get("rows", []) if row.get("reason")]
    undefined = [
        {
            **row,
            "text": row["reason"],
            "note": run.last.note(row["family"], row["measure"], row.get("layer")),
        }
        for row in missing
        if row["measure"] not in above
    ]
    said = {(row["family"], row["measure"], row.get("layer")) for row in missing}
    warnings = [
        entry
        for entry in contents.get("warnings", [])
        if (entry.get("family"), entry["measure"], entry.get("layer")) not in said
    ]
    total = layer_count(group)
    return {
        "name": plain(run.name),
        "facts": {_FACTS.get(key, key): words for key, words in facts.items()},
        "warnings": notes_in(warnings, total),
        "undefined": notes_in(undefined, total),
    }


def _words(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for key, value in facts.items():
        if value is not None:
            found.append((plain(key.replace("_", " ")), plain(_fact(value))))
    return found


def _fact(value: Any) -> str:
    """A setting as people write it: lists with commas, mappings as names with values."""
    if isinstance(value, Mapping) and "note" in value:
        return words_of(value)
    if isinstance(value, Mapping):
        entries = (
            f"{_FACTS.get(key, key)} {_fact(entry)}"
            for key, entry in value.items()
            if entry is not None and key not in _INTERNAL
        )
        return "; ".join(entries).replace("_", " ")
    if isinstance(value, list | tuple):
        return ", ".join(map(_fact, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
