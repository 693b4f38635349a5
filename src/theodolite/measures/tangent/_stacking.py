"""Kernels over (example, output) pairs as matrices over the stacked index, sample-major."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_finite, require_nonempty, require_symmetric
from theodolite.errors import ShapeError
from theodolite.linalg import array_function, double, double_center

__all__ = [
    "feature_kernel",
    "require_kernel",
    "require_kernel_and_targets",
    "require_tangent_features",
    "stacked",
    "stacked_kernel",
]


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
