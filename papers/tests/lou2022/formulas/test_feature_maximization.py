"""Layer-wise feature maximisation against the literal algorithm."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests import networks
from tests.reference import interventions as reference
from tests.tolerances import assert_close
from theodolite.errors import DomainError, ShapeError
from theodolite_papers.lou2022.formulas.feature_maximization import (
    FeatureMaximizationRecipe,
    UnitNorm,
    feature_pair_loss,
    layerwise_feature_maximization,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def clusters(n, seed, classes=3, d=6, noise=0.8):
    labels = torch.arange(n) % classes
    centers = torch.randn(classes, d, generator=seeded(1), dtype=torch.float64)
    x = centers[labels] + noise * torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)
    return functional.normalize(x), labels


def network(sizes=(6, 5, 4, 3)):
    return networks.mlp(list(sizes), "leaky_relu", generator=seeded(3)).double()


@pytest.mark.spec("4.P97")
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_loss_is_zero_for_orthogonal_classes_of_squared_norm_one_half(reduction):
    labels = torch.tensor([0, 2, 1, 0, 2])
    rotation, _ = torch.linalg.qr(torch.randn(4, 4, generator=seeded(), dtype=torch.float64))
    features = rotation[labels] / 2**0.5
    assert feature_pair_loss(features, labels, reduction) < 1e-28
    assert feature_pair_loss(1.1 * features, labels, reduction) > 1e-3


@pytest.mark.spec("4.P98")
def test_loss_equals_the_loop_and_does_not_change_under_rotations():
    features = torch.randn(9, 5, generator=seeded(), dtype=torch.float64)
    labels = torch.randint(3, (9,), generator=seeded())
    loss = feature_pair_loss(features, labels)
    assert_close(loss, reference.pair_loss(features.numpy(), labels.numpy()), scale=float(loss))
    assert_close(feature_pair_loss(features, labels, "mean"), loss / 81)
    rotation, _ = torch.linalg.qr(torch.randn(5, 5, generator=seeded(), dtype=torch.float64))
    assert_close(feature_pair_loss(features @ rotation, labels), loss, scale=float(loss))


def literal(net, train, held_out, recipe):
    """The algorithm in loops, with the permutations that the library draws."""
    generator = seeded(8)
    data = [tuple(part.numpy() for part in pair) for pair in (train, held_out)]
    weights, curves = [], []
    for index in (1, 2, 3):
        layer = {
            "W": net.get_parameter(f"fc{index}.weight").detach().numpy().copy(),
            "b": net.get_parameter(f"fc{index}.bias").detach().numpy().copy(),
        }
        orders = (
            torch.randperm(len(data[0][0]), generator=generator).numpy()
            for _ in range(recipe.max_epochs)
        )
        curve = reference.train_layer(
            layer,
            *data,
            orders,
            rate=recipe.learning_rate,
            batch=recipe.batch_size,
            patience=recipe.patience,
            hidden=index < 3,
        )
        weights.append(layer)
        curves.append(curve)
        if index < 3:
            features = [reference.leaky(x @ layer["W"].T + layer["b"]) for x, _ in data]
            if recipe.normalize == "absorb":
                scale = np.sqrt(np.mean([row @ row for row in features[0]]))
                layer["W"], layer["b"] = layer["W"] / scale, layer["b"] / scale
                data = [(f / scale, y) for f, (_, y) in zip(features, data, strict=True)]
            else:
                normed = [reference.unit_rows(f) for f in features]
                data = [(f, y) for f, (_, y) in zip(normed, data, strict=True)]
    return weights, curves


@pytest.mark.spec("4.P98")
@pytest.mark.parametrize("normalize", ["forward", "absorb"])
def test_result_equals_the_literal_algorithm(normalize):
    train, held_out = clusters(14, 4), clusters(9, 5)
    recipe = FeatureMaximizationRecipe(
        learning_rate=0.05, batch_size=6, patience=2, max_epochs=12, normalize=normalize
    )
    net = network()
    weights, curves = literal(net, train, held_out, recipe)
    saved = deepcopy(net.state_dict())
    result = layerwise_feature_maximization(net, train, held_out, recipe, generator=seeded(8))
    assert {len(curve) for curve in curves} != {13}  # patience ended at least one layer
    for index, (layer, curve) in enumerate(zip(weights, curves, strict=True), start=1):
        assert_close(result.network.get_parameter(f"fc{index}.weight"), layer["W"])
        assert_close(result.network.get_parameter(f"fc{index}.bias"), layer["b"])
        assert_close(result.losses[f"fc{index}"], curve, scale=max(curve))
    assert all(torch.equal(value, saved[key]) for key, value in net.state_dict().items())


@pytest.mark.parametrize("normalize", ["forward", "absorb"])
def test_the_network_runs_as_it_was_trained(normalize):
    """Validation losses come back from the assembled network's own forward pass."""
    train, held_out = clusters(40, 4), clusters(20, 5)
    recipe = FeatureMaximizationRecipe(max_epochs=10, normalize=normalize)
    result = layerwise_feature_maximization(network(), train, held_out, recipe)
    logits = result.network(held_out[0])
    assert_close(functional.cross_entropy(logits, held_out[1]), min(result.losses["fc3"]))
    norms = [module for module in result.network if isinstance(module, UnitNorm)]
    assert len(norms) == (3 if normalize == "forward" else 0)
    if normalize == "forward":  # the first one makes inputs of any norm admissible
        assert_close(result.network(7 * held_out[0]), logits.detach())
        hidden = result.network[: list(dict(result.network.named_children())).index("norm2")]
        assert_close(feature_pair_loss(hidden(held_out[0]), held_out[1]), min(result.losses["fc2"]))
    else:
        squares = result.network[:3](train[0]).square().sum(1).mean()
        assert_close(squares, 1.0)


@pytest.mark.spec("4.P99")
@pytest.mark.parametrize("normalize", ["forward", "absorb"])
def test_every_layer_lowers_its_loss_and_the_head_beats_chance(normalize):
    train, held_out = clusters(120, 4, noise=0.5), clusters(60, 5, noise=0.5)
    test = clusters(90, 6, noise=0.5)
    recipe = FeatureMaximizationRecipe(max_epochs=30, batch_size=32, normalize=normalize)
    net = network((6, 16, 16, 16, 3)).float()
    result = layerwise_feature_maximization(net, train, held_out, recipe, generator=seeded())
    for curve in result.losses.values():
        assert min(curve) < 0.8 * curve[0]
    accuracy = (result.network(test[0].float()).argmax(1) == test[1]).double().mean()
    assert accuracy > 0.8


def test_one_seed_one_result_and_images_are_flattened():
    x, y = clusters(20, 4)
    images = x.view(20, 1, 2, 3)
    recipe = FeatureMaximizationRecipe(max_epochs=2)
    results = [
        layerwise_feature_maximization(network(), data, data, recipe, generator=seeded())
        for data in ((x, y), (images, y))
    ]
    assert results[0].losses == results[1].losses


def test_silent_features_warn_and_stay_zero():
    net = networks.mlp([6, 4, 3], "relu").double()
    nn.init.constant_(net.fc1.bias, -100.0)
    data = clusters(12, 4)
    recipe = FeatureMaximizationRecipe(max_epochs=1)
    with pytest.warns(UserWarning, match="12 examples are zero after layer 'fc1'"):
        result = layerwise_feature_maximization(net, data, data, recipe)
    assert result.network(data[0]).isfinite().all()


LAYER_NORM = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))
ABSORB = {"normalize": "absorb"}


@pytest.mark.parametrize(
    ("net", "data", "options", "error"),
    [
        (networks.mlp([6, 3]), clusters(6, 4), {}, ShapeError),
        (LAYER_NORM, clusters(6, 4), {}, ShapeError),
        (network(), (clusters(6, 4)[0], clusters(5, 4)[1]), {}, ShapeError),
        (network(), (clusters(6, 4)[0], torch.rand(6)), {}, DomainError),
        (network(), (3 * clusters(6, 4)[0], clusters(6, 4)[1]), ABSORB, DomainError),
    ],
    ids=["no-hidden", "layer-norm", "lengths", "labels", "norms"],
)
def test_bad_input(net, data, options, error):
    with pytest.raises(error):
        layerwise_feature_maximization(
            net, data, clusters(6, 4), FeatureMaximizationRecipe(**options)
        )


@pytest.mark.parametrize(
    "options",
    [{"patience": 0}, {"batch_size": 0}, {"learning_rate": 0.0}],
    ids=lambda options: next(iter(options)),
)
def test_bad_recipes(options):
    with pytest.raises(DomainError):
        FeatureMaximizationRecipe(**options)
