"""Uses of parameters: what is seen, by which rule, and what happens if one is missed or wrong."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils.checkpoint import checkpoint

from tests.networks import ntk_mlp
from tests.reference.tangents import full_kernel, tangent_features
from tests.tolerances import assert_close
from theodolite.engine import tangent_kernels
from theodolite.engine.calls import Dense
from theodolite.engine.recorder import UseRecorder, _targets, require_complete
from theodolite.engine.rules import RULES, register_rule
from theodolite.errors import CaptureError


def record(model, x):
    alone = UseRecorder(dict(model.named_parameters()), x[:1], 1)
    with alone:
        model(x[:1])
    recorded = UseRecorder(dict(model.named_parameters()), x, len(x), alone.calls)
    with recorded:
        output = model(x)
    return recorded, output


def assert_kernels(model, x):
    features = tangent_features(model, x)
    J = torch.cat(list(features.values()), 2)
    kernels = tangent_kernels(model, x)
    assert_close(kernels.total, full_kernel(J, J), scale=float(kernels.total.abs().max()))
    return kernels


def test_attention_is_looked_into():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True).double().eval()
    recorded, output = record(layer, torch.randn(3, 3, 4).double())
    seen = [(use.origin.roots[0], use.function, use.by_rule) for use in recorded.uses]
    assert ("self_attn.in_proj_weight", "linear", True) in seen
    assert ("self_attn.out_proj.weight", "linear", True) in seen
    require_complete(output.sum(), recorded)


def test_scaled_and_transposed_weights_keep_their_factors():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4).double())

        def forward(self, x):
            return x @ (self.weight * 0.5).T

    recorded, _ = record(Model(), torch.randn(2, 4).double())
    (use,) = recorded.uses
    assert use.origin.scale == 0.5
    assert_kernels(Model(), torch.randn(2, 4).double())


@pytest.mark.parametrize("scale", [0.5, -2.0, 0.0])
def test_scaled_tables_and_matrices(scale):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, 3).double())
            self.matrix = nn.Parameter(torch.randn(2, 3).double())
            self.gain = nn.Parameter(torch.randn(2).double())

        def forward(self, tokens):
            hidden = functional.embedding(tokens, self.table * scale)
            out = functional.linear(torch.tanh(hidden), scale * self.matrix)
            return (out * (self.gain * scale)).sum(1) + out.sum(1)

    torch.manual_seed(0)
    model, tokens = Scaled(), torch.randint(0, 5, (4, 3))
    features = tangent_features(model, tokens)
    kernels = tangent_kernels(model, tokens)
    wanted = sum(full_kernel(J, J) for J in features.values())
    assert_close(kernels.total, wanted, scale=float(wanted.abs().max()) + 1e-30)


class Doubler(torch.autograd.Function):
    """A function that torch's dispatch does not see."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return Doubler.apply(self.linear(x), self.scale)


def test_nodes_of_derived_weights_keep_their_identity():
    """Torch up to 2.11 makes wrappers of nodes on demand: one that dies lends its id to another."""
    recorded, _ = record(ntk_mlp([4, *[5] * 9, 2]), torch.randn(3, 4))
    targets = _targets(recorded)
    nodes = [o.tensor.grad_fn for o in recorded.origins.values() if o.tensor.grad_fn is not None]
    assert len(nodes) == 10
    assert {id(node) for node in nodes} <= set(targets)
    assert all(id(held) == key for key, (held, _, _) in targets.items())


def test_a_use_out_of_sight_is_measured_one_by_one_and_names_the_parameter():
    torch.manual_seed(0)
    kernels = assert_kernels(Hidden().double(), torch.randn(3, 3).double())
    assert re.match(r"one example at a time: .*'scale'.*DoublerBackward", kernels.measured)
    # The other parameters are not affected.
    others = tangent_kernels(Hidden(), torch.randn(3, 3), params="linear.*")
    assert others.total.shape == (3, 3) * 2
    assert others.measured == "in batches"


@pytest.fixture
def broken_linear():
    original = RULES[functional.linear]

    def broken(site):
        structure = original(site)
        if isinstance(structure, Dense):
            return structure
        return type(structure)(
            structure.inputs, lambda g: 1.1 * structure.to_output_grads(g), structure.rows
        )

    RULES[functional.linear] = broken
    yield
    RULES[functional.linear] = original


@pytest.mark.parametrize("outputs", ["full", "trace", 0])
def test_a_broken_rule_is_caught(broken_linear, outputs):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    with pytest.raises(CaptureError, match=r"layer '0'.*linear"):
        tangent_kernels(model, x, outputs=outputs)
    assert tangent_kernels(model, x, outputs=outputs, check=False).total.isfinite().all()


def gated(x, weight):
    """A third party's function, visible to torch's dispatch."""
    if has_torch_function((x, weight)):
        return handle_torch_function(gated, (x, weight), x, weight)
    return x * torch.sigmoid(weight)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3).double())
        self.head = nn.Linear(3, 2).double()

    def forward(self, x):
        return self.head(gated(x, self.weight))


def test_a_third_party_function_is_replayed_or_follows_its_rule():
    torch.manual_seed(0)
    model, x = Gated(), torch.randn(4, 3).double()
    assert not assert_kernels(model, x).coverage[""][0].by_rule

    @register_rule(gated)
    def rule(site):
        values, weight = site.args
        s = torch.sigmoid(weight)
        return Dense(lambda gradient: gradient * values * s * (1 - s))

    try:
        coverage = assert_kernels(model, x).coverage[""][0]
    finally:
        del RULES[gated]
    assert coverage.by_rule
    assert coverage.functions == ("gated",)


def test_inputs_overwritten_in_place_are_an_error():
    class Overwriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            hidden = x * 2
            out = self.linear(hidden)
            hidden.zero_()
            return out

    x = torch.randn(3, 3)
    with pytest.raises(CaptureError, match=r"in-?place"):
        tangent_kernels(Overwriting(), x)


def test_in_place_scales_and_shifts():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.scale = nn.Parameter(torch.randn(3))
            self.shift = nn.Parameter(torch.randn(3))

        def forward(self, x):
            hidden = torch.tanh(self.linear(x)).clone()
            hidden *= self.scale
            hidden += self.shift
            hidden -= 2 * self.shift
            return hidden.relu_()

    torch.manual_seed(0)
    assert_kernels(InPlace().double(), torch.randn(4, 3).double())


def test_a_view_that_is_scaled_in_place_leaves_earlier_uses_of_its_tensor():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)
            self.scale = nn.Parameter(torch.randn(2))
            self.head = nn.Linear(2, 1)

        def forward(self, x):
            hidden = self.linear(x) * 2
            earlier = hidden.sum(1, keepdim=True)
            half = hidden[:, :2]
            half *= self.scale
            return self.head(half) + earlier

    torch.manual_seed(0)
    kernels = assert_kernels(Half().double(), torch.randn(4, 3).double())
    assert kernels.measured == "in batches"


def test_a_call_with_one_parameter_that_hides_another_is_found():
    class Hiding(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen, self.hidden = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

        def scaled(self, x, weight):
            if has_torch_function((x, weight)):
                return handle_torch_function(self.scaled, (x, weight), x, weight)
            return x * weight * self.hidden

        def forward(self, x):
            return self.scaled(x, self.seen)

    torch.manual_seed(0)
    model, x = Hiding().double(), torch.randn(4, 3).double()
    recorded, output = record(model, x)
    with pytest.raises(CaptureError, match="'hidden'"):
        require_complete(output.sum(), recorded)
    assert assert_kernels(model, x).measured != "in batches"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing torch's compiler
def test_compiled_and_parallel_models_are_followed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), torch.compile(nn.Linear(4, 4)), nn.Linear(4, 2)).double()
    x = torch.randn(4, 3).double()
    plain = nn.Sequential(model[0], model[1]._orig_mod, model[2])
    wanted = tangent_kernels(plain, x).total
    assert_close(tangent_kernels(model, x).total, wanted, scale=float(wanted.abs().max()))
    wrapped = nn.DataParallel(torch.compile(plain))
    assert_close(tangent_kernels(wrapped, x).total, wanted, scale=float(wanted.abs().max()))


def test_a_shared_tensor_says_with_whom():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    model[2].weight = model[0].weight
    kernels = assert_kernels(model, torch.randn(4, 3).double())
    entry = kernels.coverage["0"][0]
    assert entry.shared_with == ("2.weight",)
    assert entry.functions == ("linear", "linear")
    assert [item.parameter for item in kernels.coverage["2"]] == ["2.bias"]


def test_examples_inside_a_merged_axis_are_told_apart():
    class TimeMajor(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.linear = nn.Linear(3, 3)

        def forward(self, x):  # (n, T, 3)
            n, steps, width = x.shape
            flat = (x.transpose(0, 1) if self.inner else x).reshape(-1, width)
            out = torch.tanh(self.linear(flat))
            if self.inner:
                return out.view(steps, n, width).mean(0)
            return out.view(n, steps, width).mean(1)

    torch.manual_seed(0)
    x = torch.randn(4, 4, 3).double()
    for inner in (False, True):
        assert_kernels(TimeMajor(inner).double(), x)


def test_inference_mode_and_no_grad_outside_do_not_matter():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2).double(), torch.randn(4, 3).double()
    wanted = tangent_kernels(model, x).total
    with torch.inference_mode():
        inside = torch.randn(1)
        found = tangent_kernels(model, x).total
    assert inside.is_inference()
    assert_close(found, wanted, scale=float(wanted.abs().max()))


def test_nested_tensors_are_followed():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            hidden = torch.tanh(self.linear(x))
            if hidden.is_nested:
                hidden = torch.nested.to_padded_tensor(hidden, 0.0)
            return self.head(hidden.sum(1))

    torch.manual_seed(0)
    model = Pooled().double()
    parts = [torch.randn(length, 3).double() for length in (2, 4, 3)]
    rows = [torch.cat(list(tangent_features(model, part[None]).values()), 2) for part in parts]
    wanted = full_kernel(torch.cat(rows), torch.cat(rows))
    ragged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    assert_close(tangent_kernels(model, ragged).total, wanted, scale=float(wanted.abs().max()))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.reentrant = reentrant

    def forward(self, x):
        def body(x):
            return torch.tanh(self.first(x))

        return self.second(checkpoint(body, x, use_reentrant=self.reentrant))


def test_checkpointed_models():
    torch.manual_seed(0)
    x = torch.randn(4, 3).double()
    assert_kernels(Checkpointed(False).double(), x)
    with pytest.raises(CaptureError, match="use_reentrant=False"):
        tangent_kernels(Checkpointed(True).double(), x.requires_grad_())
