"""The shapes that the per-example gradient of one tensor by one call can take.

With n examples, T positions, C rows and D columns, a structure says how the gradient of an output
with respect to the call's result becomes the gradient of each example with respect to the tensor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from theodolite.engine.calls import Axis
from theodolite.engine.patches import PatchGeometry

__all__ = [
    "Dense",
    "Lookup",
    "Outer",
    "OutputGrads",
    "Structure",
]

OutputGrads = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Outer:
    r"""A matrix whose gradient is a sum of outer products, :math:`\sum_t b_t a_t^\top`.

    Args:
        inputs: :math:`a`, of shape (n, T, D); images (n, channels, ...) where ``geometry`` is set.
        output_grads: From the result's gradient to :math:`b`, a view of shape (n, C, T).
        rows: C.
        transposed: Whether the tensor is stored as (D, C).
        geometry: How patches are cut from the images.
    """

    inputs: Tensor
    output_grads: OutputGrads
    rows: int
    transposed: bool = False
    geometry: PatchGeometry | None = None

    @property
    def positions(self) -> int:
        """T."""
        if self.geometry is None:
            return self.inputs.shape[1]
        return self.geometry.positions(self.inputs.shape[2:])

    @property
    def columns(self) -> int:
        """D."""
        return (
            self.inputs.shape[-1]
            if self.geometry is None
            else self.inputs.shape[1] * self.geometry.offset_count
        )

    def rows_of_inputs(self) -> Tensor:
        """:math:`a` as (n, T, D) whatever the geometry, D in the order of the stored tensor."""
        if self.geometry is None:
            return self.inputs
        patches = self.geometry.columns(self.inputs)  # (n, offsets, channels, T)
        return patches.transpose(1, 2).flatten(1, 2).transpose(1, 2)

    def jacobian(self, gradient: Tensor) -> Tensor:
        """Gradient of every example with respect to the tensor, (n, C, D) or (n, D, C)."""
        J = self.output_grads(gradient) @ self.rows_of_inputs().to(gradient.dtype)
        return J.transpose(1, 2) if self.transposed else J


@dataclass(frozen=True)
class Lookup:
    """A table whose rows are picked by integers: an outer product with one-hot vectors.

    Args:
        tokens: Row picked at every position, (n, T).
        output_grads: From the result's gradient to a view of shape (n, D, T).
        rows: Length of the table.
    """

    tokens: Tensor
    output_grads: OutputGrads
    rows: int

    def jacobian(self, gradient: Tensor) -> Tensor:
        """Gradient of every example with respect to the table, (n, rows, D)."""
        output_grad = self.output_grads(gradient)
        table = output_grad.new_zeros(len(output_grad), self.rows, output_grad.shape[1])
        index = self.tokens[:, :, None].expand(-1, -1, output_grad.shape[1])
        return table.scatter_add_(1, index, output_grad.transpose(1, 2))


@dataclass(frozen=True)
class Dense:
    """Any other tensor: the gradient of every example as such.

    Args:
        jacobian: From the gradient of the call's result (a tuple where it has several) to the
            gradient of every example with respect to the tensor, (n, ...).
        output_grads: Set for a bias that is added at every position of an :class:`Outer` of the
            same call: from the result's gradient to (n, C, T), whose sum over T is the Jacobian.
        own_rows: Whether the tensor has one part per example and only that part is returned.
        axis: The axis along which those parts lie in the tensor.
        needs: Tensors that must not be overwritten before the backward pass.
    """

    jacobian: Callable[[Any], Tensor]
    output_grads: OutputGrads | None = None
    own_rows: bool = False
    axis: Axis | None = None
    needs: tuple[Tensor, ...] = ()


Structure = Outer | Lookup | Dense
