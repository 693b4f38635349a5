"""Loss and number of steps of gradient descent on a linear probe."""

import numpy as np
import pytest
import torch

from tests.reference import convergence as reference
from tests.theory.linear_problems import F64, problem, projected, spectrum, top
from tests.tolerances import assert_close
from theodolite.errors import DomainError
from theodolite.linalg import projections_from_gram
from theodolite.measures.representation import label_projections
from theodolite.theory import convergence

STEPS = [0, 1, 2, 7, 40]


@pytest.mark.spec("1.R30")
def test_loss_grows_beyond_the_stable_step(generator):
    projections = projected(*problem("full_rank", generator))
    eta = 2.1 / top(projections) ** 2
    losses = convergence.gradient_descent_loss(projections, eta, torch.arange(40, 60))
    assert (losses.diff() > 0).all()
    assert convergence.diverges(projections, eta)
    assert not convergence.diverges(projections, 1.9 / top(projections) ** 2)


@pytest.mark.spec("1.R32")
@pytest.mark.parametrize("loss", ["half_sum", "sum", "half_mean", "mean"])
def test_step_size_of_each_loss_agrees_with_autograd(loss, generator):
    features, targets = problem("full_rank", generator, outputs=1)
    squares = {
        "half_sum": lambda e: e.square().sum() / 2,
        "sum": lambda e: e.square().sum(),
        "half_mean": lambda e: e.square().mean() / 2,
        "mean": lambda e: e.square().mean(),
    }[loss]
    weights = torch.zeros(4, 1, dtype=F64, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        squares(features @ weights - targets).backward()
        optimizer.step()
    eta = convergence.convert_step_size(0.01, loss, count=len(features))
    projections = projected(features, targets)
    expected = (features @ weights - targets).square().sum()
    assert_close(convergence.gradient_descent_loss(projections, eta, 5), expected.item(), scale=10)


@pytest.mark.spec("1.R32")
def test_step_size_of_the_loss_of_torch(generator):
    features, targets = problem("full_rank", generator, outputs=3)
    weights = torch.zeros(4, 3, dtype=F64, requires_grad=True)
    for _ in range(5):
        loss = torch.nn.functional.mse_loss(features @ weights, targets)
        (gradient,) = torch.autograd.grad(loss, weights)
        weights.data -= 0.02 * gradient
    eta = convergence.convert_step_size(0.02, "mean", count=targets.numel())
    expected = (features @ weights - targets).square().sum().item()
    found = convergence.gradient_descent_loss(projected(features, targets), eta, 5)
    assert_close(found, expected, scale=expected)


def test_gram_route_gives_lost_directions_to_the_residual():
    features = torch.diag(torch.tensor([1.0, 1e-10], dtype=F64))
    targets = torch.ones(2, 1, dtype=F64)
    projections = projections_from_gram(
        features.T @ features, features.T @ targets, targets.square().sum(0), 2
    )
    assert len(projections.singular_values) == 1
    assert projections.residual.item() == pytest.approx(1.0)


def test_numpy_in_numpy_out(generator):
    features, targets = problem("full_rank", generator)
    projections = projected(features.numpy(), targets.numpy())
    assert isinstance(projections.singular_values, np.ndarray)
    found = convergence.gradient_descent_loss(projections, 0.01, np.array([0, 3]))
    assert isinstance(found, np.ndarray)
    expected = convergence.gradient_descent_loss(
        projected(features, targets), 0.01, torch.tensor([0, 3])
    )
    assert_close(found, expected)


def test_single_precision_in_single_precision_out(generator):
    features, targets = problem("full_rank", generator)
    single = projected(features.float(), targets.float())
    found = convergence.gradient_descent_loss(single, 0.01, torch.arange(5))
    assert found.dtype == torch.float32
    expected = convergence.gradient_descent_loss(
        projected(features, targets), 0.01, torch.arange(5)
    )
    assert_close(found, expected, scale=expected[0].item(), dtype=torch.float32)


@pytest.mark.parametrize(
    ("step_size", "steps"),
    [(0.0, 1), (-1.0, 1), (float("nan"), 1), (float("inf"), 1), (0.5, -1)],
    ids=["zero", "negative", "nan", "infinite", "backwards"],
)
def test_malformed_numbers_are_refused(step_size, steps):
    with pytest.raises(DomainError):
        convergence.gradient_descent_loss(spectrum([1.0], [1.0]), step_size, steps)


def test_fractional_steps_are_refused_where_errors_alternate():
    with pytest.raises(DomainError, match="whole numbers"):
        convergence.gradient_descent_loss(spectrum([1.0], [1.0]), 1.5, torch.tensor([0.5]))


@pytest.mark.parametrize("route", ["svd", "gram", "dual", "qr"])
def test_measured_projections_feed_the_theory(route, generator):
    features, targets = problem("square", generator)
    measured = label_projections(features, targets, route=route)
    eta = 0.9 / top(measured) ** 2
    path = reference.descend(features.numpy(), targets.numpy(), eta, 25)
    expected = reference.squared_loss(features.numpy(), targets.numpy(), path[25])
    found = convergence.gradient_descent_loss(measured, eta, 25)
    assert_close(found, expected, scale=10 * targets.square().sum().item())


@pytest.mark.spec("1.R29")
@pytest.mark.parametrize("rate", [0.3, 1.0, 1.7])
def test_loss_equals_simulation(rate, generator):
    features, targets = problem("full_rank", generator)
    projections = projected(features, targets)
    step_size = rate / top(projections) ** 2
    weights = torch.zeros(features.shape[1], targets.shape[1], dtype=F64)
    simulated = []
    for _ in range(max(STEPS) + 1):
        simulated.append((features @ weights - targets).square().sum())
        weights = weights - step_size * features.T @ (features @ weights - targets)
    losses = convergence.gradient_descent_loss(projections, step_size, torch.tensor(STEPS))
    assert_close(losses, torch.stack(simulated)[STEPS], scale=float(simulated[0]))


def test_steps_to_reduce_is_the_first_step_that_reaches_the_goal(generator):
    projections = projected(*problem("full_rank", generator))
    step_size = 0.5 / top(projections) ** 2
    losses = convergence.gradient_descent_loss(projections, step_size, torch.arange(200))
    dropped = losses[0] - losses
    for goal in (0.0, 0.9 * dropped[2].item(), dropped[5].item()):
        steps = int(convergence.steps_to_reduce(projections, goal, step_size))
        assert steps == int((dropped >= goal * (1 - 1e-12)).nonzero()[0])
    beyond = projections.coefficients.square().sum().item() * 1.01
    assert convergence.steps_to_reduce(projections, beyond, step_size).isinf()


def test_a_start_at_the_solution_has_nothing_to_reduce(generator):
    features, targets = problem("full_rank", generator)
    solution = torch.linalg.lstsq(features, targets).solution
    left = projected(features, targets - features @ solution)
    loss = convergence.gradient_descent_loss(left, 0.1, 0)
    expected = projected(features, targets).residual.sum()
    assert_close(loss, expected, scale=float(targets.square().sum()))
