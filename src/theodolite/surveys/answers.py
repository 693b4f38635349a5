"""Three sentences about a survey that a person can act on, from its rows alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from theodolite.advice import FitEvidence, HeldOut, LabelVerdict, judge_fit

__all__ = ["Answer", "answers_of"]

Row = Mapping[str, Any]
_CALIBRATED = 100  # examples at least: the verdict was calibrated on 105 and more


@dataclass(frozen=True)
class Answer:
    """A sentence with what it rests on.

    Args:
        question: that it answers.
        sentence: the answer.
        sure: how sure that is.
        because: the numbers behind it.
        family: where the evidence is.
        measure: which of its numbers.
    """

    question: str
    sentence: str
    sure: str
    because: str
    family: str
    measure: str


def answers_of(contents: Mapping[str, Any]) -> list[dict[str, str]]:
    """What the network does with its task, which layer carries it, what to do; plain data.

    Args:
        contents: of a survey record: rows, layers and data.
    """
    rows = {(row["layer"], row["measure"]): row for row in contents["rows"]}
    layers = [layer["name"] for layer in contents["layers"]]
    verdict = _verdict(rows, contents["data"], layers)
    carrier = _carrier(rows, layers)
    found = []
    if verdict is not None:
        question = "What does the network do with this task?"
        because = verdict.because
        found.append(
            Answer(question, verdict.sentence, verdict.sure, because, "representation", "accuracy")
        )
    if carrier is not None:
        found.append(carrier)
    if found:
        found.append(_next(rows, layers, verdict, carrier))
    return [asdict(answer) for answer in found]


def _verdict(
    rows: Mapping[tuple[str | None, str], Row], data: Mapping[str, Any], layers: Sequence[str]
) -> LabelVerdict | None:
    """Learning or memorising; None where there are no classes or no outputs."""
    accuracy = rows.get((None, "accuracy"))
    if accuracy is None or data.get("split") not in ("train", "unknown", None):
        return None
    shape, held_out = data.get("input_shape"), rows.get((None, "held_out_accuracy"))
    near, line = (rows.get((None, f"input_{kind}_accuracy")) for kind in ("neighbour", "readout"))
    first = next(
        (rows[n, "neighbour_accuracy"] for n in layers if (n, "neighbour_accuracy") in rows), None
    )
    size = 1
    for length in shape or ():
        size *= length
    known = near is not None and line is not None and first is not None
    evidence = FitEvidence(
        accuracy=accuracy["value"],
        chance=accuracy["null_mean"],
        examples=accuracy["n"],
        input_size=max(size, 1),
        input_neighbours=near["value"] if known else float("nan"),  # type: ignore[index]
        input_readout=line["value"] if known else float("nan"),  # type: ignore[index]
        first_layer_neighbours=first["value"] if known else float("nan"),  # type: ignore[index]
    )
    if held_out is not None:
        return judge_fit(evidence, HeldOut(held_out["value"], held_out["n"]))
    if not known or evidence.examples < _CALIBRATED:
        return None
    return judge_fit(evidence)


def _carrier(rows: Mapping[tuple[str | None, str], Row], layers: Sequence[str]) -> Answer | None:
    """The layer whose linear read-out tells the classes best, and those that are as good."""
    known = {
        name: rows[name, "readout_accuracy"]
        for name in layers
        if (name, "readout_accuracy") in rows
    }
    finite = {name: row for name, row in known.items() if isfinite(row["value"])}
    if not finite:
        return None
    best = max(finite, key=lambda name: finite[name]["value"])
    top = finite[best]
    chance, spread = top["null_mean"], top["null_sd"]
    question, measure = "Which layer carries it?", "readout_accuracy"
    points, n = 200 * top["error"], top["n"]
    sure = f"± {points:.0f} points (two standard errors of {n} examples, each left out in turn)"
    because = ", ".join(f"{_name(name)} {row['value']:.0%}" for name, row in finite.items())
    if top["value"] < chance + 3 * spread:
        sentence = "No layer carries the task: linear read-outs of all of them are at chance."
        because = f"guessing {chance:.0%}; {because}"
        return Answer(question, sentence, sure, because, "representation", measure)
    near = 2 * max(top["error"], 0.25 / n**0.5)
    equal = [name for name in finite if finite[name]["value"] >= top["value"] - near]
    first, others = equal[0], ""
    if len(equal) > 1:
        verb = "is" if len(equal) == 2 else "are"
        others = f"; {_listed(equal[1:])} {verb} no better within the error"
    sentence = (
        f"Layer {_name(first)} carries it: a linear read-out of it, fitted to the other examples, "
        f"gets {finite[first]['value']:.0%} right (guessing {chance:.0%}){others}."
    )
    return Answer(question, sentence, sure, because, "representation", measure)


def _next(
    rows: Mapping[tuple[str | None, str], Row],
    layers: Sequence[str],
    verdict: LabelVerdict | None,
    carrier: Answer | None,
) -> Answer:
    """What to do: the verdict's advice, or where to read out, or which layer would move."""
    question = "What to do next?"
    if verdict is not None and verdict.answer != "learning":
        sure = "as sure as the first answer"
        because = verdict.because
        return Answer(question, verdict.advice, sure, because, "representation", "accuracy")
    found = {name: rows.get((name, "tangent_alignment")) for name in layers}
    tangent = {name: row for name, row in found.items() if row and isfinite(row["value"])}
    if not tangent:
        advice = "Compare layers in the table." if verdict is None else verdict.advice
        because = "" if carrier is None else carrier.because
        sure = "see the table"
        return Answer(question, advice, sure, because, "representation", "readout_accuracy")
    peak = max(tangent, key=lambda name: tangent[name]["value"])
    value, chance = tangent[peak]["value"], tangent[peak]["null_mean"]
    sentence = (
        f"To change what it does with least effort, train layer {_name(peak)}: a small step there "
        "moves the outputs most towards the labels."
    )
    if chance is not None and value <= chance + 2 * (tangent[peak]["null_sd"] or 0.0):
        sentence = "No layer stands out as the one to train: tangent alignments are within chance."
    because = ", ".join(f"{_name(name)} {row['value']:.3g}" for name, row in tangent.items())
    sure = "a description of this moment, not a forecast"
    return Answer(question, sentence, sure, because, "tangent", "tangent_alignment")


def _name(layer: str) -> str:
    return layer or "(whole model)"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(_name, names[:3]))
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
