"""Alignment of kernels between outputs with the targets."""

from math import sqrt

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.linalg import double_center, gram_cosine
from theodolite.measures.tangent import tangent_alignment
from theodolite_papers.canatar2022.formulas.operator import operator_alignment

N, K = 6, 3


@pytest.fixture
def targets(generator):
    labels = torch.randint(K, (N,), generator=generator)
    return torch.nn.functional.one_hot(labels, K).double()


def outer(y):
    return torch.einsum("xi,yj->xiyj", y, y)


def blind(gram, outputs):
    """The kernel ``gram (x) I``: the same for every output, nothing between outputs."""
    return torch.einsum("xy,ij->xiyj", gram, torch.eye(outputs, dtype=gram.dtype))


def balanced(classes, each=2):
    return torch.eye(classes, dtype=torch.float64).repeat(each, 1)


@pytest.mark.spec("3.P55")
@pytest.mark.parametrize("center", [True, False], ids=["centered", "raw"])
def test_optimal_kernel_reaches_1(targets, center):
    assert_close(operator_alignment(outer(targets), targets, center=center), 1.0)


@pytest.mark.spec("3.P55")
@pytest.mark.parametrize("center", [True, False], ids=["centered", "raw"])
@pytest.mark.parametrize("seed", range(4))
def test_scalar_kernels_stay_below_one_over_root_c(targets, center, seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    features = features + 3 * targets[:, :2]
    value = operator_alignment(blind(features @ features.T, K), targets, center=center)
    assert value <= 1 / sqrt(K)


@pytest.mark.spec("3.P55")
@pytest.mark.parametrize("k", [2, 5])
def test_target_gram_of_balanced_classes_reaches_one_over_c(k):
    targets = balanced(k)
    kernel = blind(targets @ targets.T, k)
    assert_close(operator_alignment(kernel, targets, center=False), 1 / k)


@pytest.mark.spec("3.P55")
@pytest.mark.parametrize("center", [True, False], ids=["cka", "kta"])
def test_one_output_gives_kernel_alignment(center, generator):
    features = torch.randn(N, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(N, 1, generator=generator, dtype=torch.float64)
    gram, labels = features @ features.T, y @ y.T
    if center:
        expected = gram_cosine(double_center(gram), double_center(labels))
    else:
        expected = gram_cosine(gram, labels)
    assert_close(operator_alignment(gram.reshape(N, 1, N, 1), y, center=center), expected)


def test_without_centering_it_is_the_tangent_alignment_without_centering(targets, generator):
    features = torch.randn(N * K, 7, generator=generator, dtype=torch.float64)
    kernel = (features @ features.T).reshape(N, K, N, K)
    expected = tangent_alignment(kernel, targets, center=False)
    assert_close(operator_alignment(kernel, targets, center=False), expected)


@pytest.mark.parametrize("which", ["kernel", "targets"])
def test_constant_input_is_undefined_with_gradient_zero(targets, which):
    kernel = outer(targets)
    given = {"kernel": kernel, "targets": targets}
    given[which] = torch.full_like(given[which], 0.1)
    leaves = [value.clone().requires_grad_() for value in given.values()]
    value = operator_alignment(*leaves)
    assert value.isnan()
    gradients = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    assert all(not bool(gradient.any()) for gradient in gradients)
