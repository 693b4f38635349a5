"""Sums of vectors, per class and in one pass, from which alignment and its relatives follow."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.checks import require_finite, require_labels, require_same_length
from theodolite.errors import ShapeError
from theodolite.linalg import SetSums, double, full_precision, prints_shapes

_TILE_BYTES = {"cpu": 2**21}  # stays in the cache; elsewhere large, to amortise launches
_RUN = 4096  # entries summed one after the other
_SAFE_NORMS = (2.0**-40, 2.0**40)  # squares and their sums stay far inside float32


@prints_shapes
@dataclass(frozen=True)
class VectorMoments:
    r"""Per class :math:`n_c`, :math:`\sum v_i`, :math:`\sum\|v_i\|` and :math:`\sum\|v_i\|^2`.

    Moments of disjoint shards add. Vectors are flattened after axis 0. Costs ``O(n d)`` time and
    ``O(k d)`` memory beyond the input, which is read once: norms and sums of one tile are taken
    while it is in the cache, in the dtype of the vectors, and added up in float64.

    Example:
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
            num_classes: number of classes, else one more than the largest label.
            unit_length: divide each vector by its norm; zero vectors then count for nothing.
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
    """One row per example, whatever axes follow the first."""
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
    """Moments in a unit of length near the largest entry: squares can neither overflow nor vanish.

    For measures that do not depend on the unit; moments that are to be merged need the true one.
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
        require_finite(vectors=vectors)  # names the culprit; passes if only squares overflowed
        factors = _rescaling(flat, per_row=unit_length)
        norms, sums = _pass_over(flat, labels, classes, factors, unit_length)
        scale = double(factors[0, 0])
    if unit_length:
        nonzero = (norms > 0).double()
        return _per_class(nonzero, sums, nonzero, labels), torch.ones_like(scale)
    return _per_class(norms, sums, torch.ones_like(norms), labels), scale


def _are_safe(norms: Tensor, each: bool) -> bool:
    """Whether squares of the longest vector, or of each of them, are far from both limits."""
    low, high = _SAFE_NORMS
    smallest = norms.min() if each else norms.max()
    return bool((smallest >= low) & (norms.max() <= high))


def _rescaling(vectors: Tensor, per_row: bool) -> Tensor:
    """Powers of two, one per row, that bring entries near 1 without rounding anything."""
    sizes = double(vectors.detach().abs().amax(1, keepdim=True))
    peaks = sizes if per_row else sizes.max().expand_as(sizes)
    exponents = torch.where(peaks > 0, torch.log2(peaks).floor(), torch.zeros_like(peaks))
    limit = 120.0 if vectors.dtype == torch.float32 else 1000.0  # the factor must exist too
    return torch.exp2(-exponents.clamp(-limit, limit)).to(vectors.dtype)


def _pass_over(
    vectors: Tensor, labels: Tensor, classes: int, factors: Tensor | None, unit_length: bool
) -> tuple[Tensor, Tensor]:
    """Norm of each scaled vector, and the sum of the (unit) vectors of each class, in float64.

    Class after class: a sum is then one product with a row of weights, whatever the class count.
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
    """Norm of each row, in two levels: float32 on the CPU sums one after the other otherwise.

    A single level is off by 3e-5 at two million entries, two levels by 8e-8.
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
