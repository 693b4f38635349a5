"""Random weights on which kernels and plain gradients must agree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from theodolite.engine._aside import Aside
from theodolite.engine._collection import weighted_gradients
from theodolite.engine._outputs import OutputChoice
from theodolite.engine._self_check import (
    check_quadratic_forms,
    example_differences,
    form_table,
    require_independent_examples,
)
from theodolite.engine._sweep import Data, Sweep

__all__ = ["CheckWeights"]

FullKernels = Callable[[Sweep, Data, Data | None], Mapping[str, Tensor]]

_MANY = 16  # examples that are checked
_FEW = 2  # for the trace, which takes their full kernel


class CheckWeights:
    """Compare kernels with plain autograd on examples spread over the whole data.

    One backward pass checks all layers: ``u^T K_l v`` against the inner product of the gradients of
    ``sum u f`` and ``sum v f``, with random weights u and v. The trace over outputs has no such
    form; it is compared with the full kernel of two examples, which is checked in this way.

    Made before the kernels are asked for; :meth:`begin`, amid them, asks for what needs none.

    Args:
        sweep: The sweep.
        data: Its examples.
        other: Those of the second side, if there is one.
        aside: Made before the kernels were asked for.
    """

    def __init__(self, sweep: Sweep, data: Data, other: Data | None, aside: Aside) -> None:
        self._sweep, self._data, self._other, self._aside = sweep, data, other, aside
        self._mode = sweep.subject.choice.mode
        self._traced = self._mode == "trace" and sweep.outputs > 1
        self._exact: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Ask for all that needs no kernel, beside whatever the device is doing."""
        count = _FEW if self._traced else _MANY
        draws = torch.Generator().manual_seed(0)
        other, device = self._other, self._sweep.device
        with self._aside.work():
            self._left = _Side.of(self._data, count, device)
            self._right = self._left if other is None else _Side.of(other, count, device)
            self._u = self._draw(len(self._left.indices), draws)
            self._v = self._u if other is None else self._draw(len(self._right.indices), draws)
        if not self._traced:
            self._exact = self._from_gradients()

    def _draw(self, examples: int, draws: torch.Generator) -> Tensor:
        weights = torch.randn(examples, self._sweep.outputs, generator=draws, dtype=torch.float64)
        if self._mode != "full":
            weights[:, 1:] = 0.0
        return weights.to(self._sweep.device, self._sweep.dtype)

    def compare(
        self, kernels: dict[str, Tensor], outputs: Tensor, full_kernels: FullKernels
    ) -> None:
        """Raise if the examples are not independent, or a kernel disagrees with autograd.

        Args:
            kernels: Layer -> kernel.
            outputs: Functions of the examples, (n, c).
            full_kernels: Computes and checks full kernels of a sweep.
        """
        sweep = self._sweep
        exact = self._traces(full_kernels) if self._traced else self._exact
        parts = {layer: self._part(kernel) for layer, kernel in kernels.items()}
        forms = {layer: self._form(part) for layer, part in parts.items()}
        scales = {layer: part.norm() for layer, part in parts.items()}
        table, differences = form_table(forms, exact, scales), example_differences(sweep, outputs)
        numbers = torch.cat([differences, table.flatten()]).cpu()  # waits for the device once
        if len(outputs) > 1:
            require_independent_examples(sweep, numbers[:2])
        check_quadratic_forms(sweep, list(forms), numbers[2:].view_as(table))

    def _traces(self, full_kernels: FullKernels) -> dict[str, Tensor]:
        """Forms of the traces of small full kernels."""
        small = full_kernels(self._full_sweep(), self._left.data, self._right_data())
        traces = (
            (layer, kernel.diagonal(dim1=1, dim2=3).sum(2)) for layer, kernel in small.items()
        )
        return {layer: self._form(trace) for layer, trace in traces}

    def _full_sweep(self) -> Sweep:
        subject = replace(self._sweep.subject, choice=OutputChoice("full"))
        return replace(self._sweep, subject=subject)

    def _right_data(self) -> Data | None:
        return None if self._other is None else self._right.data

    def _part(self, kernel: Tensor) -> Tensor:
        """The entries of a kernel that are checked, as a matrix."""
        rows, columns = self._left.indices[:, None], self._right.indices
        if self._mode == "full":
            part = kernel[rows, :, columns].transpose(1, 2)  # (rows, c, columns, c)
            return part.flatten(2).flatten(0, 1)
        matrix = kernel[0] if self._mode == "diagonal" else kernel
        return matrix[rows, columns]

    def _form(self, part: Tensor) -> Tensor:
        if self._mode == "full":
            return self._u.flatten() @ (part @ self._v.flatten())
        return self._u[:, 0] @ (part @ self._v[:, 0])

    def _from_gradients(self) -> dict[str, Tensor]:
        with self._aside.work():
            first = self._left.gradients(self._sweep, self._u)
            second = first if self._other is None else self._right.gradients(self._sweep, self._v)
            return self._inner(first, second)

    def _inner(self, first: dict[str, Tensor], second: dict[str, Tensor]) -> dict[str, Tensor]:
        """Inner products of gradients, layer by layer."""
        zero = torch.zeros((), dtype=torch.float64, device=self._sweep.device)
        products = {
            name: (_wide(gradient) @ _wide(second[name])).double()
            for name, gradient in first.items()
            if name in second
        }
        owned = self._sweep.subject.ownership.layers
        return {
            layer: sum((products[name] for name in names if name in products), zero)
            for layer, names in owned.items()
        }


def _wide(gradient: Tensor) -> Tensor:
    """A vector of at least float32; its rounding is far below the tolerance of the check."""
    return gradient.flatten().to(torch.promote_types(gradient.dtype, torch.float32))


@dataclass(frozen=True)
class _Side:
    """Some examples of a data set: their places, and batches of them."""

    indices: Tensor
    data: Data

    @classmethod
    def of(cls, data: Data, count: int, device: torch.device) -> "_Side":
        indices = torch.linspace(0, len(data) - 1, min(count, len(data))).round().long()
        batches, start = [], 0
        for batch in data.batches:
            inside = indices[(indices >= start) & (indices < start + len(batch))] - start
            if len(inside):
                batches.append(batch.take(inside.tolist()))
            start += len(batch)
        return cls(indices.to(device), Data(batches))

    def gradients(self, sweep: Sweep, weights: Tensor) -> dict[str, Tensor]:
        return weighted_gradients(sweep.subject, self.data.batches, weights, len(self.indices))
