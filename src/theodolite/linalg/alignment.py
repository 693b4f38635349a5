"""Centring, and alignments from sufficient statistics: what measures, metrics and engine share."""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import matrix_norm

from theodolite.linalg.arrays import prints_shapes, ratio_or_nan

__all__ = [
    "SetSums",
    "alignment_from_norms",
    "center_all",
    "center_columns",
    "centered_square_sum",
    "contrast_from_sums",
    "double_center",
    "gram_cosine",
    "mean_over_classes",
    "peak_index",
    "unit_peak",
    "vanishes_when_centered",
]


def center_columns(features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Subtract the mean row: the features of :math:`HF`."""
    return features - features.mean(0, keepdim=True)


def center_all(targets: Float[Tensor, "*batch n c"]) -> Float[Tensor, "*batch n c"]:
    """Subtract the mean of all entries, over examples and outputs alike."""
    return targets - targets.mean((-2, -1), keepdim=True)


def double_center(gram: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    r""":math:`HKH` with :math:`H = I - 11^\top/n`, by row and column means in O(n²).

    Rows are centred first, and columns of the result then: two passes over small numbers lose less
    than one pass over the difference of four large ones.
    """
    rows = gram - gram.mean(-1, keepdim=True)
    return rows - rows.mean(-2, keepdim=True)


def centered_square_sum(square_sum: Tensor, row_sums: Tensor) -> Tensor:
    r"""Squared norm of a symmetric matrix after centring, from sums over the matrix itself.

    .. math:: \|HKH\|_F^2 = \sum_{ab} K_{ab}^2 - \tfrac2m \|K1\|^2
              + \tfrac1{m^2} (1^\top K 1)^2

    The difference loses digits where the matrix is nearly constant. Subtract one number from every
    entry before it is summed: that changes nothing after centring.

    Args:
        square_sum: of all entries.
        row_sums: :math:`K1`, in any shape of m entries.
    """
    size, total = row_sums.numel(), row_sums.sum()
    return square_sum - 2 / size * row_sums.square().sum() + (total / size).square()


def vanishes_when_centered(
    centered: Tensor, raw: Tensor, eps: float | Tensor, dim: tuple[int, ...] | None = None
) -> Tensor:
    """Whether what is left after centring is rounding noise: ``|HKH|_F <= 8 eps |K|_F``.

    Args:
        centered: what is left.
        raw: what it was before.
        eps: rounding; one number for each where there are several.
        dim: axes of one matrix; None for all.
    """
    norm = torch.linalg.vector_norm
    return norm(centered, dim=dim) <= 8 * eps * norm(raw, dim=dim)


def gram_cosine(
    gram_a: Float[Tensor, "n n"], gram_b: Float[Tensor, "n n"], defined: Tensor | bool = True
) -> Float[Tensor, ""]:
    r"""Cosine of the angle between two matrices under the Frobenius inner product.

    Each is divided by its largest entry first: the norms are quartic in the activations and would
    overflow or vanish for entries beyond :math:`10^{\pm 75}`.
    """
    a, b = unit_peak(gram_a), unit_peak(gram_b)
    return ratio_or_nan((a * b).sum((-2, -1)), matrix_norm(a) * matrix_norm(b), defined)


def unit_peak(matrix: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """The matrix over its largest absolute entry, held fixed: squares neither overflow nor vanish.

    A matrix of zeros stays as it is.
    """
    peak = matrix.detach().abs().amax((-2, -1), keepdim=True)
    return matrix / torch.where(peak > 0, peak, torch.ones_like(peak))


@prints_shapes
@dataclass(frozen=True)
class SetSums:
    r"""Sufficient statistics of one or several sets of vectors, one entry per set.

    .. math:: n,\qquad Q = \Big\|\sum_i v_i\Big\|^2,\qquad S_1 = \sum_i \|v_i\|,
              \qquad S_2 = \sum_i \|v_i\|^2

    :math:`n, S_1, S_2` add over disjoint sets; :math:`Q` does not, the vector sums behind it do.

    Example:
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
        """Sums of groups of vectors whose squared norms are known.

        Args:
            groups: one where an example belongs to a group.
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

    def __getitem__(self, index: int | tuple[slice | int, ...]) -> "SetSums":
        """One of the sets, or the sets of one layer where layers come first."""
        return SetSums(*(getattr(self, part.name)[index] for part in fields(self)))

    def alignment(self, zero: str = "nan") -> Float[Tensor, "*sets"]:
        r"""Omega of each set, :math:`n (Q - S_2) / ((n - 1) S_1^2)`; nan for single vectors.

        Args:
            zero: value of a set of two or more vectors that are all zero, ``"nan"`` or ``"zero"``.
        """
        n, q, s1, s2 = self.count, self.sum_square, self.norm_sum, self.square_sum
        enough = n >= 2
        pairs = torch.where(enough, n / (n - 1).clamp(min=1), n)
        omega = ratio_or_nan(pairs * (q - s2), s1.square(), enough)
        if zero == "zero":
            omega = torch.where(enough & (s1 == 0), torch.zeros_like(omega), omega)
        return omega

    def weighted_alignment(self) -> Float[Tensor, "*sets"]:
        r"""Cosine weighted by the product of the norms: :math:`(Q - S_2) / (S_1^2 - S_2)`.

        Undefined (nan) when fewer than two vectors are not zero.
        """
        pairs = self.norm_sum.square() - self.square_sum
        # One vector that is not zero leaves only the rounding of its norm in the denominator.
        noise = 4 * torch.finfo(pairs.dtype).eps * self.norm_sum.square()
        return ratio_or_nan(self.sum_square - self.square_sum, pairs, pairs > noise)

    def diversity(self) -> Float[Tensor, "*sets"]:
        """``S2 / Q``: inf where the vectors cancel, nan where all of them are zero."""
        cancelled = (self.sum_square == 0) & (self.square_sum > 0)
        value = ratio_or_nan(self.square_sum, self.sum_square)
        return torch.where(cancelled, torch.full_like(value, torch.inf), value)


def mean_over_classes(values: Float[Tensor, "*sets k"]) -> Float[Tensor, "*sets"]:
    """Mean over the classes where a value is defined; nan (with gradient zero) if it is nowhere.

    Example:
        >>> mean_over_classes(torch.tensor([1.0, float("nan"), 0.5])).item()
        0.75
    """
    defined = ~values.isnan()
    total = torch.where(defined, values, torch.zeros_like(values)).sum(-1)
    return ratio_or_nan(total, defined.sum(-1).to(values.dtype))


def contrast_from_sums(
    classes: SetSums, overall: SetSums, zero: str = "nan"
) -> Float[Tensor, "*sets"]:
    r"""In-class alignment minus the alignment of all pairs, from the sums of both.

    Args:
        classes: sums of every class, classes along the last axis.
        overall: sums of all vectors as one set, without that axis.
        zero: value of a set of vectors that are all zero, ``"nan"`` or ``"zero"``.

    Example:
        >>> one = SetSums(*(torch.tensor([v, v]).double() for v in (2.0, 4.0, 2.0, 2.0)))
        >>> both = SetSums(*(torch.tensor(v).double() for v in (4.0, 8.0, 4.0, 4.0)))
        >>> round(contrast_from_sums(one, both).item(), 4)
        0.6667
    """
    return mean_over_classes(classes.alignment(zero)) - overall.alignment(zero)


def alignment_from_norms(
    label_energy: Float[Tensor, "..."],
    kernel_norm: Float[Tensor, "..."],
    label_square: Float[Tensor, "..."] | float,
    defined: Tensor | bool = True,
) -> Float[Tensor, "..."]:
    r"""Tangent alignment from its three parts, however they were found; the one formula.

    .. math:: A = \frac{\tilde y^\top K\tilde y}{\|C_m K C_m\|_F\,\|\tilde y\|^2}

    Args:
        label_energy: :math:`\tilde y^\top K\tilde y` for the centred targets.
        kernel_norm: :math:`\|C_m K C_m\|_F`, or an estimate of it.
        label_square: :math:`\|\tilde y\|^2`.
        defined: whether kernel and targets are more than rounding after centring.

    Example:
        >>> alignment_from_norms(torch.tensor(2.0), torch.tensor(4.0), 1.0).item()
        0.5

    References:
        [lou2022], Eq. (7).
    """
    return ratio_or_nan(label_energy, kernel_norm * label_square, defined)


def peak_index(
    curve: Float[Tensor, " layers"],
    covariance: Float[Tensor, "layers layers"] | None = None,
    errors: float = 2.0,
) -> int | None:
    """Index of the largest number that is defined, the first of equals; None if there is none.

    Args:
        curve: numbers of layers; nan where undefined.
        covariance: of the errors of estimated numbers; then the largest must exceed every other.
        errors: by how many standard errors of the difference.

    Example:
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
