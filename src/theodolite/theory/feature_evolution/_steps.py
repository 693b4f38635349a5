"""One step of feature evolution: how tangent features move to speed up the descent of the loss.

``Ψ`` are the tangent features (n, c, p), ``w`` the gradient of the mean loss in output space
(n, c), ``K`` the tangent kernel (n, c, n, c), ``H_w`` the output Hessian (p, p).
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_finite,
    require_nonempty,
    require_same_length,
    require_same_shape,
    require_symmetric,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg.arrays import array_function, double

__all__ = [
    "gofe_step",
    "gofe_velocity",
    "loss_gradient_step",
    "ofe_features",
    "ofe_step",
    "parameter_step",
]

Operator = Float[Tensor, "p p"] | Callable[[Tensor], Tensor]


@array_function
def ofe_step(
    kernel: Float[Tensor, "n c n c"],
    loss_gradient: Float[Tensor, "n c"],
    step_size: float,
    strength: float = 1.0,
) -> Float[Tensor, "n c n c"]:
    r"""Layer kernel after one step of optimal feature evolution.

    .. math:: K_l \leftarrow T K_l T,\qquad T = I + \lambda\eta\,ww^\top

    The same T serves every layer and the sum of layers. With :math:`w = -\tilde Y` the alignment
    with the labels never falls, and tends to 1 with :math:`\lambda`.

    Args:
        kernel: :math:`K_l`, over pairs of (example, output).
        loss_gradient: :math:`w`.
        step_size: :math:`\eta`.
        strength: :math:`\lambda`, how greedily features move; its factor 2 is absorbed.

    Raises:
        DomainError: If something is not finite, or step size or strength is negative.
        ShapeError: If kernel and gradient do not match.

    Example:
        >>> kernel = torch.eye(2).reshape(2, 1, 2, 1)
        >>> ofe_step(kernel, torch.tensor([[1.0], [0.0]]), step_size=0.5).reshape(2, 2)
        tensor([[2.2500, 0.0000],
                [0.0000, 1.0000]])

    References:
        [lou2022], Eq. (15) and Appendix D.
    """
    require_axes(4, kernel=kernel)
    require_axes(2, loss_gradient=loss_gradient)
    if kernel.shape != loss_gradient.shape * 2:
        raise ShapeError(
            f"kernel: expected shape (n, c, n, c) for a loss gradient of shape "
            f"{tuple(loss_gradient.shape)}, got {tuple(kernel.shape)}"
        )
    require_finite(kernel=kernel, loss_gradient=loss_gradient)
    _require_rates(step_size, strength)
    m = loss_gradient.numel()
    K, w = double(kernel).reshape(m, m), double(loss_gradient).reshape(m)
    rate = strength * step_size
    K = K + rate * torch.outer(w, w @ K)
    K = K + rate * torch.outer(K @ w, w)
    return K.reshape(kernel.shape)


@array_function
def ofe_features(
    features: Float[Tensor, "n c p"],
    loss_gradient: Float[Tensor, "n c"],
    step_size: float,
    strength: float = 1.0,
) -> Float[Tensor, "n c p"]:
    r"""Tangent features after one step of optimal feature evolution.

    .. math:: \Psi \leftarrow \Psi\,(I + \lambda\eta\,ww^\top)

    Args:
        features: :math:`\Psi`, of one layer or of all.
        loss_gradient: :math:`w`.
        step_size: :math:`\eta`.
        strength: :math:`\lambda`.

    Raises:
        DomainError: If something is not finite, or step size or strength is negative.
        ShapeError: If features and gradient do not match.

    Example:
        >>> ofe_features(torch.ones(2, 1, 1), torch.tensor([[1.0], [0.0]]), 0.5).flatten().tolist()
        [1.5, 1.0]

    References:
        [lou2022], Eq. (15) and Appendix D.
    """
    _require_features(features, loss_gradient)
    _require_rates(step_size, strength)
    psi, w = double(features), double(loss_gradient)
    return psi + strength * step_size * _rank_one(_apply_features(psi, w), w)


@array_function
def gofe_step(
    features: Float[Tensor, "n c p"],
    loss_gradient: Float[Tensor, "n c"],
    hessian: Operator,
    step_size: float,
    *,
    preconditioner: Operator | None = None,
    batch: Bool[Tensor, " n"] | None = None,
) -> Float[Tensor, "n c p"]:
    r"""Tangent features after one step of generalised optimal feature evolution.

    .. math:: \Psi \leftarrow \Psi - \eta\,H_w A\,\Psi B w\,\frac{w^\top}{|w|^2}

    Gradient descent has :math:`A = B = I`, a preconditioned method its own :math:`A` (natural
    gradient: a damped inverse Fisher), mini-batch SGD :math:`B = (n/b)\operatorname{diag}(1_B)`.
    The increment is the one of least norm that moves :math:`\Psi w` as the optimiser does;
    directions orthogonal to :math:`w` stay.

    Args:
        features: :math:`\Psi`, of all layers.
        loss_gradient: :math:`w`, of the whole data.
        hessian: :math:`H_w`, a matrix or the function :math:`u \mapsto H_w u`.
        step_size: :math:`\eta`.
        preconditioner: :math:`A`, a matrix or a function; None for the identity.
        batch: Which examples the step sees; None for all.

    Raises:
        DomainError: If the loss gradient is zero (converged), the batch is empty, or something is
            not finite.
        ShapeError: If the shapes do not match.

    Example:
        >>> psi, w = torch.ones(2, 1, 1), torch.tensor([[1.0], [0.0]])
        >>> gofe_step(psi, w, torch.tensor([[-1.0]]), step_size=0.5).flatten().tolist()
        [1.5, 1.0]

    References:
        [lou2022], Appendix D, generalised optimal feature evolution.

    Differs from paper:
        The paper covers optimisers that act on the parameters; the weight B of a mini-batch acts
        in output space.
    """
    _require_features(features, loss_gradient)
    _require_rates(step_size, 0.0)
    square = _require_unconverged(loss_gradient)
    psi, w = double(features), double(loss_gradient)
    moved = _apply(preconditioner, _apply_features(psi, _batch_weights(w, batch)))
    return psi - step_size / square * _rank_one(_apply(hessian, moved), w)


@array_function
def gofe_velocity(
    hessian: Float[Tensor, "p p"],
    loss_gradient: Float[Tensor, "n c"],
    preconditioner: Float[Tensor, "p p"] | None = None,
) -> Float[Tensor, "p p"]:
    r"""Velocity matrix of generalised optimal feature evolution.

    .. math:: V = -\frac{H_w A}{|w|^2},\qquad \frac{d\Psi}{dt} = \eta\,V\Psi ww^\top

    Args:
        hessian: :math:`H_w`.
        loss_gradient: :math:`w`.
        preconditioner: :math:`A`; None for the identity.

    Raises:
        DomainError: If the loss gradient is zero or the Hessian not symmetric.
        ShapeError: If the matrices differ in size.

    Example:
        >>> gofe_velocity(torch.tensor([[4.0]]), torch.tensor([[2.0]])).item()
        -1.0

    References:
        [lou2022], Appendix D, the choice of the velocity V.
    """
    require_symmetric(hessian=hessian)
    square = _require_unconverged(loss_gradient)
    if preconditioner is None:
        return -double(hessian) / square
    require_same_shape(hessian=hessian, preconditioner=preconditioner)
    require_finite(preconditioner=preconditioner)
    return -double(hessian) @ double(preconditioner) / square


@array_function
def parameter_step(
    features: Float[Tensor, "n c p"],
    loss_gradient: Float[Tensor, "n c"],
    step_size: float,
    *,
    preconditioner: Operator | None = None,
    batch: Bool[Tensor, " n"] | None = None,
) -> Float[Tensor, " p"]:
    r"""Change of the parameters in the step that :func:`gofe_step` belongs to.

    .. math:: \Delta\theta = -\eta\,A\,\Psi B w

    Args:
        features: :math:`\Psi`.
        loss_gradient: :math:`w`.
        step_size: :math:`\eta`.
        preconditioner: :math:`A`, a matrix or a function; None for the identity.
        batch: Which examples the step sees; None for all.

    Raises:
        DomainError: If something is not finite or the batch is empty.
        ShapeError: If the shapes do not match.

    Example:
        >>> parameter_step(torch.ones(2, 1, 1), torch.ones(2, 1), step_size=0.5).item()
        -1.0

    References:
        [lou2022], Appendix D, generalised optimal feature evolution.
    """
    _require_features(features, loss_gradient)
    _require_rates(step_size, 0.0)
    psi, w = double(features), double(loss_gradient)
    gradient = _apply_features(psi, _batch_weights(w, batch))
    return -step_size * _apply(preconditioner, gradient)


@array_function
def loss_gradient_step(
    kernel: Float[Tensor, "n c n c"],
    loss_gradient: Float[Tensor, "n c"],
    output_hessian: Float[Tensor, "n c c"],
    step_size: float,
) -> Float[Tensor, "n c"]:
    r"""Loss gradient after the same step, to first order.

    .. math:: w \leftarrow w - \eta\,S K w

    For a preconditioned method pass the kernel :math:`\Psi^\top A \Psi`.

    Args:
        kernel: :math:`K`, the sum over all layers.
        loss_gradient: :math:`w`.
        output_hessian: :math:`S`, one c x c block per example, e.g.
            :math:`(\operatorname{diag} p - pp^\top)/n` for the mean cross-entropy.
        step_size: :math:`\eta`.

    Raises:
        DomainError: If something is not finite.
        ShapeError: If the shapes do not match.

    Example:
        >>> kernel, block = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1)
        >>> loss_gradient_step(kernel, torch.ones(1, 1), block, step_size=0.25).item()
        0.75

    References:
        [lou2022], Eq. (15), with dw/dF for the printed dw/dθ.
    """
    require_axes(4, kernel=kernel)
    require_axes(3, output_hessian=output_hessian)
    require_same_length(loss_gradient=loss_gradient, kernel=kernel, output_hessian=output_hessian)
    require_finite(kernel=kernel, loss_gradient=loss_gradient, output_hessian=output_hessian)
    _require_rates(step_size, 0.0)
    w = double(loss_gradient)
    moved = torch.einsum("xiyj,yj->xi", double(kernel), w)
    return w - step_size * torch.einsum("xij,xj->xi", double(output_hessian), moved)


def _apply_features(psi: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("nip,ni->p", psi, weights)


def _rank_one(direction: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("p,ni->nip", direction, weights)


def _apply(operator: Operator | None, vector: Tensor) -> Tensor:
    if operator is None:
        return vector
    if isinstance(operator, Tensor):
        if operator.shape != (len(vector), len(vector)):
            raise ShapeError(
                f"expected a matrix over the {len(vector)} parameters, "
                f"got shape {tuple(operator.shape)}"
            )
        require_finite(operator=operator)
        return double(operator) @ vector
    return operator(vector)


def _batch_weights(w: Tensor, batch: Tensor | None) -> Tensor:
    """``B w``: the examples of the batch weighted so that their mean stands for all."""
    if batch is None:
        return w
    if batch.shape != w.shape[:1] or batch.dtype != torch.bool:
        raise ShapeError(
            f"batch: expected one boolean per example (n = {len(w)}), "
            f"got {batch.dtype} of shape {tuple(batch.shape)}"
        )
    size = int(batch.sum())
    if size == 0:
        raise DomainError("batch: expected at least one example, got none")
    return torch.where(batch.unsqueeze(1), w * (len(w) / size), torch.zeros_like(w))


def _require_features(features: Tensor, loss_gradient: Tensor) -> None:
    require_axes(3, features=features)
    require_axes(2, loss_gradient=loss_gradient)
    require_nonempty(features=features)
    if features.shape[:2] != loss_gradient.shape:
        raise ShapeError(
            f"features: expected shape (n, c, p) for a loss gradient of shape "
            f"{tuple(loss_gradient.shape)}, got {tuple(features.shape)}"
        )
    require_finite(features=features, loss_gradient=loss_gradient)


def _require_unconverged(loss_gradient: Tensor) -> Tensor:
    require_finite(loss_gradient=loss_gradient)
    square = double(loss_gradient).square().sum()
    if square == 0:
        raise DomainError(
            "loss_gradient: expected a gradient that is not zero; training has converged, "
            "and features no longer evolve"
        )
    return square


def _require_rates(step_size: float, strength: float) -> None:
    require_between(0.0, float("inf"), open_high=True, step_size=step_size, strength=strength)
