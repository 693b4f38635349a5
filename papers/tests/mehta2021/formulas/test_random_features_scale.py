"""Scaling the first layer of a two-layer network, and undoing it exactly."""

import pytest
import torch

from tests.reference import random_features as reference
from tests.tolerances import assert_close
from theodolite_papers.mehta2021.formulas import loss_gradients

F64 = torch.float64
ACTIVATIONS = {"relu": torch.relu, "linear": lambda a: a}
GRADIENTS = {
    "softmax": loss_gradients.softmax_logit_gradient,
    "hinge": loss_gradients.hinge_logit_gradient,
    "squared": loss_gradients.squared_logit_gradient,
}
nets = pytest.mark.parametrize("activation", ACTIVATIONS)
losses = pytest.mark.parametrize("loss", GRADIENTS)
alphas = pytest.mark.parametrize("alpha", [0.25, 16.0])


def loss_of(name, logits, labels, parameter):
    """Losses of single examples, for autograd."""
    own = logits.gather(1, labels[:, None])
    if name == "softmax":
        return torch.nn.functional.cross_entropy(logits / parameter, labels, reduction="none")
    if name == "hinge":
        return torch.relu(parameter + logits - own).sum(1) - parameter
    one_hot = torch.nn.functional.one_hot(labels, logits.shape[1])
    return (logits - parameter * one_hot).square().sum(1) / 2


@pytest.fixture
def task(generator):
    x = torch.randn(9, 5, dtype=F64, generator=generator)
    first = torch.randn(7, 5, dtype=F64, generator=generator) / 2
    top = torch.randn(3, 7, dtype=F64, generator=generator) / 2
    return x, torch.arange(9) % 3, first, top


def example_gradients(task, loss, activation, parameter):
    """Gradients of every example with respect to first layer, top layer and logits, as rows."""
    x, labels, first, top = task
    pre = x @ first.T
    hidden = ACTIVATIONS[activation](pre)
    delta = GRADIENTS[loss](hidden @ top.T, labels, parameter)
    slope = (pre > 0).double() if activation == "relu" else torch.ones_like(pre)
    back = (delta @ top) * slope
    return {
        "first": torch.einsum("nh,np->nhp", back, x).flatten(1),
        "top": torch.einsum("nk,nh->nkh", delta, hidden).flatten(1),
        "logits": delta,
    }


@losses
@nets
def test_explicit_gradients_are_those_of_autograd(loss, activation, task):
    x, labels, first, top = task
    weights = first.clone().requires_grad_()
    logits = ACTIVATIONS[activation](x @ weights.T) @ top.T
    loss_of(loss, logits, labels, 1.0).sum().backward()
    explicit = example_gradients(task, loss, activation, 1.0)["first"].sum(0)
    assert_close(explicit, weights.grad.flatten())


@pytest.mark.spec("5.P44")
@alphas
@losses
@nets
def test_compensated_scale_leaves_every_alignment(loss, activation, alpha, task):
    x, labels, first, top = task
    parameter = loss_gradients.compensate(loss, alpha).parameter
    before = example_gradients(task, loss, activation, 1.0)
    after = example_gradients((x, labels, alpha * first, top), loss, activation, parameter)
    for where in before:
        expected = reference.omega(before[where].numpy())
        assert reference.omega(after[where].numpy()) == pytest.approx(expected, rel=1e-9)


@pytest.mark.spec("5.P44")
@losses
def test_uncompensated_scale_changes_the_alignment(loss, task):
    x, labels, first, top = task
    before = example_gradients(task, loss, "relu", 1.0)["logits"]
    after = example_gradients((x, labels, 16 * first, top), loss, "relu", 1.0)["logits"]
    change = reference.omega(after.numpy()) - reference.omega(before.numpy())
    assert abs(change) > 0.01


def train(task, loss, activation, parameter, rates):
    """Weights after 60 full-batch steps, and on the way the norm of the first layer."""
    x, labels, first, top = task
    layers = [first.clone().requires_grad_(), top.clone().requires_grad_()]
    for _ in range(60):
        logits = ACTIVATIONS[activation](x @ layers[0].T) @ layers[1].T
        value = loss_of(loss, logits, labels, parameter).mean()
        gradients = torch.autograd.grad(value, layers)
        for layer, gradient, rate in zip(layers, gradients, rates, strict=True):
            layer.data -= rate * gradient
    return [layer.detach() for layer in layers]


@pytest.mark.spec("5.P45")
@alphas
@losses
@nets
def test_compensated_training_retraces_the_run(loss, activation, alpha, task):
    x, labels, first, top = task
    rate = 0.05
    plain = train(task, loss, activation, 1.0, (rate, rate))
    factors = loss_gradients.compensate(loss, alpha)
    rates = rate * factors.first_rate, rate * factors.top_rate
    scaled = train((x, labels, alpha * first, top), loss, activation, factors.parameter, rates)
    assert (plain[0] - first).norm() > 0.1
    assert_close(scaled[0] / alpha, plain[0])
    assert_close(scaled[1], plain[1])


@pytest.mark.spec("5.P45")
@losses
def test_unchanged_rates_do_not_retrace_the_run(loss, task):
    x, labels, first, top = task
    plain = train(task, loss, "relu", 1.0, (0.05, 0.05))
    parameter = loss_gradients.compensate(loss, 4.0).parameter
    scaled = train((x, labels, 4.0 * first, top), loss, "relu", parameter, (0.05, 0.05))
    drift = (scaled[0] / 4.0 - plain[0]).norm() + (scaled[1] - plain[1]).norm()
    assert not drift < 1e-3
