"""Does what was computed agree with plain autograd? On by default; disagreement is an error."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.engine._sweep import Sweep
from theodolite.engine.state import rounding_dtypes
from theodolite.errors import CaptureError

__all__ = [
    "check_quadratic_forms",
    "example_differences",
    "form_table",
    "require_independent_examples",
    "tolerance",
]

# Relative disagreement that rounding explains, by the coarsest dtype that took part.
_TOLERANCES = {
    torch.float64: 1e-7,
    torch.float32: 2e-3,
    torch.bfloat16: 1e-1,
    torch.float16: 5e-2,
}


def tolerance(sweep: Sweep) -> float:
    """Relative disagreement that is put down to rounding."""
    dtypes = {sweep.dtype, sweep.probe.outputs.dtype}
    dtypes |= rounding_dtypes(sweep.subject.ownership.parameters.values())
    return max(_TOLERANCES.get(dtype, 1e-1) for dtype in dtypes)


def example_differences(sweep: Sweep, outputs: Tensor) -> Float[Tensor, "2"]:
    """How much the first example's outputs differ alone and among others, and their size."""
    alone, among = sweep.probe.outputs.detach()[0].double(), outputs[0].double()
    return torch.stack([(alone - among).abs().max(), outputs.abs().max().double()])


def require_independent_examples(sweep: Sweep, differences: Float[Tensor, "2"]) -> None:
    """The first example alone gives what it gives among the others.

    Raises:
        CaptureError: If not: batch statistics or random numbers are at work.
    """
    difference, scale = differences.tolist()
    tiny = torch.finfo(torch.float32).tiny
    if not difference <= tolerance(sweep) * scale + tiny:
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
    sweep: Sweep, layers: Sequence[str], table: Float[Tensor, "3 layers"]
) -> None:
    """``u^T K_l v`` of every layer equals the inner product of two gradients by autograd.

    Args:
        sweep: The sweep.
        layers: Names of layers.
        table: What :func:`form_table` makes of their forms.

    Raises:
        CaptureError: If a layer disagrees; names it and the functions that use its parameters.
    """
    found, wanted, scale = table
    allowed = tolerance(sweep) * (scale.abs() + wanted.abs()) + torch.finfo(torch.float32).tiny
    wrong = ~((found - wanted).abs() <= allowed)
    if not wrong.any():
        return
    index = int(wrong.nonzero()[0])
    layer = layers[index]
    functions = sorted(
        {
            sweep.probe.uses[use].function
            for k in sweep.atoms_of(layer)
            for use in sweep.atoms[k].uses
        }
    )
    raise CaptureError(
        f"layer {layer!r}: expected its kernel to agree with autograd, got "
        f"{float(found[index]):.6g} instead of {float(wanted[index]):.6g}; the rule of one of "
        f"{functions} is wrong for this call: report it, or remove it from "
        "theodolite.engine.rules.RULES"
    )
