"""Kernel regression that leaves out one example at a time, so that no held-out data are needed."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_count,
    require_kind,
    require_same_length,
    require_same_shape,
    require_symmetric,
)
from theodolite.errors import ShapeError
from theodolite.linalg import (
    LeaveOneOut,
    array_function,
    centred_eigen,
    double,
    double_center,
    leave_one_out,
)


@array_function
def leave_one_out_regression(
    gram: Float[Tensor, "n n"],
    targets: Shaped[Tensor, "n *c"],
) -> LeaveOneOut:
    r"""Leave-one-out predictions of kernel ridge regression with intercept.

    .. math:: \text{error} = \frac{\sum_i \|y_i - \hat y_{-i}\|^2}{\sum_i \|y_i - \bar y_{-i}\|^2},
              \qquad y_i - \hat y_{-i} = \frac{(P y)_i}{P_{ii}}, \quad
              P = \lambda (HKH + \lambda I)^{-1} - \tfrac1n 11^\top

    Of 15 values, :math:`\lambda` has the smallest error. The accuracy is the share of examples
    whose class has the largest prediction. Leaving out an example lowers the share of its class in
    the mean :math:`\bar y_{-i}` of the other labels. This difference is subtracted, so that random
    labels reach chance.

    Range: error [0, inf), 1 is no better than the mean; accuracy [0, 1].
    Invariant to: a scale of the kernel, a constant added to it; shifts and scale of the targets.
    Undefined (``nan``): error: all targets are equal; accuracy: only one class, or a regression.
    Cost: O(n^3) once, O(n^2) for each ridge and output.

    Args:
        gram: :math:`K` between the examples, symmetric; a kernel of features, or the trace over
            outputs of a tangent kernel.
        targets: integer class labels, or numbers to regress, one column for each output.

    Returns:
        Predictions, error and accuracy with intervals, and the chosen ridge.

    Raises:
        ShapeError: If lengths differ or there are fewer than two examples.
        DomainError: If the kernel is not symmetric, or an entry is not finite.

    Examples:
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
    values, vectors = centred_eigen(gram.detach(), kernel=True)
    return leave_one_out(vectors, values, targets.detach())


@array_function
def mean_gram(grams: Sequence[Float[Tensor, "n n"]]) -> Float[Tensor, "n n"]:
    r"""Mean of kernels, each scaled so that its mean eigenvalue after centring is one.

    .. math:: K = \frac1m \sum_{i=1}^m \frac{K_i}{\bar\lambda_i}

    Args:
        grams: kernels between the same examples, symmetric.

    Returns:
        One kernel, of the same size.

    Raises:
        ShapeError: If there is none, or they are not of one size.
        DomainError: If one is not symmetric.

    Examples:
        >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
        >>> torch.allclose(mean_gram([x @ x.T, 9 * x @ x.T]), mean_gram([x @ x.T]))
        True

    References:
        Ours.
    """
    require_kind((Sequence, Tensor), grams=grams)
    if len(grams) == 0:
        raise ShapeError("grams: expected at least one, got none")
    for place, gram in enumerate(grams):
        require_axes(2, **{f"grams[{place}]": gram})
        require_symmetric(**{f"grams[{place}]": gram})
        require_same_shape(**{"grams[0]": grams[0], f"grams[{place}]": gram})
    return torch.stack([_unit(gram) for gram in grams]).mean(0)


def _unit(gram: Tensor) -> Tensor:
    """The kernel with a mean eigenvalue of one after centring."""
    wide = double(gram.detach())
    mean = double_center(wide).diagonal().mean()
    return wide / torch.where(mean > 0, mean, torch.ones_like(mean))
