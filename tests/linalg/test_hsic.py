"""Mergeable sums of HSIC: any split, any order, any shift gives the value of the whole."""

from itertools import pairwise

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from tests.reference import kernel as reference
from tests.tolerances import assert_close
from theodolite.linalg import HsicSums
from theodolite.measures.kernel import cka_from_products

FIELDS = (
    "count", "total_a", "total_b", "cross", "weighted_a", "weighted_b",
    "squares", "square_a", "square_b",
)  # fmt: skip


def data(n=18, mean=0.0):
    generator = torch.Generator().manual_seed(n)
    draw = lambda d: torch.randn(n, d, dtype=torch.float64, generator=generator) + mean  # noqa: E731
    return draw(3), draw(5), torch.arange(n) % 4


def sums_of(a, b, shift_a=None, shift_b=None):
    shifts = [x.mean(0) if s is None else s for x, s in ((a, shift_a), (b, shift_b))]
    f, g = a - shifts[0], b - shifts[1]
    d, e = f.square().sum(1), g.square().sum(1)
    count = torch.tensor(float(len(a)), dtype=torch.float64)
    sums = f.sum(0), g.sum(0), f.T @ g, f.T @ e, g.T @ d, d @ e, d.sum(), e.sum()
    return HsicSums(count, *shifts, *sums)


EXPECTED = {
    debiased: reference.linear_cka(*(x.numpy() for x in data()[:2]), debiased=debiased)
    for debiased in (True, False)
}


def cka(parts, debiased):
    ab, aa, bb = (sum(sums[1:], start=sums[0]) for sums in zip(*parts, strict=True))
    return cka_from_products(HsicSums.products(ab, aa, bb), debiased=debiased)[0, 1]


@hypothesis.given(cuts=st.lists(st.integers(1, 17), max_size=4, unique=True).map(sorted))
@hypothesis.settings(max_examples=15)
@pytest.mark.parametrize("debiased", [True, False], ids=["debiased", "biased"])
@pytest.mark.parametrize("mean", [0.0, 1e4], ids=["centered", "shifted"])
def test_any_split_gives_the_value_of_the_whole(cuts, debiased, mean):
    a, b, _ = data(mean=mean)
    edges = [0, *cuts, 18]
    pieces = [slice(i, j) for i, j in pairwise(edges)]
    parts = [(sums_of(a[s], b[s]), sums_of(a[s], a[s]), sums_of(b[s], b[s])) for s in pieces]
    assert_close(cka(parts, debiased), EXPECTED[debiased], scale=100)


def test_sums_about_one_shift_add_field_by_field():
    a, b, _ = data()
    shifts = torch.ones(3).double(), torch.zeros(5).double()
    parts = [sums_of(a[s], b[s], *shifts) for s in (slice(0, 7), slice(7, 18))]
    whole = sums_of(a, b, *shifts)
    for name in FIELDS:
        plain = sum(getattr(part, name) for part in parts)
        assert_close(plain, getattr(whole, name), scale=1e3)
        assert_close(getattr(parts[0] + parts[1], name), getattr(whole, name), scale=1e3)


def test_rebasing_is_exact():
    a, b, _ = data()
    moved = sums_of(a, b).rebase(torch.full((3,), 2.0), torch.full((5,), -1.0))
    direct = sums_of(a, b, torch.full((3,), 2.0), torch.full((5,), -1.0))
    for name in FIELDS:
        assert_close(getattr(moved, name), getattr(direct, name), scale=1e4)


def test_constant_features_vanish():
    a, b, _ = data()
    sums = sums_of(torch.full((18, 2), 0.1).double(), b)
    assert sums.vanishes(2e-16).tolist() == [True, False]
    assert sums_of(a, b).vanishes(2e-16).tolist() == [False, False]
