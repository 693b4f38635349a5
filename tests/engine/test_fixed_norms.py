"""Batch norm with fixed statistics: the values of PyTorch, and its gradients."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.engine.ways_back import assert_same_gradients, assert_same_joint_gradients
from tests.engine.zoo import specimen
from tests.tolerances import assert_close
from theodolite.engine import tangent_kernels
from theodolite.engine.backward import fixed_batch_norm
from theodolite.engine.uses import UseRecorder

SHAPES = {"vectors": (5, 4), "lines": (5, 4, 3), "images": (5, 4, 3, 2), "volumes": (2, 4, 2, 3, 2)}


def made(shape, affine=True):
    draws = torch.Generator().manual_seed(0)

    def normal(*sizes):
        return torch.randn(*sizes, generator=draws, dtype=torch.float64)

    weights = (normal(4), normal(4)) if affine else (None, None)
    return normal(*shape).requires_grad_(), normal(4), normal(4).square() + 0.1, *weights


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_values_and_gradients_are_those_of_batch_norm(shape, affine):
    given = made(shape, affine)
    found = fixed_batch_norm(functional.batch_norm, given, {"eps": 1e-3})
    wanted = functional.batch_norm(*given, eps=1e-3)
    assert_same_gradients(found, wanted, given[:1])


def test_gradients_of_several_outputs_go_through_together():
    given = made((5, 4, 3, 2))
    found, wanted = (
        fixed_batch_norm(functional.batch_norm, given, {}),
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
def test_other_calls_are_left_alone(function, change):
    names = ("input", "running_mean", "running_var", "weight", "bias")
    given = {**dict(zip(names, made((5, 4)), strict=True)), **change}
    assert fixed_batch_norm(function, (), given) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "brain"])
def test_short_numbers_keep_the_longer_ones_inside_of_pytorch(dtype):
    inputs, *others = (tensor.detach().to(dtype) for tensor in made((5, 4)))
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
    x = made((5, 4))[0].detach()
    found, wanted = (tangent_kernels(Conditional(norm).double(), x) for norm in norms)
    for layer in ("first", "scale", "last"):
        assert_close(found[layer], wanted[layer], scale=float(wanted[layer].abs().max()))


@pytest.mark.parametrize("followed", [True, False], ids=["followed", "not followed"])
def test_the_recorder_keeps_the_path_to_parameters_that_it_follows(followed):
    norm = nn.BatchNorm2d(4).double().eval()
    inputs = made((5, 4, 3, 2))[0]
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
    x = made((5, 4))[0].detach()
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
