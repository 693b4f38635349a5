"""Does what was computed agree with plain autograd? On by default; disagreement is an error."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.engine._kernel_engine import BatchList, KernelEngine, weighted_gradients
from theodolite.engine.layers import Ownership
from theodolite.engine.readouts import OutputChoice
from theodolite.engine.state import SideStream, rounding_dtypes
from theodolite.errors import CaptureError

__all__ = [
    "GradientCheck",
    "KernelCheck",
    "check_quadratic_forms",
    "example_differences",
    "form_table",
    "require_independent_examples",
    "squared_norms",
    "tolerance",
]

# Relative disagreement that rounding explains, by the coarsest dtype that took part.
_TOLERANCES = {
    torch.float64: 1e-7,
    torch.float32: 2e-3,
    torch.bfloat16: 1e-1,
    torch.float16: 5e-2,
}


def tolerance(engine: KernelEngine) -> float:
    """Relative disagreement that is put down to rounding."""
    dtypes = {engine.dtype, engine.alone.outputs.dtype}
    dtypes |= rounding_dtypes(engine.recorder.ownership.parameters.values())
    return max(_TOLERANCES.get(dtype, 1e-1) for dtype in dtypes)


def example_differences(engine: KernelEngine, outputs: Tensor) -> Float[Tensor, "2"]:
    """How much the first example's outputs differ alone and among others, and their size."""
    alone, among = engine.alone.outputs.detach()[0].double(), outputs[0].double()
    return torch.stack([(alone - among).abs().max(), outputs.abs().max().double()])


def require_independent_examples(engine: KernelEngine, differences: Float[Tensor, "2"]) -> None:
    """The first example alone gives what it gives among the others.

    Raises:
        CaptureError: If not: batch statistics or random numbers are at work.
    """
    difference, scale = differences.tolist()
    tiny = torch.finfo(torch.float32).tiny
    if not difference <= tolerance(engine) * scale + tiny:
        raise CaptureError(
            "model: expected the same outputs for an example alone and in a batch, got a relative "
            f"difference of {difference / (scale + tiny):.1e}; batch statistics or dropout are the "
            "usual cause: call model.eval(), and replace functional dropout(training=True)"
        )


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
    engine: KernelEngine, layers: Sequence[str], table: Float[Tensor, "3 layers"]
) -> None:
    """``u^T K_l v`` of every layer equals the inner product of two gradients by autograd.

    Args:
        engine: The engine.
        layers: Names of layers.
        table: What :func:`form_table` makes of their forms.

    Raises:
        CaptureError: If a layer disagrees; names it and the functions that use its parameters.
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
    raise CaptureError(
        f"layer {layer!r}: expected its kernel to agree with autograd, got "
        f"{float(found[index]):.6g} instead of {float(wanted[index]):.6g}; the rule of one of "
        f"{functions} is wrong for this call: report it, or remove it from "
        "theodolite.engine.rules.RULES"
    )


FullKernels = Callable[[KernelEngine, BatchList, BatchList | None], Mapping[str, Tensor]]

_MANY = 16  # examples that are checked
_FEW = 2  # for the trace, which takes their full kernel


class KernelCheck:
    """Compare kernels with plain autograd on examples spread over the whole data.

    One backward pass checks all layers: ``u^T K_l v`` against the inner product of the gradients of
    ``sum u f`` and ``sum v f``, with random weights u and v. The trace over outputs has no such
    form; it is compared with the full kernel of two examples, which is checked in this way.

    Made before the kernels are launched; :meth:`launch`, amid them, starts what needs none.

    Args:
        engine: The engine.
        data: Its examples.
        other: Those of the second side, if there is one.
        side_stream: Made before the kernels were launched.
    """

    def __init__(
        self,
        engine: KernelEngine,
        data: BatchList,
        other: BatchList | None,
        side_stream: SideStream,
    ) -> None:
        self._engine, self._data, self._other, self._side_stream = engine, data, other, side_stream
        self._mode = engine.recorder.choice.mode
        self._traced = self._mode == "trace" and engine.outputs > 1
        self._exact: dict[str, Tensor] = {}

    def launch(self) -> None:
        """Launch all that needs no kernel, concurrently with what the device is doing."""
        count = _FEW if self._traced else _MANY
        draws = torch.Generator().manual_seed(0)
        other, device = self._other, self._engine.device
        with self._side_stream.work():
            self._left = _Side.of(self._data, count, device)
            self._right = self._left if other is None else _Side.of(other, count, device)
            self._u = self._draw(len(self._left.indices), draws)
            self._v = self._u if other is None else self._draw(len(self._right.indices), draws)
        if not self._traced:
            self._exact = self._from_gradients()

    def _draw(self, examples: int, draws: torch.Generator) -> Tensor:
        weights = torch.randn(examples, self._engine.outputs, generator=draws, dtype=torch.float64)
        if self._mode != "full":
            weights[:, 1:] = 0.0
        return weights.to(self._engine.device, self._engine.dtype)

    def compare(
        self, kernels: dict[str, Tensor], outputs: Tensor, full_kernels: FullKernels
    ) -> None:
        """Raise if the examples are not independent, or a kernel disagrees with autograd.

        Args:
            kernels: Layer -> kernel.
            outputs: Functions of the examples, (n, c).
            full_kernels: Computes and checks full kernels of an engine.
        """
        engine = self._engine
        exact = self._traces(full_kernels) if self._traced else self._exact
        parts = {layer: self._part(kernel) for layer, kernel in kernels.items()}
        forms = {layer: self._form(part) for layer, part in parts.items()}
        scales = {layer: part.norm() for layer, part in parts.items()}
        table, differences = form_table(forms, exact, scales), example_differences(engine, outputs)
        numbers = torch.cat([differences, table.flatten()]).cpu()  # waits for the device once
        if len(outputs) > 1:
            require_independent_examples(engine, numbers[:2])
        check_quadratic_forms(engine, list(forms), numbers[2:].view_as(table))

    def _traces(self, full_kernels: FullKernels) -> dict[str, Tensor]:
        """Forms of the traces of small full kernels."""
        small = full_kernels(self._full_engine(), self._left.data, self._right_data())
        traces = (
            (layer, kernel.diagonal(dim1=1, dim2=3).sum(2)) for layer, kernel in small.items()
        )
        return {layer: self._form(trace) for layer, trace in traces}

    def _full_engine(self) -> KernelEngine:
        recorder = replace(self._engine.recorder, choice=OutputChoice("full"))
        return replace(self._engine, recorder=recorder)

    def _right_data(self) -> BatchList | None:
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
        with self._side_stream.work():
            first = self._left.gradients(self._engine, self._u)
            second = first if self._other is None else self._right.gradients(self._engine, self._v)
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


def _wide(gradient: Tensor) -> Tensor:
    """A vector of at least float32; its rounding is far below the tolerance of the check."""
    return gradient.flatten().to(torch.promote_types(gradient.dtype, torch.float32))


@dataclass(frozen=True)
class _Side:
    """Some examples of a data set: their places, and batches of them."""

    indices: Tensor
    data: BatchList

    @classmethod
    def of(cls, data: BatchList, count: int, device: torch.device) -> "_Side":
        indices = torch.linspace(0, len(data) - 1, min(count, len(data))).round().long()
        batches, start = [], 0
        for batch in data.batches:
            inside = indices[(indices >= start) & (indices < start + len(batch))] - start
            if len(inside):
                batches.append(batch.take(inside.tolist()))
            start += len(batch)
        return cls(indices.to(device), BatchList(batches))

    def gradients(self, engine: KernelEngine, weights: Tensor) -> dict[str, Tensor]:
        return weighted_gradients(engine.recorder, self.data.batches, weights, len(self.indices))


# Relative error of a squared norm, in units of round-off, that rounding explains.
_RELATIVE = 2e4
# Gradients that vanish (a shift before a normalisation) leave rounding of the others.
_VANISHING = 1e3


def squared_norms(tensors: Sequence[Tensor]) -> Float[Tensor, " m"]:
    """Squared norm of each tensor in float64, in one call where the device has one."""
    if tensors[0].device.type == "cuda":
        return torch.stack(torch._foreach_norm(list(tensors), 2, torch.float64)).square()
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors]
    return torch.stack(norms).square()


@dataclass(frozen=True)
class _Comparison:
    """Squared norms found and those of plain autograd, on the device."""

    what: str
    names: tuple[str, ...]
    left: Tensor
    right: Tensor
    examples: int


class GradientCheck:
    """Comparisons that wait on the device until someone asks for the verdict."""

    def __init__(self, owned: Ownership) -> None:
        self._parameters = owned.parameters
        self._waiting: list[_Comparison] = []

    def plain_squares(
        self, losses: Tensor, names: Sequence[str] | None = None, *, keep: bool = False
    ) -> dict[str, Tensor]:
        """Squared norms of autograd's own gradient of the summed loss; zero where there is none."""
        chosen = list(self._parameters) if names is None else list(names)
        grads = torch.autograd.grad(
            losses.sum(),
            [self._parameters[name] for name in chosen],
            retain_graph=keep,
            allow_unused=True,
        )
        present = {name: g for name, g in zip(chosen, grads, strict=True) if g is not None}
        zero = losses.new_zeros((), dtype=torch.float64)
        squares = squared_norms(list(present.values())) if present else ()
        found = dict(zip(present, squares, strict=True))
        return {name: found.get(name, zero) for name in chosen}

    def compare(
        self,
        what: str,
        found: Mapping[str, Tensor],
        plain: Mapping[str, Tensor],
        examples: int,
    ) -> None:
        """Note two sets of squared norms, one entry per parameter; not found means zero."""
        zero = next(iter(plain.values())).new_zeros(())
        left = torch.stack([found.get(name, zero) for name in plain])
        right = torch.stack(list(plain.values()))
        self._waiting.append(_Comparison(what, tuple(plain), left, right, examples))

    def require_agreement(self, dtype: torch.dtype) -> None:
        """Judge what is waiting.

        Args:
            dtype: That of the losses; parameters and an autocast may be coarser.

        Raises:
            CaptureError: If squared norms differ by more than rounding explains.
        """
        dtypes = {dtype} | rounding_dtypes(self._parameters.values())
        eps = max(torch.finfo(kind).eps for kind in dtypes)
        for one in self._waiting:
            left, right = one.left.cpu(), one.right.cpu()
            scale = torch.maximum(left, right)
            vanishing = one.examples * (_VANISHING * eps) ** 2 * scale.sum()
            allowed = _RELATIVE * eps * scale + vanishing
            wrong = ((left - right).abs() > allowed).nonzero().flatten().tolist()
            if wrong:
                name = one.names[wrong[0]]
                raise CaptureError(
                    f"{one.what} with respect to {name!r}: expected squared norm "
                    f"{right[wrong[0]]:.6g} as autograd gives it, got {left[wrong[0]]:.6g}; "
                    "examples may depend on each other or on chance (use model.eval()), else a "
                    "rule is wrong: please report it"
                )
        self._waiting.clear()
