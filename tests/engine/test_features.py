from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.engine.zoo import ZOO, specimen
from theodolite.engine import (
    feature_chunks,
    feature_grams,
    feature_moments,
    features,
    input_moments,
    tangent_kernels,
)
from theodolite.engine.batches import Batch, whole_batch
from theodolite.errors import MemoryLimitError, ShapeError, UnknownNameError


class Residual(nn.Module):
    """A convolutional net whose features are overwritten in place, with a module used twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.relu(self.norm(self.stem(x)))
        y = self.conv(x)
        y += x
        return self.head(self.relu(y).mean((2, 3)))


class Tokens(nn.Module):
    """Token-wise layers with a mask given by keyword."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.mix = nn.Linear(3, 5)

    def forward(self, input_ids, attention_mask=None):
        return {"last_hidden_state": self.mix(self.embed(input_ids))}


@pytest.fixture
def model(generator):
    net = Residual().double().eval()
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return net


@pytest.fixture
def inputs(generator):
    return torch.randn(9, 2, 5, 5, generator=generator, dtype=torch.float64)


def one_at_a_time(model, inputs, layer):
    """Outputs of a layer by a plain hook, example by example, copied at once."""
    rows = []
    module = model.get_submodule(layer)
    handle = module.register_forward_hook(lambda _m, _i, out: rows.append(out.detach().clone()))
    with torch.no_grad():
        for example in inputs:
            rows.clear()
            model(example[None])
            yield rows[-1][0]
    handle.remove()


LAYERS = ["stem", "norm", "conv", "relu", "head", ""]


@pytest.mark.parametrize("batch_size", [1, 4, 9, None])
def test_features_equal_the_plain_loop(model, inputs, batch_size):
    found = features(model, inputs, LAYERS, read="raw", batch_size=batch_size)
    for layer in LAYERS:
        expected = torch.stack(list(one_at_a_time(model, inputs, layer))).flatten(1)
        torch.testing.assert_close(found[layer], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ZOO)
def test_features_of_the_zoo_for_any_batch_size(name):
    found = specimen(name)
    batch = whole_batch(found.inputs)
    with unchanged(found.model):
        together = features(found.model, found.inputs)
        singles = [batch.take(slice(i, i + 1)) for i in range(len(batch))]
        parts = [features(found.model, single, check=False) for single in singles]
        grams = feature_grams(found.model, found.inputs, batch_size=3)
    assert all(rows.shape[0] == len(batch) for rows in together.values())
    for layer, rows in together.items():
        alone = torch.cat([part[layer] for part in parts])
        torch.testing.assert_close(rows, alone, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(grams[layer], rows @ rows.mT, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ("flatten", lambda maps: maps.flatten(1)),
        ("mean", lambda maps: maps.mean((2, 3))),
        ("max", lambda maps: maps.amax((2, 3))),
        (lambda maps: maps[:, :, 2, 1:4], lambda maps: maps[:, :, 2, 1:4].flatten(1)),
    ],
    ids=["flatten", "mean", "max", "function"],
)
def test_pooling_of_maps(model, inputs, pool, expected):
    maps = torch.stack(list(one_at_a_time(model, inputs, "conv")))
    found = features(model, inputs, "conv", pool)["conv"]
    torch.testing.assert_close(found, expected(maps), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pool", ["flatten", "mean", "max", "cls", "last"])
def test_padded_tokens_never_count(pool, generator):
    model = Tokens().double().eval()
    ids = torch.randint(7, (4, 6), generator=generator)
    lengths = torch.tensor([6, 3, 1, 4])
    mask = (torch.arange(6) < lengths[:, None]).long()
    outputs = model.mix(model.embed(ids)).detach()
    data = {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(4)}
    found = features(model, data, "mix", pool, batch_size=3)
    for row, output, length in zip(found["mix"], outputs, lengths, strict=True):
        valid = output[:length]
        padded = torch.cat([valid, torch.zeros(6 - length, 5, dtype=torch.float64)])
        expected = {
            "flatten": padded.flatten(),
            "mean": valid.mean(0),
            "max": valid.amax(0),
            "cls": valid[0],
            "last": valid[-1],
        }[pool]
        torch.testing.assert_close(row, expected)
    assert found.targets.tolist() == [0, 1, 2, 3]


def test_padding_on_the_left_moves_the_first_and_the_last_token(generator):
    model = Tokens().double().eval()
    ids = torch.randint(7, (1, 4), generator=generator)
    data = {"input_ids": ids, "attention_mask": torch.tensor([[0, 1, 1, 0]])}
    outputs = model.mix(model.embed(ids)).detach()
    torch.testing.assert_close(features(model, data, "mix", "cls")["mix"], outputs[:, 1])
    torch.testing.assert_close(features(model, data, "mix", "last")["mix"], outputs[:, 2])


def test_one_dimensional_maps_and_tokens_are_told_apart(generator):
    model = nn.Sequential(nn.Conv1d(2, 3, 1)).double()
    inputs = torch.randn(4, 2, 6, generator=generator, dtype=torch.float64)
    assert features(model, inputs, "0", "mean")["0"].shape == (4, 3)
    linear = nn.Sequential(nn.Linear(6, 5)).double()
    assert features(linear, inputs, "0", "mean")["0"].shape == (4, 5)


def test_nested_tensors_are_pooled_over_their_own_length(generator):
    rows = [torch.randn(t, 3, generator=generator) for t in (2, 5, 3)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    model = nn.Linear(3, 2)
    found = features(model, nested, "", "mean")[""]
    expected = torch.stack([model(row).mean(0) for row in rows]).detach()
    torch.testing.assert_close(found, expected)


def test_layers_come_in_order_of_execution_with_their_calls(model, inputs):
    found = features(model, inputs, ["head", "relu", "stem"])
    assert list(found) == ["stem", "relu", "head"]
    assert found.calls == {"stem": 1, "relu": 2, "head": 1}


def test_a_star_takes_layers_with_parameters_that_run(model, inputs):
    assert list(features(model, inputs)) == ["stem", "norm", "conv", "head"]


def test_half_precision_features_come_in_float32(inputs):
    model = Residual().to(torch.bfloat16).eval()
    assert features(model, inputs.bfloat16(), "conv")["conv"].dtype == torch.float32


class Spectral(nn.Module):
    """Layers whose outputs are complex: vectors, tokens and maps."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 3, dtype=torch.complex128)
        self.tokens = nn.Linear(4, 3, dtype=torch.complex128)
        self.conv = nn.Conv2d(2, 3, 1, dtype=torch.complex128)
        self.head = nn.Linear(3, 2).double()

    def forward(self, x):
        z = torch.fft.fft(x, dim=-1)
        maps = self.conv(z[:, None].expand(-1, 2, -1, -1)).mean((2, 3))
        return self.head((self.line(z[:, 0]) + self.tokens(z).mean(1) + maps).abs())


@pytest.mark.parametrize("pool", ["flatten", "mean", "max", "grid"])
def test_a_complex_number_is_two_features(pool, generator):
    model = Spectral().eval()
    x = torch.randn(5, 3, 4, generator=generator, dtype=torch.float64)
    found = features(model, x, pool=pool, read="raw")
    z = torch.fft.fft(x, dim=-1)
    line = torch.view_as_real(model.line(z[:, 0])).flatten(1)
    tokens = torch.view_as_real(model.tokens(z)).flatten(2)
    maps = torch.view_as_real(model.conv(z[:, None].expand(-1, 2, -1, -1)))
    maps = maps.movedim(-1, 2).flatten(1, 2)
    wanted = {
        "flatten": (tokens.flatten(1), maps.flatten(1)),
        "mean": (tokens.mean(1), maps.mean((2, 3))),
        "max": (tokens.amax(1), maps.amax((2, 3))),
        "grid": (tokens.mean(1), maps.flatten(1)),
    }[pool]
    torch.testing.assert_close(found["line"], line)
    torch.testing.assert_close(found["tokens"], wanted[0])
    torch.testing.assert_close(found["conv"], wanted[1])


def test_compiled_models_are_read_inside(model, inputs):
    compiled = torch.compile(model, backend="eager")
    expected = features(model, inputs, "conv")["conv"]
    torch.testing.assert_close(features(compiled, inputs, "conv")["conv"], expected)


class PartlyCompiled(nn.Module):
    """A function inside is compiled, no module is."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.function = torch.compile(lambda h, w: torch.tanh(h @ w) * h, backend="eager")

    def forward(self, x):
        return self.head(self.function(x, self.inner.weight))


def test_compiled_functions_run_eagerly():
    model, x = PartlyCompiled().eval(), torch.randn(16, 4)
    expected = model.head(torch.tanh(x @ model.inner.weight) * x)
    features(model, x, "head")
    tangent_kernels(model, x)
    for _ in range(2):  # the compiler would see a size change
        found = features(model, x, "head", batch_size=5)
        torch.testing.assert_close(found["head"], expected)


@pytest.mark.parametrize("batch_size", [None, 4], ids=["whole", "parts"])
def test_outputs_come_from_the_same_pass(model, inputs, batch_size):
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    kept = features(
        model,
        Batch((inputs,), targets=torch.arange(len(inputs))),  # taken as it is: nothing is tried
        ["stem"],
        read="raw",
        batch_size=batch_size,
        outputs=lambda answer, batch: answer * batch.targets.unsqueeze(1),
        check=False,
    )
    handle.remove()
    assert len(calls) == (1 if batch_size is None else -(-len(inputs) // batch_size))
    expected = model(inputs) * torch.arange(len(inputs)).unsqueeze(1)
    torch.testing.assert_close(kept.outputs, expected)
    assert features(model, inputs, ["stem"]).outputs is None


def test_chunks_join_to_the_features(model, inputs):
    loader = DataLoader(TensorDataset(inputs, torch.arange(9)), batch_size=4)
    chunks = list(feature_chunks(model, loader, "conv", batch_size=3))
    assert [chunk.start for chunk in chunks] == [0, 2, 4, 6, 8]
    assert [len(chunk) for chunk in chunks] == [2, 2, 2, 2, 1]
    joined = torch.cat([chunk.layers["conv"] for chunk in chunks])
    torch.testing.assert_close(joined, features(model, inputs, "conv")["conv"])


@pytest.mark.parametrize("batch_size", [1, 4, 9])
def test_moments_equal_those_of_the_features(model, inputs, batch_size):
    rows = features(model, inputs, "conv", "mean")["conv"]
    moments = feature_moments(model, inputs, "conv", "mean", batch_size=batch_size)["conv"]
    torch.testing.assert_close(moments.mean, rows.mean(0))
    torch.testing.assert_close(moments.covariance(), torch.cov(rows.T, correction=0))


@pytest.mark.parametrize(
    ("batch_size", "limit", "tiles"), [(1, None, 1), (2, 10_000, 3), (4, 17_000, 2)]
)
@pytest.mark.parametrize("center", [False, True], ids=["raw", "centred"])
def test_grams_are_exact_for_any_batch_and_tile(model, inputs, batch_size, limit, tiles, center):
    found = features(model, inputs)
    grams = feature_grams(model, inputs, center=center, batch_size=batch_size, memory_limit=limit)
    assert list(grams) == list(found)
    assert grams.tiles == tiles
    for name, rows in found.items():
        rows = rows - rows.mean(0) if center else rows
        expected = rows @ rows.mT
        torch.testing.assert_close(grams[name], expected, rtol=0, atol=1e-10)


def test_centred_grams_of_float32_features_with_a_large_mean(generator):
    model = nn.Linear(3, 4)
    model.bias.data += 1e4
    inputs = torch.randn(20, 3, generator=generator)
    exact = features(model.double(), inputs.double(), "")[""]
    exact = exact - exact.mean(0)
    found = feature_grams(model.float(), inputs, "", center=True, batch_size=7)[""]
    torch.testing.assert_close(found, exact @ exact.mT, rtol=0, atol=2e-2)
    raw = features(model, inputs, "")[""]
    naive = (raw @ raw.mT).double()
    naive = naive - naive.mean(0) - naive.mean(1, keepdim=True) + naive.mean()
    assert (naive - exact @ exact.mT).abs().max() > 1  # what the shift is for


def test_products_in_double_precision(inputs):
    model = Residual().eval()
    found = feature_grams(model, inputs.float(), "conv", dtype=torch.float64)["conv"]
    rows = features(model, inputs.float(), "conv")["conv"].double()
    torch.testing.assert_close(found, rows @ rows.mT, rtol=1e-14, atol=1e-13)


def snapshot(model):
    return (
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        [m.training for m in model.modules()],
        [p.grad for p in model.parameters()],
        {name: value.clone() for name, value in model.state_dict().items()},
        torch.get_rng_state(),
        torch.is_grad_enabled(),
    )


@contextmanager
def unchanged(model):
    before = snapshot(model)
    yield
    after = snapshot(model)
    assert before[:3] == after[:3]
    assert all(torch.equal(before[3][name], after[3][name]) for name in before[3])
    assert torch.equal(before[4], after[4])
    assert before[5] == after[5]


MEASUREMENTS = {
    "features": features,
    "grams": feature_grams,
    "moments": feature_moments,
    "chunks": lambda *args: list(feature_chunks(*args)),
}


def rows_of(found):
    """Numbers of any of the measurements."""
    if isinstance(found, list):
        return torch.cat([chunk.layers["conv"] for chunk in found])
    entry = found["conv"]
    return entry if isinstance(entry, torch.Tensor) else entry.mean


@pytest.mark.parametrize("measure", [*MEASUREMENTS.values(), input_moments])
def test_inputs_that_a_model_refuses_are_cast_and_columns_named(model, inputs, measure):
    wanted = rows_of(measure(model, inputs.float().double(), "conv"))
    with pytest.warns(UserWarning, match="cast to float64"):
        found = rows_of(measure(model, inputs.float(), "conv"))
    torch.testing.assert_close(found, wanted)
    with pytest.warns(UserWarning, match="first input"):
        found = rows_of(measure(model, {"image": inputs.float().double()}, "conv"))
    torch.testing.assert_close(found, wanted)
    with pytest.raises(ShapeError, match="expected 2 channels for layer 'stem'"):
        measure(model, inputs[:, :1], "conv")


@pytest.mark.parametrize("measure", MEASUREMENTS.values(), ids=MEASUREMENTS)
def test_the_model_is_left_as_it_was_found(model, inputs, measure):
    model.unused.train()
    loader = DataLoader(TensorDataset(inputs), batch_size=4)
    with unchanged(model):
        measure(model, loader, "conv", "mean")


@pytest.mark.parametrize("measure", MEASUREMENTS.values(), ids=MEASUREMENTS)
def test_also_after_an_error_midway(model, inputs, measure):
    def broken(_output):
        torch.rand(1)
        raise KeyboardInterrupt

    with unchanged(model), pytest.raises(KeyboardInterrupt):
        measure(model, inputs, "conv", broken)


def test_a_layer_that_is_not_there_is_named_with_those_that_are():
    found = features(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.randn(5, 3))
    with pytest.raises(UnknownNameError, match="layer"):
        found["3"]
    assert "3" not in found
    assert found.get("3") is None


def test_matrices_passes_and_features_beyond_a_limit_are_refused_with_numbers():
    model, x = (
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(288, 3)),
        torch.randn(60, 1, 8, 8),
    )
    with pytest.raises(MemoryLimitError, match=r"2 matrices of 60 x 60"):
        feature_grams(model, x, memory_limit=30_000)
    tight, free = feature_grams(model, x, memory_limit=100_000), feature_grams(model, x)
    assert tight.tiles > free.tiles
    for name, gram in free.items():
        torch.testing.assert_close(tight[name], gram, rtol=1e-4, atol=1e-4)


class SequenceFirst(nn.Module):
    """A table of six positions, and a layer that puts six positions before the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.inner = nn.Embedding(6, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = x + self.positions(torch.arange(6))
        return self.head(self.inner(x.transpose(0, 1)).mean(0))


@pytest.mark.parametrize("check", [True, "every"])
@pytest.mark.parametrize("n", [5, 6, 7])
def test_as_many_positions_as_examples_are_no_examples(n, check):
    found = features(SequenceFirst(), torch.randn(n, 6, 4), check=check)
    assert list(found) == ["head"]
    assert found.measured == "in batches"


def test_only_positions_as_many_as_examples_are_refused():
    with pytest.raises(ShapeError, match="one row per example"):
        features(SequenceFirst(), torch.randn(6, 6, 4), "inner*")
