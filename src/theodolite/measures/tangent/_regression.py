"""Regression with a tangent kernel, judged by leaving out one example with all its outputs.

A wide network that is fine-tuned moves as its tangent kernel says. What kernel regression predicts
for an example from all the others is a forecast of the fine-tuned network without any training.
"""

from collections.abc import Sequence

from jaxtyping import Float, Integer, Shaped
from torch import Tensor

from theodolite.checks import require_count, require_labels, require_same_length
from theodolite.linalg import RIDGES, LeaveOneOut, array_function, leave_one_out_blocks, unit_peak
from theodolite.measures.tangent.alignment import require_kernel, stacked


@array_function
def tangent_regression_error(
    kernel: Float[Tensor, "n c n c"], targets: Shaped[Tensor, "n *c"]
) -> Float[Tensor, ""]:
    r"""Squared error of tangent-kernel regression on all other examples, beside that of their mean.

    .. math:: \frac{\sum_x \|y_x - \hat y_{-x}\|^2}{\sum_x \|y_x - \bar y_{-x}\|^2}, \qquad
              y_x - \hat y_{-x} = P_{xx}^{-1} (P y)_x, \quad
              P = \lambda (K_c + \lambda I)^{-1} - \tfrac1n 11^\top \otimes I_c

    Regression with an intercept for each output; :math:`K_c` is centred over examples, and
    :math:`P_{xx}` is the c x c block of an example. The ridge is the one of 15 between 1e-5 and 100
    mean eigenvalues of :math:`K_c` with the smallest leave-one-out error. For the trace over
    outputs, (n, n), see :func:`theodolite.measures.kernel.regression_error`.

    Range: [0, inf); 1: no better than the mean.
    Invariant to: a scale of the kernel; a constant added to it; shifts and scale of the targets.
    Undefined (``nan``): all targets are equal.
    Cost: O(n^3 c^3) once, O(n^2 c^3) for each ridge.

    Args:
        kernel: :math:`K`, axes example, output, example, output; symmetric.
        targets: class labels, one class for each output in order, or numbers (n, c).

    Returns:
        One number without axes: a tensor, or an array for NumPy input.

    Raises:
        ShapeError: If sizes do not match or there are fewer than two examples.
        DomainError: If the kernel is not symmetric, or something is not finite.

    Examples:
        >>> x, y = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([[0.0], [1.1], [1.9], [3.0]])
        >>> round(tangent_regression_error(torch.outer(x, x).reshape(4, 1, 4, 1), y).item(), 4)
        0.0062

    References:
        [allen1974prediction], the PRESS statistic; [rasmussen2006], Eq. (5.12).
        Differs from paper: blocks of an example's outputs, and an intercept for each output.
    """
    return leave_one_out_tangent_regression(kernel, targets).error


@array_function
def tangent_regression_accuracy(
    kernel: Float[Tensor, "n c n c"], labels: Integer[Tensor, " n"]
) -> Float[Tensor, ""]:
    r"""Share of examples that tangent-kernel regression on all the others classifies rightly.

    .. math:: \frac1n \sum_x \bigl[\arg\max_c (\hat y_{-x})_c = c_x\bigr]

    The regression of :func:`tangent_regression_error`, of one-hot labels.

    Range: [0, 1].
    Invariant to: a scale of the kernel; a constant added to it.
    Undefined (``nan``): only one class.
    Cost: O(n^3 c^3) once, O(n^2 c^3) for each ridge.

    Args:
        kernel: axes example, output, example, output; symmetric.
        labels: class of each example, one class for each output in order.

    Returns:
        One number without axes: a tensor, or an array for NumPy input.

    Raises:
        ShapeError: If sizes do not match or there are fewer than two examples.
        DomainError: If the kernel is not symmetric or not finite.

    Examples:
        >>> x = torch.tensor([0.0, 0.1, 0.2, 5.0, 5.1, 5.2])
        >>> kernel = torch.einsum("x,y,ij->xiyj", x, x, torch.eye(2))
        >>> tangent_regression_accuracy(kernel, torch.tensor([0, 0, 0, 1, 1, 1])).item()
        1.0

    References:
        [allen1974prediction], the PRESS statistic.
    """
    require_labels(labels)
    return leave_one_out_tangent_regression(kernel, labels).accuracy


@array_function
def leave_one_out_tangent_regression(
    kernel: Float[Tensor, "n c n c"],
    targets: Shaped[Tensor, "n *c"],
    ridges: Sequence[float] = RIDGES,
) -> LeaveOneOut:
    """Predictions of tangent-kernel regression for each example from all the others.

    Cost: O(n^3 c^3) once, O(n^2 c^3) for each ridge.

    Args:
        kernel: axes example, output, example, output; symmetric.
        targets: class labels, one class for each output in order, or numbers (n, c).
        ridges: those that compete, in units of the mean eigenvalue of the centred kernel; the one
            of least error wins.

    Returns:
        Predictions, error and accuracy with intervals, and the ridge that was chosen.

    Raises:
        ShapeError: If sizes do not match or there are fewer than two examples.
        DomainError: If the kernel is not symmetric, something not finite, or a ridge not positive.

    Examples:
        >>> x = torch.tensor([0.0, 0.1, 0.2, 5.0, 5.1, 5.2])
        >>> kernel = torch.einsum("x,y,ij->xiyj", x, x, torch.eye(2))
        >>> found = leave_one_out_tangent_regression(kernel, torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> found.accuracy.item(), round(found.error.item(), 4)
        (1.0, 0.0017)

    References:
        [allen1974prediction], the PRESS statistic; [rasmussen2006], Eq. (5.12).
    """
    require_kernel(kernel)
    require_same_length(kernel=kernel, targets=targets)
    require_count(2, examples=len(kernel))
    scaled = unit_peak(stacked(kernel.detach())).reshape(kernel.shape)
    return leave_one_out_blocks(scaled, targets.detach(), ridges)
