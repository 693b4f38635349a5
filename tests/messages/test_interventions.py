"""Bad input to interventions: one sentence that helps."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests import networks
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite.interventions import (
    covariance_init_,
    freeze_except_,
    sample_filters,
    tau_curve,
)

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))


def net():
    return networks.mlp([4, 3, 2], generator=torch.Generator().manual_seed(1))


def normed():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.attention(x, x, x)[0])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tau_curve("f4", 3), UnknownNameError, ["tau curve 'f4'", "'f1'"]),
        (lambda: sample_filters(torch.ones(2, 3), 1), ShapeError, ["square", "(2, 3)"]),
        (
            lambda: sample_filters(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), 1),
            DomainError,
            ["symmetric", "(m + m.T) / 2"],
        ),
        (
            lambda: sample_filters(torch.diag(torch.tensor([1.0, -0.1])), 1),
            DomainError,
            ["no negative eigenvalue", "-0.1", "beside 1"],
        ),
        (
            lambda: covariance_init_(net(), 0 * X, tau=lambda s: s),
            DomainError,
            ["pass data that vary"],
        ),
        (lambda: covariance_init_(net()), DomainError, ["images", "None", "covariances"]),
        (lambda: covariance_init_(net(), X, filters="drawn"), DomainError, ["filters", "'auto'"]),
        (lambda: covariance_init_(net(), iter([])), ShapeError, ["at least one batch"]),
        (lambda: covariance_init_(normed(), X), DomainError, ["re-parametrised", "remove"]),
        (lambda: covariance_init_(nn.ReLU(), X), DomainError, ["ReLU has none"]),
        (
            lambda: covariance_init_(nn.Linear(4, 2), X),
            DomainError,
            ["only the last layer", "layers="],
        ),
        (
            lambda: covariance_init_(net(), covariances={"fc1": torch.eye(3)}),
            ShapeError,
            ["4 x 4", "'fc1'", "(3, 3)"],
        ),
        (
            lambda: covariance_init_(Attention(), X.view(5, 4, 4), "attention.out_proj"),
            DomainError,
            ["['attention.out_proj'] are not", "attention"],
        ),
        (lambda: freeze_except_(net(), "act1"), DomainError, ["with parameters", "act1"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_messages(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
