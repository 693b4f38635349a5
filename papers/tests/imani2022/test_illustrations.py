"""Small examples whose alignment is known by hand."""

from math import exp, sqrt

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.errors import DomainError
from theodolite.measures.representation import representation_alignment
from theodolite_papers.imani2022._illustrations import (
    labels_along,
    singular_vector_labels,
    two_arcs,
    two_processes,
)


@pytest.mark.spec("1.R54")
def test_two_arcs(generator):
    n, spread = 1000, 0.297
    points = two_arcs(n, spread, generator)
    sigma = torch.linalg.svdvals(points)
    assert_close(sigma.square().sum(), n, scale=n)
    assert abs(sigma[0].item() ** 2 / n - (1 + exp(-2 * spread**2)) / 2) < 0.02
    middle = sigma.mean().item()
    for direction, low, high in [(1, 0.95, 1.0), (2, 0.0, 0.05)]:
        labels = labels_along(points, direction)
        assert set(labels.tolist()) == {-1.0, 1.0}
        share = representation_alignment(points, labels, middle).item() / n
        assert low <= share <= high
        assert _separable(points, labels, direction)


def _separable(points, labels, direction):
    right = torch.linalg.svd(points, full_matrices=False).Vh[direction - 1]
    margins = labels * (points @ right)
    return bool((margins > 0).all()) or bool((margins < 0).all())


@pytest.mark.spec("1.R54")
def test_two_arcs_mass_on_the_second_direction(generator):
    points = two_arcs(20_000, generator=generator)
    labels = labels_along(points, 2)
    left = torch.linalg.svd(points, full_matrices=False).U
    shares = (left.T @ labels).square() / len(labels)
    assert abs(shares[1].item() - 0.655) < 0.01
    assert shares[0].item() < 0.005


def test_two_processes():
    features, targets = two_processes(0.95, total=2.0)
    assert features.tolist() == [[6.0, 0.0], [0.0, 1.0]]
    assert_close(targets.square(), [1.9, 0.1])


def test_labels_from_singular_vectors(generator):
    features = torch.randn(60, 55, generator=generator, dtype=torch.float64)
    labels = singular_vector_labels(features, {5: sqrt(0.9), 50: sqrt(0.1)})
    left, sigma, _ = torch.linalg.svd(features, full_matrices=False)
    mass = (left.T @ labels).square()
    expected = torch.zeros(55, dtype=torch.float64)
    expected[4], expected[49] = 0.9, 0.1
    assert_close(mass, expected)
    between = (sigma[4] + sigma[49]).item() / 2
    assert_close(representation_alignment(features, labels, between), 0.9)


def collapsed_classes(count, cosine, num_classes=2):
    """Balanced classes, each collapsed on a unit mean; all means at the same cosine (section 8)."""
    gram = torch.full((num_classes, num_classes), cosine, dtype=torch.float64).fill_diagonal_(1.0)
    values, vectors = torch.linalg.eigh(gram)
    means = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT
    labels = torch.arange(num_classes).repeat_interleave(count // num_classes)
    return means[labels], labels


@pytest.mark.parametrize("cosine", [-1.0, -0.5, 0.0, 0.7])
def test_collapsed_classes_have_the_stated_alignment(cosine):
    n = 40
    features, labels = collapsed_classes(n, cosine)
    assert_close(features.norm(dim=1), torch.ones(n))
    assert_close(features[0] @ features[-1], cosine)
    targets = labels.double() * 2 - 1
    edge = sqrt(n * (1 - cosine) / 2)
    assert_close(representation_alignment(features, targets, edge * (1 - 1e-9)), n, scale=n)
    assert_close(representation_alignment(features, targets, edge * (1 + 1e-9)), 0, scale=n)


def test_collapsed_classes_of_many_classes():
    features, labels = collapsed_classes(12, -0.25, num_classes=4)
    gram = features @ features.T
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    assert_close(gram, torch.where(same, 1.0, -0.25))


@pytest.mark.parametrize(
    "call",
    [
        lambda: two_arcs(3),
        lambda: labels_along(torch.eye(2), 3),
        lambda: singular_vector_labels(torch.eye(2), {0: 1.0}),
        lambda: two_processes(1.5),
    ],
)
def test_bad_requests_raise(call):
    with pytest.raises(DomainError):
        call()
