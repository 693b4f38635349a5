"""The discrete Picard condition: do the labels' coefficients decay faster than singular values?"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from theodolite.linalg import LabelProjections, array_function, eps_of, ratio_or_nan
from theodolite.measures.representation._alignment import tie_index, tie_tolerance
from theodolite.measures.representation._projections import project
from theodolite.measures.representation._targets import read_features, read_targets

__all__ = ["picard_ratios", "picard_slope"]


@array_function
def picard_ratios(
    features: Float[Tensor, "n d"], targets: Shaped[Tensor, "n *c"]
) -> Float[Tensor, "m *k"]:
    r"""How far each weight must travel: coefficients of the targets over singular values.

    .. math:: |u_i^\top y| / \sigma_i = |v_i^\top \Phi^+ y|, \qquad i = 1, \dots, \min(n, d)

    Small and falling ratios mean that a small read-out suffices (the discrete Picard condition).
    Inside a group of equal singular values only the norm over the group is determined: each
    direction gets the root mean square.

    Range: [0, inf).
    Invariant to: joint permutation or rotation of the examples; rotation of the features; the sign
        of the targets.
    Undefined (``nan``): directions whose singular value counts as zero.

    Args:
        features: :math:`\Phi`.
        targets: :math:`y`: a vector (one ratio per direction), or columns or integer class labels
            (one ratio per direction and column).

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite.

    Example:
        >>> features = torch.diag(torch.tensor([4.0, 2.0]))
        >>> picard_ratios(features, torch.tensor([2.0, -3.0])).tolist()
        [0.5, 1.5]

    References:
        [hansen1990], the discrete Picard condition.
    """
    read_features(features, targets)
    columns = read_targets(targets)
    found = project(features, columns, None)
    sigma = found.singular_values
    ratios = _coefficients(found, eps_of(features)) / sigma.unsqueeze(1)
    missing = min(features.shape) - len(sigma)
    undefined = ratios.new_full((missing, ratios.shape[1]), torch.nan)
    whole = torch.cat([ratios, undefined])
    return whole.squeeze(1) if columns.num_classes is None and targets.ndim == 1 else whole


@array_function
def picard_slope(
    features: Float[Tensor, "n d"], targets: Shaped[Tensor, "n *c"]
) -> Float[Tensor, ""]:
    r"""Least-squares slope of the logarithm of the Picard ratios against their index.

    .. math:: \log \|u_i^\top Y\| - \log \sigma_i \;\approx\; a + b\,i

    Negative when coefficients decay faster than singular values. Directions without any label mass
    are left out; equal singular values share their mass evenly.

    Range: (-inf, inf).
    Invariant to: joint permutation or rotation of the examples; rotation and positive scaling of
        the features; scaling of the targets.
    Undefined (``nan``): fewer than two directions with label mass.

    Args:
        features: :math:`\Phi`.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite.

    Example:
        >>> features = torch.diag(torch.tensor([4.0, 2.0]))
        >>> round(picard_slope(features, torch.tensor([2.0, -3.0])).item(), 4)
        1.0986

    References:
        [hansen1990], as one number.
    """
    read_features(features, targets)
    found = project(features, read_targets(targets, shares=True), None)
    sigma = found.singular_values
    norms = torch.linalg.vector_norm(_coefficients(found, eps_of(features)), dim=1)
    present = norms > 0
    index = torch.arange(1, len(sigma) + 1, device=sigma.device).to(sigma)[present]
    logs = norms[present].log() - sigma[present].log()
    centered = index - index.mean()
    return ratio_or_nan((centered * logs).sum(), centered.square().sum())


def _coefficients(found: LabelProjections, eps: float) -> Tensor:
    """Absolute coefficients; over equal singular values, where the basis is free, their RMS."""
    index = tie_index(found.singular_values, tie_tolerance(eps))
    peak = found.coefficients.abs().amax().clamp(min=torch.finfo(torch.float64).tiny)
    squares = (found.coefficients / peak).square()
    sizes = index.bincount().unsqueeze(1)
    sums = squares.new_zeros(len(sizes), squares.shape[1]).index_add(0, index, squares)
    return (sums / sizes)[index].sqrt() * peak
