"""The Hessian of the outputs against plain autograd: spec 4, P70 to P78."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from theodolite.errors import DomainError, ShapeError
from theodolite_papers.lou2022._curvature import output_hessian
from theodolite_papers.lou2022.formulas.energy import layer_energy


def perceptron(depth, width=6, activation=nn.ReLU, bias=False):
    sizes = [3, *[width] * (depth - 1), 2]
    modules = []
    for layer in range(depth):
        modules.append(nn.Linear(sizes[layer], sizes[layer + 1], bias=bias))
        if layer < depth - 1:
            modules.append(activation())
    for layer in modules[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return nn.Sequential(*modules).double()


@pytest.fixture
def data(generator):
    inputs = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return inputs, torch.tensor([0, 1, 1, 0, 1, 0])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


def flat_function(model, inputs, head):
    """A function of all parameters as one flat vector, and that vector."""
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    start = torch.cat([p.detach().flatten() for p in model.parameters()])

    def function(vector):
        pieces = vector.split([shape.numel() for shape in shapes])
        values = {n: p.view(s) for n, p, s in zip(names, pieces, shapes, strict=True)}
        return head(functional_call(model, values, (inputs,)))

    return function, start


def plain_output_hessian(model, inputs, targets, loss):
    outputs = model(inputs).detach().requires_grad_()
    (weights,) = torch.autograd.grad(loss(outputs, targets).mean(), outputs)
    function, start = flat_function(model, inputs, lambda out: (out * weights).sum())
    return torch.autograd.functional.hessian(function, start), weights


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def squared(outputs, targets):
    return (outputs - functional.one_hot(targets, 2)).square().sum(1)


MODELS = {
    "relu": lambda: perceptron(3),
    "smooth": lambda: perceptron(3, activation=nn.Tanh, bias=True),
    "linear": lambda: perceptron(1),
    "attention": lambda: Attention(),
}
models = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


class Attention(nn.Module):
    """Fused attention has no second derivative; the plain form does."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(1, 2).double()
        self.head = nn.Linear(2, 2).double()

    def forward(self, x):
        tokens = self.project(x.unsqueeze(-1))
        return self.head(functional.scaled_dot_product_attention(tokens, tokens, tokens).mean(1))


@models
@pytest.mark.parametrize("loss", [cross_entropy, squared])
@pytest.mark.parametrize("batch_size", [1, 4, 6])
def test_products_equal_those_of_the_plain_hessian(make, loss, batch_size, data, generator):
    model = make()
    expected, _ = plain_output_hessian(model, *data, loss)
    hessian = output_hessian(model, *data, loss, batch_size=batch_size)
    vectors = torch.randn(len(expected), 2, generator=generator, dtype=torch.float64)
    scale = expected.abs().max().item() + 1
    torch.testing.assert_close(hessian @ vectors, expected @ vectors, rtol=0, atol=1e-11 * scale)
    torch.testing.assert_close(hessian @ vectors[:, 0], expected @ vectors[:, 0])
    torch.testing.assert_close(hessian.to_dense(), expected, rtol=0, atol=1e-11 * scale)


@pytest.mark.spec("4.P70")
def test_piecewise_linear_nets_have_symmetric_matrices_with_zero_blocks(data):
    hessian = output_hessian(perceptron(4), *data)
    vectors = torch.eye(hessian.shape[0], dtype=torch.float64)
    dense = hessian @ vectors
    torch.testing.assert_close(dense, dense.mT)
    for layer in hessian.layers:
        rows = hessian.restrict(dense, layer)
        block = hessian.restrict(rows.mT, layer)
        assert block.abs().max() < 1e-14
    assert dense.abs().max() > 1e-3


@pytest.mark.spec("4.P71")
@pytest.mark.parametrize("depth", [2, 3, 5])
def test_gradient_is_the_product_with_the_parameters(depth, data):
    model = perceptron(depth)
    hessian = output_hessian(model, *data)
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    gradient = hessian.gradient()
    torch.testing.assert_close(hessian @ theta / (depth - 1), gradient)
    loss = cross_entropy(model(data[0]), data[1]).mean()
    plain = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(gradient, torch.cat([part.flatten() for part in plain]))
    function, start = flat_function(model, data[0], lambda out: out.flatten())
    features = torch.autograd.functional.jacobian(function, start)  # (n c, p)
    torch.testing.assert_close(features.mT @ hessian.weights.flatten(), gradient)


@pytest.mark.spec("4.P73")
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_loss_hessian_is_output_hessian_plus_gauss_newton(activation, data):
    model = perceptron(3, activation=activation)
    function, start = flat_function(model, data[0], lambda out: cross_entropy(out, data[1]).mean())
    whole = torch.autograd.functional.hessian(function, start)
    outputs, _ = flat_function(model, data[0], lambda out: out.flatten())
    features = torch.autograd.functional.jacobian(outputs, start)
    p = model(data[0]).softmax(1).detach()
    blocks = (torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)) / len(p)
    middle = torch.block_diag(*blocks)
    expected = whole - features.mT @ middle @ features
    torch.testing.assert_close(output_hessian(model, *data).to_dense(), expected)


@pytest.mark.spec("4.P74")
def test_two_layers_have_a_symmetric_spectrum(data):
    values = torch.linalg.eigvalsh(output_hessian(perceptron(2), *data).to_dense())
    torch.testing.assert_close(values, -values.flip(0))
    assert values.abs().max() > 1e-3


@pytest.mark.spec("4.P75")
@pytest.mark.parametrize("depth", [3, 4])
def test_deeper_nets_have_trace_zero_and_no_symmetric_spectrum(depth, data):
    dense = output_hessian(perceptron(depth), *data).to_dense()
    assert dense.trace().abs() < 1e-13
    values = torch.linalg.eigvalsh(dense)
    assert (values + values.flip(0)).abs().max() > 1e-3 * values.abs().max()


@pytest.mark.spec("4.P77")
@pytest.mark.parametrize("width", [4, 24], ids=["dense", "iterative"])
def test_top_eigenpairs_come_by_size_and_energies_add_up(width, data):
    hessian = output_hessian(perceptron(3, width), *data)
    values, vectors = hessian.top_eigenpairs(5)
    exact = torch.linalg.eigvalsh(hessian.to_dense())
    largest = exact[exact.abs().argsort(descending=True)[:5]]
    torch.testing.assert_close(values.abs(), largest.abs(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(hessian @ vectors, vectors * values, rtol=0, atol=1e-7)
    energy = layer_energy(*hessian.by_layer(vectors))
    torch.testing.assert_close(energy.squared.sum(1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(energy.norm.square(), energy.squared)
    sizes = torch.tensor([3 * width, width * width, 2 * width])
    torch.testing.assert_close(energy.per_parameter * sizes, energy.squared)


def test_scipy_takes_the_operator(data):
    hessian = output_hessian(perceptron(3), *data)
    operator = hessian.linear_operator()
    found = eigsh(operator, k=1, which="LM", v0=np.ones(hessian.shape[0]))[0]
    torch.testing.assert_close(torch.tensor(found).abs(), hessian.top_eigenpairs(1).values.abs())


@pytest.mark.spec("4.P78")
def test_layers_and_parameters_can_be_chosen(data):
    model = perceptron(3, width=4, bias=True)
    part = output_hessian(model, *data, layers=["0", "4"], params="*.weight")
    assert part.layers == ("0", "4")
    assert part.shape == (12 + 16 + 8,) * 2
    model[0].weight.requires_grad_(False)
    assert output_hessian(model, *data).shape == (4 + 16 + 4 + 8 + 2,) * 2


def test_energies_of_layers_that_overlap(data):
    hessian = output_hessian(perceptron(2), *data, layers=["", "0"])
    with pytest.raises(DomainError, match=r"each parameter in exactly one layer"):
        hessian.by_layer(torch.ones(hessian.shape[0], 1))


def test_vectors_of_another_length(data):
    with pytest.raises(ShapeError, match=r"vectors: expected one entry per parameter"):
        output_hessian(perceptron(2), *data) @ torch.ones(3)


def test_outputs_that_are_not_finite(data):
    model = perceptron(2)
    model[0].weight.data[0, 0] = torch.nan
    with pytest.raises(DomainError, match=r"expected finite"):
        output_hessian(model, *data)
