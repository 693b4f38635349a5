"""Training: losses, schedules, one loop, and the same loop for many small networks at once."""

from theodolite_papers.lab.training.augmentation import Augmentation
from theodolite_papers.lab.training.checkpoints import Checkpoint
from theodolite_papers.lab.training.divergence import DivergenceError
from theodolite_papers.lab.training.ensemble import Watch, train_ensemble
from theodolite_papers.lab.training.evaluation import (
    Evaluation,
    GeneralizationGaps,
    accuracy,
    area_under_curve,
    evaluate,
    generalization_gaps,
)
from theodolite_papers.lab.training.experiments import (
    Experiment,
    read_experiment,
    run_experiment,
)
from theodolite_papers.lab.training.log import LogEntry, TrainingLog, logged_steps
from theodolite_papers.lab.training.loop import Callback, TrainingState, train
from theodolite_papers.lab.training.losses import Hinge, Logistic, Loss, Softmax, Squared
from theodolite_papers.lab.training.recipe import Recipe
from theodolite_papers.lab.training.recipe_files import recipe_from_mapping
from theodolite_papers.lab.training.schedules import schedule_factor, steps_per_epoch
from theodolite_papers.lab.training.stopping import Stop

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
