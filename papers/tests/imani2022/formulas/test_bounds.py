import math

import numpy as np
import pytest
import torch

from tests.reference import convergence as reference
from tests.theory.linear_problems import F64, KINDS, problem, projected, spectrum, top
from theodolite.errors import DomainError
from theodolite.theory import convergence
from theodolite.theory.convergence import first_step
from theodolite_papers.imani2022.formulas import bounds, processes, trajectories
from theodolite_papers.imani2022.formulas.bounds import bounds_by_threshold

PROBLEMS, DIRECTIONS = 10_000, 6


@pytest.fixture(scope="module")
def crowd():
    """Ten thousand random problems in the domain of Proposition 2, all at once."""
    generator = torch.Generator().manual_seed(7)

    def uniform(*shape):
        return torch.rand(*shape, dtype=F64, generator=generator)

    sigma = (10 ** (2 * uniform(PROBLEMS, DIRECTIONS) - 1)).sort(-1, descending=True).values
    mass = torch.randn(PROBLEMS, DIRECTIONS, dtype=F64, generator=generator).square()
    eta = (0.01 + 0.99 * uniform(PROBLEMS)) / sigma[:, 0].square()
    # Half of the thresholds are singular values themselves, half lie anywhere below sigma_1.
    chosen = sigma.gather(1, (uniform(PROBLEMS, 1) * DIRECTIONS).long()).squeeze(1)
    tau = torch.where(uniform(PROBLEMS) < 0.5, chosen, uniform(PROBLEMS) * sigma[:, 0])
    delta = torch.where(sigma >= tau[:, None], mass, torch.zeros_like(mass)).sum(1)
    omega = 0.999 * uniform(PROBLEMS) * delta
    rate = eta[:, None] * sigma.square()
    return sigma, mass, eta, tau, delta, omega, first_step(rate, mass, omega)


def literal_reduction(sigma, mass, eta, steps):
    q = 1 - eta[:, None] * sigma**2
    return (mass * (1 - q ** (2 * steps[:, None]))).sum(1)


def test_counts_are_the_first_to_reach_the_goal(crowd):
    sigma, mass, eta, _, _, omega, exact = (part.numpy() for part in crowd)
    reached = literal_reduction(sigma, mass, eta, exact)
    before = literal_reduction(sigma, mass, eta, np.maximum(exact - 1, 0))
    assert (reached >= omega * (1 - 1e-12)).all()
    assert ((before < omega * (1 + 1e-12)) | (exact == 0)).all()
    assert exact.max() > 1000


@pytest.mark.spec("1.R34")
def test_paper_bound_holds_on_ten_thousand_problems(crowd):
    sigma, _, eta, tau, delta, omega, exact = crowd
    bound = bounds.iteration_bound(delta, omega, eta, tau, largest=sigma[:, 0])
    assert (exact <= bound.ceil()).all()


@pytest.mark.spec("1.R35")
def test_sharp_bound_holds_and_is_smaller(crowd):
    sigma, _, eta, tau, delta, omega, exact = crowd
    paper = bounds.iteration_bound(delta, omega, eta, tau, largest=sigma[:, 0])
    sharp = bounds.sharp_iteration_bound(delta, omega, eta, tau, largest=sigma[:, 0])
    assert (sharp <= paper).all()
    assert (exact <= sharp.ceil()).all()


@pytest.mark.spec("1.R36")
def test_best_threshold_bound_holds_on_ten_thousand_problems(crowd):
    sigma, mass, eta, tau, delta, omega, exact = crowd
    rate = eta[:, None] * sigma.square()
    best = bounds_by_threshold(rate, mass.cumsum(1), omega).amin(1)
    assert (exact <= best.ceil()).all()
    given = bounds.iteration_bound(delta, omega, eta, tau)
    assert (best <= given * (1 + 1e-12)).all()
    assert (best < 0.5 * given).any()


@pytest.mark.spec("1.R36")
def test_best_threshold_is_a_singular_value(crowd):
    sigma, mass, eta, tau, delta, omega, exact = crowd
    for index in range(0, PROBLEMS, 500):
        projections = spectrum(sigma[index], mass[index].sqrt())
        goal, step = omega[index].item(), eta[index].item()
        best, threshold = bounds.best_iteration_bound(projections, goal, step)
        given = bounds.iteration_bound(delta[index], goal, step, tau[index])
        assert best <= given * (1 + 1e-12)
        assert exact[index] <= math.ceil(best)
        assert threshold in sigma[index]


@pytest.mark.spec("1.R36")
def test_no_threshold_on_a_grid_beats_the_best(generator):
    projections = projected(*problem("full_rank", generator))
    sigma, mass = projections.singular_values, projections.mass.sum(1)
    eta, omega = 1 / top(projections) ** 2, 0.7 * mass.sum().item()
    best, _ = bounds.best_iteration_bound(projections, omega, eta)
    grid = []
    for tau in np.linspace(0.01, top(projections), 300):
        delta = reference.alignment(sigma.tolist(), mass.tolist(), tau)
        if delta > omega:
            grid.append(bounds.iteration_bound(delta, omega, eta, float(tau)).item())
    assert best.item() <= min(grid)
    assert best.item() == pytest.approx(min(grid), rel=0.05)


@pytest.mark.spec("1.R34")
@pytest.mark.parametrize("kind", KINDS)
def test_counts_and_bounds_against_simulation(kind, generator):
    features, targets = problem(kind, generator)
    projections = projected(features, targets)
    eta, mass = 0.9 / top(projections) ** 2, projections.mass.sum().item()
    tau = float(projections.singular_values[-1])
    for share in (0.0, 0.3, 0.9):
        goal = share * mass
        simulated = reference.steps_needed(features.numpy(), targets.numpy(), eta, goal, 4000)
        found = bounds.iteration_bounds(projections, goal, eta, tau)
        assert found.exact.item() == simulated
        assert found.exact <= found.sharp.ceil() <= found.paper.ceil()
        assert found.exact <= found.best.ceil() <= found.paper.ceil()


@pytest.mark.spec("1.R35")
@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_sharp_bound_is_attained_by_one_direction(rate):
    projections = spectrum([2.0], [3.0])
    found = bounds.iteration_bounds(projections, 8.7, rate / 4, 2.0)
    assert found.exact == found.sharp.ceil()


@pytest.mark.spec("1.R35")
@pytest.mark.parametrize(("reduction", "steps"), [(0.0, 0.0), (0.5, 1.0), (0.999, 1.0)])
def test_sharp_bound_where_one_step_solves(reduction, steps):
    found = bounds.iteration_bounds(spectrum([2.0], [1.0]), reduction, 0.25, 2.0)
    assert found.sharp.item() == steps == found.exact.item()
    assert found.sharp.ceil() <= found.paper.ceil()


@pytest.mark.spec("1.R37")
def test_nine_tenths_of_the_alignment():
    bound = bounds.iteration_bound(5.0, 4.5, 0.1, 0.3)
    assert bound.item() == pytest.approx(math.log(10) / (2 * 0.1 * 0.09), rel=1e-12)
    assert bounds.iteration_bound(5.0, 0.0, 0.1, 0.3).item() == 0.0


@pytest.mark.spec("1.R38")
def test_counter_example_outside_the_domain_is_refused():
    features, targets = torch.diag(torch.tensor([1.0, 0.7])).double(), torch.eye(2, 1).double()
    projections = projected(features, targets)
    simulated = reference.steps_needed(features.numpy(), targets.numpy(), 1.95, 0.9, 100)
    assert simulated == 23 == convergence.steps_to_reduce(projections, 0.9, 1.95).item()
    printed = -math.log(1 - 0.9) / (2 * 1.95 * 0.7**2)
    assert math.ceil(printed) == 2
    for refused in (
        lambda: bounds.iteration_bounds(projections, 0.9, 1.95, 0.7),
        lambda: bounds.best_iteration_bound(projections, 0.9, 1.95),
        lambda: bounds.iteration_bound(1.0, 0.9, 1.95, 0.7, largest=1.0),
        lambda: bounds.sharp_iteration_bound(1.0, 0.9, 1.95, 0.7, largest=1.0),
    ):
        with pytest.raises(DomainError, match="at most 1"):
            refused()


@pytest.mark.spec("1.R39")
@pytest.mark.parametrize("steps", [1, 5, 60])
def test_reduction_is_an_integral_of_the_alignment_curve(steps, generator):
    projections = projected(*problem("full_rank", generator))
    sigma, mass = projections.singular_values.tolist(), projections.mass.sum(1).tolist()
    eta = 0.9 / sigma[0] ** 2
    # The curve is constant up to and including each singular value: on this grid the sum is exact.
    grid = np.array([0.0, *sorted(sigma)])
    weight = 1 - (1 - eta * grid**2) ** (2 * steps)
    heights = [reference.alignment(sigma, mass, tau) for tau in grid[1:]]
    integral = float(np.sum(np.array(heights) * np.diff(weight)))
    found = trajectories.gradient_descent_reduction(projections, eta, steps).item()
    assert integral == pytest.approx(found, rel=1e-9)


def raised_values(sigma, mass, generator):
    """Every direction moves to a larger singular value, its mass with it."""
    raised = sigma + torch.rand(5, dtype=F64, generator=generator) * (1 - sigma)
    order = raised.argsort(descending=True)
    return raised[order], mass[order]


def promoted_mass(sigma, mass, generator):
    """A share of every direction's mass moves to the next larger singular value."""
    moved = mass * torch.rand(5, dtype=F64, generator=generator)
    moved[0] = 0
    return sigma, mass - moved + torch.cat([moved[1:], moved[:1]])


@pytest.mark.spec("1.R39")
@pytest.mark.parametrize("raise_curve", [raised_values, promoted_mass])
@pytest.mark.parametrize("seed", range(20))
def test_higher_curve_means_lower_loss_and_smaller_weights(raise_curve, seed):
    generator = torch.Generator().manual_seed(seed)
    mass = torch.rand(5, dtype=F64, generator=generator)
    sigma = torch.rand(5, dtype=F64, generator=generator).sort(descending=True).values
    better, more = raise_curve(sigma, mass, generator)
    for tau in np.linspace(0.001, 1, 100):
        above = reference.alignment(better.tolist(), more.tolist(), tau)
        assert above >= reference.alignment(sigma.tolist(), mass.tolist(), tau) - 1e-12
    ahead, behind = spectrum(better, more.sqrt()), spectrum(sigma, mass.sqrt())
    steps = torch.tensor([1, 3, 10, 100, 10_000])
    lower = convergence.gradient_descent_loss(ahead, 1.0, steps)
    higher = convergence.gradient_descent_loss(behind, 1.0, steps)
    assert (lower <= higher).all()
    assert lower[0] < higher[0]
    assert processes.process_goals(ahead).norm() < processes.process_goals(behind).norm()


def test_counts_from_another_start(generator):
    features, targets = problem("full_rank", generator)
    weights = torch.randn(4, 2, dtype=F64, generator=generator)
    projections, start = trajectories.project_start(features, targets, weights)
    eta = 0.5 / top(projections) ** 2
    reductions = trajectories.gradient_descent_reduction(
        projections, eta, torch.arange(1, 8), start=start
    )
    left = projected(features, targets - features @ weights)
    counts = convergence.steps_to_reduce(left, reductions, eta)
    assert counts.tolist() == list(range(1, 8))


def test_counts_of_goals_that_are_reductions_themselves():
    """A goal computed elsewhere may be off by rounding; the count is still that of its step."""
    sigma, mass = np.array([0.9, 0.5, 0.2]), np.array([0.1, 0.2, 0.7])
    steps = np.arange(1, 150)  # later, steps differ by less than rounding
    goals = [float((mass * (1 - (1 - sigma**2) ** (2 * t))).sum()) for t in steps]
    projections = spectrum(sigma, np.sqrt(mass))
    counts = convergence.steps_to_reduce(projections, torch.tensor(goals, dtype=F64), 1.0)
    assert counts.tolist() == steps.tolist()


def test_counts_near_the_whole_mass_and_beyond():
    projections = spectrum([1.0, 1e-6], [1.0, 1e-3], residual=2.0)
    whole = 1.0 + 1e-6
    goals = torch.tensor([1.0 - 1e-12, 1.0 + 0.5e-6, whole, 2.0], dtype=F64)
    counts = convergence.steps_to_reduce(projections, goals, 0.5)
    slow = math.log(0.5) / (2 * math.log1p(-0.5e-12))
    assert counts[0] < 50
    assert counts[1].item() == pytest.approx(slow, rel=1e-3)
    assert counts[3] == math.inf
    one_step = convergence.steps_to_reduce(spectrum([1.0], [1.0]), 1.0, 1.0)
    assert one_step.item() == 1
    assert convergence.steps_to_reduce(spectrum([1.0], [1.0]), 1.0, 0.5).item() == math.inf


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((1.0, 1.0, 0.1, 0.5), "lower the threshold"),
        ((1.0, -0.1, 0.1, 0.5), "at least 0"),
        ((0.0, 0.0, 0.1, 0.5), "alignment"),
        ((1.0, 0.5, 0.0, 0.5), "step_size"),
        ((1.0, 0.5, 0.1, 0.0), "threshold"),
        ((1.0, 0.5, 5.0, 0.5), "at most 1"),
        ((1.0, 0.5, float("nan"), 0.5), "finite"),
    ],
    ids=["unreachable", "negative", "no mass", "no step", "no threshold", "long step", "nan"],
)
@pytest.mark.parametrize("bound", [bounds.iteration_bound, bounds.sharp_iteration_bound])
def test_bounds_refuse_what_lies_outside_their_domain(bound, arguments, word):
    with pytest.raises(DomainError, match=word):
        bound(*arguments)


def test_refusal_names_a_threshold_that_would_do():
    projections = spectrum([2.0, 1.0], [1.0, 1.0])
    with pytest.raises(DomainError, match="a threshold of 1 would do"):
        bounds.iteration_bounds(projections, 1.5, 0.1, 2.0)
    with pytest.raises(DomainError, match="no number of steps"):
        bounds.best_iteration_bound(projections, 2.0, 0.1)
    with pytest.raises(DomainError, match="at most sigma_1"):
        bounds.iteration_bound(1.0, 0.5, 0.1, 1.5, largest=1.0)
    with pytest.raises(DomainError, match="diverges"):
        convergence.steps_to_reduce(projections, 0.5, 0.5)
