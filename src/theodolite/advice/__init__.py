"""From numbers to typed findings to sentences, each with its certainty.

This package writes every sentence that depends on the numbers of a network. It needs only records,
not torch:

- ``findings``: typed findings with their thresholds; ``inputs``: the rule on raw inputs.
- ``answers``: reads findings from the record of a survey; ``sentences``: their words.
- ``comparing``: answers about several runs; ``captions``: sentences under figures.
- ``reasons``: why a number is missing; ``summary``: a survey on a terminal.
- ``noticing``: what to notice in the demo.
- ``choosing``: which model to start from; ``pairs``: which layers of two models are similar.
"""

from theodolite.advice.answers import answers_of, findings_of, worded_for
from theodolite.advice.findings import (
    CarryOver,
    FitOnTraining,
    GroupContrast,
    HeldOutFit,
    LastLayer,
    LayerProbes,
    LayersFinding,
    Measured,
    Unlabelled,
    Verdict,
    carry_over,
    compare_layers,
)
from theodolite.advice.inputs import (
    FitEvidence,
    InputFinding,
    judge_inputs,
)
from theodolite.advice.sentences import Interface, worded

__all__ = [
    "CarryOver",
    "FitEvidence",
    "FitOnTraining",
    "GroupContrast",
    "HeldOutFit",
    "InputFinding",
    "Interface",
    "LastLayer",
    "LayerProbes",
    "LayersFinding",
    "Measured",
    "Unlabelled",
    "Verdict",
    "answers_of",
    "carry_over",
    "compare_layers",
    "findings_of",
    "judge_inputs",
    "worded",
    "worded_for",
]
