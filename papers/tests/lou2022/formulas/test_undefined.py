"""Undefined values of formulas of tangent kernels."""

import pytest
import torch

from theodolite.measures.tangent import (
    alignment_decomposition,
    tangent_alignment,
)
from theodolite_papers.lou2022.formulas.fisher import fisher_correlation
from theodolite_papers.lou2022.formulas.labels import label_gradient_correlation, uncoupled_bound
from theodolite_papers.lou2022.formulas.updates import rank_one_model

N, K = 4, 3

GENERATOR = torch.Generator().manual_seed(0)


FEATURES = torch.randn(N, K, 5, generator=GENERATOR, dtype=torch.float64)


KERNEL = torch.einsum("xip,yjp->xiyj", FEATURES, FEATURES)


TARGETS = torch.randn(N, K, generator=GENERATOR, dtype=torch.float64)


HESSIAN = torch.eye(K, dtype=torch.float64).repeat(N, 1, 1)


CONSTANT_KERNEL = torch.full_like(KERNEL, 0.1)


CONSTANT_TARGETS = torch.full_like(TARGETS, 0.1)


CONSTANT_FEATURES = torch.full_like(FEATURES, 0.1)


def weighted_correlation(kernel, targets):
    return fisher_correlation(kernel, HESSIAN, targets)


def rank_one_error(features, targets):
    return rank_one_model(features, targets).error


def correlation(kernel, targets):
    return alignment_decomposition(kernel, targets).correlation


def centered_rank(kernel, targets):
    return alignment_decomposition(kernel, targets).stable_rank


@pytest.mark.parametrize(
    ("measure", "arguments"),
    [
        (tangent_alignment, (CONSTANT_KERNEL, TARGETS)),
        (tangent_alignment, (KERNEL, CONSTANT_TARGETS)),
        (correlation, (CONSTANT_KERNEL, TARGETS)),
        (correlation, (KERNEL, CONSTANT_TARGETS)),
        (centered_rank, (CONSTANT_KERNEL, TARGETS)),
        (weighted_correlation, (KERNEL, CONSTANT_TARGETS)),
        (rank_one_error, (CONSTANT_FEATURES, TARGETS)),
        (rank_one_error, (FEATURES, CONSTANT_TARGETS)),
        (label_gradient_correlation, (TARGETS, CONSTANT_TARGETS)),
        (uncoupled_bound, (CONSTANT_TARGETS,)),
    ],
)
def test_constant_input_gives_nan_with_gradient_zero(measure, arguments):
    leaves = [argument.clone().requires_grad_() for argument in arguments]
    value = measure(*leaves)
    assert value.isnan()
    gradients = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)
