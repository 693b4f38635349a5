"""Ridge regression on features or kernels, exact at ridge 0, and its gradient flow."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_finite,
    require_nonempty,
    require_nonnegative,
    require_same_length,
    require_same_shape,
    require_symmetric,
)
from theodolite.errors import ShapeError
from theodolite.linalg import (
    array_function,
    double,
    eps_of,
    numerical_rank,
    symmetric_eigen,
    thin_svd,
)

__all__ = ["gradient_flow_predictions", "kernel_regression", "linear_probe"]


@array_function
def linear_probe(
    features: Float[Tensor, "n d"], targets: Float[Tensor, "n c"], ridge: float = 0.0
) -> Float[Tensor, "d c"]:
    r"""Weights of the ridge regression of targets on frozen features.

    .. math:: W = \arg\min_W \|F W - Y\|_F^2 + \lambda\|W\|_F^2
              = V\,\mathrm{diag}\Bigl(\frac{\sigma_i}{\sigma_i^2+\lambda}\Bigr)\,U^\top Y

    At ridge 0 the solution of smallest norm; singular values up to ``max(n, d) * eps`` of the
    largest count as zero. Predictions equal those of :func:`kernel_regression` with the linear
    kernel.

    Args:
        features: :math:`F`.
        targets: :math:`Y`.
        ridge: :math:`\lambda \ge 0`, on the sum of squares.

    Raises:
        ShapeError: If the numbers of examples differ.
        DomainError: If the ridge is negative or anything is not finite.

    Example:
        >>> linear_probe(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]]))
        tensor([[2.]])

    References:
        [canatar2022], section II.
    """
    require_axes(2, features=features, targets=targets)
    require_nonempty(features=features, targets=targets)
    require_same_length(features=features, targets=targets)
    require_finite(features=features, targets=targets)
    require_between(0.0, float("inf"), open_high=True, ridge=ridge)
    left, values, right = thin_svd(features)
    rank = numerical_rank(values, features.shape, eps_of(features))
    left, values, right = left[:, :rank], values[:rank], right[:, :rank]
    shrunk = values / (values.square() + ridge)
    return right @ (shrunk.unsqueeze(1) * (left.mT @ double(targets)))


@array_function
def kernel_regression(
    gram: Float[Tensor, "n n"],
    targets: Float[Tensor, "n c"],
    cross: Float[Tensor, "m n"],
    ridge: float = 0.0,
) -> Float[Tensor, "m c"]:
    r"""Predictions of kernel ridge regression.

    .. math:: f(x) = k(x)^\top (K + \lambda I)^{-1} Y

    At ridge 0 the pseudo-inverse; eigenvalues up to ``n * eps`` of the largest count as zero.

    Args:
        gram: :math:`K`, between the training examples.
        targets: :math:`Y`, of the training examples.
        cross: :math:`k(x)^\top`, one row per example to predict.
        ridge: :math:`\lambda \ge 0`, added to the Gram matrix.

    Raises:
        ShapeError: If sizes do not match.
        DomainError: If the Gram matrix is not symmetric or the ridge is negative.

    Example:
        >>> gram, cross = torch.tensor([[1.0]]), torch.tensor([[2.0], [-1.0]])
        >>> kernel_regression(gram, torch.tensor([[3.0]]), cross)
        tensor([[ 6.],
                [-3.]])

    References:
        [canatar2022], section II.
    """
    require_symmetric(gram=gram)
    require_axes(2, targets=targets, cross=cross)
    require_same_length(gram=gram, targets=targets)
    if cross.shape[1] != len(gram):
        raise ShapeError(
            f"cross: expected one column per training example, {len(gram)}, "
            f"got shape {tuple(cross.shape)}"
        )
    require_finite(targets=targets, cross=cross)
    require_between(0.0, float("inf"), open_high=True, ridge=ridge)
    values, vectors = symmetric_eigen(gram)
    rank = numerical_rank(values, gram.shape, eps_of(gram))
    weights = (vectors[:, :rank].mT @ double(targets)) / (values[:rank] + ridge).unsqueeze(1)
    return double(cross) @ (vectors[:, :rank] @ weights)


@array_function
def gradient_flow_predictions(
    gram: Float[Tensor, "n n"],
    targets: Float[Tensor, "n c"],
    times: Float[Tensor, " t"],
    start: Float[Tensor, "n c"] | None = None,
) -> Float[Tensor, "t n c"]:
    r"""Training predictions under gradient flow with a static kernel.

    .. math:: f(t) = Y - e^{-Kt}(Y - f(0)), \qquad
              u_\rho^\top(Y - f(t)) = e^{-\lambda_\rho t}\, u_\rho^\top(Y - f(0))

    The flow of :math:`\tfrac12\|f - Y\|^2` at unit rate; each kernel mode decays on its own.

    Args:
        gram: :math:`K`, symmetric positive semi-definite; a tangent kernel or feature kernel.
        targets: :math:`Y`.
        times: :math:`t \ge 0`.
        start: :math:`f(0)`; zero if absent.

    Raises:
        ShapeError: If sizes do not match.
        DomainError: If the Gram matrix is not symmetric or a time is negative.

    Example:
        >>> times = torch.tensor([0.0, 1.0])
        >>> gradient_flow_predictions(torch.eye(1), torch.ones(1, 1), times).flatten()
        tensor([0.0000, 0.6321])

    References:
        [canatar2022], Eq. (5).
    """
    require_symmetric(gram=gram)
    require_same_length(gram=gram, targets=targets)
    require_nonnegative(times=times)
    begin = torch.zeros_like(targets) if start is None else start
    require_same_shape(targets=targets, start=begin)
    require_finite(targets=targets, start=begin)
    values, vectors = symmetric_eigen(gram)
    gained = -torch.expm1(-torch.outer(double(times), values.clamp(min=0)))
    gap = vectors.mT @ (double(targets) - double(begin))
    return double(begin) + vectors @ (gained.unsqueeze(-1) * gap)
