"""Sums and alignments of gradients: identities, losses, labels and precision."""

import weakref
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.engine.single_gradients import (
    COUNT,
    LABELS,
    LOSSES,
    assert_sums,
    cross_entropy,
    in_layer,
    rows_of,
    specimen,
)
from tests.reference import gradient as reference
from tests.reference.example_gradients import example_gradients
from theodolite.engine import gradient_alignment, gradient_sums, tangent_kernels
from theodolite.engine.factors import OuterFactors, squared_norms_of
from theodolite.engine.rounding import norms_of
from theodolite.measures import gradient as measures


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_any_loss_with_a_value_per_example(name, loss):
    zoo_item = specimen(name)
    gradients, _ = example_gradients(zoo_item.model, zoo_item.data, loss)
    sums = gradient_sums(zoo_item.model, *zoo_item.data, loss)
    assert_sums(sums.total, rows_of(gradients, ""), sums.labels)


@pytest.mark.spec("5.P39")
@pytest.mark.parametrize("name", ["mlp", "resnet", "bert"])
def test_summed_gradients_are_n_times_the_batch_gradient(name):
    zoo_item = specimen(name)
    sums = gradient_sums(zoo_item.model, zoo_item.data, readout=zoo_item.readout)
    gradients, _ = example_gradients(zoo_item.model, zoo_item.data, cross_entropy, zoo_item.readout)
    for layer, value in sums.items():
        own = {key: rows for key, rows in gradients.items() if in_layer(key, layer)}
        mean = rows_of(own, "").mean(0)
        expected = (COUNT * mean).square().sum()
        torch.testing.assert_close(value.overall.sum_square, expected, rtol=1e-9, atol=1e-18)


@pytest.mark.spec("5.P40")
def test_relative_norm_is_that_of_the_mean_gradient():
    zoo_item = specimen("mlp")
    found = gradient_alignment(zoo_item.model, *zoo_item.data)
    inputs, targets = zoo_item.data
    loss = functional.cross_entropy(zoo_item.model(inputs), targets)
    weight = zoo_item.model[0][2].weight
    (grad,) = torch.autograd.grad(loss, weight)
    expected = grad.norm() / weight.detach().norm()
    torch.testing.assert_close(found["0.2"].relative_norm, expected)
    with torch.no_grad():
        weight.zero_()
    assert gradient_alignment(zoo_item.model, *zoo_item.data)["0.2"].relative_norm.isnan()


def backpropagation(weights, activation, slope, inputs, delta):
    """Gradients of single examples of a net without biases, by the chain rule, layer by layer."""
    units, pre = [inputs], []
    for weight in weights[:-1]:
        pre.append(units[-1] @ weight.T)
        units.append(activation(pre[-1]))
    output_grad = delta(units[-1] @ weights[-1].T)
    gradients = []
    for index in range(len(weights) - 1, -1, -1):
        gradients.insert(0, output_grad.unsqueeze(2) * units[index].unsqueeze(1))
        if index:
            output_grad = (output_grad @ weights[index]) * slope(pre[index - 1])
    return gradients


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)


ACTIVATIONS = {
    "sin": (Sine, torch.sin, torch.cos),
    "relu": (nn.ReLU, torch.relu, lambda a: (a > 0).double()),
    "linear": (nn.Identity, lambda a: a, torch.ones_like),
    "sigmoid": (nn.Sigmoid, torch.sigmoid, lambda a: a.sigmoid() * (1 - a.sigmoid())),
}


def slopes_of(loss, targets):
    onehot = functional.one_hot(targets, 3).double()

    def hinge_slope(z):
        active = ((1 + z - (z * onehot).sum(1, keepdim=True)) > 0).double() * (1 - onehot)
        return active - onehot * active.sum(1, keepdim=True)

    return {
        "cross-entropy": lambda z: z.softmax(1) - onehot,
        "squared": lambda z: z - onehot,
        "hinge": hinge_slope,
    }[loss]


@pytest.mark.spec("5.P37")
@pytest.mark.spec("5.P38")
@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_explicit_back_propagation_and_factored_norms(activation, loss, depth, generator):
    make, function, slope = ACTIVATIONS[activation]
    sizes = [4, *[5] * (depth - 1), 3]
    modules = []
    for fan_in, fan_out in pairwise(sizes):
        modules += [nn.Linear(fan_in, fan_out, bias=False), make()]
    model = nn.Sequential(*modules[:-1]).double()
    for layer in model[::2]:
        layer.weight.data = torch.randn(
            layer.weight.shape, generator=generator, dtype=torch.float64
        )
    inputs = torch.randn(COUNT, 4, generator=generator, dtype=torch.float64)
    targets = torch.arange(COUNT) % 3
    weights = [layer.weight.detach() for layer in model[::2]]
    explicit = backpropagation(weights, function, slope, inputs, slopes_of(loss, targets))
    plain, _ = example_gradients(model, (inputs, targets), LOSSES[loss])
    sums = gradient_sums(model, inputs, targets, LOSSES[loss])
    for (name, rows), expected in zip(plain.items(), explicit, strict=True):
        torch.testing.assert_close(rows, expected)
        assert_sums(sums[name.partition(".")[0]], expected.flatten(1), targets)
    squares = sum(value.norms.square() for value in sums.values())
    torch.testing.assert_close(sums.total.norms.square(), squares)


@pytest.mark.spec("5.P38")
@pytest.mark.parametrize("name", ["mlp", "resnet", "bert"])
def test_gradient_grams_add_up_and_give_the_confusion(name):
    zoo_item = specimen(name)
    gradients, _ = example_gradients(zoo_item.model, zoo_item.data, cross_entropy, zoo_item.readout)
    inputs, targets = zoo_item.data
    grams = tangent_kernels(
        zoo_item.model, inputs, outputs=cross_entropy, targets=targets, readout=zoo_item.readout
    )
    rows = rows_of(gradients, "")
    torch.testing.assert_close(sum(grams.values()), rows @ rows.mT, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(grams.total, rows @ rows.mT, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        measures.confusion_of_gram(grams.total), measures.gradient_confusion(rows)
    )
    sums = gradient_sums(zoo_item.model, inputs, targets, readout=zoo_item.readout)
    for layer, gram in grams.items():
        torch.testing.assert_close(
            sums[layer].norms.square(), gram.diagonal(), rtol=1e-9, atol=1e-14
        )
        whole = sums[layer].overall.sum_square
        torch.testing.assert_close(whole, gram.sum(), rtol=1e-9, atol=1e-14)


@pytest.mark.spec("5.P41")
def test_a_step_on_one_example_changes_another_by_the_inner_product(generator):
    zoo_item = specimen("mlp")
    inputs, targets = zoo_item.inputs[:2], LABELS[:2]
    gradients, _ = example_gradients(zoo_item.model, (inputs, targets), cross_entropy)
    rows = rows_of(gradients, "")
    overall = gradient_sums(zoo_item.model, inputs, targets).total.overall
    inner = (overall.sum_square - overall.square_sum) / 2  # of the two gradients
    torch.testing.assert_close(inner, rows[0] @ rows[1])
    errors = []
    before = cross_entropy(zoo_item.model(inputs), targets)[1].item()
    for step in (1e-3, 1e-4):
        moved = specimen("mlp").model
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                parameter -= step * gradients[name][0]
        change = cross_entropy(moved(inputs), targets)[1].item() - before
        errors.append(abs(change + step * inner.item()))
    assert errors[1] < 0.02 * errors[0]  # second order in the step


def test_labels_may_differ_from_the_targets():
    zoo_item = specimen("mlp")
    inputs, targets = zoo_item.data
    other = torch.tensor([0, 0, 1, 1])
    gradients, _ = example_gradients(zoo_item.model, zoo_item.data, cross_entropy)
    sums = gradient_sums(zoo_item.model, inputs, targets, labels=other)
    assert_sums(sums.total, rows_of(gradients, ""), other)
    torch.testing.assert_close(sums.losses, cross_entropy(zoo_item.model(inputs), targets))


def test_regression_targets_form_one_class():
    zoo_item = specimen("mlp")
    targets = torch.randn(COUNT, 3, dtype=torch.float64)
    loss = lambda outputs, wanted: (outputs - wanted).square().sum(1)  # noqa: E731
    sums = gradient_sums(zoo_item.model, zoo_item.data[0], targets, loss)
    assert sums.total.classes.count.tolist() == [COUNT]
    torch.testing.assert_close(sums.total.classes.sum_square[0], sums.total.overall.sum_square)


def test_single_output_takes_the_binary_cross_entropy():
    model = nn.Sequential(nn.Linear(3, 1)).double()
    inputs, targets = torch.randn(6, 3).double(), torch.arange(6) % 2
    gradients, _ = example_gradients(
        model,
        (inputs, targets),
        lambda z, t: functional.binary_cross_entropy_with_logits(z[:, 0], t.double()),
    )
    assert_sums(gradient_sums(model, inputs, targets).total, rows_of(gradients, ""), targets)


def test_many_classes_with_few_examples_each():
    zoo_item = specimen("lenet", copies=2)
    gradients, _ = example_gradients(zoo_item.model, zoo_item.data, cross_entropy)
    own = torch.tensor([6, 0, 3, 3, 9, 0, 1, 9])
    sums = gradient_sums(zoo_item.model, *zoo_item.data, labels=own, batch_size=2, stiffness=True)
    assert_sums(sums.total, rows_of(gradients, ""), own)
    expected = torch.tensor(
        reference.between_class_stiffness(rows_of(gradients, "").numpy(), own.numpy())
    )
    torch.testing.assert_close(sums.total.units.between_class(), expected)


def test_zero_gradients_follow_the_policy():
    model = nn.Sequential(nn.Linear(2, 3)).double()
    inputs, targets = torch.randn(4, 2).double(), torch.tensor([0, 0, 1, 1])
    loss = lambda outputs, wanted: outputs.sum(1) * (wanted == 1)  # noqa: E731
    nan = gradient_alignment(model, inputs, targets, loss, stiffness=True)["0"]
    zero = gradient_alignment(model, inputs, targets, loss, zero="zero")["0"]
    assert nan.classes[0].isnan()
    assert zero.classes[0] == 0
    torch.testing.assert_close(zero.in_class, nan.in_class / 2)
    assert nan.between_class_stiffness.isnan()


def test_float32_agrees_to_its_precision():
    zoo_item = specimen("resnet")
    expected = gradient_alignment(zoo_item.model, *zoo_item.data)
    inputs, targets = zoo_item.data
    found = gradient_alignment(zoo_item.model.float(), inputs.float(), targets)
    for layer in expected:
        assert abs(found[layer].in_class - expected[layer].in_class) < 1e-4


def test_norms_of_long_float32_gradients_keep_their_digits(generator):
    rows = (
        torch.randn(3, 2_000_000, generator=generator)
        * torch.rand(2_000_000, generator=generator) ** 8
    )
    exact = rows.double().square().sum(1)
    found = squared_norms_of(rows.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)


def test_the_norm_of_a_long_float32_gradient_keeps_its_digits():
    gradient = torch.full((1800, 1800), 0.1)  # vector_norm alone is wrong by 4e-4 on a CPU
    assert norms_of([gradient]) == pytest.approx([gradient.double().norm().item()], rel=3e-5)


@pytest.mark.parametrize("factor", [1e-24, 1e-32, 1e22], ids=str)
def test_gradients_whose_squares_leave_float32(factor, generator):
    model = nn.Sequential(nn.Linear(8, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False))
    x, y = torch.randn(30, 8, generator=generator), torch.arange(30) % 3

    def found(scale):
        def loss(outputs, targets):
            return scale * functional.cross_entropy(outputs, targets, reduction="none")

        return gradient_alignment(model, x, y, loss, stiffness=True, check=False)["0"]

    scaled, plain = found(factor), found(1.0)
    torch.testing.assert_close(scaled.in_class, plain.in_class, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scaled.diversity, plain.diversity, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scaled.stiffness, plain.stiffness, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stiffness", [False, True])
def test_gradients_of_one_layer_exist_at_a_time(monkeypatch, stiffness):
    """They take n times the memory of the parameters of a layer."""
    formed: list[weakref.ref[torch.Tensor]] = []
    largest = 0
    form = OuterFactors.pieces

    def watched(factors):
        nonlocal largest
        pieces = form(factors)
        known = {id(ref()) for ref in formed}
        formed.extend(weakref.ref(piece) for piece in pieces if id(piece) not in known)
        largest = max(largest, sum(ref() is not None for ref in formed))
        return pieces

    monkeypatch.setattr(OuterFactors, "pieces", watched)
    convolutions = [nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)]
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(192, 2))
    inputs, targets = torch.randn(6, 3, 8, 8), torch.arange(6) % 2
    gradient_sums(model, inputs, targets, stiffness=stiffness, check=False)
    assert len(formed) >= len(convolutions)
    assert largest <= 4  # of a matrix and a bias, while those of the next layer are formed


def test_sums_and_alignments_take_the_same_inputs():
    model = nn.Linear(3, 2)
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 2
    wanted = gradient_sums(model, x.float(), y)
    for measure in (gradient_sums, gradient_alignment):
        with pytest.warns(UserWarning, match="float32"):
            found = measure(model, x, y)
        sums = found if measure is gradient_sums else found.sums
        assert torch.equal(sums.total.norms, wanted.total.norms)


def test_a_loader_leaves_the_random_state():
    model, data = nn.Linear(3, 2), TensorDataset(torch.randn(6, 3), torch.arange(6) % 2)
    before = torch.get_rng_state()
    gradient_sums(model, DataLoader(data, batch_size=3))
    assert torch.equal(torch.get_rng_state(), before)


class WithIdleLayer(nn.Module):
    """A side layer reaches no output, and its input is overwritten."""

    def __init__(self):
        super().__init__()
        self.inner, self.side, self.head = nn.Linear(5, 6), nn.Linear(6, 2), nn.Linear(6, 3)

    def forward(self, x):
        hidden = torch.tanh(self.inner(x))
        aside = hidden.clone()
        self.side(aside)
        aside.mul_(2)
        return self.head(hidden)


def test_a_layer_that_reaches_no_loss_may_lose_its_input(generator):
    model = WithIdleLayer().double()
    x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(8) % 3
    found = gradient_sums(model, x, labels, check=False)
    model.side = nn.Identity()  # the same outputs without the side layer
    expected = gradient_sums(model, x, labels, check=False)
    torch.testing.assert_close(found.total.norms, expected.total.norms)
    assert found["side"].norms.eq(0).all()
