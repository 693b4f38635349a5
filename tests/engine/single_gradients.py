"""Gradients of single examples: models with labels, losses, and what every sum must equal."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.engine.zoo import EXAMPLES
from tests.engine.zoo import specimen as zoo_specimen
from theodolite.engine.calls import tensors_in

COUNT = EXAMPLES
LABELS = torch.arange(COUNT) % 2


@dataclass(frozen=True)
class Item:
    """A model of the zoo with labels for its examples."""

    model: nn.Module
    inputs: Any
    readout: Any

    @property
    def data(self):
        return self.inputs, LABELS.repeat(len(self) // COUNT)

    def __len__(self):
        return len(next(iter(tensors_in(self.inputs))))


def specimen(name, copies=1):
    """Copies are perturbed, so that there are more examples."""
    found = zoo_specimen(name)
    inputs = found.inputs
    if copies > 1:
        generator = torch.Generator().manual_seed(5)
        noise = torch.randn(copies - 1, *inputs.shape, generator=generator, dtype=inputs.dtype)
        inputs = torch.cat([inputs, (inputs + noise).flatten(0, 1)])
    return Item(found.model, inputs, found.readout)


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def squared(outputs, targets):
    return 0.5 * (outputs - functional.one_hot(targets, outputs.shape[1])).square().sum(1)


def hinge(outputs, targets):
    margins = 1 + outputs - outputs.gather(1, targets[:, None])
    return functional.relu(margins).sum(1) - 1


LOSSES = {"cross-entropy": cross_entropy, "squared": squared, "hinge": hinge}


def rows_of(gradients, layer):
    """All gradients below a layer side by side."""
    parts = [
        rows.flatten(1)
        for name, rows in gradients.items()
        if not layer or name.startswith(layer + ".")
    ]
    return torch.cat(parts, 1)


def owners(gradients):
    return dict.fromkeys(
        name.rpartition(".")[0].partition("parametrizations.")[0].rstrip(".") for name in gradients
    )


def assert_sums(found, rows, labels):
    """All sufficient statistics of one layer against its gradients."""
    scale = rows.norm(dim=1).max().item() + 1e-30
    norms = rows.norm(dim=1)
    torch.testing.assert_close(found.norms, norms, rtol=0, atol=1e-9 * scale)
    for label in range(int(labels.max()) + 1):
        inside = rows[labels == label]
        expected = [len(inside), inside.sum(0).square().sum(), inside.norm(dim=1).sum()]
        expected.append(inside.square().sum())
        sums = found.classes
        for value, entry in zip(
            (sums.count, sums.sum_square, sums.norm_sum, sums.square_sum), expected, strict=True
        ):
            assert abs(value[label].item() - float(entry)) <= 1e-9 * COUNT**2 * max(scale**2, 1.0)
    whole = rows.sum(0).square().sum()
    torch.testing.assert_close(
        found.overall.sum_square, whole, rtol=1e-9, atol=1e-9 * scale**2 * COUNT
    )


def in_layer(key, layer):
    return layer == "" or key.startswith(layer + ".")
