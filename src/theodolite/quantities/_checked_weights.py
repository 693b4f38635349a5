"""Random weights on which kernels and plain gradients must agree."""

from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.capture.batches import Batch
from theodolite.quantities._collection import weighted_gradients
from theodolite.quantities._self_check import check_quadratic_forms, require_independent_examples
from theodolite.quantities._sweep import Data, Sweep

__all__ = ["CheckWeights"]

_MANY = 16  # examples that are checked
_FEW = 2  # for the trace, which takes one backward pass per output


class CheckWeights:
    """Compare kernels with plain autograd on examples spread over the whole data.

    One backward pass checks all layers: ``u^T K_l v`` against the inner product of the gradients of
    ``sum u f`` and ``sum v f``, with random weights u and v. The trace over outputs has no such
    form; it is compared on two examples, output by output.
    """

    def __init__(self, sweep: Sweep, data: Data, other: Data | None) -> None:
        self._sweep, self._other = sweep, other
        self._mode = sweep.subject.choice.mode
        self._traced = self._mode == "trace" and sweep.outputs > 1
        count = _FEW if self._traced else _MANY
        self._left = _Side.of(data, count)
        self._right = self._left if other is None else _Side.of(other, count)
        draws = torch.Generator().manual_seed(0)
        self._u = self._draw(len(self._left.indices), draws)
        self._v = self._u if other is None else self._draw(len(self._right.indices), draws)

    def _draw(self, examples: int, draws: torch.Generator) -> Tensor:
        weights = torch.randn(examples, self._sweep.outputs, generator=draws, dtype=torch.float64)
        if self._mode != "full":
            weights[:, 1:] = 0.0
        return weights.to(self._sweep.device, self._sweep.dtype)

    def compare(self, kernels: dict[str, Tensor], outputs: Tensor) -> None:
        """Raise if the examples are not independent, or a kernel disagrees with autograd."""
        if len(outputs) > 1:
            require_independent_examples(self._sweep, outputs)
        exact: dict[str, Tensor] = {}
        for index in range(self._sweep.outputs if self._traced else 1):
            first = self._left.gradients(self._sweep, self._u.roll(index, 1))
            second = first
            if self._other is not None:
                second = self._right.gradients(self._sweep, self._v.roll(index, 1))
            for layer, value in self._inner(first, second).items():
                exact[layer] = exact[layer] + value if layer in exact else value
        parts = {layer: self._part(kernel) for layer, kernel in kernels.items()}
        forms = {layer: self._form(part) for layer, part in parts.items()}
        scales = {layer: part.norm() for layer, part in parts.items()}
        check_quadratic_forms(self._sweep, forms, exact, scales)

    def _part(self, kernel: Tensor) -> Tensor:
        """The entries of a kernel that are checked, as a matrix."""
        rows, columns = (side.indices.to(kernel.device) for side in (self._left, self._right))
        if self._mode == "full":
            part = kernel[rows][:, :, columns]
            return part.flatten(2).flatten(0, 1)
        matrix = kernel[0] if self._mode == "diagonal" else kernel
        return matrix[rows][:, columns]

    def _form(self, part: Tensor) -> Tensor:
        if self._mode == "full":
            return self._u.flatten() @ (part @ self._v.flatten())
        return self._u[:, 0] @ (part @ self._v[:, 0])

    def _inner(self, first: dict[str, Tensor], second: dict[str, Tensor]) -> dict[str, Tensor]:
        """Inner products of gradients, layer by layer."""
        zero = torch.zeros((), dtype=torch.float64, device=self._sweep.device)
        products = {
            name: (gradient.flatten().double() @ second[name].flatten().double())
            for name, gradient in first.items()
            if name in second
        }
        owned = self._sweep.subject.ownership.layers
        return {
            layer: sum((products[name] for name in names if name in products), zero)
            for layer, names in owned.items()
        }


@dataclass(frozen=True)
class _Side:
    """Some examples of a data set: their places, and batches of them."""

    indices: Tensor
    batches: list[Batch]

    @classmethod
    def of(cls, data: Data, count: int) -> "_Side":
        indices = torch.linspace(0, len(data) - 1, min(count, len(data))).round().long()
        batches, start = [], 0
        for batch in data.batches:
            inside = indices[(indices >= start) & (indices < start + len(batch))] - start
            if len(inside):
                batches.append(batch.take(inside.tolist()))
            start += len(batch)
        return cls(indices, batches)

    def gradients(self, sweep: Sweep, weights: Tensor) -> dict[str, Tensor]:
        return weighted_gradients(sweep.subject, self.batches, weights, len(self.indices))
