"""A ranking of models as one page: sentences, the table, learning curves and profiles of layers.

Drawings are plain SVG in the colors of the page, so that it needs no script and prints as it looks.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

import numpy as np

from theodolite.records import Record
from theodolite.report.pages import (
    DARK,
    LIGHT,
    content_policy,
    css_variables,
    finite,
    plain,
    render,
    short,
    static_text,
)

__all__ = ["write_transfer"]

_TONES = ("representation", "gradient", "kernel", "covariance", "tangent")  # of the first models
_PROFILES = 12  # models whose layers are drawn


def write_transfer(record: Record, path: str | os.PathLike[str], title: str = "") -> Path:
    """Write the page of a ranking of models; it needs no network and no other file.

    Args:
        record: what :func:`theodolite.transfer` leaves behind.
        path: file to write; its folder is created.
        title: heading of the page.
    """
    contents = record.contents
    models, data = contents["models"], contents["data"]
    classes = models[0]["forecast"]["measure"] == "accuracy"
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    page = render(
        "transfer.html.j2",
        title=plain(title or contents["name"] or "Which model to start from"),
        lead=_lead(data, len(models), classes),
        answers=_answers(record, classes),
        measure="accuracy" if classes else "error",
        rows=_rows(models, classes),
        scale=_scale(models, classes),
        failed=[(plain(name), plain(why)) for name, why in contents["problems"].items()],
        notes=[plain(note) for note in contents["notes"]]
        + [plain(f"{m['name']}: {note}") for m in models for note in m["notes"]],
        curves=_curves(record, classes),
        profiles=[_profile(i, m, classes, data) for i, m in enumerate(models[:_PROFILES])],
        left_out=max(len(models) - _PROFILES, 0),
        facts=_facts(contents),
        style=_style(),
        policy=content_policy([]),
    )
    target.write_text(page, encoding="utf-8")
    return target


def _style() -> str:
    light, dark = css_variables(LIGHT), css_variables(DARK)
    return (
        f".theodolite{{{light}color-scheme:light}}"
        f"@media screen and (prefers-color-scheme:dark){{.theodolite{{{dark}color-scheme:dark}}}}"
    ) + "".join(static_text(name) for name in ("overview.css", "page.css", "transfer.css"))


def _tone(index: int) -> str:
    return f"var(--{_TONES[index]})" if index < len(_TONES) else "var(--muted)"


def _told(value: float, classes: bool) -> str:
    """A share in per cent, or an error."""
    if not finite(value):
        return "–"
    return f"{100 * value:.1f} %" if classes else f"{value:.3f}"


def _amount(value: float, classes: bool) -> str:
    """The same within a sentence."""
    return _told(value, classes) if classes else f"an error of {_told(value, classes)}"


def _lead(data: Mapping[str, Any], models: int, classes: bool) -> str:
    count = f"{models} model{'s' if models > 1 else ''}"
    told = f"{count} on {data['probe']} labelled examples"
    if classes:
        told += f" of {data['num_classes']} classes (guessing: {_told(data['chance'], True)})"
    return f"{told}. Each example is predicted from all the others; nothing was trained."


def _answers(record: Record, classes: bool) -> list[dict[str, str]]:
    """Which model, which layer, how many labels: a sentence each, and what it rests on."""
    models = record.contents["models"]
    best = models[0]
    told, name = best["forecast"], plain(best["name"])
    reach = (
        f"Start from {name}." if len(models) > 1 else f"{name} was the only model."
    ) + f" Fine-tuned on these labels it is expected at {_amount(told['value'], classes)}"
    found = [
        {
            "question": "Which model?",
            "text": f"{reach} ({_told(told['low'], classes)} to {_told(told['high'], classes)}).",
            "why": f"95 % interval; from the {told['from']}, by leaving one example out.",
        }
    ]
    layer = next((x for x in best["layers"] if x["name"] == best["best_layer"]), None)
    if layer is not None:
        measure = "accuracy" if classes else "error"
        last = best["layers"][-1]
        where = "after its last layer" if layer is last else f"after layer {plain(layer['name'])}"
        more = "" if layer is last else f"; the last layer gives {_told(last[measure], classes)}"
        if last["name"] in ("input of the head", "outputs"):  # beside layers
            where = "right before its head" if layer is last else where
            more = more.replace("the last layer", f"the {last['name']}")
        found.append(
            {
                "question": "Which layer?",
                "text": f"Kept frozen, {name} is best cut {where}: a linear read-out gives "
                f"{_amount(layer[measure], classes)}{more}.",
                "why": f"{_told(layer[f'{measure}_low'], classes)} to "
                f"{_told(layer[f'{measure}_high'], classes)}, {layer['n']} examples.",
            }
        )
    found.append(_labels_answer(record, name, classes))
    return found


def _labels_answer(record: Record, name: str, classes: bool) -> dict[str, str]:
    measure = "accuracy" if classes else "error"
    labels = record.arrays["0/curve/labels"]
    values = record.arrays[f"0/curve/{measure}"]
    ends = record.arrays[f"0/curve/{measure}_interval"][:, -1]
    now = record.contents["data"]["probe"]
    text = f"{labels[-1]:.0f} labels should bring {name} to {_amount(float(values[-1]), classes)}."
    if labels[0] <= 2 * now < labels[-1]:
        double = float(np.interp(np.log(2 * now), np.log(labels), values))
        told = f"Twice as many labels ({2 * now}) should bring {name} to {_amount(double, classes)}"
        text = f"{told}, {labels[-1]:.0f} to {_told(float(values[-1]), classes)}."
    low, high = sorted(float(end) for end in ends)
    return {
        "question": "How many labels?",
        "text": text,
        "why": f"With {labels[-1]:.0f} labels {_told(low, classes)} to {_told(high, classes)}: "
        "leave-one-out errors, carried on by the theory of kernel regression.",
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


def _scale(models: Sequence[Mapping[str, Any]], classes: bool) -> dict[str, Any]:
    low, high = _forecast_span(models, classes)
    axis = _Axis(low, high, 4.0, 216.0)
    return {"low": _told(axis.low, classes), "high": _told(axis.high, classes)}


def _forecast_span(models: Sequence[Mapping[str, Any]], classes: bool) -> tuple[float, float]:
    measure = "accuracy" if classes else "error"
    ends = [m["forecast"][end] for m in models for end in ("low", "high")]
    return _span([*ends, *(m["features"][measure] for m in models)], classes)


def _rows(models: Sequence[Mapping[str, Any]], classes: bool) -> list[dict[str, Any]]:
    axis = _Axis(*_forecast_span(models, classes), 4.0, 216.0)
    measure = "accuracy" if classes else "error"
    rows = []
    for index, model in enumerate(models):
        told = model["forecast"]
        rows.append(
            {
                "place": index + 1,
                "tone": _tone(index),
                "name": plain(model["name"]),
                "forecast": _told(told["value"], classes),
                "interval": f"{_told(told['low'], classes)} to {_told(told['high'], classes)}",
                "x": axis(told["value"]),
                "low": axis(told["low"]),
                "high": axis(told["high"]),
                "plain": axis(model["features"][measure]),
                "features": _told(model["features"][measure], classes),
                "error": _told(model["error"], False),
                "layer": short(model["best_layer"] or "(inputs)", 26),
                "size": _size(model["parameters"]),
                "seconds": f"{sum(model['seconds'].values()):.1f} s",
            }
        )
    return rows


def _size(count: int) -> str:
    letters = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    limit, letter = next(((n, x) for n, x in letters if count >= n), (1, ""))
    return f"{count / limit:.3g} {letter}".strip()


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
                "end": _told(float(values[-1]), classes),
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


def _profile(
    index: int, model: Mapping[str, Any], classes: bool, data: Mapping[str, Any]
) -> dict[str, Any]:
    """Read-outs over the layers of one model, with intervals."""
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
            "label": f"{plain(layer['name'])}: {_told(layer[measure], classes)}",
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
        (plain(key.replace("_", " ")), plain(str(value)))
        for key, value in shown.items()
        if value is not None
    ]
