"""The answers that a page begins with, of one run or of several.

Answers about one network at one step come from its record, unchanged. This module adds answers
that need several records: how runs differ, and which numbers carry over to held-out examples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from theodolite.advice.captions import compared, layer_words, scores_of, values_of
from theodolite.advice.findings import CARRIED, CHANCE, CLEAR, LABELED
from theodolite.records import (
    CERTAINTIES,
    FAMILIES,
    Answer,
    Certainty,
    Group,
    Run,
    RunView,
    groups_of,
    plain,
    shown,
)

__all__ = ["QUESTIONS", "group_answers", "run_answers"]

QUESTIONS = {
    "task": "Did it learn?",
    "layer": "Which layer?",
    "groups": "Which layers do data sources disagree on?",
    "next": "What next?",
}
_MOST_RUNS = 3  # runs whose sentence on layers is quoted


def run_answers(runs: Sequence[Run], step: int | None = None) -> list[Answer]:
    """The answers about each network of the runs, at a step (the latest for None).

    Args:
        runs: surveys or histories with at least one step; runs with the same layers are compared.
        step: the training step; the latest answers up to it are used.

    Returns:
        The answers that a report prints.

    Examples:
        >>> import torch
        >>> from theodolite import survey_features
        >>> x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        >>> found = survey_features({"layer": x}, torch.arange(40) % 2)
        >>> [(answer.question, answer.certainty) for answer in run_answers([found.run])]
        [('layer', 'undecided')]
    """
    return [a for group in groups_of(runs, most_steps=200) for a in group_answers(group, step)]


def group_answers(group: Group, step: int | None = None) -> list[Answer]:
    """The sentences about one network."""
    if len(group.runs) == 1:
        found = _recorded(group.runs[0], step)
    else:
        pairs = _held_out_pairs(group, step)
        answers = [_task(group, pairs, step), _layer(group, pairs, step), _next(group, pairs, step)]
        found = {answer.question: answer for answer in answers if answer is not None}
    return [found[question] for question in QUESTIONS if question in found]


def _recorded(run: RunView, step: int | None) -> dict[str, Answer]:
    """The latest answers in the records up to a step, by question."""
    now = run.at(step)
    found: dict[str, Answer] = {}
    for moment in run.moments[: run.moments.index(now) + 1]:
        for entry in moment.record.contents.get("answers") or []:
            answer = Answer.from_entry(entry)
            words = (answer.text, answer.evidence, answer.advice)
            text, evidence, advice = (plain(part) if part else "" for part in words)
            if moment is not now:
                since = f"measured at step {moment.step}"
                evidence = "; ".join(filter(None, [since, evidence]))
            found[answer.question] = replace(answer, text=text, evidence=evidence, advice=advice)
    return found


@dataclass(frozen=True)
class _Profile:
    """The headline of one family in one run: values by layer, and their spread at chance."""

    family: str
    run: RunView
    values: dict[str, float]
    scores: dict[str, float]
    spreads: dict[str, float]

    @classmethod
    def of(cls, group: Group, run: RunView, family: str, step: int | None) -> "_Profile":
        measure = FAMILIES[family].headline
        values = values_of(group, run.holding(step, family, measure), family, measure)
        levels = {layer: run.chance(step, family, measure, layer) for layer in values}
        spreads = {layer: level.sd for layer, level in levels.items() if level and level.sd}
        return cls(family, run, values, scores_of(run, step, family, values), spreads)

    @property
    def heading(self) -> str:
        return FAMILIES[self.family].heading

    @property
    def figure(self) -> str:
        return FAMILIES[self.family].figure

    @property
    def last(self) -> str:
        return list(self.values)[-1]

    def beyond_chance(self, layer: str) -> bool:
        """Whether a number is beyond chance; True if the chance level is unknown."""
        return self.scores.get(layer, math.inf) > CHANCE


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
    return sure, f"the difference is {shown} times its standard deviation at chance level"


def _task(group: Group, pairs: Sequence["_Pair"], step: int | None) -> Answer | None:
    """The recorded answers about the tasks, or the runs that represent labels most and least."""
    if pairs:
        return _kept_held_out(pairs)
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


@dataclass(frozen=True)
class _Pair:
    """One network measured on its training examples and on others."""

    name: str
    own: _Profile
    other: _Profile

    @property
    def kept(self) -> float:
        """The share of the last layer's number that remains on held-out examples."""
        layer = self.own.last
        return self.other.values.get(layer, math.nan) / self.own.values[layer]

    @property
    def words(self) -> str:
        layer, kept = self.own.last, min(1.0, max(0.0, self.kept))
        word = "carries over" if kept >= CARRIED else "carries over in part"
        word = word if kept > 1 - CARRIED else "does not carry over"
        numbers = f"{shown(self.other.values[layer])} of {shown(self.own.values[layer])}"
        return (
            f"“{plain(self.name)}”: CKA to labels {word} to held-out examples;"
            f" {layer_words(layer)} keeps {100 * kept:.0f} % of it ({numbers})."
        )


def _held_out_pairs(group: Group, step: int | None) -> list[_Pair]:
    """Pairs of runs "x" on training examples and "x, test" on others, if both have labels."""

    def split(run: RunView) -> str:
        return str(run.at(step).record.contents.get("data", {}).get("split"))

    pairs = []
    for run in group.runs:
        others = [
            r for r in group.runs
            if r is not run and split(r) not in {"train", "unknown"}
            and r.name.startswith(run.name)
        ]  # fmt: skip
        if split(run) != "train" or not others:
            continue
        own = _Profile.of(group, run, "kernel", step)
        other = _Profile.of(group, others[0], "kernel", step)
        if own.values and own.last in other.values and own.beyond_chance(own.last):
            pairs.append(_Pair(run.name, own, other))
    return pairs


def _kept_held_out(pairs: Sequence[_Pair]) -> Answer:
    """How much of the last layer's CKA to labels carries over to held-out examples."""
    ranked = sorted(pairs, key=lambda pair: pair.kept, reverse=True)
    text = " ".join(pair.words for pair in (ranked if len(ranked) < 3 else (ranked[0], ranked[-1])))
    spreads = [p.spreads.get(p.last) for pair in ranked for p in (pair.own, pair.other)]
    known = [spread for spread in spreads if spread is not None]
    evidence = ("lines-kernel", ranked[0].own.figure)
    if len(known) < len(spreads):
        return Answer(
            "task", text, "likely", "measured on training and held-out examples", figures=evidence
        )
    at_chance = f"standard deviation at chance {shown(max(known))}"
    why = f"measured on training and held-out examples; {at_chance}"
    return Answer("task", text, "clear", why, figures=evidence)


def _layer(group: Group, pairs: Sequence[_Pair], step: int | None) -> Answer | None:
    """The recorded answers about layers, without runs of the same network on other examples."""
    held_out = {pair.other.run.index for pair in pairs}
    return _quoted([run for run in group.runs if run.index not in held_out], "layer", step)


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


def _next(group: Group, pairs: Sequence[_Pair], step: int | None) -> Answer:
    """The layer where the runs differ most."""
    same = _profiles(group, step)
    if len(same) < 2:
        return Answer("next", "Measure the runs with the same families to compare them.", "clear",
                      "they have no measure of labels in common")  # fmt: skip
    if pairs:
        found = [
            (pair.own.values[layer] - pair.other.values[layer], pair, layer)
            for pair in pairs
            for layer in pair.own.values
            if layer in pair.other.values
        ]
        _, pair, layer = max(found, key=lambda item: item[0])
        a, b = pair.own, pair.other
        text = (
            f"Look at {layer_words(layer)} of “{plain(pair.name)}” first: there {a.heading} falls"
            f" most from training to held-out examples, {shown(a.values[layer])} →"
            f" {shown(b.values[layer])}."
        )
    else:
        gaps = [
            (abs(same[0].values[layer] - p.values[layer]), p, layer)
            for p in same[1:]
            for layer in p.values
            if layer in same[0].values
        ]
        if not gaps:
            return Answer("next", "Compare the runs layer by layer below.", "undecided",
                          "no layer has a number in both")  # fmt: skip
        a = same[0]
        _, b, layer = max(gaps, key=lambda item: item[0])
        names = [f"“{plain(p.run.name)}” {shown(p.values[layer])}" for p in (a, b)]
        text = (
            f"Look at {layer_words(layer)} first: the runs differ most there in {a.heading},"
            f" {' and '.join(names)}."
        )
    evidence = (f"lines-{a.family}", a.figure, f"steps-{a.figure}")
    return Answer("next", text, *_apart(a, b, layer), figures=evidence)
