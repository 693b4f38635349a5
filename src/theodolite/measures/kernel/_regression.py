"""Kernel regression judged without held-out data: each example is predicted from all the others."""

from collections.abc import Sequence

from jaxtyping import Float, Integer, Shaped
from torch import Tensor

from theodolite.checks import (
    require_count,
    require_labels,
    require_same_length,
    require_symmetric,
)
from theodolite.linalg import (
    RIDGES,
    LeaveOneOut,
    array_function,
    double,
    double_center,
    leave_one_out,
    symmetric_eigen,
    unit_peak,
)


@array_function
def regression_error(
    gram: Float[Tensor, "n n"], targets: Shaped[Tensor, "n *c"]
) -> Float[Tensor, ""]:
    r"""Squared error of kernel regression on all other examples, beside that of their mean.

    .. math:: \frac{\sum_i \|y_i - \hat y_{-i}\|^2}{\sum_i \|y_i - \bar y_{-i}\|^2}, \qquad
              y_i - \hat y_{-i} = \frac{(P y)_i}{P_{ii}}, \quad
              P = \lambda (HKH + \lambda I)^{-1} - \tfrac1n 11^\top

    Kernel ridge regression with intercept. The ridge is the one of 15 between 1e-5 and 100 mean
    eigenvalues of the centred kernel with the smallest leave-one-out error.

    Range: [0, inf); 1: no better than the mean.
    Invariant to: a scale of the kernel, a constant added to it; shifts and scale of the targets.
    Undefined (``nan``): all targets are equal.
    Cost: O(n^3) once, O(n^2) for each ridge and output.

    Args:
        gram: :math:`K` between the examples, symmetric; a kernel of features, or the trace over
            outputs of a tangent kernel.
        targets: integer class labels, or numbers to regress, one column for each output.

    Raises:
        ShapeError: If lengths differ or there are fewer than two examples.
        DomainError: If the kernel is not symmetric, or something is not finite.

    Example:
        >>> x, y = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0.0, 1.1, 1.9, 3.0])
        >>> round(regression_error(x @ x.T, y).item(), 4)
        0.0062

    References:
        [allen1974prediction], the PRESS statistic; [rasmussen2006], Eq. (5.12).
    """
    return leave_one_out_regression(gram, targets).error


@array_function
def regression_accuracy(
    gram: Float[Tensor, "n n"], labels: Integer[Tensor, " n"]
) -> Float[Tensor, ""]:
    r"""Share of examples that kernel regression on all the others classifies rightly.

    .. math:: \frac1n \sum_i \bigl[\arg\max_c (\hat y_{-i})_c = c_i\bigr]

    The regression of :func:`regression_error`, of one-hot labels.

    Range: [0, 1].
    Invariant to: a scale of the kernel; a constant added to it.
    Undefined (``nan``): only one class.
    Cost: O(n^3) once, O(n^2) for each ridge and class.

    Args:
        gram: :math:`K` between the examples, symmetric.
        labels: class of each.

    Raises:
        ShapeError: If lengths differ or there are fewer than two examples.
        DomainError: If the kernel is not symmetric or not finite.

    Example:
        >>> x = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
        >>> regression_accuracy(x @ x.T, torch.tensor([0, 0, 0, 1, 1, 1])).item()
        1.0

    References:
        [allen1974prediction], the PRESS statistic.
    """
    require_labels(labels)
    return leave_one_out_regression(gram, labels).accuracy


@array_function
def leave_one_out_regression(
    gram: Float[Tensor, "n n"],
    targets: Shaped[Tensor, "n *c"],
    ridges: Sequence[float] = RIDGES,
) -> LeaveOneOut:
    """Predictions of kernel regression for each example from all the others, and how good they are.

    Cost: O(n^3) once, O(n^2) for each ridge and output.

    Args:
        gram: kernel between the examples, symmetric.
        targets: integer class labels, or numbers to regress, one column for each output.
        ridges: those that compete, in units of the mean eigenvalue of the centred kernel; the one
            of least error wins.

    Raises:
        ShapeError: If lengths differ or there are fewer than two examples.
        DomainError: If the kernel is not symmetric, something not finite, or a ridge not positive.

    Example:
        >>> x = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
        >>> found = leave_one_out_regression(x @ x.T, torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> found.accuracy.item(), round(found.error.item(), 4)
        (1.0, 0.0017)

    References:
        [allen1974prediction], the PRESS statistic; [rasmussen2006], Eq. (5.12).
    """
    require_symmetric(gram=gram)
    require_same_length(gram=gram, targets=targets)
    require_count(2, examples=len(gram))
    values, vectors = symmetric_eigen(double_center(unit_peak(double(gram.detach()))))
    return leave_one_out(vectors, values.clamp_min(0.0), targets.detach(), ridges)
