"""The number of examples of a ranking within its time limit.

All models are measured on the same examples, so their number is chosen before the first model. A
trial of a few examples gives the time of a forward pass. One small decomposition gives the time of
larger ones. The survey's :class:`TimeBudget` converts both into a number of examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.surveys.progress import Cost, Speed, TimeBudget
from theodolite.surveys.transfer_regressions import regressions_cost

PROBED = 500  # largest number of examples for the linear probe of a layer
_FEWEST = 250  # examples that the time limit leaves
_SHARE, _FEATURES_SHARE = 0.5, 0.9  # of the time, with and without tangent kernels after this work


@dataclass(frozen=True)
class Trial:
    """Speed and sizes of one model.

    Args:
        speed: its speed.
        preparing: seconds to convert one example.
        layers: number of features of every layer.
        width: number of features that the head receives.
        columns: number of target columns.
    """

    speed: Speed
    preparing: float
    layers: tuple[int, ...]
    width: int
    columns: int

    def seconds(self, count: int, tangent: int) -> float:
        """Expected time of one model without its tangent kernel.

        Args:
            count: number of examples.
            tangent: number of examples of the tangent kernel; 0 if there is none.
        """
        probed = min(count, PROBED)
        probes = sum(4.0 * max(probed, d) * min(probed, d) ** 2 for d in self.layers)
        after = regressions_cost(count, tangent, self.layers, self.width, self.columns)
        cost = Cost((count,), after.products, after.cubes + probes)
        return self.speed.seconds(cost) + self.preparing * count


@dataclass(frozen=True)
class Limit:
    """The end of one model's time, by ``perf_counter``, and the speed of linear algebra."""

    end: float
    speed: Speed


@dataclass(frozen=True)
class Pace:
    """Divides the time that is left among the models that remain.

    Args:
        budget: the time.
        names: the models in their order; None if they do not run one after another.
        share: seconds of every model if they do not.
        speed: speed of linear algebra.
    """

    budget: TimeBudget
    names: tuple[str, ...] | None
    share: float
    speed: Speed

    def seconds(self, name: str) -> float:
        """Time for this model."""
        if self.names is None:
            return self.share
        return max(self.budget.left, 0.0) / (len(self.names) - self.names.index(name))


def chosen_examples(
    budget: TimeBudget,
    trials: Sequence[Trial],
    rounds: int,
    most: int,
    fewest: int,
    tangent: int,
) -> int:
    """Number of examples that fit into the time: all, or a half, a quarter, and so on.

    Args:
        budget: the time, whose speed counts seconds as passes.
        trials: speed and sizes of some models; the others count as their mean.
        rounds: number of models that one process measures.
        most: number of examples that are there.
        fewest: the choice has at least so many.
        tangent: number of examples of the tangent kernel; 0 if there is none.
    """

    def cost(count: int) -> Cost:
        times = [trial.seconds(count, min(tangent, count)) for trial in trials]
        return Cost((rounds * sum(times) / len(times),))

    share = _SHARE if tangent else _FEATURES_SHARE
    found = budget.examples(cost, most, fewest, share) or 0
    count = most
    while count > found and count // 2 >= fewest:
        count //= 2
    return count


def fewest_examples(labels: Tensor | None, most: int) -> int:
    """Least number of first examples: 250, and two of each class that has two."""
    if labels is None:
        return min(_FEWEST, most)
    turns = torch.zeros(int(labels.max()) + 1, dtype=torch.long)
    seconds = 0
    for place, label in enumerate(labels.tolist(), 1):
        turns[label] += 1
        if turns[label] == 2:
            seconds = place
    return min(max(_FEWEST, seconds), most)
