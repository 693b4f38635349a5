"""Numbers -> typed findings -> sentences: what Theodolite says about a network, and how sure it is.

:mod:`~theodolite.advice.findings` holds the findings and their thresholds,
:mod:`~theodolite.advice.sentences` the words, :mod:`~theodolite.advice.answers` reads records.
"""

from theodolite.advice.answers import answers_of, findings_of
from theodolite.advice.choosing import (
    SMALL_ERROR,
    Candidate,
    choosing_notes,
    ranked,
    tied,
    transfer_answers,
)
from theodolite.advice.findings import (
    CarryOver,
    Fit,
    FitOnTraining,
    GroupContrast,
    HeldOutFit,
    LastLayer,
    LayerProbes,
    LayersFinding,
    Measured,
    Unlabelled,
    carry_over,
    compare_layers,
    wilson,
)
from theodolite.advice.inputs import (
    CALIBRATION,
    ZOO,
    Calibration,
    FitEvidence,
    InputFinding,
    judge_inputs,
)
from theodolite.advice.learning import LearningCurve, learning_curve
from theodolite.advice.sentences import percent, verdict_words, worded

__all__ = [
    "CALIBRATION",
    "SMALL_ERROR",
    "ZOO",
    "Calibration",
    "Candidate",
    "CarryOver",
    "Fit",
    "FitEvidence",
    "FitOnTraining",
    "GroupContrast",
    "HeldOutFit",
    "InputFinding",
    "LastLayer",
    "LayerProbes",
    "LayersFinding",
    "LearningCurve",
    "Measured",
    "Unlabelled",
    "answers_of",
    "carry_over",
    "choosing_notes",
    "compare_layers",
    "findings_of",
    "judge_inputs",
    "learning_curve",
    "percent",
    "ranked",
    "tied",
    "transfer_answers",
    "verdict_words",
    "wilson",
    "worded",
]
