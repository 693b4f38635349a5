"""Alignments without kernels against the measure on the kernel itself."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.engine.zoo import specimen
from tests.tolerances import assert_close
from theodolite.engine import kernel_engine, tangent_alignments, tangent_kernels
from theodolite.engine import plan as planning
from theodolite.engine.sketch import KernelMoments
from theodolite.engine.state import untouched
from theodolite.errors import MemoryLimitError, NotFiniteError, RangeError
from theodolite.measures.tangent import tangent_alignment


def model_and_data(examples=12, outputs=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    return model.double(), torch.randn(examples, 5).double(), torch.arange(examples) % outputs


def centered_norm(kernel):
    rows = kernel.shape[0] * kernel.shape[1]
    K = kernel.reshape(rows, rows)
    C = torch.eye(rows, dtype=K.dtype) - 1 / rows
    return (C @ K @ C).norm()


@pytest.mark.parametrize("block", [2, 5, 12])
def test_exact_alignments_equal_the_measure_on_kernels(block, monkeypatch):
    model, x, y = model_and_data()
    monkeypatch.setattr("theodolite.engine.sketch._BLOCK_ROWS", 3 * block)
    kernels = tangent_kernels(model, x)
    found = tangent_alignments(model, x, y)
    targets = functional.one_hot(y, 3).double()
    assert list(found) == list(kernels)
    for layer, kernel in kernels.items():
        assert_close(found[layer].alignment, tangent_alignment(kernel, targets))
        norm = centered_norm(kernel)
        assert_close(found[layer].norm, norm, scale=float(norm))
        assert float(found[layer].error) == 0.0
    assert found.peak() == list(kernels)[int(found.curve.argmax())]


@pytest.mark.parametrize("name", ["resnet", "vit", "tied autoencoder"])
def test_exact_alignments_of_other_architectures(name):
    made = specimen(name)
    outputs = tangent_kernels(made.model, made.inputs, outputs=0).outputs
    assert outputs.shape == (4, 1)
    kernels = tangent_kernels(made.model, made.inputs)
    c = kernels.total.shape[1]
    y = torch.randn(4, c, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = tangent_alignments(made.model, made.inputs, y)
    for layer, kernel in kernels.items():
        assert_close(found[layer].alignment, tangent_alignment(kernel, y))


def test_nearly_constant_kernels_keep_their_digits():
    generator = torch.Generator().manual_seed(0)
    small = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    K = 1e6 + 1e-4 * (small + small.T)
    moments = KernelMoments(8, torch.device("cpu"), torch.ones(8))
    for start in (0, 4):
        for second in range(start, 8, 4):
            rows, columns = slice(start, start + 4), slice(second, second + 4)
            moments.add(K[rows, columns], rows, columns)
    C = torch.eye(8, dtype=torch.float64) - 1 / 8
    exact = (C @ (1e-4 * (small + small.T)) @ C).norm()
    assert_close(moments.centered / exact, 1.0, scale=1e4)


def test_the_sketch_converges_to_the_exact_value():
    model, x, y = model_and_data()
    exact = tangent_alignments(model, x, y)
    errors = []
    for vectors in (16, 64, 256):
        found = tangent_alignments(model, x, y, method="sketch", sketch_vectors=vectors)
        for layer in exact:
            gap = (found[layer].alignment - exact[layer].alignment).abs()
            assert gap < 5 * found[layer].error
            assert_close(found[layer].energy, exact[layer].energy, scale=float(exact[layer].energy))
        errors.append(max(float(found[layer].error) for layer in found))
    assert errors[2] < errors[1] / 1.5 < errors[0] / 2.2


def test_the_sketch_says_when_the_peak_is_not_resolved():
    torch.manual_seed(0)
    model, x, y = model_and_data()
    twin = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 3, bias=False)).double()
    with torch.no_grad():
        twin[1].weight.copy_(torch.eye(3))
    inputs = torch.randn(12, 5).double()
    few = tangent_alignments(model, x, y, method="sketch", sketch_vectors=3)
    assert few.peak(errors=50.0) is None
    many = tangent_alignments(model, x, y, method="sketch", sketch_vectors=256)
    assert many.peak() in (None, tangent_alignments(model, x, y).peak())
    assert tangent_alignments(
        twin, inputs, y, method="sketch", sketch_vectors=8
    ).covariance.shape == (2, 2)


def test_differences_between_layers_are_known_better_than_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)).double()
    with torch.no_grad():
        for layer in model:
            layer.weight.copy_(torch.eye(5))
    x, y = torch.randn(10, 5).double(), torch.randn(10, 5).double()
    found = tangent_alignments(model, x, y, method="sketch", sketch_vectors=16)
    # Equal layers have equal kernels, and common random vectors see no difference between them.
    (first, shared), (_, second) = found.covariance.tolist()
    assert abs(first + second - 2 * shared) < 1e-12 * found["0"].error ** 2
    assert found.peak() is None


def test_constant_targets_and_kernels_are_undefined():
    model, x, _ = model_and_data()
    assert tangent_alignments(model, x, torch.ones(12, 3)).curve.isnan().all()
    single = nn.Linear(5, 1, bias=False).double()
    same = torch.ones(4, 5).double()
    found = tangent_alignments(single, same, torch.randn(4, 1))
    assert found[""].alignment.isnan()
    assert found.peak() is None


def test_random_vectors_that_do_not_fit_are_refused():
    model, x, y = model_and_data()
    with pytest.raises(MemoryLimitError):
        tangent_alignments(model, x, y, method="sketch", sketch_vectors=64, memory_limit=2**12)


def test_blocks_shrink_to_the_memory_limit():
    model, x, y = model_and_data(examples=30)
    free = tangent_alignments(model, x, y)
    with untouched(model):
        limited = tangent_alignments(model, x, y, memory_limit=2**17)
    for layer in free:
        assert_close(limited[layer].alignment, free[layer].alignment)


def test_a_sketch_needs_no_memory_for_kernels_of_many_outputs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 300)).double()
    x, y = torch.randn(6, 4).double(), torch.arange(6) * 50
    exact = tangent_alignments(model, x, y)
    options = {"sketch_vectors": 200, "generator": torch.Generator().manual_seed(0)}
    found = tangent_alignments(model, x, y, method="sketch", memory_limit="16MB", **options)
    with pytest.raises(MemoryLimitError):  # a kernel of one example: 300 x 300 numbers
        tangent_alignments(model, x, y, memory_limit="1MB")
    for layer in exact:
        gap = abs(float(found[layer].alignment - exact[layer].alignment))
        assert gap < 4 * float(found[layer].error)


def test_repeated_passes_over_columns_are_compared(monkeypatch):
    class Scales(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.scale = scale
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return ctx.scale * gradient, None

    class SecondPass(nn.Module):
        """The second pass of three examples, over the columns of a block, has other gradients."""

        def __init__(self, scale):
            super().__init__()
            self.inner, self.head, self.passes, self.scale = (
                nn.Linear(4, 5),
                nn.Linear(5, 2),
                0,
                scale,
            )

        def forward(self, x):
            self.passes += len(x) == 3
            other = len(x) == 3 and self.passes == 2
            return self.head(Scales.apply(self.inner(x), self.scale if other else 1.0).tanh())

    made = planning.make_plan
    monkeypatch.setattr(
        kernel_engine, "make_plan", lambda *a: replace(made(*a), block_size=3, batch_size=3)
    )
    torch.manual_seed(0)
    x, y = torch.randn(6, 4), torch.arange(6) % 2
    assert tangent_alignments(SecondPass(1.0), x, y).checked.batched
    found = tangent_alignments(SecondPass(1.5), x, y)
    assert not found.checked.batched


@pytest.mark.parametrize(("scale", "which"), [(1e21, slice(6)), (1e21, 3), (1e-21, slice(6))])
def test_kernels_outside_the_range_of_float32_are_refused(scale, which):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 2, bias=False))
    x, y = torch.randn(6, 4), torch.arange(6) % 2
    x[which] *= scale
    with pytest.raises(RangeError, match=r"dtype=torch\.float64"):
        tangent_alignments(model, x, y)
    found = tangent_alignments(model, x, y, dtype=torch.float64)
    wanted = tangent_alignments(model.double(), x.double(), y)
    for layer, alignment in found.items():
        assert_close(alignment.alignment, wanted[layer].alignment, dtype=torch.float32)


@pytest.mark.parametrize("example", range(6))  # some run again alone or in a part, others do not
def test_an_infinite_slope_names_its_example(example):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(4, 5), nn.Linear(5, 2)

        def forward(self, x):
            return self.head((self.inner(x) * x.abs().sum(1, keepdim=True)).square().sqrt())

    torch.manual_seed(0)
    x, y = torch.randn(6, 4), torch.arange(6) % 2
    x[example] = 0.0
    with pytest.raises(NotFiniteError, match=f"example {example}"):
        tangent_alignments(Root(), x, y)
