"""Tests of the guard around measurements."""

import pytest
import torch
from torch import nn

from theodolite.engine.state import untouched, without_cudnn


def test_a_nested_guard_leaves_the_rest_to_the_outer_one():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    state = torch.get_rng_state()
    with untouched(model):
        with torch.no_grad(), untouched(model):
            assert torch.is_grad_enabled()
            model.eval()
            model[0].weight.grad = torch.ones(2, 2)
            torch.randn(3)
        assert not model[1].training
    assert model[1].training
    assert model[0].weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_guard_of_another_model_notes_everything():
    outer, inner = nn.Sequential(nn.Dropout(0.5)), nn.Dropout(0.5)
    with untouched(outer):
        with untouched(inner):
            inner.eval()
        assert inner.training


def test_cudnn_is_put_back_after_an_error():
    before = torch.backends.cudnn.enabled
    inside = []

    def fail():
        inside.append(torch.backends.cudnn.enabled)
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"), without_cudnn():
        fail()
    assert inside == [False]
    assert torch.backends.cudnn.enabled == before
