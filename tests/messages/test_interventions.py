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
from theodolite_papers.lou2022.formulas.feature_maximization import (
    FeatureMaximizationRecipe,
    feature_pair_loss,
    layerwise_feature_maximization,
)
from theodolite_papers.maennel2020.formulas.eigenvector_init import (
    Directions,
    eigenvector_filters,
    eigenvector_init_,
)
from theodolite_papers.maennel2020.formulas.rescaling import layer_norms, rescale_to_

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 2


def net():
    return networks.mlp([4, 3, 2], generator=torch.Generator().manual_seed(1))


def zeros():
    model = net()
    nn.init.zeros_(model.fc1.weight)
    return model


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
            lambda: eigenvector_filters(torch.eye(3), 4),
            ShapeError,
            ["at least 4 dimensions", "got 3", "covariance_init_"],
        ),
        (
            lambda: eigenvector_filters(torch.eye(3), Directions(2, first=3)),
            ShapeError,
            ["eigenvectors 3 to 4", "got 3"],
        ),
        (
            lambda: eigenvector_filters(torch.eye(3), 2, tau=[1.0]),
            ShapeError,
            ["one strength per direction (2)", "'f1'"],
        ),
        (lambda: eigenvector_filters(torch.eye(3), 1, tau=[-1.0]), DomainError, ["tau", "-1.0"]),
        (lambda: eigenvector_filters(torch.eye(3), 1, signs="-"), DomainError, ["'largest'"]),
        (lambda: Directions(2, select="middle"), DomainError, ["'smallest'", "'middle'"]),
        (lambda: eigenvector_init_(net(), X, "fc3"), UnknownNameError, ["'fc3'", "'fc1'"]),
        (lambda: eigenvector_init_(net(), X, "act1"), DomainError, ["'act1', a ReLU"]),
        (
            lambda: eigenvector_init_(networks.mlp([4, 5, 2]), X),
            ShapeError,
            ["layer 'fc1'", "at least 5", "got 4"],
        ),
        (lambda: eigenvector_init_(zeros(), X), DomainError, ["'fc1'", "replaced", "all zero"]),
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
        (lambda: layer_norms(net(), order=0), DomainError, ["order", "1 or 2"]),
        (lambda: rescale_to_(net(), net(), keep="both"), DomainError, ["'predictions'", "'both'"]),
        (lambda: rescale_to_(net(), zeros()), DomainError, ["'fc1'", "the reference", "layers="]),
        (lambda: rescale_to_(zeros(), net()), DomainError, ["'fc1'", "the model", "0.0"]),
        (
            lambda: rescale_to_(networks.ResidualNet(), {}),
            DomainError,
            ["nested nn.Sequential", "ResidualNet", "residual", "inputs="],
        ),
        (
            lambda: rescale_to_(Attention(), {}, inputs=X.view(5, 4, 4)),
            DomainError,
            ["branch and meet again", "residual"],
        ),
        (lambda: rescale_to_(net(), {}, inputs=Y), DomainError, ["torch.int64", "tokens"]),
        (
            lambda: rescale_to_(networks.mlp([4, 3, 2], "sin"), net(), keep="predictions"),
            DomainError,
            ["ReLU", "would not be kept", "keep='norms'"],
        ),
        (lambda: freeze_except_(net(), "act1"), DomainError, ["with parameters", "act1"]),
        (lambda: feature_pair_loss(X, Y[:3]), ShapeError, ["features has 20", "labels has 3"]),
        (lambda: FeatureMaximizationRecipe(normalize="no"), DomainError, ["'absorb'", "'no'"]),
        (
            lambda: layerwise_feature_maximization(networks.mlp([4, 2]), (X, Y), (X, Y)),
            ShapeError,
            ["hidden layer", "1 linear layers", "LeakyReLU"],
        ),
        (
            lambda: layerwise_feature_maximization(
                net(), (X, Y), (X, Y), FeatureMaximizationRecipe(normalize="absorb")
            ),
            DomainError,
            ["unit norm", "divide each"],
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_messages(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
