"""What to notice in the demo, and whether it is true of the numbers of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from theodolite.advice.findings import CLEAR
from theodolite.records import Estimate


@dataclass(frozen=True)
class Check:
    """A sentence about the numbers, whether it is true, and the numbers."""

    text: str
    holds: bool
    numbers: str

    def __str__(self) -> str:
        seen = "" if self.holds else "Not in this run: "
        return f"{seen}{self.text}: {self.numbers}."


def random_labels_are_late(layers: Sequence[str], first: Estimate, last: Estimate) -> Check:
    """Compare CKA to random labels in the first and the last layer."""
    return Check(
        "Random labels appear mostly in late layers",
        last.z_score > CLEAR and first.value < last.value / 10,
        f"CKA to labels {abs(first.value):.2f} in {layers[0]}, {last.value:.2f} in {layers[-1]} "
        "(chance 0)",
    )


def contrast_is_higher(
    layers: Sequence[str], learned: Sequence[float], memorised: Sequence[float]
) -> Check:
    """Compare the feature contrast of every layer with true and with random labels."""
    return Check(
        "Feature contrast is higher with true labels in every layer",
        all(low < high for low, high in zip(memorised, learned, strict=True)),
        f"{learned[0]:.2f} in {layers[0]} (random labels {abs(memorised[0]):.2f}), "
        f"{learned[-1]:.2f} in {layers[-1]} (random labels {memorised[-1]:.2f})",
    )


def last_area_rises(
    layers: Sequence[str], before: Sequence[float], after: Sequence[float]
) -> Check:
    """Compare label alignment of every layer before and after training."""
    gains = [late - early for early, late in zip(before, after, strict=True)]
    return Check(
        "Training on true labels raises label alignment most in the last layer",
        gains[-1] == max(gains) > 0,
        f"from {before[-1]:.2f} to {after[-1]:.2f} in {layers[-1]}, from {before[0]:.2f} to "
        f"{after[0]:.2f} in {layers[0]}",
    )
