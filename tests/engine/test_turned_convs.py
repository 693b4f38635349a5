"""Convolutions with a way back through a forward convolution: PyTorch's values and gradients."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.engine.ways_back import assert_same_gradients, assert_same_joint_gradients
from tests.engine.zoo import specimen
from tests.tolerances import assert_close
from theodolite.engine import backward, gradient_sums, tangent_alignments, tangent_kernels
from theodolite.engine.backward import flipped_kernel_convolution
from theodolite.engine.uses import UseRecorder

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


def made(sizes, kernel):
    draws = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=draws, dtype=torch.float64).requires_grad_()

    return normal(5, 2, *sizes), normal(3, 2, *kernel), normal(3)


@pytest.mark.parametrize(("function", "sizes", "kernel", "options"), CALLS.values(), ids=CALLS)
def test_values_and_gradients_are_those_of_pytorch(everywhere, function, sizes, kernel, options):
    given = made(sizes, kernel)
    found, wanted = (
        flipped_kernel_convolution(function, given, options),
        function(*given, **options),
    )
    assert_same_gradients(found, wanted, given)


def test_gradients_of_several_outputs_go_through_together(everywhere):
    given = made((6, 5), (3, 3))
    found, wanted = (
        flipped_kernel_convolution(functional.conv2d, given, {}),
        functional.conv2d(*given),
    )
    assert_same_joint_gradients(found, wanted, given[0])


def test_the_result_can_be_overwritten_by_the_next_operation(everywhere):
    given = made((6, 5), (3, 3))
    found = flipped_kernel_convolution(functional.conv2d, given, {}).relu_()
    wanted = functional.conv2d(*given).relu()
    assert_same_gradients(found, wanted, given)


def test_weights_without_a_gradient(everywhere):
    inputs, weight, _ = made((6, 5), (3, 3))
    found = flipped_kernel_convolution(functional.conv2d, (inputs, weight.detach()), {})
    wanted = functional.conv2d(inputs, weight.detach())
    ours, theirs = (torch.autograd.grad(x.square().sum(), inputs)[0] for x in (found, wanted))
    assert_close(ours, theirs, scale=float(theirs.abs().max()))


def test_second_derivatives_are_refused_rather_than_wrong(everywhere):
    inputs, weight, _ = made((6, 5), (3, 3))
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
def test_other_calls_are_left_alone(everywhere, function, change):
    inputs, weight, _ = made((6, 5), (3, 3))
    given = {"input": inputs, "weight": weight, **change}
    assert flipped_kernel_convolution(function, (), given) is None


def test_calls_under_autocast_are_left_alone(everywhere):
    given = made((6, 5), (3, 3))
    with torch.autocast("cpu", torch.bfloat16):
        assert flipped_kernel_convolution(functional.conv2d, given, {}) is None


def test_a_cpu_keeps_its_own_way():
    assert flipped_kernel_convolution(functional.conv2d, made((6, 5), (3, 3)), {}) is None


def test_the_recorder_takes_the_faster_way_for_many_examples(everywhere):
    layer = nn.Conv2d(2, 3, 3).double()
    inputs = made((6, 5), (3, 3))[0]
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
    inputs = made((6, 5), (3, 3))[0]

    def model(images):
        return torch.func.vmap(lambda image: norm(layer(image[None]))[0])(images)

    with UseRecorder({}, inputs, len(inputs)):
        found = model(inputs)
    assert torch.equal(found, model(inputs))
