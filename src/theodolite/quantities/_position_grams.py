"""Inner products of the inputs at all pairs of positions: G = A A'^T."""

import torch
from torch import Tensor

from theodolite.capture.forms import Geometry
from theodolite.quantities._factors import LookupFactors, OuterFactors
from theodolite.quantities._products import Products

__all__ = ["PositionGram"]


class PositionGram:
    """Gram matrices of blocks of examples, (nx, T, ny, T).

    For a convolution that keeps the size of its maps, the inner product of two patches is a sum of
    inner products of pixels: shifted copies of the pixels' Gram matrix, one axis after the other.
    No patch is ever cut.

    Args:
        left: Factors of the first side.
        right: Factors of the second side.
        products: How to multiply.
    """

    def __init__(
        self,
        left: OuterFactors | LookupFactors,
        right: OuterFactors | LookupFactors,
        products: Products,
    ) -> None:
        self._products, self._dtype = products, left.frame.dtype
        self._shift = left.atom.shift is not None
        geometry = left.geometry if isinstance(left, OuterFactors) else None
        self._geometry = geometry if geometry is not None and geometry.keeps_size else None
        self._spatial = _spatial(left) if self._geometry else ()
        a = _rows(left)
        b = a if left is right else _rows(right)
        self._positions = a.shape[1], b.shape[1]
        self._left, self._right = products.left(a), products.right(b)

    def block(self, left: slice, right: slice) -> Tensor:
        """Inner products between two ranges of examples, plus one where a shift is included."""
        a, b = self._left[left], self._right[right]
        if not a.is_floating_point():
            return _same_tokens(a, b).to(self._dtype)
        flat = self._products.of(a.flatten(0, 1), b.flatten(0, 1))
        gram = flat.view(len(a), self._positions[0], len(b), self._positions[1])
        if self._geometry is not None:
            gram = _sum_of_shifts(gram, self._geometry, self._spatial)
        return gram.add_(1.0) if self._shift else gram


def _spatial(factors: OuterFactors | LookupFactors) -> tuple[int, ...]:
    assert isinstance(factors, OuterFactors)
    assert factors.inputs is not None
    return tuple(factors.inputs.shape[2:])


def _rows(factors: OuterFactors | LookupFactors) -> Tensor:
    """One row per position: tokens (n, T), pixels (n, T, channels) or patches (n, T, D)."""
    if isinstance(factors, LookupFactors):
        assert factors.tokens is not None
        return factors.tokens
    assert factors.inputs is not None
    if factors.geometry is None:
        return factors.inputs
    if factors.geometry.keeps_size:
        return factors.inputs.flatten(2).transpose(1, 2).contiguous()
    patches = factors.geometry.columns(factors.inputs).flatten(1, 2)
    return patches.transpose(1, 2).contiguous()


def _same_tokens(a: Tensor, b: Tensor) -> Tensor:
    same = a[:, :, None, None] == b[None, None]
    return same.logical_and_((a >= 0)[:, :, None, None])


def _sum_of_shifts(gram: Tensor, geometry: Geometry, spatial: tuple[int, ...]) -> Tensor:
    """From inner products of pixels to inner products of patches around them."""
    left, right = gram.shape[0], gram.shape[2]
    pixels = gram.view(left, *spatial, right, *spatial)
    for axis, size in enumerate(spatial):
        reach = geometry.dilation[axis] * (geometry.kernel[axis] - 1) // 2
        if geometry.kernel[axis] == 1:
            continue
        first, second = 1 + axis, 2 + len(spatial) + axis
        total = pixels.clone() if geometry.kernel[axis] % 2 else torch.zeros_like(pixels)
        for offset in range(-reach, reach + 1, geometry.dilation[axis]):
            length = size - abs(offset)
            if offset == 0 or length <= 0:
                continue
            source, target = max(0, offset), max(0, -offset)
            shifted = pixels.narrow(first, source, length).narrow(second, source, length)
            total.narrow(first, target, length).narrow(second, target, length).add_(shifted)
        pixels = total
    return pixels.view(gram.shape)
