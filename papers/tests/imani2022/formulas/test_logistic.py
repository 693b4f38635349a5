import math

import pytest
import torch

from tests.reference import convergence as reference
from tests.theory.linear_problems import F64
from tests.tolerances import assert_close
from theodolite.errors import DomainError
from theodolite_papers.imani2022.formulas import logistic


@pytest.fixture
def task(generator):
    features = torch.randn(12, 5, dtype=F64, generator=generator)
    labels = torch.randn(12, dtype=F64, generator=generator).sign()
    return features, labels


@pytest.mark.spec("1.R45")
@pytest.mark.parametrize("scale", [0.0, 0.3, 10.0])
def test_loss_equals_arbitrary_precision(scale, task, generator):
    features, labels = task
    weights = scale * torch.randn(5, dtype=F64, generator=generator)
    expected = reference.logistic_loss(features.numpy(), labels.numpy(), weights.numpy())
    found = logistic.logistic_loss(features, labels, weights)
    assert found.item() == pytest.approx(expected, rel=1e-12)
    if scale == 0:
        assert found.item() == pytest.approx(len(labels))


@pytest.mark.spec("1.R45")
def test_gradient_equals_finite_differences(task, generator):
    features, labels = task
    weights = torch.randn(5, dtype=F64, generator=generator)
    step = 1e-6
    expected = [
        (
            logistic.logistic_loss(features, labels, weights + step * axis)
            - logistic.logistic_loss(features, labels, weights - step * axis)
        ).item()
        / (2 * step)
        for axis in torch.eye(5, dtype=F64)
    ]
    found = logistic.logistic_gradient(features, labels, weights)
    assert found.tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.spec("1.R45")
def test_loss_is_at_least_the_number_of_errors(task, generator):
    features, labels = task
    for _ in range(20):
        weights = torch.randn(5, dtype=F64, generator=generator)
        errors = logistic.logistic_error(features, labels, weights) * len(labels)
        assert logistic.logistic_loss(features, labels, weights) >= errors
    assert logistic.logistic_error(features, labels, torch.zeros(5, dtype=F64)).item() == 1


@pytest.mark.spec("1.R45")
def test_first_step_has_the_direction_of_the_squared_loss(task):
    features, labels = task
    run = logistic.logistic_descent(features, labels, 0.01, steps=1)
    assert_close(run.weights, logistic.logistic_first_step(features, labels, 0.01))
    assert_close(run.weights, 0.01 / (2 * math.log(2)) * features.T @ labels)
    targets, eta = logistic.squared_loss_equivalent(labels, 0.01)
    assert_close(run.weights, eta * features.T @ targets)


@pytest.mark.spec("1.R45")
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_loss_falls_up_to_the_step_limit(share, task):
    features, labels = task
    limit = logistic.logistic_step_limit(features).item()
    assert limit == pytest.approx(4 * math.log(2) / torch.linalg.norm(features, 2).item() ** 2)
    run = logistic.logistic_descent(features, labels, share * limit, steps=300)
    assert (run.losses.diff() <= 1e-12).all()
    assert run.losses[0].item() == pytest.approx(12)
    assert run.weight_norms[0].item() == 0
    assert run.errors[0].item() == 1  # zero margins are errors


@pytest.mark.spec("1.R45")
def test_early_steps_follow_the_squared_loss_to_third_order(task):
    features, labels = task

    def deviation(step_size):
        targets, eta = logistic.squared_loss_equivalent(labels, step_size)
        squared = reference.descend(features.numpy(), targets.numpy()[:, None], eta, 10)[10]
        weights = logistic.logistic_descent(features, labels, step_size, steps=10).weights
        return (weights - torch.from_numpy(squared[:, 0])).norm().item()

    small, large = deviation(1e-4), deviation(2e-4)
    assert 0 < small < 1e-6
    assert large / small == pytest.approx(16, rel=0.05)  # cubic gradient error, times the step


@pytest.mark.spec("1.R45")
def test_huge_margins_stay_finite():
    features = torch.tensor([[1e6], [-1e6]], dtype=F64)
    weights = torch.ones(1, dtype=F64)
    labels = torch.ones(2, dtype=F64)
    assert logistic.logistic_loss(features, labels, weights).item() == pytest.approx(
        1e6 / math.log(2)
    )
    gradient = logistic.logistic_gradient(features, labels, weights)
    assert gradient.item() == pytest.approx(1e6 / math.log(2))


def test_separable_data_drives_the_loss_to_zero():
    features, labels = torch.eye(2, dtype=F64), torch.tensor([1.0, -1.0], dtype=F64)
    run = logistic.logistic_descent(features, labels, 2.0, steps=500)
    assert run.losses[-1] < 0.01
    assert (run.weight_norms.diff() > 0).all()
    assert run.errors[-1] == 0


def test_zero_features_allow_any_step():
    assert logistic.logistic_step_limit(torch.zeros(3, 2)).item() == math.inf


def test_other_labels_are_refused(task):
    features, _ = task
    with pytest.raises(DomainError, match="-1 or \\+1"):
        logistic.logistic_first_step(features, torch.zeros(12, dtype=F64), 0.1)
