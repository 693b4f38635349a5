"""Forecasts of fine-tuning from regressions that leave one example out.

Two kernels describe what a model can learn from: the features that its head receives, and the exact
tangent kernel of all trainable parameters below a new head. The regression uses their mean. If
there are more labels than the tangent kernel can be measured on, the features of all layers replace
it. Their error with all labels is then multiplied by a ratio on the examples of the tangent kernel:
its error over theirs. benchmarks/transfer has the alternatives that were tried.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from theodolite.advice.choosing import SMALL_ERROR
from theodolite.advice.reasons import Reason, failure, reason
from theodolite.engine import Batch, tangent_kernels
from theodolite.errors import MemoryLimitError, TheodoliteError
from theodolite.linalg import (
    Eigen,
    LeaveOneOut,
    centred_eigen,
    double,
    dual_gram,
    expected_right,
    leave_one_out,
    regression_targets,
    unit_peak,
)
from theodolite.measures import kernel
from theodolite.records import NORMAL, Note
from theodolite.surveys.heads import Body, WithHead
from theodolite.surveys.progress import Cost
from theodolite.theory.learning import LearningCurve, curve_from_spectrum

# Multiply-adds that take as long as the work on one entry of a kernel. Ridges of a regression, and
# of a learning curve.
_ENTRY, _RIDGES, _CURVE = 300, 15, 33
_ROWS = 10  # outputs of the new head; the body's kernel is the mean of their kernels
# Three numbers from benchmarks/transfer compare kernel regression with fine-tuned networks.
# Half of the 95 % interval of their difference in accuracy where the error is small.
_FINE_TUNING = 0.04
# How much more accurate networks may be where the error is large.
_NEW_FEATURES = 0.47
_WITH_LABELS = 0.06  # how much that grows for ten times the labels
# Share of the wrong answers of kernel regression that fine-tuned networks get right if its error is
# 1 (first number). It falls to 0 at the second number, and also if the regression is less than the
# third number above chance: targets that no model learns may be noise.
_LEARNED, _FROM, _ABOVE = 0.12, 0.4, 0.2
_LEFT = 0.1  # share of the wrong answers that stays at the upper end of an interval, below 100 %


@dataclass(frozen=True)
class AllLayers:
    """Regression with the features of all layers, in equal shares.

    Args:
        spectrum: eigenpairs of the centred kernel between all examples.
        few: regression on the examples of the tangent kernel.
        every: regression on all examples.
    """

    spectrum: Eigen
    few: LeaveOneOut
    every: LeaveOneOut


@dataclass(frozen=True)
class KernelRegressions:
    """Regression with the kernel of head and body, and with the features of the head alone.

    Args:
        spectrum: eigenpairs of the centred kernel of head and body in equal shares.
        head_and_body: regression with this kernel.
        head_features: regression with the features that the head receives.
        every_head_features: the same on all labels.
        tangent: whether the tangent kernel was measured.
        all_layers: regressions on all labels, if the tangent kernel was measured on fewer.
    """

    spectrum: Eigen
    head_and_body: LeaveOneOut
    head_features: LeaveOneOut
    every_head_features: LeaveOneOut
    tangent: bool = False
    all_layers: AllLayers | None = None

    @property
    def count(self) -> int:
        """Number of examples of the kernel."""
        return len(self.spectrum.vectors)

    @property
    def error_ratio(self) -> float:
        """Error with all labels divided by the error with those of the kernel."""
        if self.all_layers is None:
            return 1.0
        return float(self.all_layers.every.error / self.all_layers.few.error)

    @property
    def error(self) -> float:
        """Leave-one-out error with all labels, by which models are ranked."""
        return float(self.head_and_body.error) * self.error_ratio


def kernel_regressions(
    outputs: Tensor, layers: Sequence[Tensor], of_body: Tensor | None, answers: Tensor
) -> KernelRegressions:
    """Leave-one-out regressions with the kernels of head and body, and of all layers if needed.

    Args:
        outputs: features that the head receives, (n, d).
        layers: features of every layer, n rows each; empty if the model is only a head.
        of_body: tangent kernel of the body between the first examples, or None.
        answers: class labels or target columns.
    """
    of_head = _spectrum(outputs)
    every = _regression(of_head, answers)
    if of_body is None:
        return KernelRegressions(of_head, every, every, every)
    count = len(of_body)
    both = kernel.mean_gram([dual_gram(outputs[:count]), of_body])
    mixed = centred_eigen(both, kernel=True)
    best = _regression(mixed, answers[:count])
    if count == len(answers):
        return KernelRegressions(mixed, best, every, every, tangent=True)
    plain = _regression(_spectrum(outputs[:count]), answers[:count])
    beyond = _all_layers(layers or [outputs], answers, count)
    return KernelRegressions(mixed, best, plain, every, tangent=True, all_layers=beyond)


def regressions_cost(
    count: int, tangent: int, layers: Sequence[int], width: int, columns: int
) -> Cost:
    """Cost of :func:`kernel_regressions` and :func:`predicted_curve`.

    Args:
        count: number of examples.
        tangent: number of examples of the tangent kernel; 0 if there is none.
        layers: number of features of every layer.
        width: number of features that the head receives.
        columns: number of target columns.
    """
    products = cubes = 0.0
    every = sum(layers) or width
    # The sizes of matrices, the parts that fill them, and the ridges of their regressions.
    matrices = [(count, width, 1, _RIDGES)]
    if tangent:
        cubes += 2.0 * tangent**3
    if tangent and tangent < count:
        matrices += [(tangent, width, 1, _RIDGES), (tangent, every, 1, _RIDGES)]
        matrices += [(count, every, max(1, len(layers)), _RIDGES)]
    for n, features, parts, ridges in matrices:
        rank = min(n, features)
        products += ridges * n * rank * (1.0 + columns)
        if _are_few(n, features):
            cubes += 2.0 * n * features**2
        else:
            cubes += n**3
            products += n**2 * (features + parts * _ENTRY)
    largest = min(count, every if tangent and tangent < count else width)
    return Cost((), products + _CURVE * count * largest * (1.0 + columns), cubes)


def _all_layers(layers: Sequence[Tensor], answers: Tensor, count: int) -> AllLayers:
    """Regressions with the features of all layers, on the first examples and on all."""
    if _are_few(len(answers), sum(rows.shape[1] for rows in layers)):
        side_by_side = torch.cat([_unit(rows) for rows in layers], dim=1)
        few, every = _spectrum(side_by_side[:count]), _spectrum(side_by_side)
    else:
        # One layer at a time: the kernels of all layers of a deep network would fill the memory.
        whole = sum((kernel.mean_gram([dual_gram(rows)]) for rows in layers), torch.zeros(1))
        few, every = (centred_eigen(whole[:n, :n], kernel=True) for n in (count, len(answers)))
    return AllLayers(every, _regression(few, answers[:count]), _regression(every, answers))


def _spectrum(features: Tensor) -> Eigen:
    """Eigenpairs of the centred kernel of features, from the smaller matrix."""
    if _are_few(*features.shape):
        return centred_eigen(features, kernel=False)
    return centred_eigen(dual_gram(features), kernel=True)


def _are_few(examples: int, features: int) -> bool:
    """Whether their singular values take less time than the eigenvalues of their kernel."""
    return 2 * features <= examples


def _unit(features: Tensor) -> Tensor:
    """Centred features; the mean eigenvalue of their kernel is one."""
    scaled = unit_peak(double(features))
    rows = scaled - scaled.mean(0)
    mean = rows.square().sum() / len(rows)
    return rows / torch.where(mean > 0, mean, 1.0).sqrt()


def _regression(spectrum: Eigen, answers: Tensor) -> LeaveOneOut:
    return leave_one_out(spectrum.vectors, spectrum.values, answers)


def body_kernel(
    body: Body,
    rows: Tensor,
    examples: Iterable[Batch],
    trained: Sequence[str],
    notes: list[Reason],
    **options: Any,
) -> Tensor | None:
    """The exact tangent kernel of the parameters below a new head; None, with a note, if it fails.

    Args:
        body: the model up to its head.
        rows: features that the head receives; they give width, device and dtype.
        examples: batches.
        trained: names of the body's parameters that fine-tuning changes.
        notes: list to which the reason of a failure is added.
        **options: ``seed`` of the new head, and options of the engine.
    """
    fresh = WithHead(body, rows.shape[1], _ROWS, options.pop("seed"), rows).eval()
    names = [f"body.{name}" for name in trained]
    try:
        found = tangent_kernels(fresh, list(examples), outputs="trace", params=names, **options)
    except (TheodoliteError, torch.OutOfMemoryError) as error:
        why = failure(error)
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

    Networks learn features that the kernel at their start lacks: the more, the larger its error.

    Args:
        wrong: shares of wrong answers of the regression.
        error: leave-one-out errors of the regression.
        worst: share of wrong answers if the largest class is always predicted.

    Examples:
        >>> wrong, error = torch.tensor([0.2, 0.5, 0.9]), torch.tensor([0.3, 0.7, 1.0])
        >>> fine_tuned(wrong, error, worst=0.9)
        tensor([0.2000, 0.4700, 0.9000])
    """
    new = ((error - _FROM) / (1 - _FROM)).clamp(0.0, 1.0)
    return wrong * (1 - _LEARNED * new * ((worst - wrong) / _ABOVE).clamp(0.0, 1.0))


def _worst(answers: Tensor) -> float:
    """Share of wrong answers if the largest class is always predicted."""
    return 1 - float(torch.unique(answers, return_counts=True)[1].max()) / len(answers)


def predicted_curve(
    found: KernelRegressions, answers: Tensor, labels: Sequence[int] | None, *, frozen: bool = False
) -> LearningCurve:
    """Learning curve of the fine-tuned network, through the forecast at the given labels.

    If there are more labels than the tangent kernel was measured on, the curve is that of the
    features of all layers. Its error is multiplied by the ratio of the error of the kernel to
    theirs, on the kernel's examples. It holds for a network that stays near its start. If the error
    is large, the curve is a lower bound like the forecast. Its interval then extends as far above
    it, and further for more labels.

    Args:
        found: regressions with the kernels.
        answers: class labels or target columns of all examples.
        labels: numbers of labels; by default up to ten times the examples.
        frozen: whether nothing below the head is trainable, so that no feature can be learned.
    """
    n, beyond = len(answers), found.all_layers
    counts = labels or [round(n * 10 ** (step / 8)) for step in range(-4, 9)]
    spectrum = found.spectrum if beyond is None else beyond.spectrum
    curve = curve_from_spectrum(spectrum, answers, [*counts, n])
    if beyond is not None:
        less = float(found.head_and_body.error / beyond.few.error)
        curve = replace(curve, error=curve.error * less, error_interval=curve.error_interval * less)
    if answers.is_floating_point():
        return _but_last(curve)
    gain, chance = (1.0, 0.0) if beyond is None else _gain(found.head_and_body, beyond.few, answers)
    every = found.head_and_body if beyond is None else beyond.every
    at_hand = (float(_wrong(every, answers).sum()) + 0.5) / (n + 1)  # as in the learning curve
    middle = 1 - curve.accuracy
    worst = _worst(answers)
    wrong = (middle * gain * at_hand / middle[-1]).clamp_max(worst)
    # Intervals are of the logarithm of the wrong answers. Two variances are added: the chance in
    # the gain, and the difference between networks and their kernels.
    more, fewer = ((1 - curve.accuracy_interval) / middle).log().square()
    more = (more + (NORMAL * chance) ** 2).sqrt()
    fewer = (fewer + (NORMAL * chance) ** 2 + (_FINE_TUNING / wrong).square()).sqrt()
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
    """The curve without its last number of labels."""
    parts = {key: value[..., :-1] for key, value in vars(curve).items() if key != "examples"}
    return LearningCurve(**parts, examples=curve.examples)


def _gain(best: LeaveOneOut, layers: LeaveOneOut, answers: Tensor) -> tuple[float, float]:
    """Wrong answers with the kernel divided by those with layers; standard error of its logarithm.

    Both are counted on the examples of the kernel, plus half a wrong answer: no wrong answer among
    these does not mean none ever. Both regressions err on the same examples, so only examples that
    one of them gets wrong add chance.
    """
    wrong = [_wrong(regression, answers) for regression in (best, layers)]
    counts = [float(each.sum()) + 0.5 for each in wrong]
    apart = float((wrong[0] != wrong[1]).sum()) + 0.5
    return min(counts[0] / counts[1], 1.0), (apart / (counts[0] * counts[1])) ** 0.5


def _wrong(found: LeaveOneOut, answers: Tensor) -> Tensor:
    """Which examples are predicted wrongly, given the shares of the classes in all examples."""
    columns, _ = regression_targets(answers[: len(found.predictions)].to(found.predictions.device))
    return ~expected_right(found.predictions, columns)


def forecast(found: KernelRegressions, answers: Tensor, *, frozen: bool = False) -> dict[str, Any]:
    """Forecast of the fine-tuned network with the given labels: value and 95 % interval.

    Args:
        found: regressions with the kernels.
        answers: class labels or target columns of all examples.
        frozen: whether nothing below the head is trainable, so that no feature can be learned.
    """
    origin = "tangent kernel" if found.tangent else "features"
    best, gain, chance = found.head_and_body, 1.0, 0.0
    if answers.is_floating_point():
        low, high = (found.error_ratio * float(end) for end in best.error_interval)
        return {"measure": "error", "value": found.error, "low": low, "high": high, "from": origin}
    if found.all_layers is not None:
        best, (gain, chance) = found.all_layers.every, _gain(best, found.all_layers.few, answers)
    misses = _wrong(best, answers).double()
    # Jeffreys' estimate and Wilson's interval: no wrong answer of fifty does not mean none ever.
    wrong = (float(misses.sum()) + 0.5) / (len(misses) + 1) * gain
    ends = [1 - float(end) for end in best.accuracy_interval]  # most, then least wrong answers
    half = [gain * (ends[0] - ends[1]) / 2, NORMAL * chance * wrong, _FINE_TUNING]
    wide = sum(part**2 for part in half) ** 0.5
    learns = found.error > SMALL_ERROR and not frozen
    above = max(wide, _NEW_FEATURES) if learns else wide
    low, high = max(1 - wrong - wide, 0.0), min(1 - wrong + above, 1 - _LEFT * wrong)
    value = 1 - wrong
    if found.tangent:  # the interval of the regression contains the value of the network
        tuned, error = torch.tensor([wrong, found.error], dtype=torch.float64)
        value = 1 - float(fine_tuned(tuned, error, _worst(answers)))
    return {"measure": "accuracy", "value": value, "low": low, "high": high, "from": origin}
