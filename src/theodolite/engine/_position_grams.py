"""Inner products of the inputs at all pairs of positions: G = A A'^T."""

import torch
from torch import Tensor

from theodolite.engine._factors import LookupFactors, OuterFactors
from theodolite.engine._products import Products
from theodolite.engine.forms import Geometry

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
    for axis in range(len(spatial)):
        taps = geometry.kernel[axis]
        if taps == 1:
            continue
        reach = geometry.dilation[axis] * (taps - 1) // 2
        offsets = [*range(-reach, reach + 1, geometry.dilation[axis])]
        pixels = _sum_along(pixels, (1 + axis, 2 + len(spatial) + axis), offsets)
    return pixels.view(gram.shape)


def _sum_along(pixels: Tensor, axes: tuple[int, int], offsets: list[int]) -> Tensor:
    """Sum of copies that are moved along two axes together; zeros come in from outside."""
    size = pixels.shape[axes[0]]
    moves = [offset for offset in offsets if 0 < abs(offset) < size]
    if 0 in offsets and moves:  # the copy and the first shift in one pass
        total = _with_moved(pixels, axes, moves.pop())
    else:
        total = pixels.clone() if 0 in offsets else torch.zeros_like(pixels)
    for offset in moves:
        length, source, target = size - abs(offset), max(0, offset), max(0, -offset)
        _both(total, axes, target, length).add_(_both(pixels, axes, source, length))
    return total


def _with_moved(pixels: Tensor, axes: tuple[int, int], offset: int) -> Tensor:
    """A tensor plus itself moved by a positive offset."""
    total, first = torch.empty_like(pixels), axes[0]
    length = pixels.shape[first] - offset
    here, there = _both(pixels, axes, 0, length), _both(pixels, axes, offset, length)
    torch.add(here, there, out=_both(total, axes, 0, length))
    # where nothing is added: the last lines along one axis, then the rest of those along the other
    total.narrow(first, length, offset).copy_(pixels.narrow(first, length, offset))
    beside = [x.narrow(first, 0, length).narrow(axes[1], length, offset) for x in (total, pixels)]
    beside[0].copy_(beside[1])
    return total


def _both(tensor: Tensor, axes: tuple[int, int], start: int, length: int) -> Tensor:
    return tensor.narrow(axes[0], start, length).narrow(axes[1], start, length)
