"""Three sentences about a survey that a person can act on, from its rows alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from theodolite.advice import FitEvidence, HeldOut, LabelVerdict, judge_fit

__all__ = ["Answer", "answers_of"]

Row = Mapping[str, Any]
_ALIKE = 0.1  # of a tangent alignment: a smaller lead is none
_CALIBRATED = 100  # examples at least: the verdict was calibrated on 105 and more


@dataclass(frozen=True)
class Answer:
    """A sentence with what it rests on; docs/records.md has the layout.

    Args:
        question: "task", "layer" or "next".
        text: the answer.
        certainty: "clear", "likely" or "open".
        why: what that rests on: error rates, numbers.
        evidence: keys of the figures of a report that show it.
    """

    question: str
    text: str
    certainty: str
    why: str
    evidence: tuple[str, ...]


def answers_of(contents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the network does with its task, which layer carries it, what to do; plain data.

    Args:
        contents: of a survey record: rows, layers and data.
    """
    rows = {(row["layer"], row["measure"]): row for row in contents["rows"]}
    layers = [layer["name"] for layer in contents["layers"]]
    verdict = _verdict(rows, contents["data"], layers)
    classes = contents["data"].get("task", "classification") == "classification"
    goal = "labels" if classes else "targets"
    found = [_task(verdict), _carrier(rows, layers, verdict), _next(rows, layers, verdict, goal)]
    return [{**vars(a), "evidence": list(a.evidence)} for a in found if a is not None]


def _task(verdict: LabelVerdict | None) -> Answer | None:
    if verdict is None:
        return None
    certainty = "open" if verdict.answer == "undecided" else "likely"
    if verdict.measured:
        certainty = "clear" if verdict.answer != "undecided" else "likely"
    why = f"{verdict.sure}; {verdict.because}"
    return Answer("task", verdict.sentence, certainty, why, ("representation-readout-accuracy",))


def _verdict(
    rows: Mapping[tuple[str | None, str], Row], data: Mapping[str, Any], layers: Sequence[str]
) -> LabelVerdict | None:
    """Learning or memorising; None where there are no classes or no outputs."""
    accuracy = rows.get((None, "accuracy"))
    if accuracy is None or data.get("split") not in ("train", "unknown", None):
        return None
    shape, held_out = data.get("input_shape"), rows.get((None, "held_out_accuracy"))
    near, line = (rows.get((None, f"input_{kind}_accuracy")) for kind in ("neighbour", "readout"))
    in_layers = (rows.get((name, "neighbour_accuracy")) for name in layers)
    first = next((row for row in in_layers if row is not None), None)
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


def _carrier(
    rows: Mapping[tuple[str | None, str], Row],
    layers: Sequence[str],
    verdict: LabelVerdict | None,
) -> Answer | None:
    """The first layer whose linear read-out tells the classes as well as that of any other."""
    known = {name: rows.get((name, "readout_accuracy")) for name in layers}
    finite = {name: row for name, row in known.items() if row and isfinite(row["value"])}
    if not finite:
        return None
    best = max(finite.values(), key=lambda row: row["value"])
    chance, n = best["null_mean"], best["n"]
    each = _each({name: f"{row['value']:.0%}" for name, row in finite.items()})
    why = f"± {200 * best['error']:.0f} points with {n} examples, each left out in turn; {each}"
    evidence = ("representation-readout-accuracy", "kernel-cka-target")
    if best["value"] < chance + 3 * best["null_sd"]:
        text = "No layer carries the task: linear read-outs of all of them are at chance."
        return Answer("layer", text, "likely", f"chance {chance:.0%}; {why}", evidence)
    near = 2 * max(best["error"], 0.25 / n**0.5)
    equal = [name for name in finite if finite[name]["value"] >= best["value"] - near]
    first, others = equal[0], ""
    if len(equal) > 1:
        verb = "is" if len(equal) == 2 else "are"
        others = f"; {_listed(equal[1:])} {verb} no better within the error"
    text = (
        f"Layer {_name(first)} carries it: a linear read-out of it, fitted to the other examples, "
        f"gets {finite[first]['value']:.0%} right (chance {chance:.0%}){others}."
    )
    certainty = "clear" if best["value"] > chance + 5 * best["null_sd"] else "likely"
    if verdict is not None and verdict.answer == "memorising":
        text = text.replace("carries it", "holds the labels best", 1)
        certainty, why = "open", f"the layer was built from these very labels; {why}"
    return Answer("layer", text, certainty, why, evidence)


def _next(
    rows: Mapping[tuple[str | None, str], Row],
    layers: Sequence[str],
    verdict: LabelVerdict | None,
    goal: str,
) -> Answer | None:
    """What to do: the verdict's advice, or which layer moves the outputs towards the targets."""
    if verdict is not None and verdict.answer != "learning":
        why = "follows from the first answer"
        return Answer("next", verdict.advice, "likely", why, ("representation-readout-accuracy",))
    found = {name: rows.get((name, "tangent_alignment")) for name in layers}
    tangent = {name: row for name, row in found.items() if row and isfinite(row["value"])}
    if not tangent:
        return None
    peak = max(tangent, key=lambda name: tangent[name]["value"])
    value, chance = tangent[peak]["value"], tangent[peak]["null_mean"]
    spreads = (tangent[peak]["error"] or 0.0, tangent[peak]["null_sd"] or 0.0)
    spread = max(2 * max(spreads), _ALIKE * value)
    alike = [name for name in tangent if tangent[name]["value"] >= value - spread]
    text = (
        f"To change it with least effort, train layer {_name(peak)}: a small step there "
        f"moves the outputs most towards the {goal}."
    )
    if chance is not None and value <= chance + 2 * (tangent[peak]["null_sd"] or 0.0):
        text = "No layer stands out as the one to train: tangent alignments are within chance."
    elif len(alike) > 1:
        text = (
            f"To change it, train any of {_listed(alike)}: small steps there move the outputs "
            f"towards the {goal} about equally."
        )
    if verdict is not None and not verdict.measured:
        text = f"Confirm it on held-out examples (held_out=). {text}"
    each = _each({name: f"{row['value']:.2g}" for name, row in tangent.items()})
    guess = "" if chance is None else f", chance {chance:.2g}"
    why = f"describes this moment, and is no forecast; tangent alignment {each}{guess}"
    return Answer("next", text, "likely", why, ("tangent-tangent-alignment",))


def _name(layer: str) -> str:
    return layer or "(whole model)"


def _listed(names: Sequence[str]) -> str:
    """Layers within a sentence: "layer a", "layers a and b", "layers a, b, c and 4 more"."""
    shown = list(map(_name, names[:3])) + ([f"{len(names) - 3} more"] if len(names) > 3 else [])
    *most, last = shown
    return f"layers {', '.join(most)} and {last}" if most else f"layer {last}"


def _each(numbers: Mapping[str, str]) -> str:
    """A number for each layer; of many layers the first two and the last two."""
    told = []
    for name, number in numbers.items():
        noun = "layer " if name and not any(map(str.isalpha, name)) else ""  # "0" needs one
        told.append(f"{number} in {noun}{_name(name)}")
    if len(told) > 5:
        told = [*told[:2], "…", *told[-2:]]
    return ", ".join(told)
