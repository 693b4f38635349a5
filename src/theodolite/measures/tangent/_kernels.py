"""Tangent kernels and labels over the stacked index of examples and outputs, centred alike."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.linalg import vector_norm

from theodolite.checks import (
    require_axes,
    require_finite,
    require_labels,
    require_nonempty,
    require_symmetric,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    array_function,
    center_all,
    center_columns,
    double,
    double_center,
    eps_of,
    prints_shapes,
    symmetric_eigen,
    target_columns,
    top_eigen_operator,
    unit_peak,
    vanishes_when_centered,
)

_DENSE_BELOW = 512  # a full eigh is faster than ARPACK's start-up below this size
Centering = Literal["stacked", "examples", "none"]


@array_function
def stacked_kernel(
    kernel: Float[Tensor, "n c n c"], *, center: bool = True
) -> Float[Tensor, "m m"]:
    r"""A tangent kernel as a matrix over the stacked index, centred unless told otherwise.

    .. math:: C_m K C_m, \qquad C_m = I - \tfrac1m 11^\top, \quad m = nc

    Entry :math:`(x, i)` sits at :math:`xc + i`. Feed the result to :func:`stable_rank`,
    :func:`effective_rank` or :func:`normalized_spectrum`.

    Args:
        kernel: :math:`K`, indexed by example and output on both sides.
        center: whether to centre over all :math:`m` entries.

    Raises:
        ShapeError: If the kernel is not of shape (n, c, n, c).
        DomainError: If it is not symmetric or not finite.

    Example:
        >>> stacked_kernel(torch.eye(2).reshape(2, 1, 2, 1)).tolist()
        [[0.5, -0.5], [-0.5, 0.5]]

    References:
        [lou2022], Section 2.
    """
    require_kernel(kernel)
    matrix = double(stacked(kernel))
    return double_center(matrix) if center else matrix


@array_function
def feature_kernel(tangent_features: Float[Tensor, "n c p"]) -> Float[Tensor, "n c n c"]:
    r"""Tangent kernel of explicit tangent features, :math:`K = \Psi^\top\Psi`.

    Args:
        tangent_features: :math:`\Psi`; entry ``[x, i]`` is the gradient of output i at example x.

    Raises:
        ShapeError: If the features have not three axes, or one of length 0.
        DomainError: If they are not finite.

    Example:
        >>> feature_kernel(torch.tensor([[[3.0, 4.0]]])).item()
        25.0

    References:
        [lou2022], Eq. (2).
    """
    require_tangent_features(tangent_features)
    features = double(tangent_features)
    return torch.einsum("xip,yjp->xiyj", features, features)


def stacked(kernel: Float[Tensor, "n c n c"]) -> Float[Tensor, "m m"]:
    """The kernel over the stacked index, nothing else changed."""
    size = kernel.shape[0] * kernel.shape[1]
    return kernel.reshape(size, size)


def require_kernel(kernel: Tensor) -> None:
    """A symmetric, finite kernel with axes example, output, example, output."""
    require_axes(4, kernel=kernel)
    require_nonempty(kernel=kernel)
    if kernel.shape[:2] != kernel.shape[2:]:
        raise ShapeError(
            f"kernel: expected shape (n, c, n, c), got {tuple(kernel.shape)}; the axes are "
            "example, output, example, output (a matrix over stacked pairs needs a reshape)"
        )
    require_symmetric(kernel=stacked(kernel))


def require_kernel_and_targets(kernel: Tensor, **targets: Tensor) -> None:
    """A kernel, and arrays with one number per example and output of it."""
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


def require_tangent_features(tangent_features: Tensor) -> None:
    """Finite gradients with axes example, output, parameter."""
    require_axes(3, tangent_features=tangent_features)
    require_nonempty(tangent_features=tangent_features)
    require_finite(tangent_features=tangent_features)


@array_function
def centered_labels(
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"], num_classes: int | None = None
) -> Float[Tensor, "n k"]:
    r"""Targets minus their mean over all examples and outputs.

    .. math:: \tilde Y = Y - \tfrac1m \textstyle\sum_{x,i} Y_{xi}, \qquad m = nk

    For class labels that is :math:`Y - 1/k` whatever the balance of the classes, with
    :math:`\|\tilde Y\|^2 = n(k-1)/k`. Constant targets (one class in all) give zeros, for which
    every alignment is undefined.

    Args:
        labels: class labels, one-hot encoded here, or targets :math:`Y` with one column per output.
        num_classes: :math:`k`, for class labels; by default one more than the largest of them.

    Raises:
        DomainError: If a label lies outside ``0 .. num_classes - 1``, or targets are not finite.
        ShapeError: If there are no examples.

    Example:
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

    The singular vector is held fixed and the value is its length under the matrix: errors of the
    vector enter squared, and the gradient is finite at ties, where any of the vectors serves.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
    return vector_norm(tall @ leading_vector(tall.detach()))


def leading_vector(matrix: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Unit right singular vector of the largest singular value."""
    size = matrix.shape[1]
    if size <= _DENSE_BELOW or not matrix.any():
        return symmetric_eigen(matrix.mT @ matrix).vectors[:, 0]
    pairs = top_eigen_operator(
        lambda vector: matrix.mT @ (matrix @ vector), size, 1, device=matrix.device
    )
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
        """Of the unit label vector under the kernel."""
        return self.label @ self.kernel @ self.label


def kernel_and_label(kernel: Tensor, targets: Tensor, centering: Centering) -> KernelAndLabel:
    """Rescale, centre explicitly in float64, and note whether rounding is all that is left."""
    K = unit_peak(double(stacked(kernel)))
    Y = unit_peak(double(targets))
    Kc, Yc = _centered_kernel(K, kernel, centering), _centered_targets(Y, centering)
    return KernelAndLabel(
        kernel=Kc,
        label=unit_vector(Yc.flatten()),
        kernel_defined=~vanishes_when_centered(Kc, K, eps_of(kernel)),
        label_defined=~vanishes_when_centered(Yc, Y, eps_of(targets)),
    )


def unit_vector(vector: Tensor) -> Tensor:
    """The vector over its length; zero stays zero, with gradient zero."""
    length = vector_norm(vector)
    return vector / torch.where(length > 0, length, torch.ones_like(length))


def _centered_kernel(matrix: Tensor, kernel: Tensor, centering: Centering) -> Tensor:
    if centering == "stacked":
        return double_center(matrix)
    if centering == "none":
        return matrix
    rows = matrix.reshape(kernel.shape)
    rows = rows - rows.mean(2, keepdim=True)
    return stacked(rows - rows.mean(0, keepdim=True))


def _centered_targets(targets: Tensor, centering: Centering) -> Tensor:
    if centering == "stacked":
        return center_all(targets)
    return center_columns(targets) if centering == "examples" else targets
