"""Weights, norms and single processes of gradient descent on a linear probe."""

import numpy as np
import pytest
import torch

from tests.reference import convergence as reference
from tests.theory.linear_problems import F64, KINDS, problem, projected, spectrum, top
from tests.tolerances import assert_close
from theodolite.linalg import (
    LabelProjections,
    gram_sums,
    projections_from_gram,
    thin_svd,
)
from theodolite.theory import convergence
from theodolite_papers.imani2022.formulas import processes, trajectories

STEPS = [0, 1, 2, 7, 40]


@pytest.mark.spec("1.R27")
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_split_by_direction(kind, generator):
    features, targets = problem(kind, generator)
    weights = torch.randn(features.shape[1], 2, dtype=F64, generator=generator)
    projections, start = trajectories.project_start(features, targets, weights)
    loss = reference.squared_loss(features.numpy(), targets.numpy(), weights.numpy())
    split = processes.loss_processes(projections, start.coordinates)
    assert split.total.item() == pytest.approx(loss, rel=1e-9)
    sigma, goals = projections.singular_values[:, None], processes.process_goals(projections)
    second = (sigma.square() * (start.coordinates - goals).square()).sum() + split.floor.sum()
    assert second.item() == pytest.approx(loss, rel=1e-9)
    right = thin_svd(features).right[:, : len(sigma)]
    gradient = 2 * features.T @ (features @ weights - targets)
    signs = ((right.T @ weights) * start.coordinates).sum(1, keepdim=True).sign()
    found = right @ (signs * processes.loss_gradient(projections, start.coordinates))
    assert_close(found, gradient, scale=gradient.abs().max().item())


@pytest.mark.spec("1.R28")
@pytest.mark.parametrize("kind", KINDS)
def test_goals_are_the_minimum_norm_solution(kind, generator):
    features, targets = problem(kind, generator)
    goals = processes.process_goals(projected(features, targets))
    best = np.linalg.pinv(features.numpy(), rcond=1e-12) @ targets.numpy()
    _, start = trajectories.project_start(features, targets, torch.from_numpy(best))
    assert_close(goals, start.coordinates, scale=np.abs(best).max())
    assert start.outside.max().item() < 1e-18
    assert goals.norm().item() == pytest.approx(np.linalg.norm(best), rel=1e-9)
    if kind == "full_rank":
        normal = reference.ridge_solution(features.numpy(), targets.numpy(), 0.0)
        assert_close(best, normal)


@pytest.mark.spec("1.R29")
@pytest.mark.parametrize("rate", [0.5, 0.99, 1.7])
@pytest.mark.parametrize("kind", KINDS)
def test_closed_forms_equal_simulation(kind, rate, generator):
    features, targets = problem(kind, generator)
    projections = projected(features, targets)
    eta = rate / top(projections) ** 2
    x, y = features.numpy(), targets.numpy()
    path = [reference.descend(x, y, eta, max(STEPS))[t] for t in STEPS]
    best = np.linalg.pinv(x, rcond=1e-12) @ y
    losses = [reference.squared_loss(x, y, w) for w in path]
    steps, first = torch.tensor(STEPS), losses[0]
    assert_close(convergence.gradient_descent_loss(projections, eta, steps), losses, scale=first)
    gaps = [np.square(x @ (w - best)).sum() for w in path]
    assert_close(trajectories.gradient_descent_gap(projections, eta, steps), gaps, scale=first)
    drops = [first - loss for loss in losses]
    assert_close(
        trajectories.gradient_descent_reduction(projections, eta, steps), drops, scale=first
    )
    norms = [np.linalg.norm(w) for w in path]
    assert_close(trajectories.gradient_descent_weight_norm(projections, eta, steps), norms)
    distances = [np.linalg.norm(w - best) for w in path]
    assert_close(trajectories.gradient_descent_weight_distance(projections, eta, steps), distances)


@pytest.mark.spec("1.R29")
@pytest.mark.parametrize("rate", [0.5, 1.7])
def test_weights_equal_simulation(rate, generator):
    features, targets = problem("rank_deficient", generator)
    projections = projected(features, targets)
    left, values, right = thin_svd(features)
    rank = len(projections.singular_values)
    signs = (left[:, :rank].T @ targets * projections.coefficients).sum(1, keepdim=True).sign()
    eta = rate / top(projections) ** 2
    found = trajectories.gradient_descent_weights(projections, eta, 7)
    path = reference.descend(features.numpy(), targets.numpy(), eta, 7)
    assert_close(right[:, :rank] @ (signs * found), path[7])
    assert len(values) > rank


@pytest.mark.spec("1.R30")
@pytest.mark.parametrize("rate", [0.5, 1.7, 2.3])
@pytest.mark.parametrize("kind", KINDS)
def test_any_starting_point(kind, rate, generator):
    features, targets = problem(kind, generator)
    weights = torch.randn(features.shape[1], 2, dtype=F64, generator=generator)
    projections, start = trajectories.project_start(features, targets, weights)
    eta = rate / top(projections) ** 2
    x, y = features.numpy(), targets.numpy()
    path = reference.descend(x, y, eta, 20, weights.numpy())
    steps = torch.tensor([0, 1, 5, 20])
    losses = np.array([reference.squared_loss(x, y, path[t]) for t in steps.tolist()])
    left = projected(features, targets - features @ weights)
    found = convergence.gradient_descent_loss(left, eta, steps)
    assert_close(found, losses, scale=losses.max())
    norms = np.array([np.linalg.norm(path[t]) for t in steps.tolist()])
    found = trajectories.gradient_descent_weight_norm(projections, eta, steps, start=start)
    assert_close(found, norms, scale=norms.max())
    drop = trajectories.gradient_descent_reduction(projections, eta, steps, start=start)
    assert_close(drop, losses[0] - losses, scale=losses.max())
    # The solution nearest the start: descending there takes too long along small directions.
    end = path[0] + np.linalg.lstsq(x, y - x @ path[0], rcond=1e-12)[0]
    distances = np.array([np.linalg.norm(path[t] - end) for t in steps.tolist()])
    found = trajectories.gradient_descent_weight_distance(projections, eta, steps, start=start)
    assert_close(found, distances, scale=distances.max())


def test_direction_without_mass_never_diverges():
    projections = spectrum([3.0, 1.0], [0.0, 1.0])
    steps = torch.tensor([5, 10**6])
    found = convergence.gradient_descent_loss(projections, 0.5, steps)
    assert_close(found, [0.5**10, 0.0])
    assert trajectories.gradient_descent_weight_norm(
        projections, 0.5, 10**6
    ).item() == pytest.approx(1.0)


@pytest.mark.spec("1.R31")
@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_monotone_and_limits_for_small_steps(kind, rate, generator):
    projections = projected(*problem(kind, generator))
    eta = rate / top(projections) ** 2 * (1 - 1e-15)
    steps = torch.arange(200)
    losses = convergence.gradient_descent_loss(projections, eta, steps)
    norms = trajectories.gradient_descent_weight_norm(projections, eta, steps)
    assert (losses.diff() <= 1e-12).all()
    assert (norms.diff() >= -1e-12).all()
    assert_close(
        convergence.gradient_descent_loss(projections, eta, 10**9), projections.residual.sum()
    )
    goal = processes.process_goals(projections).norm()
    assert_close(trajectories.gradient_descent_weight_norm(projections, eta, 10**9), goal)


@pytest.mark.spec("1.R33")
@pytest.mark.parametrize("rate", [0.5, 0.999, 1.7])
@pytest.mark.parametrize("steps", [0, 1, 3, 10**3, 10**6, 10**9])
def test_extreme_spectra_against_arbitrary_precision(steps, rate):
    sigmas = [10.0 ** (-k) for k in range(13)]
    coefficients = [(-1) ** k * (1 + k) / 7 for k in range(13)]
    projections = spectrum(sigmas, coefficients)
    expected = reference.precise_trajectory(sigmas, coefficients, rate, steps)
    found = [
        trajectories.gradient_descent_gap(projections, rate, steps),
        trajectories.gradient_descent_reduction(projections, rate, steps),
        trajectories.gradient_descent_weight_norm(projections, rate, steps),
        trajectories.gradient_descent_weight_distance(projections, rate, steps),
    ]
    np.testing.assert_allclose([float(value) for value in found], expected, rtol=1e-9)


@pytest.mark.spec("1.R33")
@pytest.mark.parametrize("power", range(13))
def test_every_single_direction_against_arbitrary_precision(power):
    sigma, steps = 10.0**-power, 10**9
    projections = spectrum([sigma], [0.3])
    expected = reference.precise_trajectory([sigma], [0.3], 0.7, steps)
    found = [
        trajectories.gradient_descent_gap(projections, 0.7, steps),
        trajectories.gradient_descent_reduction(projections, 0.7, steps),
        trajectories.gradient_descent_weight_norm(projections, 0.7, steps),
    ]
    np.testing.assert_allclose([float(value) for value in found], expected[:3], rtol=1e-9, atol=0)


@pytest.mark.spec("1.R57")
@pytest.mark.parametrize("affine", [(1.0, 0.0), (-2.5, 0.7)], ids=["plain", "relabelled"])
@pytest.mark.parametrize("kind", ["full_rank", "square"])
def test_gram_statistics_give_the_same_trajectories(kind, affine, generator):
    features, targets = problem(kind, generator)
    scale, offset = affine
    n, moved = len(features), scale * targets + offset
    gram, cross, energy = gram_sums(features, targets)
    cross = scale * cross + offset * features.sum(0).unsqueeze(1)
    energy = scale**2 * energy + 2 * scale * offset * targets.sum(0) + offset**2 * n
    from_gram = projections_from_gram(gram, cross, energy, n)
    direct = projected(features, moved)
    eta, steps = 0.8 / top(direct) ** 2, torch.tensor([0, 1, 10, 1000])
    whole = moved.square().sum().item()
    for function in (convergence.gradient_descent_loss, trajectories.gradient_descent_gap):
        assert_close(
            function(from_gram, eta, steps), function(direct, eta, steps), scale=10 * whole
        )
    norms = trajectories.gradient_descent_weight_norm(direct, eta, steps)
    found = trajectories.gradient_descent_weight_norm(from_gram, eta, steps)
    assert_close(found, norms, scale=10 * norms.max().item())
    assert from_gram.count == len(features)


@pytest.mark.spec("1.R57")
def test_gram_formulas_as_printed(generator):
    features, targets = problem("full_rank", generator, outputs=1)
    gram, cross = features.T @ features, features.T @ targets
    energy = targets.square().sum(0)
    projections = projections_from_gram(gram, cross, energy, len(features))
    values, vectors = np.linalg.eigh(gram.numpy())
    b = vectors.T @ cross.numpy().ravel()
    eta, t = 0.5 / values[-1], 9
    loss = energy.item() - sum((1 - (1 - eta * values) ** (2 * t)) * b**2 / values)
    norm = np.sqrt(sum(((1 - (1 - eta * values) ** t) / values) ** 2 * b**2))
    assert_close(convergence.gradient_descent_loss(projections, eta, t), loss)
    assert_close(trajectories.gradient_descent_weight_norm(projections, eta, t), norm)


def test_shape_follows_the_steps(generator):
    projections = projected(*problem("full_rank", generator))
    steps = torch.arange(6).reshape(2, 3)
    for function in (
        convergence.gradient_descent_loss,
        trajectories.gradient_descent_weight_norm,
        trajectories.gradient_descent_weight_distance,
        trajectories.gradient_descent_reduction,
    ):
        assert function(projections, 0.01, steps).shape == (2, 3)
        assert function(projections, 0.01, 3).shape == ()
    assert trajectories.gradient_descent_weights(projections, 0.01, steps).shape == (2, 3, 4, 2)


def test_fractional_steps_interpolate_where_errors_keep_their_sign():
    projections = spectrum([1.0, 0.5], [1.0, 1.0])
    found = trajectories.gradient_descent_gap(projections, 0.5, 1.5)
    assert found.item() == pytest.approx(0.5**3 + 0.875**3)


def test_features_without_any_direction():
    projections, start = trajectories.project_start(
        torch.zeros(3, 2), torch.ones(3, 1), torch.ones(2, 1)
    )
    assert isinstance(projections, LabelProjections)
    assert convergence.gradient_descent_loss(projections, 0.1, torch.tensor([0, 9])).tolist() == [
        3,
        3,
    ]
    norm = trajectories.gradient_descent_weight_norm(projections, 0.1, 4, start=start)
    assert norm.item() == pytest.approx(2**0.5)
