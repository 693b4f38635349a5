"""The two factors of a linear layer's tangent kernel: forward and backward signals."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from theodolite.engine._factors import OuterFactors
from theodolite.engine._plan import Settings
from theodolite.engine._sweep import Data, Request, model_device, prepare
from theodolite.engine.layers import unwrap
from theodolite.engine.readouts import Readout
from theodolite.engine.state import exact_arithmetic, untouched
from theodolite.errors import ShapeError

__all__ = ["backward_kernel", "forward_kernel", "traced_backward_kernel"]


def forward_kernel(
    model: nn.Module,
    inputs: Any,
    layer: str,
    *,
    normalize: bool = True,
    readout: str | Readout | None = None,
) -> Float[Tensor, "n n"]:
    r"""Inner products of what a linear layer receives.

    .. math:: \mathrm{Fwd}_l(x, x') = \frac{a_{l-1}(x) \cdot a_{l-1}(x')}{N_{l-1}}

    Args:
        model: Any module, in evaluation mode.
        inputs: Inputs, as for :func:`tangent_kernels`.
        layer: A layer with one matrix, applied once to one vector per example.
        normalize: Whether to divide by the number of inputs of the layer.
        readout: See :func:`tangent_kernels`.

    Raises:
        ShapeError: If the layer has no such matrix.

    Example:
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> forward_kernel(model, x, "").tolist()
        [[0.5, 0.5], [0.5, 1.0]]

    References:
        [lou2022], Eq. (9). Differs from paper: each kernel is divided by the width of its own side,
        not both by the common one.
    """
    factors = _factors(model, inputs, layer, readout)
    assert factors.inputs is not None
    a = factors.inputs.flatten(1)
    return a @ a.T / (a.shape[1] if normalize else 1)


def backward_kernel(
    model: nn.Module,
    inputs: Any,
    layer: str,
    *,
    normalize: bool = True,
    readout: str | Readout | None = None,
) -> Float[Tensor, "n c n c"]:
    r"""Inner products of the gradients of the outputs with respect to what a linear layer gives.

    .. math:: \mathrm{Bwd}_l[(x, i), (x', j)] =
              \frac{\delta_l^i(x) \cdot \delta_l^j(x')}{N_l}

    Args:
        model: Any module, in evaluation mode.
        inputs: Inputs, as for :func:`tangent_kernels`.
        layer: A layer with one matrix, applied once to one vector per example.
        normalize: Whether to divide by the number of outputs of the layer.
        readout: See :func:`tangent_kernels`.

    Raises:
        ShapeError: If the layer has no such matrix.

    Example:
        >>> model = torch.nn.Linear(2, 2, bias=False).double()
        >>> x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        >>> backward_kernel(model, x, "", normalize=False).tolist()
        [[[[1.0, 0.0]], [[0.0, 1.0]]]]

    References:
        [lou2022], Eq. (9). Differs from paper: each kernel is divided by the width of its own side,
        not both by the common one.
    """
    factors = _factors(model, inputs, layer, readout)
    assert factors.signals is not None
    n, c, width, _ = factors.signals.shape
    flat = factors.signals.reshape(n * c, width)
    return (flat @ flat.T / (width if normalize else 1)).view(n, c, n, c)


def traced_backward_kernel(
    model: nn.Module, inputs: Any, layer: str, *, readout: str | Readout | None = None
) -> Float[Tensor, "n n"]:
    """The mean of a backward kernel over pairs of equal outputs, without the other pairs.

    Of a thousand outputs these are a thousandth, in time and in memory.
    """
    factors = _factors(model, inputs, layer, readout)
    assert factors.signals is not None
    flat = factors.signals.flatten(1)
    return flat @ flat.T / flat.shape[1]


def _factors(
    model: nn.Module, inputs: Any, layer: str, readout: str | Readout | None
) -> OuterFactors:
    inner = unwrap(model)
    place = model_device(inner)
    with untouched(inner), exact_arithmetic(place):
        data = Data.of(inputs, None, None, place)
        request = Request(layer, "full", readout, settings=Settings(check=False))
        sweep = prepare(inner, data, request)
        plan = sweep.plan(len(data), len(data), True, 1)
        batches = [batch for _, block in sweep.blocks(data, plan) for batch in block]
        collected = sweep.collect(batches, plan)
    found = [part for part in collected.factors if isinstance(part, OuterFactors)]
    if len(found) != 1 or found[0].signals is None or found[0].signals.shape[3] != 1:
        raise ShapeError(
            f"layer {layer!r}: expected one matrix applied once to one vector per example, got "
            f"{len(found)} matrices or several positions; use tangent_kernels for other layers"
        )
    return found[0]
