"""The shapes that the per-example gradient of one tensor by one call can take.

With n examples, T positions, C rows and D columns, a form says how the gradient of an output with
respect to the call's result becomes the gradient of each example with respect to the tensor.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch.nn import functional

from theodolite.engine.axes import Axis

__all__ = ["Dense", "Form", "Geometry", "Lookup", "Outer", "Signals", "per_axis"]

Signals = Callable[[Tensor], Tensor]


def per_axis(value: SupportsIndex | Sequence[SupportsIndex], count: int) -> tuple[int, ...]:
    """An option of a convolution as one number per axis, whatever kind of integer it was."""
    numbers = tuple(map(int, value)) if isinstance(value, Sequence) else (int(value),)
    return numbers * count if len(numbers) == 1 else numbers


@dataclass(frozen=True)
class Geometry:
    """How a convolution cuts patches out of images; equal geometries may share buffers."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def taps(self) -> int:
        """Number of positions in one patch."""
        return int(torch.Size(self.kernel).numel())

    def output_size(self, spatial: tuple[int, ...]) -> tuple[int, ...]:
        """Spatial size of the convolution's result."""
        sizes = zip(spatial, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((s + 2 * p - d * (k - 1) - 1) // t + 1 for s, k, t, p, d in sizes)

    @property
    def keeps_size(self) -> bool:
        """Stride 1 and the same number of positions before and after."""
        return all(t == 1 for t in self.stride) and all(
            2 * p == d * (k - 1)
            for k, p, d in zip(self.kernel, self.padding, self.dilation, strict=True)
        )

    def offsets(self) -> list[tuple[int, ...]]:
        """Offset of every tap in the padded image, in the order of the kernel's entries."""
        axes = [range(0, k * d, d) for k, d in zip(self.kernel, self.dilation, strict=True)]
        return list(product(*axes))

    def columns(self, images: Tensor, taps: slice = slice(None)) -> Tensor:
        """Entries of the patches at these taps, (n, taps, channels, T)."""
        spatial = tuple(images.shape[2:])
        sizes = self.output_size(spatial)
        edges = [edge for p in reversed(self.padding) for edge in (p, p)]
        padded = functional.pad(images, edges) if any(edges) else images
        chosen = self.offsets()[taps]
        result = images.new_empty(len(images), len(chosen), images.shape[1], *sizes)
        for index, offset in enumerate(chosen):
            spans = zip(offset, sizes, self.stride, strict=True)
            window = tuple(slice(o, o + (s - 1) * t + 1, t) for o, s, t in spans)
            result[:, index].copy_(padded[(slice(None), slice(None), *window)])
        return result.flatten(3)


@dataclass(frozen=True)
class Outer:
    r"""A matrix whose gradient is a sum of outer products, :math:`\sum_t b_t a_t^\top`.

    Args:
        inputs: :math:`a`, of shape (n, T, D); images (n, channels, ...) where ``geometry`` is set.
        signals: From the result's gradient to :math:`b`, a view of shape (n, C, T).
        rows: C.
        transposed: Whether the tensor is stored as (D, C).
        geometry: How patches are cut from the images.
    """

    inputs: Tensor
    signals: Signals
    rows: int
    transposed: bool = False
    geometry: Geometry | None = None

    @property
    def positions(self) -> int:
        """T."""
        if self.geometry is None:
            return self.inputs.shape[1]
        return int(torch.Size(self.geometry.output_size(tuple(self.inputs.shape[2:]))).numel())

    @property
    def columns(self) -> int:
        """D."""
        return (
            self.inputs.shape[-1]
            if self.geometry is None
            else (self.inputs.shape[1] * self.geometry.taps)
        )

    def rows_of_inputs(self) -> Tensor:
        """:math:`a` as (n, T, D) whatever the geometry, D in the order of the stored tensor."""
        if self.geometry is None:
            return self.inputs
        patches = self.geometry.columns(self.inputs)  # (n, taps, channels, T)
        return patches.transpose(1, 2).flatten(1, 2).transpose(1, 2)

    def jacobian(self, gradient: Tensor) -> Tensor:
        """Gradient of every example with respect to the tensor, (n, C, D) or (n, D, C)."""
        J = self.signals(gradient) @ self.rows_of_inputs().to(gradient.dtype)
        return J.transpose(1, 2) if self.transposed else J


@dataclass(frozen=True)
class Lookup:
    """A table whose rows are picked by integers: an outer product with one-hot vectors.

    Args:
        tokens: Row picked at every position, (n, T).
        signals: From the result's gradient to a view of shape (n, D, T).
        rows: Length of the table.
    """

    tokens: Tensor
    signals: Signals
    rows: int

    def jacobian(self, gradient: Tensor) -> Tensor:
        """Gradient of every example with respect to the table, (n, rows, D)."""
        signal = self.signals(gradient)
        table = signal.new_zeros(len(signal), self.rows, signal.shape[1])
        index = self.tokens[:, :, None].expand(-1, -1, signal.shape[1])
        return table.scatter_add_(1, index, signal.transpose(1, 2))


@dataclass(frozen=True)
class Dense:
    """Any other tensor: the gradient of every example as such.

    Args:
        jacobian: From the gradient of the call's result (a tuple where it has several) to the
            gradient of every example with respect to the tensor, (n, ...).
        signals: Set for a shift that is added at every position of an :class:`Outer` of the
            same call: from the result's gradient to (n, C, T), whose sum over T is the Jacobian.
        own_rows: Whether the tensor has one part per example and only that part is returned.
        axis: The axis along which those parts lie in the tensor.
        needs: Tensors that must not be overwritten before the backward pass.
    """

    jacobian: Callable[[Any], Tensor]
    signals: Signals | None = None
    own_rows: bool = False
    axis: Axis | None = None
    needs: tuple[Tensor, ...] = ()


Form = Outer | Lookup | Dense
