r"""Leave-one-out ridge regression in closed form.

One fit to all examples gives the prediction for every example from all the others. With intercept,
the centred kernel :math:`K_c`, the ridge :math:`\lambda` and

.. math:: P = \lambda\,(K_c + \lambda I)^{-1} - \tfrac1n 11^\top, \qquad
          y_i - \hat y_{-i} = P_{ii}^{-1} (P y)_i

this is exact. One eigendecomposition serves all ridges (:func:`centred_eigen`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Integer, Shaped
from torch import Tensor
from torch.nn import functional

from theodolite.checks import require_finite, require_labels, require_nonempty
from theodolite.errors import ShapeError
from theodolite.linalg.alignment import double_center, unit_peak
from theodolite.linalg.arrays import double, ratio_or_nan
from theodolite.linalg.spectra import Eigen, symmetric_eigen, thin_svd
from theodolite.records import NORMAL, wilson

# Ridges to try, in units of the mean eigenvalue of the centred kernel.
RIDGES = tuple(10.0**exponent for exponent in torch.arange(-5, 2.01, 0.5).tolist())
_LEAST = 1e-9  # smallest 1 - leverage; below it an example alone determines a direction
_DECIMALS = 9  # decimals of class scores that are compared
_TOGETHER = 15  # ridges whose predictions are in memory at one time


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out predictions of a regression, with their error and accuracy.

    Args:
        error: squared error; 1 is the error of predicting the mean of the other targets.
        error_interval: its 95 % interval, from the spread over examples.
        accuracy: share of right class labels; nan for regression.
        accuracy_interval: Wilson's 95 % interval of it.
        ridge: chosen ridge, in units of the mean eigenvalue of the centred kernel.
        predictions: one column for each class present, or each target.
        classes: labels of the columns; None for regression.
    """

    error: Float[Tensor, ""]
    error_interval: Float[Tensor, "2"]
    accuracy: Float[Tensor, ""]
    accuracy_interval: Float[Tensor, "2"]
    ridge: Float[Tensor, ""]
    predictions: Float[Tensor, "n c"]
    classes: Integer[Tensor, " c"] | None

    def __repr__(self) -> str:
        n, c = self.predictions.shape
        rights = "" if self.classes is None else f"accuracy {float(self.accuracy):.4g}, "
        error, ridge = float(self.error), float(self.ridge)
        return f"LeaveOneOut({rights}error {error:.4g}, ridge {ridge:.3g}, predictions ({n}, {c}))"


def regression_targets(
    targets: Shaped[Tensor, "n *c"],
) -> tuple[Float[Tensor, "n c"], Integer[Tensor, " c"] | None]:
    """Target columns and their classes: one-hot labels, or targets unchanged.

    Class labels have one column for each class present, in order.

    Raises:
        ShapeError: If targets have more than two axes or none.
        DomainError: If labels are negative, or targets not finite.
    """
    require_nonempty(targets=targets)
    if not targets.is_floating_point():
        require_labels(targets, name="targets")
        names, classes = torch.unique(targets, return_inverse=True)
        return functional.one_hot(classes, len(names)).double(), names
    if targets.ndim > 2:
        raise ShapeError(
            "targets: expected integer class labels (n,) or numbers (n,) or (n, c), "
            f"got shape {tuple(targets.shape)}"
        )
    require_finite(targets=targets)
    return double(targets).reshape(len(targets), -1), None


def expected_right(
    predictions: Float[Tensor, "n c"], columns: Float[Tensor, "n c"]
) -> Bool[Tensor, " n"]:
    """Which examples are predicted correctly, after a correction for their own class.

    Leaving out an example makes its class rarer among the others by 1 / (n - 1). Without this
    correction random labels stay below chance (1.5 % for 100 examples of ten classes).

    Args:
        predictions: leave-one-out predictions of each example.
        columns: one-hot classes.

    Returns:
        One answer for each example.

    Examples:
        >>> classes = torch.eye(2)[torch.tensor([0, 0, 1, 1])]
        >>> predictions = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.2, 0.8]])
        >>> expected_right(predictions, classes).tolist()
        [True, True, False, True]
    """
    others = (columns.sum(0) - columns) / (len(columns) - 1)
    scores = double(predictions) - others + columns.mean(0)
    # The first of equal scores wins. Otherwise rounding would reveal the class of the example.
    return scores.round(decimals=_DECIMALS).argmax(1) == columns.argmax(1)


def centred_eigen(matrix: Float[Tensor, "n d"], *, kernel: bool) -> Eigen:
    """Eigenpairs of the centred kernel; those of eigenvalue zero may be missing.

    Args:
        matrix: the kernel (n, n), or features (n, d), whose kernel is not formed. Its largest entry
            is scaled to one.
        kernel: whether the matrix is a kernel.

    Examples:
        >>> x = torch.tensor([[0.0], [1.0], [5.0]])
        >>> round(centred_eigen(x, kernel=False).values.item(), 4)
        0.56
        >>> [round(value, 4) for value in centred_eigen(x @ x.T, kernel=True).values.tolist()]
        [0.56, 0.0, 0.0]
    """
    scaled = unit_peak(double(matrix))
    if kernel:
        values, vectors = symmetric_eigen(double_center(scaled))
        return Eigen(values.clamp_min(0.0), vectors)
    left, roots, _ = thin_svd(scaled - scaled.mean(0))
    return Eigen(roots.square(), left)


def leave_one_out(
    vectors: Float[Tensor, "n r"],
    eigenvalues: Float[Tensor, " r"],
    targets: Shaped[Tensor, "n *c"],
    ridges: Sequence[float] = RIDGES,
) -> LeaveOneOut:
    """Leave-one-out regression with intercept, with a kernel between examples.

    Cost: O(n r c) for each ridge.

    Args:
        vectors: eigenvectors of the centred kernel; those of eigenvalue zero may be missing.
        eigenvalues: eigenvalues of these vectors.
        targets: integer class labels, or numbers to regress.
        ridges: ridges to try, in units of the mean eigenvalue; the one with the least error is
            used.
    """
    columns, names = regression_targets(targets)
    residuals = _residuals(vectors, eigenvalues, columns)
    return best_ridge(residuals, ridges, eigenvalues.sum() / len(columns), columns, names)


def leave_one_out_each(
    vectors: Float[Tensor, "n r"],
    eigenvalues: Float[Tensor, " r"],
    targets: Shaped[Tensor, "n *c"],
    ridges: Sequence[float] = RIDGES,
) -> list[LeaveOneOut]:
    """:func:`leave_one_out` with every ridge alone, faster than one call for each.

    Args:
        vectors: eigenvectors of the centred kernel; those of eigenvalue zero may be missing.
        eigenvalues: eigenvalues of these vectors.
        targets: integer class labels, or numbers to regress.
        ridges: ridges, in units of the mean eigenvalue.
    """
    columns, names = regression_targets(targets)
    residuals, unit = _residuals(vectors, eigenvalues, columns), eigenvalues.sum() / len(columns)
    found = []
    for start in range(0, len(ridges), _TOGETHER):
        some = ridges[start : start + _TOGETHER]
        missed = _missed(residuals, some, unit, columns)
        found += [
            _regression(missed[place], ridge, unit, columns, names)
            for place, ridge in enumerate(some)
        ]
    return found


def _residuals(vectors: Tensor, eigenvalues: Tensor, columns: Tensor) -> Callable[[Tensor], Tensor]:
    """The function that maps k ridges to their leave-one-out residuals (k, n, c)."""
    n, centred = len(columns), unit_peak(columns - columns.mean(0))
    parts, squares = vectors.mT @ centred, vectors.square()

    def residuals(chosen: Tensor) -> Tensor:
        wide = eigenvalues.unsqueeze(1)
        kept = wide / (wide + chosen).clamp_min(1e-300)  # (r, k)
        left = 1 - squares @ kept - 1 / n
        fitted = vectors @ (kept.unsqueeze(2) * parts.unsqueeze(1)).flatten(1)
        missed = centred.unsqueeze(1) - fitted.reshape(n, len(chosen), -1)
        return (missed / left.clamp_min(_LEAST).unsqueeze(2)).transpose(0, 1)

    return residuals


def best_ridge(
    residuals: Callable[[Tensor], Tensor],
    ridges: Sequence[float],
    unit: Tensor,
    columns: Tensor,
    names: Tensor | None,
) -> LeaveOneOut:
    """The ridge with the least error, and its results; residuals are (k, n, c) for k ridges."""
    missed = _missed(residuals, ridges, unit, columns)
    best = int(missed.square().sum((1, 2)).argmin())
    return _regression(missed[best], ridges[best], unit, columns, names)


def _missed(
    residuals: Callable[[Tensor], Tensor], ridges: Sequence[float], unit: Tensor, columns: Tensor
) -> Tensor:
    """Residuals for ridges in these units. Equal features predict the mean of the others."""
    return residuals(columns.new_tensor(list(ridges)) * torch.where(unit > 0, unit, 1.0))


def _regression(
    missed: Tensor, ridge: float, unit: Tensor, columns: Tensor, names: Tensor | None
) -> LeaveOneOut:
    """The results from the leave-one-out residuals (n, c) of one ridge."""
    n, peak = len(columns), (columns - columns.mean(0)).abs().max()
    own = missed.square().sum(1)
    plain = (unit_peak(columns - columns.mean(0)) * (n / (n - 1))).square().sum(1)
    error = ratio_or_nan(own.mean(), plain.mean())
    spread = ratio_or_nan((own - error * plain).std(), plain.mean() * n**0.5)
    sides = torch.tensor([-NORMAL, NORMAL], dtype=own.dtype, device=own.device)
    predictions = columns - missed * peak
    accuracy, interval = own.new_tensor(torch.nan), own.new_full((2,), torch.nan)
    if names is not None and int(columns.any(0).sum()) > 1:
        accuracy = expected_right(predictions, columns).double().mean()
        interval = own.new_tensor(wilson(float(accuracy), n))
    return LeaveOneOut(
        error=error,
        error_interval=(error + sides * spread).clamp_min(0.0),
        accuracy=accuracy,
        accuracy_interval=interval,
        ridge=own.new_tensor(ridge if bool((unit > 0) & (peak > 0)) else torch.nan),
        predictions=predictions,
        classes=names,
    )
