"""Training: losses, schedules, one loop, and the same loop for many small networks at once."""

from theodolite.workbench.training.augmentation import Augmentation
from theodolite.workbench.training.checkpoints import Checkpoint
from theodolite.workbench.training.divergence import DivergenceError
from theodolite.workbench.training.ensemble import Watch, train_ensemble
from theodolite.workbench.training.evaluation import (
    Evaluation,
    GeneralizationGaps,
    accuracy,
    area_under_curve,
    evaluate,
    generalization_gaps,
)
from theodolite.workbench.training.experiments import (
    Experiment,
    read_experiment,
    run_experiment,
)
from theodolite.workbench.training.log import LogEntry, TrainingLog, logged_steps
from theodolite.workbench.training.loop import Callback, TrainingState, train
from theodolite.workbench.training.losses import Hinge, Logistic, Loss, Softmax, Squared
from theodolite.workbench.training.recipe import Recipe
from theodolite.workbench.training.recipe_files import recipe_from_mapping
from theodolite.workbench.training.schedules import schedule_factor, steps_per_epoch
from theodolite.workbench.training.stopping import Stop

__all__ = [
    "Augmentation",
    "Callback",
    "Checkpoint",
    "DivergenceError",
    "Evaluation",
    "Experiment",
    "GeneralizationGaps",
    "Hinge",
    "LogEntry",
    "Logistic",
    "Loss",
    "Recipe",
    "Softmax",
    "Squared",
    "Stop",
    "TrainingLog",
    "TrainingState",
    "Watch",
    "accuracy",
    "area_under_curve",
    "evaluate",
    "generalization_gaps",
    "logged_steps",
    "read_experiment",
    "recipe_from_mapping",
    "run_experiment",
    "schedule_factor",
    "steps_per_epoch",
    "train",
    "train_ensemble",
]
