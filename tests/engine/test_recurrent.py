"""Recurrent layers step by step: PyTorch's own values, and gradients by rules."""

import pytest
import torch
from torch import nn

from tests.reference.tangents import full_kernel, tangent_features
from theodolite.engine import tangent_kernels
from theodolite.engine.rules import STEP_BY_STEP

LAYERS = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}
CELLS = {"LSTMCell": torch.lstm_cell, "GRUCell": torch.gru_cell, "RNNCell": torch.rnn_tanh_cell}


class Last(nn.Module):
    """A recurrent layer, read at its last step."""

    def __init__(self, kind, **options):
        super().__init__()
        torch.manual_seed(0)
        self.inner = getattr(nn, kind)(5, 6, **options)
        self.head = nn.LazyLinear(2)
        self.first = options.get("batch_first", False)
        self.double()

    def forward(self, x):
        steps = x if self.first else x.transpose(0, 1)
        outputs, _ = self.inner(steps)
        return self.head(outputs[:, -1] if self.first else outputs[-1])


OPTIONS = {
    "plain": {},
    "two layers, both ways": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "no bias": {"bias": False, "batch_first": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", [*LAYERS, "RNN relu"])
def test_layers(kind, options, generator):
    relu = {"nonlinearity": "relu"} if kind == "RNN relu" else {}
    model = Last(kind.split()[0], **options, **relu)
    x = torch.randn(4, 3, 5, dtype=torch.float64, generator=generator)
    model(x)
    kernels = tangent_kernels(model, x)
    J = torch.cat(list(tangent_features(model, x).values()), 2)
    torch.testing.assert_close(kernels.total, full_kernel(J, J), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(kernels.outputs, model(x).detach())
    assert kernels.measured == "in batches"
    for entry in kernels.coverage["inner"]:
        assert entry.by_rule
        assert set(entry.functions) == {"linear"}


@pytest.mark.parametrize("kind", CELLS)
def test_cells_have_the_values_of_pytorch(kind, generator):
    cell = getattr(nn, kind)(5, 6)
    x = torch.randn(4, 5, generator=generator)
    state = torch.randn(4, 6, generator=generator)
    given = (state, state.flip(0)) if kind == "LSTMCell" else state
    weights = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    torch.testing.assert_close(STEP_BY_STEP[CELLS[kind]](x, given, *weights), cell(x, given))


def test_projections_are_left_to_pytorch():
    inner = nn.LSTM(5, 6, proj_size=3)
    x, state = torch.randn(3, 4, 5), (torch.zeros(1, 4, 3), torch.zeros(1, 4, 6))
    weights = [*inner.parameters()]
    assert STEP_BY_STEP[torch.lstm](x, state, weights, True, 1, 0.0, False, False, False) is None
