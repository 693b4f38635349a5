"""CKA of every layer with one reference: spec 3."""

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.measures import kernel
from theodolite_papers.canatar2022.formulas.layers import layer_profile

LABELS = torch.arange(12) % 3


@pytest.mark.spec("3.P42")
@pytest.mark.parametrize("debiased", [True, False], ids=["debiased", "biased"])
def test_layer_profile_has_cka_of_every_layer(generator, debiased):
    def normal(width):
        return torch.randn(12, width, dtype=torch.float64, generator=generator)

    layers, inputs = [normal(width) for width in (3, 30, 5)], normal(7)
    to_labels = [kernel.target_cka(layer, LABELS, debiased=debiased) for layer in layers]
    to_inputs = [kernel.linear_cka(layer, inputs, debiased=debiased) for layer in layers]
    assert_close(layer_profile(layers, LABELS, debiased), torch.stack(to_labels), scale=100)
    assert_close(layer_profile(layers, inputs, debiased), torch.stack(to_inputs), scale=100)
