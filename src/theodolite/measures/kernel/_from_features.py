"""CKA, KTA and HSIC of linear kernels straight from features or labels, of two or many layers.

There are two routes. Blocks of features cost ``n d_a d_b`` for every pair. Tiles of the Gram
matrices cost ``n² d / 2`` for every kernel, and then almost nothing for every pair. Neither forms
an n x n matrix, and memory beyond the input is bounded for any n.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_finite,
    require_kind,
    require_labels,
    require_nonempty,
    require_same_length,
)
from theodolite.errors import ShapeError
from theodolite.linalg import (
    KernelProducts,
    array_function,
    eps_of,
    prints_shapes,
    ratio_or_nan,
    row_chunks,
    safe_sqrt,
)
from theodolite.measures.kernel.alignment import cka_from_products, require_no_gram, safe_scale

_TILE_BYTES = 256 * 2**20  # all kernels' tiles of one position together
_STRIP_BYTES = 64 * 2**20  # float64 copy of the columns that one product of a tile reads
_BLOCK_BYTES = 512 * 2**20  # products F_a^T F_b that are summed up during one pass over the rows

_ALIGNMENT = 128  # GPU matrix kernels are built for multiples of it

Estimator = Literal["debiased", "biased"]
Pairs = Sequence[tuple[int, int]]
Products = tuple[Float[Tensor, "m m"], Float[Tensor, "m n"]]
_FEW_CLASSES = 128  # up to here a product beats sums by index, which contend for the same rows


@prints_shapes
@dataclass(frozen=True)
class CenteredRows:
    """Features that are centred and scaled on the fly: ``(rows - mean) / scale``, in float64."""

    rows: Float[Tensor, "n d"]  # as given
    mean: Float[Tensor, " d"]  # zero without centring
    scale: float

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], *, center: bool = True) -> "CenteredRows":
        """Features with their mean and scale; nothing is copied."""
        rows = features.cpu() if features.device.type == "mps" else features  # no float64 there
        mean = rows.mean(0, dtype=torch.float64)
        return cls(rows, mean if center else torch.zeros_like(mean), safe_scale(rows))

    def prepare(self, rows: Tensor, columns: slice = slice(None)) -> Tensor:
        """Some of the rows (of some columns), centred and scaled."""
        centered = rows - self.mean[columns]  # promotes to float64 in the same pass
        return centered if self.scale == 1 else centered / self.scale

    def tile(self, top: slice, left: slice) -> Float[Tensor, "b c"]:
        """A tile of the Gram matrix, summed over strips of columns."""
        width = max(1, _STRIP_BYTES // (8 * max(top.stop - top.start, 1)))
        total: Tensor | None = None
        for start in range(0, self.rows.shape[1], width):
            strip = slice(start, start + width)
            a = self.prepare(self.rows[top, strip], strip)
            b = a if top == left else self.prepare(self.rows[left, strip], strip)
            total = a @ b.mT if total is None else torch.addmm(total, a, b.mT)
        assert total is not None
        return total


def vanishing(
    factors: Sequence[CenteredRows], traces: Float[Tensor, " m"], eps: float
) -> Bool[Tensor, " m"]:
    """Whether features are constant up to rounding: ``|F_c| <= 8 eps |F|``.

    The traces of the kernels are ``|F_c|²``, and ``|F|² = |F_c|² + n |mean|²``.
    """
    mean = torch.stack([(f.mean.detach() / f.scale).square().sum() for f in factors])
    constant = len(factors[0].rows) * mean
    return traces.detach() <= (8 * eps) ** 2 * (traces.detach() + constant)


def factor_products(factors: Sequence[CenteredRows]) -> KernelProducts:
    """Inner products of the kernels of all features, all on the same examples."""
    return KernelProducts.of(*inner_products(factors))


def inner_products(factors: Sequence[CenteredRows]) -> Products:
    """Inner products and diagonals of the kernels."""
    m, n = len(factors), len(factors[0].rows)
    widths = [factor.rows.shape[1] for factor in factors]
    wanted = list(combinations_with_replacement(range(m), 2))
    by_blocks = n * sum(widths[a] * widths[b] for a, b in wanted)
    by_tiles = n * n / 2 * sum(widths)
    return _by_blocks(factors, wanted) if by_blocks <= by_tiles else _by_tiles(factors)


def _by_blocks(factors: Sequence[CenteredRows], wanted: Pairs) -> Products:
    m, zero = len(factors), factors[0].mean.new_zeros(())
    table = [[zero] * m for _ in range(m)]
    diagonals: dict[int, Tensor] = {}
    for group in _groups(factors, wanted):
        blocks, squares = _blocks(factors, group)
        for (a, b), block in zip(group, blocks, strict=True):
            table[a][b] = table[b][a] = block.square().sum()
        diagonals |= squares
    products = torch.stack([torch.stack(row) for row in table])
    return products, torch.stack([diagonals[index] for index in range(m)])


def _groups(factors: Sequence[CenteredRows], wanted: Pairs) -> Iterator[Pairs]:
    """The pairs in groups whose products fit into memory together; one pass over the data each."""
    group: list[tuple[int, int]] = []
    size = 0
    for a, b in sorted(wanted):
        extra = 8 * factors[a].rows.shape[1] * factors[b].rows.shape[1]
        if group and size + extra > _BLOCK_BYTES:
            yield group
            group, size = [], 0
        group.append((a, b))
        size += extra
    yield group


def _blocks(
    factors: Sequence[CenteredRows], group: Pairs
) -> tuple[list[Tensor], dict[int, Tensor]]:
    """``F_a^T F_b`` of every pair, and the squared row norms of every side, in one pass."""
    used = sorted({index for pair in group for index in pair})
    widths = [factor.rows.shape[1] for factor in factors]
    sums = [factors[0].mean.new_zeros(widths[a], widths[b]) for a, b in group]
    squares: dict[int, list[Tensor]] = {index: [] for index in used}
    for chunks in row_chunks(*(factors[index].rows for index in used)):
        ready = {i: factors[i].prepare(rows) for i, rows in zip(used, chunks, strict=True)}
        for index, rows in ready.items():
            squares[index].append(torch.linalg.vecdot(rows, rows))
        sums = [
            torch.addmm(total, ready[a].mT, ready[b])
            for total, (a, b) in zip(sums, group, strict=True)
        ]
    return sums, {index: torch.cat(parts) for index, parts in squares.items()}


def _by_tiles(factors: Sequence[CenteredRows]) -> Products:
    m = len(factors)
    products, diagonals = factors[0].mean.new_zeros(m, m), []
    for top, left in _tile_positions(len(factors[0].rows), m):
        tiles = torch.stack([factor.tile(top, left) for factor in factors], dim=1)  # rows, m, cols
        weight = 1 if top == left else 2  # the tile below the diagonal is its transpose
        products = products + weight * (tiles @ tiles.mT).sum(0)
        if top == left:
            diagonals.append(tiles.diagonal(dim1=0, dim2=2))
    return products, torch.cat(diagonals, 1)


def _tile_positions(n: int, kernels: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the tiles on and above the diagonal."""
    most = max(1, int((_TILE_BYTES / (8 * kernels)) ** 0.5))
    side = -(-n // -(-n // most))  # as few tiles as memory allows, all of about one size
    if side > 4 * _ALIGNMENT:
        side = -(-side // _ALIGNMENT) * _ALIGNMENT
    edges = [slice(start, min(start + side, n)) for start in range(0, n, side)]
    for index, top in enumerate(edges):
        for left in edges[index:]:
            yield top, left


class LabelKernel(NamedTuple):
    """Centred Gram matrix of one-hot labels, in O(n): its norm, diagonal, and the class counts."""

    labels: Integer[Tensor, " n"]
    counts: Float[Tensor, " k"]
    norm_squared: Float[Tensor, ""]  # |Y_c^T Y_c|_F^2
    diagonal: Float[Tensor, " n"]

    @classmethod
    def of(cls, labels: Integer[Tensor, " n"], num_classes: int) -> "LabelKernel":
        """Closed forms from the class counts alone."""
        counts = torch.bincount(labels.long(), minlength=num_classes).double()
        n = counts.sum()
        # |1_c - p|^2 = (1 - p_c)^2 + sum of the others' p^2. This form has no difference of nearly
        # equal numbers if one class dominates.
        squares = (counts / n).square()
        before = squares.cumsum(0).roll(1)
        after = squares.flip(0).cumsum(0).roll(1).flip(0)
        before[0] = after[-1] = 0
        own = ((n - counts) / n).square() + before + after
        return cls(labels.long(), counts, (counts.square() * own).sum(), own[labels.long()])

    def product(self, factor: CenteredRows) -> Float[Tensor, ""]:
        r""":math:`|F_c^\top Y_c|_F^2 = \sum_c n_c^2 |m_c - m|^2`, one pass over the features."""
        sums = factor.mean.new_zeros(len(self.counts), len(factor.mean))
        for rows, classes in row_chunks(factor.rows, self.labels):
            ready = factor.prepare(rows)
            if len(self.counts) <= _FEW_CLASSES:
                one_hot = torch.nn.functional.one_hot(classes, len(self.counts)).to(ready)
                sums = torch.addmm(sums, one_hot.mT, ready)
            else:
                sums = sums.index_add(0, classes, ready)
        return sums.square().sum()

    @property
    def defined(self) -> Tensor:
        """Whether at least two classes are present."""
        return (self.counts > 0).sum() > 1


def with_labels(factors: Sequence[CenteredRows], labels: LabelKernel) -> KernelProducts:
    """Products of linear kernels, with the kernel of the labels as one more, last."""
    own, diagonals = inner_products(factors)
    cross = torch.stack([labels.product(factor) for factor in factors])
    last = torch.cat([cross, labels.norm_squared.unsqueeze(0)])
    products = torch.cat([torch.cat([own, cross.unsqueeze(1)], 1), last.unsqueeze(0)])
    return KernelProducts.of(products, torch.cat([diagonals, labels.diagonal.unsqueeze(0)]))


def require_paired_features(of_grams: str, **features: Tensor) -> None:
    """Check for finite matrices with one row per example, of the same examples; no Gram matrices.

    Args:
        of_grams: name of the function for Gram matrices.
        **features: features by name.
    """
    require_axes(2, **features)
    require_nonempty(**features)
    require_same_length(**features)
    require_finite(**features)
    require_no_gram(of_grams, **features)


@array_function
def linear_kta(
    features_a: Float[Tensor, "n d"], features_b: Float[Tensor, "n e"]
) -> Float[Tensor, ""]:
    r"""Kernel-target alignment of the linear kernels of two sets of features.

    .. math:: A = \frac{\|F^\top G\|_F^2}{\|F^\top F\|_F\,\|G^\top G\|_F}

    This is the same number as :func:`kta` of the two Gram matrices, computed on the cheaper side in
    bounded memory.

    Range: [0, 1].
    Invariant to: swapping arguments; scaling and orthogonal maps of either side; a joint
        permutation of examples. Not to a shift of the features.
    Undefined (``nan``): either side is zero.

    Args:
        features_a: :math:`F`, one row per example.
        features_b: :math:`G`, of the same examples in the same order, e.g. one-hot targets.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If these are not matrices with equally many rows.
        DomainError: If an entry is not finite.

    Examples:
        >>> x = torch.tensor([[1.0], [0.0]])
        >>> round(linear_kta(x, torch.tensor([[1.0], [1.0]])).item(), 4)
        0.5

    References:
        [canatar2022], Eq. (4); [kornblith2019], Sec. 3.
    """
    require_paired_features("kta", features_a=features_a, features_b=features_b)
    factors = [CenteredRows.of(features, center=False) for features in (features_a, features_b)]
    products = factor_products(factors).products
    own = products.diagonal()
    return ratio_or_nan(products[0, 1], safe_sqrt(own[0]) * safe_sqrt(own[1]))


@array_function
def linear_cka(
    features_a: Float[Tensor, "n d"], features_b: Float[Tensor, "n e"], debiased: bool = True
) -> Float[Tensor, ""]:
    r"""Centred kernel alignment of the linear kernels of two sets of features.

    .. math:: \mathrm{CKA} =
              \frac{\|F_c^\top G_c\|_F^2}{\|F_c^\top F_c\|_F\,\|G_c^\top G_c\|_F} \quad
              \text{(biased)}, \qquad F_c = HF, \quad H = I - \tfrac1n 11^\top

    This is the same number as :func:`cka` of the two Gram matrices. Features are centred first, in
    float64, so that a large mean costs no digits. The cheaper of two routes is used: d x d blocks,
    or tiles of the n x n matrices. Memory beyond the input stays bounded.

    Range: [-1, 1]; biased: [0, 1].
    Invariant to: swapping arguments; scaling, orthogonal maps and shifts of either side; a joint
        permutation of examples. Not to a general invertible map.
    Undefined (``nan``): features constant up to rounding; debiased: fewer than four examples, or
        all pairs of examples equally similar.

    Args:
        features_a: :math:`F`, one row per example.
        features_b: :math:`G`, of the same examples in the same order.
        debiased: use the debiased estimator; False uses the paper's plug-in form.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If these are not matrices with equally many rows.
        DomainError: If an entry is not finite.

    Examples:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> y = torch.tensor([[1.0], [3.0], [2.0]])
        >>> round(linear_cka(x, y, debiased=False).item(), 4)  # squared correlation
        0.25

    References:
        [canatar2022], Sec. III; [kornblith2019], Sec. 3; [song2012], Eq. (5).

    Differs from paper: debiased by default.
    """
    require_paired_features("cka", features_a=features_a, features_b=features_b)
    return _linear_cka(features_a, features_b, debiased, eps_of(features_a, features_b))


def _linear_cka(features_a: Tensor, features_b: Tensor, debiased: bool, eps: float) -> Tensor:
    factors = [CenteredRows.of(features_a), CenteredRows.of(features_b)]
    products = factor_products(factors)
    defined = ~vanishing(factors, products.traces, eps)
    return cka_from_products(products, debiased=debiased, eps=eps, defined=defined)[0, 1]


@array_function
def target_cka(
    features: Float[Tensor, "n d"],
    labels: Integer[Tensor, " n"],
    debiased: bool = True,
) -> Float[Tensor, ""]:
    r"""CKA to labels: centred kernel alignment of features with class labels.

    .. math:: \mathrm{CKA} = \frac{\sum_c n_c^2 |m_c - m|^2}
              {\|F_c^\top F_c\|_F \sqrt{\sum_{c,c'} (n_c \delta_{cc'} - n_c n_{c'}/n)^2}}
              \quad\text{(biased)}

    Here :math:`m_c` are the class means, :math:`m` the mean and :math:`n_c` the class counts. This
    is the same number as :func:`linear_cka` with one-hot labels; the numerator takes O(n d). It is
    1 if all features of a class are equal and the class means form a regular simplex.

    Range: [-1, 1]; biased: [0, 1].
    Invariant to: scaling, orthogonal maps and shifts of the features; renaming classes; a joint
        permutation of examples.
    Undefined (``nan``): features constant up to rounding; one class; debiased: fewer than four
        examples, or one example per class.

    Args:
        features: :math:`F`, one row per example.
        labels: integer class of every example; classes may be absent.
        debiased: use the debiased estimator; False uses the paper's plug-in form.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If there is not one label per row.
        DomainError: If an entry is not finite or a label is out of range.

    Examples:
        >>> x = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
        >>> round(target_cka(x, torch.tensor([0, 0, 1, 1]), debiased=False).item(), 4)
        0.9412

    References:
        [canatar2022], Sec. III; [kornblith2019], Eq. (3); [song2012], Eq. (5).

    Differs from paper: debiased by default.
    """
    require_axes(2, features=features)
    require_nonempty(features=features)
    require_same_length(features=features, labels=labels)
    require_finite(features=features)
    require_no_gram("cka with target_gram(labels)", features=features)
    classes = require_labels(labels)
    factor = CenteredRows.of(features)
    kernel = LabelKernel.of(labels.to(factor.rows.device), classes)
    eps = eps_of(features)
    products = with_labels([factor], kernel)
    varies = ~vanishing([factor], products.traces[:1], eps)
    defined = torch.cat([varies, kernel.defined.unsqueeze(0)])
    return cka_from_products(products, debiased=debiased, eps=eps, defined=defined)[0, 1]


@array_function
def linear_hsic(
    features_a: Float[Tensor, "n d"], features_b: Float[Tensor, "n e"], debiased: bool = True
) -> Float[Tensor, ""]:
    r"""HSIC of the linear kernels of two sets of features, without an n x n matrix.

    .. math:: \mathrm{HSIC}_0 = \tfrac1{n^2}\|F_c^\top G_c\|_F^2

    This is the squared Frobenius norm of the cross-covariance, with centred features
    :math:`F_c, G_c`. :func:`hsic` of the two Gram matrices gives the same number. Features are
    centred first, which changes neither estimator.

    Range: any number; biased: at least 0.
    Invariant to: swapping arguments; orthogonal maps and shifts of either side; a joint
        permutation of examples.
    Undefined (``nan``): debiased with fewer than four examples.

    Args:
        features_a: :math:`F`, one row per example.
        features_b: :math:`G`, of the same examples in the same order.
        debiased: use the unbiased estimator; False uses the plug-in form.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If these are not matrices with equally many rows.
        DomainError: If an entry is not finite.

    Examples:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> round(linear_hsic(x, x, debiased=False).item(), 4)  # squared variance
        0.4444

    References:
        [song2012], Eq. (4) and (5).
    """
    require_paired_features("hsic", features_a=features_a, features_b=features_b)
    a, b = CenteredRows.of(features_a), CenteredRows.of(features_b)
    value = factor_products([a, b]).hsic(debiased=debiased)[0, 1]
    return value * a.scale * a.scale * b.scale * b.scale  # inf, where a power would raise


@prints_shapes
@dataclass(frozen=True)
class CkaMatrix:
    """CKA of every pair of layers, and of every layer with the labels.

    Args:
        between: CKA of every pair of layers, symmetric.
        target: CKA to labels of every layer; None without labels.
        estimator: ``"debiased"`` or ``"biased"``.
    """

    between: Float[Tensor, "l l"]
    target: Float[Tensor, " l"] | None
    estimator: Estimator


@array_function
def cka_matrix(
    layers: Sequence[Float[Tensor, "n _"]] | Mapping[str, Float[Tensor, "n _"]],
    labels: Integer[Tensor, " n"] | None = None,
    debiased: bool = True,
) -> CkaMatrix:
    r"""Linear CKA of many layers with each other and with labels, each kernel computed once.

    The cheaper of two routes is used: blocks :math:`F_a^\top F_b` for all pairs, or tiles of all
    Gram matrices at once, which then serve every pair. No n x n matrix exists at any time.

    Range: entries in [-1, 1]; biased: [0, 1].
    Invariant to: scaling, orthogonal maps and shifts of any layer; a joint permutation.
    Undefined (``nan``): entries of layers that are constant up to rounding, of labels of one class;
        debiased: fewer than four examples.

    Args:
        layers: features of every layer, one row per example, the same examples in the same order;
            a list, or a mapping such as :func:`theodolite.features` returns.
        labels: integer class of every example.
        debiased: use the debiased estimator; False uses the paper's plug-in form.

    Returns:
        The table of all pairs of layers and, if labels are given, CKA to labels of each
        layer.

    Raises:
        ShapeError: If there is no layer, or the layers differ in their number of rows.
        DomainError: If an entry is not finite or a label is negative, or one is a Gram matrix.

    Examples:
        >>> x = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
        >>> table = cka_matrix([x, -x], torch.tensor([0, 0, 1, 1]), debiased=False)
        >>> [round(value, 4) for value in (table.between[0, 1].item(), table.target[0].item())]
        [1.0, 0.9412]

    References:
        [canatar2022], Fig. 1; [kornblith2019], Fig. 2; [song2012], Eq. (5).
    """
    parts, factors = _factors(layers, "cka")
    count, eps = len(factors), eps_of(*parts)
    if labels is None:
        products = factor_products(factors)
        defined = ~vanishing(factors, products.traces, eps)
    else:
        kernel = _label_kernel(labels, parts[0], factors[0])
        products = with_labels(factors, kernel)
        varies = ~vanishing(factors, products.traces[:count], eps)
        defined = torch.cat([varies, kernel.defined.unsqueeze(0)])
    values = cka_from_products(products, debiased=debiased, eps=eps, defined=defined)
    target = None if labels is None else values[:count, count]
    return CkaMatrix(values[:count, :count], target, "debiased" if debiased else "biased")


def _factors(
    layers: Sequence[Tensor] | Mapping[str, Tensor], of_grams: str
) -> tuple[list[Tensor], list[CenteredRows]]:
    """Every layer's features, checked, and their factors."""
    require_kind((Mapping, Sequence, Tensor), layers=layers)
    if len(layers) == 0:
        raise ShapeError("layers: expected at least one layer's features, got none")
    named = layers if isinstance(layers, Mapping) else dict(enumerate(layers))
    require_paired_features(of_grams, **{f"layers[{key!r}]": layer for key, layer in named.items()})
    return list(named.values()), [CenteredRows.of(layer) for layer in named.values()]


def _label_kernel(labels: Tensor, layer: Tensor, factor: CenteredRows) -> LabelKernel:
    require_axes(1, labels=labels)
    require_same_length(layer=layer, labels=labels)
    return LabelKernel.of(labels.to(factor.rows.device), require_labels(labels))
