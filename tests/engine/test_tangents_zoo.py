"""Tangent kernels of every model of the zoo against one-example-at-a-time autograd."""

import pytest
import torch

from tests.engine.forced import force
from tests.engine.zoo import ZOO, specimen
from tests.reference.tangents import full_kernel, tangent_features
from tests.tolerances import assert_close
from theodolite.engine import tangent_kernels
from theodolite.engine.batches import iterate_batches
from theodolite.engine.inputs import BatchList
from theodolite.engine.kernel_engine import prepare
from theodolite.engine.kernels import kernels_of
from theodolite.engine.plan import EngineOptions
from theodolite.engine.state import untouched

REFERENCES = {}


def reference(name):
    """Gradients of all parameters, computed once per model."""
    if name not in REFERENCES:
        made = specimen(name)
        REFERENCES[name] = tangent_features(made.model, made.inputs, made.readout)
    return REFERENCES[name]


def expected(features, names):
    first = next(iter(features.values()))
    zero = torch.zeros(*first.shape[:2], *first.shape[:2], dtype=first.dtype)
    return sum((full_kernel(features[name], features[name]) for name in names), zero)


def assert_same(kernel, wanted):
    assert_close(kernel, wanted, scale=float(wanted.abs().max()) + 1e-30)


@pytest.mark.parametrize("name", ZOO)
def test_kernels_equal_plain_autograd(name):
    made = specimen(name)
    kernels = tangent_kernels(made.model, made.inputs, readout=made.readout)
    features = reference(name)
    covered = set()
    for layer, kernel in kernels.items():
        names = [entry.parameter for entry in kernels.coverage[layer]]
        covered |= set(names)
        assert_same(kernel, expected(features, names))
    assert covered == set(features)
    assert_same(kernels.total, expected(features, covered))


@pytest.mark.parametrize("route", ["positions", "gradients"])
@pytest.mark.parametrize(
    "name", ["lenet", "vgg", "resnet", "densenet", "vit", "volume", "reused module"]
)
def test_every_route_and_tile_size_gives_the_same(name, route, monkeypatch):
    made = specimen(name)
    force(monkeypatch, route=route, tile_bytes=2**9, stripes=2)
    request = EngineOptions(readout=made.readout, batch_size=3)
    with untouched(made.model):
        data = BatchList([*iterate_batches(made.inputs)])
        kernels = kernels_of(prepare(made.model, data, request), data, None)
    assert_same(kernels.total, expected(reference(name), reference(name)))


@pytest.mark.parametrize("name", ["lenet", "vgg", "vit"])
def test_the_route_by_positions_gives_the_same_for_one_row_per_example(name, monkeypatch):
    made = specimen(name)
    force(monkeypatch, route="positions")
    request = EngineOptions(outputs="trace", readout=made.readout)
    with untouched(made.model):
        data = BatchList([*iterate_batches(made.inputs)])
        kernels = kernels_of(prepare(made.model, data, request), data, None)
    total = expected(reference(name), reference(name))
    assert_same(kernels.total, total.diagonal(dim1=1, dim2=3).sum(2))


@pytest.mark.parametrize("joint", [2, 10])
@pytest.mark.parametrize("name", ["mlp", "resnet", "vit", "gpt2", "lstm", "tied autoencoder"])
def test_joint_passes_of_several_outputs_give_the_same(name, joint, monkeypatch):
    made = specimen(name)
    force(monkeypatch, outputs_per_pass=joint)
    request = EngineOptions(readout=made.readout)
    with untouched(made.model):
        data = BatchList([*iterate_batches(made.inputs)])
        engine = prepare(made.model, data, request)
        together = engine.recorder.run(data.batches[0]).joint_passes(range(engine.output_count))
        assert together is not None
        kernels = kernels_of(engine, data, None)
    assert_same(kernels.total, expected(reference(name), reference(name)))


@pytest.mark.parametrize("name", ZOO)
def test_trace_and_single_outputs(name):
    made = specimen(name)
    total = expected(reference(name), reference(name))
    wanted = {"trace": total.diagonal(dim1=1, dim2=3).sum(2), 1: total[:, 1, :, 1]}
    for outputs, kernel in wanted.items():
        found = tangent_kernels(
            made.model, made.inputs, outputs=outputs, readout=made.readout, batch_size=2
        )
        assert_same(found.total, kernel)


@pytest.mark.parametrize("name", ["mlp", "resnet", "bert", "lstm", "tied autoencoder"])
def test_cross_kernels_are_blocks_of_the_kernel(name):
    made = specimen(name)
    batch = BatchList([*iterate_batches(made.inputs)]).batches[0]
    left, right = batch.take(slice(0, 3)), batch.take(slice(1, 4))
    cross = tangent_kernels(made.model, left, other=right, readout=made.readout).total
    assert_same(cross, expected(reference(name), reference(name))[:3, :, 1:])


@pytest.mark.parametrize("name", ["mlp", "resnet", "vit", "lstm", "weight norm"])
def test_blocks_of_examples_give_the_same(name, monkeypatch):
    made = specimen(name)
    force(monkeypatch, block_size=3)
    request = EngineOptions(readout=made.readout, batch_size=1)
    with untouched(made.model):
        data = BatchList([*iterate_batches(made.inputs)])
        kernels = kernels_of(prepare(made.model, data, request), data, None)
    assert_same(kernels.total, expected(reference(name), reference(name)))


def snapshot(model):
    return {
        "hooks": [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for m in model.modules()
        ],
        "training": [m.training for m in model.modules()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "values": [v.clone() for v in model.state_dict().values()],
        "random": torch.get_rng_state(),
        "modes": torch._C._len_torch_function_stack(),
        "grad": torch.is_grad_enabled(),
    }


def assert_as_before(before, after):
    for key in ("hooks", "training", "modes", "grad"):
        assert before[key] == after[key]
    assert torch.equal(before["random"], after["random"])
    for old, new in zip(before["values"], after["values"], strict=True):
        assert torch.equal(old, new)
    for old, new in zip(before["gradients"], after["gradients"], strict=True):
        assert (old is None) == (new is None)
        assert old is None or torch.equal(old, new)


@pytest.mark.parametrize("name", ZOO)
def test_the_model_is_left_as_found(name):
    made = specimen(name)
    for parameter in list(made.model.parameters())[:1]:
        parameter.grad = torch.ones_like(parameter)
    before = snapshot(made.model)
    with torch.no_grad():
        tangent_kernels(made.model, made.inputs, outputs=0, readout=made.readout)
    assert_as_before(before, snapshot(made.model))


@pytest.mark.parametrize("name", ["mlp", "resnet", "bert"])
def test_the_model_is_left_as_found_after_an_error(name):
    made = specimen(name)
    before = snapshot(made.model)
    calls = []

    def failing(output, batch):
        calls.append(1)
        torch.rand(1)
        if len(calls) > 1:
            raise KeyError("injected")
        return output if isinstance(output, torch.Tensor) else output.logits

    with pytest.raises(KeyError, match="injected"):
        tangent_kernels(made.model, made.inputs, readout=failing)
    assert_as_before(before, snapshot(made.model))
