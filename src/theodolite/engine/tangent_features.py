"""What tangent kernels are products of: gradients of all outputs, and inputs with output gradients.

:func:`tangent_features` gives the gradients themselves; :func:`forward_kernel` and
:func:`backward_kernel` the two factors of the kernel of a linear layer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import size_in_bytes
from theodolite.engine.batches import Batch
from theodolite.engine.check import (
    Asked,
    Check,
    Checked,
    company_gradients,
    compare_gradients,
    require_check,
)
from theodolite.engine.factors import OuterFactors
from theodolite.engine.inputs import BatchList, require_device, require_model
from theodolite.engine.kernel_engine import KernelEngine, prepare
from theodolite.engine.kernels import followed
from theodolite.engine.layers import Layers, Parameters, layers_text, unwrap
from theodolite.engine.plan import EngineOptions, Plan, dense_groups
from theodolite.engine.readouts import Readout
from theodolite.engine.state import exact_arithmetic, model_device, untouched
from theodolite.errors import MemoryLimitError, ShapeError


class TangentFeatures(dict[str, Float[Tensor, "n c p"]]):
    """Layer -> gradients of all outputs of all examples; shown by their shapes.

    Attributes:
        checked: How examples were measured, and what was asked about it.
    """

    checked: Checked = Checked()

    @property
    def measured(self) -> str:
        """How examples were measured, in words."""
        return self.checked.measured

    def __repr__(self) -> str:
        n, c = next(iter(self.values())).shape[:2]
        return f"TangentFeatures({n} examples, {c} outputs, {layers_text(self)})"


def tangent_features(
    model: nn.Module,
    inputs: Any,
    layers: Layers = "*",
    *,
    readout: str | Readout | None = None,
    params: Parameters = None,
    batch_fn: Callable[[Any], Batch] | None = None,
    batch_size: int | None = None,
    memory_limit: int | str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    check: Check = True,
) -> TangentFeatures:
    r"""Gradients of all outputs of all examples, per layer, exact.

    .. math:: \Psi_l[x, i] = \nabla_{\theta_l} f^i(x)

    What tangent kernels are products of, for measures that need the features themselves, such as
    the rank-one model and the Fisher information of lou2022. They take n x c x p numbers;
    :func:`tangent_kernels` forms none of them.

    Args:
        model: Any module, in evaluation mode; it is left as it was found.
        inputs: Inputs, as for :func:`tangent_kernels`.
        layers: Names, patterns or a predicate; ``"*"`` for every layer with parameters of its own.
        readout: See :func:`tangent_kernels`.
        params: Which trainable parameters count.
        batch_fn: Turns an item of ``inputs`` into a batch.
        batch_size: Examples per forward pass; None to choose. The result does not depend on it.
        memory_limit: Bytes, or a size such as "4GB"; None for nine tenths of what is free.
        dtype: Dtype of the features; None for that of the outputs.
        device: Where the inputs should lie; None for that of the parameters.
        check: See :func:`tangent_kernels`.

    Returns:
        Layer -> (n, c, p), the entries of its parameters one after the other as
        ``named_parameters`` lists them; a complex entry is two numbers.

    Raises:
        CaptureError: If examples depend on each other or on chance.
        MemoryLimitError: If the features do not fit; the message has the numbers.

    Example:
        >>> model = torch.nn.Linear(2, 1).double()
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
        >>> tangent_features(model, x)[""].tolist()
        [[[1.0, 0.0, 1.0]], [[1.0, 2.0, 1.0]]]

    References:
        [lou2022], Eq. (1).
    """
    options = EngineOptions(
        layers,
        "full",
        readout,
        params,
        dtype,
        memory_limit=size_in_bytes(memory_limit),
        batch_size=batch_size,
        check=check,
    )
    require_check(check)
    require_model(model)
    inner = unwrap(model)
    require_device(device, inner)
    place = torch.device(device) if device is not None else model_device(inner)
    with untouched(inner), exact_arithmetic(place):
        data = BatchList.of(inputs, None, batch_fn, place, model=inner)
        return followed(inner, data, options, lambda engine: _features_of(engine, data))


def _features_of(engine: KernelEngine, data: BatchList) -> TangentFeatures:
    """Features of a prepared computation, checked on some examples."""
    parameters = engine.recorder.ownership.parameters
    dense = replace(engine, groups=dense_groups(engine.alone.uses, parameters))
    plan = dense.plan(len(data), len(data), True, 0)
    if plan.block < len(data):
        count = len(data) * engine.outputs * sum(p.numel() for p in parameters.values())
        raise MemoryLimitError(
            f"memory: expected features of all examples to fit, but {count:,} numbers do not; pass "
            "fewer examples or layers, or a larger memory_limit; tangent_kernels needs none of them"
        )
    (block,) = data.blocks(plan.block, plan.batch_size)
    collected = dense.collect(block, plan)
    found: dict[str, Tensor] = {}
    for group, factors in zip(dense.groups, collected.factors, strict=True):
        if factors is None:
            parameter = parameters[group.parameter]
            entries = parameter.numel() * (2 if parameter.is_complex() else 1)
            shape = len(data), engine.outputs, entries
            found[group.parameter] = torch.zeros(shape, dtype=engine.dtype, device=engine.device)
        else:
            found[group.parameter] = factors.gradients()
    for asked in collected.asked:
        _compare(engine, found, asked)
    owned = engine.recorder.ownership.layers
    features = TangentFeatures(
        {layer: torch.cat([found[n] for n in owned[layer]], 2) for layer in engine.layers}
    )
    features.checked = engine.checked
    return features


def _compare(engine: KernelEngine, features: Mapping[str, Tensor], asked: Asked) -> None:
    """Weighted sums of the features that were found against plain autograd."""
    wanted = company_gradients(engine.recorder, asked)
    places = torch.tensor(asked.places, device=engine.device)
    weights = asked.seeds[places]
    found, sizes = {}, {}
    for name, values in features.items():
        weighted = values[places + asked.start] * weights[:, :, None].to(values)
        found[name] = weighted.sum((0, 1))
        sizes[name] = torch.linalg.vector_norm(weighted.double())
    compare_gradients(engine.recorder, found, wanted, sizes)


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
    n, c, width, _ = factors.output_grads.shape
    flat = factors.output_grads.reshape(n * c, width)
    return (flat @ flat.T / (width if normalize else 1)).view(n, c, n, c)


def forward_backward_kernels(
    model: nn.Module,
    inputs: Any,
    layers: Sequence[str],
    *,
    readout: str | Readout | None = None,
) -> dict[str, tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]]:
    """Forward kernels of several layers, and their backward kernels averaged over equal outputs.

    The same passes serve all layers. Pairs of different outputs are not formed: of a thousand
    outputs those that are equal are a thousandth, in time and in memory.

    Args:
        model: Any module, in evaluation mode.
        inputs: Inputs, as for :func:`tangent_kernels`.
        layers: Names. Those that have no matrix of their own, applied once to one vector per
            example, are left out of the result.
        readout: See :func:`tangent_kernels`.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False)).double()
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> [kernel.tolist() for kernel in forward_backward_kernels(model, x, ["0"])["0"]]
        [[[0.5, 0.5], [0.5, 1.0]], [[0.5, 0.5], [0.5, 0.5]]]
    """
    kernels = {}
    for layer, factors in _vector_factors(model, inputs, layers, readout).items():
        a, b = factors.inputs.flatten(1), factors.output_grads.flatten(1)
        kernels[layer] = a @ a.T / a.shape[1], b @ b.T / b.shape[1]
    return kernels


def _factors(
    model: nn.Module, inputs: Any, layer: str, readout: str | Readout | None
) -> OuterFactors:
    found = _vector_factors(model, inputs, [layer], readout)
    if layer not in found:
        raise ShapeError(
            f"layer {layer!r}: expected one matrix applied once to one vector per example, got "
            "none, several, or several positions; use tangent_kernels for other layers"
        )
    return found[layer]


def _vector_factors(
    model: nn.Module, inputs: Any, layers: Sequence[str], readout: str | Readout | None
) -> dict[str, OuterFactors]:
    """Inputs and output gradients of layers with one matrix, applied once to one vector."""
    inner = unwrap(model)
    place = model_device(inner)
    with untouched(inner), exact_arithmetic(place):
        data = BatchList.of(inputs, None, None, place)

        def prepared(names: Sequence[str]) -> tuple[KernelEngine, Plan]:
            options = EngineOptions(layers=list(names), readout=readout)
            engine = prepare(inner, data, options)
            return engine, engine.plan(len(data), len(data), True, 0)

        engine, plan = prepared(layers)
        fitting = [layer for layer in engine.layers if _has_vectors(engine, plan, layer)]
        if len(fitting) < len(engine.layers):  # before passes for all outputs
            if not fitting:
                return {}
            engine, plan = prepared(fitting)
        (block,) = data.blocks(len(data), plan.batch_size)
        factors = engine.collect(block, plan).factors
    own = {layer: factors[engine.groups_of(layer)[0]] for layer in fitting}
    return {
        layer: part
        for layer, part in own.items()
        if isinstance(part, OuterFactors) and part.positions == 1
    }


def _has_vectors(engine: KernelEngine, plan: Plan, layer: str) -> bool:
    groups = [plan.groups[index] for index in engine.groups_of(layer)]
    return [(entry.group.kind, entry.route) for entry in groups] == [("outer", "hadamard")]
