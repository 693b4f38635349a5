"""Effect of one gradient step on a layer, and tangent features along the labels."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.linalg import matrix_norm, vector_norm

from theodolite.checks import require_axes, require_finite, require_positive
from theodolite.errors import ShapeError
from theodolite.linalg import (
    array_function,
    center_all,
    center_columns,
    double,
    eps_of,
    nan_unless,
    prints_shapes,
    ratio_or_nan,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.measures.tangent.alignment import (
    require_kernel_and_targets,
    spectral_norm,
    stacked,
    unit_vector,
)
from theodolite_papers.lou2022.formulas.feature_evolution import require_tangent_features


@prints_shapes
@dataclass(frozen=True)
class UpdateBounds:
    """Bounds on the length of a frozen-layer update: ``|update| <= spectral <= trace``."""

    spectral: Float[Tensor, ""]
    trace: Float[Tensor, ""]


@array_function
def frozen_update(
    kernel: Float[Tensor, "n c n c"], loss_gradient: Float[Tensor, "n c"], learning_rate: float
) -> Float[Tensor, "n c"]:
    r"""Change of the outputs, to first order, when one layer alone takes a gradient step.

    .. math:: \Delta F = -\eta\,K_l\,w, \qquad w = \partial\mathcal L/\partial F

    With the cross-entropy and equal logits, :math:`w = -\tilde Y/n` and the outputs move by
    :math:`(\eta/n) K_l\tilde Y` exactly.

    Args:
        kernel: :math:`K_l` of the layer that moves.
        loss_gradient: :math:`w` of the mean loss, e.g. from :func:`cross_entropy_gradient`.
        learning_rate: :math:`\eta`.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, an entry not finite, or the rate not positive.

    Examples:
        >>> kernel = torch.eye(2).reshape(2, 1, 2, 1)
        >>> frozen_update(kernel, torch.tensor([[1.0], [-2.0]]), 0.5).tolist()
        [[-0.5], [1.0]]

    References:
        [lou2022], Section 2.1.
        Differs from paper: the mean loss with the raw learning rate, not the sum with LR/n.
    """
    require_kernel_and_targets(kernel, loss_gradient=loss_gradient)
    require_positive(learning_rate=learning_rate)
    step = double(stacked(kernel)) @ double(loss_gradient).flatten()
    return -learning_rate * step.reshape(loss_gradient.shape)


@array_function
def frozen_update_bounds(
    kernel: Float[Tensor, "n c n c"], loss_gradient: Float[Tensor, "n c"], learning_rate: float
) -> UpdateBounds:
    r"""Upper bounds of the change of the outputs in a step on one layer.

    .. math:: \|\Delta F\| \le \eta\,\rho(K_l)\,\|w\| \le \eta\,\mathrm{Tr}(K_l)\,\|w\|

    Both are equalities exactly when :math:`K_l` is a multiple of :math:`ww^\top`.

    Args:
        kernel: :math:`K_l`, positive semi-definite.
        loss_gradient: :math:`w` of the mean loss.
        learning_rate: :math:`\eta`.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, an entry not finite, or the rate not positive.

    Examples:
        >>> bounds = frozen_update_bounds(torch.eye(2).reshape(2, 1, 2, 1), torch.ones(2, 1), 0.5)
        >>> round(bounds.spectral.item(), 4), round(bounds.trace.item(), 4)
        (0.7071, 1.4142)

    References:
        [lou2022], Section 2.1.
    """
    require_kernel_and_targets(kernel, loss_gradient=loss_gradient)
    require_positive(learning_rate=learning_rate)
    K = double(stacked(kernel))
    length = learning_rate * vector_norm(double(loss_gradient))
    peak = K.detach().abs().max()
    return UpdateBounds(spectral_norm(unit_peak(K)) * peak * length, K.trace() * length)


@array_function
def label_contribution(
    kernel: Float[Tensor, "n c n c"], targets: Float[Tensor, "n c"]
) -> Float[Tensor, ""]:
    r"""How much a layer moves the outputs along the labels; layers add up to the network.

    .. math:: \mathrm{Tr}(K_l\tilde y\tilde y^\top) = \tilde y^\top K_l\,\tilde y

    Range: [0, :math:`\rho(K_l)\|\tilde y\|^2`] for positive semi-definite kernels.
    Invariant to: a constant added to all targets or to all entries of the kernel; a common
    permutation of the examples.
    Undefined: never.

    Args:
        kernel: :math:`K_l` of one layer.
        targets: :math:`Y`; centred over all entries here.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, or either is not finite.

    Examples:
        >>> y = torch.tensor([[1.0], [0.0]])
        >>> label_contribution(torch.eye(2).reshape(2, 1, 2, 1), y).item()
        0.5

    References:
        [lou2022], Section 2.1 and Appendix C.
    """
    require_kernel_and_targets(kernel, targets=targets)
    y = center_all(double(targets)).flatten()
    return y @ double(stacked(kernel)) @ y


@prints_shapes
@dataclass(frozen=True)
class RankOneModel:
    """Centred tangent features as ``strength * direction`` times the unit label vector."""

    direction: Float[Tensor, " p"]  # unit vector in parameter space
    strength: Float[Tensor, ""]  # largest singular value of the centred features
    error: Float[Tensor, ""]  # relative Frobenius norm of what the model leaves out


@array_function
def rank_one_model(
    tangent_features: Float[Tensor, "n c p"], targets: Float[Tensor, "n c"]
) -> RankOneModel:
    r"""Rank-one model of tangent features that have aligned with the labels.

    .. math:: \Psi C_m \approx \sqrt{\lambda_1}\,v\,\hat y^\top, \qquad
              v = \Psi\hat y / \|\Psi\hat y\|, \quad \lambda_1 = \lambda_1(C_m K C_m)

    Where it holds, a change of parameters moves the outputs along the labels only, by
    :math:`\langle\Delta\theta, v\rangle\sqrt{\lambda_1}\,\hat y`.

    Range: error in [0, :math:`\sqrt2`], 0 exactly for rank-one features along the labels.
    Invariant to: positive scaling of the features (error), orthogonal maps of the parameters,
    scaling and shifting all targets.
    Undefined (``nan``): centred features or centred targets are zero, or they are orthogonal.

    Args:
        tangent_features: :math:`\Psi`; entry ``[x, i]`` is the gradient of output i at example x.
        targets: :math:`Y`, e.g. one-hot labels.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If an entry is not finite.

    Examples:
        >>> y = torch.tensor([[1.0], [-1.0]])
        >>> model = rank_one_model(y.unsqueeze(-1) * torch.tensor([3.0, 4.0]), y)
        >>> [round(v, 4) for v in model.direction.tolist()], round(model.error.item(), 4)
        ([0.6, 0.8], 0.0)

    References:
        [lou2022], Appendix G, Eq. (26) and (27).
    """
    require_tangent_features(tangent_features)
    require_axes(2, targets=targets)
    if targets.shape != tangent_features.shape[:2]:
        raise ShapeError(
            f"targets: expected shape {tuple(tangent_features.shape[:2])}, one number per example "
            f"and output of tangent_features, got {tuple(targets.shape)}"
        )
    require_finite(targets=targets)
    rows = double(tangent_features).flatten(0, 1)
    peak = rows.detach().abs().max()
    return _model(
        unit_peak(rows), unit_peak(double(targets)), peak, eps_of(tangent_features, targets)
    )


def _model(rows: Tensor, targets: Tensor, peak: Tensor, eps: float) -> RankOneModel:
    features = center_columns(rows)  # (m, p): one centred gradient per pair
    y = center_all(targets)
    defined = ~vanishes_when_centered(features, rows, eps)
    defined = defined & ~vanishes_when_centered(y, targets, eps)
    label = unit_vector(y.flatten())
    image = label @ features
    length, size = vector_norm(image), matrix_norm(features)
    defined = defined & (length > 8 * eps * size)
    direction = unit_vector(image)
    sigma = spectral_norm(features)
    residual = features - sigma * label.unsqueeze(1) * direction
    return RankOneModel(
        direction=ratio_or_nan(image, length.expand_as(image), defined),
        strength=nan_unless(defined, sigma * peak),
        error=ratio_or_nan(matrix_norm(residual), size, defined),
    )
