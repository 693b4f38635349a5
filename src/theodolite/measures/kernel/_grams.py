"""Kernels as matrices: of features, of targets, centred, and the optimal operator-valued one."""

import torch
from jaxtyping import Float, Integer, Shaped
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_finite,
    require_labels,
    require_nonempty,
    require_symmetric,
    symmetry_tolerance,
)
from theodolite.errors import DomainError, NotFiniteError, ShapeError
from theodolite.linalg import array_function, double, double_center, target_columns


def require_grams(instead: str, **grams: Tensor) -> None:
    """Each is a symmetric matrix; the message of any other says what to do with features."""
    try:
        require_symmetric(**grams)
    except NotFiniteError:
        raise
    except (DomainError, ShapeError) as error:
        raise type(error)(f"{error}; if these are features, {instead}") from None


def require_no_gram(instead: str, **features: Tensor) -> None:
    """None of the features is a matrix of inner products: square, symmetric, by Cauchy-Schwarz.

    Diagonal matrices pass, as one-hot features, and so do constant ones, as features that say
    nothing.
    """
    for name, values in features.items():
        n = len(values)
        if n < 3 or values.shape[1] != n:
            continue
        K = values.detach()
        peak, own = K.abs().max(), K.diagonal()
        if bool((K[0, 0] == K).all()) or bool((own.diag() == K).all()) or bool((own < 0).any()):
            continue
        slack = symmetry_tolerance(K.dtype) * peak
        bound = own.sqrt().outer(own.sqrt()) + slack
        if bool((K - K.T).abs().max() <= slack) and bool((K.abs() <= bound).all()):
            raise DomainError(
                f"{name}: expected features, one row per example, got what looks like a Gram "
                f"matrix; call {instead}, or, if its rows are features, append a column of zeros"
            )


def target_matrix(
    targets: Tensor, num_classes: int | None = None, name: str = "targets"
) -> Float[Tensor, "n c"]:
    """One-hot rows for integer labels, the matrix itself otherwise, in float64."""
    if targets.ndim == 1:
        if targets.is_floating_point():
            raise ShapeError(
                f"{name}: expected integer labels (n,) or a matrix (n, c), got a float vector; "
                "pass unsqueeze(-1) for one scalar target, .long() for labels"
            )
        classes = require_labels(targets, num_classes, name)
        return target_columns(targets, classes)
    require_axes(2, **{name: targets})
    require_nonempty(**{name: targets})
    require_finite(**{name: targets})
    return double(targets)


def safe_scale(values: Tensor) -> float:
    """The largest absolute entry where fourth powers of it would overflow or vanish, else 1."""
    low, high = torch.aminmax(values.detach())
    peak = max(abs(float(low)), abs(float(high)))
    return 1.0 if peak == 0 or 1e-30 < peak < 1e30 else peak


@array_function
def gram(
    features: Float[Tensor, "n d"], other: Float[Tensor, "m d"] | None = None
) -> Float[Tensor, "n m"]:
    r"""Inner products of all pairs of feature rows: the kernel of a layer.

    .. math:: K(x, x') = \psi(x)^\top \psi(x'), \qquad K = F F^\top

    Accumulated in float64. Rank at most ``min(n, d)``: linear readout of the layer can express only
    targets in that many dimensions.

    Args:
        features: :math:`F`, one row per example; maps of a convolution flattened or pooled.
        other: rows of a second set for the rectangular cross kernel.

    Raises:
        ShapeError: If a matrix is expected, or the two sets differ in width.
        DomainError: If an entry is not finite.

    Example:
        >>> gram(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        tensor([[5., 3.],
                [3., 9.]])

    References:
        [canatar2022], Sec. II.
    """
    second = features if other is None else other
    for name, matrix in (("features", features), ("other", second)):
        require_axes(2, **{name: matrix})
        require_nonempty(**{name: matrix})
        require_finite(**{name: matrix})
    if features.shape[1] != second.shape[1]:
        raise ShapeError(
            f"expected equal numbers of columns, but features has {features.shape[1]} and other "
            f"has {second.shape[1]}; both must come from the same layer"
        )
    return double(features) @ double(second).mT


@array_function
def target_gram(
    targets: Integer[Tensor, " n"] | Shaped[Tensor, "n c"], num_classes: int | None = None
) -> Float[Tensor, "n n"]:
    r"""Kernel of the target function: for class labels, who shares a class with whom.

    .. math:: K_{\bar f}(x, x') = \bar f(x)^\top \bar f(x')

    Args:
        targets: integer class labels, or any real matrix of target vectors.
        num_classes: for labels, to check their range.

    Raises:
        ShapeError: If neither labels nor a matrix came.
        DomainError: If a label is out of range or an entry is not finite.

    Example:
        >>> target_gram(torch.tensor([0, 1, 0])).long()
        tensor([[1, 0, 1],
                [0, 1, 0],
                [1, 0, 1]])

    References:
        [canatar2022], Sec. III.
    """
    Y = target_matrix(targets, num_classes)
    return Y @ Y.mT


@array_function
def center_gram(gram: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    r"""Gram matrix of the centred features, :math:`HKH` with :math:`H = I - 11^\top/n`.

    .. math:: (HKH)_{\mu\nu} = K_{\mu\nu} - \bar K_{\mu\cdot} - \bar K_{\cdot\nu} + \bar K

    Where features are at hand, centre those: in float32 nothing is left of this difference once
    the mean exceeds the spread 3,000 times.

    Args:
        gram: :math:`K`, symmetric.

    Raises:
        ShapeError: If the matrix is not square.
        DomainError: If it is not symmetric or not finite.

    Example:
        >>> center_gram(torch.eye(2))
        tensor([[ 0.5000, -0.5000],
                [-0.5000,  0.5000]])

    References:
        [cortes2012], Eq. (1).
    """
    require_grams("pass gram(features)", gram=gram)
    return double_center(double(gram))


@array_function
def optimal_kernel(
    targets: Integer[Tensor, " n"] | Shaped[Tensor, "n c"], num_classes: int | None = None
) -> Float[Tensor, "n c n c"]:
    r"""Operator-valued kernel of rank one from which one example teaches all outputs.

    .. math:: K^{opt}_{ij}(x, x') = \bar f_i(x)\,\bar f_j(x')

    Its trace over classes is :func:`target_gram`. Index order: example, class, example, class.

    Args:
        targets: integer class labels, or any real matrix of target vectors.
        num_classes: for labels, the number of classes when some are absent.

    Raises:
        ShapeError: If neither labels nor a matrix came.
        DomainError: If a label is out of range or an entry is not finite.

    Example:
        >>> optimal_kernel(torch.tensor([[1.0], [-2.0]])).reshape(2, 2)
        tensor([[ 1., -2.],
                [-2.,  4.]])

    References:
        [canatar2022], Sec. III and VI.

    Differs from paper: Sec. III omits the prime on the second argument; this is Sec. VI's form.
    """
    Y = target_matrix(targets, num_classes)
    return torch.einsum("mi,nj->minj", Y, Y)
