"""Alignment of vectors over all pairs, within classes and by direction, from sums in one pass."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.checks import (
    require_choice,
    require_finite,
    require_labels,
    require_same_length,
    require_tensors,
)
from theodolite.errors import ShapeError
from theodolite.linalg import (
    SetSums,
    array_function,
    checks_classes,
    contrast_from_sums,
    double,
    full_precision,
    mean_over_classes,
    prints_shapes,
)

_TILE_BYTES = {"cpu": 2**21}  # stays in the cache; elsewhere large, to amortise launches
_RUN = 4096  # entries summed one after the other
_SAFE_NORMS = (2.0**-40, 2.0**40)  # squares and their sums stay far inside float32


@prints_shapes
@dataclass(frozen=True)
class VectorMoments:
    r"""Sums of the vectors of each class, from which every alignment of vectors follows.

    Moments of disjoint sets of examples add up. Vectors are flattened after axis 0. This takes
    ``O(n d)`` time and ``O(k d)`` memory beyond the input, which is read once. Norms and sums of a
    tile use the dtype of the vectors and are added up in float64.

    Args:
        counts: :math:`n_c`, the number of vectors of each class.
        sums: :math:`\sum v_i`.
        norm_sums: :math:`\sum\|v_i\|`.
        square_sums: :math:`\sum\|v_i\|^2`.

    Examples:
        >>> v = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
        >>> both = VectorMoments.of(v[:1]) + VectorMoments.of(v[1:])
        >>> round(both.set_sums().alignment().item(), 4)
        0.5208
    """

    counts: Float[Tensor, " k"]
    sums: Float[Tensor, "k d"]
    norm_sums: Float[Tensor, " k"]
    square_sums: Float[Tensor, " k"]

    @classmethod
    @checks_classes
    def of(
        cls,
        vectors: Float[Tensor, "n *d"],
        labels: Int[Tensor, " n"] | None = None,
        num_classes: int | None = None,
        *,
        unit_length: bool = False,
    ) -> "VectorMoments":
        """Moments of one batch; without labels, all vectors form one class.

        Args:
            vectors: one vector (or array, flattened) per example.
            labels: class of each example.
            num_classes: number of classes; by default one more than the largest label.
            unit_length: divide each vector by its norm; zero vectors then do not count.

        Returns:
            The moments of every class.
        """
        moments, scale = _accumulate(vectors, labels, num_classes, unit_length)
        back = scale.reciprocal()
        return VectorMoments(
            moments.counts,
            moments.sums * back,
            moments.norm_sums * back,
            moments.square_sums * back.square(),
        )

    def __add__(self, other: "VectorMoments") -> "VectorMoments":
        """Moments of both groups of vectors together."""
        if self.sums.shape != other.sums.shape:
            raise ShapeError(
                "expected moments of the same classes and vector length, got "
                f"{tuple(self.sums.shape)} and {tuple(other.sums.shape)}; pass the same num_classes"
            )
        return VectorMoments(
            self.counts + other.counts,
            self.sums + other.sums,
            self.norm_sums + other.norm_sums,
            self.square_sums + other.square_sums,
        )

    def pooled(self) -> "VectorMoments":
        """All classes as one set."""
        return VectorMoments(
            self.counts.sum(0, keepdim=True),
            self.sums.sum(0, keepdim=True),
            self.norm_sums.sum(0, keepdim=True),
            self.square_sums.sum(0, keepdim=True),
        )

    def set_sums(self) -> SetSums:
        """The four sums of each class."""
        return SetSums(self.counts, self.sums.square().sum(1), self.norm_sums, self.square_sums)


def flat_vectors(vectors: Tensor) -> Tensor:
    """One row per example; all axes after the first are flattened."""
    require_tensors(vectors=vectors)
    if vectors.ndim < 2 or vectors.numel() == 0:
        raise ShapeError(
            "vectors: expected one non-empty vector per example, shape (n, d), "
            f"got shape {tuple(vectors.shape)}"
        )
    return vectors.flatten(1)


def scale_free_moments(
    vectors: Tensor,
    labels: Tensor | None = None,
    num_classes: int | None = None,
    *,
    unit_length: bool = False,
) -> VectorMoments:
    """Moments in a unit near the largest entry, so that squares neither overflow nor vanish.

    Only for measures that do not depend on the unit. Moments that will be merged need the true
    unit.
    """
    return _accumulate(vectors, labels, num_classes, unit_length)[0]


def _accumulate(
    vectors: Tensor, labels: Tensor | None, num_classes: int | None, unit_length: bool
) -> tuple[VectorMoments, Tensor]:
    """One pass; a second one on rescaled vectors only where squares leave the safe range."""
    flat = flat_vectors(vectors)
    if labels is None:
        labels, num_classes = torch.zeros(len(flat), dtype=torch.long, device=flat.device), 1
    require_same_length(vectors=vectors, labels=labels)
    classes, labels = require_labels(labels, num_classes), labels.long()
    norms, sums = _pass_over(flat, labels, classes, None, unit_length)
    scale = torch.ones((), dtype=torch.float64, device=flat.device)
    if not _are_safe(norms.detach(), unit_length):
        require_finite(vectors=vectors)  # names the entry; passes if only squares overflowed
        factors = _rescaling(flat, per_row=unit_length)
        norms, sums = _pass_over(flat, labels, classes, factors, unit_length)
        scale = double(factors[0, 0])
    if unit_length:
        nonzero = (norms > 0).double()
        return _per_class(nonzero, sums, nonzero, labels), torch.ones_like(scale)
    return _per_class(norms, sums, torch.ones_like(norms), labels), scale


def _are_safe(norms: Tensor, each: bool) -> bool:
    """Whether squares of the longest vector, or of every vector, are far from both limits."""
    low, high = _SAFE_NORMS
    smallest = norms.min() if each else norms.max()
    return bool((smallest >= low) & (norms.max() <= high))


def _rescaling(vectors: Tensor, per_row: bool) -> Tensor:
    """Powers of two, one per row, that bring entries near 1 without rounding anything."""
    sizes = double(vectors.detach().abs().amax(1, keepdim=True))
    peaks = sizes if per_row else sizes.max().expand_as(sizes)
    exponents = torch.where(peaks > 0, torch.log2(peaks).floor(), torch.zeros_like(peaks))
    limit = 120.0 if vectors.dtype == torch.float32 else 1000.0  # larger powers of two overflow
    return torch.exp2(-exponents.clamp(-limit, limit)).to(vectors.dtype)


def _pass_over(
    vectors: Tensor, labels: Tensor, classes: int, factors: Tensor | None, unit_length: bool
) -> tuple[Tensor, Tensor]:
    """Norm of each scaled vector, and the sum of the (unit) vectors of each class, in float64.

    Classes are processed one after the other, so that each sum is one product with a row of
    weights.
    """
    norms, sums = [], []
    order = labels.argsort(stable=True)
    with full_precision():
        for members in torch.split(order, torch.bincount(labels, minlength=classes).tolist()):
            total = torch.zeros(vectors.shape[1], dtype=torch.float64, device=vectors.device)
            for part in _parts(members, vectors, whole=classes == 1):
                tile = vectors[part] if factors is None else vectors[part] * factors[part]
                norm = _row_norms(tile)
                positive = norm > 0
                safe = torch.where(positive, norm, torch.ones_like(norm))
                weights = positive / safe if unit_length else torch.ones_like(norm)
                total = total + double(weights @ tile)
                norms.append(double(norm))
            sums.append(total)
    return torch.cat(norms)[order.argsort()], torch.stack(sums)


def _row_norms(tile: Tensor) -> Tensor:
    """Norm of each row, summed in two levels, because float32 sums on the CPU lose digits.

    At two million entries the error is 3e-5 with one level and 8e-8 with two.
    """
    whole = tile.shape[1] // _RUN * _RUN
    runs = torch.linalg.vector_norm(tile[:, :whole].reshape(len(tile), whole // _RUN, _RUN), dim=2)
    rest = torch.linalg.vector_norm(tile[:, whole:], dim=1, keepdim=True)
    return torch.linalg.vector_norm(torch.cat([runs, rest], dim=1), dim=1)


def _parts(members: Tensor, vectors: Tensor, whole: bool) -> list[slice] | list[Tensor]:
    """Indices of one class in tiles that fit the cache: slices, without a copy, if it is alone."""
    row_bytes = vectors.shape[1] * vectors.element_size()
    rows = max(1, _TILE_BYTES.get(vectors.device.type, 2**28) // row_bytes)
    if whole:
        return [slice(start, start + rows) for start in range(0, len(members), rows)]
    return list(torch.split(members, rows))


def _per_class(norms: Tensor, sums: Tensor, counted: Tensor, labels: Tensor) -> VectorMoments:
    def total(values: Tensor) -> Tensor:
        return values.new_zeros(len(sums)).index_add(0, labels, values)

    return VectorMoments(total(counted), sums, total(norms), total(norms.square()))


_ZERO = ("nan", "zero")


def require_pairs(vectors: Tensor) -> None:
    """Check for two vectors at least; measures of pairs need them."""
    count = len(vectors) if vectors.ndim else 1
    if count < 2:
        raise ShapeError(
            f"vectors: expected at least 2 (the measure averages over pairs), got {count}"
        )


@array_function
def vector_alignment(vectors: Float[Tensor, "n *d"]) -> Float[Tensor, ""]:
    r"""Omega: mean inner product of two different vectors, divided by their squared mean norm.

    .. math:: \Omega(V) = \frac{E_{i\ne j}\langle v_i, v_j\rangle}{(E_i\|v_i\|)^2}
              = \frac{n\,(\|\sum_i v_i\|^2 - \sum_i\|v_i\|^2)}{(n-1)\,(\sum_i\|v_i\|)^2}

    It takes ``O(n d)`` time and ``O(d)`` memory beyond the input. The absolute error is a small
    multiple of the rounding. Values near zero have no relative accuracy.

    Range: [-n / (2 (n - 1)), 1]; 1 for equal vectors only (equal directions are not enough).
    Invariant to: scaling all vectors; orthogonal maps; order of the vectors; added zero columns.
    Undefined (``nan``): all vectors are zero.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0: gradients or features of examples.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If there are fewer than two vectors, or they are empty.
        DomainError: If an entry is not finite.

    Examples:
        >>> v = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
        >>> round(vector_alignment(v).item(), 4)  # 25 / 48
        0.5208

    References:
        [mehta2021], Eq. (2)-(4).
    """
    require_pairs(vectors)
    return scale_free_moments(vectors).set_sums().alignment().squeeze(0)


@array_function
def weighted_alignment(vectors: Float[Tensor, "n *d"]) -> Float[Tensor, ""]:
    r"""Cosine of two different vectors, averaged with the product of their norms as weight.

    .. math:: \Omega_w(V) = \frac{\sum_{i\ne j}\langle v_i, v_j\rangle}
              {\sum_{i\ne j}\|v_i\|\,\|v_j\|} = \frac{Q - S_2}{S_1^2 - S_2}

    It equals Omega for vectors of equal norm, and 1 for parallel vectors of any norm. Prefer it if
    classes have few examples, because the denominator of Omega is then biased.

    Range: [-1, 1].
    Invariant to: scaling all vectors; orthogonal maps; order of the vectors; added zero columns.
    Undefined (``nan``): fewer than two vectors are not zero.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If there are fewer than two vectors, or they are empty.
        DomainError: If an entry is not finite.

    Examples:
        >>> v = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
        >>> round(weighted_alignment(v).item(), 4)  # 50 / 94
        0.5319

    References:
        [mehta2021]. Differs from paper: this is Omega with an unbiased denominator.
    """
    require_pairs(vectors)
    return scale_free_moments(vectors).set_sums().weighted_alignment().squeeze(0)


@array_function
def class_alignment(
    vectors: Float[Tensor, "n *d"],
    labels: Int[Tensor, " n"],
    num_classes: int | None = None,
    zero: str = "nan",
) -> Float[Tensor, " k"]:
    r"""Omega of the vectors of each class.

    .. math:: \Omega_c = \Omega(\{v_i : y_i = c\})

    Range: [-1, 1] in each entry.
    Invariant to: scaling all vectors; orthogonal maps; order of the examples.
    Undefined (``nan``): a class with fewer than two examples, or with zero vectors only.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.
        labels: class :math:`y_i` of each example.
        num_classes: number of classes; one more than the largest label if not given.
        zero: value of a class whose vectors are all zero (fitted examples under a hinge loss),
            ``"nan"`` or ``"zero"``.

    Returns:
        One number for every class.

    Raises:
        ShapeError: If lengths differ, or vectors are empty.
        DomainError: If an entry is not finite or a label is out of range.

    Examples:
        >>> v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
        >>> class_alignment(v, torch.tensor([0, 0, 1]))
        tensor([1., nan])

    References:
        [mehta2021], Eq. (5).
    """
    require_choice(_ZERO, zero=zero)
    return scale_free_moments(vectors, labels, num_classes).set_sums().alignment(zero)


@array_function
def in_class_alignment(
    vectors: Float[Tensor, "n *d"],
    labels: Int[Tensor, " n"],
    zero: str = "nan",
) -> Float[Tensor, ""]:
    r"""Plain mean of the classes' Omega, over the classes where it is defined.

    .. math:: \Omega_\text{in-class} = \frac1k \sum_c \Omega_c

    Range: [-1, 1].
    Invariant to: scaling all vectors; orthogonal maps; order of the examples; names of classes.
    Undefined (``nan``): no class has two examples that are not zero.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.
        labels: class :math:`y_i` of each example.
        zero: value of a class whose vectors are all zero, ``"nan"`` (left out) or ``"zero"``.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If lengths differ, or vectors are empty.
        DomainError: If an entry is not finite or a label is out of range.

    Examples:
        >>> v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
        >>> round(in_class_alignment(v, torch.tensor([0, 0, 1, 1])).item(), 4)
        0.5

    References:
        [mehta2021], Eq. (6). Differs from paper: classes without a value are left out of the mean,
        as the authors' program does.
    """
    return mean_over_classes(class_alignment(vectors, labels, zero=zero))


@array_function
def alignment_contrast(
    vectors: Float[Tensor, "n *d"],
    labels: Int[Tensor, " n"],
    zero: str = "nan",
) -> Float[Tensor, ""]:
    r"""In-class alignment minus the alignment of all pairs.

    .. math:: \Omega_\text{in-class} - \Omega

    The subtraction removes the common mean of all vectors, such as that of ReLU features.

    Range: [-2, 2]; 0 on average for random classes.
    Invariant to: scaling all vectors; orthogonal maps; order of the examples; names of classes.
    Undefined (``nan``): either part is undefined.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.
        labels: class :math:`y_i` of each example.
        zero: value of a class whose vectors are all zero, ``"nan"`` (left out) or ``"zero"``.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If lengths differ, or there are fewer than two vectors.
        DomainError: If an entry is not finite or a label is out of range.

    Examples:
        >>> v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> round(alignment_contrast(v, torch.tensor([0, 0, 1, 1])).item(), 4)
        0.6667

    References:
        [mehta2021]. Differs from paper: the paper has both terms, not their difference.
    """
    require_choice(_ZERO, zero=zero)
    require_pairs(vectors)
    moments = scale_free_moments(vectors, labels)
    overall = moments.pooled().set_sums()
    return contrast_from_sums(moments.set_sums(), overall[0], zero)


@array_function
def cosine_stiffness(vectors: Float[Tensor, "n *d"]) -> Float[Tensor, ""]:
    r"""Mean cosine of two different vectors; zero vectors are left out.

    .. math:: S(V) = E_{i\ne j}\cos(v_i, v_j)
              = \frac{\|\sum_i u_i\|^2 - m}{m(m-1)},\qquad u_i = v_i/\|v_i\|

    The mean is over the :math:`m` vectors that are not zero. It takes ``O(n d)`` and forms no
    pairs.

    Range: [-1 / (m - 1), 1].
    Invariant to: scaling of each vector; orthogonal maps; order; added zero columns.
    Undefined (``nan``): fewer than two vectors are not zero.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If there are fewer than two vectors, or they are empty.
        DomainError: If an entry is not finite.

    Examples:
        >>> v = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 3.0]])
        >>> round(cosine_stiffness(v).item(), 4)  # (0 + 2 sqrt(1/2)) / 3
        0.4714

    References:
        [fort2019]; [mehta2021], section 4. Differs from paper: linear in n; the paper computes all
        pairs.
    """
    require_pairs(vectors)
    return scale_free_moments(vectors, unit_length=True).set_sums().alignment().squeeze(0)
