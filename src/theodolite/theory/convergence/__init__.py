"""Linear read-outs on fixed features: how gradient descent converges, in closed form.

Everything follows from ``label_projections(features, targets)``: singular values of the features
and the targets' coordinates on the left singular vectors.
"""

from theodolite.linalg import LabelProjections, projections_from_gram, projections_from_moments
from theodolite.theory.convergence._bounds import (
    IterationBounds,
    best_iteration_bound,
    iteration_bound,
    iteration_bounds,
    sharp_iteration_bound,
)
from theodolite.theory.convergence._logistic import (
    LogisticRun,
    logistic_descent,
    logistic_error,
    logistic_first_step,
    logistic_gradient,
    logistic_loss,
    logistic_step_limit,
    squared_loss_equivalent,
)
from theodolite.theory.convergence._setting import (
    LossProcesses,
    RidgeCurve,
    StartingPoint,
    convert_step_size,
    diverges,
    loss_gradient,
    loss_processes,
    process_goals,
    process_steps,
    project_start,
    ridge_curve,
)
from theodolite.theory.convergence._trajectories import (
    Phases,
    gradient_descent_gap,
    gradient_descent_loss,
    gradient_descent_reduction,
    gradient_descent_weight_distance,
    gradient_descent_weight_norm,
    gradient_descent_weights,
    phases,
    steps_to_reduce,
    weight_norm_after,
)

__all__ = [
    "IterationBounds",
    "LabelProjections",
    "LogisticRun",
    "LossProcesses",
    "Phases",
    "RidgeCurve",
    "StartingPoint",
    "best_iteration_bound",
    "convert_step_size",
    "diverges",
    "gradient_descent_gap",
    "gradient_descent_loss",
    "gradient_descent_reduction",
    "gradient_descent_weight_distance",
    "gradient_descent_weight_norm",
    "gradient_descent_weights",
    "iteration_bound",
    "iteration_bounds",
    "logistic_descent",
    "logistic_error",
    "logistic_first_step",
    "logistic_gradient",
    "logistic_loss",
    "logistic_step_limit",
    "loss_gradient",
    "loss_processes",
    "phases",
    "process_goals",
    "process_steps",
    "project_start",
    "projections_from_gram",
    "projections_from_moments",
    "ridge_curve",
    "sharp_iteration_bound",
    "squared_loss_equivalent",
    "steps_to_reduce",
    "weight_norm_after",
]
