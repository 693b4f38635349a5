"""One number for a curve: its area, its second moment, the share of the top directions."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from theodolite.checks import require_count, require_finite
from theodolite.linalg import (
    LabelProjections,
    array_function,
    double,
    eigenvalue_groups,
    eps_of,
    rank_tolerance,
    ratio_or_nan,
    row_chunks,
)
from theodolite.measures.representation._alignment import tie_tolerance
from theodolite.measures.representation._evaluation import wants_gradient
from theodolite.measures.representation._projections import RouteChoice, project
from theodolite.measures.representation._spectral_form import Filter, spectral_form
from theodolite.measures.representation._targets import Targets, read_features, read_targets

__all__ = ["alignment_area", "alignment_second_moment", "area_from_projections", "top_share"]


@array_function
def alignment_area(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    *,
    normalized: bool = False,
    route: RouteChoice = "auto",
) -> Float[Tensor, ""]:
    r"""Area under the alignment curve, exactly and without a grid.

    .. math:: \int_0^\infty A(\tau)\,d\tau = \sum_i \sigma_i (u_i^\top y)^2
              = y^\top (\Phi\Phi^\top)^{1/2} y

    Non-negative features of unit length and balanced labels of two classes cannot exceed a
    normalised area of :math:`1/\sqrt 2`: do not compare layers with and without ReLU as if they
    had the same ceiling. Differentiable also at ties; where a zero singular value meets label mass
    outside the range of the features the derivative does not exist, and that part is zero.

    Range: [0, inf); normalised [0, 1] if no row is longer than 1.
    Invariant to: joint permutation or rotation of the examples; rotation of the features; appended
        zero columns; the sign of the targets; normalised also to scaling of the targets.
    Undefined (``nan``): normalised area of targets of zeros.

    Args:
        features: :math:`\Phi`, prepared with :func:`prepare_features`.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).
        normalized: divide by :math:`\sqrt n\,\|y\|^2`.
        route: see :func:`label_projections`.

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite.

    Example:
        >>> features = torch.diag(torch.tensor([3.0, 2.0, 0.0]))
        >>> alignment_area(features, torch.tensor([1.0, 2.0, 3.0])).item()
        11.0

    References:
        [imani2022], Eq. (2), integrated over the threshold.
    """
    read_features(features, targets)
    columns = read_targets(targets, shares=normalized)
    if wants_gradient(features, targets):
        require_finite(features=features)
        noise = rank_tolerance(features.shape, eps_of(features))
        area = spectral_form(double(features), columns.columns, noise, _root).squeeze(0)
    else:
        area = _area(project(features, columns, 0.0, route=route))
    return ratio_or_nan(area, len(features) ** 0.5 * columns.energy) if normalized else area


@array_function
def area_from_projections(
    projections: LabelProjections, *, normalized: bool = False
) -> Float[Tensor, ""]:
    """Area of projections that were found elsewhere, e.g. from streamed sums.

    Args:
        projections: from :func:`label_projections` or from the mergeable sums of ``linalg``.
        normalized: divide by the root of n and by the squared norm of the targets.

    Example:
        >>> from theodolite.measures.representation import label_projections
        >>> p = label_projections(2 * torch.eye(2), torch.tensor([1.0, 2.0]))
        >>> area_from_projections(p).item()
        10.0

    References:
        [imani2022], Eq. (2).
    """
    area = _area(projections)
    energy = double(projections.energy).sum()
    return ratio_or_nan(area, projections.count**0.5 * energy) if normalized else area


@array_function
def alignment_second_moment(
    features: Float[Tensor, "n d"], targets: Shaped[Tensor, "n *c"]
) -> Float[Tensor, ""]:
    r"""Second moment of the alignment curve: the numerator of kernel-target alignment.

    .. math:: \int_0^\infty 2\tau A(\tau)\,d\tau = \sum_i \sigma_i^2 (u_i^\top y)^2
              = \|\Phi^\top y\|^2

    Range: [0, inf).
    Invariant to: joint permutation or rotation of the examples; rotation of the features; appended
        zero columns; the sign of the targets.
    Undefined: never.

    Args:
        features: :math:`\Phi`.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite.

    Example:
        >>> features = torch.diag(torch.tensor([3.0, 2.0, 0.0]))
        >>> alignment_second_moment(features, torch.tensor([1.0, 2.0, 3.0])).item()
        25.0

    References:
        [imani2022], Eq. (2), integrated with twice the threshold.
    """
    read_features(features, targets)
    require_finite(features=features)
    values, num_classes = read_targets(targets)
    parts = [
        double(rows).mT @ Targets(labels, num_classes).columns
        for rows, labels in row_chunks(features, values)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.square().sum()


@array_function
def top_share(
    features: Float[Tensor, "n d"], targets: Shaped[Tensor, "n *c"], count: int
) -> Float[Tensor, ""]:
    r"""Share of the label mass on the leading left singular vectors.

    .. math:: \sum_{i \le k} (u_i^\top y)^2 \,/\, \|y\|^2

    Where equal singular values straddle the cut (zero ones included), their group counts in
    proportion to the number of its directions inside: the sum over any other choice would depend
    on the basis inside the group.

    Range: [0, 1].
    Invariant to: joint permutation or rotation of the examples; rotation and positive scaling of
        the features; appended zero columns; scaling of the targets.
    Undefined (``nan``): targets of zeros.

    Args:
        features: :math:`\Phi`.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).
        count: :math:`k \ge 1`; from n on the share is 1.

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite, or the count is below 1.

    Example:
        >>> features = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> round(top_share(features, torch.tensor([1.0, 2.0, 3.0]), 1).item(), 4)
        0.0714

    References:
        [imani2022], Figure 2.
    """
    require_count(1, count=count)
    read_features(features, targets)
    columns = read_targets(targets, shares=True)
    tolerance, size = tie_tolerance(eps_of(features)), len(features)

    def share(sigma: Tensor) -> Filter:
        return _top_filter(sigma, min(count, size), size, tolerance)

    if wants_gradient(features, targets):
        require_finite(features=features)
        noise = rank_tolerance(features.shape, eps_of(features))
        mass = spectral_form(double(features), columns.columns, noise, share).squeeze(0)
    else:
        found = project(features, columns, float("inf"))
        if found.resolved_above > 0 and len(found.singular_values) <= count:
            found = project(features, columns, None)
        top = share(found.singular_values)
        mass = (top.weights @ found.mass.sum(1) + top.null * found.residual.sum()).squeeze(0)
    return ratio_or_nan(mass, columns.energy)


def _area(projections: LabelProjections) -> Tensor:
    return double(projections.singular_values) @ double(projections.mass).sum(1)


def _root(sigma: Tensor) -> Filter:
    """The square root on the eigenvalues of the kernel; half its derivative by sigma is 1/2."""
    return Filter(sigma.unsqueeze(0), sigma.new_zeros(1), torch.full_like(sigma, 0.5).unsqueeze(0))


def _top_filter(sigma: Tensor, count: int, size: int, rtol: float) -> Filter:
    """Weight 1 on the first ``count`` directions, a fraction on a group that straddles the cut."""
    weights = torch.zeros_like(sigma)
    null = sigma.new_zeros(1)
    if count > len(sigma):
        weights = torch.ones_like(sigma)
        null = null + (count - len(sigma)) / (size - len(sigma))
    else:
        groups = eigenvalue_groups(sigma, rtol)
        cut = next(group for group in groups if group.stop >= count)
        weights[: cut.start] = 1
        weights[cut] = (count - cut.start) / (cut.stop - cut.start)
    return Filter(weights.unsqueeze(0), null, torch.zeros_like(weights).unsqueeze(0))
