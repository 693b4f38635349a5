"""Gradients of single examples: one forward and one backward pass each, by plain autograd."""

import torch

from theodolite.engine.batches import whole_batch
from theodolite.engine.readouts import read_outputs, resolve_readout


def example_gradients(model, data, loss, readout=None):
    """Parameter -> gradients ``(n, ...)``; also the gradients with respect to the outputs."""
    batch = whole_batch(data)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = {name: [] for name in parameters}
    slopes = []
    for index in range(len(batch)):
        one = batch.take(slice(index, index + 1))
        outputs = read_outputs(one.run(model), one, resolve_readout(readout))
        value = loss(outputs, one.targets).sum()
        grads = torch.autograd.grad(value, [outputs, *parameters.values()], allow_unused=True)
        slopes.append(grads[0][0])
        for (name, parameter), grad in zip(parameters.items(), grads[1:], strict=True):
            rows[name].append(torch.zeros_like(parameter) if grad is None else grad.to_dense())
    return {name: torch.stack(parts) for name, parts in rows.items()}, torch.stack(slopes)
