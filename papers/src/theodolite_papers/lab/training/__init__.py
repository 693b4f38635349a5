"""Training: recipes, one loop for a network or for many small ones, logs and checkpoints."""

from theodolite_papers.lab.training.batches import Augmentation, steps_per_epoch
from theodolite_papers.lab.training.checkpoints import Checkpoint
from theodolite_papers.lab.training.ensemble import Watch, train_ensemble
from theodolite_papers.lab.training.evaluation import (
    Evaluation,
    GeneralizationGaps,
    LogEntry,
    TrainingLog,
    accuracy,
    area_under_curve,
    evaluate,
)
from theodolite_papers.lab.training.experiments import (
    Experiment,
    read_experiment,
    run_experiment,
)
from theodolite_papers.lab.training.loop import Callback, DivergenceError, TrainingState, train
from theodolite_papers.lab.training.losses import Hinge, Logistic, Loss, Softmax, Squared
from theodolite_papers.lab.training.recipe import (
    Recipe,
    Stop,
    recipe_from_mapping,
    schedule_factor,
)

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
    "read_experiment",
    "recipe_from_mapping",
    "run_experiment",
    "schedule_factor",
    "steps_per_epoch",
    "train",
    "train_ensemble",
]
