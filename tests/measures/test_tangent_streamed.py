"""Alignment from streamed sums equals alignment from the kernel."""

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.measures.tangent import (
    alignment_from_sums,
    centered_labels,
    feature_kernel,
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


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_agrees_with_the_kernel_in_memory(kernel, targets, shift):
    y = centered_labels(targets)
    energy = torch.einsum("xi,xiyj,yj->", y, kernel, y)
    moved = kernel - shift
    value = alignment_from_sums(energy, moved.square().sum(), moved.sum((2, 3)), targets)
    assert_close(value, tangent_alignment(kernel, targets), scale=10)


def test_without_row_sums_is_uncentered(kernel, targets):
    energy = torch.einsum("xi,xiyj,yj->", targets, kernel, targets)
    value = alignment_from_sums(energy, kernel.square().sum(), None, targets)
    assert_close(value, tangent_alignment(kernel, targets, center=False))


def test_parameter_side_needs_no_kernel(targets, generator):
    features = torch.randn(N, K, 4, generator=generator, dtype=torch.float64)
    rows, y = features.flatten(0, 1), centered_labels(targets)
    scatter = (rows - rows.mean(0)).T @ (rows - rows.mean(0))
    energy = (y.flatten() @ rows).square().sum()
    value = alignment_from_sums(energy, scatter.square().sum(), None, y)
    assert_close(value, tangent_alignment(feature_kernel(features), targets))


@pytest.mark.parametrize("level", [0.0, 0.1, 3.0])
def test_constant_kernel_is_undefined(targets, level):
    kernel = torch.full((N, K, N, K), level, dtype=torch.float64)
    zero = torch.zeros((), dtype=torch.float64)
    sums = kernel.square().sum(), kernel.sum((2, 3))
    assert alignment_from_sums(zero, *sums, targets).isnan()


def test_constant_targets_are_undefined(kernel):
    constant = torch.full((N, K), 0.1, dtype=torch.float64)
    sums = kernel.square().sum(), kernel.sum((2, 3))
    assert alignment_from_sums(kernel.sum() * 0, *sums, constant).isnan()
