"""From numbers to decisions: what a network does with its labels, and how sure that is."""

from theodolite.advice.memorising import (
    CALIBRATION,
    Calibration,
    FitEvidence,
    HeldOut,
    LabelVerdict,
    judge_fit,
)

__all__ = [
    "CALIBRATION",
    "Calibration",
    "FitEvidence",
    "HeldOut",
    "LabelVerdict",
    "judge_fit",
]
