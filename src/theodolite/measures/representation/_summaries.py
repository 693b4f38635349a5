"""One number for a curve: area, second moment, share of the top directions; Picard ratios."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from theodolite.checks import require_count, require_finite
from theodolite.linalg import (
    GRAM_ACCURATE_ABOVE,
    LabelProjections,
    array_function,
    double,
    eigenvalue_groups,
    eps_of,
    rank_tolerance,
    ratio_or_nan,
)
from theodolite.measures.representation.curve import tie_tolerance, wants_gradient
from theodolite.measures.representation.projections import (
    Filter,
    Rows,
    project,
    read_features,
    read_targets,
    spectral_form,
)


@array_function
def alignment_area(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    *,
    rows: Rows = "unit",
    normalized: bool = True,
) -> Float[Tensor, ""]:
    r"""Area under the alignment curve, exactly and without a grid: the label alignment of a layer.

    .. math:: \frac{1}{\sqrt n\,\|y\|^2}\int_0^\infty A(\tau)\,d\tau
              = \frac{1}{\sqrt n\,\|y\|^2}\sum_i \sigma_i (u_i^\top y)^2
              = \frac{y^\top (\Phi\Phi^\top)^{1/2} y}{\sqrt n\,\|y\|^2}

    :math:`A` is the :func:`alignment_curve`; :math:`\sigma_i` and :math:`u_i` are singular values
    and left singular vectors of the features. With its defaults this is the number that a survey
    prints: rows of unit length, one-hot columns for class labels. It is then at most
    :math:`1/\sqrt C` for C balanced classes. The area is differentiable also at ties. The
    derivative does not exist where a zero singular value meets label mass outside the range of the
    features. That part of the gradient is zero.

    Range: [0, 1]; [0, inf) if not normalised, or for rows longer than 1.
    Invariant to: joint permutation of the examples; rotation of the features; appended zero
        columns; scaling of any row (``rows="unit"``); scaling of the targets (normalised); joint
        rotation of the examples (``rows="none"``).
    Undefined (``nan``): normalised area of targets of zeros.

    Args:
        features: :math:`\Phi`, one row per example.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).
        rows: ``"unit"`` divides each row by its own length, ``"max"`` all rows by the largest,
            ``"none"`` takes them as they are, e.g. from :func:`prepare_features`.
        normalized: divide by :math:`\sqrt n\,\|y\|^2`.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite.

    Examples:
        >>> features, y = torch.diag(torch.tensor([3.0, 2.0, 0.0])), torch.tensor([1.0, 2.0, 3.0])
        >>> round(alignment_area(features, y).item(), 4)
        0.2062
        >>> alignment_area(features, y, rows="none", normalized=False).item()
        11.0

    References:
        [imani2022], Eq. (2), integrated over the threshold.

    Differs from paper:
        Rows are scaled to length 1; the paper assumes at most 1. All classes share one area.
    """
    Phi = read_features(features, targets, rows)
    columns = read_targets(targets, shares=normalized)
    if wants_gradient(Phi, targets):
        require_finite(features=features)
        noise = rank_tolerance(features.shape, eps_of(features))
        area = spectral_form(double(Phi), columns.columns, noise, _root).squeeze(0)
    else:
        area = _area(project(Phi, columns, 0.0))
    return ratio_or_nan(area, len(features) ** 0.5 * columns.energy) if normalized else area


@array_function
def area_from_projections(
    projections: LabelProjections, *, normalized: bool = True
) -> Float[Tensor, "*sets"]:
    """Label alignment from projections that exist already, e.g. from streamed sums.

    Several sets of targets, such as permutations, give one number each.

    Args:
        projections: from :func:`label_projections`, or from sums over batches.
        normalized: divide by the root of n and by the squared norm of the targets.

    Returns:
        One area for every set of targets.

    Examples:
        >>> from theodolite.measures.representation import label_projections
        >>> p = label_projections(2 * torch.eye(2), torch.tensor([1.0, 2.0]))
        >>> area_from_projections(p, normalized=False).item()
        10.0

    References:
        [imani2022], Eq. (2).
    """
    area = _area(projections)
    energy = double(projections.energy).sum(0)
    return ratio_or_nan(area, projections.count**0.5 * energy) if normalized else area


@array_function
def top_share(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    count: int,
    *,
    rows: Rows = "unit",
) -> Float[Tensor, ""]:
    r"""Share of the label mass on the leading left singular vectors.

    .. math:: \sum_{i \le k} (u_i^\top y)^2 \,/\, \|y\|^2

    Equal singular values form a group (zeros too). If the cut divides a group, the group
    counts in proportion to the number of its directions inside. Any other choice would depend on
    the basis inside the group.

    Range: [0, 1].
    Invariant to: joint permutation of the examples; rotation and positive scaling of the features;
        appended zero columns; scaling of the targets; joint rotation of the examples
        (``rows="none"``).
    Undefined (``nan``): targets of zeros.

    Args:
        features: :math:`\Phi`, one row per example.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).
        count: :math:`k \ge 1`; from n on the share is 1. A survey takes one per target column.
        rows: length of the rows, as in :func:`alignment_area`.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite, or the count is below 1.

    Examples:
        >>> features = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> round(top_share(features, torch.tensor([1.0, 2.0, 3.0]), 1, rows="none").item(), 4)
        0.0714

    References:
        [imani2022], Figure 2.
    """
    require_count(1, count=count)
    Phi = read_features(features, targets, rows)
    columns = read_targets(targets, shares=True)
    tolerance, size = tie_tolerance(eps_of(features)), len(features)

    def share(sigma: Tensor) -> Filter:
        return _top_filter(sigma, min(count, size), size, tolerance)

    if wants_gradient(Phi, targets):
        require_finite(features=features)
        noise = rank_tolerance(features.shape, eps_of(features))
        mass = spectral_form(double(Phi), columns.columns, noise, share).squeeze(0)
    else:
        found = project(Phi, columns, float("inf"))
        sigma = found.singular_values
        last = float(sigma[min(count, len(sigma)) - 1]) if len(sigma) else 0.0
        mixed = len(sigma) > 0 and last < GRAM_ACCURATE_ABOVE * float(sigma[0])
        if mixed or (found.resolved_above > 0 and len(sigma) <= count):
            found = project(Phi, columns, None)
        mass = _mass(found, share(found.singular_values))
    return ratio_or_nan(mass, columns.energy)


@array_function
def top_share_from_projections(projections: LabelProjections, count: int) -> Float[Tensor, "*sets"]:
    """Share of the label mass on the leading directions, from projections that exist already.

    Several sets of targets, such as permutations, give one number each.

    Args:
        projections: from :func:`label_projections`, or from sums over batches.
        count: number of directions, at least 1.

    Returns:
        One share for every set of targets.

    Raises:
        DomainError: If the count is below 1.

    Examples:
        >>> from theodolite.measures.representation import label_projections
        >>> p = label_projections(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([1.0, 2.0]))
        >>> round(top_share_from_projections(p, 1).item(), 4)
        0.2

    References:
        [imani2022], Figure 2.
    """
    require_count(1, count=count)
    sigma, size = double(projections.singular_values), projections.count
    rtol = tie_tolerance(eps_of(projections.singular_values))
    mass = _mass(projections, _top_filter(sigma, min(count, size), size, rtol))
    return ratio_or_nan(mass, double(projections.energy).sum(0))


def _mass(projections: LabelProjections, top: Filter) -> Tensor:
    inside, outside = double(projections.mass).sum(1), double(projections.residual).sum(0)
    return (top.weights @ inside + top.null * outside).squeeze(0)


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
