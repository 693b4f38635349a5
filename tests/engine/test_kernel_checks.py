"""Every block of every layer's kernel is compared with autograd, however the work is divided."""

import pytest
import torch
from torch import nn

from tests.engine.forced import force
from tests.tolerances import assert_close
from theodolite.engine import one_by_one, tangent_kernels
from theodolite.engine.batches import iterate_batches
from theodolite.engine.calls import WrongGradientError
from theodolite.engine.collect import DenseCollector
from theodolite.engine.factors import DenseFactors
from theodolite.engine.inputs import BatchList
from theodolite.engine.kernel_engine import KernelEngine, prepare
from theodolite.engine.kernels import batched_or_one_by_one, kernels_of
from theodolite.engine.plan import EngineOptions
from theodolite.engine.state import untouched


def network():
    torch.manual_seed(0)
    layers = [nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)]
    return nn.Sequential(*layers).double()


def draw(count=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, dtype=torch.float64, generator=generator)


def in_batches(model, x, other=None, **options):
    """Kernels, without a second attempt one example at a time."""
    with untouched(model):
        data = BatchList([*iterate_batches(x)])
        second = None if other is None else BatchList([*iterate_batches(other)])
        return kernels_of(prepare(model, data, EngineOptions(**options)), data, second)


def one_layer_at_a_time(engine, left, right):
    if engine.fallback is not None:
        return [(engine, engine.plan(left, right, len(engine.layers)))]
    parts = [engine._of_layers([name]) for name in engine.layers]
    return [(part, part.plan(left, right, 1)) for part in parts]


@pytest.fixture
def split(monkeypatch):
    monkeypatch.setattr(KernelEngine, "split_by_layers", one_layer_at_a_time)


@pytest.fixture
def small_blocks(monkeypatch):
    force(monkeypatch, block_size=3)


def spoil(monkeypatch, is_wrong):
    """Kernels of some blocks are 1 % too large."""
    fill = KernelEngine.fill

    def wrong(self, layer, left, right, block, plan):
        fill(self, layer, left, right, block, plan)
        if is_wrong(layer, left, right):
            block.values.mul_(1.01)

    monkeypatch.setattr(KernelEngine, "fill", wrong)


@pytest.mark.parametrize("layer", ["0", "2", "4"])
def test_the_kernel_of_every_part_is_compared(layer, split, monkeypatch):
    spoil(monkeypatch, lambda name, left, right: name == layer)
    with pytest.raises(WrongGradientError, match=f"layer '{layer}': expected its kernel to agree"):
        in_batches(network(), draw())


class Pair(nn.Module):
    """A matrix with gradients far larger than those of a scale in the same layer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        small = (1e-4 * x * self.scale).sum(1, keepdim=True)
        return torch.tanh(x @ self.weight.T + small)


def test_small_groups_of_every_part_are_compared(split, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(Pair(), nn.Linear(4, 2))
    factors = DenseCollector.factors

    def wrong(self):
        found = factors(self)
        if self.group.parameter != "0.scale":
            return found
        return DenseFactors(found.names, [1.5 * found.gradients()])

    monkeypatch.setattr(DenseCollector, "factors", wrong)
    with pytest.raises(WrongGradientError, match=r"with respect to '0.scale'"):
        in_batches(model, draw().float())


@pytest.mark.parametrize("outputs", ["full", "trace"])
def test_blocks_beside_the_diagonal_are_compared(outputs, small_blocks, monkeypatch):
    spoil(monkeypatch, lambda name, left, right: left is not right)
    with pytest.raises(WrongGradientError, match="expected its kernel to agree"):
        in_batches(network(), draw(), outputs=outputs, check="every")


@pytest.mark.parametrize("blocks", [False, True], ids=["one block", "blocks"])
def test_kernels_between_two_sets_are_compared(blocks, request, monkeypatch):
    if blocks:
        request.getfixturevalue("small_blocks")
    spoil(monkeypatch, lambda *_: True)
    for count in range(2, 8):
        with pytest.raises(WrongGradientError, match="expected its kernel to agree"):
            in_batches(network(), draw(count), other=draw(seed=1))


class Shuffled(nn.Module):
    """Examples change places before a layer, and go back after it, where no call shows it."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        order = x[:, 0].argsort()
        return self.head(torch.tanh(self.first(x[order])))[order.argsort()]


def test_the_batch_that_failed_in_a_part_is_run_again(split, monkeypatch):
    seen = []
    compared = one_by_one.require_same_one_by_one

    def noted(model, outputs, batches):
        seen.extend(batches)
        compared(model, outputs, batches)

    monkeypatch.setattr(one_by_one, "require_same_one_by_one", noted)
    found = tangent_kernels(Shuffled().double(), draw(), batch_size=4)
    assert found.measured.startswith("one example at a time")
    assert [len(batch) for batch in seen] == [4, 7]


class Failing(nn.Module):
    """Some of its backward passes fail."""

    def __init__(self, passes, error):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(3)), nn.Linear(3, 4)
        self.passes, self.error, self.count = passes, error, 0

    def forward(self, x):
        hidden = x * self.scale
        if hidden.requires_grad:
            hidden.register_hook(self.counted)
        return self.head(hidden)

    def counted(self, gradient):
        self.count += 1
        if self.count in self.passes:
            raise self.error("this pass fails")
        return gradient


def together(model, x):
    return batched_or_one_by_one(model, x, EngineOptions(check=False), kernels_of)


@pytest.mark.parametrize("passes", [{1}, {2}], ids=["first", "second"])
def test_a_joint_pass_that_fails_adds_nothing_twice(passes, monkeypatch):
    torch.manual_seed(0)
    model = Failing(passes, RuntimeError).double()
    force(monkeypatch, outputs_per_pass=2)
    found = together(model, draw())
    model.passes = ()
    force(monkeypatch, outputs_per_pass=1)
    wanted = together(model, draw())
    for layer, kernel in wanted.items():
        assert_close(found[layer], kernel, scale=float(kernel.abs().max()))


def test_a_joint_pass_without_memory_is_an_error(monkeypatch):
    force(monkeypatch, outputs_per_pass=2)
    with pytest.raises(torch.OutOfMemoryError):
        together(Failing({1}, torch.OutOfMemoryError).double(), draw())


def test_examples_of_reruns_are_counted_as_often_as_they_run():
    x = torch.randn(64, 3, dtype=torch.float64)
    found = tangent_kernels(network(), x, outputs="trace", batch_size=64)
    assert found.checked.in_other_batches == 16  # of 32 in a full kernel: one pass per output
