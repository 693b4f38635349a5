"""Products on tensor cores: the same kernels, whole and symmetric, and no less accurate."""

import os

import pytest
import torch
from torch import nn

from theodolite.engine import _tensor_cores as cores
from theodolite.engine import tangent_kernels
from theodolite.engine._contractions import KernelBlock

CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if CUDA else "cpu")


def plain_gram(target, rows, *, overwrite, factor=None, width=1):
    """What :func:`cores.gram` does, in float64: both halves, of which the upper one is read."""
    wide = rows.double()
    total = wide @ wide.T
    if factor is not None:
        total *= factor.repeat_interleave(width, 0).repeat_interleave(width, 1)
    if not overwrite:
        total += target.triu() + target.triu(1).T
    target.copy_(total.triu() + total.triu(1).T)


def plain_multiply(target, left, right, *, overwrite):
    target.copy_(left @ right.mT) if overwrite else target.add_(left @ right.mT)


@pytest.fixture
def everywhere(monkeypatch):
    """Tensor cores are taken for all products, though others compute them; counts the calls."""
    calls = []

    def counted(name, function):
        def call(*args, **kwargs):
            calls.append(name)
            function(*args, **kwargs)

        return call

    for name, value in (("_LEAST", 1), ("_NARROW", 1), ("SHORT", 1)):
        monkeypatch.setattr(cores, name, value)
    monkeypatch.setattr(cores, "may_be_there", lambda _device: True)
    monkeypatch.setattr(cores, "is_compiled", lambda _device: True)
    monkeypatch.setattr(cores, "_kernel", lambda _device: object())
    monkeypatch.setattr(cores, "gram", counted("gram", plain_gram))
    monkeypatch.setattr(cores, "multiply", counted("multiply", plain_multiply))
    return calls


class Mixed(nn.Module):
    """Convolutions of many and few positions, with stride and groups, and linear layers."""

    def __init__(self):
        super().__init__()
        self.wide, self.strided = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 6, 3, stride=2)
        self.deep, self.norm = nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8).eval()
        self.first, self.head = nn.Linear(8, 9), nn.Linear(9, 4, bias=False)

    def forward(self, x):
        h = torch.tanh(self.strided(torch.relu(self.wide(x))))
        h = torch.relu(self.norm(self.deep(h))).mean((2, 3))
        return self.head(torch.tanh(self.first(h)))


@pytest.mark.parametrize("outputs", ["full", "trace", "diagonal", 1])
@pytest.mark.parametrize("second", [False, True])
def test_kernels_are_the_same(everywhere, outputs, second):
    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(8, 2, 13, 13)
    other = torch.randn(4, 2, 13, 13).double() if second else None
    exact = tangent_kernels(Mixed.double(model), x.double(), outputs=outputs, other=other)
    assert not everywhere  # of float32 only
    model.float()
    other = other.float() if second else None
    for options in ({}, {"memory_limit": exact.predicted_bytes // 2}):
        found = tangent_kernels(model, x, outputs=outputs, other=other, **options)
        assert everywhere
        for layer in exact:
            scale = float(exact[layer].abs().max())
            torch.testing.assert_close(
                found[layer].double(), exact[layer], rtol=0, atol=2e-6 * scale
            )
            if not second and outputs == "trace":
                assert torch.equal(found[layer], found[layer].T)
    assert second or "gram" in everywhere


def test_whole_kernels_take_one_launch_and_are_not_mirrored(everywhere, monkeypatch):
    def fail(*_args, **_kwargs):
        raise AssertionError("mirrored")

    monkeypatch.setattr(KernelBlock, "mirror", fail)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))
    tangent_kernels(model, torch.randn(20, 5), check=False)
    assert everywhere.count("gram") == 2


def test_small_products_other_dtypes_and_devices_are_left_alone():
    rows = torch.randn(4000, 1000)
    assert not cores.may_be_there(torch.device("cpu"))
    assert not cores.gains(rows.new_empty(4000, 4000), rows, rows)
    assert not cores.is_compiled(torch.device("cpu"))


def test_rows_that_do_not_begin_at_fours_are_left_alone(everywhere):
    rows, target = torch.randn(8, 32), torch.empty(9, 12)
    assert cores.gains(target[:8, :8], rows, rows)
    assert not cores.gains(target[:7, :8], rows[:7], rows)
    assert not cores.gains(target[:8, 1:9], rows, rows)
    assert not cores.gains(target.T[:8, :8], rows, rows)


def test_products_are_compiled_for_models_that_are_measured_again_and_again(monkeypatch):
    asked, passes = [], []
    monkeypatch.setattr(cores, "may_be_there", lambda _device: True)
    monkeypatch.setattr(cores, "gains", lambda *_rows, **_options: bool(asked.append(len(passes))))
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    for _ in range(10):
        passes.append([])
        hook = model.register_forward_hook(lambda *given: passes[-1].append(len(given[1][0])))
        tangent_kernels(model, torch.randn(20, 5))
        hook.remove()
    assert min(asked) == 9
    # One alone, all, and those of the check, which is made once more for other products.
    assert passes == [[1, 20, 16], *[[20]] * 7, [20, 1, 16], [20]]


def test_a_kernel_that_cannot_be_compiled_is_done_without(monkeypatch):
    monkeypatch.setattr(cores, "_launch", lambda *_args: 1 / 0)
    assert cores._kernel.__wrapped__(DEVICE) is None


# The shape checker wraps functions, and Triton reads the text of the wrapper.
needs_triton = pytest.mark.skipif(
    hasattr(cores.gram, "__wrapped__") or not (CUDA or INTERPRETED),
    reason="needs a GPU, or TRITON_INTERPRET=1, and -o addopts=--import-mode=importlib",
)


@pytest.fixture
def small_tiles(monkeypatch):
    if not CUDA:
        monkeypatch.setattr(cores, "_TILE", 16)
        monkeypatch.setattr(cores, "_processors", lambda _device: 4)
        monkeypatch.setattr(cores, "_LONG", 64)


@needs_triton
@pytest.mark.parametrize("size", [(44, 64, 4), (44, 10, 4), (36, 40, 1), (20, 300, 5)])
@pytest.mark.parametrize("multiplied", [False, True])
def test_the_kernel_is_as_accurate_as_float32(small_tiles, size, multiplied):
    count, terms, width = size
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(count, terms, generator=draws).to(DEVICE)
    pairs = torch.rand(count // width, count // width, generator=draws).to(DEVICE)
    factor = pairs + pairs.T if multiplied else None
    wanted = rows.double() @ rows.double().T
    if factor is not None:
        wanted *= factor.repeat_interleave(width, 0).repeat_interleave(width, 1)
    target = torch.full((count, count + 4), torch.nan, device=DEVICE)[:, :count]
    for times in (1, 2):
        cores.gram(target, rows, overwrite=times == 1, factor=factor, width=width)
        assert torch.equal(target, target.T)
        error = (target.double() - times * wanted).abs().max() / wanted.abs().max()
        assert float(error) < 6e-7 * times


@needs_triton
def test_stacks_of_products_into_strided_targets(small_tiles):
    left, right = torch.randn(3, 20, 70, device=DEVICE), torch.randn(3, 36, 70, device=DEVICE)
    target = torch.empty(20, 3, 36, device=DEVICE).transpose(0, 1)
    wanted = (left.double() @ right.double().mT).float()
    for times in (1, 2):
        cores.multiply(target, left, right, overwrite=times == 1)
        torch.testing.assert_close(target, times * wanted, rtol=0, atol=3e-5)
