r"""Centring, and alignments from sufficient statistics, for measures, metrics and the engine.

HSIC and CKA need inner products of centred kernels. Let :math:`K_c = HKH` and :math:`L_c` have the
diagonals :math:`d_K, d_L`. The row sums of the kernel without its diagonal are then :math:`-d_K`.
So the estimator of [song2012], Eq. (5) becomes

.. math:: n(n-3)\,\mathrm{HSIC}_1 = \langle K_c, L_c\rangle - \frac{n}{n-2}\, d_K\cdot d_L
          + \frac{\mathrm{tr} K_c\,\mathrm{tr} L_c}{(n-1)(n-2)}
"""

from dataclasses import dataclass, fields
from types import EllipsisType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import matrix_norm

from theodolite.checks import require_axes, require_choice
from theodolite.linalg.arrays import (
    checks_classes,
    double,
    nan_unless,
    prints_shapes,
    ratio_or_nan,
)
from theodolite.records import CHANCE


def center_columns(features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Subtract the mean row: the features of :math:`HF`.

    Examples:
        >>> center_columns(torch.tensor([[1.0], [3.0]])).tolist()
        [[-1.0], [1.0]]
    """
    return features - features.mean(0, keepdim=True)


def center_all(targets: Float[Tensor, "*batch n c"]) -> Float[Tensor, "*batch n c"]:
    """Subtract the mean of all entries, over examples and outputs.

    Examples:
        >>> center_all(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).tolist()
        [[0.5, -0.5], [-0.5, 0.5]]
    """
    return targets - targets.mean((-2, -1), keepdim=True)


def double_center(gram: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    r""":math:`HKH` with :math:`H = I - 11^\top/n`, by row and column means in O(n²).

    Rows are centred first, then columns of the result. Two passes over small numbers lose fewer
    digits than one difference of four large numbers.

    Examples:
        >>> double_center(torch.eye(2)).tolist()
        [[0.5, -0.5], [-0.5, 0.5]]
    """
    rows = gram - gram.mean(-1, keepdim=True)
    return rows - rows.mean(-2, keepdim=True)


def u_center(gram: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    r"""The matrix without diagonal, centred over pairs of distinct examples.

    Inner products of two such matrices are :math:`n(n-3)\,\mathrm{HSIC}_1`, as
    :func:`debiased_product` has them from products of the centred matrices.

    Examples:
        >>> u_center(torch.ones(4, 4)).abs().max().item()
        0.0
    """
    n = len(gram)
    distinct = gram.clone().fill_diagonal_(0.0)
    sums = distinct.sum(1) / (n - 2)
    centered = distinct - sums.unsqueeze(0) - sums.unsqueeze(1) + sums.sum() / (n - 1)
    return centered.fill_diagonal_(0.0)


def centered_square_sum(square_sum: Tensor, row_sums: Tensor) -> Tensor:
    r"""Squared norm of a symmetric matrix after centring, from sums over the matrix itself.

    .. math:: \|HKH\|_F^2 = \sum_{ab} K_{ab}^2 - \tfrac2m \|K1\|^2
              + \tfrac1{m^2} (1^\top K 1)^2

    The difference loses digits if the matrix is nearly constant. So subtract one number from all
    entries first; centring removes it again.

    Args:
        square_sum: sum of the squares of all entries.
        row_sums: :math:`K1`, in any shape of m entries.

    Returns:
        The squared Frobenius norm of :math:`HKH`.

    Examples:
        >>> gram = torch.eye(2)
        >>> centered_square_sum(gram.square().sum(), gram.sum(1)).item()
        1.0
    """
    size, total = row_sums.numel(), row_sums.sum()
    return square_sum - 2 / size * row_sums.square().sum() + (total / size).square()


def vanishes_when_centered(
    centered: Tensor, raw: Tensor, eps: float | Tensor, dim: tuple[int, ...] | None = None
) -> Tensor:
    """Whether only rounding is left after centring: ``|HKH|_F <= 8 eps |K|_F``.

    Args:
        centered: the centred matrix.
        raw: the matrix before centring.
        eps: rounding; one number for each matrix, or one for all.
        dim: axes of one matrix; None for all.

    Returns:
        One answer for each matrix.

    Examples:
        >>> gram = torch.ones(3, 3)
        >>> vanishes_when_centered(double_center(gram), gram, eps=1e-7).item()
        True
    """
    norm = torch.linalg.vector_norm
    return norm(centered, dim=dim) <= 8 * eps * norm(raw, dim=dim)


def gram_cosine(gram_a: Float[Tensor, "n n"], gram_b: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    r"""Cosine of the angle between two matrices under the Frobenius inner product.

    Each matrix is divided by its largest entry first. Otherwise the norms, which are quartic in the
    activations, would overflow or vanish for entries beyond :math:`10^{\pm 75}`.

    Examples:
        >>> gram_cosine(torch.eye(4), torch.ones(4, 4)).item()
        0.5
    """
    a, b = unit_peak(gram_a), unit_peak(gram_b)
    return ratio_or_nan((a * b).sum((-2, -1)), matrix_norm(a) * matrix_norm(b))


def unit_peak(matrix: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """Divide a matrix by its largest absolute entry, so that squares neither overflow nor vanish.

    The entry is treated as constant. A matrix of zeros does not change.

    Examples:
        >>> unit_peak(torch.tensor([[2.0, -4.0]])).tolist()
        [[0.5, -1.0]]
    """
    peak = matrix.detach().abs().amax((-2, -1), keepdim=True)
    return matrix / torch.where(peak > 0, peak, torch.ones_like(peak))


@prints_shapes
@dataclass(frozen=True)
class SetSums:
    r"""Sufficient statistics of one or several sets of vectors, one entry per set.

    .. math:: n,\qquad Q = \Big\|\sum_i v_i\Big\|^2,\qquad S_1 = \sum_i \|v_i\|,
              \qquad S_2 = \sum_i \|v_i\|^2

    :math:`n, S_1, S_2` add up over disjoint sets. :math:`Q` does not, but its vector sums do.

    Args:
        count: :math:`n`, the number of vectors.
        sum_square: :math:`Q`, the squared norm of the sum.
        norm_sum: :math:`S_1`, the sum of the norms.
        square_sum: :math:`S_2`, the sum of the squared norms.

    Examples:
        >>> sums = SetSums(*(torch.tensor([value]) for value in (3.0, 100.0, 12.0, 50.0)))
        >>> round(sums.alignment().item(), 4)
        0.5208
    """

    count: Float[Tensor, "*sets"]
    sum_square: Float[Tensor, "*sets"]
    norm_sum: Float[Tensor, "*sets"]
    square_sum: Float[Tensor, "*sets"]

    @classmethod
    def of_groups(
        cls,
        groups: Float[Tensor, "n k"],
        squares: Float[Tensor, "*layers n"],
        sum_square: Float[Tensor, "*layers k"],
    ) -> "SetSums":
        """Sums of groups of vectors from their squared norms.

        Args:
            groups: 1 if an example belongs to a group, otherwise 0.
            squares: squared norm of every vector.
            sum_square: squared norm of the sum of every group.
        """
        count = groups.sum(0).expand_as(sum_square)
        return cls(count, sum_square, squares.sqrt() @ groups, squares @ groups)

    @classmethod
    def of_gram(cls, gram: Float[Tensor, "*layers n n"], groups: Float[Tensor, "n k"]) -> "SetSums":
        r"""Sums of groups of vectors from their inner products, :math:`Q = 1_c^\top K 1_c`."""
        squares = gram.diagonal(dim1=-2, dim2=-1).clamp(min=0.0)
        return cls.of_groups(groups, squares, (groups * (gram @ groups)).sum(-2))

    def __getitem__(self, index: int | tuple[slice | int | EllipsisType, ...]) -> "SetSums":
        """One of the sets, or all sets of one layer if the first axis has layers."""
        return SetSums(*(getattr(self, part.name)[index] for part in fields(self)))

    def alignment(self, zero: str = "nan") -> Float[Tensor, "*sets"]:
        r"""Omega of each set, :math:`n (Q - S_2) / ((n - 1) S_1^2)`; nan for single vectors.

        Args:
            zero: value of a set of zero vectors only: ``"nan"`` or ``"zero"``.
        """
        require_choice(("nan", "zero"), zero=zero)
        n, q, s1, s2 = self.count, self.sum_square, self.norm_sum, self.square_sum
        enough = n >= 2
        pairs = torch.where(enough, n / (n - 1).clamp(min=1), n)
        omega = ratio_or_nan(pairs * (q - s2), s1.square(), enough)
        if zero == "zero":
            omega = torch.where(enough & (s1 == 0), 0.0, omega)
        return omega

    def weighted_alignment(self) -> Float[Tensor, "*sets"]:
        r"""Cosine weighted by the product of the norms: :math:`(Q - S_2) / (S_1^2 - S_2)`.

        Undefined (nan) if fewer than two vectors are nonzero.
        """
        pairs = self.norm_sum.square() - self.square_sum
        # With one nonzero vector the denominator contains only the rounding of its norm.
        noise = 4 * torch.finfo(pairs.dtype).eps * self.norm_sum.square()
        return ratio_or_nan(self.sum_square - self.square_sum, pairs, pairs > noise)

    def diversity(self) -> Float[Tensor, "*sets"]:
        """``S2 / Q``: inf if the vectors cancel, nan if all of them are zero."""
        cancelled = (self.sum_square == 0) & (self.square_sum > 0)
        value = ratio_or_nan(self.square_sum, self.sum_square)
        return torch.where(cancelled, torch.inf, value)


@checks_classes
def mean_over_classes(values: Float[Tensor, "*sets k"]) -> Float[Tensor, "*sets"]:
    """Mean over the classes with a defined value; nan (with gradient zero) if there are none.

    Args:
        values: classes along the last axis.

    Returns:
        The mean along the last axis.

    Examples:
        >>> mean_over_classes(torch.tensor([1.0, float("nan"), 0.5])).item()
        0.75
    """
    defined = ~values.isnan()
    total = torch.where(defined, values, 0.0).sum(-1)
    return ratio_or_nan(total, defined.sum(-1).to(values.dtype))


@checks_classes
def contrast_from_sums(
    classes: SetSums, overall: SetSums, zero: str = "nan"
) -> Float[Tensor, "*sets"]:
    r"""In-class alignment minus the alignment of all pairs, from the sums of both.

    Args:
        classes: sums of every class, classes along the last axis.
        overall: sums of all vectors as one set, without that axis.
        zero: value of a set of zero vectors only: ``"nan"`` or ``"zero"``.

    Returns:
        One number for every set of sums.

    Examples:
        >>> one = SetSums(*(torch.tensor([v, v]).double() for v in (2.0, 4.0, 2.0, 2.0)))
        >>> both = SetSums(*(torch.tensor(v).double() for v in (4.0, 8.0, 4.0, 4.0)))
        >>> round(contrast_from_sums(one, both).item(), 4)
        0.6667
    """
    return mean_over_classes(classes.alignment(zero)) - overall.alignment(zero)


@checks_classes
def alignment_from_norms(
    label_energy: Float[Tensor, "..."],
    kernel_norm: Float[Tensor, "..."],
    label_square: Float[Tensor, "..."] | float,
    defined: Tensor | bool = True,
) -> Float[Tensor, "..."]:
    r"""Tangent alignment from its three parts; kernels and sketches both use this formula.

    .. math:: A = \frac{\tilde y^\top K\tilde y}{\|C_m K C_m\|_F\,\|\tilde y\|^2}

    Args:
        label_energy: :math:`\tilde y^\top K\tilde y` for the centred targets.
        kernel_norm: :math:`\|C_m K C_m\|_F`, or an estimate of it.
        label_square: :math:`\|\tilde y\|^2`.
        defined: whether kernel and targets are more than rounding after centring.

    Returns:
        The alignment, one number for each entry of the norms.

    Examples:
        >>> alignment_from_norms(torch.tensor(2.0), torch.tensor(4.0), 1.0).item()
        0.5

    References:
        [lou2022], Eq. (7).
    """
    return ratio_or_nan(label_energy, kernel_norm * label_square, defined)


def peak_index(
    curve: Float[Tensor, " layers"],
    covariance: Float[Tensor, "layers layers"] | None = None,
    errors: float = CHANCE,
) -> int | None:
    """Index of the largest defined number, the first of equals; None if there is none.

    Args:
        curve: numbers of layers; nan if undefined.
        covariance: covariance of the errors of estimates; the largest must then exceed all others.
        errors: number of standard errors of the difference by which it must exceed them.

    Returns:
        The index, counted from 0.

    Examples:
        >>> peak_index(torch.tensor([0.1, 0.3, float("nan")]))
        1
    """
    defined = ~curve.isnan()
    if not bool(defined.any()):
        return None
    first = int((curve == curve[defined].max()).nonzero()[0, 0])
    if covariance is None:
        return first
    variance = covariance.diagonal() + covariance[first, first] - 2 * covariance[first]
    clear = curve[first] - curve > errors * variance.clamp(min=0).sqrt()
    clear[first] = True
    return first if bool((clear | ~defined).all()) else None


def debiased_product(product: Tensor, diagonals: Tensor, traces: Tensor, count: Tensor) -> Tensor:
    r""":math:`n(n-3)\,\mathrm{HSIC}_1` from the products of centred kernels; nan below 4 examples.

    Args:
        product: :math:`\langle K_c, L_c\rangle`.
        diagonals: :math:`d_K \cdot d_L`.
        traces: :math:`\mathrm{tr} K_c\,\mathrm{tr} L_c`.
        count: number of examples, 0-d.
    """
    n = count.clamp(min=4)
    value = product - n / (n - 2) * diagonals + traces / ((n - 1) * (n - 2))
    return nan_unless((count >= 4).expand(value.shape), value)


@prints_shapes
@dataclass(frozen=True)
class KernelProducts:
    """All inner products of ``m`` centred kernels on the same examples, for HSIC and CKA."""

    products: Float[Tensor, "m m"]  # <K_a, K_b>
    diagonals: Float[Tensor, "m m"]  # d_a . d_b
    traces: Float[Tensor, " m"]
    count: Float[Tensor, ""]

    @classmethod
    @checks_classes
    def of(
        cls, products: Float[Tensor, "m m"], diagonals: Float[Tensor, "m n"]
    ) -> "KernelProducts":
        """Products from the inner products and the diagonals of all kernels."""
        require_axes(2, products=products, diagonals=diagonals)
        count = products.new_tensor(float(diagonals.shape[1]))
        return cls(products, diagonals @ diagonals.mT, diagonals.sum(1), count)

    def totals(self, *, debiased: bool) -> Float[Tensor, "m m"]:
        """HSIC of every pair times ``n²``, or times ``n (n - 3)`` for the debiased estimator."""
        if not debiased:
            return self.products
        traces = torch.outer(self.traces, self.traces)
        return debiased_product(self.products, self.diagonals, traces, self.count)

    def hsic(self, *, debiased: bool) -> Float[Tensor, "m m"]:
        """HSIC of every pair of kernels."""
        n = self.count
        return self.totals(debiased=debiased) / (n * (n - 3).clamp(min=1) if debiased else n * n)


def centered_products(gram_a: Float[Tensor, "n n"], gram_b: Float[Tensor, "n n"]) -> KernelProducts:
    """Products of two centred Gram matrices."""
    cross = (gram_a * gram_b).sum()
    own_a, own_b = gram_a.square().sum(), gram_b.square().sum()
    products = torch.stack([own_a, cross, cross, own_b]).reshape(2, 2)
    return KernelProducts.of(products, torch.stack([gram_a.diagonal(), gram_b.diagonal()]))


@prints_shapes
@dataclass(frozen=True)
class HsicSums:
    r"""Sum-reducible statistics of HSIC, biased or debiased, between two sets of features.

    Rows :math:`f_i, g_i` are about fixed shifts; :math:`d` are their squared norms. Sums about the
    same shifts add up field by field. Sums about different shifts are first converted, exactly.
    HSIC of features with themselves, and of features with labels, have the same form.
    """

    count: Float[Tensor, ""]
    shift_a: Float[Tensor, " d"]
    shift_b: Float[Tensor, " e"]
    total_a: Float[Tensor, " d"]  # sum of f
    total_b: Float[Tensor, " e"]  # sum of g
    cross: Float[Tensor, "d e"]  # sum of f g^T
    weighted_a: Float[Tensor, " d"]  # sum of d_g f
    weighted_b: Float[Tensor, " e"]  # sum of d_f g
    squares: Float[Tensor, ""]  # sum of d_f d_g
    square_a: Float[Tensor, ""]  # sum of d_f
    square_b: Float[Tensor, ""]  # sum of d_g

    def rebase(self, shift_a: Float[Tensor, " d"], shift_b: Float[Tensor, " e"]) -> "HsicSums":
        """The same sums about other shifts."""
        if shift_a is self.shift_a and shift_b is self.shift_b:
            return self  # a stream keeps its shifts, so adding a batch costs one addition
        p, q = self.shift_a - double(shift_a), self.shift_b - double(shift_b)
        n, pp, qq = self.count, p @ p, q @ q
        total_a, total_b = self.total_a + n * p, self.total_b + n * q
        square_a = self.square_a + 2 * self.total_a @ p + n * pp
        square_b = self.square_b + 2 * self.total_b @ q + n * qq
        weighted_a = self.weighted_a + 2 * self.cross @ q + qq * self.total_a + square_b * p
        weighted_b = self.weighted_b + 2 * self.cross.mT @ p + pp * self.total_b + square_a * q
        squares = (
            self.squares
            + 2 * (self.weighted_b @ q + self.weighted_a @ p)
            + qq * self.square_a
            + pp * self.square_b
            + 4 * p @ self.cross @ q
            + 2 * qq * (self.total_a @ p)
            + 2 * pp * (self.total_b @ q)
            + n * pp * qq
        )
        cross = self.cross + torch.outer(self.total_a, q) + torch.outer(p, total_b)
        return HsicSums(
            n, double(shift_a), double(shift_b), total_a, total_b, cross, weighted_a, weighted_b,
            squares, square_a, square_b,
        )  # fmt: skip

    def __add__(self, other: "HsicSums") -> "HsicSums":
        """Sums of both groups of examples together, about the shifts of this one."""
        moved = other.rebase(self.shift_a, self.shift_b)
        sums = (
            getattr(self, name) + getattr(moved, name)
            for name in (
                "total_a", "total_b", "cross", "weighted_a", "weighted_b",
                "squares", "square_a", "square_b",
            )
        )  # fmt: skip
        return HsicSums(self.count + moved.count, self.shift_a, self.shift_b, *sums)

    def centered(self) -> "HsicSums":
        """The same sums about the means."""
        means = (
            self.shift_a + self.total_a / self.count,
            self.shift_b + self.total_b / self.count,
        )
        return self.rebase(*means)

    @staticmethod
    def products(cross: "HsicSums", own_a: "HsicSums", own_b: "HsicSums") -> KernelProducts:
        """Products for CKA, from the sums of (a, b), (a, a) and (b, b) over the same examples."""
        ab, aa, bb = cross.centered(), own_a.centered(), own_b.centered()

        def symmetric(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            return torch.stack([x, y, y, z]).reshape(2, 2)

        return KernelProducts(
            symmetric(*(part.cross.square().sum() for part in (aa, ab, bb))),
            symmetric(aa.squares, ab.squares, bb.squares),
            torch.stack([ab.square_a, ab.square_b]),
            ab.count,
        )

    def vanishes(self, eps: float) -> Tensor:
        """For each side, whether features are constant up to rounding: ``|F_c| <= 8 eps |F|``."""
        centered = self.centered()
        raw = self.rebase(torch.zeros_like(self.shift_a), torch.zeros_like(self.shift_b))
        left = torch.stack([centered.square_a, centered.square_b])
        return left <= (8 * eps) ** 2 * torch.stack([raw.square_a, raw.square_b])
