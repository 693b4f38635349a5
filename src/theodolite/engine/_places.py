"""Every example once more, beside others and elsewhere in the batch: is each in its place?

A model may move examples along the batch by any means: an index, a sort, a product with a
permutation, a view. Whatever it does, a call that receives parameters must receive from an example
what it received before, wherever in a batch that example stands. A few random products of what
calls receive, for each example, are enough to compare.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch._C import _are_functorch_transforms_active

from theodolite.engine.calls import Axis, split_examples

__all__ = ["Prints", "shuffled_halves", "some_places"]

_SOME = 16  # examples that must do where none can have been moved
_PRODUCTS = 2  # random products per example: one may come out alike by chance


def shuffled_halves(count: int, draw: int = 0) -> list[list[int]]:
    """All places of a batch in two parts, in a random order that is the same for equal draws."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count + draw)).tolist()
    half = -(-count // 2)
    return [part for part in (order[:half], order[half:]) if part]


def some_places(count: int) -> list[list[int]]:
    """Some places of a large batch, spread over it and in another order; all of a small one."""
    if count <= 2 * _SOME:
        return shuffled_halves(count)
    step = (count - 1) / (_SOME - 1)
    places = [round(step * k) for k in range(_SOME)]
    return [places[1::2][::-1] + places[0::2][::-1]]


@dataclass(frozen=True)
class _Print:
    """What one call received of every example.

    Args:
        function: Name of the function.
        axes: Where the examples lie in its tensors.
        widths: Numbers per example in those that have an axis of examples.
        products: Random products of these numbers.
    """

    function: str
    axes: list[Axis | None]
    widths: list[int]
    products: list[Float[Tensor, "k n"]]


class Prints:
    """Random products of what calls receive of each example, while a model runs.

    Args:
        expected: Those of an earlier run, which tell where the examples lie; None to be told.

    Attributes:
        blind: Whether some call cannot be looked into: nested tensors, or a transform of functions.
    """

    def __init__(self, expected: "Prints | None" = None) -> None:
        self.calls: list[_Print] = []
        self.blind = False
        self._expected = expected
        self._weights: dict[tuple[int, torch.dtype, torch.device], Tensor] = (
            {} if expected is None else expected._weights
        )

    def add(
        self, function: str, tensors: list[Tensor], axes: list[Axis | None], examples: int
    ) -> None:
        """Note a call; later runs take the axes of the earlier one."""
        if _are_functorch_transforms_active() or any(tensor.is_nested for tensor in tensors):
            self.blind = True
            tensors, axes = [], []
        elif self._expected is not None:
            earlier = self._expected.calls
            known = earlier[len(self.calls)].axes if len(self.calls) < len(earlier) else []
            tensors = tensors[: len(known)]
            axes = known if len(known) == len(tensors) else [None] * len(tensors)
        rows = [
            self._rows(tensor, axis, examples)
            for tensor, axis in zip(tensors, axes, strict=True)
            if axis is not None and _fits(tensor, axis, examples)
        ]
        # One product with a vector at a time: those with a thin matrix take ten times as long.
        products = [torch.stack([row.mv(v) for v in self._vectors(row)]) for row in rows]
        self.calls.append(_Print(function, axes, [row.shape[1] for row in rows], products))

    def _rows(self, tensor: Tensor, axis: Axis, examples: int) -> Float[Tensor, "n d"]:
        values = tensor.detach()
        values = values.to_dense() if values.layout != torch.strided else values
        parts = split_examples(values, examples, axis)
        parts = torch.view_as_real(parts) if parts.is_complex() else parts
        rounded = parts.is_floating_point() and parts.dtype != torch.float64
        wide = torch.float32 if rounded else torch.float64  # whole numbers are exact
        return parts.reshape(examples, parts[0].numel()).to(wide)

    def _vectors(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "k d"]:
        key = (rows.shape[1], rows.dtype, rows.device)
        if key not in self._weights:
            draws = torch.Generator(rows.device).manual_seed(0)
            self._weights[key] = torch.randn(
                _PRODUCTS, rows.shape[1], generator=draws, dtype=rows.dtype, device=rows.device
            )
        return self._weights[key]

    def like(self, other: "Prints") -> bool:
        """Whether two runs can be compared: the same calls, of examples of the same size."""
        own, others = ([(call.function, call.widths) for call in p.calls] for p in (self, other))
        return own == others and not self.blind and not other.blind

    def misplaced(self, again: "Prints", places: list[int], tolerance: float) -> str | None:
        """The function that receives other numbers from the examples in another run, if one does.

        Args:
            again: What calls have received from some of the examples in the other run.
            places: Where these examples are in this run.
            tolerance: Relative difference that rounding explains.
        """
        names, gaps = [], []
        for call, other in zip(self.calls, again.calls, strict=True):
            for found, wanted in zip(call.products, other.products, strict=True):
                gap = (found[:, places] - wanted).nan_to_num().abs().amax()
                names.append(call.function)
                gaps.append((gap - tolerance * found.nan_to_num().square().mean().sqrt()).double())
        if not gaps:
            return None
        wrong = (torch.stack(gaps) > torch.finfo(torch.float32).tiny).nonzero().flatten().tolist()
        return names[wrong[0]] if wrong else None


def _fits(tensor: Tensor, axis: Axis, examples: int) -> bool:
    return axis.index < tensor.dim() and tensor.shape[axis.index] % examples == 0
