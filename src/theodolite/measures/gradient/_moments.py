"""Sums of vectors per class in one pass over the data, mergeable over batches and processes."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from theodolite.checks import require_finite, require_labels, require_same_length
from theodolite.errors import ShapeError
from theodolite.linalg import double, full_precision
from theodolite.measures.gradient._sums import SetSums

__all__ = ["VectorMoments"]

_TILE_BYTES = {"cpu": 2 * 2**20, "cuda": 256 * 2**20}  # stays in cache; amortises launches
_SAFE_NORMS = (2.0**-40, 2.0**40)  # squares and their sums stay far inside float32


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
        flat = _flattened(vectors)
        if labels is None:
            labels, num_classes = flat.new_zeros(len(flat), dtype=torch.long), 1
        require_same_length(vectors=vectors, labels=labels)
        classes = require_labels(labels, num_classes)
        return _accumulate(flat, labels.long(), classes, unit_length)

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


def _flattened(vectors: Tensor) -> Tensor:
    if vectors.ndim < 2 or vectors.numel() == 0:
        raise ShapeError(
            "vectors: expected one non-empty vector per example, shape (n, d), "
            f"got shape {tuple(vectors.shape)}"
        )
    return vectors.flatten(1)


def _accumulate(vectors: Tensor, labels: Tensor, classes: int, unit_length: bool) -> VectorMoments:
    """One pass; a second one on rescaled vectors only where squares leave the safe range."""
    one = torch.ones((), dtype=vectors.dtype, device=vectors.device)
    norms, sums = _pass_over(vectors, labels, classes, one, unit_length)
    largest, scale = norms.detach().max(), one
    if not bool((largest >= _SAFE_NORMS[0]) & (largest <= _SAFE_NORMS[1])):
        require_finite(vectors=vectors)  # names the culprit; passes if only squares overflowed
        scale = _rescaling(vectors)
        norms, sums = _pass_over(vectors, labels, classes, scale, unit_length)
    if unit_length:
        nonzero = (norms > 0).double()
        return _per_class(nonzero, sums, nonzero, labels)
    back = double(scale).reciprocal()
    return _per_class(norms * back, sums * back, torch.ones_like(norms), labels)


def _rescaling(vectors: Tensor) -> Tensor:
    """A power of two that brings the largest entry near 1 without rounding anything."""
    peak = vectors.detach().abs().max()
    exponent = torch.where(
        peak > 0, torch.log2(double(peak)).floor(), torch.zeros_like(double(peak))
    )
    limit = 120.0 if vectors.dtype == torch.float32 else 1000.0  # the factor must exist too
    return torch.exp2(-exponent.clamp(-limit, limit)).to(vectors.dtype)


def _pass_over(
    vectors: Tensor, labels: Tensor, classes: int, scale: Tensor, unit_length: bool
) -> tuple[Tensor, Tensor]:
    """Norm of each scaled vector, and the sum of the (unit) vectors of each class, in float64."""
    row_bytes = vectors.shape[1] * vectors.element_size()
    rows = max(1, _TILE_BYTES.get(vectors.device.type, _TILE_BYTES["cuda"]) // row_bytes)
    rescale = bool(scale != 1)
    norms = []
    sums = torch.zeros(classes, vectors.shape[1], dtype=torch.float64, device=vectors.device)
    with full_precision():
        for tile, label in zip(torch.split(vectors, rows), torch.split(labels, rows), strict=True):
            scaled = tile * scale if rescale else tile
            norm = torch.linalg.vector_norm(scaled, dim=1)
            member = one_hot(label, classes).to(tile.dtype)
            if unit_length:
                positive = norm > 0
                member = member * (
                    positive / torch.where(positive, norm, torch.ones_like(norm))
                ).unsqueeze(1)
            sums = sums + double(member.mT @ scaled)
            norms.append(double(norm))
    return torch.cat(norms), sums


def _per_class(norms: Tensor, sums: Tensor, counted: Tensor, labels: Tensor) -> VectorMoments:
    def total(values: Tensor) -> Tensor:
        return values.new_zeros(len(sums)).index_add(0, labels, values)

    return VectorMoments(total(counted), sums, total(norms), total(norms.square()))
