"""Random weights on which kernels and plain gradients must agree."""

import torch
from torch import Tensor

from theodolite.capture.batches import Batch
from theodolite.quantities._blocks import KernelBlock
from theodolite.quantities._collection import weighted_gradients
from theodolite.quantities._self_check import check_quadratic_forms, require_independent_examples
from theodolite.quantities._sweep import Data, Sweep

__all__ = ["CheckWeights"]

_FEW = 2  # examples on which the trace is checked, one backward pass per output


class CheckWeights:
    """Weights u and v of both sides, the gradients they give, and the comparison.

    One backward pass checks all layers: ``u^T K_l v`` against the inner product of the gradients of
    ``sum u f`` and ``sum v f``. The trace over outputs has no such form; it is compared on a few
    examples, output by output.
    """

    def __init__(self, sweep: Sweep, data: Data, other: Data | None) -> None:
        self._sweep, self._data, self._other = sweep, data, other
        self._mode = sweep.subject.choice.mode
        self._traced = self._mode == "trace" and sweep.outputs > 1
        self._active = sweep.settings.check and not self._traced
        draws = torch.Generator().manual_seed(0)
        self._u = self._draw(len(data), draws)
        self._v = self._u if other is None else self._draw(len(other), draws)
        self._gradients: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})

    def _draw(self, examples: int, draws: torch.Generator) -> Tensor:
        weights = torch.randn(examples, self._sweep.outputs, generator=draws, dtype=torch.float64)
        if self._mode == "diagonal":
            weights[:, 1:] = 0.0
        return weights.to(self._sweep.device, self._sweep.dtype)

    def left(self, rows: slice) -> Tensor | None:
        """Weights of examples of the first set."""
        return self._u[rows] if self._active else None

    def right(self, rows: slice) -> Tensor | None:
        """Weights of examples of the second set."""
        return self._v[rows] if self._active else None

    def add(self, side: int, gradients: dict[str, Tensor]) -> None:
        """Add gradients of the weighted outputs of some examples: side 0 or 1."""
        total = self._gradients[side]
        for name, gradient in gradients.items():
            total[name] = total[name] + gradient if name in total else gradient

    def compare(self, kernels: dict[str, Tensor], outputs: Tensor) -> None:
        """Raise if the examples are not independent, or a kernel disagrees with autograd."""
        if len(self._data) > 1:
            require_independent_examples(self._sweep, outputs)
        if self._traced:
            self._compare_traces(kernels)
            return
        second = self._gradients[0 if self._other is None else 1]
        exact = self._inner(self._gradients[0], second)
        forms = {layer: self._form(kernel) for layer, kernel in kernels.items()}
        scales = {layer: kernel.norm() for layer, kernel in kernels.items()}
        check_quadratic_forms(self._sweep, forms, exact, scales)

    def _form(self, kernel: Tensor) -> Tensor:
        matrix = KernelBlock(kernel, self._mode).matrices()[0]
        if self._mode == "diagonal":
            return self._u[:, 0] @ (matrix @ self._v[:, 0])
        return self._u.flatten() @ (matrix @ self._v.flatten())

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

    def _compare_traces(self, kernels: dict[str, Tensor]) -> None:
        left, right = _few(self._data), _few(self._other or self._data)
        u, v = self._u[: len(left), :1], self._v[: len(right), :1]
        exact: dict[str, Tensor] = {}
        for index in range(self._sweep.outputs):
            first = self._gradient(left, u, index)
            second = first if self._other is None else self._gradient(right, v, index)
            for layer, value in self._inner(first, second).items():
                exact[layer] = exact.get(layer, 0.0) + value
        forms, scales = {}, {}
        for layer, kernel in kernels.items():
            part = kernel[: len(u), : len(v)]
            forms[layer], scales[layer] = u[:, 0] @ (part @ v[:, 0]), part.norm()
        check_quadratic_forms(self._sweep, forms, exact, scales)

    def _gradient(self, batch: Batch, weights: Tensor, index: int) -> dict[str, Tensor]:
        full = weights.new_zeros(len(weights), self._sweep.outputs)
        full[:, index] = weights[:, 0]
        return weighted_gradients(self._sweep.subject, [batch], full, len(batch))


def _few(data: Data) -> Batch:
    return data.batches[0].take(slice(0, _FEW))
