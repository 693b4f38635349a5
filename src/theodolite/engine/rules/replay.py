"""The fall-back: run one call again, example by example, and pull its gradient back.

Exact for every differentiable function of torch, and slower than a rule; ``coverage`` counts it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from theodolite.engine.axes import split_examples
from theodolite.engine.forms import Dense, Form
from theodolite.engine.quiet import quiet_vmap
from theodolite.engine.sites import Site, function_name, tensors_in
from theodolite.errors import CaptureError

__all__ = ["replay"]


def replay(site: Site, keep: tuple[bool, ...]) -> Form:
    """The per-example vector-Jacobian product of one call.

    Args:
        site: The call.
        keep: Which tensors of the result take part in the gradient.
    """
    for axis, kept in zip(site.result_axes, keep, strict=True):
        if kept and axis is None and site.examples > 1:
            raise CaptureError(
                f"{function_name(site.function)}: expected a result with one part per example, got "
                "one that mixes them; examples must not see each other (batch statistics, "
                "contrastive heads), use model.eval() or a readout per example"
            )
    own_rows = site.axes.get(id(site.source)) is not None and site.examples > 1
    jacobian = _Replay(site, keep, own_rows)
    needs = tuple(t for t in tensors_in((site.args, site.kwargs)) if t is not site.source)
    return Dense(jacobian, own_rows=own_rows, axis=site.axes.get(id(site.source)), needs=needs)


class _Replay:
    """Gradient of the call's result -> gradient of every example with respect to the source."""

    def __init__(self, site: Site, keep: tuple[bool, ...], own_rows: bool) -> None:
        self.site, self.keep, self.own_rows = site, keep, own_rows
        self.leaves, self.structure = tree_flatten((site.args, site.kwargs))
        self.split = [
            isinstance(leaf, Tensor)
            and leaf is not site.source
            and (site.axes.get(id(leaf)) is not None and site.examples > 1)
            for leaf in self.leaves
        ]

    def __call__(self, gradients: Any) -> Tensor:
        site = self.site
        axes = [axis for axis, kept in zip(site.result_axes, self.keep, strict=True) if kept]
        given = gradients if isinstance(gradients, tuple) else (gradients,)
        signals = tuple(
            split_examples(gradient, site.examples, axis)
            for gradient, axis in zip(given, axes, strict=True)
        )
        slices = tuple(
            split_examples(leaf, site.examples, site.axes[id(leaf)])
            for leaf, split in zip(self.leaves, self.split, strict=True)
            if split
        )
        source = site.split(site.source) if self.own_rows else site.source
        return self._all(source, signals, slices)

    def _all(
        self, source: Tensor, signals: tuple[Tensor, ...], slices: tuple[Tensor, ...]
    ) -> Tensor:
        in_dims = (0 if self.own_rows else None, 0, 0 if slices else None)
        try:
            return quiet_vmap(self._one, in_dims)(source, signals, slices)
        except RuntimeError:  # no batching rule, as for some recurrent kernels
            rows = [
                self._one(
                    source[k] if self.own_rows else source,
                    tuple(signal[k] for signal in signals),
                    tuple(part[k] for part in slices),
                )
                for k in range(self.site.examples)
            ]
            return torch.stack(rows)

    def _one(
        self, source: Tensor, signals: tuple[Tensor, ...], slices: tuple[Tensor, ...]
    ) -> Tensor:
        def call(value: Tensor) -> tuple[Tensor, ...]:
            result = self._function(slices)(value)
            kept = zip(tensors_in(result), self.keep, strict=True)
            return tuple(tensor for tensor, keep in kept if keep)

        pull = torch.func.vjp(call, source)[1]
        return pull(signals)[0]

    def _function(self, slices: tuple[Tensor, ...]) -> Callable[[Tensor], Any]:
        def function(value: Tensor) -> Any:
            parts = iter(slices)
            leaves = [
                value if leaf is self.site.source else next(parts) if split else leaf
                for leaf, split in zip(self.leaves, self.split, strict=True)
            ]
            args, kwargs = tree_unflatten(leaves, self.structure)
            return self.site.function(*args, **kwargs)

        return function
