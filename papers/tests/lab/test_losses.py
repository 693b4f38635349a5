"""Losses against their formulas, their closed-form gradients and the identities of their scales."""

import numpy as np
import pytest
import torch

from theodolite.errors import DomainError, ShapeError
from theodolite_papers.lab.training.losses import Hinge, Logistic, Softmax, Squared
from theodolite_papers.mehta2021.formulas import loss_gradients


@pytest.fixture
def batch(generator):
    outputs = 2 * torch.randn(6, 4, generator=generator, dtype=torch.float64)
    return outputs.requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 2])


def logit_gradient(loss, outputs, labels):
    (gradient,) = torch.autograd.grad(loss(outputs, labels).sum(), outputs)
    return gradient


@pytest.mark.spec("5.P26")
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_softmax(batch, temperature):
    outputs, labels = batch
    value = Softmax(temperature)(outputs, labels)
    z = outputs.detach().numpy() / temperature
    expected = [np.log(np.exp(row).sum()) - row[y] for row, y in zip(z, labels, strict=True)]
    np.testing.assert_allclose(value.detach(), expected)
    torch.testing.assert_close(
        logit_gradient(Softmax(temperature), outputs, labels),
        loss_gradients.softmax_logit_gradient(outputs.detach(), labels, temperature),
    )


@pytest.mark.spec("5.P26")
@pytest.mark.parametrize("margin", [0.0, 1.0, 2.5])
def test_hinge(batch, margin):
    outputs, labels = batch
    z = outputs.detach().numpy()
    expected = [
        sum(max(0.0, margin + row[i] - row[y]) for i in range(4) if i != y)
        for row, y in zip(z, labels.tolist(), strict=True)
    ]
    np.testing.assert_allclose(Hinge(margin)(outputs, labels).detach(), expected)
    torch.testing.assert_close(
        logit_gradient(Hinge(margin), outputs, labels),
        loss_gradients.hinge_logit_gradient(outputs.detach(), labels, margin),
    )


def test_hinge_is_inactive_at_equality():
    outputs = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
    gradient = logit_gradient(Hinge(1.0), outputs, torch.tensor([0]))
    assert not gradient.any()


@pytest.mark.spec("5.P26")
@pytest.mark.parametrize(("reduction", "factor"), [("half_sum", 0.5), ("sum", 1.0), ("mean", 0.25)])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_squared(batch, reduction, factor, scale):
    outputs, labels = batch
    loss = Squared(scale, reduction)
    onehot = np.eye(4)[labels]
    expected = factor * ((outputs.detach().numpy() - scale * onehot) ** 2).sum(1)
    np.testing.assert_allclose(loss(outputs, labels).detach(), expected)
    gradient = logit_gradient(loss, outputs, labels)
    torch.testing.assert_close(gradient, 2 * factor * (outputs - scale * torch.tensor(onehot)))
    real = loss(outputs, torch.tensor(onehot))
    torch.testing.assert_close(real, loss(outputs, labels))


def test_logistic_is_in_bits_and_finite_at_large_margins():
    outputs = torch.tensor([[0.0], [1e6], [-1e6]], dtype=torch.float64)
    value = Logistic()(outputs, torch.tensor([1.0, 1.0, 1.0]))
    assert value[0] == pytest.approx(1.0)
    assert value[1] == 0
    assert value[2].item() == pytest.approx(1e6 / np.log(2))
    zero_one = Logistic()(outputs, torch.tensor([0, 1, 0]))
    torch.testing.assert_close(zero_one, Logistic()(outputs, torch.tensor([-1, 1, -1])))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Softmax(0.0), DomainError, "temperature"),
        (lambda: Hinge(-1.0), DomainError, "margin"),
        (lambda: Squared(target_scale=-1.0), DomainError, "target_scale"),
        (lambda: Squared()(torch.ones(3, 2), torch.ones(3)), ShapeError, "outputs' shape"),
        (lambda: Logistic()(torch.ones(3, 2), torch.ones(3)), ShapeError, "one number per example"),
    ],
    ids=["temperature", "margin", "scale", "squared shape", "logistic shape"],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
