"""How fast networks learn a downstream task, from scratch and with transferred layers."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from theodolite_papers.lab.training import area_under_curve

__all__ = ["CHANCE", "Comparison", "Course", "left_chance"]

CHANCE = 0.15  # of ten classes, with room


@dataclass(frozen=True)
class Course:
    """Accuracies over the steps of a fine-tuning."""

    steps: np.ndarray
    train: np.ndarray
    test: np.ndarray

    @property
    def auc(self) -> float:
        """Area under the curve of training accuracy, divided by its length."""
        return _area(self.steps, self.train)

    @property
    def test_auc(self) -> float:
        """The same for test accuracy."""
        return _area(self.steps, self.test)


def _area(steps: np.ndarray, values: np.ndarray) -> float:
    return float(area_under_curve(torch.tensor(steps), torch.tensor(values)))


@dataclass(frozen=True)
class Comparison:
    """Fine-tuning from scratch beside fine-tuning of all transferred layers.

    Args:
        scratch: course from fresh weights.
        transferred: course from the pre-trained ones.
        model: the network at the end of the latter.
    """

    scratch: Course
    transferred: Course
    model: nn.Module

    @property
    def gain(self) -> float:
        """By how much pre-training enlarges the area under the training curve."""
        return self.transferred.auc - self.scratch.auc

    @property
    def test_gain(self) -> float:
        """By how much it raises the final test accuracy."""
        return float(self.transferred.test[-1] - self.scratch.test[-1])


def left_chance(*curves: np.ndarray) -> bool:
    """Whether training accuracy ends above chance in one of the curves at least.

    Areas under curves that stay at chance differ by noise alone, and decide nothing.
    """
    return max(float(curve[-1]) for curve in curves) > CHANCE
