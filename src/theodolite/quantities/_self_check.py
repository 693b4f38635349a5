"""Does what was computed agree with plain autograd? On by default; disagreement is an error."""

import torch
from torch import Tensor

from theodolite.errors import CaptureError
from theodolite.quantities._sweep import Sweep

__all__ = ["check_quadratic_forms", "require_independent_examples", "tolerance"]

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
    dtypes |= {value.dtype for value in sweep.subject.ownership.parameters.values()}
    return max(_TOLERANCES.get(dtype, 1e-1) for dtype in dtypes)


def require_independent_examples(sweep: Sweep, outputs: Tensor) -> None:
    """The first example alone gives what it gives among the others.

    Raises:
        CaptureError: If not: batch statistics or random numbers are at work.
    """
    alone, among = sweep.probe.outputs.detach()[0].double(), outputs[0].double()
    scale = outputs.double().abs().max()
    difference = (alone - among).abs().max()
    if not difference <= tolerance(sweep) * scale + torch.finfo(torch.float32).tiny:
        raise CaptureError(
            "model: expected the same outputs for an example alone and in a batch, got a relative "
            f"difference of {float(difference / scale):.1e}; batch statistics or dropout are the "
            "usual cause: call model.eval(), and replace functional dropout(training=True)"
        )


def check_quadratic_forms(
    sweep: Sweep, forms: dict[str, Tensor], exact: dict[str, Tensor], scales: dict[str, Tensor]
) -> None:
    """``u^T K_l v`` of every layer equals the inner product of two gradients by autograd.

    Args:
        sweep: The sweep.
        forms: Layer -> quadratic form of its kernel.
        exact: Layer -> the same from plain gradients.
        scales: Layer -> what the form would be for random weights, e.g. the trace.

    Raises:
        CaptureError: If a layer disagrees; names it and the functions that use its parameters.
    """
    layers = list(forms)
    found = torch.stack([forms[layer].double() for layer in layers])
    wanted = torch.stack([exact[layer].double() for layer in layers])
    scale = torch.stack([scales[layer].double() for layer in layers]).abs()
    allowed = tolerance(sweep) * (scale + wanted.abs()) + torch.finfo(torch.float32).tiny
    wrong = ~((found - wanted).abs() <= allowed)
    if not wrong.any():
        return
    layer = layers[int(wrong.nonzero()[0])]
    functions = sorted(
        {
            sweep.probe.uses[use].function
            for k in sweep.atoms_of(layer)
            for use in sweep.atoms[k].uses
        }
    )
    raise CaptureError(
        f"layer {layer!r}: expected its kernel to agree with autograd, got "
        f"{float(found[layers.index(layer)]):.6g} instead of "
        f"{float(wanted[layers.index(layer)]):.6g}; the rule of one of {functions} is wrong for "
        "this call: report it, or remove it from theodolite.capture.rules.RULES"
    )
