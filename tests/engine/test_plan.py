"""Routes, memory plans and products: the parts of the engine that decide and multiply."""

import ctypes
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.engine.forced import force
from tests.tolerances import assert_close
from theodolite.engine import (
    kernel_engine,
    sketch,
    tangent_alignments,
    tangent_features,
    tangent_kernels,
)
from theodolite.engine import plan as planning
from theodolite.engine.batches import iterate_batches
from theodolite.engine.contract import KernelBlock, stripe_size
from theodolite.engine.inputs import BatchList, ExampleBlock
from theodolite.engine.kernel_engine import KernelEngine, prepare
from theodolite.engine.kernels import kernels_of
from theodolite.engine.patches import PatchGeometry
from theodolite.engine.plan import (
    ContractionSizes,
    EngineOptions,
    choose_route,
    contraction_costs,
)
from theodolite.engine.state import untouched
from theodolite.errors import MemoryLimitError

# Sizes of ResNet-18 at n = 256 with 10 outputs, and the route that was fastest on a large GPU.
MEASURED = {
    "first stage": ({"rows": 64, "columns": 576, "positions": 1024}, "gradients"),
    "second stage": ({"rows": 128, "columns": 1152, "positions": 256}, "gradients"),
    "third stage": ({"rows": 256, "columns": 2304, "positions": 64}, "positions"),
    "third shortcut": ({"rows": 256, "columns": 128, "positions": 64}, "gradients"),
    "fourth stage": ({"rows": 512, "columns": 4608, "positions": 16}, "positions"),
    "linear": ({"rows": 10, "columns": 512, "positions": 1}, "hadamard"),
}


@pytest.mark.parametrize("name", MEASURED)
def test_the_route_is_the_one_that_was_fastest(name):
    sizes, fastest = MEASURED[name]
    assert choose_route(ContractionSizes(256, 256, 10, **sizes)) == fastest


def test_costs_count_multiply_adds_and_bytes():
    sizes = ContractionSizes(4, 4, 3, rows=5, columns=7, positions=30, symmetric=False, itemsize=4)
    products = 16 * (30 * 30 * 7 + 3 * 30 * 30 * 5 + 3 * 32 * 30 * 5)
    numbers = 16 * (2 * 3 * 5 * 30 + 2 * 30 * 30)
    assert contraction_costs(sizes)["positions"] == products + 6 * 4 * numbers
    sizes = ContractionSizes(4, 4, 1, rows=5, columns=7, positions=2, symmetric=False, itemsize=4)
    found = contraction_costs(sizes)  # one output: products of all pairs of positions
    products = 16 * (2 * 2 * 7 + 2 * 2 * 5)
    numbers = 16 * (3 * 2 * 2 + 2 * 2 * 2)
    assert found["positions"] == products + 6 * 4 * numbers
    sizes = replace(sizes, separate_outputs=3)
    found = contraction_costs(sizes)
    products = 8 * 3 * 2 * 5 * 7 + 16 * 9 * 5 * 7
    numbers = 8 * (2 * 3 * 5 * 7 + 3 * 2 * 7)
    assert found["gradients"] == products + 6 * 4 * numbers


def engine_of(model, x, **options):
    data = BatchList([*iterate_batches(x)])
    return prepare(model, data, EngineOptions(**options)), data


def deep():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))
    return model.double(), torch.randn(12, 1, 8, 8).double()


def test_a_tighter_limit_gives_smaller_blocks_and_the_same_kernels(monkeypatch):
    model, x = deep()
    wanted = tangent_kernels(model, x)
    force(monkeypatch, tile_bytes=2**10)
    with untouched(model):
        engine, data = engine_of(model, x, batch_size=1)
        plan = engine.plan(12, None, 2)
        assert plan.block_size == 12
        limit = int(0.8 * plan.predicted_bytes)
        tight, _ = engine_of(model, x, memory_limit=limit, batch_size=1)
        smaller = tight.plan(12, None, 2)
        assert 1 <= smaller.block_size < 12
        assert smaller.predicted_bytes <= limit
        found = kernels_of(tight, data, None)
    for layer, kernel in wanted.items():
        assert_close(found[layer], kernel, scale=float(kernel.abs().max()))


def test_passes_shrink_before_examples_are_passed_again(monkeypatch):
    model, x = deep()
    force(monkeypatch, tile_bytes=2**10)
    with untouched(model):
        whole = engine_of(model, x)[0].plan(12, None, 2)
        engine, _ = engine_of(model, x, memory_limit=int(0.56 * whole.predicted_bytes))
        smaller = engine.plan(12, None, 2)
    assert whole.batch_size == whole.block_size == smaller.block_size == 12
    assert 1 <= smaller.batch_size < 12


def test_a_larger_limit_never_gives_smaller_blocks():
    """Of kernels that are added up block by block."""
    model, _ = deep()
    x = torch.randn(40, 1, 8, 8).double()
    sizes = []
    with untouched(model):
        for limit in range(60_000, 1_000_000, 40_000):
            engine, data = engine_of(model, x, memory_limit=limit)
            sizes.append(sketch._block_plan(engine, len(data)).block_size)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1] == 40


SHORT = {
    "kernels": (70_000, lambda net, x, **limit: tangent_kernels(net, x, outputs="trace", **limit)),
    "of two sides": (
        64_000,
        lambda net, x, **limit: tangent_kernels(net, x, outputs="trace", other=x, **limit),
    ),
    "alignments": (
        50_000,
        lambda net, x, **limit: tangent_alignments(net, x, x[:, 0, 0, :3], **limit),
    ),
}


@pytest.mark.parametrize(("limit", "call"), SHORT.values(), ids=SHORT.keys())
def test_many_passes_of_each_example_are_said_beforehand(limit, call):
    model, _ = deep()
    x = torch.randn(40, 1, 8, 8).double()
    with pytest.warns(match=r"of 40 examples fit .* passed about \d\d times; to save time, pass"):
        call(model, x, memory_limit=limit)
    call(model, x, memory_limit=10 * limit)


def test_a_plan_that_cannot_fit_is_refused():
    model, x = deep()
    with untouched(model):
        engine, _ = engine_of(model, x, memory_limit=1000)
        with pytest.raises(MemoryLimitError, match="below 1 kB") as told:
            engine.plan(12, None, 2)
        assert "batch_size" not in str(told.value)
        engine, _ = engine_of(model, x, memory_limit=1000, batch_size=6)
        with pytest.raises(MemoryLimitError, match="a batch_size below 6, outputs='trace'"):
            engine.plan(12, None, 2)


def resident(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak of Linux")
@pytest.mark.parametrize("outputs", ["full", "trace"])
def test_the_measured_peak_stays_below_the_limit(outputs):
    model, x = convolutions()
    assert keeps_to(lambda **limit: tangent_kernels(model, x, outputs=outputs, **limit), 40_000_000)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak of Linux")
def test_the_peak_of_features_and_of_attention_stays_below_the_limit():
    model, x = convolutions()
    assert keeps_to(lambda **limit: tangent_features(model, x[:16], **limit), 80_000_000)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    attention = nn.Sequential(layer, nn.Flatten(), nn.Linear(512, 10)).eval()
    tokens = torch.randn(32, 16, 32)
    assert keeps_to(lambda **limit: tangent_kernels(attention, tokens, **limit), 40_000_000)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak of Linux")
@pytest.mark.parametrize("call", ["kernels", "sketch"])
def test_gradients_of_the_check_stay_within_a_small_limit(call):
    """A process of its own: here other tests have left freed memory behind."""
    ran = subprocess.run(
        [sys.executable, "-c", PROCESS, call], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 1.2 * 20 * 10**6


PROCESS = """
import sys, torch
from pathlib import Path
from torch import nn
from theodolite.engine import tangent_alignments, tangent_kernels

def size(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

def mlp(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(800, width), nn.ReLU(), nn.Linear(width, 10))

def convolutional(width):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

def call(kind, width, limit):
    if kind == "kernels":  # ten gradients of 1.6 MB, of the rows and of the columns
        x = torch.randn(500, 800)
        tangent_kernels(mlp(width), x, outputs="trace", memory_limit=limit)
    else:  # 64 examples of 4 MB are checked together
        x, y = torch.randn(64, 3, 32, 32), torch.arange(64) % 10
        model = convolutional(width)
        tangent_alignments(model, x, y, method="sketch", sketch_vectors=8, memory_limit=limit)

call(sys.argv[1], 2, 10**9)
Path("/proc/self/clear_refs").write_text("5")
before = size("VmRSS")
call(sys.argv[1], 512 if sys.argv[1] == "kernels" else 32, 20_000_000)
print(size("VmHWM") - before)
"""


def convolutions():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10))
    return model, torch.randn(64, 3, 16, 16)


def keeps_to(call, limit):
    """Whether the memory that a call takes, above that of one before, keeps to a limit."""
    call()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    call(memory_limit=limit)
    return resident("VmHWM") - before < 1.2 * limit


def test_runs_have_about_equal_sizes():
    model, x = deep()
    with untouched(model):
        engine, data = engine_of(model, x, batch_size=5)
        plan = engine.plan(12, None, 2)
        sizes = [
            len(batch)
            for block in data.blocks(plan.block_size, plan.batch_size)
            for batch in block.batches
        ]
    assert sizes == [5, 5, 2]


def test_kernel_offsets_come_in_equal_groups():
    geometry = PatchGeometry((3, 3), (1, 1), (1, 1), (1, 1))
    assert geometry.places(64, 192) == [(0,), (1,), (2,)]
    assert geometry.places(3, 192) == [()]
    assert len(geometry.places(512, 192)) == 9


@pytest.mark.parametrize("rows", [1, 3])
def test_symmetric_blocks_are_completed_from_above(rows):
    torch.manual_seed(0)
    whole = KernelBlock(torch.randn(5, rows, 5, rows))
    whole.matrix.copy_(whole.matrix + whole.matrix.T)
    upper = KernelBlock(whole.values.clone())
    upper.matrix[2 * rows :, : 2 * rows] = torch.nan
    upper.mirror(2)
    assert not upper.matrix.isnan().any()
    torch.testing.assert_close(upper.matrix, whole.matrix)


@pytest.mark.parametrize("other", [False, True], ids=["one set", "two sets"])
@pytest.mark.parametrize("whole", [True, False], ids=["one block", "blocks"])
def test_progress_rises_to_one(whole, other, monkeypatch):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if not whole:
        made = planning.make_plan
        monkeypatch.setattr(
            kernel_engine, "make_plan", lambda *a: replace(made(*a), block_size=3, batch_size=3)
        )
    seen = []
    tangent_kernels(
        model,
        x,
        other=x if other else None,
        progress=lambda share, text: seen.append((share, text)),
    )
    shares = [share for share, _ in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(set(shares)) == len(shares)  # counted beforehand as many as there were
    assert "layer 2" in seen[-1][1]


@pytest.mark.parametrize(
    ("examples", "outputs", "span"),
    [(300, 10, 38), (1500, 1, 188), (64, 10, 13), (12, 7, 12), (8, 1000, 1), (1, 1, 1)],
)
def test_stripes_are_few_and_wide(examples, outputs, span):
    assert stripe_size(examples, outputs) == span


def test_products_are_exact_where_the_model_runs_under_autocast(monkeypatch):
    model, x = deep()
    found = []
    with torch.autocast("cpu", torch.bfloat16):
        for route in ("gradients", "positions"):
            force(monkeypatch, route=route)
            with untouched(model):
                engine, data = engine_of(model.float(), x.float())
                found.append(kernels_of(engine, data, None).total)
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 1e-5  # of the same factors


class AtOnePosition(nn.Module):
    """Reads the features of one position out of many, and one position of the outputs."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        outputs = self.head(torch.relu(self.body(x))[:, 0])
        return outputs[:, None].repeat(1, 9, 1)[:, -1]


def test_what_is_kept_of_a_pass_does_not_hold_more_than_itself():
    engine, data = engine_of(AtOnePosition(), torch.randn(5, 9, 4))
    block = ExampleBlock(slice(0, 5), data.batches)
    collected = engine.collect(block, engine.plan(5, None, 2))
    (index,) = engine.group_indices["head"]
    for kept in (collected.outputs, collected.factors[index].inputs):
        assert kept.untyped_storage().nbytes() == kept.numel() * kept.element_size()


def test_layers_go_in_parts_where_factors_of_all_do_not_fit(monkeypatch):
    """Every part has all examples at once, and kernels are the same up to the order of sums."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12)), nn.Linear(16, 4)).double()
    inputs = torch.randn(10, 8, 16, dtype=torch.float64)
    passes = []
    collect = KernelEngine.collect

    def noted(self, block, plan, weights=None):
        passes.append((self.layers, block.span.stop - block.span.start))
        return collect(self, block, plan, weights)

    monkeypatch.setattr(KernelEngine, "collect", noted)
    options = {"readout": "mean", "batch_size": 2}
    whole = tangent_kernels(model, inputs, **options)
    assert passes == [(list(whole), 10)]
    passes.clear()
    limit = whole.predicted_bytes - 2 * planning._TILE_BYTES["cpu"]  # without intermediate results
    parts = tangent_kernels(model, inputs, memory_limit=limit, **options)
    assert len(passes) > 1
    assert {count for _, count in passes} == {10}
    assert [name for layers, _ in passes for name in layers] == list(whole) == list(parts)
    assert parts.predicted_bytes <= limit
    assert parts.coverage == whole.coverage
    for name, kernel in whole.items():
        assert_close(parts[name], kernel, scale=float(kernel.abs().max()))
