"""Features are read at what the next layer receives, however the way there is written."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import theodolite as th

X = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(1))


class Between(nn.Module):
    """Two linear layers and whatever lies between them; keeps what the second receives."""

    def __init__(self, between, norm=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.between, self.norm = between, norm

    def forward(self, x):
        hidden = self.between(self.first(x))
        self.received = hidden.detach().clone()
        return self.second(hidden)


class HandNorm(nn.Module):
    """A normalisation of its own making."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 1.5))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def by_hand(x):
    return 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x**3)))


def trained_norm():
    norm = nn.BatchNorm1d(8)
    norm.running_mean.uniform_(-1, 1)
    return norm


LAYER = "after layer_norm, relu"
WAYS = {
    "module": (nn.ReLU(), "after relu"),
    "module in place": (nn.ReLU(inplace=True), "after relu"),
    "function": (functional.relu, "after relu"),
    "function in place": (lambda x: functional.relu(x, inplace=True), "after relu"),
    "method": (lambda x: x.relu(), "after relu"),
    "method in place": (lambda x: x.relu_(), "after relu"),
    "gelu": (nn.GELU(), "after gelu"),
    "silu": (functional.silu, "after silu"),
    "swish by hand": (lambda x: x * torch.sigmoid(x), "after sigmoid"),
    "gelu by hand": (by_hand, "after tanh"),
    "prelu": (nn.PReLU(), "after prelu"),
    "where": (lambda x: torch.where(x > 0, x, 0.1 * x), "after where"),
    "norm": (trained_norm(), "after BatchNorm1d"),
    "norm and activation": (nn.Sequential(nn.LayerNorm(8), nn.Tanh()), "after LayerNorm, tanh"),
    "norm as a function": (lambda x: functional.layer_norm(x, (8,)).relu(), LAYER),
    "norm by hand": (nn.Sequential(HandNorm(), nn.ReLU()), "after HandNorm, relu"),
    "dropout": (nn.Sequential(nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.5)), "after relu"),
    "cast": (lambda x: functional.relu(x.double()).float(), "after relu"),
    "nothing": (nn.Identity(), "own output"),
    "other numbers": (lambda x: 2 * x, "own output"),
}  # fmt: skip


@pytest.mark.parametrize(("between", "read_at"), WAYS.values(), ids=WAYS.keys())
def test_what_the_next_layer_receives(between, read_at):
    model = Between(between).eval()
    found = th.features(model, X, ["first"])
    assert found.read_at == {"first": read_at}
    raw = th.features(model, X, ["first"], read="raw")
    assert raw.read_at == {"first": "own output"}
    torch.testing.assert_close(
        raw["first"], functional.linear(X, model.first.weight, model.first.bias)
    )
    if read_at == "own output":
        torch.testing.assert_close(found["first"], raw["first"])
    else:
        model(X)
        torch.testing.assert_close(found["first"].double(), model.received.double())


class Branches(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.way = way

    def forward(self, x):
        return self.second(self.way(self, x, self.first(x)))


def halves(first, second):
    return torch.cat([first[:, :3], second[:, 3:]], 1)


BRANCHES = {
    "residual sum": (lambda m, x, h: (h + x).relu(), "own output"),
    "sum after a norm": (lambda m, x, h: (m.norm(h) + x).relu(), "after LayerNorm"),
    "sum in place": (lambda m, x, h: h.relu_().add_(x), "after relu"),
    "its own shortcut": (lambda m, x, h: h + m.second(h.relu()), "own output"),
    "both signs": (lambda m, x, h: halves(h.relu(), (-h).relu()), "own output"),
    "before a norm": (lambda m, x, h: h + m.second(m.norm(h)), "own output"),
    "shared by two": (lambda m, x, h: m.second(h.relu()) + x, "after relu"),
    "sliced": (lambda m, x, h: halves(h, h).relu(), "own output"),
    "written to": (lambda m, x, h: h.__setitem__((slice(None), 0), 0.0) or h.relu(), "own output"),
}  # fmt: skip


@pytest.mark.parametrize(("way", "read_at"), BRANCHES.values(), ids=BRANCHES.keys())
def test_the_way_ends_before_branches(way, read_at):
    found = th.features(Branches(way).eval(), X, ["first"])
    assert found.read_at == {"first": read_at}


@pytest.mark.parametrize("batch_size", [None, 2])
def test_pooling_is_passed_but_not_read(batch_size):
    torch.manual_seed(0)
    conv, after = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 1)
    pooled_last = nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2), after)
    pooled_first = nn.Sequential(conv, nn.MaxPool2d(2), nn.ReLU(), after)
    alone = nn.Sequential(conv, nn.MaxPool2d(2), after)
    outputs = conv(IMAGES).detach()
    expected = {
        pooled_last: outputs.relu(),
        pooled_first: functional.max_pool2d(outputs, 2).relu(),
        alone: outputs,
    }
    for model, wanted in expected.items():
        rows = th.features(model.eval(), IMAGES, ["0"], batch_size=batch_size)["0"]
        torch.testing.assert_close(rows, wanted.flatten(1))


def test_logits_have_no_activation():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.LogSoftmax(1)).eval()
    found = th.features(model, X)
    assert found.read_at == {"0": "after relu", "2": "own output"}


def test_a_layer_that_runs_twice_gives_its_last_call():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x):
            return self.inner(self.inner(x).tanh()).relu().sum(1, keepdim=True)

    model = Twice().eval()
    found = th.features(model, X)
    assert found.read_at == {"inner": "after relu"}
    torch.testing.assert_close(found["inner"], model.inner(model.inner(X).tanh()).relu().detach())
