"""A table that is looked up and also multiplied, as embeddings tied to the output layer are."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from theodolite.engine._atoms import Atom
from theodolite.engine._factors import Factors, Frame, Gradients, LookupFactors, OuterFactors
from theodolite.engine._routes import Route
from theodolite.engine.forms import Outer
from theodolite.engine.uses import Use

__all__ = ["MixedFactors", "crossed"]

Item = TypeVar("Item")


class MixedFactors(Factors):
    """Factors of the lookups and of the products apart; gradients are never formed.

    Args:
        atom: The atom.
        frame: Sizes.
        route: How the products' own part will be contracted.
    """

    def __init__(self, atom: Atom, frame: Frame, route: Route) -> None:
        super().__init__(atom, frame)
        self.outer = OuterFactors(Atom(atom.parameter, "outer", atom.uses), frame, route, False)
        self.lookup = LookupFactors(Atom(atom.parameter, "lookup", atom.uses), frame)
        self._is_outer: list[bool] = []

    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Hand every use to its kind."""
        self._is_outer = [isinstance(use.form, Outer) for use in uses]
        self.outer.begin(rows, self._chosen(uses, True))
        self.lookup.begin(rows, self._chosen(uses, False))

    def add(self, output: int, gradients: Sequence[Gradients]) -> None:
        """Hand every gradient to its kind."""
        self.outer.add(output, self._chosen(gradients, True))
        self.lookup.add(output, self._chosen(gradients, False))

    def _chosen(self, items: Sequence[Item], kind: bool) -> list[Item]:
        return [item for item, outer in zip(items, self._is_outer, strict=True) if outer == kind]

    def end(self) -> None:
        """Forget the graph."""
        self.outer.end()
        self.lookup.end()

    def release(self) -> None:
        """Forget everything."""
        self.outer.release()
        self.lookup.release()


def crossed(outer: OuterFactors, lookup: LookupFactors) -> Tensor | None:
    r"""Inner products between gradients of products and of lookups, (nx, c, ny, c).

    .. math:: \sum_{t, s} b^i_t[\mathrm{token}_s]\; (a_t \cdot \beta^j_s)

    for products with inputs a and signals b, and lookups of tokens with signals beta.
    """
    if outer.signals is None or lookup.signals is None:
        return None
    assert outer.inputs is not None
    assert lookup.tokens is not None
    columns = []
    for tokens, signals in zip(lookup.tokens, lookup.signals, strict=True):
        c, D, S = signals.shape
        picked = outer.signals[:, :, tokens.clamp(min=0)].flatten(2)  # (nx, c, S T)
        carried = outer.inputs @ signals.transpose(0, 1).reshape(D, c * S)
        carried = carried.view(*carried.shape[:2], c, S).permute(0, 3, 1, 2)  # (nx, S, T, c)
        columns.append(picked @ carried.flatten(1, 2))
    return torch.stack(columns, 2)
