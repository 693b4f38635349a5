"""The training loop: one readable function over pure parts.

Nothing in it waits for the device between two epochs: losses stay there until the epoch ends.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.engine.state import preserved_generators
from theodolite_papers.lab.training.batches import Batches, place_data
from theodolite_papers.lab.training.checkpoints import (
    Checkpoint,
    fingerprint,
    load_checkpoint,
    save_checkpoint,
)
from theodolite_papers.lab.training.course import Course, Sets
from theodolite_papers.lab.training.evaluation import evaluate
from theodolite_papers.lab.training.log import TrainingLog, log_from_dict, logged_steps
from theodolite_papers.lab.training.modes import in_mode
from theodolite_papers.lab.training.optimizers import (
    build_optimizer,
    frozen,
    parameter_rates,
    set_rates,
)
from theodolite_papers.lab.training.progress import progress_bar
from theodolite_papers.lab.training.recipe import Recipe
from theodolite_papers.lab.training.schedules import schedule_factor
from theodolite_papers.lab.training.seeds import derived_seed
from theodolite_papers.lab.training.stepper import Stepper, own_stream

__all__ = ["Callback", "TrainingState", "train"]

Data = tuple[Any, Any]


@dataclass(frozen=True)
class TrainingState:
    """What a callback sees: steps and epochs done, the network, the latest batch's mean loss.

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
    inputs, targets = place_data(model, data, recipe.loss)
    tested = None if test is None else place_data(model, test, recipe.loss, "test")
    rates = parameter_rates(model, recipe)
    with ExitStack() as stack:
        stack.enter_context(preserved_generators(model))
        stack.enter_context(in_mode(model, training=True))
        stack.enter_context(frozen(model, rates))
        stack.enter_context(own_stream(inputs.device))
        stack.enter_context(torch.enable_grad())
        optimizer = build_optimizer(model.named_parameters(), rates, recipe)
        run = _Run(model, optimizer, recipe, (inputs, targets), tested)
        keeper = _Keeper(run, checkpoint)
        bar = stack.enter_context(progress_bar(run.total, progress))
        return _loop(run, keeper, callbacks, bar)


def _loop(
    run: "_Run", keeper: "_Keeper", callbacks: Sequence[Callback], bar: Callable[[int], None]
) -> TrainingLog:
    torch.manual_seed(derived_seed(run.recipe.seed, "noise"))
    stopped = keeper.restore()
    if run.step == 0 and stopped is None:
        run.course.record(0)
        stopped = run.notify(callbacks)
    while stopped is None:
        run.advance()
        stopped = run.close_epoch() if run.epoch_ended else None
        if run.step in run.logged:
            run.check()
            run.course.record(run.step)
        stopped = run.notify(callbacks) or stopped
        if stopped is None and run.step == run.total:
            stopped = "length"
        keeper.keep(stopped)
        bar(run.step)
    run.check()
    run.optimizer.zero_grad(set_to_none=True)
    run.course.record(run.step)
    return run.course.log(run.step, stopped)


class _Run:
    """The state that a step changes."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        data: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor] | None,
    ) -> None:
        self.model, self.optimizer, self.recipe = model, optimizer, recipe
        self.data, self.test = data, test
        examples = len(data[0])
        self.total, self.per_epoch = recipe.total_steps(examples), recipe.steps_per_epoch(examples)
        self.logged = logged_steps(recipe, examples)
        self.step, self.factor = 0, 1.0
        # Of the current epoch, on the device.
        self.losses = torch.zeros(self.per_epoch, device=data[0].device, dtype=_dtype(model))
        self.course = Course(recipe, examples, self._evaluate)
        self._batches = Batches(*data, recipe)
        self._stepper = Stepper(self._loss, optimizer, recipe.graphs)

    def _loss(self, *arguments: Tensor) -> Tensor:
        inputs, targets = self._batches.assemble(*arguments)
        return self.recipe.loss(self.model(inputs), targets).mean()

    @property
    def position(self) -> int:
        """Steps done since the latest epoch that was closed."""
        return max(0, self.step - len(self.course.epoch_losses) * self.per_epoch)

    @property
    def epoch_ended(self) -> bool:
        return self.step % self.per_epoch == 0 or self.step == self.total

    def advance(self) -> None:
        epoch, position = divmod(self.step, self.per_epoch)
        factor = schedule_factor(self.recipe.schedule, self.step, self.total, epoch)
        if factor != self.factor:
            set_rates(self.optimizer, factor)
            self.factor = factor
        self.losses[position] = self._stepper(*self._batches.arguments(self.step))
        self.step += 1

    def close_epoch(self) -> str | None:
        """Read the epoch's losses, and say why to stop."""
        return self.course.close_epoch(self.check(), self.step)

    def check(self) -> list[float]:
        """Losses of the current epoch, all finite."""
        losses: list[float] = self.losses[: self.position].tolist()
        self.course.check(losses, self.step)
        return losses

    def _evaluate(self) -> Sets:
        loss = self.recipe.loss
        test = None if self.test is None else evaluate(self.model, *self.test, loss)
        return evaluate(self.model, *self.data, loss), test

    def notify(self, callbacks: Sequence[Callback]) -> str | None:
        if not callbacks:
            return None
        latest = (self.step - 1) % self.per_epoch
        loss = self.losses[latest] if self.step else self.losses.new_tensor(torch.nan)
        state = TrainingState(self.step, self.step // self.per_epoch, self.model, loss)
        answers = [callback(state) for callback in callbacks]  # every one sees every step
        return "callback" if any(answer is True for answer in answers) else None


def _dtype(model: nn.Module) -> torch.dtype:
    return torch.promote_types(next(model.parameters()).dtype, torch.float32)


class _Keeper:
    """Writes the state of a run to its checkpoint, and reads it back."""

    def __init__(self, run: _Run, checkpoint: Checkpoint | str | Path | None) -> None:
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint)
        self._run, self._checkpoint = run, checkpoint
        self._device = run.data[0].device
        if checkpoint is not None:
            self._path = Path(checkpoint.path)
            self._every = checkpoint.every or run.per_epoch
            self._identity = fingerprint(run.recipe, *run.data)

    def keep(self, stopped: str | None) -> None:
        """Write if it is time; a finished run is always written."""
        run = self._run
        if self._checkpoint is None or (run.step % self._every and stopped is None):
            return
        run.check()  # never keep a network that has diverged
        if stopped is not None:
            run.course.record(run.step)
        cuda = self._device.type == "cuda"
        state = {
            "step": run.step,
            "stopped": stopped,
            "losses": run.losses,
            "log": run.course.log(run.step, stopped or "").to_dict(),
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict()["state"],
            "random": torch.get_rng_state(),
            "random_device": torch.cuda.get_rng_state(self._device) if cuda else None,
        }
        save_checkpoint(self._path, self._identity, state)

    def restore(self) -> str | None:
        """Go to the state on disk, if there is one; why that run had stopped, if it had."""
        if self._checkpoint is None:
            return None
        state = load_checkpoint(self._path, self._identity)
        if state is None:
            return None
        run, log = self._run, log_from_dict(state["log"])
        run.model.load_state_dict(state["model"])
        groups = run.optimizer.state_dict()["param_groups"]
        run.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        run.step = log.steps
        run.course.epoch_losses, run.course.entries = [*log.epoch_losses], [*log.entries]
        run.losses.copy_(state["losses"])
        torch.set_rng_state(state["random"])
        if state["random_device"] is not None and self._device.type == "cuda":
            torch.cuda.set_rng_state(state["random_device"], self._device)
        return None if state["stopped"] is None else str(state["stopped"])
