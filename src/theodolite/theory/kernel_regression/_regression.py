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
    rank_tolerance,
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

    At ridge 0 the solution of smallest norm; singular values within rounding of zero
    (:func:`theodolite.linalg.rank_tolerance`) count as zero. Predictions equal those of
    :func:`kernel_regression` with the linear kernel.

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
    gram: Float[Tensor, "n n"] | Float[Tensor, "n c n c"],
    targets: Float[Tensor, "n c"],
    cross: Float[Tensor, "m n"] | Float[Tensor, "m c n c"],
    ridge: float = 0.0,
) -> Float[Tensor, "m c"]:
    r"""Predictions of kernel ridge regression.

    .. math:: f(x) = k(x)^\top (K + \lambda I)^{-1} Y

    A ridge above the rounding of the Gram matrix keeps every mode. At ridge 0, or one that rounding
    exceeds, this is the pseudo-inverse: eigenvalues within rounding of zero
    (:func:`theodolite.linalg.rank_tolerance`) count as zero.

    An operator-valued kernel, e.g. a tangent kernel of a network with c outputs, has the axes
    example, output, example, output; its stacked pairs of example and output are regressed
    together.

    Args:
        gram: :math:`K`, between the training examples.
        targets: :math:`Y`, of the training examples.
        cross: :math:`k(x)^\top`, one row per example to predict; axes as those of ``gram``.
        ridge: :math:`\lambda \ge 0`, added to the diagonal of the Gram matrix.

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
    require_between(0.0, float("inf"), open_high=True, ridge=ridge)
    K, Y, k = _stacked(gram, targets, cross)
    assert k is not None
    values, vectors = symmetric_eigen(K)
    values = values.clamp(min=0)
    # Independent rounding of n x n entries moves eigenvalues by its norm over the root of n.
    eps, size = eps_of(gram), len(K)
    rounding = 8 * eps * torch.linalg.matrix_norm(double(K)) / size**0.5
    noise = torch.maximum(rounding, size * torch.finfo(torch.float64).eps * values.max())
    rank = size if ridge > float(noise) else numerical_rank(values, K.shape, eps)
    weights = (vectors[:, :rank].mT @ Y) / (values[:rank] + ridge).unsqueeze(1)
    return _unstacked(k @ (vectors[:, :rank] @ weights), targets)


@array_function
def gradient_flow_predictions(
    gram: Float[Tensor, "n n"] | Float[Tensor, "n c n c"],
    targets: Float[Tensor, "n c"],
    times: Float[Tensor, " t"],
    start: Float[Tensor, "n c"] | None = None,
    *,
    cross: Float[Tensor, "m n"] | Float[Tensor, "m c n c"] | None = None,
    cross_start: Float[Tensor, "m c"] | None = None,
) -> Float[Tensor, "t k c"]:
    r"""Predictions under gradient flow with a static kernel, on training or on other examples.

    .. math:: f(t) = Y - e^{-Kt}(Y - f(0)), \qquad
              u_\rho^\top(Y - f(t)) = e^{-\lambda_\rho t}\, u_\rho^\top(Y - f(0))

    The flow of :math:`\tfrac12\|f - Y\|^2` at unit rate; each kernel mode decays on its own. On
    other examples :math:`f_*(t) = f_*(0) + k_*^\top K^{-1}(I - e^{-Kt})(Y - f(0))`, in which a
    mode of eigenvalue zero grows by :math:`t`.

    Args:
        gram: :math:`K`, symmetric positive semi-definite; a tangent kernel or feature kernel. An
            operator-valued kernel has the axes example, output, example, output.
        targets: :math:`Y`.
        times: :math:`t \ge 0`.
        start: :math:`f(0)`; zero if absent.
        cross: :math:`k_*^\top`, between the examples to predict and the training examples; absent,
            the training examples are predicted.
        cross_start: :math:`f_*(0)` of the examples to predict; zero if absent.

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
    require_nonnegative(times=times)
    K, Y, k = _stacked(gram, targets, cross)
    begin = torch.zeros_like(targets) if start is None else start
    require_same_shape(targets=targets, start=begin)
    require_finite(start=begin)
    values, vectors = symmetric_eigen(K)
    values, t = values.clamp(min=0), double(times)
    gap = vectors.mT @ (Y - _like_stacked(begin, gram))
    learned = -torch.expm1(-torch.outer(t, values))
    if k is None:
        moved = vectors @ (learned.unsqueeze(-1) * gap)
        return double(begin) + _unstacked(moved, targets)
    known = values > rank_tolerance(K.shape, eps_of(gram)) * values.max()
    grown = learned / torch.where(known, values, torch.ones_like(values))
    grown = torch.where(known, grown, torch.zeros_like(grown))
    moved = _unstacked(k @ (vectors @ (grown.unsqueeze(-1) * gap)), targets)
    if cross_start is None:
        return moved
    require_same_shape(cross_start=cross_start, predictions=moved[0])
    require_finite(cross_start=cross_start)
    return double(cross_start) + moved


def _stacked(
    gram: Tensor, targets: Tensor, cross: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Kernel, targets and rows to predict over stacked pairs of example and output, checked."""
    require_axes(2, targets=targets)
    if gram.ndim == 4:
        if gram.shape != (*targets.shape, *targets.shape):
            raise ShapeError(
                f"gram: expected shape (n, c, n, c) for targets (n, c) = {tuple(targets.shape)}, "
                f"got {tuple(gram.shape)}"
            )
        gram = gram.flatten(2).flatten(0, 1)
        if cross is not None and cross.ndim == 4:
            cross = cross.flatten(2).flatten(0, 1)
        targets = targets.reshape(-1, 1)
    require_symmetric(gram=gram)
    require_same_length(gram=gram, targets=targets)
    require_finite(targets=targets)
    if cross is None:
        return double(gram), double(targets), None
    require_axes(2, cross=cross)
    if cross.shape[1] != len(gram):
        raise ShapeError(
            f"cross: expected one column per training example, {len(gram)}, "
            f"got shape {tuple(cross.shape)}"
        )
    require_finite(cross=cross)
    return double(gram), double(targets), double(cross)


def _like_stacked(values: Tensor, gram: Tensor) -> Tensor:
    return double(values).reshape(-1, 1) if gram.ndim == 4 else double(values)


def _unstacked(predictions: Tensor, targets: Tensor) -> Tensor:
    """One column per output again, where the outputs were stacked."""
    outputs = targets.shape[1]
    if predictions.shape[-1] == outputs:
        return predictions
    return predictions.reshape(*predictions.shape[:-2], -1, outputs)
