"""A check is remembered for the very same calls, and made again for any others."""

import copy
import gc
from weakref import ref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from theodolite.engine import _runs, gradient_sums, rules
from theodolite.errors import CaptureError


class Block(nn.Module):
    """A small network whose forward pass can be told to change."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.norm = nn.LayerNorm(4)
        self.way = "plain"

    def forward(self, x):
        h = self.norm(functional.gelu(self.first(x)))
        if self.way == "skip":
            return self.last(h + x)
        if self.way == "reversed":
            return self.last(self.second(h.flip(0)).flip(0))
        if self.way == "mixed":
            return self.last(self.second(h) - h.mean(0))
        if self.way == "hidden":
            return self.last(Hidden.apply(h, self.second.weight, self.second.bias))
        return self.last(self.second(h))


class Hidden(torch.autograd.Function):
    """A linear layer that the recorder does not see."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.T @ x, gradient.sum(0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Block().double().eval()


@pytest.fixture
def data():
    draws = torch.Generator().manual_seed(1)
    return torch.randn(12, 4, generator=draws).double(), torch.arange(12) % 3


def by_autograd(model, x, y, loss=None):
    """Norms of the gradients of single examples, for all parameters together."""
    loss = loss or (lambda f, y: functional.cross_entropy(f, y, reduction="none"))
    values = loss(model(x), y)
    parameters = [p for p in model.parameters() if p.requires_grad]
    norms = []
    for value in values:
        found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        norms.append(sum(g.square().sum() for g in found if g is not None).sqrt())
    return torch.stack(norms).detach()


def measured(model, data, **options):
    """Sums whose numbers are those of autograd."""
    sums = gradient_sums(model, *data, **options)
    wanted = by_autograd(model, *data, options.get("loss"))
    torch.testing.assert_close(sums.total.norms, wanted.double(), rtol=1e-6, atol=1e-9)
    return sums


def test_the_second_call_remembers_the_first(model, data):
    assert [measured(model, data).checked for _ in range(3)] == [
        "some examples",
        "remembered",
        "remembered",
    ]
    assert measured(copy.deepcopy(model), data).checked == "some examples"
    assert measured(model, data, check="every").checked == "every example"
    assert measured(model, data, check=False).checked == "nothing"


def test_nodes_that_the_search_for_axes_makes_are_nobodys():
    """The first call splits what layers return, to see where examples lie; later ones do not."""
    torch.manual_seed(0)
    flat = nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 4), nn.Unflatten(0, (-1, 5))).double()
    data = torch.randn(12, 5, 4).double(), torch.arange(12) % 4
    checked = [gradient_sums(flat, *data, readout="mean").checked for _ in range(2)]
    assert checked == ["some examples", "remembered"]


def test_what_was_unchecked_is_not_remembered(model, data):
    gradient_sums(model, *data, check=False)
    assert measured(model, data).checked == "some examples"


def test_weights_and_examples_may_change(model, data):
    measured(model, data)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    assert measured(model, data).checked == "remembered"
    assert measured(model, (data[0].flip(0) * 2, data[1])).checked == "remembered"


def weight_norm(model):
    parametrizations.weight_norm(model.second)


def forward_hook(model):
    model.second.register_forward_hook(lambda _module, _inputs, output: output * 2)


def full_backward_hook(model):
    model.second.register_full_backward_hook(lambda _module, given, _arrived: given)


def frozen(model):
    model.second.weight.requires_grad_(False)


def other_class(model):
    model.second = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU()).double()


def tied(model):
    model.second.weight = model.first.weight


CHANGES = {
    "attribute": lambda model: setattr(model, "way", "skip"),
    "order of examples": lambda model: setattr(model, "way", "reversed"),
    "out of sight": lambda model: setattr(model, "way", "hidden"),
    "parametrization": weight_norm,
    "forward hook": forward_hook,
    "full backward hook": full_backward_hook,
    "frozen weight": frozen,
    "another class": other_class,
    "tied weights": tied,
    "dtype": lambda model: model.float(),
    "epsilon": lambda model: setattr(model.norm, "eps", 0.1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_model_is_checked_again(model, data, change):
    measured(model, data)
    change(model)
    x = data[0].to(model.first.weight.dtype)
    sums = gradient_sums(model, x, data[1])
    assert sums.checked in ("some examples", "by autograd itself")
    wanted = by_autograd(model, x, data[1]).double()
    torch.testing.assert_close(sums.total.norms, wanted, rtol=1e-5, atol=1e-9)


def test_a_submodule_of_the_same_class_may_take_the_place_of_another(model, data):
    measured(model, data)
    model.second = nn.Linear(4, 4).double()
    assert measured(model, data).checked == "remembered"


def test_examples_that_begin_to_mix_are_refused(model, data):
    measured(model, data)
    model.way = "mixed"
    with pytest.raises(CaptureError, match="depend on each other"):
        gradient_sums(model, *data)


def test_autocast_is_another_signature(model, data):
    small, x = model.float(), data[0].float()
    assert gradient_sums(small, x, data[1]).checked == "some examples"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert gradient_sums(small, x, data[1]).checked == "some examples"
        assert gradient_sums(small, x, data[1]).checked == "remembered"
    assert gradient_sums(small, x, data[1]).checked == "remembered"


def test_training_mode_is_another_signature(data):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.Linear(4, 3)).double().eval()
    measured(model, data)
    assert measured(model.train(), data).checked == "some examples"
    assert measured(model.eval(), data).checked == "remembered"


def test_a_hook_on_a_parameter_is_never_remembered(model, data):
    measured(model, data)
    handle = model.second.weight.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(CaptureError, match="hooks change the gradient"):
        gradient_sums(model, *data)
    handle.remove()
    assert measured(model, data).checked == "remembered"


def test_a_rule_that_changes_is_checked_again(model, data):
    measured(model, data)
    right = rules.RULES[functional.linear]

    def wrong(call):
        found = right(call)
        return None if found is None or found.__class__.__name__ != "Outer" else doubled(found)

    def doubled(found):
        return type(found)(2 * found.inputs, found.output_grads, found.rows, found.transposed)

    rules.RULES[functional.linear] = wrong
    try:
        with pytest.raises(CaptureError, match="report it"):
            gradient_sums(model, *data)
    finally:
        rules.RULES[functional.linear] = right


class Loss:
    """Squared distances, of each example or to the mean of all."""

    def __init__(self) -> None:
        self.mixes = False

    def __call__(self, outputs, _targets):
        centered = outputs - outputs.mean(0) if self.mixes else outputs
        return centered.square().sum(1)


def test_a_loss_that_begins_to_mix_is_refused(model, data):
    loss = Loss()
    measured(model, data, loss=loss)
    assert measured(model, data, loss=loss).checked == "remembered"
    loss.mixes = True
    sums = gradient_sums(model, *data, loss=loss)
    assert sums.checked == "by autograd itself"


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_beside_the_model_is_followed_by_its_calls(model, data):
    def squared(outputs, targets):
        wanted = functional.one_hot(targets, 3).to(outputs)
        return functional.mse_loss(outputs, wanted, reduction="none").sum(1)

    def crossed(outputs, targets):
        return functional.mse_loss(outputs[:, :1], targets.to(outputs), reduction="none").mean(1)

    assert measured(model, data, loss=squared).checked == "some examples"
    assert gradient_sums(model, *data, loss=crossed).checked == "by autograd itself"
    assert gradient_sums(model, *data, loss=crossed).checked == "by autograd itself"


class Routed(nn.Module):
    """Chooses an expert for all examples by their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.left(x) if bool((x > 0).all()) else self.right(x)


def test_another_decision_is_another_signature(data):
    torch.manual_seed(0)
    model = Routed().double()
    positive, negative = (data[0].abs() + 0.1, data[1]), (-data[0].abs() - 0.1, data[1])
    assert measured(model, positive).checked == "some examples"
    assert measured(model, negative).checked == "some examples"
    assert measured(model, positive).checked == "remembered"


class Gathered(nn.Module):
    """Sorts the examples, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        order = x[:, 0].argsort()
        return self.inner(x[order])[order.argsort()]


def test_calls_that_move_examples_are_never_remembered(data):
    torch.manual_seed(0)
    model = Gathered().double()
    for _ in range(2):
        assert measured(model, data).checked == "by autograd itself"


def test_a_pass_is_let_go_without_a_collection_of_garbage(model, data, monkeypatch):
    """What was recorded holds the activations of all layers."""
    recorders = []

    class Noted(_runs.UseRecorder):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            recorders.append(ref(self))

    monkeypatch.setattr(_runs, "UseRecorder", Noted)
    gc.disable()
    try:
        for check in (True, True, False, "every"):
            gradient_sums(model, *data, check=check)
            assert [one for one in recorders if one() is not None] == [], check
    finally:
        gc.enable()
    assert len(recorders) >= 4
