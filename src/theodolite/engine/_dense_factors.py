"""Gradients of examples that are kept as they are."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.engine._atoms import Atom
from theodolite.engine._factors import Factors, Frame, Gradients
from theodolite.engine.axes import split_examples
from theodolite.engine.forms import Dense
from theodolite.engine.origins import pull_back
from theodolite.engine.uses import Use

__all__ = ["DenseFactors"]

_PULLED_BYTES = 2**26  # gradients that are pulled back at a time


class DenseFactors(Factors):
    """Gradients (n, c, P) as such, pulled back to the parameter where it was transformed."""

    def __init__(self, atom: Atom, frame: Frame, parameter: nn.Parameter) -> None:
        super().__init__(atom, frame)
        self._parameter = parameter
        self.gradients: list[Tensor] = []

    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Remember the forms."""
        for use in uses:
            use.require_unchanged()
        self._rows, self._uses = rows, uses

    def add(self, output: int, gradients: Sequence[Gradients]) -> None:
        """Add up the gradients of all uses."""
        for use, given in zip(self._uses, gradients, strict=True):
            if all(gradient is None for gradient in given):
                continue
            rows = self._jacobian(use, given).flatten(1)
            if not self.gradients:
                self.gradients.append(self.frame.zeros(self.frame.outputs, rows.shape[1]))
            self.gradients[0][self._rows, output] += rows

    def _jacobian(self, use: Use, given: Gradients) -> Tensor:
        filled = tuple(
            torch.zeros(shape, dtype=use.origin.tensor.dtype, device=self.frame.device)
            if gradient is None
            else gradient
            for gradient, shape in zip(given, use.results, strict=True)
        )
        form = use.form
        jacobian: Callable[[Any], Tensor] = form.jacobian
        rows = jacobian(filled if len(filled) > 1 else filled[0])
        if isinstance(form, Dense) and form.own_rows:
            return torch.cat([self._pulled_own(use, form, rows, k) for k in range(len(rows))])
        rows = rows.reshape(len(rows), *use.origin.tensor.shape)
        if self.atom.direct:
            scale = use.origin.scale
            return rows.to(self.frame.dtype) * (1.0 if scale is None else scale)
        return self._pulled(use, rows)

    def _pulled(self, use: Use, rows: Tensor) -> Tensor:
        size = max(1, _PULLED_BYTES // (rows[0].numel() * rows.element_size()))
        parts = [pull_back(use.origin, self._parameter, part) for part in torch.split(rows, size)]
        return torch.cat(parts).to(self.frame.dtype)

    def _pulled_own(self, use: Use, form: Dense, rows: Tensor, index: int) -> Tensor:
        """One part per example: the gradient of an example is zero in the parts of the others."""
        assert form.axis is not None
        tensor = use.origin.tensor
        full = rows.new_zeros(tensor.shape)
        split_examples(full, len(rows), form.axis)[index] = rows[index]
        return pull_back(use.origin, self._parameter, full.unsqueeze(0)).to(self.frame.dtype)

    def end(self) -> None:
        """Forget the graph."""
        self._uses = ()

    def release(self) -> None:
        """Forget the gradients."""
        self.gradients = []
