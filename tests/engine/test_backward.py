"""Calls with a cheaper backward pass: PyTorch's values and gradients."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.engine.zoo import specimen
from tests.tolerances import assert_close
from theodolite.engine import backward, gradient_sums, tangent_alignments, tangent_kernels
from theodolite.engine.backward import fixed_batch_norm, flipped_kernel_convolution
from theodolite.engine.uses import UseRecorder


def assert_same_gradients(found, wanted, given):
    """Two results of the same inputs are equal, and so are the gradients of these."""
    assert torch.equal(found, wanted)
    seed = torch.randn_like(wanted)
    ours, theirs = (torch.autograd.grad(result, given, seed) for result in (found, wanted))
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, scale=float(other.abs().max()))


def assert_same_joint_gradients(found, wanted, inputs):
    """The same for several gradients that go through together."""
    seeds = torch.randn(3, *wanted.shape, dtype=wanted.dtype)

    def pull(result):
        return torch.func.vmap(
            lambda seed: torch.autograd.grad(result, inputs, seed, retain_graph=True)[0]
        )(seeds)

    assert_close(pull(found), pull(wanted), scale=10.0)


SHAPES = {"vectors": (5, 4), "lines": (5, 4, 3), "images": (5, 4, 3, 2), "volumes": (2, 4, 2, 3, 2)}


def norm_arguments(shape, affine=True):
    draws = torch.Generator().manual_seed(0)

    def normal(*sizes):
        return torch.randn(*sizes, generator=draws, dtype=torch.float64)

    weights = (normal(4), normal(4)) if affine else (None, None)
    return normal(*shape).requires_grad_(), normal(4), normal(4).square() + 0.1, *weights


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_values_and_gradients_are_those_of_batch_norm(shape, affine):
    given = norm_arguments(shape, affine)
    found = fixed_batch_norm(functional.batch_norm, given, {"eps": 1e-3})
    wanted = functional.batch_norm(*given, eps=1e-3)
    assert_same_gradients(found, wanted, given[:1])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_norms_that_are_followed_give_scale_and_shift_their_gradients(shape):
    inputs, mean, variance, weight, bias = norm_arguments(shape)
    given = inputs, mean, variance, weight.requires_grad_(), bias.requires_grad_()
    found = fixed_batch_norm(functional.batch_norm, given, {"eps": 1e-3}, followed=True)
    wanted = functional.batch_norm(*given, eps=1e-3)
    assert_same_gradients(found, wanted, (inputs, weight, bias))


@pytest.mark.parametrize("followed", [True, False])
def test_norms_of_several_outputs_go_through_together(followed):
    given = norm_arguments((5, 4, 3, 2))
    if followed:
        given[3].requires_grad_()
    found, wanted = (
        fixed_batch_norm(functional.batch_norm, given, {}, followed=followed),
        functional.batch_norm(*given),
    )
    assert_same_joint_gradients(found, wanted, given[0])


@pytest.mark.parametrize(
    ("function", "change"),
    [
        (functional.layer_norm, {}),
        (functional.batch_norm, {"training": True}),
        (functional.batch_norm, {"running_mean": None, "running_var": None, "training": True}),
        (functional.batch_norm, {"input": torch.randn(5, 4).double()}),
        (functional.batch_norm, {"input": torch.randn(5, 4).requires_grad_()}),
        (functional.batch_norm, {"weight": 2.0 * torch.ones(4).double().requires_grad_()}),
        (functional.batch_norm, {"bias": 2.0 * torch.ones(4).double().requires_grad_()}),
    ],
    ids=[
        "another function",
        "training",
        "no statistics",
        "no gradient",
        "another dtype",
        "computed scale",
        "computed shift",
    ],
)
def test_calls_that_are_no_fixed_norm_are_left_alone(function, change):
    names = ("input", "running_mean", "running_var", "weight", "bias")
    given = {**dict(zip(names, norm_arguments((5, 4)), strict=True)), **change}
    assert fixed_batch_norm(function, (), given) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "brain"])
def test_short_numbers_keep_the_longer_ones_inside_of_pytorch(dtype):
    inputs, *others = (tensor.detach().to(dtype) for tensor in norm_arguments((5, 4)))
    assert fixed_batch_norm(functional.batch_norm, (inputs.requires_grad_(), *others), {}) is None


class Conditional(nn.Module):
    """Batch norm whose scale is computed from the example: examples lie along the channels."""

    def __init__(self, norm):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.scale, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.norm = norm

    def forward(self, x):
        hidden, scale = self.first(x).view(1, -1), self.scale(x).flatten()
        return self.last(self.norm(hidden, torch.ones_like(hidden[0]), scale).view(len(x), -1))


def test_scales_that_are_computed_from_examples_keep_their_gradients():
    norms = (
        lambda x, ones, scale: functional.batch_norm(x, ones, ones, scale, eps=0.0),
        lambda x, ones, scale: (x - ones) * scale,
    )
    x = norm_arguments((5, 4))[0].detach()
    found, wanted = (tangent_kernels(Conditional(norm).double(), x) for norm in norms)
    for layer in ("first", "scale", "last"):
        assert_close(found[layer], wanted[layer], scale=float(wanted[layer].abs().max()))


@pytest.mark.parametrize("followed", [True, False], ids=["followed", "not followed"])
def test_the_recorder_keeps_the_path_to_parameters_that_it_follows(followed):
    norm = nn.BatchNorm2d(4).double().eval()
    inputs = norm_arguments((5, 4, 3, 2))[0]
    parameters = dict(norm.named_parameters()) if followed else {}
    with UseRecorder(parameters, inputs, 5):
        result = norm(inputs)
    assert ("FixedBatchNorm" in result.grad_fn.name()) == (not followed)
    assert torch.equal(result, norm(inputs))


class Checkpointed(nn.Module):
    """Activations that are computed again on the way back, by the same calls."""

    def __init__(self, wrap):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.wrap = wrap

    def forward(self, x):
        return self.last(self.wrap(lambda inputs: self.norm(self.first(inputs)).tanh(), x))


def test_checkpoints_repeat_what_was_called():
    wraps = (partial(checkpoint, use_reentrant=False), lambda function, x: function(x))
    x = norm_arguments((5, 4))[0].detach()
    found, wanted = (
        tangent_kernels(Checkpointed(wrap).double().eval(), x, layers=["first"]) for wrap in wraps
    )
    assert_close(found["first"], wanted["first"], scale=float(wanted["first"].abs().max()))


def test_kernels_of_matrices_in_a_network_with_batch_norm():
    found = specimen("resnet")
    some = tangent_kernels(found.model, found.inputs, params=lambda name, p: p.dim() > 1)
    every = tangent_kernels(found.model, found.inputs)  # follows the norms too
    sizes = {name: p.dim() for name, p in found.model.named_parameters()}
    whole = [
        layer
        for layer in some
        if all(sizes[entry.parameter] > 1 for entry in every.coverage[layer])
    ]
    assert len(whole) >= 3
    for layer in whole:
        assert_close(some[layer], every[layer], scale=float(every[layer].abs().max()))


CALLS = {
    "line": (functional.conv1d, (7,), (3,), {"padding": 1}),
    "image": (functional.conv2d, (6, 5), (3, 3), {"padding": 1}),
    "oblong": (functional.conv2d, (6, 5), (1, 3), {"padding": (0, 2)}),
    "even": (functional.conv2d, (6, 5), (2, 4), {}),
    "dilated": (functional.conv2d, (7, 6), (3, 2), {"dilation": (2, 1), "padding": (3, 0)}),
    "one number": (functional.conv2d, (6, 5), (3, 3), {"padding": (2,), "dilation": [1, 1]}),
    "integers of NumPy": (functional.conv2d, (6, 5), (3, 3), {"padding": np.int64(1)}),
    "volume": (functional.conv3d, (3, 4, 3), (2, 3, 1), {"padding": (1, 0, 0)}),
}


@pytest.fixture
def everywhere(monkeypatch):
    """The faster way also where it is not faster."""
    monkeypatch.setattr(backward, "_faster_on", lambda device: True)


def conv_arguments(sizes, kernel):
    draws = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=draws, dtype=torch.float64).requires_grad_()

    return normal(5, 2, *sizes), normal(3, 2, *kernel), normal(3)


@pytest.mark.parametrize(("function", "sizes", "kernel", "options"), CALLS.values(), ids=CALLS)
def test_values_and_gradients_are_those_of_pytorch(everywhere, function, sizes, kernel, options):
    given = conv_arguments(sizes, kernel)
    found, wanted = (
        flipped_kernel_convolution(function, given, options),
        function(*given, **options),
    )
    assert_same_gradients(found, wanted, given)


def test_convolutions_of_several_outputs_go_through_together(everywhere):
    given = conv_arguments((6, 5), (3, 3))
    found, wanted = (
        flipped_kernel_convolution(functional.conv2d, given, {}),
        functional.conv2d(*given),
    )
    assert_same_joint_gradients(found, wanted, given[0])


def test_the_result_can_be_overwritten_by_the_next_operation(everywhere):
    given = conv_arguments((6, 5), (3, 3))
    found = flipped_kernel_convolution(functional.conv2d, given, {}).relu_()
    wanted = functional.conv2d(*given).relu()
    assert_same_gradients(found, wanted, given)


def test_weights_without_a_gradient(everywhere):
    inputs, weight, _ = conv_arguments((6, 5), (3, 3))
    found = flipped_kernel_convolution(functional.conv2d, (inputs, weight.detach()), {})
    wanted = functional.conv2d(inputs, weight.detach())
    ours, theirs = (torch.autograd.grad(x.square().sum(), inputs)[0] for x in (found, wanted))
    assert_close(ours, theirs, scale=float(theirs.abs().max()))


def test_second_derivatives_are_refused_rather_than_wrong(everywhere):
    inputs, weight, _ = conv_arguments((6, 5), (3, 3))
    found = flipped_kernel_convolution(functional.conv2d, (inputs, weight), {}).square().sum()
    (gradient,) = torch.autograd.grad(found, inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("function", "change"),
    [
        (functional.conv_transpose2d, {}),
        (functional.conv2d, {"stride": 2}),
        (functional.conv2d, {"stride": (1, 2)}),
        (functional.conv2d, {"groups": 2, "weight": torch.ones(4, 1, 3, 3).double()}),
        (functional.conv2d, {"padding": (3, 0)}),
        (functional.conv2d, {"padding": "same"}),
        (functional.conv2d, {"weight": torch.ones(3, 2, 1, 1).double()}),
        (functional.conv2d, {"weight": torch.ones(3, 2, 3, 3)}),
        (functional.conv2d, {"input": torch.ones(5, 2, 6, 5).double()}),
        (functional.conv2d, {"input": torch.ones(5, 2, 6, 5).half().requires_grad_()}),
    ],
    ids=[
        "another function",
        "strides",
        "one stride",
        "groups",
        "more padding than kernel",
        "padding by name",
        "one pixel",
        "another dtype",
        "no gradient",
        "short numbers",
    ],
)
def test_calls_that_are_no_plain_convolution_are_left_alone(everywhere, function, change):
    inputs, weight, _ = conv_arguments((6, 5), (3, 3))
    given = {"input": inputs, "weight": weight, **change}
    assert flipped_kernel_convolution(function, (), given) is None


def test_calls_under_autocast_are_left_alone(everywhere):
    given = conv_arguments((6, 5), (3, 3))
    with torch.autocast("cpu", torch.bfloat16):
        assert flipped_kernel_convolution(functional.conv2d, given, {}) is None


def test_a_cpu_keeps_its_own_way():
    assert flipped_kernel_convolution(functional.conv2d, conv_arguments((6, 5), (3, 3)), {}) is None


def test_the_recorder_takes_the_faster_way_for_many_examples(everywhere):
    layer = nn.Conv2d(2, 3, 3).double()
    inputs = conv_arguments((6, 5), (3, 3))[0]
    names = []
    for count in (1, 5):
        with UseRecorder(dict(layer.named_parameters()), inputs[:count], count) as recorded:
            names.append(layer(inputs[:count]).grad_fn.name())
        assert len(recorded.uses) == 2
    assert ["FlippedKernel" in name for name in names] == [False, True]


NETWORKS = ["lenet", "vgg", "resnet", "densenet", "unet", "volume"]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_measured_as_before(monkeypatch, name):
    found = specimen(name)
    targets = torch.arange(len(found.inputs)) % 2
    outputs = found.model(found.inputs).flatten(1).shape[1]
    labels = functional.one_hot(targets, outputs).to(found.inputs)

    def measured():
        kernels = tangent_kernels(found.model, found.inputs)
        sums = gradient_sums(
            found.model, found.inputs, targets, nn.CrossEntropyLoss(reduction="none")
        )
        alignments = tangent_alignments(found.model, found.inputs, labels)
        values = {layer: kernels[layer] for layer in kernels}
        values |= {f"{layer} sums": sums[layer].norms for layer in sums}
        return values | {f"{layer} with labels": alignments[layer].energy for layer in alignments}

    wanted = measured()
    monkeypatch.setattr(backward, "_faster_on", lambda device: True)
    for part, value in measured().items():
        assert_close(value, wanted[part], scale=float(wanted[part].abs().max()))


def test_a_vmap_inside_of_the_model_keeps_its_own_way(everywhere):
    layer, norm = nn.Conv2d(2, 3, 3).double(), nn.BatchNorm2d(3).double().eval()
    inputs = conv_arguments((6, 5), (3, 3))[0]

    def model(images):
        return torch.func.vmap(lambda image: norm(layer(image[None]))[0])(images)

    with UseRecorder({}, inputs, len(inputs)):
        found = model(inputs)
    assert torch.equal(found, model(inputs))
