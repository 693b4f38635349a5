"""What a call has found about a model is used by the next one, and given up where it changes."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from tests.reference.tangents import tangent_features
from theodolite.engine import _outlines as outlines
from theodolite.engine import tangent_kernels

EXAMPLES = 20


class Passes(nn.Module):
    """A convolution, a norm and a layer; notes how many examples each pass has."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4).eval()
        self.head = nn.Linear(4, 3)
        self.double()
        self.between = lambda hidden: hidden
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        hidden = functional.relu(self.norm(self.convolution(x))).mean((2, 3))
        return self.head(self.between(hidden))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Passes()


@pytest.fixture
def x():
    return torch.randn(EXAMPLES, 2, 5, 5, dtype=torch.float64)


def measured(model, x, **options):
    """Kernels, which are those of plain autograd, and the sizes of the passes they took."""
    model.sizes.clear()
    kernels = tangent_kernels(model, x, **options)
    sizes = list(model.sizes)
    features = tangent_features(model, x)
    for layer in kernels:
        names = {entry.parameter for entry in kernels.coverage[layer]}
        rows = torch.cat([part for name, part in features.items() if name in names], 2)
        wanted = torch.einsum("xip,yjp->xiyj", rows, rows)
        torch.testing.assert_close(kernels[layer], wanted, rtol=1e-9, atol=1e-12)
    return kernels, sizes


@pytest.mark.parametrize("options", [{}, {"params": "*.weight"}, {"layers": "head"}])
def test_a_second_call_makes_one_pass(model, x, options):
    first, sizes = measured(model, x, **options)
    assert sizes == [1, EXAMPLES, 16]
    second, sizes = measured(model, x, **options)
    assert sizes == [EXAMPLES]
    assert all(torch.equal(first[layer], second[layer]) for layer in first)
    assert first.coverage == second.coverage
    assert measured(model, x, check=False, **options)[1] == [EXAMPLES]
    assert measured(model, x[1:], **options)[1] == [EXAMPLES - 1, 1, 16]


def test_calls_that_could_move_examples_are_compared_every_time(model, x):
    model.between = lambda hidden: hidden.cumsum(1)
    half = EXAMPLES // 2
    assert measured(model, x)[1] == [1, EXAMPLES, EXAMPLES, half, half, 16]
    assert measured(model, x)[1] == [EXAMPLES, EXAMPLES, half, half, 1, 16]


def test_other_weights_and_examples_change_nothing_about_it(model, x):
    measured(model, x)
    with torch.no_grad():
        model.convolution.weight.mul_(-2.0)
    assert measured(model, x.flip(0) * 3.0)[1] == [EXAMPLES]
    assert measured(model, x[:18, :, :4])[1] == [1, 18, 16]  # pictures of another size


def sorts(hidden):
    order = hidden[:, 0].argsort()
    return hidden[order][order.argsort()]


CHANGES = {
    "stride": lambda model: setattr(model.convolution, "stride", (2, 2)),
    "function": lambda model: setattr(model, "between", functional.tanh),
    "layer": lambda model: setattr(model, "head", nn.Linear(4, 2).double()),
    "uses": lambda model: setattr(
        model, "between", lambda h: h @ model.head.weight.T @ model.head.weight
    ),
    "norm": lambda model: setattr(model, "norm", nn.GroupNorm(2, 4).double()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_was_changed_is_looked_at_again(model, x, change):
    measured(model, x)
    CHANGES[change](model)
    assert measured(model, x)[1] != [EXAMPLES]


WEIGHTS = {
    "tanh": lambda _, weight: weight.tanh(),
    "added to itself": lambda _, weight: weight + weight,
    "masked": lambda _, weight: weight * torch.ones(4, 4).tril(),
    "others in each use": lambda index, weight: (1 + index) * weight,
}


class Repeated(Passes):
    """A layer whose weight is used twice, as some function of itself."""

    def __init__(self):
        super().__init__()
        self.repeated = nn.Linear(4, 4).double()
        self.weight_of = lambda _, weight: weight
        self.between = self.repeat

    def repeat(self, hidden):
        for index in range(2):
            weight = self.weight_of(index, self.repeated.weight)
            hidden = functional.linear(hidden, weight, self.repeated.bias).tanh()
        return hidden


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("check", [True, False])
def test_weights_that_become_functions_of_parameters_are_looked_at_again(x, weight, check):
    model = Repeated()
    measured(model, x, check=check)
    model.weight_of = WEIGHTS[weight]
    assert measured(model, x, check=check)[1] != [EXAMPLES]


def test_losses_and_readouts_are_not_kept(model, x):
    class Unhashable:
        __hash__ = None

        def __call__(self, outputs, _):
            return outputs.square().sum(1)

    targets, loss = torch.zeros(EXAMPLES), Unhashable()
    first = tangent_kernels(model, x, outputs=loss, targets=targets)
    second = tangent_kernels(model, x, outputs=loss, targets=targets)
    torch.testing.assert_close(second["head"], first["head"])

    kept = weakref.ref(loss)
    tangent_kernels(model, x, readout=lambda outputs, _, held=loss: outputs)
    del loss
    gc.collect()
    assert kept() is None


def test_a_model_that_begins_to_move_examples_is_measured_one_by_one(model, x):
    measured(model, x)
    model.between = sorts
    assert measured(model, x)[0].measured.startswith("one by one")


@pytest.mark.parametrize("check", [True, False])
def test_numbers_that_are_not_finite_are_noticed_in_later_calls_too(model, x, check):
    tangent_kernels(model, x, check=check)
    with torch.no_grad():
        model.head.weight[0, 0] = torch.nan
    with pytest.raises(th.errors.NotFiniteError, match=r"'head\.weight'"):
        tangent_kernels(model, x, check=check)


def test_models_that_decide_by_numbers_have_no_outline(x):
    model = Passes()
    model.between = lambda hidden: hidden if hidden.abs().sum() > 0 else -hidden
    for _ in range(2):
        assert measured(model, x)[1][0] == 1
    assert not outlines.forget(model)


def test_few_outlines_are_kept(model):
    for count in range(2, 14):
        tangent_kernels(model, torch.randn(2, 2, count, 5).double(), check=False)
    assert len(outlines._KNOWN[model]) == outlines._MOST
