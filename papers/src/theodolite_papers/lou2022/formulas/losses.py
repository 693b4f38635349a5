"""First and second derivatives of the usual losses with respect to the outputs.

Losses are means over the examples, so both derivatives have a factor 1/n. The derivatives of the
cross-entropy never subtract a number near 1 from 1, so a saturated softmax costs no digits.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_finite,
    require_nonempty,
    require_same_shape,
)
from theodolite.errors import DomainError
from theodolite.linalg import array_function, double, eps_of

__all__ = [
    "cross_entropy_gradient",
    "cross_entropy_hessian",
    "squared_error_gradient",
    "squared_error_hessian",
]


@array_function
def cross_entropy_gradient(
    logits: Float[Tensor, "n c"], targets: Float[Tensor, "n c"]
) -> Float[Tensor, "n c"]:
    r"""Gradient of the mean cross-entropy with respect to the logits.

    .. math:: w_{xi} = \frac{p_i(x) - y_i(x)}{n}
              = \frac{p_i(x)\,(1 - y_i(x)) - y_i(x) \sum_{j\ne i} p_j(x)}{n}

    The second form is the one used. Sums over the classes of an example vanish.

    Args:
        logits: :math:`F`, outputs before the softmax.
        targets: :math:`y`, one-hot labels or probabilities; each row sums to 1.

    Returns:
        A matrix of the shape of the logits.

    Raises:
        ShapeError: If the shapes differ.
        DomainError: If an entry is not finite, or a row of targets is no distribution.

    Examples:
        >>> cross_entropy_gradient(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])).tolist()
        [[-0.5, 0.5]]

    References:
        [lou2022], Appendix B.
        Differs from paper: with the factor 1/n of the mean loss throughout.
    """
    _require_outputs(logits=logits)
    require_same_shape(logits=logits, targets=targets)
    _require_distributions(targets)
    p, y = double(logits).softmax(1), double(targets)
    others = 1 - torch.eye(p.shape[1], dtype=p.dtype, device=p.device)
    return (p * (1 - y) - y * (p @ others)) / len(p)


@array_function
def cross_entropy_hessian(
    logits: Float[Tensor, "n c"], *, normalize: bool = False
) -> Float[Tensor, "n c c"]:
    r"""Hessian of the mean cross-entropy with respect to the logits, one block per example.

    .. math:: S_x = \frac{\mathrm{diag}(p) - pp^\top}{n}, \qquad 0 \preceq S_x \preceq \frac{1}{2n}

    Off-diagonal entries come from sums of log-probabilities, diagonal ones from the row sums,
    which vanish: no cancellation.

    Args:
        logits: :math:`F`, outputs before the softmax.
        normalize: divide by the largest entry of all blocks, in logarithms, so that a saturated
            softmax does not underflow. All Fisher measures here are scale-free.

    Returns:
        One matrix of outputs by outputs for every example.

    Raises:
        ShapeError: If the logits have not two axes, or no entries.
        DomainError: If they are not finite.

    Examples:
        >>> cross_entropy_hessian(torch.zeros(1, 2)).tolist()
        [[[0.25, -0.25], [-0.25, 0.25]]]

    References:
        [lou2022], Appendix B.
    """
    _require_outputs(logits=logits)
    logs = double(logits).log_softmax(1)
    pairs = logs.unsqueeze(1) + logs.unsqueeze(2)
    itself = torch.eye(logs.shape[1], dtype=torch.bool, device=logs.device)
    pairs = pairs.masked_fill(itself, -torch.inf)
    largest = pairs.detach().logsumexp(2).max()  # on the diagonal of some block
    scale = largest.nan_to_num(neginf=0.0) if normalize else largest.new_tensor(len(logs)).log()
    weights = (pairs - scale).exp()
    return torch.diag_embed(weights.sum(2)) - weights


@array_function
def squared_error_gradient(
    outputs: Float[Tensor, "n c"], targets: Float[Tensor, "n c"]
) -> Float[Tensor, "n c"]:
    r"""Gradient of the mean over examples of :math:`\|F - Y\|^2`: :math:`w = 2(F - Y)/n`.

    Args:
        outputs: :math:`F`.
        targets: :math:`Y`.

    Returns:
        A matrix of the shape of the outputs.

    Raises:
        ShapeError: If the shapes differ.
        DomainError: If an entry is not finite.

    Examples:
        >>> squared_error_gradient(torch.tensor([[3.0]]), torch.tensor([[1.0]])).tolist()
        [[4.0]]

    References:
        [lou2022], Appendix B.
    """
    _require_outputs(outputs=outputs, targets=targets)
    require_same_shape(outputs=outputs, targets=targets)
    return 2 * (double(outputs) - double(targets)) / len(outputs)


@array_function
def squared_error_hessian(outputs: Float[Tensor, "n c"]) -> Float[Tensor, "n c c"]:
    r"""Hessian of the mean over examples of :math:`\|F - Y\|^2`: blocks :math:`2I/n`.

    Args:
        outputs: :math:`F`; only its shape matters.

    Returns:
        One matrix of outputs by outputs for every example.

    Raises:
        ShapeError: If the outputs have not two axes, or no entries.
        DomainError: If they are not finite.

    Examples:
        >>> squared_error_hessian(torch.zeros(1, 2)).tolist()
        [[[2.0, 0.0], [0.0, 2.0]]]

    References:
        [lou2022], Appendix B.
        Differs from paper: the paper drops the factor 2.
    """
    _require_outputs(outputs=outputs)
    n, c = outputs.shape
    identity = torch.eye(c, dtype=torch.float64, device=double(outputs).device)
    return (2 / n * identity).repeat(n, 1, 1)


def _require_outputs(**outputs: Tensor) -> None:
    require_axes(2, **outputs)
    require_nonempty(**outputs)
    require_finite(**outputs)


def _require_distributions(targets: Tensor) -> None:
    require_finite(targets=targets)
    values = double(targets.detach())
    excess = (values.sum(1) - 1).abs().max()
    low = values.min()
    if excess > max(1e-6, 8 * values.shape[1] * eps_of(targets)) or low < 0:
        raise DomainError(
            "targets: expected one probability distribution per row, got entries from "
            f"{low.item():.4g} and row sums up to {excess.item():.4g} away from 1; "
            "one-hot encode class labels first"
        )
