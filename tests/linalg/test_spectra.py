"""Decompositions: order, scale, fall-backs, groups of equal eigenvalues, leading pairs."""

import numpy as np
import pytest
import torch

from tests.tolerances import assert_close
from theodolite import linalg
from theodolite.errors import DomainError
from theodolite.linalg import spectra


@pytest.fixture
def symmetric(generator):
    a = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    return a + a.T


def test_eigenvalues_come_largest_first(symmetric):
    values, vectors = linalg.symmetric_eigen(symmetric)
    assert (values[:-1] >= values[1:]).all()
    assert_close(vectors * values @ vectors.T, symmetric, scale=10)
    assert_close(linalg.symmetric_eigenvalues(symmetric), values, scale=10)


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_extreme_scales_do_not_overflow(symmetric, factor):
    values = linalg.symmetric_eigen(symmetric * factor).values
    assert_close(values / factor, linalg.symmetric_eigen(symmetric).values, scale=10)
    left, singular, right = linalg.thin_svd(symmetric[:, :4] * factor)
    assert_close(left * (singular / factor) @ right.T, symmetric[:, :4], scale=10)


def test_work_is_done_in_float64(symmetric):
    assert linalg.symmetric_eigen(symmetric.float()).values.dtype == torch.float64
    assert linalg.thin_svd(symmetric.float()).values.dtype == torch.float64


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (4, 4), (1, 1)])
def test_thin_svd(shape, generator):
    a = torch.randn(*shape, generator=generator, dtype=torch.float64)
    left, values, right = linalg.thin_svd(a)
    assert left.shape == (shape[0], min(shape))
    assert right.shape == (shape[1], min(shape))
    assert_close(left * values @ right.T, a)
    assert_close(torch.linalg.svdvals(a), values)


def test_zero_matrix_has_zero_spectrum():
    assert_close(linalg.symmetric_eigen(torch.zeros(3, 3)).values, np.zeros(3))
    assert_close(linalg.thin_svd(torch.zeros(3, 2)).values, np.zeros(2))


def failing(*_args, **_keywords):
    raise torch.linalg.LinAlgError("the algorithm failed to converge")


def nonsense(a, **_keywords):
    return [a.new_full(a.shape[:1], torch.nan), a * torch.nan]


@pytest.mark.parametrize("broken", [failing, nonsense], ids=["raises", "gives nan"])
def test_eigh_falls_back_to_lapack(symmetric, monkeypatch, broken):
    expected = linalg.symmetric_eigen(symmetric)
    monkeypatch.setattr(torch.linalg, "eigh", broken)
    values, vectors = linalg.symmetric_eigen(symmetric)
    assert_close(values, expected.values, scale=10)
    assert_close((vectors * expected.vectors).sum(0).abs(), np.ones(6))


def test_svd_and_eigvalsh_fall_back_to_lapack(symmetric, monkeypatch):
    expected = linalg.thin_svd(symmetric).values
    eigenvalues = linalg.symmetric_eigenvalues(symmetric)
    monkeypatch.setattr(torch.linalg, "svd", failing)
    monkeypatch.setattr(torch.linalg, "eigvalsh", failing)
    assert_close(linalg.thin_svd(symmetric).values, expected, scale=10)
    assert_close(linalg.symmetric_eigenvalues(symmetric), eigenvalues, scale=10)


def test_failure_of_every_driver_is_an_error(symmetric, monkeypatch):
    monkeypatch.setattr(torch.linalg, "eigh", failing)
    monkeypatch.setattr(spectra.scipy.linalg, "eigh", failing)
    with pytest.raises(RuntimeError, match="no eigenvalue solver converged"):
        linalg.symmetric_eigen(symmetric)


@pytest.mark.parametrize(
    ("values", "rank"),
    [([3.0, 1.0, 1e-17], 2), ([3.0, 1.0, 1e-10], 3), ([0.0, 0.0], 0), ([], 0)],
)
def test_numerical_rank(values, rank):
    eps = torch.finfo(torch.float64).eps
    assert linalg.numerical_rank(torch.tensor(values, dtype=torch.float64), (10, 3), eps) == rank


@pytest.mark.parametrize(
    ("values", "groups"),
    [
        ([5.0, 5.0, 2.0], [(0, 2), (2, 3)]),
        ([5.0, 4.9999999999, 4.9999999998, 1.0], [(0, 3), (3, 4)]),  # chained
        ([3.0, 2.0, 1.0], [(0, 1), (1, 2), (2, 3)]),
        ([0.0, 0.0], [(0, 2)]),
        ([], []),
    ],
)
def test_groups_of_equal_eigenvalues(values, groups):
    found = linalg.eigenvalue_groups(torch.tensor(values, dtype=torch.float64), rtol=1e-10)
    assert [(group.start, group.stop) for group in found] == groups


def test_tolerance_for_equality_grows_with_rounding():
    assert linalg.equality_tolerance(10, torch.finfo(torch.float64).eps) == 1e-10
    eps = torch.finfo(torch.float32).eps
    assert linalg.equality_tolerance(10, eps) == 80 * eps


@pytest.mark.parametrize("size", [40, 700], ids=["dense", "arpack"])
def test_leading_pairs(size, generator):
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    spectrum = 0.9 ** torch.arange(size, dtype=torch.float64)
    matrix = (basis * spectrum) @ basis.T
    values, vectors = linalg.top_eigen((matrix + matrix.T) / 2, 4)
    assert_close(values, spectrum[:4])
    assert_close((vectors * basis[:, :4]).sum(0).abs(), np.ones(4))


def test_leading_pairs_by_absolute_value():
    diagonal = torch.tensor([3.0, -5.0, 1.0, 0.5, -0.1], dtype=torch.float64)
    values, _ = linalg.top_eigen_operator(lambda v: diagonal * v, 5, 2, which="LM")
    assert_close(values, [-5.0, 3.0])
    with pytest.raises(DomainError, match="below size = 5, got 5"):
        linalg.top_eigen_operator(lambda v: diagonal * v, 5, 5)


SPECTRA = {
    "decaying": torch.arange(1, 601, dtype=torch.float64) ** -0.7,
    "equal": torch.ones(600, dtype=torch.float64),
    "more equal ones than a block": torch.cat([5 * torch.ones(80), torch.linspace(1, 0, 520)]),
    "low rank": torch.cat([torch.linspace(2, 1, 20), torch.zeros(580)]),
    "signs": torch.linspace(1, -1.5, 600),
}


@pytest.mark.parametrize("values", SPECTRA.values(), ids=SPECTRA)
def test_blocks_of_vectors_find_the_leading_pairs(values, generator):
    """What a GPU does: residuals within the tolerance, values right to about its square."""
    values = values.double()
    basis = torch.linalg.qr(torch.randn(600, 600, generator=generator, dtype=torch.float64)).Q
    matrix = (basis * values) @ basis.T
    found = spectra._block_krylov((matrix + matrix.T) / 2, 90, 1e-9)
    assert_close(found.values, values[:90], scale=1e3)
    residuals = matrix @ found.vectors - found.vectors * found.values
    assert float(residuals.norm(dim=0).max()) <= 2e-9 * float(values.max())
    assert_close(found.vectors.T @ found.vectors, torch.eye(90).double(), scale=1e3)


def test_a_looser_tolerance_is_kept(generator):
    a = torch.randn(600, 700, generator=generator, dtype=torch.float64)
    matrix = a @ a.T / 700
    values, vectors = linalg.top_eigen(matrix, 20, tolerance=1e-6)
    assert float((matrix @ vectors - vectors * values).norm(dim=0).max()) <= 1e-6 * values[0]
    assert_close(values, linalg.symmetric_eigen(matrix).values[:20], scale=1e5)
