"""How good fine-tuning of a model will be, from regressions that leave one example out.

Two kernels say what a model can learn from: the features that its head receives, and the exact
tangent kernel of all that is trainable below a fresh head. Each has half of the weight. Where there
are more labels than the tangent kernel can be measured on, the features of all layers stand in for
it: their error with all labels, times what the kernel gained on those that it has seen.
benchmarks/transfer has what else was tried.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from theodolite.advice import SMALL_ERROR
from theodolite.advice.reasons import reason
from theodolite.engine import Batch, tangent_kernels
from theodolite.errors import MemoryLimitError, TheodoliteError
from theodolite.linalg import (
    NORMAL_QUANTILE,
    LeaveOneOut,
    double,
    expected_right,
    regression_targets,
)
from theodolite.measures import kernel
from theodolite.records import Note
from theodolite.surveys.heads import Body, WithHead
from theodolite.theory.learning import LearningCurve, learning_curve

__all__ = [
    "Judged",
    "body_kernel",
    "fine_tuned",
    "forecast",
    "judged",
    "predicted_curve",
]

_ROWS = 10  # of the fresh head: the body's kernel is their mean
# Between kernel regression and fine-tuned networks, from benchmarks/transfer: half of the 95 %
# interval where the error is small, and how much higher networks come out where it is not.
_FINE_TUNING = 0.04
_NEW_FEATURES = 0.47
_WITH_LABELS = 0.06  # how much that grows with a factor of ten in labels
# Of the wrong answers of kernel regression, the share that fine-tuned networks get right where its
# error is 1, falling to none at the second number; from the same benchmark. Below the third number
# above chance it falls to none, too: what no model learns anything of may be noise.
_LEARNED, _FROM, _ABOVE = 0.12, 0.4, 0.2
_LEFT = 0.1  # of the wrong answers stay at the upper end of an interval: it is below 100 %


@dataclass(frozen=True)
class AllLayers:
    """Regression with the features of all layers, in equal shares.

    Args:
        kernel: between all examples.
        few: regression on the examples of the tangent kernel.
        every: regression on all examples.
    """

    kernel: Tensor
    few: LeaveOneOut
    every: LeaveOneOut


@dataclass(frozen=True)
class Judged:
    """Regression with the kernel of head and body, and with the features of the head alone.

    Args:
        kernel: of head and body in equal shares.
        best: regression with it.
        plain: regression with the features that the head receives.
        tangent: whether the tangent kernel was measured.
        beyond: where there are more labels than the tangent kernel has seen.
    """

    kernel: Tensor
    best: LeaveOneOut
    plain: LeaveOneOut
    tangent: bool = False
    beyond: AllLayers | None = None

    @property
    def count(self) -> int:
        """Examples of the kernel."""
        return len(self.kernel)

    @property
    def less(self) -> float:
        """Error with all labels over that with those of the kernel."""
        if self.beyond is None:
            return 1.0
        return float(self.beyond.every.error / self.beyond.few.error)

    @property
    def error(self) -> float:
        """Leave-one-out error with all labels, by which models are ranked."""
        return float(self.best.error) * self.less


def judged(
    outputs: Tensor, layers: Sequence[Tensor], of_body: Tensor | None, answers: Tensor
) -> Judged:
    """Leave-one-out regressions with the kernels of head and body, and beyond that of layers.

    Args:
        outputs: what the head receives, (n, d).
        layers: features of every layer, n rows each; none where the head is all there is.
        of_body: tangent kernel of the body between the first of these examples, or none.
        answers: labels or columns of targets.
    """
    if of_body is None:
        of_head = _gram(outputs)
        plain = kernel.leave_one_out_regression(of_head, answers)
        return Judged(of_head, plain, plain)
    count, beyond = len(of_body), None
    of_head = _gram(outputs[:count])
    both = kernel.mean_gram([of_head, of_body])
    best, plain = (
        kernel.leave_one_out_regression(gram, answers[:count]) for gram in (both, of_head)
    )
    if count < len(answers):
        # One layer at a time: the kernels of all layers of a deep network would fill the memory.
        parts = layers or [outputs]
        whole = sum((kernel.mean_gram([_gram(rows)]) for rows in parts), torch.zeros(1)) / len(
            parts
        )
        beyond = AllLayers(
            whole,
            kernel.leave_one_out_regression(whole[:count, :count], answers[:count]),
            kernel.leave_one_out_regression(whole, answers),
        )
    return Judged(both, best, plain, True, beyond)


def _gram(rows: Tensor) -> Tensor:
    wide = double(rows)
    return wide @ wide.mT


def body_kernel(
    body: Body,
    rows: Tensor,
    examples: Iterable[Batch],
    trained: Sequence[str],
    notes: list[str],
    **options: Any,
) -> Tensor | None:
    """The exact tangent kernel of the parameters below a fresh head; None with a note.

    Args:
        body: the model up to its head.
        rows: what the head receives, for width, device and dtype.
        examples: batches.
        trained: names of the body's parameters that fine-tuning moves.
        notes: why there is none is added here.
        **options: ``seed`` of the fresh head; the others as for the engine.
    """
    fresh = WithHead(body, rows.shape[1], _ROWS, options.pop("seed"), rows).eval()
    names = [f"body.{name}" for name in trained]
    try:
        found = tangent_kernels(fresh, list(examples), outputs="trace", params=names, **options)
    except (TheodoliteError, torch.OutOfMemoryError) as error:
        why = str(error)
        # The advice of these errors is for callers of the engine.
        if isinstance(error, torch.OutOfMemoryError):
            why = reason(Note.DEVICE_MEMORY)
        elif isinstance(error, MemoryLimitError):
            why = reason(Note.TANGENT_MEMORY)
        notes.append(reason(Note.FEATURES_ALONE, why=why))
        return None
    return double(found.total)


def fine_tuned(wrong: Tensor, error: Tensor, worst: float | Tensor) -> Tensor:
    """Wrong answers of fine-tuned networks, from those of regression with their tangent kernels.

    Networks learn features that the kernel at their start has not, the more the larger its error.

    Args:
        wrong: shares of wrong answers of the regression.
        error: its leave-one-out errors.
        worst: share of wrong answers if the largest class is always predicted.

    Examples:
        >>> wrong, error = torch.tensor([0.2, 0.5, 0.9]), torch.tensor([0.3, 0.7, 1.0])
        >>> fine_tuned(wrong, error, worst=0.9)
        tensor([0.2000, 0.4700, 0.9000])
    """
    new = ((error - _FROM) / (1 - _FROM)).clamp(0.0, 1.0)
    return wrong * (1 - _LEARNED * new * ((worst - wrong) / _ABOVE).clamp(0.0, 1.0))


def _worst(answers: Tensor) -> float:
    """Wrong answers if the largest class is always predicted."""
    return 1 - float(torch.unique(answers, return_counts=True)[1].max()) / len(answers)


def predicted_curve(
    found: Judged, answers: Tensor, labels: Sequence[int] | None, *, frozen: bool = False
) -> LearningCurve:
    """Of the fine-tuned network over the number of labels, through the forecast at those at hand.

    With more labels than the tangent kernel has seen it is the curve of the features of all layers,
    with what the kernel gained on the examples that it has seen. It is the curve of a network that
    stays near its start: like the forecast a lower bound where the error is large, and its interval
    then ends as far above it, and the further, the more labels there are to learn features from.

    Args:
        found: regressions with the kernels.
        answers: labels or columns of targets, of all examples.
        labels: how many; by default up to ten times the examples.
        frozen: whether nothing below the head is trainable, so that no feature can be learned.
    """
    n, beyond = len(answers), found.beyond
    counts = labels or [round(n * 10 ** (step / 8)) for step in range(-4, 9)]
    gram = found.kernel if beyond is None else beyond.kernel
    curve = learning_curve(gram, answers, [*counts, n], kernel=True)
    if beyond is not None:
        less = float(found.best.error / beyond.few.error)
        curve = replace(curve, error=curve.error * less, error_interval=curve.error_interval * less)
    if answers.is_floating_point():
        return _but_last(curve)
    gain, chance = (1.0, 0.0) if beyond is None else _gain(found.best, beyond.few, answers)
    every = found.best if beyond is None else beyond.every
    at_hand = (float(_wrong(every, answers).sum()) + 0.5) / (n + 1)  # as in the learning curve
    middle = 1 - curve.accuracy
    worst = _worst(answers)
    wrong = (middle * gain * at_hand / middle[-1]).clamp_max(worst)
    # Intervals are of the logarithm of the wrong answers; the chance in the gain and what networks
    # differ from their kernels by come on top.
    more, fewer = ((1 - curve.accuracy_interval) / middle).log().square()
    more = (more + (NORMAL_QUANTILE * chance) ** 2).sqrt()
    fewer = (fewer + (NORMAL_QUANTILE * chance) ** 2 + (_FINE_TUNING / wrong).square()).sqrt()
    below = (wrong * more.exp()).clamp_max(max(worst, float(wrong.max()))) - wrong
    below = (below.square() + _FINE_TUNING**2).sqrt()
    above = wrong - wrong * (-fewer).exp()
    if found.error > SMALL_ERROR and not frozen:
        tens = (curve.labels / n).log10().clamp_min(0.0)
        above = above.maximum(_NEW_FEATURES + _WITH_LABELS * tens)
    upper = (1 - wrong + above).minimum(1 - _LEFT * wrong)
    interval = torch.stack([(1 - wrong - below).clamp_min(0.0), upper])
    if found.tangent:
        wrong = fine_tuned(wrong, curve.error, worst)
    return _but_last(replace(curve, accuracy=1 - wrong, accuracy_interval=interval))


def _but_last(curve: LearningCurve) -> LearningCurve:
    """Without the last number of labels."""
    parts = {key: value[..., :-1] for key, value in vars(curve).items() if key != "examples"}
    return LearningCurve(**parts, examples=curve.examples)


def _gain(best: LeaveOneOut, layers: LeaveOneOut, answers: Tensor) -> tuple[float, float]:
    """Wrong answers with the kernel over those of the layers, and the s.e. of its logarithm.

    On the examples of the kernel. As in the learning curve, half a wrong answer more: none among
    these does not mean none ever. The two err on the same examples, so that only those on which
    one alone errs add chance.
    """
    wrong = [_wrong(regression, answers) for regression in (best, layers)]
    counts = [float(each.sum()) + 0.5 for each in wrong]
    apart = float((wrong[0] != wrong[1]).sum()) + 0.5
    return min(counts[0] / counts[1], 1.0), (apart / (counts[0] * counts[1])) ** 0.5


def _wrong(found: LeaveOneOut, answers: Tensor) -> Tensor:
    """Which examples are taken for another class, at the shares of the classes among them all."""
    columns, _ = regression_targets(answers[: len(found.predictions)].to(found.predictions.device))
    return ~expected_right(found.predictions, columns)


def forecast(found: Judged, answers: Tensor, *, frozen: bool = False) -> dict[str, Any]:
    """Of the fine-tuned network, with the labels at hand: value and 95 % interval.

    Args:
        found: regressions with the kernels.
        answers: labels or columns of targets, of all examples.
        frozen: whether nothing below the head is trainable, so that no feature can be learned.
    """
    origin = "tangent kernel" if found.tangent else "features"
    best, gain, chance = found.best, 1.0, 0.0
    if answers.is_floating_point():
        low, high = (found.less * float(end) for end in best.error_interval)
        return {"measure": "error", "value": found.error, "low": low, "high": high, "from": origin}
    if found.beyond is not None:
        best, (gain, chance) = found.beyond.every, _gain(best, found.beyond.few, answers)
    misses = _wrong(best, answers).double()
    # Jeffreys' estimate and Wilson's interval: none wrong of fifty does not mean none ever.
    wrong = (float(misses.sum()) + 0.5) / (len(misses) + 1) * gain
    ends = [1 - float(end) for end in best.accuracy_interval]  # most, then least wrong answers
    half = [gain * (ends[0] - ends[1]) / 2, NORMAL_QUANTILE * chance * wrong, _FINE_TUNING]
    wide = sum(part**2 for part in half) ** 0.5
    learns = found.error > SMALL_ERROR and not frozen
    above = max(wide, _NEW_FEATURES) if learns else wide
    low, high = max(1 - wrong - wide, 0.0), min(1 - wrong + above, 1 - _LEFT * wrong)
    value = 1 - wrong
    if found.tangent:  # the interval is about the regression, and holds the network as it is
        tuned, error = torch.tensor([wrong, found.error], dtype=torch.float64)
        value = 1 - float(fine_tuned(tuned, error, _worst(answers)))
    return {"measure": "accuracy", "value": value, "low": low, "high": high, "from": origin}
