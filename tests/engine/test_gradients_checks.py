"""Gradients are checked while they are taken, and the model is left as it was."""

import pytest
import torch
from torch import nn

from tests.engine.hostile import CLASSES, WIDTH
from tests.engine.single_gradients import cross_entropy, specimen
from theodolite.engine import features, gradient_alignment, gradient_sums, tangent_kernels
from theodolite.engine.factors import OuterFactors
from theodolite.errors import CaptureError


def test_a_broken_rule_is_caught(monkeypatch):
    zoo_item = specimen("lenet")
    monkeypatch.setattr(OuterFactors, "b", property(lambda self: 1.01 * self.output_grads))
    with pytest.raises(CaptureError, match=r"'0.weight'.*the rule of one of"):
        gradient_sums(zoo_item.model, *zoo_item.data)
    gradient_sums(zoo_item.model, *zoo_item.data, check=False)


def test_broken_sums_are_caught(monkeypatch):
    zoo_item = specimen("lenet")
    correct = OuterFactors.weighted_sums
    wrong = lambda *args: 1.01 * correct(*args)  # noqa: E731
    monkeypatch.setattr(OuterFactors, "weighted_sums", wrong)
    with pytest.raises(CaptureError, match=r"'0.(weight|bias)'.*autograd"):
        gradient_sums(zoo_item.model, *zoo_item.data)


def test_unused_parameters_have_gradient_zero():
    class Partial(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    inputs, targets = torch.randn(4, 3), torch.arange(4) % 2
    found = gradient_alignment(Partial(), inputs, targets, stiffness=True)
    assert found.sums["unused"].norms.tolist() == [0.0] * 4
    assert found["unused"].in_class.isnan()
    assert found["unused"].stiffness.isnan()
    assert not found["used"].in_class.isnan()


def test_examples_that_see_each_other_are_caught():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x):
            return self.inner(x - x.mean(0))

    inputs, targets = torch.randn(5, 3), torch.arange(5) % 2
    with pytest.raises(CaptureError, match="depend on each other"):
        gradient_sums(Mixing(), inputs, targets)


class Flipping(nn.Module):
    """Turns the order of examples around where there are many, and back at the end."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        if len(x) > 20:
            return self.second(self.first(x.flip(0)).tanh()).flip(0)
        return self.second(self.first(x).tanh())


def test_the_batches_themselves_are_checked_not_a_small_one_before_them():
    torch.manual_seed(0)
    model, x, y = Flipping().double(), torch.randn(50, 3).double(), torch.arange(50) % 2
    found = gradient_sums(model, x, y, labels=torch.zeros(50, dtype=torch.long))
    assert not found.checked.batched
    alone = torch.cat([gradient_sums(model, x[[k]], y[[k]]).total.norms for k in range(50)])
    torch.testing.assert_close(found.total.norms, alone)


def state_of(model):
    return (
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        [m.training for m in model.modules()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch.overrides._get_current_function_mode_stack(),
    )


@pytest.mark.parametrize("fails", [False, True], ids=["success", "error"])
def test_the_model_is_left_as_it_was_found(fails):
    zoo_item = specimen("vgg")
    for parameter in zoo_item.model.parameters():
        parameter.grad = torch.ones_like(parameter)

    def loss(outputs, targets):
        torch.rand(1)
        if fails:
            raise KeyboardInterrupt
        return cross_entropy(outputs, targets)

    before = state_of(zoo_item.model)
    with torch.no_grad():
        if fails:
            with pytest.raises(KeyboardInterrupt):
                gradient_sums(zoo_item.model, *zoo_item.data, loss)
        else:
            gradient_sums(zoo_item.model, *zoo_item.data, loss)
    after = state_of(zoo_item.model)
    assert str(before) == str(after)


def test_progress_of_gradient_sums_rises_to_one():
    model = nn.Linear(3, 2).double()
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    seen = []
    gradient_sums(
        model, x, torch.arange(7) % 2, batch_size=3, progress=lambda *told: seen.append(told)
    )
    assert seen == [
        (2 / 7, "examples 0 to 1"),
        (4 / 7, "examples 2 to 3"),
        (1.0, "examples 4 to 6"),
    ]


@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "weights"])
def test_rounding_of_short_numbers_is_no_disagreement_where_the_loss_is_longer(autocast):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(147, 30), nn.ReLU(), nn.Linear(30, 3))
    inputs, targets = torch.randn(40, 3, 7, 7), torch.arange(40) % 3
    kind = torch.float32 if autocast else torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = gradient_sums(
            model.to(kind),
            inputs.to(kind),
            targets,
            lambda outputs, labels: nn.functional.cross_entropy(
                outputs.float(), labels, reduction="none"
            ),
        )
    assert set(found) == {"1", "3"}


class SortsByProducts(nn.Module):
    """Puts examples in order by a matrix of zeros and ones, and its outputs back."""

    def __init__(self, *, einsum: bool) -> None:
        super().__init__()
        self.einsum = einsum
        self.inner, self.head = nn.Linear(WIDTH, 7), nn.Linear(7, CLASSES)

    def forward(self, x):
        order = nn.functional.one_hot(x[:, 0].argsort(), len(x)).to(x)
        if self.einsum:
            hidden = self.inner(torch.einsum("ij,jd->id", order, x)).tanh()
            return torch.einsum("ij,ic->jc", order, self.head(hidden))
        return order.mT @ self.head(self.inner(order @ x).tanh())


@pytest.mark.parametrize("einsum", [True, False])
def test_products_that_sort_examples_are_seen(einsum):
    torch.manual_seed(0)
    model = SortsByProducts(einsum=einsum).double()
    x, labels = torch.randn(40, WIDTH, dtype=torch.float64), torch.arange(40) % CLASSES
    in_class_order = labels.argsort(stable=True)
    x[in_class_order[0], 0], x[in_class_order[-1], 0] = -9.0, 9.0  # both stay where they are
    found = gradient_sums(model, x, labels)
    assert not found.checked.batched
    expected = gradient_sums(model, x, labels, batch_size=1)
    assert torch.allclose(found.total.norms, expected.total.norms, rtol=1e-12)


class SwapsTwo(nn.Module):
    """Puts two examples in each other's place by sums that no call names, and back."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.places = first, second
        self.inner, self.head = nn.Linear(WIDTH, 7), nn.Linear(7, CLASSES)

    def swapped(self, rows):
        order = list(range(len(rows)))
        if max(self.places) < len(rows):
            i, j = self.places
            order[i], order[j] = j, i
        return torch.stack([rows[k] for k in order])

    def forward(self, x):
        return self.head(self.swapped(self.inner(self.swapped(x)).tanh()))


def test_every_example_is_checked_on_request():
    torch.manual_seed(0)
    model = SwapsTwo(20, 60).double()
    x, labels = torch.randn(80, WIDTH, dtype=torch.float64), torch.zeros(80, dtype=torch.long)
    expected = gradient_sums(model, x, labels, batch_size=1)
    found = gradient_sums(model, x, labels, check="every")
    assert not found.checked.batched
    assert torch.allclose(found.total.norms, expected.total.norms, rtol=1e-12)
    rows = features(model, x, ["inner"], check="every")["inner"]
    assert torch.allclose(rows, torch.tanh(model.inner(x)), rtol=1e-12)
    kernels = tangent_kernels(model, x, outputs="trace", check="every")
    alone = tangent_kernels(model, x, outputs="trace", batch_size=1)
    assert torch.allclose(kernels.total, alone.total, rtol=1e-10)


def test_broken_norms_are_caught(monkeypatch):
    correct = OuterFactors.squared_norms
    monkeypatch.setattr(OuterFactors, "squared_norms", lambda own: 1.1 * correct(own))
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with pytest.raises(CaptureError, match=r"'0.weight'.*autograd"):
        gradient_sums(model, x, torch.arange(6) % 2)
