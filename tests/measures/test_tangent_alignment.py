"""Alignment of tangent kernels with labels: spec 4, labels and centring, alignment."""

from math import sqrt

import pytest
import torch

from tests.measures.kernels import feature_kernel
from tests.reference.tangent import tangent_alignment as reference
from tests.tolerances import assert_close
from theodolite.linalg import centered_square_sum, double_center, gram_cosine
from theodolite.measures.tangent import (
    alignment_from_norms,
    centered_labels,
    permuted_alignments,
    stacked_kernel,
    tangent_alignment,
)

N, K = 6, 3


@pytest.fixture
def kernel(generator):
    return feature_kernel(torch.randn(N, K, 7, generator=generator, dtype=torch.float64))


@pytest.fixture
def targets(generator):
    labels = torch.randint(K, (N,), generator=generator)
    return torch.nn.functional.one_hot(labels, K).double()


def as_kernel(matrix, outputs=K):
    return matrix.reshape(len(matrix) // outputs, outputs, len(matrix) // outputs, outputs)


def outer(y):
    return torch.einsum("xi,yj->xiyj", y, y)


@pytest.mark.spec("4.P1")
@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0, 2], [1]], ids=["even", "uneven", "one"])
def test_centered_one_hot_labels_are_labels_minus_one_over_k(labels):
    one_hot = torch.eye(3, dtype=torch.float64)[labels]
    assert torch.equal(centered_labels(torch.tensor(labels), 3), one_hot - 1 / 3)
    assert_close(centered_labels(one_hot), one_hot - 1 / 3)


@pytest.mark.spec("4.P2")
@pytest.mark.parametrize("k", [2, 3, 10])
def test_squared_length_of_centered_labels(k, generator):
    labels = torch.randint(k, (17,), generator=generator)
    assert_close(centered_labels(labels, k).square().sum(), 17 * (k - 1) / k, scale=17)


def test_centered_labels_of_regression_targets_have_mean_zero():
    targets = torch.tensor([[1.0, 5.0], [2.0, 8.0]])
    assert_close(centered_labels(targets), targets - 4)
    assert centered_labels(targets).dtype == torch.float32


def test_centered_labels_of_one_class_are_zero_and_undefined():
    zeros = centered_labels(torch.tensor([0, 0]))
    assert torch.equal(zeros, torch.zeros(2, 1, dtype=torch.float64))
    assert tangent_alignment(torch.eye(2).reshape(2, 1, 2, 1).double(), zeros).isnan()


@pytest.mark.spec("4.P3")
def test_centering_is_a_symmetric_projection_that_kills_constants():
    C = stacked_kernel(as_kernel(torch.eye(N * K, dtype=torch.float64)))  # C I C = C
    assert_close(C, C.T)
    assert_close(C @ C, C)
    assert_close(C @ torch.ones(N * K, dtype=torch.float64), torch.zeros(N * K))
    assert torch.linalg.matrix_rank(C) == N * K - 1


@pytest.mark.spec("4.P4")
def test_norm_of_the_centered_kernel_from_sums(kernel):
    explicit = stacked_kernel(kernel).square().sum()
    shortcut = centered_square_sum(kernel.square().sum(), kernel.sum((2, 3)))
    assert_close(shortcut, explicit, scale=float(explicit))


@pytest.mark.spec("4.P9")
def test_closed_form_is_the_cosine_with_the_label_gram(kernel, targets):
    y = targets.flatten()
    label_gram = double_center(torch.outer(y, y))
    assert_close(
        tangent_alignment(kernel, targets), gram_cosine(stacked_kernel(kernel), label_gram)
    )


@pytest.mark.spec("4.P10")
@pytest.mark.parametrize("seed", range(5))
def test_alignment_of_positive_kernels_lies_between_0_and_1(seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(5, 2, seed + 1, generator=generator, dtype=torch.float64)
    value = tangent_alignment(feature_kernel(features), torch.randn(5, 2, generator=generator))
    assert 0 <= value <= 1


@pytest.mark.spec("4.P11")
@pytest.mark.parametrize(("a", "b"), [(3.0, 0.0), (1.0, -2.0), (0.2, 7.0)])
def test_alignment_ignores_scale_and_offset_of_kernel_and_targets(kernel, targets, a, b):
    value = tangent_alignment(kernel, targets)
    assert_close(tangent_alignment(a * kernel + b, targets), value, scale=10)
    assert_close(tangent_alignment(kernel, -a * targets + b), value, scale=10)


@pytest.mark.spec("4.P12")
def test_alignment_ignores_the_order_of_examples(kernel, targets, generator):
    order = torch.randperm(N, generator=generator)
    moved = kernel[order][:, :, order]
    assert_close(tangent_alignment(moved, targets[order]), tangent_alignment(kernel, targets))


@pytest.mark.spec("4.P15")
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_alignment_of_the_label_kernel_is_1(targets, offset):
    assert_close(tangent_alignment(outer(targets - 1 / K) + offset, targets), 1.0)


@pytest.mark.spec("4.P16")
def test_alignment_of_the_identity(targets):
    identity = as_kernel(torch.eye(N * K, dtype=torch.float64))
    assert_close(tangent_alignment(identity, targets), 1 / sqrt(N * K - 1))


@pytest.mark.spec("4.P17")
@pytest.mark.parametrize("level", [0.0, 0.1, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_alignment_of_a_constant_kernel_is_undefined(targets, level, dtype):
    constant = torch.full((N, K, N, K), level, dtype=dtype)
    assert tangent_alignment(constant, targets.to(dtype)).isnan()


def test_alignment_with_constant_targets_is_undefined(kernel):
    assert tangent_alignment(kernel, torch.full((N, K), 0.1, dtype=torch.float64)).isnan()


@pytest.mark.spec("4.P18")
def test_alignment_is_negative_for_a_negative_kernel(targets):
    assert_close(tangent_alignment(-outer(targets), targets), -1.0)


@pytest.mark.parametrize("factor", [1e-200, 1e-30, 1e30, 1e200])
def test_alignment_survives_extreme_scales(kernel, targets, factor):
    value = tangent_alignment(kernel, targets)
    assert_close(tangent_alignment(kernel * factor, targets), value)
    assert_close(tangent_alignment(kernel, targets * factor), value)


def test_alignment_of_a_nearly_constant_kernel_keeps_its_digits(kernel, targets):
    shifted = kernel + 1e6
    assert_close(
        tangent_alignment(shifted, targets), reference(kernel.numpy(), targets.numpy()), scale=1e2
    )


def test_permuted_alignments_are_those_of_permuted_targets(kernel, targets, generator):
    shuffles = torch.stack([targets[torch.randperm(N, generator=generator)] for _ in range(4)])
    one_by_one = torch.stack([tangent_alignment(kernel, y) for y in shuffles])
    assert_close(permuted_alignments(kernel, shuffles), one_by_one)
    assert permuted_alignments(torch.ones_like(kernel), shuffles).isnan().all()


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_three_numbers_make_the_alignment(generator, shift):
    """From sums over a kernel that was never held, and from the side of the parameters."""
    features = torch.randn(6, 3, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (6,), generator=generator)
    targets, y = torch.nn.functional.one_hot(labels, 3).double(), centered_labels(labels, 3)
    kernel = feature_kernel(features)
    energy = torch.einsum("xi,xiyj,yj->", y, kernel, y)
    expected = tangent_alignment(kernel, targets)
    moved = kernel - shift
    norm = centered_square_sum(moved.square().sum(), moved.sum((2, 3))).sqrt()
    assert_close(alignment_from_norms(energy, norm, y.square().sum()), expected, scale=10)
    rows = features.flatten(0, 1) - features.mean((0, 1))
    assert_close(alignment_from_norms(energy, (rows.T @ rows).norm(), y.square().sum()), expected)
