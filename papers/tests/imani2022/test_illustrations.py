"""Small examples whose alignment is known by hand."""

from math import exp, sqrt

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.errors import DomainError
from theodolite.linalg import LabelProjections
from theodolite.measures.representation import (
    curve_from_projections,
    label_projections,
    representation_alignment,
)
from theodolite.theory.convergence import gradient_descent_loss
from theodolite_papers.imani2022._illustrations import (
    labels_along,
    singular_vector_labels,
    two_arcs,
)
from theodolite_papers.imani2022.formulas.processes import process_goals
from theodolite_papers.imani2022.formulas.trajectories import gradient_descent_weights, phases


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


def test_of_two_curves_the_higher_one_learns_faster(generator):
    """Figure 3: the same label mass on the largest singular values first, or on the smallest."""
    sigma = 10 * (1 - torch.arange(50, dtype=torch.float64) / 50)
    jitter = 0.9 + 0.2 * torch.rand(50, generator=generator, dtype=torch.float64)
    mass = (0.85 ** torch.arange(50, dtype=torch.float64) * jitter).sort(descending=True).values
    mass = mass / mass.sum()
    spectra = [
        LabelProjections(sigma, one.sqrt().unsqueeze(1), torch.zeros(1).double(), 50)
        for one in (mass, mass.flip(0))
    ]
    grid = torch.linspace(0, 11, 101, dtype=torch.float64)
    good, bad = (curve_from_projections(one, grid, scale="absolute").values for one in spectra)
    assert_close(good[0], bad[0])
    assert bool((good >= bad - 1e-9).all())
    assert (good - bad).max() > 0.5
    steps = torch.arange(2001)
    fast, slow = (gradient_descent_loss(one, 1 / 100, steps) for one in spectra)
    assert bool((fast <= slow + 1e-9).all())
    assert process_goals(spectra[0]).norm() < process_goals(spectra[1]).norm()


@pytest.mark.parametrize(("share", "left"), [(0.95, 0.048), (0.5, 0.449)])
def test_a_fast_process_ends_with_its_share_of_the_loss(share, left):
    """Figure 8: singular values 6 and 1; the slow weight has hardly moved then."""
    features = torch.diag(torch.tensor([6.0, 1.0], dtype=torch.float64))
    targets = torch.tensor([sqrt(share), sqrt(1 - share)], dtype=torch.float64)
    found, step = label_projections(features, targets), 0.5 / 36
    end = int(phases(found, step, 0, 2.0, 0.01).fast_end)
    assert end == 4
    assert abs(float(gradient_descent_loss(found, step, end)) - left) < 0.002
    weights = gradient_descent_weights(found, step, torch.tensor([end]))[0, :, 0]
    goals = process_goals(found)[:, 0]
    assert (goals[1] - weights[1]).abs() > goals[1].abs() / 2


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
    ],
)
def test_bad_requests_raise(call):
    with pytest.raises(DomainError):
        call()
