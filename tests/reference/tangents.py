"""Tangent kernels by the definition: one example and one output at a time, plain autograd."""

import torch

from theodolite.engine.batches import iterate_batches
from theodolite.engine.readouts import read_outputs, resolve_readout


def tangent_features(model, inputs, readout=None):
    """Name of a parameter -> gradients of all outputs of all examples, (n, c, P)."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    parameters = [p for p in model.parameters() if p.requires_grad]
    read = resolve_readout(readout)
    rows = {name: [] for name in names}
    for batch in iterate_batches(inputs, batch_size=1):
        outputs = read_outputs(batch.run(model), batch, read)
        for name in names:
            rows[name].append([])
        for index in range(outputs.shape[1]):
            gradients = torch.autograd.grad(
                outputs[0, index], parameters, retain_graph=True, allow_unused=True
            )
            for name, parameter, gradient in zip(names, parameters, gradients, strict=True):
                value = torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
                rows[name][-1].append(value.flatten())
    return {name: torch.stack([torch.stack(r) for r in value]) for name, value in rows.items()}


def full_kernel(left, right):
    """(n, c, P) and (m, c, P) -> (n, c, m, c), entry by entry."""
    n, c, _ = left.shape
    m = len(right)
    kernel = torch.zeros(n, c, m, c, dtype=left.dtype)
    for x in range(n):
        for i in range(c):
            for y in range(m):
                for j in range(c):
                    kernel[x, i, y, j] = left[x, i] @ right[y, j]
    return kernel


def layer_kernels(model, inputs, layers, readout=None):
    """Layer -> kernel, given layer -> names of its parameters."""
    features = tangent_features(model, inputs, readout)
    return {
        layer: sum(full_kernel(features[name], features[name]) for name in names)
        for layer, names in layers.items()
    }
