"""Linear classifiers trained by gradient descent on the logistic loss, test losses included."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.linalg import thin_svd
from theodolite.theory.convergence import (
    LogisticRun,
    logistic_descent,
    logistic_error,
    logistic_loss,
)
from theodolite_papers.imani2022._readouts import Split

__all__ = ["Classifier", "best_classifier"]


@dataclass(frozen=True)
class Classifier:
    """The course of one linear classifier, mean losses in bits at some steps.

    Args:
        train: losses on the training examples.
        test: losses on the test examples.
        test_error: share of wrong test examples at the last of these steps.
    """

    train: Tensor
    test: Tensor
    test_error: float


def best_classifier(split: Split, rates: Sequence[float], steps: Sequence[int]) -> Classifier:
    """The run with the lowest final training loss, among those that do not end above their start.

    Gradient descent does not see a rotation of the features: it runs on the right singular
    vectors, of which there are no more than examples.

    Args:
        split: prepared features, and labels +1 and -1.
        rates: learning rates on the mean loss.
        steps: at which the losses are read, in order; the last one compares the rates.
    """
    left, values, right = thin_svd(split.train)
    rows, fresh = left * values, split.test @ right
    count = len(rows)

    def course(rate: float, length: int) -> LogisticRun:
        return logistic_descent(rows, split.targets, rate / count, length)

    ends = {rate: float(course(rate, steps[-1]).losses[-1]) for rate in rates}
    best = min((r for r in rates if ends[r] <= count), key=lambda r: ends[r])
    runs = [course(best, step) for step in steps]
    test = [logistic_loss(fresh, split.test_targets, run.weights) for run in runs]
    return Classifier(
        torch.stack([run.losses[-1] for run in runs]).cpu() / count,
        torch.stack(test).cpu() / len(fresh),
        float(logistic_error(fresh, split.test_targets, runs[-1].weights)),
    )
