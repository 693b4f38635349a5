"""Any split of the data, about any shift, merges to the same moments."""

from functools import reduce
from operator import add

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tolerances import assert_close
from theodolite.linalg import Moments, RowSample, TriangularState, row_chunks


def rows(seed, count, width, mean=0.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator, dtype=torch.float64) + mean


def covariance(x):
    offset = x - x.mean(0)
    return offset.T @ offset / len(x)


@settings(max_examples=20)
@given(st.integers(0, 100), st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 4))
def test_any_split_gives_the_same_moments(seed, sizes, width):
    x = rows(seed, sum(sizes), width, mean=100.0)
    merged = reduce(add, map(Moments.of, x.split(sizes)))
    assert_close(merged.mean, x.mean(0), scale=100)
    assert_close(merged.covariance(), covariance(x))
    assert_close(merged.covariance(centered=False), x.T @ x / len(x), scale=1e4)
    assert merged.count == len(x)


def test_plain_sums_about_one_shift_reduce_across_processes():
    x = rows(0, 10, 3, mean=1e4)
    parts = [Moments.of(part, shift=x[0]) for part in x.split([4, 1, 5])]
    total = Moments(
        sum(part.count for part in parts),
        x[0],
        sum(part.total for part in parts),
        sum(part.scatter for part in parts),
    )
    assert_close(total.covariance(), covariance(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_mean_costs_no_digits(dtype):
    x = (rows(1, 50, 3) + 1e4).to(dtype)
    merged = Moments.of(x[:20]) + Moments.of(x[20:])
    assert_close(merged.covariance(), covariance(x.double()))


def test_covariance_with_other_divisors():
    x = rows(2, 8, 3)
    assert_close(Moments.of(x).covariance(ddof=1), covariance(x) * 8 / 7)


def test_rebasing_is_exact():
    moments = Moments.of(rows(3, 6, 2))
    moved = moments.rebase(torch.tensor([5.0, -3.0], dtype=torch.float64))
    assert_close(moved.mean, moments.mean)
    assert_close(moved.covariance(), moments.covariance(), scale=100)


@settings(max_examples=20)
@given(st.integers(0, 100), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_triangle_has_the_gram_of_all_rows(seed, sizes):
    x = rows(seed, sum(sizes), 3)
    state = reduce(add, map(TriangularState.of, x.split(sizes)))
    assert_close(state.triangle.T @ state.triangle, x.T @ x, scale=10)
    assert_close(state.triangle, state.triangle.triu())
    left, right = state.split(2)
    assert left.shape == (3, 2)
    assert right.shape == (3, 1)


def test_triangle_keeps_singular_values_that_the_gram_loses():
    scale = torch.tensor([1.0, 1e-10], dtype=torch.float64)
    x = torch.linalg.qr(rows(5, 40, 2)).Q * scale
    triangle = reduce(add, map(TriangularState.of, x.split(7))).triangle
    assert torch.linalg.svdvals(triangle)[1] == pytest.approx(1e-10, rel=1e-5)
    assert torch.linalg.eigvalsh(x.T @ x)[0].abs() < 1e-15  # 1e-20, lost in rounding


def test_chunks_cover_all_rows_in_order():
    x = torch.arange(900_000.0).reshape(-1, 3)
    chunks = row_chunks(x, x[:, 0])
    assert len(chunks) == 1
    wide = torch.zeros(10, 1_000_000)
    parts = row_chunks(wide)
    assert sum(len(part) for (part,) in parts) == 10
    assert max(part.numel() for (part,) in parts) * 8 <= 8 * 2**20


def test_few_rows_have_the_leading_directions_of_their_covariance():
    x = rows(0, 30, 80, mean=2.0)
    sample = RowSample(x[:12]) + RowSample(x[12:])
    expected = Moments.of(x).leading(10)
    found = sample.leading(10)
    assert_close(found.values, expected.values, scale=100)
    overlap = (found.vectors * expected.vectors).sum(0).abs()
    assert_close(overlap, torch.ones(10, dtype=torch.float64), scale=100)
    assert_close(sample.moments().covariance(), covariance(x), scale=100)


def test_directions_beyond_the_rows_have_no_variance():
    rows = torch.randn(8, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values, vectors = RowSample(rows).leading(20)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(20, dtype=torch.float64))
    torch.testing.assert_close(values[:7], Moments.of(rows).leading(7).values)
    assert (values[7:] < 1e-14).all()
    varying = (rows - rows.mean(0)) @ vectors
    torch.testing.assert_close(varying.square().mean(0), values)


def test_directions_of_constant_rows_are_orthonormal():
    found = RowSample(torch.ones(6, 20)).leading(3)
    assert_close(found.vectors.T @ found.vectors, torch.eye(3, dtype=torch.float64), scale=10)
    assert found.values.tolist() == [0.0] * 3
