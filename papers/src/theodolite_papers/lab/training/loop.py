"""The training loop, the same for one network and for an ensemble.

A :class:`Networks` has the parts in which the two differ: the losses of a batch, and the evaluation
of a set. Losses stay on the device until the end of an epoch, so the loop waits for the device only
then.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from theodolite.engine.state import preserved_generators
from theodolite.errors import TheodoliteError
from theodolite_papers.lab.training.batches import (
    Batches,
    Data,
    PlacedData,
    derived_seed,
    place_data,
)
from theodolite_papers.lab.training.checkpoints import Checkpoint, CheckpointFile
from theodolite_papers.lab.training.evaluation import (
    Evaluation,
    LogEntry,
    TrainingLog,
    evaluate,
    in_mode,
    log_from_dict,
)
from theodolite_papers.lab.training.optimizers import (
    Stepper,
    build_optimizer,
    frozen,
    own_stream,
    parameter_rates,
    set_rates,
)
from theodolite_papers.lab.training.recipe import Recipe, schedule_factor, stopping_reason

__all__ = ["Callback", "DivergenceError", "Networks", "TrainingLoop", "TrainingState", "train"]

_PROGRESS_UPDATES = 200


class DivergenceError(TheodoliteError, ArithmeticError):
    """The loss became nan or infinite; ``step`` says where."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


@dataclass(frozen=True)
class TrainingState:
    """The argument of a callback: finished steps and epochs, the network, the latest batch's loss.

    The loss is a tensor on the device (nan before the first step); reading it there waits for
    the device, which is the callback's choice.
    """

    step: int
    epoch: int
    model: nn.Module
    loss: Tensor


Callback = Callable[[TrainingState], object]  # True stops the run; anything else goes on


def train(
    model: nn.Module,
    data: Data,
    recipe: Recipe,
    *,
    test: Data | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | str | Path | None = None,
    progress: bool = False,
) -> TrainingLog:
    """Train a network in place, on the device where it is.

    Equal seeds give equal results, on a CPU bit by bit. The global random state and the modes of
    the modules are left as they were.

    Args:
        model: the network.
        data: inputs and targets, all of them; they are moved to the network's device.
        recipe: how to train.
        test: a second set, evaluated whenever the log is written.
        callbacks: called before the first step and after every step with a
            :class:`TrainingState`; one that returns True ends the run, e.g.
            ``lambda state: monitor.step(state.step)`` measures and never does.
        checkpoint: a file to write the state to; where it exists, the run goes on from it and
            ends as it would have ended without the interruption.
        progress: whether to show a progress bar.

    Returns:
        Losses and accuracies at the logged steps.

    Raises:
        DivergenceError: If a loss is nan or infinite; names the step and the likely cause.
        RecordError: If the checkpoint is damaged or belongs to another run.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(64, 2, generator=generator)
        >>> net = nn.Linear(2, 2)
        >>> log = train(net, (x, (x[:, 0] > 0).long()), Recipe(learning_rate=1.0, epochs=50))
        >>> log.final.train.accuracy > 0.9
        True
    """
    placed = place_data(model, data, recipe.loss)
    tested = None if test is None else place_data(model, test, recipe.loss, "test")
    rates = parameter_rates(model, recipe)
    with ExitStack() as stack:
        stack.enter_context(
            preserved_generators({p.device for p in model.parameters() if p.is_cuda})
        )
        stack.enter_context(in_mode(model, training=True))
        stack.enter_context(frozen(model, rates))
        stack.enter_context(own_stream(placed.inputs.device))
        stack.enter_context(torch.enable_grad())
        optimizer = build_optimizer(model.named_parameters(), rates, recipe)
        loop = TrainingLoop(_OneNetwork(model, optimizer, recipe), placed, recipe, test=tested)

        def ends_the_run() -> bool:
            latest = (loop.step - 1) % loop.per_epoch
            loss = loop.losses[latest, 0] if loop.step else loop.losses.new_tensor(torch.nan)
            state = TrainingState(loop.step, loop.step // loop.per_epoch, model, loss)
            answers = [callback(state) for callback in callbacks]  # every one sees every step
            return any(answer is True for answer in answers)

        kept = None
        if checkpoint is not None:
            kept = CheckpointFile(checkpoint, model, recipe, placed)
        after_step = stack.enter_context(_progress_bar(loop.total, progress))
        (log,) = loop.run(ends_the_run if callbacks else None, kept, after_step)
        return log


class Networks(ABC):
    """One network or several, and their optimizer, as :class:`TrainingLoop` sees them."""

    count: int
    optimizer: torch.optim.Optimizer

    @abstractmethod
    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of each network on its batch, or a number if there is one network."""

    @abstractmethod
    def evaluations(self, data: PlacedData) -> list[Evaluation]:
        """Mean loss and accuracy of each network on a whole set."""

    @abstractmethod
    def write_back(self, index: int) -> None:
        """Give the user's module the parameters that its network has now."""


class _OneNetwork(Networks):
    """A module, trained in place."""

    count = 1

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe) -> None:
        self.optimizer, self._model, self._loss = optimizer, model, recipe.loss

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(self._model(inputs), targets).mean()

    def evaluations(self, data: PlacedData) -> list[Evaluation]:
        return [evaluate(self._model, data.inputs, data.targets, self._loss)]

    def write_back(self, index: int) -> None:
        pass


@dataclass
class _Course:
    """One network's run so far."""

    entries: list[LogEntry] = field(default_factory=list)
    epoch_losses: list[float] = field(default_factory=list)
    stopped: str | None = None

    def log(self, step: int) -> TrainingLog:
        return TrainingLog(tuple(self.entries), tuple(self.epoch_losses), step, self.stopped or "")


class TrainingLoop:
    """The state that a step changes, and the loop over the steps.

    Args:
        networks: what is trained; all of them take each step together.
        data: the training set.
        recipe: how to train.
        seeds: one per network, of an ensemble; the recipe's if not given.
        test: a second set, evaluated whenever the log is written.
    """

    def __init__(
        self,
        networks: Networks,
        data: PlacedData,
        recipe: Recipe,
        *,
        seeds: Sequence[int] | None = None,
        test: PlacedData | None = None,
    ) -> None:
        self.networks, self.recipe = networks, recipe
        self._data, self._test = data, test
        self.total = recipe.total_steps(data.examples)
        self.per_epoch = recipe.steps_per_epoch(data.examples)
        self._logged = recipe.logged_steps(data.examples)
        batches = Batches(
            data,
            recipe.seed if seeds is None else seeds,
            recipe.batch_size,
            recipe.drop_last,
            recipe.augmentation,
        )
        self._batches = batches
        self._stepper = Stepper(
            lambda *arguments: networks.losses(*batches.assemble(*arguments)),
            networks.optimizer,
            recipe.graphs,
        )
        parameter = networks.optimizer.param_groups[0]["params"][0]
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        # Of the current epoch, on the device.
        self.losses = parameter.new_zeros(self.per_epoch, networks.count, dtype=dtype)
        self.step, self._factor, self._closed_epochs = 0, 1.0, 0
        self._courses = [_Course() for _ in range(networks.count)]
        self._evaluated, self._entries = -1, list[LogEntry]()  # step, and all networks then
        self._logs: dict[int, TrainingLog] = {}  # of networks that have stopped

    def run(
        self,
        ends_the_run: Callable[[], bool] | None = None,
        checkpoint: CheckpointFile | None = None,
        after_step: Callable[[int], None] = lambda _step: None,
    ) -> list[TrainingLog]:
        """Train to the end; one log per network.

        Args:
            ends_the_run: asked before the first step and after every step.
            checkpoint: where the state is kept (of one network); the run goes on from it.
            after_step: called with the number of finished steps.
        """
        torch.manual_seed(derived_seed(self.recipe.seed, "noise"))
        if checkpoint is not None:
            self._restore(checkpoint)
        if self.step == 0 and not self._logs:
            self._record(*self.running)
            if ends_the_run is not None and ends_the_run():
                self._stop(dict.fromkeys(self.running, "callback"))
        while running := self.running:
            self._advance()
            ended = self.step % self.per_epoch == 0 or self.step == self.total
            reasons = self._close_epoch() if ended else {}
            if self.step in self._logged:
                self._check()
                self._record(*self.running)
            if ends_the_run is not None and ends_the_run():
                reasons = dict.fromkeys(running, "callback")
            elif self.step == self.total:
                reasons = {index: reasons.get(index, "length") for index in running}
            self._stop(reasons)
            if checkpoint is not None and (self.step % checkpoint.every == 0 or self._logs):
                self._keep(checkpoint)
            after_step(self.step)
        self.networks.optimizer.zero_grad(set_to_none=True)
        return [self._logs[index] for index in range(self.networks.count)]

    @property
    def running(self) -> list[int]:
        """Networks that have not stopped."""
        return [index for index in range(self.networks.count) if index not in self._logs]

    def _advance(self) -> None:
        epoch, position = divmod(self.step, self.per_epoch)
        factor = schedule_factor(self.recipe.schedule, self.step, self.total, epoch)
        if factor != self._factor:
            set_rates(self.networks.optimizer, factor)
            self._factor = factor
        self.losses[position] = self._stepper(*self._batches.arguments(self.step))
        self.step += 1

    def _close_epoch(self) -> dict[int, str]:
        """Read the epoch's losses; return the reason for each network that a rule stops."""
        columns = self._check()
        self._closed_epochs += 1
        reasons: dict[int, str] = {}
        for index in self.running:
            course = self._courses[index]
            course.epoch_losses.append(self._epoch_mean(columns[index]))

            def accuracy(index: int = index) -> float:
                self._record(index)
                return self._courses[index].entries[-1].train.accuracy

            reason = stopping_reason(self.recipe.stop, course.epoch_losses, accuracy)
            if reason is not None:
                reasons[index] = reason
        return reasons

    def _epoch_mean(self, losses: list[float]) -> float:
        """Mean over the examples of an epoch: a short last batch weighs less."""
        recipe = self.recipe
        sizes = [recipe.batch_size] * len(losses)
        if len(losses) == self.per_epoch and not recipe.drop_last:
            sizes[-1] = self._data.examples - sum(sizes[:-1])
        return sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)

    def _check(self) -> list[list[float]]:
        """Losses since the latest epoch that was closed, for each network; all are finite.

        Raises:
            DivergenceError: Naming the first step that is not finite, and why that usually happens.
        """
        first = self._closed_epochs * self.per_epoch
        columns: list[list[float]] = self.losses[: max(0, self.step - first)].T.tolist()
        for index in self.running:
            for offset, loss in enumerate(columns[index]):
                if not math.isfinite(loss):
                    whose = f" of network {index}" if self.networks.count > 1 else ""
                    before = [*self._courses[index].epoch_losses, *columns[index][:offset]]
                    raise DivergenceError(
                        f"training diverged: expected finite losses, got {loss}{whose} at step "
                        f"{first + offset} (counted from 0); {_likely_cause(before, self.recipe)}",
                        first + offset,
                    )
        return columns

    def _record(self, *indices: int) -> None:
        """Evaluate both sets for the logs of these networks; all networks at once per step."""
        waiting = [
            index
            for index in indices
            if not (entries := self._courses[index].entries) or entries[-1].step != self.step
        ]
        if waiting and self._evaluated != self.step:
            train = self.networks.evaluations(self._data)
            test: list[Evaluation | None] = [None] * self.networks.count
            if self._test is not None:
                test = [*self.networks.evaluations(self._test)]
            self._entries = [LogEntry(self.step, *sets) for sets in zip(train, test, strict=True)]
            self._evaluated = self.step
        for index in waiting:
            self._courses[index].entries.append(self._entries[index])

    def _stop(self, reasons: dict[int, str]) -> None:
        """These networks keep what they have now; the others go on."""
        if reasons:
            self._check()
            self._record(*reasons)
        for index, reason in reasons.items():
            self.networks.write_back(index)
            self._courses[index].stopped = reason
            self._logs[index] = self._courses[index].log(self.step)

    def _keep(self, checkpoint: CheckpointFile) -> None:
        self._check()  # never keep a network that has diverged
        (course,) = self._courses
        device = self.losses.device
        checkpoint.save(
            {
                "step": self.step,
                "stopped": course.stopped,
                "losses": self.losses[:, 0],
                "log": course.log(self.step).to_dict(),
                "model": checkpoint.model.state_dict(),
                "optimizer": self.networks.optimizer.state_dict()["state"],
                "random": torch.get_rng_state(),
                "random_device": (
                    torch.cuda.get_rng_state(device) if device.type == "cuda" else None
                ),
            }
        )

    def _restore(self, checkpoint: CheckpointFile) -> None:
        """Go to the state on disk, if there is one."""
        state = checkpoint.load()
        if state is None:
            return
        checkpoint.model.load_state_dict(state["model"])
        optimizer = self.networks.optimizer
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        log = log_from_dict(state["log"])
        course = _Course([*log.entries], [*log.epoch_losses], state["stopped"])
        self._courses = [course]
        self.step, self._closed_epochs = log.steps, len(log.epoch_losses)
        self.losses[:, 0] = state["losses"]
        torch.set_rng_state(state["random"])
        if state["random_device"] is not None and self.losses.is_cuda:
            torch.cuda.set_rng_state(state["random_device"], self.losses.device)
        if course.stopped is not None:
            self._logs[0] = log


def _likely_cause(before: Sequence[float], recipe: Recipe) -> str:
    if not before:
        return (
            "the likely cause is the initial network: its outputs overflow before any update; "
            "initialise with a smaller scale or standardise the inputs"
        )
    rate = recipe.learning_rate
    if before[-1] > before[0]:
        how = f"the loss had grown from {before[0]:.3g} to {before[-1]:.3g}"
    else:
        how = "one update was enough" if len(before) == 1 else "the loss jumped within one step"
    return (
        f"{how}, so the likely cause is a learning rate that is too large ({rate:g}); "
        f"try {rate / 10:g}"
    )


@contextmanager
def _progress_bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A function that takes the number of finished steps and never waits for the device."""
    if not shown:
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("training", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    interval = max(1, total // _PROGRESS_UPDATES)
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=total)

        def update(step: int) -> None:
            if step % interval == 0 or step == total:
                bar.update(task, completed=step)

        yield update
