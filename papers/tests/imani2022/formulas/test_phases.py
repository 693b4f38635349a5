import math

import numpy as np
import pytest
import torch

from tests.reference import convergence as reference
from tests.theory.linear_problems import F64, KINDS, problem, projected, spectrum, top
from tests.tolerances import assert_close
from theodolite.errors import DomainError
from theodolite.theory import convergence
from theodolite_papers.imani2022.formulas import processes, trajectories


@pytest.mark.spec("1.R40")
@pytest.mark.parametrize("kind", KINDS)
def test_phases_add_up(kind, generator):
    projections = projected(*problem(kind, generator))
    sigma, eta = projections.singular_values, 0.9 / top(projections) ** 2
    threshold, steps = float(sigma[len(sigma) // 2]), torch.tensor([0, 1, 5, 50, 1000])
    split = trajectories.phases(projections, eta, steps, threshold)
    whole = convergence.gradient_descent_loss(projections, eta, steps)
    assert_close(split.fast_loss + split.slow_loss + split.floor, whole)
    norms = split.fast_weight_norm.square() + split.slow_weight_norm.square()
    assert_close(
        norms.sqrt(), trajectories.gradient_descent_weight_norm(projections, eta, steps), scale=10
    )
    share = reference.alignment(sigma.tolist(), projections.mass.sum(1).tolist(), threshold)
    assert_close(split.fast_share, share)
    assert_close(split.fast_loss[0], share)
    assert_close(split.slow_share, projections.mass.sum() - share)
    assert (split.fast_weight_norm <= math.sqrt(share) / threshold * (1 + 1e-12)).all()


@pytest.mark.spec("1.R40")
@pytest.mark.parametrize(("p", "left"), [(0.95, 0.048), (0.5, 0.449)])
def test_end_of_the_fast_phase_in_the_two_process_example(p, left):
    projections = spectrum([6.0, 1.0], [math.sqrt(p), math.sqrt(1 - p)])
    eta = 0.5 / 36
    split = trajectories.phases(projections, eta, 0, threshold=2.0, remaining=0.01)
    assert split.fast_end.item() == 4
    loss = convergence.gradient_descent_loss(projections, eta, int(split.fast_end))
    assert loss.item() == pytest.approx(left, abs=5e-4)


@pytest.mark.parametrize("remaining", [0.5, 0.05, 1e-6])
def test_end_of_the_fast_phase_is_the_first_such_step(remaining, generator):
    projections = projected(*problem("square", generator))
    eta, threshold = 0.7 / top(projections) ** 2, float(projections.singular_values[2])
    steps = torch.arange(5000)
    split = trajectories.phases(projections, eta, steps, threshold, remaining)
    first = int((split.fast_loss <= remaining * split.fast_share).nonzero()[0])
    assert split.fast_end.item() == first


def test_no_fast_process_has_no_fast_phase():
    split = trajectories.phases(spectrum([1.0], [1.0]), 0.5, 3, threshold=2.0)
    assert split.fast_end.item() == split.fast_share.item() == split.fast_loss.item() == 0


@pytest.mark.spec("1.R41")
def test_large_singular_values_are_fast_and_near():
    sigma = torch.linspace(0.05, 1.0, 30, dtype=F64)
    steps = processes.process_steps(sigma, 1.0, 0.01)
    assert (steps.diff() < 0)[:-1].all()
    special = torch.tensor([0.0, 1.0, 2.0**0.5, 2.0], dtype=F64)
    assert processes.process_steps(special, 1.0).tolist()[1] == 1
    assert processes.process_steps(special, 1.0)[[0, 3]].tolist() == [math.inf, math.inf]
    projections = spectrum([2.0, 0.5], [1.0, -1.0])
    assert processes.process_goals(projections).flatten().tolist() == [0.5, -2.0]


@pytest.mark.spec("1.R41")
@pytest.mark.parametrize("sigma", [0.1, 0.8, 1.2])
def test_process_time_leaves_the_share(sigma):
    steps = processes.process_steps(torch.tensor([sigma], dtype=F64), 1.0, 0.05).item()
    assert abs(1 - sigma**2) ** (2 * steps) == pytest.approx(0.05)


@pytest.mark.spec("1.R42")
def test_alignment_curve_foretells_one_crossing():
    sigma = [115.0, 70.0, 30.0]
    first = spectrum(sigma, [0.0, 1.0, 0.0])
    second = spectrum(sigma, [math.sqrt(0.9), 0.0, math.sqrt(0.1)])
    masses = second.mass.flatten().tolist()
    heights = [reference.alignment(sigma, masses, tau) for tau in (29.9, 30.1, 114.9, 115.1)]
    assert_close(heights, [1.0, 0.9, 0.9, 0.0])
    steps = torch.arange(1, 200)
    eta = 0.5 / 115**2
    gap = convergence.gradient_descent_loss(second, eta, steps) - convergence.gradient_descent_loss(
        first, eta, steps
    )
    signs = torch.sign(gap[gap.abs() > 1e-12])
    assert signs[0] == -1
    assert signs[-1] == 1
    assert int((signs.diff() != 0).sum()) == 1


@pytest.mark.spec("1.R43")
def test_flat_spectrum_is_solved_in_one_step(generator):
    basis, _ = torch.linalg.qr(torch.randn(9, 4, dtype=F64, generator=generator))
    targets = torch.randn(9, 1, dtype=F64, generator=generator)
    projections = projected(basis, targets)
    loss = convergence.gradient_descent_loss(projections, 1.0, torch.tensor([1, 2]))
    assert_close(loss, [projections.residual.item()] * 2)


@pytest.mark.spec("1.R44")
@pytest.mark.parametrize("kind", ["full_rank", "square"])
def test_ridge_curve_solves_the_normal_equations(kind, generator):
    features, targets = problem(kind, generator)
    projections = projected(features, targets)
    ridges = [0.0, 1e-3, 0.1, 1.0, 100.0]
    curve = processes.ridge_curve(projections, torch.tensor(ridges, dtype=F64))
    x, y = features.numpy(), targets.numpy()
    solutions = [reference.ridge_solution(x, y, ridge) for ridge in ridges]
    residuals = [reference.squared_loss(x, y, w) for w in solutions]
    norms = [np.linalg.norm(w) for w in solutions]
    assert_close(curve.weight_norm, norms, scale=max(norms))
    # Squares: the root of a loss of 1e-16, which should be zero, has half the digits.
    assert_close(curve.residual_norm.square(), residuals, scale=residuals[-1])


@pytest.mark.spec("1.R44")
def test_ridge_curve_is_monotone_and_starts_at_the_picard_ratios(generator):
    projections = projected(*problem("rank_deficient", generator))
    curve = processes.ridge_curve(projections, torch.logspace(-8, 4, 100, dtype=F64))
    assert (curve.residual_norm.diff() >= 0).all()
    assert (curve.weight_norm.diff() <= 0).all()
    least = processes.ridge_curve(projections, torch.zeros(1, dtype=F64))
    ratios = projections.coefficients.abs() / projections.singular_values[:, None]
    assert_close(processes.process_goals(projections).abs(), ratios)
    assert_close(least.weight_norm, ratios.norm().reshape(1))


@pytest.mark.parametrize("kind", KINDS)
def test_weight_norm_after_a_reduction_equals_simulation(kind, generator):
    features, targets = problem(kind, generator)
    projections = projected(features, targets)
    eta = 0.9 / top(projections) ** 2
    mass = projections.mass.sum().item()
    goals = torch.tensor([0.0, 0.2, 0.5, 0.9], dtype=F64) * mass
    x, y = features.numpy(), targets.numpy()
    counts = [reference.steps_needed(x, y, eta, goal, 5000) for goal in goals.tolist()]
    path = reference.descend(x, y, eta, max(counts))
    found = trajectories.weight_norm_after(projections, goals, eta)
    assert_close(found, [np.linalg.norm(path[t]) for t in counts])


def test_weight_norm_after_an_unreachable_reduction_is_undefined():
    found = trajectories.weight_norm_after(spectrum([1.0], [1.0], residual=5.0), 2.0, 0.5)
    assert found.isnan()


@pytest.mark.parametrize(
    "call",
    [
        lambda p: trajectories.phases(p, 0.5, 3, threshold=0.0),
        lambda p: trajectories.phases(p, 0.5, 3, threshold=1.0, remaining=1.0),
        lambda p: trajectories.phases(p, 3.0, 3, threshold=1.0),
        lambda p: processes.process_steps(torch.tensor([-1.0]), 0.5),
        lambda p: processes.ridge_curve(p, torch.tensor([-1.0])),
        lambda p: trajectories.weight_norm_after(p, -1.0, 0.5),
    ],
    ids=["threshold", "remaining", "divergent", "sigma", "ridge", "reduction"],
)
def test_malformed_numbers_are_refused(call):
    with pytest.raises(DomainError):
        call(spectrum([1.0], [1.0]))
