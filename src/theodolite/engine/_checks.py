"""Does what was computed agree with plain autograd? On by default; disagreement is an error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.engine._examples import (
    LARGE,
    output_differences,
    require_independent,
    tolerance_of,
)
from theodolite.engine._gradient_samples import GradientCheck
from theodolite.engine._kernel_engine import BatchList, KernelEngine, weighted_gradients
from theodolite.engine._plan import GroupPlan
from theodolite.engine._signatures import Signature, remember_check, was_checked
from theodolite.engine.calls import DisagreementError
from theodolite.engine.readouts import OutputChoice
from theodolite.engine.state import SideStream
from theodolite.errors import CaptureError

if TYPE_CHECKING:
    from theodolite.engine._tangents import TangentKernels

__all__ = [
    "KernelCheck",
    "check_features",
    "check_independence",
    "check_quadratic_forms",
    "form_table",
    "tolerance",
]


def tolerance(engine: KernelEngine) -> float:
    """Relative disagreement that is put down to rounding."""
    return tolerance_of({engine.dtype, engine.alone.outputs.dtype} | engine.recorder.rounding)


def form_table(
    forms: dict[str, Tensor], exact: dict[str, Tensor], scales: dict[str, Tensor]
) -> Float[Tensor, "3 layers"]:
    """Quadratic forms of all layers, in one tensor.

    Args:
        forms: Layer -> quadratic form of its kernel.
        exact: Layer -> the same from plain gradients.
        scales: Layer -> what the form would be for random weights, e.g. the trace.
    """
    rows = ([values[layer] for layer in forms] for values in (forms, exact, scales))
    return torch.stack([torch.stack(row).double() for row in rows])


def check_quadratic_forms(
    engine: KernelEngine, layers: Sequence[str], table: Float[Tensor, "3 layers"], examples: int
) -> None:
    """``u^T K_l v`` of every layer equals the inner product of two gradients by autograd.

    Args:
        engine: The engine.
        layers: Names of layers.
        table: What :func:`form_table` makes of their forms.
        examples: Number of examples.

    Raises:
        DisagreementError: If a layer disagrees.
        CaptureError: If it does for a single example: names the functions whose rule is wrong.
    """
    found, wanted, scale = table
    allowed = tolerance(engine) * (scale.abs() + wanted.abs()) + torch.finfo(torch.float32).tiny
    wrong = ~((found - wanted).abs() <= allowed)
    if not wrong.any():
        return
    index = int(wrong.nonzero()[0])
    layer = layers[index]
    functions = sorted(
        {
            engine.alone.uses[use].function
            for k in engine.groups_of(layer)
            for use in engine.groups[k].uses
        }
    )
    text = (
        f"layer {layer!r}: expected its kernel to agree with autograd, got "
        f"{float(found[index]):.6g} instead of {float(wanted[index]):.6g}"
    )
    if examples > 1:
        raise DisagreementError(text)
    raise CaptureError(f"{text}; {engine.recorder.wrong_rule(functions)}")


_MANY = 16  # examples that are checked
_FEW = 2  # for the trace, which takes their full kernel
_SOME_LARGE = 4  # whole sequences and pictures


def _every(engine: KernelEngine) -> bool:
    """Whether all examples are compared: on request, or as they may have taken different ways."""
    return engine.options.check == "every" or engine.recorder.branches or engine.recorder.unsure


class KernelCheck:
    """Compare kernels with plain autograd on examples spread over the whole data.

    One backward pass checks all layers: ``u^T K_l v`` against the inner product of the gradients of
    ``sum u f`` and ``sum v f``, with random weights u and v. The trace over outputs has no such
    form (``traced``); it is compared with the full kernel of two examples, which is checked in this
    way. The examples are run beside others than before: outputs that change are an error.

    Made before the kernels are launched; :meth:`launch`, amid them, starts what needs none. A model
    that makes the same calls, of which none can move examples, is compared once (``remembered``).

    Args:
        engine: The engine.
        data: Its examples.
        other: Those of the second side, if there is one.
        routes: How kernels are contracted.
        side_stream: Made before the kernels were launched.
    """

    def __init__(
        self,
        engine: KernelEngine,
        data: BatchList,
        other: BatchList | None,
        routes: tuple[GroupPlan, ...],
        side_stream: SideStream,
    ) -> None:
        self._engine, self._data, self._other, self._side_stream = engine, data, other, side_stream
        self._routes = routes
        self._mode = engine.recorder.choice.mode
        self.traced = self._mode == "trace" and engine.outputs > 1
        self._exact: dict[str, Tensor] = {}
        self._alone: Tensor | None = None
        self._again: Tensor | None = None
        self._compared = 0  # examples

    @property
    def remembered(self) -> bool:
        """Whether kernels of the same calls, of as many examples, were compared before."""
        return was_checked(self._engine.recorder.model, self._signature())

    def _signature(self) -> Signature | None:
        """What the comparison rests on, beside weights and numbers; None if that is not known."""
        engine = self._engine
        seen = engine.signatures
        if engine.options.check is not True or not seen or None in seen or _every(engine):
            return None
        sizes = len(self._data), None if self._other is None else len(self._other)
        precision = engine.options.precision, engine.products.cores
        wanted = self._mode, engine.dtype, precision, tuple(engine.layers)
        return ("kernels", frozenset(seen), sizes, wanted, self._routes)

    def launch(self) -> None:
        """Launch all that needs no kernel, concurrently with what the device is doing.

        A second call launches nothing, unless more examples must be compared by then.
        """
        if self.remembered:
            return
        engine, count = self._engine, _FEW if self.traced else _MANY
        if engine.alone.result_bytes > LARGE:
            count = min(count, _SOME_LARGE)
        if _every(engine):
            count = len(self._data)
        if count <= self._compared:
            return
        self._compared = count
        draws = torch.Generator().manual_seed(0)
        other, device = self._other, self._engine.device
        with self._side_stream.work():
            self._alone = self._engine.outputs_alone() if self._alone is None else self._alone
            turned = not self.traced  # full kernels of few examples turn them in their own check
            self._left = _Side.of(self._data, count, device, turned)
            self._right = self._left if other is None else _Side.of(other, count, device, turned)
            self._u = self._draw(len(self._left.indices), draws)
            self._v = self._u if other is None else self._draw(len(self._right.indices), draws)
        if not self.traced:
            self._exact = self._from_gradients()

    def _draw(self, examples: int, draws: torch.Generator) -> Tensor:
        weights = torch.randn(examples, self._engine.outputs, generator=draws, dtype=torch.float64)
        if self._mode != "full":
            weights[:, 1:] = 0.0
        return weights.to(self._engine.device, self._engine.dtype)

    @property
    def full_kernels(self) -> tuple[KernelEngine, BatchList, BatchList | None]:
        """Of which engine and examples a trace needs full kernels."""
        recorder = replace(self._engine.recorder, choice=OutputChoice("full"))
        right = None if self._other is None else self._right.data
        return replace(self._engine, recorder=recorder), self._left.data, right

    def compare(
        self, kernels: Mapping[str, Tensor], outputs: Tensor, full: "TangentKernels | None"
    ) -> None:
        """Raise if the examples are not independent, or a kernel disagrees with autograd.

        Args:
            kernels: Layer -> kernel.
            outputs: Functions of the examples, (n, c).
            full: Kernels of :attr:`full_kernels`, checked, where these are traces.
        """
        engine, exact, signature = self._engine, self._exact, self._signature()
        if full is not None:
            self._again = full.outputs
            traces = ((name, part.diagonal(dim1=1, dim2=3).sum(2)) for name, part in full.items())
            exact = {layer: self._form(trace) for layer, trace in traces}
        checked = {layer: self._part(kernel) for layer, kernel in kernels.items()}
        forms = {layer: self._form(part) for layer, part in checked.items()}
        scales = {layer: part.norm() for layer, part in checked.items()}
        table = form_table(forms, exact, scales)
        assert self._again is not None
        assert self._alone is not None
        differences = torch.stack(
            [
                output_differences(outputs[:1], self._alone),
                output_differences(outputs[self._left.indices], self._again),
            ]
        )
        waiting = [differences.flatten(), table.flatten(), self._alone.flatten()]
        numbers = torch.cat(waiting).cpu()  # waits once
        engine.recorder.require_finite(numbers[4 + table.numel() :])
        if len(outputs) > 1:
            _require_alike(engine, self._data, numbers[:4].view(2, 2))
        found = numbers[4 : 4 + table.numel()].view_as(table)
        check_quadratic_forms(engine, list(forms), found, len(outputs))
        remember_check(engine.recorder.model, signature)

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
        with self._side_stream.work():
            first, self._again = self._left.gradients(self._engine, self._u)
            second = first
            if self._other is not None:
                second, _ = self._right.gradients(self._engine, self._v)
            return self._inner(first, second)

    def _inner(self, first: dict[str, Tensor], second: dict[str, Tensor]) -> dict[str, Tensor]:
        """Inner products of gradients, layer by layer."""
        zero = torch.zeros((), dtype=torch.float64, device=self._engine.device)
        products = {
            name: (_wide(gradient) @ _wide(second[name])).double()
            for name, gradient in first.items()
            if name in second
        }
        owned = self._engine.recorder.ownership.layers
        return {
            layer: sum((products[name] for name in names if name in products), zero)
            for layer, names in owned.items()
        }


def check_independence(engine: KernelEngine, data: BatchList, outputs: Tensor) -> None:
    """Some examples have the same outputs beside other examples; one pass without gradients.

    Args:
        engine: The engine.
        data: Its examples.
        outputs: Functions of the examples, (n, c).

    Raises:
        CaptureError: If not.
    """
    side = _Side.of(data, _MANY, engine.device)
    again = torch.cat([engine.recorder.values(batch) for batch in side.data.batches])
    alike = [(outputs[:1], engine.outputs_alone()), (outputs[side.indices], again)]
    _require_alike(engine, data, torch.stack([output_differences(*pair) for pair in alike]))


def _require_alike(
    engine: KernelEngine, data: BatchList, differences: Float[Tensor, "m 2"]
) -> None:
    recorder, allowed = engine.recorder, tolerance(engine)
    for pair in differences.cpu():
        require_independent(recorder.model, pair, allowed, recorder.model_outputs, data.batches[0])


def check_features(
    engine: KernelEngine, data: BatchList, features: Mapping[str, Tensor], outputs: Tensor
) -> None:
    """Tangent features of some examples, weighted at random, add up to autograd's gradient.

    Args:
        engine: The engine.
        data: Its examples.
        features: Parameter -> (n, c, P).
        outputs: Functions of the examples, (n, c).

    Raises:
        CaptureError: If examples depend on each other, or the features disagree with autograd.
    """
    side = _Side.of(data, len(data) if _every(engine) else _MANY, engine.device)
    draws = torch.Generator().manual_seed(0)
    weights = torch.randn(len(side.indices), engine.outputs, generator=draws).to(outputs)
    plain, again = side.gradients(engine, weights)
    if len(data) > 1:
        alike = [(outputs[:1], engine.outputs_alone()), (outputs[side.indices], again)]
        _require_alike(engine, data, torch.stack([output_differences(*pair) for pair in alike]))
    check = GradientCheck(engine.recorder)
    found, spreads = {}, []
    for name, values in features.items():
        weighted = weights[:, :, None].to(values) * values[side.indices]
        found[name] = weighted.sum((0, 1))
        spreads.append(torch.linalg.vector_norm(weighted.sum(1), dtype=torch.float64))
    flat = {name: value.flatten() for name, value in plain.items()}
    check.compare(found, flat, torch.stack(spreads))
    check.require_agreement(engine.dtype)


def _wide(gradient: Tensor) -> Tensor:
    """A vector of at least float32; its rounding is far below the tolerance of the check."""
    return gradient.flatten().to(torch.promote_types(gradient.dtype, torch.float32))


@dataclass(frozen=True)
class _Side:
    """Some examples of a data set: their places, and batches of them."""

    indices: Tensor
    data: BatchList

    @classmethod
    def of(cls, data: BatchList, count: int, device: torch.device, turned: bool = True) -> "_Side":
        """Examples spread over the data; turned, each batch of them is in other company."""
        indices = torch.linspace(0, len(data) - 1, min(count, len(data))).round().long()
        batches, places, start = [], [], 0
        for batch in data.batches:
            inside = indices[(indices >= start) & (indices < start + len(batch))] - start
            parts = [inside.flip(0) if turned else inside]
            if turned and len(inside) == len(batch):  # the same examples: in two parts
                parts = list(inside.flip(0).tensor_split(2))
            for part in parts:
                if len(part):
                    batches.append(batch.take(part.tolist()))
                    places.append(part + start)
            start += len(batch)
        return cls(torch.cat(places).to(device), BatchList(batches))

    def gradients(self, engine: KernelEngine, weights: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return weighted_gradients(engine.recorder, self.data.batches, weights)
