"""What the theory of convergence says about bad input."""

import numpy as np
import pytest
import torch

from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.linalg import LabelProjections
from theodolite.theory import convergence
from theodolite_papers.imani2022.formulas import bounds, logistic, processes, trajectories

P = LabelProjections(torch.tensor([2.0, 1.0]), torch.ones(2, 1), torch.zeros(1), 3)
X, Y, W = torch.ones(3, 2), torch.tensor([1.0, -1.0, 1.0]), torch.zeros(2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: trajectories.project_start(X, Y[:, None], torch.ones(3, 1)),
            ShapeError,
            r"weights: expected one row per feature.*\(2, 1\), got \(3, 1\)",
        ),
        (
            lambda: trajectories.project_start(X, Y[:2, None], torch.ones(2, 1)),
            ShapeError,
            "features has 3, targets has 2",
        ),
        *(
            (call, DtypeError, r"projections: expected .*[lL]abel_?[pP]rojections.*, got Tensor")
            for call in (
                lambda: convergence.gradient_descent_loss(X, 0.1, 1),
                lambda: trajectories.gradient_descent_weight_norm(X, 0.1, 1),
                lambda: convergence.steps_to_reduce(X, 0.1, 0.1),
                lambda: bounds.iteration_bounds(X, 0.1, 0.1, 1.0),
                lambda: bounds.best_iteration_bound(X, 0.1, 0.1),
                lambda: trajectories.phases(X, 0.1, 1, 1.0),
                lambda: processes.process_goals(X),
                lambda: processes.loss_gradient(X, W),
                lambda: processes.ridge_curve(X, Y.abs()),
            )
        ),
        (
            lambda: convergence.gradient_descent_loss(P, 0, 1),
            DomainError,
            r"step_size: expected a number in \(0.0, inf\), got 0",
        ),
        (
            lambda: convergence.gradient_descent_loss(P, 0.1, torch.tensor([1, -2])),
            DomainError,
            "steps: expected finite numbers of at least 0",
        ),
        (
            lambda: convergence.gradient_descent_loss(P, 0.4, 1.5),
            DomainError,
            "whole numbers where step_size .* round them",
        ),
        (
            lambda: convergence.gradient_descent_loss(P, 0.1, np.array([1])),
            DtypeError,
            "all NumPy arrays or all tensors, got both",
        ),
        (
            lambda: convergence.convert_step_size(0.1, "max", 3),
            DomainError,
            "loss: expected one of 'half_sum', 'sum', 'half_mean', 'mean', got 'max'",
        ),
        (
            lambda: bounds.iteration_bounds(P, 0.5, 0.4, 1.0),
            DomainError,
            r"at most 1, got 1\.6; the bound is false beyond it.*steps_to_reduce",
        ),
        (
            lambda: bounds.iteration_bounds(P, 1.5, 0.1, 2.0),
            DomainError,
            "less than the alignment 1 at threshold 2.0, got 1.5; a threshold of 1 would do",
        ),
        (
            lambda: bounds.best_iteration_bound(P, 2.0, 0.1),
            DomainError,
            r"reduction: expected a number in \[0, 2\).*no number of steps removes more",
        ),
        (
            lambda: convergence.steps_to_reduce(P, 0.5, 0.5),
            DomainError,
            r"step_size: expected less than 2 / sigma_1\^2 = 0.5, got 0.5",
        ),
        (
            lambda: processes.loss_processes(P, torch.ones(3, 1)),
            ShapeError,
            r"coefficients is \(2, 1\), coordinates is \(3, 1\)",
        ),
        (
            lambda: processes.ridge_curve(P, torch.tensor([1.0, -1.0])),
            DomainError,
            r"ridges: expected numbers of at least 0, got -1.0 at index \(1,\)",
        ),
        (
            lambda: logistic.logistic_loss(X, Y * 2, W),
            DomainError,
            r"labels: expected -1 or \+1, got 2.0; map two classes",
        ),
        (
            lambda: logistic.logistic_gradient(X, Y, torch.zeros(3)),
            ShapeError,
            r"weights: expected one number per feature, \(2,\), got \(3,\)",
        ),
    ],
)
def test_message_says_what_was_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()
