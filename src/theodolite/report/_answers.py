"""Sentences to act on: what the network does, which layer carries it, what to do next.

Sentences that stand in a record (``contents["answers"]``) are shown as they are; those that are
missing there are computed from its numbers. Each says how sure it is and where its evidence stands.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from theodolite.records import FAMILIES, Answer, Run, listed
from theodolite.report._reading import Group, RunView, groups_of
from theodolite.report._sentences import (
    CHANCE,
    compared,
    layer_words,
    quiet_reason,
    scores_of,
    values_of,
)
from theodolite.report.pages import finite, plain, shown, shown_chance

__all__ = ["QUESTIONS", "answers", "group_answers"]

QUESTIONS = {
    "task": "What the network does",
    "layer": "Which layer carries it",
    "groups": "Do groups pull apart",
    "next": "What to do next",
}
# Families that ask about labels, the one that others are held against first.
_LABELED = ("kernel", "representation", "gradient")
_CERTAINTIES = ("clear", "likely", "open")
_CLEAR = 5.0  # standard deviations beyond chance
_NEARLY = 0.9  # of the highest number: a layer that has it carries most of the task
_FITTED = 0.25  # of the loss of chance
_CARRIED = 0.7  # of a number is left on held-out examples: it carries over
_MOVING = 0.05  # of the largest value: changes below it are called none


def answers(runs: Sequence[Run], step: int | None = None) -> list[Answer]:
    """Three sentences for each network among the runs, at a step (the latest for None).

    A run whose examples have groups gets a fourth.

    Args:
        runs: surveys or histories with at least one step; those with the same layers are compared.
        step: the training step; the latest measured one up to it counts.
    """
    return [a for group in groups_of(runs, most_steps=200) for a in group_answers(group, step)]


def group_answers(group: Group, step: int | None = None) -> list[Answer]:
    """The sentences about one network."""
    found = {a.question: a for a in (_task(group, step), _layer(group, step), _next(group, step))}
    if len(group.runs) == 1:
        run = group.runs[0]  # whose gradients may be measured less often than the rest
        then = run.holding(step, "gradient", "omega_contrast").step
        grouped = _recorded(run, then).get("groups")
        if grouped is not None:
            found["groups"] = replace(grouped, why=f"measured at step {then}; {grouped.why}")
        found |= _recorded(run, step)
    known = [(run, told) for run in group.runs if (told := _recorded(run, step).get("layer"))]
    if len(group.runs) > 1 and len(known) == 2:
        # The page of either run says the same of its layers; others are held-out examples.
        (one, a), (two, b) = known
        names = [f"“{plain(run.name)}”" for run in (one, two)]
        sure = max(a.certainty, b.certainty, key=_CERTAINTIES.index)
        text = f"{names[0]}: {a.text} {names[1]}: {b.text}"
        why = f"{names[0]}: {a.why}. {names[1]}: {b.why}"
        found["layer"] = Answer("layer", text, sure, why, a.evidence)
    return [found[question] for question in QUESTIONS if question in found]


def _recorded(run: RunView, step: int | None) -> dict[str, Answer]:
    """The sentences that stand in the record, by question."""
    found = {}
    for entry in run.at(step).record.contents.get("answers") or []:
        told = {key: plain(str(entry.get(key, ""))) for key in ("text", "certainty", "why")}
        found[entry["question"]] = Answer(
            entry["question"], **told, evidence=tuple(entry.get("evidence", ()))
        )
    return found


@dataclass(frozen=True)
class _Profile:
    """The headline of one family in one run: values and distances from chance by layer."""

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
        return f"{self.family}-{FAMILIES[self.family].headline}".replace("_", "-")

    @property
    def last(self) -> str:
        return list(self.values)[-1]

    def is_chance(self, layer: str) -> bool:
        """Whether a number cannot be told from chance; False where chance is not known."""
        return layer in self.scores and self.scores[layer] <= CHANCE

    @property
    def top(self) -> str | None:
        """The layer with the highest number, among those beyond chance."""
        beyond = [layer for layer in self.values if not self.is_chance(layer)]
        return max(beyond, key=self.values.__getitem__, default=None)

    def certainty(self, layer: str) -> tuple[str, str]:
        """How sure it is that a number is more than chance."""
        chance = FAMILIES[self.family].chance
        if layer not in self.scores:
            return "open", "no chance level was measured"
        score = self.scores[layer]
        words = f"{abs(score):.0f} standard deviations from what {chance} give"
        return ("clear" if abs(score) >= _CLEAR else "likely" if score > CHANCE else "open"), words

    def told(self, layer: str, step: int | None) -> str:
        """A number with its chance level."""
        level = self.run.chance(step, self.family, FAMILIES[self.family].headline, layer)
        chance = "" if level is None else f" (chance {shown_chance(level.mean, level.sd)})"
        return f"{shown(self.values[layer])}{chance}"


def _apart(a: _Profile, b: _Profile, layer: str) -> tuple[str, str]:
    """How sure it is that two runs differ in a layer."""
    spreads = [p.spreads[layer] for p in (a, b) if layer in p.spreads]
    if not spreads:
        return "open", "no chance level was measured"
    deviations = abs(a.values[layer] - b.values[layer]) / math.hypot(*spreads)
    sure = "clear" if deviations >= _CLEAR else "likely" if deviations > CHANCE else "open"
    return sure, f"the gap is {deviations:.0f} standard deviations of chance"


def _profiles(group: Group, run: RunView, step: int | None) -> list[_Profile]:
    found = [_Profile.of(group, run, family, step) for family in _LABELED]
    return [profile for profile in found if profile.values]


def _task(group: Group, step: int | None) -> Answer:
    """What becomes of the labels, in words for one run, two, or several."""
    pairs = _held_out_pairs(group, step)
    if pairs:
        return _kept_held_out(pairs)
    first = [profiles[0] for run in group.runs if (profiles := _profiles(group, run, step))]
    if not first:
        text = "What the network does with a task cannot be told: no number here reads labels."
        return Answer("task", text, "open", quiet_reason(group, "kernel").rstrip("."))
    if len(first) > 1:
        return _differing(first)
    profile, run = first[0], first[0].run
    last = profile.last
    contents = run.at(step).record.contents
    data = contents.get("data", {})
    classes = data.get("task") in {None, "classification", "sequence"}
    classes = classes or ("unit" in data and data["num_classes"] is not None)
    does, lacks = (
        ("tells the classes apart", "does not tell the classes apart")
        if classes else ("follows the targets", "does not follow the targets")
    )  # fmt: skip
    number = f"{profile.heading} in its last layer, {layer_words(last)}, is"
    number += f" {profile.told(last, step)}"
    certainty, why = profile.certainty(last)
    evidence = (profile.figure, "steps-loss")
    if profile.is_chance(last):
        text = f"The network {lacks}: {number}."
        return Answer("task", text, "likely" if profile.scores[last] < 1 else "open", why, evidence)
    share = _loss_share(run, step)
    if share is not None and share[0] >= share[1]:
        text = (
            f"The network does not do the task: its loss on these examples is {shown(share[0])},"
            f" chance is {shown(share[1])}. What its last layer shows of the labels may be"
            f" what the inputs tell: {profile.heading} {profile.told(last, step)}."
        )
        return Answer("task", text, "clear", "the loss is that of chance", evidence)
    before = run.moments[0].value(profile.family, FAMILIES[profile.family].headline, last)
    change = ""
    if run.at(step) is not run.moments[0] and finite(before):
        word = "up" if profile.values[last] > before else "down"
        change = f", {word} from {shown(before)} at step {run.moments[0].step}"
    text = f"The network {does}: {number}{change}"
    return Answer("task", f"{text}{_fit(run, step)}.", certainty, why, evidence)


def _fit(run: RunView, step: int | None) -> str:
    """The loss against that of chance, where both are known."""
    share = _loss_share(run, step)
    if share is None:
        return ""
    loss, chance = share
    word = "it fits" if loss < _FITTED * chance else "it partly fits"
    return f"; {word} these examples (loss {shown(loss)}, chance {shown(chance)})"


def _loss_share(run: RunView, step: int | None) -> tuple[float, float] | None:
    contents = run.at(step).record.contents
    if contents.get("data", {}).get("task") not in {None, "classification", "sequence"}:
        return None
    classes = contents.get("data", {}).get("num_classes")
    known = contents.get("config", {}).get("loss") in {None, "default", "cross_entropy"}
    loss = run.holding(step, "gradient", "loss").value("gradient", "loss", None)
    if not known or not isinstance(classes, int) or classes < 2 or not finite(loss):
        return None
    return loss, math.log(classes)


def _differing(profiles: Sequence[_Profile]) -> Answer:
    """Several runs: who tells the classes apart most and who least."""
    same = [p for p in profiles if p.family == profiles[0].family]
    ranked = sorted(same, key=lambda p: p.values[p.last], reverse=True)
    best, worst = ranked[0], ranked[-1]
    layer = best.last
    numbers = f"{best.heading} {shown(best.values[layer])} against {shown(worst.values[layer])}"
    more = compared(worst.values, best.values)
    names = [f"“{plain(p.run.name)}”" for p in (best, worst)]
    text = (
        f"{names[0]} tells its classes apart more than {names[1]}:"
        f" {numbers} in {layer_words(layer)}, {more}."
    )
    if len(same) > 2:
        text = (
            f"Of {len(same)} runs {names[0]} tells its classes apart most and {names[1]} least:"
            f" {numbers} in {layer_words(layer)}."
        )
    evidence = (best.figure, f"lines-{best.family}", f"steps-{best.figure}")
    return Answer("task", text, *_apart(best, worst, layer), evidence)


@dataclass(frozen=True)
class _Pair:
    """One network measured on its training examples and on others."""

    name: str
    own: _Profile
    other: _Profile

    @property
    def kept(self) -> float:
        """Which part of the last layer's number is left on the other examples."""
        layer = self.own.last
        return self.other.values.get(layer, math.nan) / self.own.values[layer]

    @property
    def words(self) -> str:
        layer, kept = self.own.last, min(1.0, max(0.0, self.kept))
        word = "carries over" if kept >= _CARRIED else "carries over in part"
        word = word if kept > 1 - _CARRIED else "does not carry over"
        numbers = f"{shown(self.other.values[layer])} of {shown(self.own.values[layer])}"
        return (
            f"“{plain(self.name)}” {word} to held-out examples: {layer_words(layer)} keeps"
            f" {_percent(kept)} of its CKA to labels ({numbers})."
        )


def _held_out_pairs(group: Group, step: int | None) -> list[_Pair]:
    """Runs named "x" on training examples and "x, test" on others, where both know labels."""

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
        if own.values and own.last in other.values and not own.is_chance(own.last):
            pairs.append(_Pair(run.name, own, other))
    return pairs


def _kept_held_out(pairs: Sequence[_Pair]) -> Answer:
    """What the last layer knows of its training labels holds elsewhere, or does not."""
    ranked = sorted(pairs, key=lambda pair: pair.kept, reverse=True)
    text = " ".join(pair.words for pair in (ranked if len(ranked) < 3 else (ranked[0], ranked[-1])))
    spreads = [p.spreads.get(p.last) for pair in ranked for p in (pair.own, pair.other)]
    known = [spread for spread in spreads if spread is not None]
    evidence = ("lines-kernel", ranked[0].own.figure)
    if len(known) < len(spreads):
        return Answer("task", text, "likely", "measured on both kinds of examples", evidence)
    why = f"measured on both kinds of examples; chance moves these numbers by {shown(max(known))}"
    return Answer("task", text, "clear", why, evidence)


def _layer(group: Group, step: int | None) -> Answer:
    """The layer where the measures of labels are highest, and whether they agree."""
    found = {run.index: _profiles(group, run, step) for run in group.runs}
    run = next((r for r in group.runs if found[r.index]), None)
    if run is None:
        text = "No layer can be named without labels."
        return Answer("layer", text, "open", "no number here reads them")
    profiles = found[run.index]
    evidence = tuple(p.figure for p in profiles)
    tops = {p.family: p.top for p in profiles}
    who = f" of “{plain(run.name)}”" if len(group.runs) > 1 else ""
    if all(top is None for top in tops.values()):
        text = f"No layer{who} carries the task: every number is what chance gives."
        why = f"{len(profiles)} of {len(profiles)} measures agree"
        return Answer("layer", text, "clear" if len(profiles) > 1 else "likely", why, evidence)
    known = [p for p in profiles if p.top is not None]
    layers = list(dict.fromkeys(p.top for p in known if p.top is not None))
    told = {
        layer: listed(f"{p.heading} ({shown(p.values[layer])})" for p in known if p.top == layer)
        for layer in layers
    }
    if len(layers) == 1:
        (layer,) = layers
        name = f"{layer_words(layer)}{', the last layer,' if layer == group.layers[-1] else ''}"
        verb = "is" if len(known) == 1 else "are"
        share = _loss_share(run, step)
        does = "carries the task" if share is None or share[0] < share[1] else "shows most of it"
        text = f"{name} {does}{who}: {told[layer]} {verb} highest there"
        certainty, why = "likely", "the one measure of labels that was taken"
        if len(known) > 1:
            certainty, why = "clear", f"{len(known)} of {len(known)} measures agree"
    else:
        parts = listed(f"{words} in {layer_words(layer)}" for layer, words in told.items())
        text = f"No single layer carries the task{who}: highest are {parts}"
        certainty, why = "open", "the measures disagree about the layer"
    text += _early(known[0]) + _other_layers(group, run, found, step)
    return Answer("layer", f"{text}.", certainty, why, evidence)


def _early(profile: _Profile) -> str:
    """An earlier layer that has nearly as much."""
    top = profile.top
    values = profile.values
    first = next(
        layer for layer, v in values.items() if top is not None and v >= _NEARLY * values[top]
    )
    if first == top or top is None:
        return ""
    share = _percent(values[first] / values[top])
    return f"; {layer_words(first)} already has {share} of its {profile.heading}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _other_layers(
    group: Group, run: RunView, found: dict[int, list[_Profile]], step: int | None
) -> str:
    """Runs whose first measure peaks elsewhere, the same network on other examples left out."""
    mine = found[run.index][0].top
    held_out = {pair.other.run.index for pair in _held_out_pairs(group, step)}
    parts = []
    for other in group.runs:
        profiles = found[other.index]
        if other is run or other.index in held_out or not profiles:
            continue
        if profiles[0].family != found[run.index][0].family:
            continue
        top = profiles[0].top
        if top is None:
            parts.append(f"in “{plain(other.name)}” no layer is beyond chance")
        elif top != mine:
            heading = profiles[0].heading
            parts.append(f"in “{plain(other.name)}” {heading} is highest in {layer_words(top)}")
    return "".join(f"; {part}" for part in parts[:2])


def _next(group: Group, step: int | None) -> Answer:
    """The one thing that would tell most, by what is missing or still moves."""
    run = group.runs[0]
    if len(group.runs) > 1:
        return _look_between(group, step)
    data = run.at(step).record.contents.get("data", {})
    profiles = _profiles(group, run, step)
    if not profiles:
        text = "Give the survey labels or targets: with them four more families can be measured."
        return Answer("next", text, "clear", "the data have none")
    moved, rises = _movement(run, profiles[0], step)
    share = _loss_share(run, step)
    over = (f"steps-{profiles[0].figure}", profiles[0].figure)
    if rises and (share is None or share[0] >= _FITTED * share[1]):
        return Answer("next", f"Train longer: {moved}.", "likely", "a trend, which may end", over)
    if share is not None and share[0] >= share[1]:
        tangent = _Profile.of(group, run, "tangent", step)
        text = "Train it, or check labels and preprocessing: it is no better than chance"
        if tangent.top is not None:
            text += f"; a step in {layer_words(tangent.top)} moves its outputs most towards them"
        evidence = (tangent.figure, "steps-loss")
        return Answer("next", f"{text}.", "likely", "the loss is that of chance", evidence)
    rows = run.at(step).record.contents["rows"]
    held_out = any(row["measure"].startswith("held_out_") for row in rows)
    if data.get("split") in {"train", "unknown", None} and not held_out:
        text = (
            'Measure held-out examples next (split="test"): on training examples a network that'
            " memorises can show the same numbers."
        )
        if moved:
            text += f" {moved[0].upper()}{moved[1:]}."
        why = "no number here is of other examples than those given"
        return Answer("next", text, "clear", why, over)
    return _read_out(group, run, profiles, step)


def _movement(run: RunView, profile: _Profile, step: int | None) -> tuple[str, bool]:
    """How the top layer changed over the last third of the moments, and whether it rises."""
    layer, measure = profile.top, FAMILIES[profile.family].headline
    now = run.at(step)
    known = [
        m for m in run.moments
        if m.step <= now.step and layer and finite(m.value(profile.family, measure, layer))
    ]  # fmt: skip
    if len(known) < 3 or layer is None:
        return "", False
    before = known[-1 - max(1, len(known) // 3)]
    values = [m.value(profile.family, measure, layer) for m in (before, known[-1])]
    change = f"{shown(values[0])} → {shown(values[1])} since step {before.step}"
    small = _MOVING * max(map(abs, values))
    rises = values[1] - values[0] > small
    word = "still rises" if rises else "falls" if values[0] - values[1] > small else "has levelled"
    return f"{profile.heading} of {layer_words(layer)} {word}, {change}", rises


def _read_out(group: Group, run: RunView, profiles: Sequence[_Profile], step: int | None) -> Answer:
    """Held-out examples: which layer to take features from."""
    moment = run.holding(step, "representation", "predicted_steps")
    steps = values_of(group, moment, "representation", "predicted_steps")
    if steps:
        layer = min(steps, key=steps.__getitem__)
        text = (
            f"To reuse this network, read it out at {layer_words(layer)}: there gradient descent"
            f" on a linear read-out halves its loss in {shown(steps[layer])} steps, the fewest"
        )
        evidence = ("representation-predicted-steps", "representation-predicted-loss")
        return Answer("next", f"{text}.", "likely", "a prediction from the features", evidence)
    layer = profiles[0].top or profiles[0].last
    text = f"To reuse this network, take the features of {layer_words(layer)}."
    return Answer("next", text, "likely", f"{profiles[0].heading} is highest there",
                  (profiles[0].figure,))  # fmt: skip


def _look_between(group: Group, step: int | None) -> Answer:
    """Several runs: the layer where they differ most."""
    pairs = _held_out_pairs(group, step)
    profiles = [p for run in group.runs for p in _profiles(group, run, step)[:1]]
    same = [p for p in profiles if profiles and p.family == profiles[0].family]
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
            return Answer("next", "Compare the runs layer by layer below.", "open",
                          "no layer has a number in both")  # fmt: skip
        a = same[0]
        _, b, layer = max(gaps, key=lambda item: item[0])
        names = [f"“{plain(p.run.name)}” {shown(p.values[layer])}" for p in (a, b)]
        text = (
            f"Look at {layer_words(layer)} first: there two runs differ most in {a.heading},"
            f" {' and '.join(names)}."
        )
    evidence = (f"lines-{a.family}", a.figure, f"steps-{a.figure}")
    return Answer("next", text, *_apart(a, b, layer), evidence)
