"""Bad input to the papers' initialisers, rescalings and trainings: one sentence that helps."""

import pytest
import torch
from torch import nn

from tests import networks
from theodolite.errors import DomainError, ShapeError, UnknownNameError
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
