"""Correlation between labels and loss gradient: spec 4, P79 to P81."""

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.measures.tangent import centered_labels
from theodolite_papers.lou2022.formulas.labels import label_gradient_correlation
from theodolite_papers.lou2022.formulas.losses import cross_entropy_gradient

N = 7


def draw(k, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (N,), generator=generator)
    logits = scale * torch.randn(N, k, generator=generator, dtype=torch.float64)
    return logits, torch.eye(k, dtype=torch.float64)[labels]


@pytest.mark.spec("4.P79")
@pytest.mark.parametrize("k", [2, 3, 10])
def test_equal_logits_give_minus_1(k):
    logits, targets = draw(k, seed=0)
    equal = logits[:, :1].expand(N, k)
    w = cross_entropy_gradient(equal, targets)
    assert_close(label_gradient_correlation(targets, w), -1.0)


@pytest.mark.spec("4.P80")
@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("scale", [0.1, 3.0, 100.0])
@pytest.mark.parametrize("seed", range(3))
def test_cross_entropy_never_pushes_against_the_labels(k, scale, seed):
    logits, targets = draw(k, seed, scale)
    w = cross_entropy_gradient(logits, targets)
    y = centered_labels(targets)
    value = label_gradient_correlation(targets, w)
    assert -1 - 1e-12 <= value <= 0
    assert_close(value, (y * w).sum() / (y.norm() * w.norm()))  # Pearson is the cosine


@pytest.mark.spec("4.P81")
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_closed_form_for_two_classes(scale):
    logits, targets = draw(2, seed=1, scale=scale)
    missed = 1 - (logits.softmax(1) * targets).sum(1)
    expected = -missed.mean() / missed.square().mean().sqrt()
    w = cross_entropy_gradient(logits, targets)
    assert_close(label_gradient_correlation(targets, w), expected)


def test_nearly_fitted_examples_keep_their_digits():
    targets = torch.eye(2, dtype=torch.float64)
    w = cross_entropy_gradient(500 * targets, targets)  # entries of order 1e-217
    assert_close(label_gradient_correlation(targets, w), -1.0)


def test_perfect_fit_is_undefined():
    targets = torch.eye(3, dtype=torch.float64)
    w = cross_entropy_gradient(1e4 * targets, targets)
    assert label_gradient_correlation(targets, w).isnan()


def test_constant_targets_are_undefined():
    w = torch.eye(3, dtype=torch.float64)
    assert label_gradient_correlation(torch.full((3, 3), 0.1, dtype=torch.float64), w).isnan()
