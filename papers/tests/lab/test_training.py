"""The training loop against a literal one; determinism, rates, stopping, callbacks, divergence."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.reference import training as reference
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import (
    DivergenceError,
    Hinge,
    Logistic,
    Recipe,
    Softmax,
    Squared,
    Stop,
    evaluate,
    schedule_factor,
    steps_per_epoch,
    train,
)
from theodolite_papers.lab.training.batches import epoch_order

OPTIMIZERS = ["sgd", "momentum", "nesterov", "adam", "rmsprop"]


def network(seed=0, sizes=(5, 8, 3), **options):
    return mlp(list(sizes), generator=torch.Generator().manual_seed(seed), **options).double()


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


@pytest.fixture
def data(generator):
    x = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    return x, x[:, :3].argmax(1)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("drop_last", [False, True], ids=["all", "drop"])
def test_against_the_literal_loop(data, optimizer, drop_last):
    rates = {"fc1": 0.02, "fc2": 0.05}
    recipe = Recipe(
        optimizer=optimizer,
        learning_rate=0.05,
        layer_rates={"fc1": 0.02},
        weight_decay=0.01,
        momentum=0.8,
        batch_size=6,
        epochs=3,
        schedule="thirds",
        drop_last=drop_last,
        seed=4,
    )
    ours, literal = network(), network()
    log = train(ours, data, recipe)
    total, per_epoch = recipe.total_steps(20), recipe.steps_per_epoch(20)
    losses = reference.train(
        literal,
        *data,
        Softmax(),
        [epoch_order(4, epoch, 20).tolist() for epoch in range(3)],
        6,
        drop_last,
        optimizer,
        lambda name, t: (
            rates[name.split(".")[0]] * reference.schedule("thirds", t, total, per_epoch)
        ),
        0.8,
        0.01,
    )
    torch.testing.assert_close(weights(ours), weights(literal), rtol=0, atol=1e-12)
    assert log.steps == total == len(losses)
    sizes = ([6] * 3 if drop_last else [6, 6, 6, 2]) * 3
    means = [
        sum(a * b for a, b in zip(losses[i : i + per_epoch], sizes, strict=False))
        / sum(sizes[:per_epoch])
        for i in range(0, total, per_epoch)
    ]
    assert log.epoch_losses == pytest.approx(means, abs=1e-12)


@pytest.mark.parametrize(
    ("loss", "outputs"), [(Hinge(), 3), (Squared(), 3), (Logistic(), 1)], ids=lambda v: str(v)
)
def test_every_loss_falls(data, loss, outputs):
    x, y = data
    target = y if outputs > 1 else (y > 0).long()
    net = network(sizes=(5, 8, outputs))
    log = train(net, (x, target), Recipe(loss=loss, learning_rate=0.05, epochs=40, batch_size=5))
    assert log.final.train.loss < 0.5 * log.entries[0].train.loss
    assert log.final.train.accuracy >= 0.8


@pytest.mark.spec("5.P55")
def test_equal_seeds_give_equal_bits_and_other_seeds_do_not(data):
    recipe = Recipe(learning_rate=0.1, epochs=3, batch_size=4)
    first, second, other = network(), network(), network()
    logs = [train(net, data, recipe) for net in (first, second)]
    train(other, data, replace(recipe, seed=1))
    assert_same(weights(first), weights(second))
    assert logs[0] == logs[1]
    assert not torch.equal(first.fc1.weight, other.fc1.weight)


def test_noise_inside_the_network_is_seeded_and_the_global_state_is_left_alone(data):
    recipe = Recipe(learning_rate=0.1, epochs=2, batch_size=4)
    results = []
    for seed in (7, 8):
        torch.manual_seed(seed)
        net = nn.Sequential(network(sizes=(5, 8)), nn.Dropout(0.5), network(1, sizes=(8, 3)))
        net[1].eval()
        before = torch.get_rng_state()
        train(net, data, recipe)
        assert torch.equal(torch.get_rng_state(), before)
        assert (net.training, net[1].training) == (True, False)
        results.append(weights(net))
    assert_same(*results)


def test_each_epoch_is_a_fresh_permutation():
    orders = [epoch_order(0, epoch, 50) for epoch in range(3)] + [epoch_order(1, 0, 50)]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(50))
    assert len({tuple(order.tolist()) for order in orders}) == 4


@pytest.mark.spec("5.P54")
@pytest.mark.parametrize("how", ["rate 0", "pattern", "requires_grad"])
def test_a_frozen_first_layer_is_a_linear_model_on_fixed_features(data, how):
    x, y = data
    net = network(activation="sin", bias=False)
    initial = net.fc1.weight.detach().clone()
    features = (x @ initial.T).sin()
    linear = nn.Linear(8, 3, bias=False).double()
    with torch.no_grad():
        linear.weight.copy_(net.fc2.weight)
    recipe = Recipe(learning_rate=0.1, epochs=5, batch_size=6, weight_decay=0.1)
    if how == "requires_grad":
        net.fc1.weight.requires_grad_(False)
    train(linear, (features, y), recipe)
    rates = {"rate 0": {"fc1": 0.0}, "pattern": {"f*": 0.0, "fc2": 0.1}, "requires_grad": {}}[how]
    train(net, data, replace(recipe, layer_rates=rates))
    assert torch.equal(net.fc1.weight, initial)
    torch.testing.assert_close(net.fc2.weight, linear.weight, rtol=0, atol=1e-12)
    assert net.fc1.weight.requires_grad == (how != "requires_grad")


@pytest.mark.spec("2.P40")
def test_step_counts_of_the_paper():
    recipe = Recipe(batch_size=256, epochs=80, drop_last=True)
    assert recipe.total_steps(20_000) == 6240
    assert replace(recipe, epochs=120).total_steps(20_000) == 9360
    assert steps_per_epoch(50_000, 256, drop_last=True) == 195
    assert steps_per_epoch(50_000, 256) == 196
    assert steps_per_epoch(73_257, 256) == 287


@pytest.mark.spec("2.P40")
@pytest.mark.parametrize("total", [6240, 9360, 10, 11, 1])
def test_thirds(total):
    factors = [schedule_factor("thirds", t, total) for t in range(total)]
    assert factors == [reference.schedule("thirds", t, total, 1) for t in range(total)]
    assert factors.count(1.0) == -(-total // 3)
    assert factors == sorted(factors, reverse=True)


@pytest.mark.parametrize("name", ["constant", "linear", "step_decay"])
def test_other_schedules(name):
    ours = [schedule_factor(name, t, 700, t // 10) for t in range(700)]
    assert ours == pytest.approx([reference.schedule(name, t, 700, 10) for t in range(700)])
    assert ours[0] == 1.0


def test_rates_follow_the_schedule_step_by_step(data):
    """On a linear loss in the weights a step moves them by exactly the rate times the gradient."""
    net = network(sizes=(5, 1), bias=False)
    seen = []
    recipe = Recipe(loss=Squared(), learning_rate=0.01, steps=6, batch_size=20, schedule="linear")
    x, y = data[0], data[0].sum(1)
    train(
        net, (x, y), recipe, callbacks=[lambda s: seen.append(s.model.fc1.weight.detach().clone())]
    )
    for t, (before, after) in enumerate(pairwise(seen)):
        gradient = (x @ before.T - y[:, None]).T @ x / 20
        torch.testing.assert_close(before - after, 0.01 * (1 - t / 6) * gradient)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (Stop(loss=0.3), "loss"),
        (Stop(accuracy=0.95), "accuracy"),
        (Stop(improvement=0.2, patience=3), "improvement"),
        (Stop(), "length"),
    ],
    ids=lambda value: str(value),
)
def test_stopping_rules_end_at_the_first_epoch_that_meets_them(data, stop, reason):
    recipe = Recipe(learning_rate=0.3, epochs=60, batch_size=5, stop=stop)
    log = train(network(), data, recipe)
    full = train(network(), data, replace(recipe, stop=Stop()))
    met = {
        "loss": [loss <= 0.3 for loss in full.epoch_losses],
        "accuracy": [entry.train.accuracy >= 0.95 for entry in full.entries[1:]],
        "improvement": [
            e >= 3 and full.epoch_losses[e - 3] - loss < 0.2 * full.epoch_losses[e - 3]
            for e, loss in enumerate(full.epoch_losses)
        ],
        "length": [e == 59 for e in range(60)],
    }[reason]
    assert log.stopped == reason
    assert log.steps == 4 * (met.index(True) + 1)
    assert log.entries == full.entries[: len(log.entries)]
    assert log.final.step == log.steps


def test_a_callback_sees_every_step_and_can_stop(data):
    seen = []

    def callback(state):
        seen.append((state.step, state.epoch, state.loss.item()))
        return state.step == 6

    log = train(network(), data, Recipe(epochs=5, batch_size=5), callbacks=[callback])
    assert [entry[:2] for entry in seen] == [(t, t // 4) for t in range(7)]
    assert math.isnan(seen[0][2])
    assert all(math.isfinite(loss) for _, _, loss in seen[1:])
    assert (log.stopped, log.steps, log.final.step) == ("callback", 6, 6)


def test_only_true_stops(data):
    log = train(network(), data, Recipe(steps=3), callbacks=[lambda state: "a survey"])
    assert log.stopped == "length"


def test_callbacks_do_not_change_the_run(data):
    recipe = Recipe(epochs=3, batch_size=5, learning_rate=0.1)
    plain, watched = network(), network()
    train(plain, data, recipe)
    train(watched, data, recipe, callbacks=[lambda state: evaluate(state.model, *data, Softmax())])
    assert_same(weights(plain), weights(watched))


def test_batch_statistics_are_those_of_training(data):
    def build():
        return nn.Sequential(network(sizes=(5, 6)), nn.BatchNorm1d(6).double(), network(1, (6, 3)))

    net, bare = build(), build()
    train(net, data, Recipe(steps=3, batch_size=20, learning_rate=0.1, seed=3))
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.1)
    for epoch in range(3):
        order = epoch_order(3, epoch, 20)
        optimizer.zero_grad()
        nn.functional.cross_entropy(bare(data[0][order]), data[1][order]).backward()
        optimizer.step()
    torch.testing.assert_close(weights(net), weights(bare))
    assert net[1].num_batches_tracked == 3


@pytest.mark.parametrize("log", ["epoch", "log", "ends", 5])
def test_logged_steps(data, log):
    test = (data[0][:7], data[1][:7])
    recipe = Recipe(epochs=4, batch_size=7, log=log)
    result = train(network(), data, recipe, test=test)
    steps, losses = result.curve("test", "loss")
    expected = {
        "epoch": [0, 3, 6, 9, 12],
        "log": list(range(13)),
        "ends": [0, 12],
        5: [0, 5, 10, 12],
    }[log]
    assert set(steps) <= set(range(13))
    assert (steps[0], steps[-1]) == (0, 12)
    if log != "log":
        assert steps == expected
    net = network()
    assert losses[0] == pytest.approx(evaluate(net, *test, Softmax()).loss)


def test_log_spaced_steps_are_about_two_hundred():
    steps = sorted(Recipe(steps=100_000, log="log").logged_steps(1000))
    assert steps[:6] == [0, 1, 2, 3, 4, 5]
    assert 150 < len(steps) <= 201
    gaps = [b / a for a, b in pairwise(steps[100:])]
    assert max(gaps) < 1.1


@pytest.mark.parametrize("when", ["rising", "at once", "initial"])
def test_divergence_names_the_step_and_the_likely_cause(data, when):
    x, y = data[0], data[0].sum(1)
    net = network(sizes=(5, 1), bias=False)
    rate = {"rising": 2.0, "at once": 1e300, "initial": 0.1}[when]
    if when == "initial":
        with torch.no_grad():
            net.fc1.weight.fill_(1e200)
    recipe = Recipe(loss=Squared(), learning_rate=rate, epochs=2000, batch_size=20)
    w, first = net.fc1.weight.detach().clone(), 0
    while (0.5 * (x @ w.T - y[:, None]).square()).mean().isfinite():
        w, first = w - rate * (x @ w.T - y[:, None]).T @ x / 20, first + 1
    with pytest.raises(DivergenceError) as caught:
        train(net, (x, y), recipe)
    assert caught.value.step == first
    assert f"at step {first} " in str(caught.value)
    expected = {"rising": "try 0.2", "at once": "one update was enough", "initial": "smaller scale"}
    assert expected[when] in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Recipe(), DomainError, "exactly one"),
        (lambda: Recipe(epochs=1, steps=1), DomainError, "exactly one"),
        (lambda: Recipe(epochs=0), DomainError, "epochs"),
        (lambda: Recipe(epochs=1, learning_rate=-1.0), DomainError, "learning_rate"),
        (lambda: Recipe(epochs=1, momentum=1.0), DomainError, "momentum"),
        (lambda: Recipe(epochs=1, layer_rates={"a": -1.0}), DomainError, "layer_rates"),
        (lambda: Stop(accuracy=1.5), DomainError, "accuracy"),
        (lambda: steps_per_epoch(10, 20, drop_last=True), DomainError, "smaller batch_size"),
        (lambda: schedule_factor("linear", 5, 5), DomainError, "step"),
    ],
    ids=["none", "both", "zero", "rate", "momentum", "layer rate", "stop", "drop", "step"],
)
def test_bad_recipes(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("change", "recipe", "error", "message"),
    [
        (lambda x, y: (x, y[:-1]), {}, ShapeError, "one row per example"),
        (lambda x, y: (x, y + 3), {}, DomainError, "labels below num_classes = 3"),
        (lambda x, y: (x / 0, y), {}, DomainError, "finite"),
        (lambda x, y: (x[:0], y[:0]), {}, ShapeError, "at least one entry"),
        (lambda x, y: (x, y), {"layer_rates": {"fc9": 0.1}}, UnknownNameError, "fc1"),
        (lambda x, y: (x, y), {"layer_rates": {"": 0.0}}, DomainError, "at least one layer"),
    ],
    ids=["lengths", "labels", "inf", "empty", "unknown layer", "all frozen"],
)
def test_bad_data(data, change, recipe, error, message):
    with pytest.raises(error, match=message):
        train(network(), change(*data), Recipe(epochs=1, **recipe))


def test_progress_goes_to_the_terminal_only_if_asked(data, capsys):
    train(network(), data, Recipe(epochs=2, batch_size=5), progress=True)
    captured = capsys.readouterr()
    assert "8/8" in captured.err
    assert captured.out == ""
    train(network(), data, Recipe(epochs=1))
    assert capsys.readouterr().err == ""
