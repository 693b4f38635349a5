"""Progress of a survey, its remaining time, and the number of examples that fit into its time.

A stage is a family, or the pass that reads the features. Each stage gives its cost for n examples:
passes of the model, and multiply-adds of linear algebra. One measured pass and one measured product
convert both into seconds, for the bar and for the choice of n (:class:`TimeBudget`).
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from typing import Literal, TextIO

import torch
from torch import nn

from theodolite.advice.sentences import layer_name
from theodolite.engine import Batch, model_device
from theodolite.errors import DomainError

Watch = Callable[[float, str], None]
ProgressBar = bool | Watch | Literal["auto"]

EIGEN = 20.0  # cost of a decomposition over the cube of its size: 15 for eigh, 30 for svd, measured
_TELLING = 0.01
_MINUTE = 60.0
_HOUR = 3600.0
_PATIENCE = 10.0  # seconds before the first line in a log, and between lines
_PRODUCT = 256  # rows of the matrices whose product is timed
_DECOMPOSED = {"cpu": 384, "cuda": 1024}  # rows of the matrix whose decomposition is timed
_REPEATS, _SHORT = 5, 0.1  # repetitions of a timing; a longer one (in seconds) is not repeated
# Examples and multiply-adds of the timed pass. A GPU takes as long for few examples as for many.
_TIMED = {"cpu": (16, 2e10), "cuda": (128, 1e12)}
_CHEAP = 0.05  # a family whose fewest examples take less of the limit is always measured
_LATE = 1.5  # a family whose fewest examples end after this multiple of the limit is left out


@dataclass(frozen=True)
class Cost:
    """The cost of a stage.

    Args:
        passes: number of forward passes of single examples.
        products: multiply-adds of linear algebra on the results, in all layers together.
        cubes: cubed sizes of large decompositions, if they are not counted as products.
    """

    passes: tuple[float | int, ...] = ()
    products: float | int = 0.0
    cubes: float | int = 0.0


@dataclass(frozen=True)
class Speed:
    """Seconds of a forward pass per example, of a multiply-add, and of a decomposition per cube."""

    example: float
    product: float
    cube: float = 0.0

    @classmethod
    def measured(cls, model: nn.Module, batch: Batch, single: float = 0.0) -> "Speed":
        """Time one pass and one product, each after a warm-up; short ones are repeated.

        Args:
            model: the model in evaluation mode.
            batch: the examples.
            single: multiply-adds of one example; if they are many, few examples are timed.
        """
        device = model_device(model)
        examples, work = _TIMED.get(device.type, _TIMED["cpu"])
        few = batch.take(slice(0, max(1, min(examples, len(batch), int(work / max(single, 1.0))))))
        _first_backward_pass()
        with torch.no_grad():
            example = _timed(lambda: few.run(model), device) / len(few)
            return cls(example, product_seconds(device))

    def seconds(self, cost: Cost) -> float:
        """Seconds of a stage at this speed."""
        algebra = self.product * cost.products + self.cube * cost.cubes
        return self.example * sum(cost.passes) + algebra


def _timed(call: Callable[[], object], device: torch.device) -> float:
    """The least seconds of a few calls after a warm-up, with the work that they leave to a GPU."""

    def finished() -> None:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    finished()
    taken: list[float] = []
    while len(taken) < _REPEATS and sum(taken) < _SHORT:
        start = perf_counter()
        finished()
        taken.append(perf_counter() - start)
    return min(taken)


def product_seconds(device: torch.device) -> float:
    """Seconds of a multiply-add. On a GPU decompositions are slow beside products: one is timed."""
    if device.type != "cuda":
        matrix = torch.ones(_PRODUCT, _PRODUCT, dtype=torch.float64)
        return _timed(lambda: matrix @ matrix, matrix.device) / _PRODUCT**3
    return cube_seconds(device) / EIGEN


def cube_seconds(device: torch.device) -> float:
    """Seconds of a decomposition divided by the cube of its size."""
    size = _DECOMPOSED.get(device.type, _DECOMPOSED["cpu"])
    rows = torch.arange(size, dtype=torch.float64, device=device)
    distances = -(rows[:, None] - rows).abs()
    return _timed(lambda: torch.linalg.eigh(distances), device) / size**3


def _first_backward_pass() -> None:
    """Run a first backward pass, which imports much of torch, outside all timings."""
    one = torch.ones(1, requires_grad=True)
    torch.autograd.grad(2 * one, one, torch.ones(1))


class TimeBudget:
    """Chooses numbers of examples so that a survey ends in time.

    The measured times of earlier stages correct the expected times of later ones.

    Args:
        seconds: the time limit, counted from ``begun``.
        speed: the measured speed.
        begun: start of the survey, by ``perf_counter``.
    """

    def __init__(self, seconds: float | int, speed: Speed, begun: float) -> None:
        self.seconds, self._speed, self._begun = seconds, speed, begun
        self._slower = 1.0

    def branch(self) -> "TimeBudget":
        """The same time and expectations, for stages with separate corrections."""
        return copy(self)

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - (perf_counter() - self._begun)

    def expected(self, cost: Cost) -> float:
        """Expected seconds of a stage."""
        return self._slower * self._speed.seconds(cost)

    def learn(self, cost: Cost, seconds: float) -> None:
        """Learn from the time of a stage; much faster stages than expected count little."""
        nominal = self._speed.seconds(cost)
        if nominal > 0.1:
            self._slower = min(max(seconds / nominal, 0.5), 8.0)

    def examples(
        self, cost: Callable[[int], Cost], most: int, fewest: int, share: float
    ) -> int | None:
        """The largest number of examples within a share of the time left; None if too few fit."""
        fewest, time = min(fewest, most), share * max(self.left, 0.0)
        late = _LATE * self.seconds - (self.seconds - self.left)
        if self.expected(cost(fewest)) > max(late, time, _CHEAP * self.seconds):
            return None
        more = range(fewest + 1, most + 1)
        return fewest + bisect_right(more, time, key=lambda n: self.expected(cost(n)))


class Progress:
    """Reports the progress of a survey.

    Args:
        show: called with the finished share and a text.
        costs: stage -> seconds of its passes and of its layers, in the order of the stages.
        layers: number of layers.
    """

    def __init__(
        self, show: Watch, costs: Mapping[str, tuple[tuple[float, ...], float]], layers: int = 1
    ) -> None:
        self._show, self._layers = show, max(1, layers)
        self._costs, self._done = dict(costs), set[str]()
        self._stage = self._layer = ""
        self._passes = self._visits = 0
        self._start = perf_counter()

    def begin(self, stage: str, layer: str = "") -> None:
        """Begin a stage: a pass over the examples, or the work on one of its layers."""
        if stage != self._stage:
            self._done |= {self._stage}
            self._stage, self._passes, self._visits = stage, 0, 0
        self._layer = layer
        self._passes += not layer
        self._visits += bool(layer)
        self.within(0.0)

    def skip(self, stage: str) -> None:
        """Leave out a stage."""
        self._costs.pop(stage, None)

    def within(self, share: float) -> None:
        """Report the finished share of the current pass."""
        passes, layers = self._costs.get(self._stage, ((), 0.0))
        if self._visits:
            done = sum(passes) + layers * min(1.0, (self._visits - 1) / self._layers)
        else:
            running = passes[self._passes - 1 : self._passes]
            done = sum(passes[: self._passes - 1]) + share * sum(running)
        whole = {name: sum(first) + rest for name, (first, rest) in self._costs.items()}
        before = sum(cost for name, cost in whole.items() if name in self._done)
        total = sum(whole.values())
        fraction = min(1.0, (before + done) / total) if total else 1.0
        left = time_left(fraction, perf_counter() - self._start)
        where = f", {layer_name(self._layer)}" if self._layer else ""
        self._show(fraction, f"{self._stage}{where} {left}".rstrip())

    def result(self, text: str) -> None:
        """Report a result of a stage."""
        self._show(-1.0, text)


def time_left(done: float, elapsed: float) -> str:
    """Words about the remaining time, from the time of the finished part.

    Empty at the start, because the first thousandth of the work does not predict the rest.

    Examples:
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
    """The function that shows progress: the user's function, a bar, or lines in a log.

    ``"auto"`` writes lines only for a survey that takes longer than ten seconds.
    """
    if progress not in (True, "auto") and not callable(progress):
        raise DomainError(
            'progress: expected "auto", True, False or a function of (share, text), got '
            f"{progress!r}"
        )
    if callable(progress):
        watch = progress
        yield lambda done, what: watch(done, what) if done >= 0 else None
    elif not _is_terminal():
        yield _Lines(_PATIENCE if progress == "auto" else 0.0)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        text = TextColumn("{task.description}", markup=False)
        columns = (BarColumn(), TimeElapsedColumn(), text)
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("features", total=1.0)

            def show(done: float, what: str) -> None:
                if done < 0:
                    console.print(what, markup=False, highlight=False)
                else:
                    bar.update(task, completed=done, description=what)

            yield show


def _is_terminal() -> bool:
    """Whether standard error is a terminal. A process may have none, or another object there."""
    return hasattr(sys.stderr, "isatty") and sys.stderr.isatty()


class _Lines:
    """Plain lines for a log: results as they come, and sometimes the current work.

    A log that cannot be written (closed, full disk) does not end a survey.
    """

    def __init__(self, patience: float) -> None:
        self._start = self._last = perf_counter()
        self._patience = patience

    def __call__(self, done: float, what: str) -> None:
        now = perf_counter()
        quiet = now - self._start < self._patience or now - self._last < _PATIENCE
        if done >= 0 and quiet:
            return
        if done < 0 and now - self._start < self._patience:
            return
        self._last = now
        share = "" if done < 0 else f" {100 * done:3.0f} %"
        log: TextIO | None = sys.stderr
        with suppress(OSError, ValueError):
            if log is not None:
                log.write(f"theodolite {now - self._start:5.1f} s{share} {what}\n")
                log.flush()
