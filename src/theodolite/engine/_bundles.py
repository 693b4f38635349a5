"""Gradients of many small tensors as one: scales and shifts cost a few products, not one each."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.engine._example_gradients import (
    DenseGradients,
    ExampleGradients,
    Segment,
    Sink,
)

__all__ = ["Bundle", "bundled", "column_groups"]

_SMALL = 2**14  # entries of a tensor whose cost is that of the calls, not of the numbers

Named = tuple[str, ExampleGradients]


@final
class Bundle:
    """Gradients of one or several tensors, with the width of each.

    Args:
        names: the tensors.
        gradients: gradients of all of them side by side.
        widths: entries of each tensor; empty for a single one, whose norms come from elsewhere.
    """

    def __init__(
        self, names: tuple[str, ...], gradients: ExampleGradients, widths: tuple[int, ...] = ()
    ) -> None:
        self.names, self.gradients, self.widths = names, gradients, widths

    def reduce(self, segments: Sequence[Segment], sink: Sink) -> Float[Tensor, "m n"]:
        """Squared norms per tensor and example; sums of segments go to the sink."""
        if not self.widths:
            return self.gradients.reduce(segments, sink).unsqueeze(0)
        assert isinstance(self.gradients, DenseGradients)
        self.gradients.sums(segments, None, sink)
        rows = self.gradients.rows
        return (rows.double().square() @ column_groups(self.widths, rows.device)).mT


def bundled(gradients: Iterator[Named]) -> Iterator[Bundle]:
    """The same gradients, all small ones together at the end."""
    small: list[tuple[str, DenseGradients]] = []
    for name, values in gradients:
        if isinstance(values, DenseGradients) and values.rows.shape[1] <= _SMALL:
            small.append((name, values))
        else:
            yield Bundle((name,), values)
    if small:
        together = DenseGradients(torch.cat([values.rows for _, values in small], dim=1))
        widths = tuple(values.rows.shape[1] for _, values in small)
        yield Bundle(tuple(name for name, _ in small), together, widths)


@lru_cache(maxsize=8)
def column_groups(widths: tuple[int, ...], device: torch.device) -> Float[Tensor, "p m"]:
    """Column m is one on the entries of tensor m."""
    groups = torch.zeros(sum(widths), len(widths), dtype=torch.float64, device=device)
    start = 0
    for index, width in enumerate(widths):
        groups[start : start + width, index] = 1.0
        start += width
    return groups
