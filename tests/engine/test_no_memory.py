"""The result of a call depends on its arguments alone: on no call before it, and no process."""

import hashlib
import inspect
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import theodolite as th
from theodolite import engine
from theodolite.errors import CaptureError, TheodoliteError

EXAMPLES, WIDTH, CLASSES = 24, 5, 3


def data():
    draws = torch.Generator().manual_seed(1)
    return torch.randn(EXAMPLES, WIDTH, generator=draws), torch.arange(EXAMPLES) % CLASSES


class Sorts(nn.Module):
    """A model that is measured one example at a time."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, 7), nn.Linear(7, CLASSES)

    def forward(self, x):
        order = x.sum(1).argsort()
        return self.head(torch.tanh(self.inner(x[order]))[order.argsort()])


def plain():
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, CLASSES))


MODELS = {"plain": plain, "sorts": Sorts}


def made(name):
    torch.manual_seed(0)
    return MODELS[name]().eval()


CALLS = {
    "tangent_kernels": lambda m, x, y: engine.tangent_kernels(m, x).layers,
    "tangent_kernels, trace": lambda m, x, y: engine.tangent_kernels(m, x, outputs="trace").layers,
    "tangent_features": lambda m, x, y: dict(engine.tangent_features(m, x)),
    "tangent_alignments": lambda m, x, y: {
        name: entry.alignment for name, entry in engine.tangent_alignments(m, x, y).items()
    },
    "gradient_sums": lambda m, x, y: {
        name: entry.norms for name, entry in engine.gradient_sums(m, x, y).items()
    },
    "gradient_alignment": lambda m, x, y: {
        name: entry.omega for name, entry in engine.gradient_alignment(m, x, y).items()
    },
    "features": lambda m, x, y: dict(engine.features(m, x)),
    "features, unchecked": lambda m, x, y: dict(engine.features(m, x, check=False)),
    "feature_grams": lambda m, x, y: dict(engine.feature_grams(m, x)),
    "feature_moments": lambda m, x, y: scatters(engine.feature_moments(m, x)),
    "feature_chunks": lambda m, x, y: {
        f"{name} {chunk.start}": rows
        for chunk in engine.feature_chunks(m, x, batch_size=7)
        for name, rows in chunk.layers.items()
    },
    "input_moments": lambda m, x, y: scatters(engine.input_moments(m, x)),
    "input_samples": lambda m, x, y: scatters(engine.input_samples(m, x, few=False)),
    "forward_kernel": lambda m, x, y: {"": engine.forward_kernel(m, x, first_layer(m))},
    "backward_kernel": lambda m, x, y: {"": engine.backward_kernel(m, x, first_layer(m))},
    "forward_backward_kernels": lambda m, x, y: {
        name: torch.stack(pair)
        for name, pair in engine.forward_backward_kernels(m, x, [first_layer(m)]).items()
    },
    "tangent_alignments, sketch": lambda m, x, y: {
        name: entry.alignment
        for name, entry in engine.tangent_alignments(m, x, y, method="sketch").items()
    },
}


def scatters(moments):
    return {name: entry.scatter for name, entry in moments.items()}


def first_layer(model):
    return next(name for name, _ in model.named_modules() if name)


class Overwrites(nn.Module):
    """A model that changes its inputs in place."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, 7), nn.Linear(7, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x.sub_(x.mean(1, keepdim=True)))))


@pytest.mark.parametrize("call", CALLS)
def test_no_call_changes_the_data_of_the_user(call):
    x, y = data()
    CALLS[call](Overwrites(), x, y)
    assert torch.equal(x, data()[0])
    assert torch.equal(y, data()[1])


def test_token_ids_that_a_model_changes_in_place():
    class Shifts(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, CLASSES)

        def forward(self, tokens, shift=True):
            tokens = tokens.add_(1) if shift else tokens
            return self.head(self.table(tokens).mean(1))

    model, tokens = Shifts(), torch.arange(24).view(6, 4) % 8
    found = engine.tangent_kernels(model, tokens)
    plain = engine.tangent_kernels(model, {"tokens": tokens + 1, "shift": False})
    assert torch.equal(tokens, torch.arange(24).view(6, 4) % 8)
    assert all(torch.equal(found[layer], plain[layer]) for layer in found)


def test_targets_that_a_loss_changes_in_place():
    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets.sub_(1), reduction="none")

    (x, y), model = data(), plain()
    found = engine.gradient_sums(model, x, y + 1, loss, labels=y)
    expected = engine.gradient_sums(model, x, y)
    assert torch.equal(found.stacked.norms, expected.stacked.norms)
    shifted = y + 1
    engine.tangent_kernels(model, (x, shifted), outputs=loss)
    assert torch.equal(shifted, y + 1)


def test_every_function_that_measures_a_model_is_called():
    named = {call.partition(",")[0] for call in CALLS}
    for name in engine.__all__:
        made = getattr(engine, name)
        taken = list(inspect.signature(made).parameters)[:2] if inspect.isfunction(made) else []
        if taken in (["model", "inputs"], ["model", "data"]):
            assert name in named or name == "fitted_batches", name


def lazy():
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.LazyLinear(CLASSES))


def without_numbers():
    return plain().to("meta")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lazy, "'1.weight' is made by the first batch"),
        (without_numbers, "expected weights, got the meta device"),
    ],
    ids=["lazy", "meta"],
)
def test_every_function_refuses_what_has_no_weights(call, made, message):
    with pytest.raises(TheodoliteError, match=message):
        CALLS[call](made(), *data())


def digest(found):
    """A hash of every bit of a result."""
    total = hashlib.sha256()
    for name, value in found.items():
        total.update(name.encode())
        total.update(value.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def measured(call, model):
    try:
        return digest(CALLS[call](made(model), *data()))
    except CaptureError as refused:  # factors of examples that are sorted
        return str(refused)


@pytest.mark.parametrize("call", CALLS)
def test_a_model_is_measured_the_same_before_and_after_it_was_checked(call):
    model = made("plain" if "ward_" in call else "sorts")
    first = digest(CALLS[call](model, *data()))
    th.features(model, data()[0])
    engine.gradient_sums(model, *data())
    assert digest(CALLS[call](model, *data())) == first


def everything(calls, models):
    """Hashes of all calls on all models, in this order."""
    return {f"{call} {model}": measured(call, model) for call in calls for model in models}


def test_calls_in_the_other_order_in_a_fresh_process_give_the_same_bits():
    code = """
import json
from tests.engine.test_no_memory import CALLS, MODELS, everything
print(json.dumps(everything(reversed(CALLS), list(reversed(MODELS)))))
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    fresh = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(fresh) == everything(CALLS, MODELS)
