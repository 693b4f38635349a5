"""How far a survey is and how long it will take: a bar on the terminal, or the user's function.

A stage is a family, or the pass that reads the features. What stages cost follows from a few
counts; the time that those before have taken turns that into seconds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

import torch
from torch import nn

from theodolite.engine import ContractionSizes, contraction_costs
from theodolite.surveys.layers import Layer, Layout
from theodolite.surveys.options import SurveyOptions
from theodolite.surveys.plan import SurveyPlan
from theodolite.surveys.probe import Probe

__all__ = [
    "EIGEN",
    "Progress",
    "ProgressBar",
    "StageCost",
    "WorkCounts",
    "shown_progress",
    "time_left",
]

Watch = Callable[[float, str], None]
ProgressBar = bool | Watch

# Costs of the passes of a stage, in order, and of all its layers together, in multiply-adds.
StageCost = tuple[Sequence[float], float]

EIGEN = 10.0  # of a decomposition, times the cube of the size
_TINY = 2e7  # what a step of tiny matrices costs
_TELLING = 0.01
_MINUTE = 60.0
_HOUR = 3600.0


class Progress:
    """Tells how far a survey is.

    Args:
        show: is told the share that is done, and what is being done.
        costs: stage -> what it costs, in the order of the stages.
        layers: how many there are.
    """

    def __init__(self, show: Watch, costs: Mapping[str, StageCost], layers: int = 1) -> None:
        self._show, self._layers = show, max(1, layers)
        self._waiting = dict(costs)
        self._total = sum(map(_whole, costs.values()))
        self._before = 0.0  # cost of the stages before this one
        self._cost: StageCost = ((), 0.0)
        self._stage = self._layer = ""
        self._passes = self._visits = 0
        self._start = perf_counter()

    def begin(self, stage: str, layer: str = "") -> None:
        """A stage begins a pass over the examples, or the work on one of its layers."""
        if stage != self._stage:
            self._before += _whole(self._cost)
            while self._waiting and stage in self._waiting and next(iter(self._waiting)) != stage:
                left_out = self._waiting.pop(next(iter(self._waiting)))
                self._total -= _whole(left_out)
            self._stage, self._cost = stage, self._waiting.pop(stage, ((), 0.0))
            self._passes = self._visits = 0
        self._layer = layer
        self._passes += not layer
        self._visits += bool(layer)
        self.within(0.0)

    def within(self, share: float, _what: str = "") -> None:
        """A share of the pass that runs is done."""
        passes, layers = self._cost
        if self._visits:
            done = sum(passes) + layers * min(1.0, (self._visits - 1) / self._layers)
        else:
            running = passes[self._passes - 1 : self._passes]
            done = sum(passes[: self._passes - 1]) + share * sum(running)
        fraction = min(1.0, (self._before + done) / self._total) if self._total else 1.0
        left = time_left(fraction, perf_counter() - self._start)
        words = (self._stage, self._layer, left)
        self._show(fraction, " ".join(word for word in words if word))


def _whole(cost: StageCost) -> float:
    return sum(cost[0]) + cost[1]


@dataclass(frozen=True)
class WorkCounts:
    """Counts behind the costs of stages, in multiply-adds; each family says its own cost.

    A constant factor cancels in the estimate of the time.

    Args:
        model: any module.
        layout: its layers.
        probe: the examples.
        options: what the user chose.
        plan: what the code chose.
    """

    model: nn.Module
    layout: Layout
    probe: Probe
    options: SurveyOptions
    plan: SurveyPlan

    def count(self, family: str) -> int:
        """Examples that a family takes."""
        return self.plan.size(family, len(self.probe))

    @cached_property
    def single(self) -> float:
        """One example's way through the model."""
        return float(self.layout.footprint.per_example(self.layout.footprint.products))

    @cached_property
    def matrices(self) -> list[tuple[int, int, int]]:
        """Positions, rows and columns of the layers' matrices."""
        found = (_matrix(self.model, layer) for layer in self.layout.layers)
        return [sizes for sizes in found if sizes is not None]

    def kernels(self, count: int, outputs: int) -> float:
        """Tangent kernels of so many examples."""
        sizes = (ContractionSizes(count, count, outputs, c, d, t) for t, c, d in self.matrices)
        return sum(min(contraction_costs(size).values()) for size in sizes)

    def decomposed(self, count: int) -> float:
        """Decompositions of the features of all layers."""
        widths = (layer.width for layer in self.layout.with_features())
        return sum(_TINY + EIGEN * count * min(count, width) ** 2 for width in widths)


def _matrix(model: nn.Module, layer: Layer) -> tuple[int, int, int] | None:
    """Positions, rows and columns of a layer's matrix; None if it has none of its own."""
    weight = getattr(model.get_submodule(layer.name), "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim < 2 or not layer.width:
        return None
    return max(1, layer.width // len(weight)), len(weight), weight[0].numel()


def time_left(done: float, elapsed: float) -> str:
    """What to say about the rest of the work, from the time of the part that is done.

    Nothing at the start: from a thousandth of the work one cannot tell.

    Example:
        >>> time_left(0.25, 40.0), time_left(0.5, 600.0), time_left(0.001, 1.0)
        ('(2 min left)', '(10 min left)', '')
    """
    if done < _TELLING or done >= 1.0:
        return ""
    seconds = elapsed * (1.0 - done) / done
    if seconds < 1.5 * _MINUTE:
        return f"({seconds:.0f} s left)"
    if seconds < 1.5 * _HOUR:
        return f"({seconds / _MINUTE:.0f} min left)"
    return f"({seconds / _HOUR:.1f} h left)"


@contextmanager
def shown_progress(progress: ProgressBar) -> Iterator[Watch]:
    """What to tell: the user's function, or a bar on the terminal."""
    if callable(progress):
        yield progress
    else:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        text = TextColumn("{task.description}", markup=False)
        with Bar(BarColumn(), TimeElapsedColumn(), text) as bar:
            task = bar.add_task("features", total=1.0)
            yield lambda done, what: bar.update(task, completed=done, description=what)
            bar.update(task, completed=1.0, description="done")
