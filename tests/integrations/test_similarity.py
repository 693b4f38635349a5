"""Similarities of two representations, called as other collections call them."""

import pytest
import torch

from theodolite.integrations.similarity import SIMILARITIES, register
from theodolite.measures import kernel


def features(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_the_same_features_are_more_alike_than_others(name: str) -> None:
    x, y = features(60, 5), features(60, 5, seed=1)
    assert SIMILARITIES[name](x, x) > SIMILARITIES[name](x, y) + 0.3


@pytest.mark.parametrize("name", SIMILARITIES)
def test_symmetric_ones_are_symmetric(name: str) -> None:
    x = features(60, 5)
    y = x[:, :2] + features(60, 2, seed=1)
    there, back = SIMILARITIES[name](x, y), SIMILARITIES[name](y, x)
    assert (abs(there - back) < 1e-12) == SIMILARITIES[name].is_symmetric


def test_it_is_the_measure_of_that_name() -> None:
    x, y = features(30, 4), features(30, 6, seed=1)
    assert SIMILARITIES["cka"](x, y) == kernel.linear_cka(x, y).item()
    assert isinstance(SIMILARITIES["cka"](x.numpy(), y.numpy()), float)


def test_tokens_are_examples_and_maps_are_flattened() -> None:
    x, y = features(10, 3, 4), features(10, 3, 2, seed=1)
    cka = SIMILARITIES["cka"]
    assert cka(x, y, "ntd") == cka(x.reshape(30, 4), y.reshape(30, 2))
    assert cka(x[..., None], y[..., None], "nchw") == cka(x.reshape(10, 12), y.reshape(10, 6))


def test_all_are_registered_under_our_name() -> None:
    found = {}

    class Registry:
        @staticmethod
        def register(name: str, function: object) -> None:
            found[name] = function

    register(Registry)
    assert found == {f"theodolite/{name}": one for name, one in SIMILARITIES.items()}
