"""Centring, cosines, and quotients that are undefined."""

import numpy as np
import pytest
import torch

from tests.tolerances import assert_close
from theodolite import linalg


@pytest.mark.spec("3.P4")
@pytest.mark.spec("4.P3")
def test_centering_matrix(generator):
    n = 6
    h = torch.eye(n, dtype=torch.float64) - 1 / n
    assert_close(h, h.T)
    assert_close(h @ h, h)
    assert_close(h.sum(1), np.zeros(n))
    f = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    k = f @ f.T
    centered = linalg.double_center(k)
    assert_close(centered, h @ k @ h, scale=10)
    assert_close(centered.sum(1), np.zeros(n), scale=10)
    fc = linalg.center_columns(f)
    assert_close(centered, fc @ fc.T, scale=10)
    entrywise = k - k.mean(0) - k.mean(1, keepdim=True) + k.mean()
    assert_close(centered, entrywise, scale=10)


@pytest.mark.parametrize("factor", [1e-150, 1e150])
def test_cosine_does_not_overflow(generator, factor):
    a = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    assert_close(linalg.gram_cosine(a * factor, a), 1.0)
    assert linalg.gram_cosine(a, 0 * a).isnan()


def test_noise_after_centering_counts_as_zero():
    k = torch.full((4, 4), 3.0, dtype=torch.float64)
    k[0, 0] += 1e-15
    eps = torch.finfo(torch.float64).eps
    assert linalg.vanishes_when_centered(linalg.double_center(k), k, eps)
    k[0, 0] += 1e-6
    assert not linalg.vanishes_when_centered(linalg.double_center(k), k, eps)


def test_products_of_matrices_without_diagonal_are_those_of_the_debiased_sums(generator):
    rows = [torch.randn(7, d, generator=generator, dtype=torch.float64) + 2 for d in (2, 5)]
    k, m = (f @ f.T for f in rows)
    kept = k.clone()
    expected = linalg.centered_products(linalg.double_center(k), linalg.double_center(m))
    found = (linalg.u_center(k) * linalg.u_center(m)).sum()
    assert_close(found, expected.totals(debiased=True)[0, 1])
    assert_close(linalg.u_center(k).sum(1), np.zeros(7))
    assert torch.equal(k, kept)


def test_undefined_ratio_is_nan_with_gradient_zero():
    x = torch.tensor([2.0, 0.0], requires_grad=True)
    value = linalg.ratio_or_nan(torch.ones(2), x)
    assert value[0] == 0.5
    assert value[1].isnan()
    value.sum().backward()
    assert x.grad.tolist() == [-0.25, 0.0]


def test_safe_root_has_no_infinite_slope():
    x = torch.tensor([4.0, 0.0, -1e-17], requires_grad=True)
    root = linalg.safe_sqrt(x)
    assert root.tolist() == [2.0, 0.0, 0.0]
    root.sum().backward()
    assert x.grad.tolist() == [0.25, 0.0, 0.0]


def test_full_precision_is_restored_after_an_error():
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(KeyError), linalg.full_precision():  # noqa: PT012
            assert torch.get_float32_matmul_precision() == "highest"
            raise KeyError
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
