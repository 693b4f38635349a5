"""A ranking of models as one page: sentences, the table, learning curves and profiles of layers.

Drawings are plain SVG in the colours of the page, so the page needs no script and can be printed.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from theodolite.advice.captions import digest_words
from theodolite.advice.choosing import RANKING_QUESTIONS, ranking_lead
from theodolite.advice.reasons import noted
from theodolite.records import (
    Answer,
    Record,
    finite,
    plain,
    require_class,
    require_path,
    short_count,
)
from theodolite.report.pages import content_policy, render, short, style, write_page

_TONES = ("representation", "gradient", "kernel", "covariance", "tangent")  # of the first models
_SHEETS = ("overview.css", "page.css", "transfer.css")
_PROFILES = 12  # models whose layers are drawn


def write_transfer(record: Record, path: str | os.PathLike[str], title: str = "") -> Path:
    """Write the page of a ranking of models; it needs no network and no other file.

    Args:
        record: record of a ranking by :func:`theodolite.transfer`.
        path: file to write; its folder is created.
        title: heading of the page.

    Returns:
        The path of the file.
    """
    require_class(Record, record=record)
    require_path(path=path)
    require_class(str, title=title)
    contents = record.contents
    models = contents["models"]
    classes = models[0]["forecast"]["measure"] == "accuracy"
    page = render(
        "transfer.html.j2",
        title=plain(title or contents["name"] or "Which model to start from"),
        lead=" ".join([ranking_lead(contents), *_digest_sentence(record)]),
        **_ranking(contents, classes),
        notes=[plain(note) for note in noted(contents)],
        curves=_curves(record, classes),
        profiles=[_profile(i, m, classes) for i, m in enumerate(models[:_PROFILES])],
        left_out=max(len(models) - _PROFILES, 0),
        facts=_facts(contents),
        style=style(*_SHEETS),
        policy=content_policy([]),
    )
    return write_page(path, page)


def _digest_sentence(record: Record) -> list[str]:
    words = digest_words(record)
    return [f"{words[0].upper()}{words[1:]}."] if words else []


def _tone(index: int) -> str:
    return f"var(--{_TONES[index]})" if index < len(_TONES) else "var(--muted)"


def _shown(value: float, classes: bool) -> str:
    """A share in per cent, or an error."""
    if not finite(value):
        return "–"
    return f"{100 * value:.1f} %" if classes else f"{value:.3f}"


def _answers(contents: Mapping[str, Any]) -> list[dict[str, str]]:
    """The sentences of the record."""
    answers = (Answer.from_entry(entry) for entry in contents.get("answers") or [])
    return [
        {"question": RANKING_QUESTIONS.get(a.question, ""), "text": plain(a.text),
         "evidence": plain(a.evidence), "certainty": a.certainty,
         "advice": plain(a.advice) if a.advice else ""}  # plain would name it "(model)"
        for a in answers
    ]  # fmt: skip


def transfer_fragment(record: Record) -> str:
    """Sentences and ranking as a fragment without scripts, for ``_repr_html_``."""
    contents = record.contents
    classes = contents["models"][0]["forecast"]["measure"] == "accuracy"
    return render("transfer_fragment.html.j2", **_ranking(contents, classes), style=style(*_SHEETS))


def _ranking(contents: Mapping[str, Any], classes: bool) -> dict[str, Any]:
    models, measure = contents["models"], "accuracy" if classes else "error"
    ends = [m["forecast"][end] for m in models for end in ("low", "high")]
    low, high = _span([*ends, *(m["features"][measure] for m in models)], classes)
    return {
        "answers": _answers(contents),
        "measure": measure,
        "rows": _rows(models, contents.get("ties") or [], classes, _Axis(low, high, 4.0, 216.0)),
        "scale": {"low": _shown(low, classes), "high": _shown(high, classes)},
        "failed": [(plain(name), plain(why)) for name, why in contents["problems"].items()],
    }


@dataclass(frozen=True)
class _Axis:
    """Numbers to places on a drawing."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = log10(low), log10(high), log10(value)
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers inside the range."""
        if self.logarithmic:
            powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
            found = [m * 10.0**p for p in powers for m in (1, 2, 5)]
            return [value for value in found if self.low <= value <= self.high]
        rough = (self.high - self.low) / most
        unit = 10.0 ** floor(log10(rough)) if rough > 0 else 1.0
        step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough)
        first = ceil(self.low / step - 1e-9)
        return [step * k for k in range(first, floor(self.high / step + 1e-9) + 1)]


def _span(values: Sequence[float], classes: bool) -> tuple[float, float]:
    """A range that holds the values, with a little room."""
    known = [value for value in values if finite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = 0.06 * max(high - low, 0.05)
    return max(low - room, 0.0), min(high + room, 1.0) if classes else high + room


def _rows(
    models: Sequence[Mapping[str, Any]], ties: Sequence[str], classes: bool, axis: _Axis
) -> list[dict[str, Any]]:
    measure = "accuracy" if classes else "error"
    rows = []
    for index, model in enumerate(models):
        forecast = model["forecast"]
        low, high = (_shown(forecast[end], classes) for end in ("low", "high"))
        rows.append(
            {
                "place": "1=" if model["name"] in ties else index + 1,
                "tone": _tone(index),
                "name": plain(model["name"]),
                "forecast": _shown(forecast["value"], classes),
                "interval": f"{low} to {high}",
                "x": axis(forecast["value"]),
                "low": axis(forecast["low"]),
                "high": axis(forecast["high"]),
                "plain": axis(model["features"][measure]),
                "features": _shown(model["features"][measure], classes),
                "error": _shown(model["error"], False),
                "layer": short(model["best_layer"] or "(inputs)", 26),
                "size": short_count(model["parameters"]),
                "seconds": f"{sum(model['seconds'].values()):.1f} s",
            }
        )
    return rows


def _curves(record: Record, classes: bool) -> dict[str, Any]:
    """Predicted curves of all models over the number of labels; bands for the first two."""
    measure = "accuracy" if classes else "error"
    names = [plain(model["name"]) for model in record.contents["models"]]
    found = []
    for index in range(len(names)):
        part = {key: record.arrays[f"{index}/curve/{key}"] for key in ("labels", measure)}
        ends = record.arrays[f"{index}/curve/{measure}_interval"]
        found.append((part["labels"], part[measure], ends.min(0), ends.max(0)))
    drawn = [number for entry in found for number in entry[1]]
    drawn += [number for entry in found[:2] for ends in entry[2:] for number in ends]
    y = _Axis(*_span(drawn, classes), 330.0, 14.0)
    x = _Axis(float(found[0][0].min()), float(found[0][0].max()), 52.0, 650.0, logarithmic=True)
    lines = []
    for index, (labels, values, low, high) in enumerate(found):
        points = [f"{x(float(a))},{y(float(b))}" for a, b in zip(labels, values, strict=True)]
        there = [f"{x(float(a))},{y(float(b))}" for a, b in zip(labels, high, strict=True)]
        back = [f"{x(float(a))},{y(float(b))}" for a, b in zip(labels, low, strict=True)][::-1]
        lines.append(
            {
                "name": short(names[index], 28),
                "tone": _tone(index),
                "points": " ".join(points),
                "band": " ".join(there + back) if index < 2 else "",
                "quiet": index >= len(_TONES),
                "end": _shown(float(values[-1]), classes),
            }
        )
    now = record.contents["data"]["probe"]
    return {
        "lines": lines,
        "now": x(float(now)),
        "count": now,
        "x": [(x(value), f"{value:g}") for value in x.ticks() if value < 1e7],
        "y": [(y(value), _tick(value, classes)) for value in y.ticks()],
        "measure": measure,
    }


def _tick(value: float, classes: bool) -> str:
    return f"{100 * value:.3g} %" if classes else f"{value:.2g}"


def _profile(index: int, model: Mapping[str, Any], classes: bool) -> dict[str, Any]:
    """Linear probes over the layers of one model, with intervals."""
    measure = "accuracy" if classes else "error"
    layers = model["layers"]
    numbers = [layer[key] for layer in layers for key in (f"{measure}_low", f"{measure}_high")]
    y = _Axis(*_span(numbers, classes), 118.0, 10.0)
    x = _Axis(0.0, float(max(len(layers) - 1, 1)), 46.0, 306.0)
    points = [
        {
            "x": x(float(place)) if len(layers) > 1 else 176.0,
            "y": y(layer[measure]),
            "low": y(layer[f"{measure}_low"]),
            "high": y(layer[f"{measure}_high"]),
            "best": layer["name"] == model["best_layer"],
            "label": f"{plain(layer['name'])}: {_shown(layer[measure], classes)}",
        }
        for place, layer in enumerate(layers)
        if finite(layer[measure])
    ]
    ends = [short(layers[0]["name"], 20), short(layers[-1]["name"], 20)] if layers else ["", ""]
    return {
        "name": plain(model["name"]),
        "tone": _tone(index),
        "points": points,
        "path": " ".join(f"{p['x']},{p['y']}" for p in points),
        "y": [(y(value), _tick(value, classes)) for value in y.ticks(3)],
        "first": ends[0],
        "last": ends[1] if len(layers) > 1 else "",
        "best": short(model["best_layer"] or "(inputs)", 34),
    }


def _facts(contents: Mapping[str, Any]) -> list[tuple[str, str]]:
    shown = {**contents["data"], **contents["config"], **contents.get("versions", {})}
    return [
        (
            plain(key.replace("_", " ")),
            plain(f"{value:.3g}" if isinstance(value, float) else str(value)),
        )
        for key, value in shown.items()
        if value is not None
    ]
