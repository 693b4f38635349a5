"""A table that is looked up and multiplied with: embeddings tied to the output of a language model.

The gradient of an example has the size of the vocabulary; its norm follows from factors alone.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.engine._example_gradients import (
    ExampleGradients,
    LookupGradients,
    OuterGradients,
    Segment,
    Sink,
)
from theodolite.engine.forms import Form, Lookup, Outer

__all__ = ["TiedGradients", "is_tied_table"]


def is_tied_table(forms: Sequence[Form]) -> bool:
    """Whether a tensor is used as a table of rows and as a matrix with the same rows."""
    lookups = [form for form in forms if isinstance(form, Lookup)]
    outers = [form for form in forms if isinstance(form, Outer)]
    if not lookups or not outers or len(lookups) + len(outers) < len(forms):
        return False
    return all(
        outer.geometry is None and not outer.transposed and outer.rows == lookups[0].rows
        for outer in outers
    )


@final
class TiedGradients(ExampleGradients):
    r"""Gradients :math:`\sum_t e_{k_t} s_t^\top + \sum_u b_u a_u^\top` of one table."""

    def __init__(self, forms: Sequence[Form], gradients: Sequence[Tensor], scale: float) -> None:
        pairs = list(zip(forms, gradients, strict=True))
        lookups = [form for form in forms if isinstance(form, Lookup)]
        outers = [form for form in forms if isinstance(form, Outer)]
        looked_up = [value for form, value in pairs if isinstance(form, Lookup)]
        multiplied = [value for form, value in pairs if isinstance(form, Outer)]
        self.lookup = LookupGradients(lookups, looked_up, scale)
        self.outer = OuterGradients(outers, multiplied, scale)

    def reduce(self, segments: Sequence[Segment], sink: Sink) -> Float[Tensor, " n"]:
        """The two squared norms and twice the inner product, position by position."""
        squares = self.lookup.reduce((), sink) + self.outer.reduce((), sink)
        tokens, signals = self.lookup.factors()  # (n, T), (n, T, D)
        inputs, outputs = self.outer.factors()  # (n, U, D), (n, rows, U)
        picked = outputs.gather(1, tokens.unsqueeze(2).expand(-1, -1, outputs.shape[2]))
        cross = ((signals @ inputs.mT) * picked).sum((1, 2), dtype=torch.float64)
        self.weighted_sums(segments, signals.new_ones(len(signals)), sink)
        return (squares + 2 * cross).clamp_(min=0.0)

    def weighted_sums(
        self, segments: Sequence[Segment], weights: Float[Tensor, " n"], sink: Sink
    ) -> None:
        """Both sums of a segment, added before they are handed over."""
        for part in segments:
            table, product = _Total(), _Total()
            self.lookup.weighted_sums([part], weights, table.add)
            self.outer.weighted_sums([part], weights, product.add)
            sink([part], table.value + product.value)


class _Total:
    """A sum that is handed over in parts."""

    value: Tensor

    def add(self, _parts: list[Segment], sums: Tensor) -> None:
        self.value = self.value + sums if hasattr(self, "value") else sums
