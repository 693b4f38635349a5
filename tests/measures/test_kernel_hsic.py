"""HSIC: the properties of specification 3, section 4, and the two routes."""

from itertools import product

import numpy as np
import pytest
import torch

from tests.reference import kernel as reference
from tests.tolerances import assert_close
from theodolite.linalg import moments
from theodolite.measures import kernel
from theodolite.measures.kernel import _from_features, cka, hsic, linear_cka, linear_hsic


@pytest.fixture
def normal(generator):
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.spec("3.P38")
def test_plug_in_hsic_is_the_squared_cross_covariance(normal):
    F, G = normal(9, 3) + 1, normal(9, 4)
    covariance = (F - F.mean(0)).T @ (G - G.mean(0)) / 9
    value = hsic(kernel.gram(F), kernel.gram(G), debiased=False)
    assert_close(value, covariance.square().sum())
    own = [hsic(kernel.gram(x), kernel.gram(x), debiased=False) for x in (F, G)]
    expected = value / (own[0] * own[1]).sqrt()
    assert_close(cka(kernel.gram(F), kernel.gram(G), debiased=False), expected)


@pytest.mark.spec("3.P39")
@pytest.mark.parametrize("n", [4, 5, 7])
def test_unbiased_hsic_is_the_mean_over_quadruples(normal, n):
    K, L = kernel.gram(normal(n, 3)), kernel.gram(normal(n, 2))
    assert_close(hsic(K, L), reference.hsic(K.numpy(), L.numpy()))
    k, m = K - torch.diag(K.diagonal()), L - torch.diag(L.diagonal())
    ones = torch.ones(n, dtype=torch.float64)
    song = (k @ m).trace() - 2 / (n - 2) * (ones @ k @ m @ ones)
    song = song + (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
    assert_close(hsic(K, L), song / (n * (n - 3)))


@pytest.mark.spec("3.P39")
def test_unbiased_hsic_is_unbiased_by_enumeration(normal):
    atoms_f, atoms_g = normal(3, 2), normal(3, 2)
    weights = np.array([0.5, 0.3, 0.2])
    mean_f, mean_g = weights @ atoms_f.numpy(), weights @ atoms_g.numpy()
    cross = sum(
        w * np.outer(f - mean_f, g - mean_g)
        for w, f, g in zip(weights, atoms_f.numpy(), atoms_g.numpy(), strict=True)
    )
    expectation = 0.0
    for draw in product(range(3), repeat=4):
        probability = np.prod(weights[list(draw)])
        value = linear_hsic(atoms_f[list(draw)], atoms_g[list(draw)])
        expectation += probability * value.item()
    assert expectation == pytest.approx((cross**2).sum(), rel=1e-9)


@pytest.mark.spec("3.P40")
@pytest.mark.parametrize(("d", "e"), [(3, 2), (12, 15), (2, 20)], ids=["tall", "wide", "mixed"])
def test_feature_form_and_shift_invariance(normal, d, e):
    F, G, v = normal(8, d), normal(8, e), normal(8)
    K, L = kernel.gram(F), kernel.gram(G)
    scale = float(K.norm() * L.norm())
    squares = [x.square().sum(1) for x in (F, G)]
    rows = [x @ x.sum(0) - s for x, s in zip((F, G), squares, strict=True)]
    totals = [x.sum(0).square().sum() - s.sum() for x, s in zip((F, G), squares, strict=True)]
    literal = (F.T @ G).square().sum() - squares[0] @ squares[1]
    literal = literal + totals[0] * totals[1] / (7 * 6) - 2 / 6 * (rows[0] @ rows[1])
    assert_close(linear_hsic(F, G), literal / (8 * 5), scale=scale)
    assert_close(linear_hsic(F, G), hsic(K, L), scale=scale)
    moved = K + v.unsqueeze(0) + v.unsqueeze(1) - 4
    assert_close(hsic(moved, L), hsic(K, L), scale=scale)
    assert_close(linear_hsic(F + 3, G - 1), linear_hsic(F, G), scale=scale)


@pytest.mark.spec("3.P41")
def test_independent_features_look_similar_to_the_biased_estimator_only(normal):
    pairs = [(normal(30, 30), normal(30, 30)) for _ in range(20)]
    biased = torch.stack([linear_cka(F, G, debiased=False) for F, G in pairs])
    debiased = torch.stack([linear_cka(F, G) for F, G in pairs])
    assert biased.mean() == pytest.approx(0.505, abs=0.02)
    assert biased.min() > 0.4
    assert abs(debiased.mean()) < 3 * debiased.std() / 20**0.5
    assert debiased.abs().max() < 0.2


def test_debiased_cka_stays_within_one(normal):
    """The part of a kernel that the estimator reads is a vector space with an inner product."""
    values = [
        linear_cka(normal(n, d), normal(n, d)) for n in (4, 5, 6) for d in (1, 3, 9) for _ in "abc"
    ]
    assert torch.stack(values).abs().max() <= 1 + 1e-9


@pytest.mark.parametrize("debiased", [True, False], ids=["debiased", "biased"])
@pytest.mark.parametrize("route", ["blocks", "tiles"])
def test_both_routes_and_any_chunking_agree(normal, monkeypatch, debiased, route):
    layers = [normal(23, d) + 2 for d in (3, 17, 40)]
    grams = [kernel.gram(layer) for layer in layers]
    expected = torch.stack([cka(a, b, debiased=debiased) for a in grams for b in grams])
    monkeypatch.setattr(_from_features, "_TILE_BYTES", 8 * 3 * 25)  # tiles of 5 x 5
    monkeypatch.setattr(_from_features, "_STRIP_BYTES", 8 * 5 * 7)
    monkeypatch.setattr(moments, "_CHUNK_BYTES", 8 * 40 * 6)  # six rows of the widest layer
    factors = [_from_features.CenteredRows.of(layer) for layer in layers]
    everything = [(a, b) for a in range(3) for b in range(a, 3)]
    if route == "blocks":
        monkeypatch.setattr(
            _from_features, "_BLOCK_BYTES", 8 * 40 * 18
        )  # a pass for one or two pairs
        parts = _from_features._by_blocks(factors, everything)
    else:
        parts = _from_features._by_tiles(factors)
    values = kernel.cka_from_products(_from_features.KernelProducts.of(*parts), debiased=debiased)
    assert_close(values.flatten(), expected, scale=100)


@pytest.mark.parametrize(("n", "kernels"), [(1, 1), (700, 1), (10_000, 13), (9_999, 40)])
def test_tiles_cover_the_upper_triangle_once(n, kernels):
    positions = list(_from_features._tile_positions(n, kernels))
    area = sum(
        (top.stop - top.start) * (left.stop - left.start) * (1 if top == left else 2)
        for top, left in positions
    )
    assert area == n * n
    assert all(top.start <= left.start < left.stop <= n for top, left in positions)
    widest = max(top.stop - top.start for top, _ in positions)
    assert 8 * kernels * widest**2 <= 1.3 * _from_features._TILE_BYTES


def test_the_route_depends_on_the_sizes(normal, monkeypatch):
    calls = []
    for name in ("_by_blocks", "_by_tiles"):
        original = getattr(_from_features, name)
        monkeypatch.setattr(
            _from_features, name, lambda *a, f=original, n=name: calls.append(n) or f(*a)
        )
    linear_cka(normal(30, 3), normal(30, 4))
    linear_cka(normal(6, 30), normal(6, 40))
    assert calls == ["_by_blocks", "_by_tiles"]


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_extreme_units_neither_overflow_nor_vanish(normal, unit):
    F, G = normal(12, 3), normal(12, 2)
    assert_close(linear_cka(F * unit, G), linear_cka(F, G))
    assert linear_hsic(F * unit, G) == (0 if unit < 1 else torch.inf * linear_hsic(F, G).sign())
