"""From numbers to decisions: is it memorising, how good with more labels, and how sure that is."""

from theodolite.advice.choosing import SMALL_ERROR, Candidate, choosing_notes, ranked
from theodolite.advice.learning import LearningCurve, learning_curve
from theodolite.advice.memorising import (
    CALIBRATION,
    ZOO,
    Calibration,
    FitEvidence,
    HeldOut,
    LabelVerdict,
    judge_fit,
)

__all__ = [
    "CALIBRATION",
    "SMALL_ERROR",
    "ZOO",
    "Calibration",
    "Candidate",
    "FitEvidence",
    "HeldOut",
    "LabelVerdict",
    "LearningCurve",
    "choosing_notes",
    "judge_fit",
    "learning_curve",
    "ranked",
]
