"""A page where a reader chooses any two numbers of the zoo and sees every network as a point."""

import os
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from theodolite.report.pages import (
    DARK,
    LIGHT,
    content_policy,
    css_variables,
    json_for_html,
    page_numbers,
    static_text,
)
from theodolite_papers.alignment_zoo.predictors import FACTORS, Predictors
from theodolite_papers.alignment_zoo.tables import Zoo

__all__ = ["file_text", "write_explorer"]

_DIGITS = 4
_MOMENTS = {
    "init": "at step 0",
    "early": "after 1 %",
    "third": "after 30 %",
    "final": "at the end",
}
_PLACES = {
    "first": "first layer",
    "hidden": "last hidden layer",
    "output": "outputs",
    "mean": "mean of layers",
    "whole": "network",
}
_OUTCOMES = (
    "gap", "test_accuracy", "train_accuracy", "carried_over", "steps_to_50", "best_test_accuracy",
    "parameters",
)  # fmt: skip


def write_explorer(zoo: Zoo, path: str | os.PathLike[str]) -> Path:
    """Write one page that needs no other file.

    Returns:
        The path of the file.
    """
    from jinja2 import Environment, StrictUndefined

    scripts = [static_text("plotly-cartesian.min.js"), file_text("static/explorer.js")]
    style = f":root{{{css_variables(LIGHT)}}}:root[data-theme=dark]{{{css_variables(DARK)}}}"
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    text = environment.from_string(file_text("templates/explorer.html.j2")).render(
        policy=content_policy(scripts),
        scripts=scripts,
        style=style + file_text("static/explorer.css"),
        count=len(zoo.networks),
        data=json_for_html(_payload(zoo)),
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


def file_text(name: str) -> str:
    """A template, script or style of this package."""
    folder = resources.files("theodolite_papers.alignment_zoo")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _payload(zoo: Zoo) -> dict[str, Any]:
    networks = zoo.networks
    families = zoo.measurements[["measure", "family"]].drop_duplicates().astype(str)
    family = dict(zip(families["measure"], families["family"], strict=True))
    measures: dict[str, Any] = {}
    found = Predictors(zoo)
    for moment in _MOMENTS:
        table = found.at(moment)
        for measure, place in map(tuple, table.columns):
            numbers = table[measure, place].to_numpy(np.float64)
            if measure in family and np.isfinite(numbers).any():
                entry = measures.setdefault(measure, {"family": family[measure], "values": {}})
                entry["values"][f"{place} {moment}"] = page_numbers(numbers, _DIGITS)
    ordered = dict(sorted(measures.items(), key=lambda item: (item[1]["family"], item[0])))
    chosen = "cka_target" if "cka_target" in ordered else next(iter(ordered))
    return {
        "palettes": {"light": LIGHT, "dark": DARK},
        "networks": [str(name) for name in networks["network"]],
        "factors": {
            name: _levels(networks[name])
            for name in ("data", "family", *FACTORS, "outcome", "half")
        },
        "outcomes": {
            name: page_numbers(networks[name].to_numpy(np.float64), _DIGITS)
            for name in _OUTCOMES
            if name in networks
        },
        "measures": ordered,
        "places": _PLACES,
        "moments": _MOMENTS,
        "start": {
            "across": {"number": f"measure {chosen}", "place": "first", "moment": "final"},
            "up": {"number": "outcome gap", "place": "first", "moment": "final"},
        },
    }


def _levels(column: Any) -> dict[str, Any]:
    """Words of a factor, numbers in their order, and a code for each network."""
    values = list(column)
    words = sorted(set(values), key=lambda v: (isinstance(v, str), v))
    texts = [f"{word:g}" if isinstance(word, (int, float, np.number)) else word for word in words]
    return {"words": texts, "codes": [words.index(value) for value in values]}
