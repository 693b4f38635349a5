"""Networks trained together end as each trained alone."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from theodolite.errors import DomainError, ShapeError
from theodolite_papers.lab.models import mlp, simple_cnn
from theodolite_papers.lab.training import (
    Augmentation,
    DivergenceError,
    Hinge,
    Logistic,
    Recipe,
    Softmax,
    Squared,
    Stop,
    Watch,
    train,
    train_ensemble,
)

RECIPE = Recipe(
    optimizer="momentum", learning_rate=0.1, epochs=4, batch_size=8, schedule="thirds", seed=3
)


def network(seed, sizes=(5, 7, 3)):
    return mlp(list(sizes), generator=torch.Generator().manual_seed(seed)).double()


@pytest.fixture
def data(generator):
    x = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    return x, x[:, :3].argmax(1)


def assert_as_alone(models, logs, data, recipe, build, seeds, test=None):
    """``data`` is one pair for all, or a list of pairs."""
    for index, (model, log) in enumerate(zip(models, logs, strict=True)):
        alone = build(index)
        own = data[index] if isinstance(data, list) else data
        expected = train(alone, own, replace(recipe, seed=seeds[index]), test=test)
        torch.testing.assert_close(model.state_dict(), alone.state_dict(), rtol=0, atol=1e-11)
        assert (log.steps, log.stopped) == (expected.steps, expected.stopped)
        assert log.epoch_losses == pytest.approx(expected.epoch_losses, abs=1e-11)
        for ours, theirs in zip(log.entries, expected.entries, strict=True):
            assert ours.step == theirs.step
            assert ours.train.loss == pytest.approx(theirs.train.loss, abs=1e-11)
            assert ours.train.accuracy == theirs.train.accuracy
            assert (ours.test is None) == (theirs.test is None)
            if ours.test is not None:
                assert ours.test.loss == pytest.approx(theirs.test.loss, abs=1e-11)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam", "rmsprop"])
def test_each_as_alone(data, optimizer):
    recipe = replace(
        RECIPE, optimizer=optimizer, learning_rate=0.02, weight_decay=0.01, layer_rates={"fc1": 0.1}
    )
    models = [network(i) for i in range(3)]
    test = (data[0][:11], data[1][:11])
    logs = train_ensemble(models, data, recipe, test=test)
    assert_as_alone(models, logs, data, recipe, network, [3, 4, 5], test)


@pytest.mark.parametrize("loss", [Softmax(2.0), Hinge(), Squared(2.0)], ids=str)
def test_losses_and_dropped_batches(data, loss):
    recipe = replace(RECIPE, loss=loss, learning_rate=0.02, drop_last=True, log=3)
    models = [network(i) for i in range(2)]
    logs = train_ensemble(models, data, recipe, seeds=[9, 9])
    assert_as_alone(models, logs, data, recipe, network, [9, 9])


def test_one_output(data):
    recipe = replace(RECIPE, loss=Logistic())
    signs = (data[0], torch.where(data[1] > 0, 1.0, -1.0))

    def build(seed):
        return network(seed, (5, 7, 1))

    models = [build(i) for i in range(2)]
    logs = train_ensemble(models, signs, recipe)
    assert_as_alone(models, logs, signs, recipe, build, [3, 4])


def test_a_network_that_stops_early_keeps_what_it_had(data):
    recipe = replace(RECIPE, epochs=40, stop=Stop(loss=0.15))
    models = [network(i) for i in range(4)]
    logs = train_ensemble(models, data, recipe)
    assert len({log.steps for log in logs}) > 1
    assert {log.stopped for log in logs} == {"loss"}
    assert_as_alone(models, logs, data, recipe, network, [3, 4, 5, 6])


def test_own_data_for_each(data, generator):
    pairs = [(data[0] + i, data[1].roll(i)) for i in range(3)]
    models = [network(i) for i in range(3)]
    logs = train_ensemble(models, pairs, RECIPE)
    assert_as_alone(models, logs, pairs, RECIPE, network, [3, 4, 5])


def test_a_frozen_layer_and_a_limit_in_steps(data):
    recipe = replace(RECIPE, epochs=None, steps=9, layer_rates={"fc1": 0.0})
    models = [network(i) for i in range(2)]
    logs = train_ensemble(models, data, recipe)
    assert torch.equal(models[1].fc1.weight, network(1).fc1.weight)
    assert_as_alone(models, logs, data, recipe, network, [3, 4])


def test_convolutions_batch_norm_and_augmentation(generator):
    x = torch.randn(12, 1, 6, 6, generator=generator, dtype=torch.float64)
    y = torch.arange(12) % 3

    def build(seed):
        source = torch.Generator().manual_seed(seed)
        net = simple_cnn(
            3, conv_layers=1, filters=4, units=6, input_shape=(1, 6, 6), generator=source
        )
        return nn.Sequential(net[0], nn.BatchNorm2d(4), *net[1:]).double()

    recipe = replace(RECIPE, epochs=2, augmentation=Augmentation(padding=1, cutout=2))
    models = [build(i) for i in range(2)]
    logs = train_ensemble(models, (x, y), recipe)
    assert models[0][1].num_batches_tracked == 4
    assert_as_alone(models, logs, (x, y), recipe, build, [3, 4])


def test_divergence_names_the_network(data):
    models = [network(i) for i in range(3)]
    with torch.no_grad():
        models[1].fc1.weight.fill_(1e200)
    recipe = replace(RECIPE, loss=Squared())
    with pytest.raises(DivergenceError, match="of network 1 at step 0"):
        train_ensemble(models, data, recipe)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"models": []}, ShapeError, "at least one network"),
        ({"models": [network(0), network(0, (5, 8, 3))]}, ShapeError, "network 1 is unlike"),
        ({"seeds": [1]}, ShapeError, "one per network"),
    ],
    ids=["none", "unlike", "seeds"],
)
def test_bad_ensembles(data, change, error, message):
    arguments = {"models": [network(0), network(1)], "data": data, "recipe": RECIPE, **change}
    with pytest.raises(error, match=message):
        train_ensemble(**arguments)


def test_bad_data_of_an_ensemble(data):
    models = [network(0), network(1)]
    with pytest.raises(ShapeError, match="one pair per network"):
        train_ensemble(models, [data] * 3, RECIPE)
    with pytest.raises(ShapeError, match="equal shapes"):
        train_ensemble(models, [data, (data[0][:9], data[1][:9])], RECIPE)
    with pytest.raises(DomainError, match="below num_classes"):
        train_ensemble(models, (data[0], data[1] + 1), RECIPE)


def test_a_watch_sees_the_networks_as_they_are_then(data):
    seen = {}

    def look(step, networks):
        seen[step] = [net.fc1.weight.detach().clone() for net in networks]

    models = [network(i) for i in range(2)]
    train_ensemble(models, data, replace(RECIPE, schedule="constant"), watch=Watch({0, 5}, look))
    assert sorted(seen) == [0, 5]
    for index in range(2):
        alone = network(index)
        torch.testing.assert_close(seen[0][index], alone.fc1.weight.detach())
        short = replace(RECIPE, schedule="constant", epochs=None, steps=5, seed=3 + index)
        train(alone, data, short)
        torch.testing.assert_close(seen[5][index], alone.fc1.weight.detach())


@pytest.mark.parametrize("step", [0, 3])
def test_a_watch_ends_the_run(data, step):
    models = [network(i) for i in range(2)]
    logs = train_ensemble(models, data, RECIPE, watch=Watch({step}, lambda _step, _nets: True))
    assert [(log.steps, log.stopped) for log in logs] == [(step, "callback")] * 2
