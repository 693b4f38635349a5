"""What the numbers of the demo should say, as checks over its records."""

from collections.abc import Mapping
from dataclasses import dataclass

from theodolite.surveys import History

__all__ = ["Check", "story_checks"]


@dataclass(frozen=True)
class Check:
    """One sentence about the numbers, whether it holds, and the numbers."""

    text: str
    holds: bool
    numbers: str


def story_checks(histories: Mapping[str, History]) -> tuple[Check, ...]:
    """Memorizing shows in the features, and learning moves alignment towards the output.

    Args:
        histories: "true labels" and "shuffled labels" on training examples with the labels that
            were trained on, and both with ", test" on test examples with true labels.
    """
    return (
        _contrast(histories["true labels"], histories["shuffled labels"]),
        _held_out(histories["true labels, test"], histories["shuffled labels, test"]),
        _area(histories["true labels"]),
    )


def _values(history: History, step: int, measure: str) -> list[float]:
    survey = history.survey(step)
    return [survey.estimate(measure, layer).value for layer in history.layers]


def _contrast(true: History, shuffled: History) -> Check:
    learned = _values(true, true.steps[-1], "feature_omega_contrast")
    memorized = _values(shuffled, shuffled.steps[-1], "feature_omega_contrast")
    holds = all(low < high for low, high in zip(memorized, learned, strict=True))
    return Check(
        "Trained on shuffled labels, features of one class point less together than on true ones, "
        "in every layer",
        holds,
        f"contrast {_listed(memorized)} against {_listed(learned)}",
    )


def _held_out(true: History, shuffled: History) -> Check:
    learned = _values(true, true.steps[-1], "cka_target")[-1]
    memorized = _values(shuffled, shuffled.steps[-1], "cka_target")[-1]
    return Check(
        "What was memorized does not carry over: on test examples with true labels, the last "
        "layer's CKA to the labels is lower",
        memorized < learned,
        f"{memorized:.3f} against {learned:.3f}",
    )


def _area(true: History) -> Check:
    before = _values(true, true.steps[0], "alignment_area")
    after = _values(true, true.steps[-1], "alignment_area")
    return Check(
        "Before training the last layer is less aligned with the labels than the first, after "
        "training more",
        before[-1] < before[0] and after[-1] > after[0],
        f"area first to last layer: {before[0]:.3f} to {before[-1]:.3f} before, "
        f"{after[0]:.3f} to {after[-1]:.3f} after",
    )


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
