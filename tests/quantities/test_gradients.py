from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.quantities.zoo import EXAMPLES, ZOO
from tests.quantities.zoo import specimen as zoo_specimen
from tests.reference.example_gradients import example_gradients
from theodolite.capture.sites import tensors_in
from theodolite.errors import CaptureError
from theodolite.measures import gradient as measures
from theodolite.quantities import _example_gradients as engine
from theodolite.quantities import gradient_alignment, gradient_sums, tangent_kernels

zoo = pytest.mark.parametrize("name", ZOO)
COUNT = EXAMPLES
LABELS = torch.arange(COUNT) % 2


@dataclass(frozen=True)
class Item:
    """A model of the zoo with labels for its examples."""

    model: nn.Module
    inputs: Any
    readout: Any

    @property
    def data(self):
        return self.inputs, LABELS.repeat(len(self) // COUNT)

    def __len__(self):
        return len(next(iter(tensors_in(self.inputs))))


def specimen(name, copies=1):
    """Copies are perturbed, so that there are more examples."""
    found = zoo_specimen(name)
    inputs = found.inputs
    if copies > 1:
        generator = torch.Generator().manual_seed(5)
        noise = torch.randn(copies - 1, *inputs.shape, generator=generator, dtype=inputs.dtype)
        inputs = torch.cat([inputs, (inputs + noise).flatten(0, 1)])
    return Item(found.model, inputs, found.readout)


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def squared(outputs, targets):
    return 0.5 * (outputs - functional.one_hot(targets, outputs.shape[1])).square().sum(1)


def hinge(outputs, targets):
    margins = 1 + outputs - outputs.gather(1, targets[:, None])
    return functional.relu(margins).sum(1) - 1


LOSSES = {"cross-entropy": cross_entropy, "squared": squared, "hinge": hinge}


def rows_of(gradients, layer):
    """All gradients below a layer side by side."""
    parts = [
        rows.flatten(1)
        for name, rows in gradients.items()
        if not layer or name.startswith(layer + ".")
    ]
    return torch.cat(parts, 1)


def owners(gradients):
    return dict.fromkeys(
        name.rpartition(".")[0].partition("parametrizations.")[0].rstrip(".") for name in gradients
    )


def assert_sums(found, rows, labels):
    """All sufficient statistics of one layer against its gradients."""
    scale = rows.norm(dim=1).max().item() + 1e-30
    norms = rows.norm(dim=1)
    torch.testing.assert_close(found.norms, norms, rtol=0, atol=1e-9 * scale)
    for label in range(int(labels.max()) + 1):
        inside = rows[labels == label]
        expected = [len(inside), inside.sum(0).square().sum(), inside.norm(dim=1).sum()]
        expected.append(inside.square().sum())
        sums = found.classes
        for value, entry in zip(
            (sums.count, sums.sum_square, sums.norm_sum, sums.square_sum), expected, strict=True
        ):
            assert abs(value[label].item() - float(entry)) <= 1e-9 * COUNT**2 * max(scale**2, 1.0)
    whole = rows.sum(0).square().sum()
    torch.testing.assert_close(
        found.overall.sum_square, whole, rtol=1e-9, atol=1e-9 * scale**2 * COUNT
    )


@zoo
@pytest.mark.parametrize("batch_size", [3, COUNT])
def test_sums_equal_those_of_single_gradients(name, batch_size):
    zoo_item = specimen(name)
    gradients, slopes = example_gradients(
        zoo_item.model, zoo_item.data, cross_entropy, zoo_item.readout
    )
    sums = gradient_sums(
        zoo_item.model, zoo_item.data, readout=zoo_item.readout, batch_size=batch_size
    )
    assert set(sums) == set(owners(gradients))
    for layer in sums:
        own = {key: rows for key, rows in gradients.items() if in_layer(key, layer)}
        assert_sums(sums[layer], rows_of(own, ""), sums.labels)
    assert_sums(sums.total, rows_of(gradients, ""), sums.labels)
    assert_sums(sums.logits, slopes, sums.labels)


def in_layer(key, layer):
    return layer == "" or key.startswith(layer + ".")


@zoo
def test_alignment_equals_the_measure_on_single_gradients(name):
    zoo_item = specimen(name)
    gradients, slopes = example_gradients(zoo_item.model, zoo_item.data, squared, zoo_item.readout)
    found = gradient_alignment(
        zoo_item.model, zoo_item.data, loss=squared, readout=zoo_item.readout,
        stiffness=True, batch_size=2, layers=["", *owners(gradients)],
    )  # fmt: skip
    labels = found.sums.labels
    for layer, value in [*found.items(), ("all logits", found.logits)]:
        rows = slopes if layer == "all logits" else rows_of(gradients, layer)
        if rows.norm() < 1e-8:  # a gradient that vanishes has no direction
            continue
        assert_alignment(value, rows, labels)
    assert_alignment(found.total, rows_of(gradients, ""), labels)


def assert_alignment(value, rows, labels):
    pairs = {
        "omega": measures.vector_alignment(rows),
        "in_class": measures.in_class_alignment(rows, labels),
        "contrast": measures.alignment_contrast(rows, labels),
        "classes": measures.class_alignment(rows, labels),
        "weighted": measures.weighted_alignment(rows),
        "stiffness": measures.cosine_stiffness(rows),
        "within_class_stiffness": measures.within_class_stiffness(rows, labels),
        "between_class_stiffness": measures.between_class_stiffness(rows, labels),
    }
    for name, expected in pairs.items():
        torch.testing.assert_close(
            getattr(value, name), expected, rtol=0, atol=1e-9, equal_nan=True, msg=name
        )
    expected = measures.gradient_diversity(rows)
    torch.testing.assert_close(value.diversity, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_any_loss_with_a_value_per_example(name, loss):
    zoo_item = specimen(name)
    gradients, _ = example_gradients(zoo_item.model, zoo_item.data, loss)
    sums = gradient_sums(zoo_item.model, *zoo_item.data, loss)
    assert_sums(sums.total, rows_of(gradients, ""), sums.labels)


@pytest.mark.parametrize("budget", [1, 600])
@pytest.mark.parametrize("products", [0, 10**9], ids=["gradients", "factors"])
@pytest.mark.parametrize("name", ["lenet", "vit", "reused module", "gpt2", "lstm"])
def test_chunks_and_routes_do_not_change_the_sums(name, products, budget, monkeypatch):
    monkeypatch.setattr(engine, "_PRODUCTS_PER_ENTRY", products)
    monkeypatch.setattr(engine, "_CHUNK_BYTES", {"cpu": budget})
    zoo_item = specimen(name)
    gradients, _ = example_gradients(zoo_item.model, zoo_item.data, cross_entropy, zoo_item.readout)
    sums = gradient_sums(
        zoo_item.model, zoo_item.data, readout=zoo_item.readout, batch_size=5, stiffness=True
    )
    rows = rows_of(gradients, "")
    assert_sums(sums.total, rows, sums.labels)
    expected = measures.within_class_stiffness(rows, sums.labels)
    torch.testing.assert_close(sums.total.units.within_class(), expected, rtol=0, atol=1e-9)


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
    signal = delta(units[-1] @ weights[-1].T)
    gradients = []
    for index in range(len(weights) - 1, -1, -1):
        gradients.insert(0, signal.unsqueeze(2) * units[index].unsqueeze(1))
        if index:
            signal = (signal @ weights[index]) * slope(pre[index - 1])
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
    expected = measures.between_class_stiffness(rows_of(gradients, ""), own)
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
    torch.testing.assert_close(engine._squared_norms(rows), exact, rtol=1e-6, atol=0)


def test_a_broken_rule_is_caught(monkeypatch):
    zoo_item = specimen("lenet")
    monkeypatch.setattr(
        engine.OuterGradients,
        "_signal",
        lambda self, rows: 1.01 * self._signals[0][rows.start : rows.stop],
    )
    with pytest.raises(CaptureError, match="expected squared norm"):
        gradient_sums(zoo_item.model, *zoo_item.data)
    gradient_sums(zoo_item.model, *zoo_item.data, check=False)


def test_broken_sums_are_caught(monkeypatch):
    zoo_item = specimen("lenet")
    correct = engine._members
    monkeypatch.setattr(engine, "_members", lambda *args: 1.01 * correct(*args))
    with pytest.raises(CaptureError, match="sum of gradients with respect to '8"):
        gradient_sums(zoo_item.model, *zoo_item.data)


def test_unused_parameters_have_gradient_zero():
    class Partial(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    inputs, targets = torch.randn(4, 3), torch.arange(4) % 2
    found = gradient_alignment(Partial(), inputs, targets, stiffness=True)
    assert found.sums["unused"].norms.tolist() == [0.0] * 4
    assert found["unused"].in_class.isnan()
    assert found["unused"].stiffness.isnan()
    assert not found["used"].in_class.isnan()


def test_examples_that_see_each_other_are_caught():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x):
            return self.inner(x - x.mean(0))

    inputs, targets = torch.randn(5, 3), torch.arange(5) % 2
    with pytest.raises(CaptureError, match="depend on each other"):
        gradient_sums(Mixing(), inputs, targets)


def state_of(model):
    return (
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        [m.training for m in model.modules()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch.overrides._get_current_function_mode_stack(),
    )


@pytest.mark.parametrize("fails", [False, True], ids=["success", "error"])
def test_the_model_is_left_as_it_was_found(fails):
    zoo_item = specimen("vgg")
    for parameter in zoo_item.model.parameters():
        parameter.grad = torch.ones_like(parameter)

    def loss(outputs, targets):
        torch.rand(1)
        if fails:
            raise KeyboardInterrupt
        return cross_entropy(outputs, targets)

    before = state_of(zoo_item.model)
    with torch.no_grad():
        if fails:
            with pytest.raises(KeyboardInterrupt):
                gradient_sums(zoo_item.model, *zoo_item.data, loss)
        else:
            gradient_sums(zoo_item.model, *zoo_item.data, loss)
    after = state_of(zoo_item.model)
    assert str(before) == str(after)


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


def test_unchecked_calls_remember_where_the_examples_lie():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    passes = []
    model.register_forward_pre_hook(lambda _module, inputs: passes.append(len(inputs[0])))
    first = gradient_sums(model, x, torch.arange(6) % 2)
    passes.clear()
    again = gradient_sums(model, x, torch.arange(6) % 2, check=False)
    assert passes == [6]  # no example alone
    assert torch.equal(first.total.norms, again.total.norms)
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    later = gradient_sums(model, x, torch.arange(6) % 2, check=False)
    assert torch.equal(later.total.norms, gradient_sums(model, x, torch.arange(6) % 2).total.norms)


def test_progress_of_gradient_sums_rises_to_one():
    model = nn.Linear(3, 2).double()
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    seen = []
    gradient_sums(
        model, x, torch.arange(7) % 2, batch_size=3, progress=lambda *told: seen.append(told)
    )
    assert seen == [
        (3 / 7, "examples 0 to 2"),
        (6 / 7, "examples 3 to 5"),
        (1.0, "examples 6 to 6"),
    ]
