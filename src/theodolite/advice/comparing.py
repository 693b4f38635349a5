"""The answers that a page begins with, of one run or of several.

Answers about one network at one step come from its record, unchanged. This module adds answers
that need several records: how the runs differ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from theodolite.advice.captions import compared, layer_words, values_of
from theodolite.advice.findings import CLEAR, LABELED
from theodolite.records import (
    CERTAINTIES,
    CHANCE,
    FAMILIES,
    Answer,
    Certainty,
    Group,
    Record,
    RunView,
    plain,
    shown,
)

QUESTIONS = {
    "task": "Did it learn?",
    "layer": "Which layer?",
    "groups": "Which layers do data sources disagree on?",
    "next": "What next?",
}
_MOST_RUNS = 3  # runs whose sentence on layers is quoted


def group_answers(group: Group, step: int | None = None) -> list[Answer]:
    """The sentences about one network."""
    if len(group.runs) == 1:
        found = _recorded(group.runs[0], step)
    else:
        answers = [_task(group, step), _quoted(group.runs, "layer", step), _next(group, step)]
        found = {answer.question: answer for answer in answers if answer is not None}
    return [found[question] for question in QUESTIONS if question in found]


def latest_answers(records: Sequence[Record]) -> list[Answer]:
    """The latest answer to each question; the evidence of an earlier record names its step."""
    found: dict[str, Answer] = {}
    for record in records:
        for entry in record.contents.get("answers") or []:
            answer = Answer.from_entry(entry)
            if record is not records[-1]:
                since = f"measured at step {record.contents['step']}"
                answer = replace(answer, evidence="; ".join(filter(None, [since, answer.evidence])))
            found[answer.question] = answer
    return list(found.values())


def _recorded(run: RunView, step: int | None) -> dict[str, Answer]:
    """The latest answers up to a step, by question, without control characters."""
    records = [moment.record for moment in run.moments[: run.moments.index(run.at(step)) + 1]]
    return {
        answer.question: replace(
            answer,
            text=plain(answer.text),
            evidence=plain(answer.evidence) if answer.evidence else "",
            advice=plain(answer.advice) if answer.advice else "",
        )
        for answer in latest_answers(records)
    }


@dataclass(frozen=True)
class _Profile:
    """The headline of one family in one run: values by layer, and their spread at chance."""

    family: str
    run: RunView
    values: dict[str, float]
    spreads: dict[str, float]

    @classmethod
    def of(cls, group: Group, run: RunView, family: str, step: int | None) -> "_Profile":
        measure = FAMILIES[family].headline
        values = values_of(group, run.latest_with(step, family, measure), family, measure)
        levels = {layer: run.chance(step, family, measure, layer) for layer in values}
        spreads = {layer: level.sd for layer, level in levels.items() if level and level.sd}
        return cls(family, run, values, spreads)

    @property
    def heading(self) -> str:
        return FAMILIES[self.family].heading

    @property
    def figure(self) -> str:
        return FAMILIES[self.family].figure

    @property
    def last(self) -> str:
        return list(self.values)[-1]


def _profiles(group: Group, step: int | None) -> list[_Profile]:
    """The first headline number about labels of each run, if all runs share it."""
    found = []
    for run in group.runs:
        known = (_Profile.of(group, run, family, step) for family in LABELED)
        found += [next((profile for profile in known if profile.values), None)]
    family = next((profile.family for profile in found if profile is not None), None)
    return [profile for profile in found if profile is not None and profile.family == family]


def _apart(a: _Profile, b: _Profile, layer: str) -> tuple[Certainty, str]:
    """How certain the difference of two runs in a layer is."""
    spreads = [p.spreads[layer] for p in (a, b) if layer in p.spreads]
    if not spreads:
        return "undecided", "no chance level was measured"
    deviations = abs(a.values[layer] - b.values[layer]) / math.hypot(*spreads)
    sure: Certainty = "clear" if deviations >= CLEAR else "likely"
    if deviations <= CHANCE:
        sure = "undecided"
    shown = f"{deviations:.{1 if deviations < CLEAR else 0}f}"
    return sure, f"the difference is {shown} standard deviations of the chance level"


def _task(group: Group, step: int | None) -> Answer | None:
    """The recorded answers about the tasks, or the runs that represent labels most and least."""
    quoted = _quoted(group.runs, "task", step)
    if quoted is not None and quoted.finding not in ("", "aligned", "chance"):
        return quoted
    ranked = sorted(_profiles(group, step), key=lambda p: p.values[p.last], reverse=True)
    if len(ranked) < 2:
        return None
    best, worst = ranked[0], ranked[-1]
    layer = best.last
    numbers = f"{best.heading} {shown(best.values[layer])} against {shown(worst.values[layer])}"
    more = compared(worst.values, best.values)
    names = [f"“{plain(p.run.name)}”" for p in (best, worst)]
    text = (
        f"{names[0]} represents its labels more than {names[1]}:"
        f" {numbers} in {layer_words(layer)}, {more}."
    )
    if len(ranked) > 2:
        text = (
            f"Of {len(ranked)} runs {names[0]} represents its labels most and {names[1]} least:"
            f" {numbers} in {layer_words(layer)}."
        )
    evidence = (best.figure, f"lines-{best.family}", f"steps-{best.figure}")
    return Answer("task", text, *_apart(best, worst, layer), figures=evidence)


def _quoted(runs: Sequence[RunView], question: str, step: int | None) -> Answer | None:
    """The answers of several runs to one question, each after the name of its run."""
    every = [(run, _recorded(run, step).get(question)) for run in runs]
    known = [(run, answer) for run, answer in every if answer is not None]
    if not known:
        return None
    sure = max((answer.certainty for _, answer in known), key=CERTAINTIES.index)
    named = [(f"“{plain(run.name)}”", answer) for run, answer in known[:_MOST_RUNS]]
    text = " ".join(f"{name}: {answer.text}" for name, answer in named)
    evidence = " ".join(f"{name}: {answer.evidence}." for name, answer in named).rstrip(".")
    first = known[0][1]
    return Answer(question, text, sure, evidence, "", first.finding, first.figures)


def _next(group: Group, step: int | None) -> Answer:
    """The layer where the runs differ most."""
    same = _profiles(group, step)
    if len(same) < 2:
        return Answer("next", "Measure the runs with the same families to compare them.", "clear",
                      "they have no measure of labels in common")  # fmt: skip
    a = same[0]
    gaps = [
        (abs(a.values[layer] - p.values[layer]), p, layer)
        for p in same[1:]
        for layer in p.values
        if layer in a.values
    ]
    if not gaps:
        return Answer("next", "Compare the runs layer by layer below.", "undecided",
                      "no layer has a number in both")  # fmt: skip
    _, b, layer = max(gaps, key=lambda item: item[0])
    names = [f"“{plain(p.run.name)}” {shown(p.values[layer])}" for p in (a, b)]
    text = (
        f"Look at {layer_words(layer)} first: the runs differ most there in {a.heading},"
        f" {' and '.join(names)}."
    )
    evidence = (f"lines-{a.family}", a.figure, f"steps-{a.figure}")
    return Answer("next", text, *_apart(a, b, layer), figures=evidence)
