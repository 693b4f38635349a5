"""Linear models trained by gradient descent from zero on fixed features, with two losses."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.linalg import LabelProjections, rank_tolerance, thin_svd
from theodolite.measures.representation import prepare_features
from theodolite.theory.convergence import (
    convert_step_size,
    diverges,
    gradient_descent_loss,
    steps_to_reduce,
)
from theodolite_papers.imani2022.formulas.logistic import (
    LogisticRun,
    logistic_descent,
    logistic_error,
    logistic_loss,
)
from theodolite_papers.imani2022.formulas.trajectories import (
    gradient_descent_weights,
    weight_norm_after,
)

__all__ = ["Classifier", "LinearProbe", "Split", "best_classifier", "best_probe"]


@dataclass(frozen=True)
class Split:
    """Features and targets of training and test examples; rows are prepared here.

    Args:
        train: features of the training examples.
        targets: their targets.
        test: features of the test examples.
        test_targets: their targets.
    """

    train: Tensor
    targets: Tensor
    test: Tensor
    test_targets: Tensor

    def prepared(self, *, bias: bool) -> "Split":
        """Unit rows, a constant column appended before; everything in float64."""
        rows = [
            prepare_features(part.double(), bias=bias).features for part in (self.train, self.test)
        ]
        device = rows[0].device
        labels = [part.double().to(device) for part in (self.targets, self.test_targets)]
        return Split(rows[0], labels[0], rows[1], labels[1])


@dataclass(frozen=True)
class LinearProbe:
    """One linear model at the step size that ended with the lowest training loss.

    Errors are mean squares divided by those of zero weights, where every run starts.

    Args:
        projections: of the training targets.
        test_basis: test features on the right singular vectors.
        test_targets: of those examples.
        rate: learning rate on the mean squared error.
    """

    projections: LabelProjections
    test_basis: Tensor
    test_targets: Tensor
    rate: float

    @property
    def step_size(self) -> float:
        """On half the sum of squares."""
        return convert_step_size(self.rate, "mean", self.projections.count)

    def train_errors(self, steps: Tensor) -> Tensor:
        """Relative training error after each number of steps."""
        losses = gradient_descent_loss(self.projections, self.step_size, steps)
        return losses / self.projections.energy.sum()

    def test_errors(self, steps: Tensor) -> Tensor:
        """Relative test error after each number of steps."""
        weights = gradient_descent_weights(self.projections, self.step_size, steps).squeeze(-1)
        misses = weights @ self.test_basis.mT - self.test_targets
        return misses.square().sum(1) / self.test_targets.square().sum()

    def steps_to(self, share: float) -> float:
        """Steps until this share of the training error is left; inf if it never is."""
        energy = float(self.projections.energy.sum())
        return float(steps_to_reduce(self.projections, (1 - share) * energy, self.step_size))

    def norms_after(self, shares: Sequence[float]) -> Tensor:
        """Norm of the weights when the error has fallen by these shares; nan if it never does."""
        energy = float(self.projections.energy.sum())
        goals = torch.tensor(shares, dtype=torch.float64, device=self.test_basis.device) * energy
        return weight_norm_after(self.projections, goals, self.step_size)

    @property
    def floor(self) -> float:
        """Relative training error of the least-squares solution."""
        return float(self.projections.residual.sum() / self.projections.energy.sum())


def best_probe(split: Split, rates: Sequence[float], steps: int) -> LinearProbe:
    """The run with the lowest training loss after so many steps among those that converge.

    Args:
        split: prepared features and targets.
        rates: learning rates on the mean squared error.
        steps: after which the losses are compared.
    """
    left, values, right = thin_svd(split.train)
    kept = values > rank_tolerance(split.train.shape, torch.finfo(torch.float64).eps) * values[0]
    left, values, right = left[:, kept], values[kept], right[:, kept]
    coefficients = left.mT @ split.targets
    rest = (split.targets.square().sum() - coefficients.square().sum()).clamp(min=0)
    found = LabelProjections(values, coefficients.unsqueeze(1), rest.reshape(1), len(split.targets))
    basis = split.test @ right
    runs = [LinearProbe(found, basis, split.test_targets, rate) for rate in rates]
    stable = [run for run in runs if not diverges(found, run.step_size)]
    last = torch.tensor([steps], dtype=torch.float64, device=basis.device)
    return min(stable, key=lambda run: float(run.train_errors(last)))


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

    Gradient descent does not depend on a rotation of the features. So it runs on the right
    singular vectors; there are at most as many as examples.

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
