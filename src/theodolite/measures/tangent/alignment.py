"""Tangent kernels over pairs of example and output, and their alignment with the labels."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.linalg import matrix_norm, vector_norm

from theodolite.checks import (
    require_axes,
    require_finite,
    require_labels,
    require_nonempty,
    require_symmetric,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    alignment_from_norms,
    array_function,
    center_all,
    checks_classes,
    double,
    double_center,
    eps_of,
    prints_shapes,
    ratio_or_nan,
    symmetric_eigen,
    target_columns,
    top_eigen_operator,
    unit_peak,
    vanishes_when_centered,
)

_DENSE_BELOW = 512  # a full eigh is faster than ARPACK's start-up below this size


@array_function
def stacked_kernel(
    kernel: Float[Tensor, "n c n c"], *, center: bool = True
) -> Float[Tensor, "m m"]:
    r"""A tangent kernel as a matrix over the stacked index, centred by default.

    .. math:: C_m K C_m, \qquad C_m = I - \tfrac1m 11^\top, \quad m = nc

    Entry :math:`(x, i)` is at :math:`xc + i`. :func:`stable_rank` takes the result.

    Args:
        kernel: :math:`K`, indexed by example and output on both sides.
        center: whether to centre over all :math:`m` entries.

    Returns:
        A square matrix over all pairs of example and output.

    Raises:
        ShapeError: If the kernel is not of shape (n, c, n, c).
        DomainError: If it is not symmetric or not finite.

    Examples:
        >>> stacked_kernel(torch.eye(2).reshape(2, 1, 2, 1)).tolist()
        [[0.5, -0.5], [-0.5, 0.5]]

    References:
        [lou2022], Section 2.
    """
    require_kernel(kernel)
    matrix = double(stacked(kernel))
    return double_center(matrix) if center else matrix


def stacked(kernel: Float[Tensor, "n c n c"]) -> Float[Tensor, "m m"]:
    """The kernel over the stacked index, nothing else changed."""
    size = kernel.shape[0] * kernel.shape[1]
    return kernel.reshape(size, size)


def require_kernel(kernel: Tensor) -> None:
    """Check for a symmetric, finite kernel with axes example, output, example, output."""
    require_kernel_shape(kernel)
    require_symmetric(kernel=stacked(kernel))


def require_kernel_shape(kernel: Tensor) -> None:
    """Check for the axes example, output, example, output."""
    require_axes(4, kernel=kernel)
    require_nonempty(kernel=kernel)
    if kernel.shape[:2] != kernel.shape[2:]:
        raise ShapeError(
            f"kernel: expected shape (n, c, n, c), got {tuple(kernel.shape)}; the axes are "
            "example, output, example, output (a matrix over stacked pairs needs a reshape)"
        )


def require_kernel_and_targets(kernel: Tensor, **targets: Tensor) -> None:
    """Check a kernel, and arrays with one number for each of its examples and outputs."""
    require_kernel(kernel)
    for name, values in targets.items():
        require_axes(2, **{name: values})
        if values.shape != kernel.shape[:2]:
            raise ShapeError(
                f"{name}: expected shape {tuple(kernel.shape[:2])}, one number per example and "
                f"output of the kernel, got {tuple(values.shape)}; "
                "one-hot encode class labels first"
            )
        require_finite(**{name: values})


@array_function
def centered_labels(
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"], num_classes: int | None = None
) -> Float[Tensor, "n k"]:
    r"""Targets minus their mean over all examples and outputs.

    .. math:: \tilde Y = Y - \tfrac1m \textstyle\sum_{x,i} Y_{xi}, \qquad m = nk

    For class labels this is :math:`Y - 1/k` whatever the balance of the classes, and
    :math:`\|\tilde Y\|^2 = n(k-1)/k`. Constant targets (a single class) give zeros, for which every
    alignment is undefined.

    Args:
        labels: class labels, one-hot encoded here, or targets :math:`Y` with one column per output.
        num_classes: number :math:`k` of classes; by default one more than the largest label.

    Returns:
        A matrix with one row per example and one column per class or output.

    Raises:
        DomainError: If a label lies outside ``0 .. num_classes - 1``, or targets are not finite.
        ShapeError: If there are no examples.

    Examples:
        >>> centered_labels(torch.tensor([0, 1, 1])).tolist()
        [[0.5, -0.5], [-0.5, 0.5], [-0.5, 0.5]]

    References:
        [lou2022], Section 2.
        Differs from paper: balanced classes are not needed, the mean of one-hot labels is 1/k.
    """
    if not labels.is_floating_point():
        return center_all(target_columns(labels, require_labels(labels, num_classes)))
    require_axes(2, labels=labels)
    require_nonempty(labels=labels)
    require_finite(labels=labels)
    if num_classes not in (None, labels.shape[1]):
        raise DomainError(
            f"num_classes: expected {labels.shape[1]}, the columns of the targets, or none, "
            f"got {num_classes}"
        )
    return center_all(double(labels))


def spectral_norm(matrix: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Largest singular value of a float64 matrix with entries of order one.

    The singular vector is treated as constant, and the value is the length of its image. Errors of
    the vector enter squared. The gradient is finite at ties, where any of the vectors may be used.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
    return vector_norm(tall @ leading_vector(tall.detach()))


def leading_vector(matrix: Float[Tensor, "n d"], *, symmetric: bool = False) -> Float[Tensor, " d"]:
    """Unit right singular vector of the largest singular value.

    Args:
        matrix: a float64 matrix.
        symmetric: whether the matrix equals its transpose; then one product replaces two.
    """
    size = matrix.shape[1]
    if size <= _DENSE_BELOW or not matrix.any():
        return symmetric_eigen(matrix.mT @ matrix).vectors[:, 0]

    def product(vector: Tensor) -> Tensor:
        return matrix @ vector if symmetric else matrix.mT @ (matrix @ vector)

    pairs = top_eigen_operator(product, size, 1, which="LM", device=matrix.device)
    return torch.nn.functional.normalize(pairs.vectors[:, 0], dim=0)


@prints_shapes
@dataclass(frozen=True)
class KernelAndLabel:
    """Kernel (largest entry 1 before centring) and unit label vector, both centred alike."""

    kernel: Float[Tensor, "m m"]
    label: Float[Tensor, " m"]
    kernel_defined: Bool[Tensor, ""]  # not zero up to rounding
    label_defined: Bool[Tensor, ""]

    @property
    def defined(self) -> Bool[Tensor, ""]:
        """Whether an angle between the two exists."""
        return self.kernel_defined & self.label_defined

    @property
    def label_energy(self) -> Float[Tensor, ""]:
        """Quadratic form of the unit label vector with the kernel."""
        return self.label @ self.kernel @ self.label


def kernel_and_label(kernel: Tensor, targets: Tensor, *, center: bool) -> KernelAndLabel:
    """Rescale, centre in float64, and note whether only rounding is left."""
    K = unit_peak(double(stacked(kernel)))
    Y = unit_peak(double(targets))
    Kc, Yc = (double_center(K), center_all(Y)) if center else (K, Y)
    return KernelAndLabel(
        kernel=Kc,
        label=unit_vector(Yc.flatten()),
        kernel_defined=~vanishes_when_centered(Kc, K, eps_of(kernel)),
        label_defined=~vanishes_when_centered(Yc, Y, eps_of(targets)),
    )


def unit_vector(vector: Tensor) -> Tensor:
    """The vector divided by its length; zero stays zero, with gradient zero."""
    length = vector_norm(vector)
    return vector / torch.where(length > 0, length, torch.ones_like(length))


@array_function
def tangent_alignment(
    kernel: Float[Tensor, "n c n c"], targets: Float[Tensor, "n c"], *, center: bool = True
) -> Float[Tensor, ""]:
    r"""Tangent alignment: whether a gradient step on this layer moves the outputs along the labels.

    .. math:: A = \frac{\tilde y^\top K \tilde y}{\|C_m K C_m\|_F\,\|\tilde y\|^2},
              \qquad C_m = I - \tfrac1m 11^\top, \; \tilde y = C_m\,\mathrm{vec}(Y), \; m = nc

    Centring runs over all m pairs of example and output, not over examples. For one output both are
    the same, and this is the centred kernel alignment with :math:`YY^\top`.

    Range: [0, 1] for positive semi-definite kernels, [-1, 1] for symmetric ones.
    Invariant to: positive scaling of the kernel, scaling of the targets, a constant added to every
    entry of either, a common permutation of the examples.
    Undefined (``nan``): kernel or targets are zero after centring, up to rounding.

    Args:
        kernel: :math:`K`, the tangent kernel of one layer or of the whole network.
        targets: :math:`Y`, e.g. one-hot labels.
        center: ``False`` takes kernel and targets as they are (:math:`C_m = I`).

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, or either is not finite.

    Examples:
        >>> y = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> kernel = torch.einsum("xi,yj->xiyj", y, y)
        >>> round(tangent_alignment(kernel, y).item(), 4)
        1.0

    References:
        [lou2022], Eq. (7).
        Differs from paper: the range needs positive semi-definite kernels.
    """
    require_kernel_and_targets(kernel, targets=targets)
    return _alignment(kernel_and_label(kernel, targets, center=center))


@checks_classes
def permuted_alignments(
    kernel: Float[Tensor, "n c n c"], targets: Float[Tensor, "b n c"]
) -> Float[Tensor, " b"]:
    """Tangent alignment with every permutation of some targets: the kernel is centred once.

    Args:
        kernel: tangent kernel of one layer.
        targets: the same rows in another order for every permutation.

    Returns:
        One number for every permutation.

    Raises:
        ShapeError: If the shapes do not match.

    Examples:
        >>> kernel = torch.diag(torch.tensor([2.0, 2.0, 1.0])).reshape(3, 1, 3, 1)
        >>> y = torch.tensor([[1.0], [-1.0], [0.0]])
        >>> permuted_alignments(kernel, torch.stack([y, y.roll(1, 0)])).round(decimals=2).tolist()
        [0.83, 0.62]

    References:
        [lou2022], Eq. (7).
    """
    require_kernel_shape(kernel)
    require_axes(3, targets=targets)
    require_nonempty(targets=targets)
    if targets.shape[1:] != kernel.shape[:2]:
        raise ShapeError(
            f"targets: expected shape (permutations, {kernel.shape[0]}, {kernel.shape[1]}), one "
            f"number per example and output of the kernel, got {tuple(targets.shape)}"
        )
    pair = kernel_and_label(kernel, targets[0], center=True)
    Y = center_all(double(targets)).flatten(1)
    energies = (Y * (Y @ pair.kernel)).sum(1)
    return alignment_from_norms(energies, matrix_norm(pair.kernel), Y.square().sum(1), pair.defined)


def _alignment(pair: KernelAndLabel) -> Tensor:
    return alignment_from_norms(pair.label_energy, matrix_norm(pair.kernel), 1.0, pair.defined)


@prints_shapes
@dataclass(frozen=True)
class AlignmentDecomposition:
    """Tangent alignment and its two factors: ``alignment = correlation / sqrt(stable_rank)``.

    Args:
        alignment: tangent alignment.
        correlation: share of the labels in the leading directions, weighted by eigenvalue.
        stable_rank: effective number of directions of the centred kernel.
    """

    alignment: Float[Tensor, ""]
    correlation: Float[Tensor, ""]
    stable_rank: Float[Tensor, ""]


@array_function
def alignment_decomposition(
    kernel: Float[Tensor, "n c n c"], targets: Float[Tensor, "n c"], *, center: bool = True
) -> AlignmentDecomposition:
    r"""Tangent alignment split into a correlation with the labels and a stable rank.

    .. math:: A = \mathrm{corr} / \sqrt{R}, \qquad R = \|C_m K C_m\|_F^2 / \lambda_1^2, \qquad
              \mathrm{corr} = \frac{\hat y^\top C_m K C_m \hat y}{\lambda_1}
              = \sum_i \frac{\lambda_i}{\lambda_1} \langle u_i, \hat y\rangle^2

    with :math:`(\lambda_i, u_i)` of :math:`C_m K C_m` and the unit vector :math:`\hat y` of the
    centred targets. If the kernel is not positive semi-definite, :math:`\lambda_1` is the largest
    absolute eigenvalue. The correlation is 1 if the labels lie in the top eigenspace.

    Range: alignment and correlation in [0, 1], stable rank in [1, rank], for positive semi-definite
    kernels.
    Invariant to: as :func:`tangent_alignment`.
    Undefined (``nan``): kernel or targets are zero after centring, up to rounding.

    Args:
        kernel: :math:`K`.
        targets: :math:`Y`, e.g. one-hot labels.
        center: ``False`` takes kernel and targets as they are.

    Returns:
        The alignment and its two factors, correlation and stable rank.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, or either is not finite.

    Examples:
        >>> y = torch.tensor([[1.0], [-1.0], [0.0]])
        >>> parts = alignment_decomposition(torch.eye(3).reshape(3, 1, 3, 1), y)
        >>> round(parts.alignment.item(), 4), round(parts.stable_rank.item(), 4)
        (0.7071, 2.0)

    References:
        [lou2022], Appendix G.
    """
    require_kernel_and_targets(kernel, targets=targets)
    return _decomposition(kernel_and_label(kernel, targets, center=center))


def _decomposition(pair: KernelAndLabel) -> AlignmentDecomposition:
    K = pair.kernel
    spectral = vector_norm(K @ leading_vector(K.detach(), symmetric=True))
    frobenius, energy = matrix_norm(K), pair.label_energy
    return AlignmentDecomposition(
        alignment=_alignment(pair),
        correlation=ratio_or_nan(energy, spectral, pair.defined),
        stable_rank=ratio_or_nan(frobenius, spectral, pair.kernel_defined).square(),
    )
