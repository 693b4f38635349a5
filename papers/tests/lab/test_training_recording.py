"""Steps recorded as CUDA graphs: on a GPU the same numbers, and a way out where it fails."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Recipe, train, train_ensemble
from theodolite_papers.lab.training.optimizers import Stepper

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def network(seed=0):
    return mlp([5, 8, 3], generator=torch.Generator().manual_seed(seed)).double().cuda()


@needs_gpu
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam", "rmsprop"])
def test_recorded_steps_are_plain_steps(generator, optimizer):
    x = torch.randn(50, 5, generator=generator, dtype=torch.float64)
    data = (x, x[:, :3].argmax(1))
    recipe = Recipe(
        optimizer=optimizer, learning_rate=0.02, epochs=8, batch_size=16, schedule="linear"
    )
    recorded, plain, together = network(1), network(1), [network(0), network(1)]
    log = train(recorded, data, replace(recipe, seed=1))
    assert log.epoch_losses == pytest.approx(
        train(plain, data, replace(recipe, seed=1, graphs=False)).epoch_losses, abs=1e-10
    )
    train_ensemble(together, data, recipe)
    for other in (plain, together[1]):
        torch.testing.assert_close(recorded.state_dict(), other.state_dict(), rtol=0, atol=1e-10)


@pytest.fixture
def stepper():
    net = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return Stepper(lambda x: net(x).mean(), optimizer, graphs=True)


def test_a_network_that_cannot_be_recorded_is_stepped_plainly(stepper, monkeypatch):
    @contextmanager
    def refuse(graph):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)  # a build without CUDA has only a stub
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    with pytest.warns(UserWarning, match="not permitted.*one kernel at a time.*graphs=False"):
        assert not stepper._record((torch.ones(3, 2),))
    assert stepper._graphs is False
