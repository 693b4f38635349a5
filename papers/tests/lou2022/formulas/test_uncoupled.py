"""The bound of kernels that do not couple outputs: spec 4, P110 and P111."""

from math import sqrt

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.linalg import double_center
from theodolite.measures.tangent import tangent_alignment
from theodolite_papers.lou2022.formulas.labels import uncoupled_bound


def outer(y):
    return torch.einsum("xi,yj->xiyj", y, y)


def blind(gram, outputs):
    """The kernel ``gram (x) I``: the same for every output, nothing between outputs."""
    return torch.einsum("xy,ij->xiyj", gram, torch.eye(outputs, dtype=gram.dtype))


def balanced(classes, each=2):
    return torch.eye(classes, dtype=torch.float64).repeat(each, 1)


class TestUncoupled:
    """Kernels of the form F (x) I cannot align well with one-hot labels."""

    @pytest.mark.spec("4.P110")
    @pytest.mark.parametrize("k", [2, 3, 10])
    def test_bound_is_attained_at_the_centered_label_gram(self, k):
        targets = balanced(k)
        bound = 1 / sqrt(k * (k - 1))
        gram = double_center(targets @ targets.T)
        assert_close(uncoupled_bound(targets), bound)
        assert_close(tangent_alignment(blind(gram, k), targets), bound)

    @pytest.mark.spec("4.P110")
    @pytest.mark.parametrize("labels", [[0, 1, 2] * 2, [0, 0, 0, 1, 2, 2]], ids=["even", "uneven"])
    @pytest.mark.parametrize("rank", [1, 2, 6])
    @pytest.mark.parametrize("seed", range(4))
    def test_no_uncoupled_kernel_exceeds_the_bound(self, labels, rank, seed):
        generator = torch.Generator().manual_seed(seed)
        targets = torch.eye(3, dtype=torch.float64)[labels]
        noise = torch.randn(6, rank, generator=generator, dtype=torch.float64)
        features = noise + 2 * targets @ torch.randn(3, rank, generator=generator).double()
        value = tangent_alignment(blind(features @ features.T, 3), targets)
        assert value <= uncoupled_bound(targets) + 1e-12

    @pytest.mark.spec("4.P110")
    def test_coupled_kernel_exceeds_the_bound(self):
        targets = balanced(10)
        assert tangent_alignment(outer(targets), targets) > uncoupled_bound(targets)

    @pytest.mark.spec("4.P111")
    @pytest.mark.parametrize("k", [2, 3, 10])
    def test_perfect_class_blocks(self, k):
        targets = balanced(k)
        assert_close(tangent_alignment(blind(targets @ targets.T, k), targets), 1 / sqrt(k**2 - 1))

    def test_one_output_cannot_be_uncoupled(self):
        assert_close(uncoupled_bound(torch.tensor([[1.0], [0.0], [0.5]])), 1.0)

    def test_constant_targets_are_undefined(self):
        assert uncoupled_bound(torch.full((4, 2), 0.1)).isnan()
