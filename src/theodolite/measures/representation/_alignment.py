"""Alignment of features with targets at one threshold, and as exact steps over all thresholds."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from theodolite.checks import require_between
from theodolite.linalg import LabelProjections, array_function, double, eigenvalue_groups, eps_of
from theodolite.measures.representation._evaluation import Grid, measure_grid
from theodolite.measures.representation._projections import RouteChoice, project
from theodolite.measures.representation._targets import read_features, read_targets

__all__ = [
    "AlignmentSteps",
    "alignment_steps",
    "representation_alignment",
    "steps_from_projections",
    "tie_index",
    "tie_tolerance",
]


@dataclass(frozen=True)
class AlignmentSteps:
    """The alignment curve as the step function it is: where it drops, and by how much."""

    singular_values: Float[Tensor, " s"]  # distinct, largest first
    mass: Float[Tensor, " s"]  # label mass at each of them
    residual: Float[Tensor, ""]  # label mass at singular value zero


@array_function
def representation_alignment(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    threshold: float,
    *,
    rtol: float = 0.0,
    route: RouteChoice = "auto",
) -> Float[Tensor, ""]:
    r"""Label mass on left singular vectors whose singular value is at least a threshold.

    .. math:: A(\Phi, y, \tau) = \sum_{i:\,\sigma_i \ge \tau} (u_i^\top y)^2

    High at large thresholds means that gradient descent on a linear read-out is fast and needs
    small weights. Several target columns add. At threshold 0 all n directions count: the squared
    norm of the targets. A group of equal singular values counts as a whole; set ``rtol`` where the
    threshold may coincide with one of them.

    Range: [0, :math:`\|y\|^2`].
    Invariant to: joint permutation or rotation of the examples; rotation of the features; appended
        zero columns; the sign of the targets.
    Undefined (``nan``): a threshold that the route asked for does not resolve.

    Args:
        features: :math:`\Phi`, prepared with :func:`prepare_features`.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).
        threshold: :math:`\tau \ge 0`.
        rtol: count :math:`\sigma_i \ge \tau (1 - \mathrm{rtol})`.
        route: see :func:`label_projections`.

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite, or a threshold is negative or not finite.

    Example:
        >>> features = torch.diag(torch.tensor([3.0, 2.0, 0.0]))
        >>> representation_alignment(features, torch.tensor([1.0, 2.0, 3.0]), 2.0).item()
        5.0

    References:
        [imani2022], Eq. (2).

    Differs from paper:
        Singular values below :func:`theodolite.linalg.rank_tolerance` of the largest count as
        zero; several target columns are summed.
    """
    read_features(features, targets)
    require_between(0.0, float("inf"), open_high=True, threshold=threshold)
    level = torch.tensor([threshold], dtype=torch.float64, device=double(features[:0]).device)
    values, _ = measure_grid(features, targets, Grid(level, rtol=rtol), route)
    return values.squeeze(0)


@array_function
def alignment_steps(
    features: Float[Tensor, "n d"], targets: Shaped[Tensor, "n *c"]
) -> AlignmentSteps:
    r"""The exact alignment curve: distinct singular values and the label mass at each.

    Singular values closer than ``max(1e-10, 8 eps)`` of the largest count as equal.

    Args:
        features: :math:`\Phi`, prepared with :func:`prepare_features`.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite.

    Example:
        >>> steps = alignment_steps(torch.diag(torch.tensor([2.0, 2.0, 1.0])), torch.ones(3))
        >>> steps.singular_values.tolist(), steps.mass.tolist()
        ([2.0, 1.0], [2.0, 1.0])

    References:
        [imani2022], Eq. (2).
    """
    read_features(features, targets)
    found = project(features, read_targets(targets), None)
    return _steps(found, tie_tolerance(eps_of(features)))


@array_function
def steps_from_projections(projections: LabelProjections) -> AlignmentSteps:
    """The exact curve of projections that were found elsewhere, e.g. from streamed sums.

    Args:
        projections: from :func:`label_projections` or from the mergeable sums of ``linalg``.

    Example:
        >>> from theodolite.measures.representation import label_projections
        >>> p = label_projections(torch.eye(2), torch.tensor([1.0, 2.0]))
        >>> steps_from_projections(p).mass.tolist()
        [5.0]

    References:
        [imani2022], Eq. (2).
    """
    return _steps(projections, tie_tolerance(eps_of(projections.singular_values)))


def tie_tolerance(eps: float) -> float:
    """Gap in units of the largest singular value below which two of them count as equal."""
    return max(1e-10, 8 * eps)


def tie_index(sigma: Float[Tensor, " r"], rtol: float) -> Int[Tensor, " r"]:
    """Number of the group of equal singular values to which each of them belongs."""
    index = torch.zeros(len(sigma), dtype=torch.long, device=sigma.device)
    for number, group in enumerate(eigenvalue_groups(sigma, rtol)):
        index[group] = number
    return index


def _steps(projections: LabelProjections, rtol: float) -> AlignmentSteps:
    sigma, mass = double(projections.singular_values), double(projections.mass).sum(1)
    index = tie_index(sigma, rtol)
    sizes = index.bincount()
    centers = sigma.new_zeros(len(sizes)).index_add(0, index, sigma) / sizes
    masses = mass.new_zeros(len(sizes)).index_add(0, index, mass)
    return AlignmentSteps(centers, masses, double(projections.residual).sum())
