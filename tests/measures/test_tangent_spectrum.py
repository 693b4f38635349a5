"""Stable rank, spectrum, correlation and the rank-one model: spec 4, P54 to P57."""

from math import sqrt

import pytest
import torch

from tests.measures.kernels import feature_kernel
from tests.tolerances import assert_close
from theodolite.measures.tangent import (
    alignment_decomposition,
    stable_rank,
    stacked_kernel,
    tangent_alignment,
)

N, K = 6, 3


@pytest.fixture
def features(generator):
    return torch.randn(N, K, 4, generator=generator, dtype=torch.float64)


@pytest.fixture
def targets(generator):
    return torch.eye(K, dtype=torch.float64)[torch.randint(K, (N,), generator=generator)]


@pytest.mark.spec("4.P54")
@pytest.mark.parametrize("p", [1, 2, 7])
def test_rank_of_the_identity(p):
    assert_close(stable_rank(torch.eye(p, dtype=torch.float64)), p, scale=p)


@pytest.mark.spec("4.P54")
@pytest.mark.parametrize("shape", [(5, 3), (3, 5)], ids=["tall", "wide"])
def test_rank_of_a_rank_one_matrix_is_1(shape, generator):
    left, right = (torch.randn(size, generator=generator, dtype=torch.float64) for size in shape)
    assert_close(stable_rank(torch.outer(left, right)), 1.0)


@pytest.mark.spec("4.P54")
@pytest.mark.parametrize("factor", [-2.0, 1e-200, 1e200])
def test_rank_ignores_scale(factor, generator):
    matrix = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    assert_close(stable_rank(factor * matrix), stable_rank(matrix), scale=4)


def test_rank_of_zero_is_undefined():
    assert stable_rank(torch.zeros(3, 2)).isnan()


@pytest.mark.parametrize("shape", [(600, 600), (700, 550), (550, 700)], ids=str)
def test_stable_rank_of_large_matrices_comes_from_lanczos(shape, generator):
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    sigma = torch.linalg.svdvals(matrix)
    expected = (sigma / sigma[0]).square().sum()
    assert_close(stable_rank(matrix), expected, scale=float(expected))


def test_stable_rank_of_a_large_zero_matrix_is_undefined():
    assert stable_rank(torch.zeros(600, 600)).isnan()


def test_stable_rank_of_a_large_matrix_has_the_gradient_of_its_definition(generator):
    matrix = torch.randn(600, 520, generator=generator, dtype=torch.float64)
    ours, theirs = matrix.clone().requires_grad_(), matrix.clone().requires_grad_()
    stable_rank(ours).backward()
    (theirs.square().sum() / torch.linalg.svdvals(theirs)[0].square()).backward()
    assert_close(ours.grad, theirs.grad, scale=float(theirs.grad.abs().max()) * 1e2)


def test_stable_rank_gradient_is_finite_at_ties():
    matrix = torch.eye(4, dtype=torch.float64, requires_grad=True)
    stable_rank(matrix).backward()
    assert matrix.grad.isfinite().all()
    assert_close(matrix.grad.trace(), 0.0)  # the stable rank is scale-free


@pytest.mark.spec("4.P55")
@pytest.mark.parametrize("center", [True, False], ids=["centered", "raw"])
def test_alignment_is_correlation_over_root_of_stable_rank(features, targets, center):
    kernel = feature_kernel(features)
    parts = alignment_decomposition(kernel, targets, center=center)
    matrix = stacked_kernel(kernel, center=center)
    assert_close(parts.alignment, tangent_alignment(kernel, targets, center=center))
    assert_close(parts.stable_rank, stable_rank(matrix), scale=4)
    assert_close(parts.alignment, parts.correlation / parts.stable_rank.sqrt())


@pytest.mark.spec("4.P55")
@pytest.mark.parametrize("p", [1, 3, 30])
def test_parts_stay_in_their_ranges(p, targets, generator):
    kernel = feature_kernel(torch.randn(N, K, p, generator=generator, dtype=torch.float64))
    parts = alignment_decomposition(kernel, targets)
    rank = int(torch.linalg.matrix_rank(stacked_kernel(kernel)))
    assert 1 - 1e-12 <= parts.stable_rank <= rank + 1e-12
    assert 0 <= parts.correlation <= 1
    assert parts.alignment <= 1 / sqrt(parts.stable_rank) + 1e-12


@pytest.mark.spec("4.P55")
def test_correlation_is_1_for_labels_in_the_top_eigenspace(targets, generator):
    y = (targets - 1 / K).flatten()
    other = torch.randn(N * K, generator=generator, dtype=torch.float64)
    other = other - other.mean()
    other = other - (other @ y) / (y @ y) * y
    matrix = torch.outer(y, y) / (y @ y) + torch.outer(other, other) / (other @ other)  # a tie
    parts = alignment_decomposition(matrix.reshape(N, K, N, K), targets)
    assert_close(parts.correlation, 1.0)
    assert_close(parts.stable_rank, 2.0)


def test_decomposition_is_exact_for_indefinite_kernels(targets, generator):
    matrix = torch.randn(N * K, N * K, generator=generator, dtype=torch.float64)
    kernel = -(matrix + matrix.T).reshape(N, K, N, K) - 20 * torch.einsum(
        "xi,yj->xiyj", targets, targets
    )
    parts = alignment_decomposition(kernel, targets)
    assert parts.alignment < 0
    assert_close(parts.alignment, parts.correlation / parts.stable_rank.sqrt())


def test_stable_rank_is_defined_without_label_direction(features):
    parts = alignment_decomposition(feature_kernel(features), torch.ones(N, K).double())
    assert parts.alignment.isnan()
    assert parts.correlation.isnan()
    assert parts.stable_rank >= 1
