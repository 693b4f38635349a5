"""Similarity of two kernels that are given as matrices: KTA, CKA and HSIC."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Integer, Shaped
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_finite,
    require_labels,
    require_nonempty,
    require_same_shape,
    require_symmetric,
    symmetry_tolerance,
)
from theodolite.errors import DomainError, NotFiniteError, ShapeError
from theodolite.linalg import (
    KernelProducts,
    array_function,
    centered_products,
    checks_classes,
    debiased_product,
    double,
    double_center,
    eps_of,
    gram_cosine,
    prints_shapes,
    ratio_or_nan,
    safe_sqrt,
    target_columns,
    unit_peak,
    vanishes_when_centered,
)

_EPS64 = torch.finfo(torch.float64).eps


def require_grams(instead: str, **grams: Tensor) -> None:
    """Check that each is a symmetric matrix; the error says what to do with features instead."""
    try:
        require_symmetric(**grams)
    except NotFiniteError:
        raise
    except (DomainError, ShapeError) as error:
        raise type(error)(f"{error}; if these are features, {instead}") from None


def require_no_gram(instead: str, **features: Tensor) -> None:
    """Check that no features look like a Gram matrix: square, symmetric, within Cauchy-Schwarz.

    Diagonal matrices pass as one-hot features, and constant ones as features without information.
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


def target_matrix(targets: Tensor, num_classes: int | None = None) -> Float[Tensor, "n c"]:
    """One-hot rows for integer labels, the matrix itself otherwise, in float64."""
    if targets.ndim == 1:
        if targets.is_floating_point():
            raise ShapeError(
                "targets: expected integer labels (n,) or a matrix (n, c), got a float vector; "
                "pass unsqueeze(-1) for one scalar target, .long() for labels"
            )
        classes = require_labels(targets, num_classes, "targets")
        return target_columns(targets, classes)
    require_axes(2, targets=targets)
    require_nonempty(targets=targets)
    require_finite(targets=targets)
    return double(targets)


def safe_scale(values: Tensor) -> float:
    """The largest absolute entry if its fourth power would overflow or vanish, else 1."""
    low, high = torch.aminmax(values.detach())
    peak = max(abs(float(low)), abs(float(high)))
    return 1.0 if peak == 0 or 1e-30 < peak < 1e30 else peak


@array_function
def gram(
    features: Float[Tensor, "n d"], other: Float[Tensor, "m d"] | None = None
) -> Float[Tensor, "n m"]:
    r"""Inner products of all pairs of feature rows: the kernel of a layer.

    .. math:: K(x, x') = \psi(x)^\top \psi(x'), \qquad K = F F^\top

    Sums are in float64. The rank is at most ``min(n, d)``, so a linear probe of the layer can
    express only targets in that many dimensions.

    Args:
        features: :math:`F`, one row :math:`\psi(x)` per example; maps of a convolution flattened or
            pooled.
        other: rows of a second set for the rectangular cross kernel.

    Returns:
        A matrix with one row per example and one column per example of the other set.

    Raises:
        ShapeError: If an argument is not a matrix, or the two sets differ in width.
        DomainError: If an entry is not finite.

    Examples:
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
    r"""Kernel of the targets; for class labels 1 if two examples share a class, otherwise 0.

    .. math:: K_{\bar f}(x, x') = \bar f(x)^\top \bar f(x')

    Args:
        targets: integer class labels, or any real matrix with one target vector
            :math:`\bar f(x)` per row.
        num_classes: for labels, to check their range.

    Returns:
        A matrix with one row and one column per example.

    Raises:
        ShapeError: If the targets are neither labels nor a matrix.
        DomainError: If a label is out of range or an entry is not finite.

    Examples:
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
def kta(gram_a: Float[Tensor, "n n"], gram_b: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    r"""Kernel-target alignment: cosine of the angle between two Gram matrices.

    .. math:: A(K, L) = \frac{\mathrm{tr}(KL)}{\sqrt{\mathrm{tr}(KK)\,\mathrm{tr}(LL)}}

    A large mean of the features dominates this number, whatever the labels are. It does not change
    :func:`cka`.

    Range: [-1, 1]; [0, 1] if both are positive semi-definite.
    Invariant to: swapping arguments; positive scaling; a joint permutation of examples.
    Undefined (``nan``): either matrix is zero.

    Args:
        gram_a: :math:`K`, e.g. the kernel of a layer or a tangent kernel.
        gram_b: :math:`L`, e.g. ``target_gram(labels)``, of the same examples in the same order.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If one is not symmetric or not finite.

    Examples:
        >>> a = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
        >>> round(kta(a, torch.diag(torch.tensor([1.0, 4.0]))).item(), 4)
        0.8767

    References:
        [canatar2022], Eq. (4) and the display after it; [cristianini2001], Def. 1.

    Differs from paper: Eq. (4) read literally, with norms of operator products, is the alignment
        of the squared kernels; this is the finite form given below it.
    """
    require_grams("call linear_kta", gram_a=gram_a, gram_b=gram_b)
    require_same_shape(gram_a=gram_a, gram_b=gram_b)
    return gram_cosine(double(gram_a), double(gram_b))


@array_function
def hsic(
    gram_a: Float[Tensor, "n n"], gram_b: Float[Tensor, "n n"], debiased: bool = True
) -> Float[Tensor, ""]:
    r"""Hilbert-Schmidt independence criterion of two Gram matrices.

    .. math:: \mathrm{HSIC}_0 = \tfrac1{n^2}\,\mathrm{tr}(HKH\,HLH), \qquad
              \mathrm{HSIC}_1 = \tfrac1{n(n-3)}\Big[\mathrm{tr}(\tilde K\tilde L)
              + \tfrac{1^\top\tilde K1\;1^\top\tilde L1}{(n-1)(n-2)}
              - \tfrac{2}{n-2}1^\top\tilde K\tilde L1\Big]

    with :math:`H = I - 11^\top/n`, which centres, and :math:`\tilde K`, the matrix without its
    diagonal. :math:`\mathrm{HSIC}_1` (the default) is the mean over all quadruples of distinct
    examples. It is an unbiased estimate of the population value.

    Range: any number; biased: at least 0 if both are positive semi-definite.
    Invariant to: swapping arguments; adding :math:`v1^\top + 1v^\top`; a joint permutation.
    Undefined (``nan``): debiased with fewer than four examples.

    Args:
        gram_a: :math:`K`.
        gram_b: :math:`L`, of the same examples in the same order.
        debiased: use the unbiased estimator; False uses the plug-in form.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If one is not symmetric or not finite.

    Examples:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> round(hsic(x @ x.T, x @ x.T, debiased=False).item(), 4)  # squared variance
        0.4444

    References:
        [song2012], Eq. (4) and (5).

    Differs from paper: the plug-in form divides by n², not (n - 1)².
    """
    require_grams("call linear_hsic", gram_a=gram_a, gram_b=gram_b)
    require_same_shape(gram_a=gram_a, gram_b=gram_b)
    K, L = double_center(double(gram_a)), double_center(double(gram_b))
    return centered_products(K, L).hsic(debiased=debiased)[0, 1]


@array_function
def cka(
    gram_a: Float[Tensor, "n n"], gram_b: Float[Tensor, "n n"], debiased: bool = True
) -> Float[Tensor, ""]:
    r"""Centred kernel alignment: cosine of the angle between two centred Gram matrices.

    .. math:: \mathrm{CKA}(K, L) =
              \frac{\mathrm{HSIC}(K, L)}{\sqrt{\mathrm{HSIC}(K, K)\,\mathrm{HSIC}(L, L)}}

    The biased estimator is the paper's: :func:`kta` of the centred matrices :math:`HKH` and
    :math:`HLH`, :math:`H = I - 11^\top/n`. For independent features it is far from zero if their
    width is comparable to ``n``. The debiased estimator (the default) uses the unbiased estimate of
    every HSIC and stays near zero.

    Range: [-1, 1]; biased: [0, 1] if both are positive semi-definite.
    Invariant to: swapping arguments; positive scaling; adding :math:`v1^\top + 1v^\top`; a joint
        permutation of examples.
    Undefined (``nan``): either matrix is zero after centring, up to rounding; debiased: fewer than
        four examples, or all pairs of examples equally similar.

    Args:
        gram_a: :math:`K`, e.g. the kernel of a layer or a tangent kernel.
        gram_b: :math:`L`, e.g. ``target_gram(labels)``, of the same examples in the same order.
        debiased: use the debiased estimator; False uses the paper's plug-in form.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If one is not symmetric or not finite.

    Examples:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> y = torch.tensor([[1.0], [3.0], [2.0]])
        >>> round(cka(x @ x.T, y @ y.T, debiased=False).item(), 4)  # squared correlation
        0.25

    References:
        [canatar2022], Sec. III; [cortes2012], Def. 4; [kornblith2019], Eq. (3);
        [song2012], Eq. (5).

    Differs from paper: debiased by default.
    """
    require_grams("call linear_cka", gram_a=gram_a, gram_b=gram_b)
    require_same_shape(gram_a=gram_a, gram_b=gram_b)
    a, b = (CenteredGrams.of(gram.unsqueeze(0)) for gram in (gram_a, gram_b))
    return centered_cka(a, b, debiased=debiased)[0, 0]


@prints_shapes
@dataclass(frozen=True)
class CenteredGrams:
    """Gram matrices of the same examples, centred once for all comparisons.

    Args:
        grams: each kernel :math:`K` centred, in float64, divided by the largest entry of :math:`K`.
        defined: whether each kernel is more than rounding after centring.
        eps: rounding of the original dtype of each kernel, or of its features.
    """

    grams: Float[Tensor, "m n n"]
    defined: Bool[Tensor, " m"]
    eps: tuple[float, ...]

    @classmethod
    @checks_classes
    def of(
        cls, grams: Float[Tensor, "m n n"], eps: Sequence[float] | None = None
    ) -> "CenteredGrams":
        """Centre symmetric matrices; ``eps`` is that of their own dtype by default."""
        require_axes(3, grams=grams)
        rounding = (eps_of(grams),) * len(grams) if eps is None else tuple(eps)
        raw = unit_peak(double(grams))
        centered = double_center(raw)
        noise = torch.tensor(rounding, dtype=raw.dtype).to(raw.device)
        return cls(centered, ~vanishes_when_centered(centered, raw, noise, (1, 2)), rounding)

    def take(self, indices: Tensor) -> "CenteredGrams":
        """Some of the examples, centred again."""
        return CenteredGrams.of(self.grams[:, indices][:, :, indices], self.eps)


@checks_classes
def centered_cka(
    first: CenteredGrams, second: CenteredGrams, *, debiased: bool = True
) -> Float[Tensor, "m k"]:
    """CKA of every kernel of one set with every kernel of another.

    Args:
        first: ``m`` kernels.
        second: ``k`` kernels of the same examples in the same order.
        debiased: the estimator, as in :func:`cka`.

    Returns:
        A table with one row per kernel of the first set, one column per kernel of the
        second.

    Raises:
        ShapeError: If the two sets have different numbers of examples.

    Examples:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> y = torch.tensor([[1.0], [3.0], [2.0]])
        >>> a, b = (CenteredGrams.of((f @ f.T).unsqueeze(0)) for f in (x, y))
        >>> round(centered_cka(a, b, debiased=False).item(), 4)
        0.25

    References:
        [kornblith2019], Eq. (3); [song2012], Eq. (5).
    """
    if first.grams.shape[1:] != second.grams.shape[1:]:
        raise ShapeError(
            "expected kernels of the same examples, but first has "
            f"{first.grams.shape[1]} examples and second has {second.grams.shape[1]}"
        )
    a, b = first.grams.flatten(1), second.grams.flatten(1)
    upper, lower = torch.cat([a @ a.mT, a @ b.mT], 1), torch.cat([b @ a.mT, b @ b.mT], 1)
    diagonals = [side.grams.diagonal(dim1=1, dim2=2) for side in (first, second)]
    products = KernelProducts.of(torch.cat([upper, lower]), torch.cat(diagonals))
    defined = torch.cat([first.defined, second.defined])
    eps, size = max(*first.eps, *second.eps), len(a)
    return cka_from_products(products, debiased=debiased, eps=eps, defined=defined)[:size, size:]


@checks_classes
def cka_from_products(
    products: KernelProducts,
    *,
    debiased: bool = True,
    eps: float = _EPS64,
    defined: Bool[Tensor, " m"] | bool = True,
) -> Float[Tensor, "m m"]:
    r"""CKA of every pair of kernels, from the inner products of the centred kernels.

    .. math:: \frac{\mathrm{HSIC}(K_a, K_b)}
              {\sqrt{\mathrm{HSIC}(K_a, K_a)\,\mathrm{HSIC}(K_b, K_b)}}

    The debiased :math:`\mathrm{HSIC}(K_a, K_a)`, times :math:`n (n - 3)`, is the squared norm of
    the kernel's part outside :math:`v1^\top + 1v^\top + \mathrm{diag}`. If it is only rounding, it
    counts as zero and the ratio is undefined. The limit is a share of the squared norm of the
    centred kernel: the larger of ``(8 eps)²`` (rounding of the input) and ``n eps64`` (rounding of
    the computation).

    Args:
        products: products of the centred kernels, e.g. from streamed sums.
        debiased: the estimator, as in :func:`cka`.
        eps: rounding of the original dtype of the kernels.
        defined: whether each kernel is more than a constant.

    Returns:
        A symmetric table with one row and one column per kernel.

    Examples:
        >>> products = torch.tensor([[1.0, 2.0], [2.0, 16.0]]).double()
        >>> parts = KernelProducts.of(products, torch.zeros(2, 3).double())
        >>> cka_from_products(parts, debiased=False)[0, 1].item()
        0.5

    References:
        [kornblith2019], Eq. (3); [song2012], Eq. (5).
    """
    require_between(0.0, 1.0, eps=eps)
    totals = products.totals(debiased=debiased)
    own, norms = totals.diagonal(), products.products.diagonal()
    valid = _resolved(own, norms, products.count, eps, debiased) & defined
    pairs = valid.unsqueeze(0) & valid.unsqueeze(1)
    return _cosine(totals, own.unsqueeze(0), own.unsqueeze(1), pairs)


@checks_classes
def permuted_cka(
    centered: Float[Tensor, "*layers n n"],
    targets: Float[Tensor, "b n c"],
    *,
    eps: float | Sequence[float] = _EPS64,
) -> Float[Tensor, "*layers b"]:
    """Debiased CKA of centred kernels with every permutation of some targets, in one product.

    Args:
        centered: one of the ``grams`` of :class:`CenteredGrams`, or all of them.
        targets: the same rows in another order for every permutation.
        eps: rounding of the original dtype of the kernel, or of each kernel.

    Returns:
        One number for every layer and permutation.

    Raises:
        ShapeError: If the shapes do not match.

    Examples:
        >>> x = torch.tensor([[0.0], [1.0], [2.0], [5.0], [6.0], [7.0]])
        >>> kernel = CenteredGrams.of((x @ x.T).unsqueeze(0)).grams[0]
        >>> labels = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1]])
        >>> permuted_cka(kernel, torch.eye(2).double()[labels]).round(decimals=2).tolist()
        [0.93, -0.13]

    References:
        [kornblith2019], Eq. (3); [song2012], Eq. (5).
    """
    require_axes(3, targets=targets)
    require_nonempty(targets=targets)
    for value in eps if isinstance(eps, Sequence) else [eps]:
        require_between(0.0, 1.0, eps=value)
    count, n, c = targets.shape
    if centered.shape[-2:] != (n, n):
        raise ShapeError(
            f"centered: expected kernels between the {n} examples of the targets, shape "
            f"(..., {n}, {n}), got {tuple(centered.shape)}; pass the grams of CenteredGrams"
        )
    K, d = centered, centered.diagonal(dim1=-2, dim2=-1)
    Y = targets - targets.mean(1, keepdim=True)
    flat = Y.permute(1, 0, 2).reshape(n, count * c)
    crossed = (flat * (K @ flat)).reshape(*K.shape[:-1], count, c).sum((-3, -1))
    squares = Y.square().sum(2)  # diagonals of the permuted target kernels
    size, trace = K.new_tensor(float(n)), d.sum(-1)
    norm, target_norm = K.square().sum((-2, -1)), (Y[:1].mT @ Y[:1]).square().sum()
    own = debiased_product(norm, d.square().sum(-1), trace.square(), size)
    own_target = debiased_product(
        target_norm, squares[:1].square().sum(), squares[:1].sum().square(), size
    )
    traces = trace.unsqueeze(-1) * squares.sum(1)
    total = debiased_product(crossed, d @ squares.mT, traces, size)
    rounding = torch.as_tensor(eps, dtype=K.dtype).to(K.device)
    defined = _resolved(own, norm, size, rounding)
    defined = defined & _resolved(own_target, target_norm, size, rounding)
    return _cosine(total, own.unsqueeze(-1), own_target, defined.unsqueeze(-1))


def _resolved(
    own: Tensor, norm: Tensor, count: Tensor, eps: float | Tensor, debiased: bool = True
) -> Tensor:
    """Whether the self term of a kernel is more than rounding of the centred kernel's norm."""
    noise = torch.clamp(count * _EPS64, min=(8 * eps) ** 2)
    return own > (noise * norm.detach() if debiased else 0)


def _cosine(total: Tensor, own_a: Tensor, own_b: Tensor, defined: Tensor) -> Tensor:
    roots = [safe_sqrt(torch.where(own > 0, own, torch.ones_like(own))) for own in (own_a, own_b)]
    return ratio_or_nan(total, roots[0] * roots[1], defined)
