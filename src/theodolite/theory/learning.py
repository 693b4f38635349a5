r"""Learning curve: the accuracy that more labels would give, predicted from the given examples.

There are three steps, and none of them trains a model. The first computes leave-one-out errors over
a range of ridges, in closed form. The second predicts the errors with another number of labels, by
the theory of kernel regression (:func:`theodolite.theory.kernel_regression.error_with_more`). The
third converts squared errors into shares of wrong answers:

.. math:: \mathrm{wrong}(m) = \mathrm{wrong}(n)\,\Bigl(\frac{E(m)}{E(n)}\Bigr)^{1.8}

We chose the exponent on linear probes of images and text and on fine-tuned small networks, and
judged it on others. ``benchmarks/learning_curve.py`` prints the table of linear probes, with power
laws fitted to sub-samples for comparison. ``benchmarks/transfer`` has the fine-tuned networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_count,
    require_finite,
    require_nonempty,
    require_positive,
    require_same_length,
    require_symmetric,
)
from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.linalg import (
    Eigen,
    LeaveOneOut,
    array_function,
    centred_eigen,
    double,
    expected_right,
    leave_one_out_each,
    regression_targets,
    unit_peak,
)
from theodolite.records import NORMAL
from theodolite.theory.kernel_regression import error_with_more, sample_freedom

__all__ = ["LearningCurve", "learning_curve"]

_RIDGES = tuple(10.0 ** (quarter / 4) for quarter in range(-24, 9))  # of the mean eigenvalue
# Largest share of the examples for the degrees of freedom. With more, the remaining error cannot be
# estimated.
_MOST_FREEDOM = 0.25
_LINK = 1.8
# Variance of the log of wrong answers for ten times the labels, times the number of examples. It is
# a maximum-likelihood estimate on features of five sets (MNIST, CIFAR-10, text), 100 to 400
# examples.
_DRIFT = 9.4


@dataclass(frozen=True)
class LearningCurve:
    """Predicted error and accuracy against the number of labels.

    Args:
        labels: numbers of labelled examples.
        error: squared error on new examples; 1 is no better than the mean of the targets.
        error_interval: its 95 % interval, lower ends in the first row.
        accuracy: share of new examples that are right; nan for regression.
        accuracy_interval: its 95 % interval, lower ends in the first row.
        examples: number of examples behind the prediction.
    """

    labels: Float[Tensor, " m"]
    error: Float[Tensor, " m"]
    error_interval: Float[Tensor, "2 m"]
    accuracy: Float[Tensor, " m"]
    accuracy_interval: Float[Tensor, "2 m"]
    examples: int

    def labels_for(self, accuracy: float) -> float:
        """Number of labels that reach an accuracy; inf if it is beyond the end of the curve.

        Raises:
            DomainError: If the accuracy is not between 0 and 1.
        """
        require_between(0.0, 1.0, accuracy=accuracy)
        counts, shares = (
            torch.as_tensor(part).cpu().double().numpy() for part in (self.labels, self.accuracy)
        )
        reached = np.flatnonzero(shares >= accuracy)
        if len(reached) == 0:
            return float("inf")
        first = int(reached[0])
        if first == 0:
            return float(counts[0])
        low, high = np.log(counts[first - 1 : first + 1])
        part = (accuracy - shares[first - 1]) / (shares[first] - shares[first - 1])
        return float(np.exp(low + part * (high - low)))

    def __repr__(self) -> str:
        known = bool(torch.as_tensor(self.accuracy).isfinite().all())
        values, name = (self.accuracy, "accuracy") if known else (self.error, "error")
        return (
            f"LearningCurve({name} {float(values[0]):.3f} with {float(self.labels[0]):.0f} labels "
            f"to {float(values[-1]):.3f} with {float(self.labels[-1]):.0f}, from {self.examples})"
        )


@array_function
def learning_curve(
    features_or_kernel: Float[Tensor, "n d"] | Float[Tensor, "n c n c"],
    targets: Shaped[Tensor, "n *k"],
    labels: Sequence[int] | None = None,
    *,
    kernel: bool | None = None,
) -> LearningCurve:
    r"""Predicted accuracy and error of a linear probe against the number of labels.

    .. math:: E(m) = \min_\kappa E(n, \kappa)\,
              \frac{1 - \mathrm{df}_2(\kappa)/n}{1 - \mathrm{df}_2(\kappa)/m}, \qquad
              \mathrm{wrong}(m) = \mathrm{wrong}(n)\,\Bigl(\frac{E(m)}{E(n)}\Bigr)^{1.8}

    :math:`E(n, \kappa)` are leave-one-out errors of ridge regression. The interval has two parts.
    The first is the sampling error of the given examples (Wilson's interval of the leave-one-out
    accuracy). The second is the error of the extrapolation, measured on other data; it grows with
    the distance.

    With a tangent kernel it is the curve of a network that stays near its start. Fine-tuning that
    learns new features is more accurate, and this interval does not include it. The interval of
    :func:`theodolite.transfer` does.

    Args:
        features_or_kernel: features (n, d), a kernel between the examples (n, n) such as the trace
            of a tangent kernel, or a tangent kernel (n, c, n, c), whose trace is used.
        targets: integer class labels, or numbers to regress.
        labels: numbers of labels; by default from a third of the examples to ten times as many.
        kernel: whether the matrix is a kernel; by default yes if it is square and symmetric.

    Returns:
        Error and accuracy with intervals for each number of labels.

    Raises:
        ShapeError: If lengths differ, or there are fewer than 20 examples.
        DomainError: If an entry is not finite, or all targets are equal.

    Examples:
        >>> x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
        >>> y = (x[:, 0] + 0.3 * x[:, 1] ** 2 > 0).long()
        >>> curve = learning_curve(x, y, [100, 200, 2000])
        >>> [round(value, 2) for value in curve.accuracy.tolist()]
        [0.88, 0.89, 0.89]

    References:
        [canatar2021], Eq. (4); [wei2022more]; [allen1974prediction].
    """
    spectrum = _spectrum(features_or_kernel, targets, kernel)
    return curve_from_spectrum(spectrum, targets.detach(), labels)


def curve_from_spectrum(
    spectrum: Eigen, targets: Shaped[Tensor, "n *k"], labels: Sequence[int] | None = None
) -> LearningCurve:
    """:func:`learning_curve` from the eigenpairs of the centred kernel.

    Args:
        spectrum: eigenpairs of the centred kernel; those of eigenvalue zero may be missing.
        targets: integer class labels, or numbers to regress.
        labels: numbers of labels.
    """
    values, vectors = spectrum
    n = len(vectors)
    columns, classes = regression_targets(targets)
    if not bool((columns != columns[0]).any()):
        raise DomainError("targets: expected at least two classes or values, got one")
    counts = torch.tensor(_counts(labels, n), dtype=torch.float64, device=values.device)
    unit = values.sum() / n
    found = leave_one_out_each(vectors, values, targets, _RIDGES)
    errors = torch.stack([entry.error for entry in found])
    best = found[int(errors.argmin())]
    ridges = torch.tensor(_RIDGES, dtype=torch.float64, device=values.device) * unit
    freedom = sample_freedom(values, ridges, n).second
    usable = (freedom <= _MOST_FREEDOM * n) & (freedom >= 0)
    usable[-1] = True  # the largest ridge has few degrees of freedom
    error = error_with_more(errors[usable], freedom[usable].clamp_min(0.0), n, counts)
    at_hand = error_with_more(
        errors[usable], freedom[usable].clamp_min(0.0), n, counts.new_tensor([n])
    )
    error = (error * (best.error / at_hand)).clamp_max(max(1.0, float(best.error)))
    spread = (best.error_interval[1] - best.error) / NORMAL / best.error
    drift = _DRIFT * (counts / n).log10().abs() / n
    width = NORMAL * (spread.square() + drift / _LINK**2).sqrt()
    accuracy, interval = _accuracies(best, error, drift, columns, classes is not None)
    return LearningCurve(
        labels=counts,
        error=error,
        error_interval=torch.stack([error * (-width).exp(), error * width.exp()]),
        accuracy=accuracy,
        accuracy_interval=interval,
        examples=n,
    )


def _accuracies(
    best: LeaveOneOut, error: Tensor, drift: Tensor, columns: Tensor, classes: bool
) -> tuple[Tensor, Tensor]:
    """Accuracy from squared error, through the leave-one-out accuracy, with its interval."""
    if not classes:
        return torch.full_like(error, torch.nan), error.new_full((2, len(error)), torch.nan)
    n, worst = len(columns), 1 - columns.mean(0).max()  # always the largest class
    wrong = (~expected_right(best.predictions, columns)).sum()
    start = (wrong + 0.5) / (n + 1)  # no wrong example here does not mean none ever
    rate = start * (error / best.error) ** _LINK
    chance = ((1 - start) / (start * n)).sqrt()  # of the logarithm of the share
    width = NORMAL * (chance.square() + drift).sqrt()
    ends = torch.stack([rate * width.exp(), rate * (-width).exp()])
    return 1 - rate.clamp_max(worst), 1 - ends.clamp_max(worst)


def _counts(labels: Sequence[int] | None, n: int) -> list[float]:
    if labels is None:
        return [float(round(n * 10 ** (step / 8))) for step in range(-4, 9)]
    if isinstance(labels, str) or not isinstance(labels, (Sequence, Tensor, np.ndarray)):
        raise DtypeError(
            f"labels: expected a list with numbers of labelled examples, got {labels!r}"
        )
    if len(labels) == 0:
        raise ShapeError("labels: expected at least one number of labels, got none")
    require_positive(**{f"labels[{place}]": count for place, count in enumerate(labels)})
    return [float(count) for count in labels]


def _spectrum(given: Tensor, targets: Tensor, kernel: bool | None) -> Eigen:
    """Eigenvalues and eigenvectors of the centred kernel."""
    matrix = given.detach()
    if matrix.ndim == 4:
        matrix = torch.einsum("xiyi->xy", double(matrix))
        kernel = True
    require_axes(2, features_or_kernel=matrix)
    require_nonempty(features_or_kernel=matrix)
    require_finite(features_or_kernel=matrix)
    require_same_length(features_or_kernel=matrix, targets=targets)
    require_count(20, examples=len(matrix))
    if kernel is None and matrix.shape[0] == matrix.shape[1]:
        wide = unit_peak(double(matrix))
        kernel = bool(torch.allclose(wide, wide.mT, atol=1e-6))
    if kernel:
        require_symmetric(features_or_kernel=matrix)
    return centred_eigen(matrix, kernel=bool(kernel))
