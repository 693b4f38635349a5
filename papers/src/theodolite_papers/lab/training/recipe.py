"""Everything that decides how a network is trained, as one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from theodolite.checks import require_between, require_choice, require_count, require_positive
from theodolite.errors import DomainError
from theodolite_papers.lab.training.augmentation import Augmentation
from theodolite_papers.lab.training.losses import Hinge, Logistic, Loss, Softmax, Squared
from theodolite_papers.lab.training.schedules import SCHEDULES, Schedule, steps_per_epoch
from theodolite_papers.lab.training.stopping import Stop

__all__ = ["OPTIMIZERS", "OptimizerName", "Recipe"]

OptimizerName = Literal["sgd", "momentum", "nesterov", "adam", "rmsprop"]
OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "momentum", "nesterov", "adam", "rmsprop")
_LOSSES = (Softmax, Hinge, Squared, Logistic)


@dataclass(frozen=True)
class Recipe:
    r"""How to train: loss, optimizer, rates, length, stopping, seed.

    Args:
        loss: per example; training takes the mean over the batch.
        optimizer: ``"sgd"``, ``"momentum"`` (heavy ball), ``"nesterov"``, ``"adam"``,
            ``"rmsprop"``, with PyTorch's constants.
        learning_rate: of the first step; the schedule multiplies it.
        momentum: of ``"momentum"`` and ``"nesterov"``.
        weight_decay: L2, added to the gradient: :math:`g + \lambda\theta`.
        batch_size: examples per step.
        epochs: passes over the data; give these or ``steps``.
        steps: number of steps, instead of ``epochs``.
        schedule: of the learning rate, see :func:`schedule_factor`.
        layer_rates: layer, or pattern of layers -> its own learning rate; the last match wins and
            0 freezes the layer.
        drop_last: whether the incomplete last batch of an epoch is left out.
        stop: rules that end the run early.
        seed: of the order of the examples, the augmentation and noise inside the network.
        augmentation: random changes of the images of each batch.
        log: when losses and accuracies of the whole sets are taken: after every ``"epoch"``, at
            about 200 ``"log"``-spaced steps, at both ``"ends"``, or every so many steps.
        graphs: whether steps on a GPU are recorded once and replayed.

    Raises:
        DomainError: If a value is out of range, or not exactly one of epochs and steps is given.

    Example:
        >>> recipe = Recipe(optimizer="momentum", learning_rate=0.01, epochs=80, drop_last=True)
        >>> recipe.total_steps(20_000)
        6240
    """

    loss: Loss = field(default_factory=Softmax)
    optimizer: OptimizerName = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_size: int = 256
    epochs: int | None = None
    steps: int | None = None
    schedule: Schedule = "constant"
    layer_rates: Mapping[str, float] = field(default_factory=dict)
    drop_last: bool = False
    stop: Stop = field(default_factory=Stop)
    seed: int = 0
    augmentation: Augmentation | None = None
    log: Literal["epoch", "log", "ends"] | int = "epoch"
    graphs: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.loss, _LOSSES):
            raise DomainError(
                f"loss: expected Softmax(), Hinge(), Squared() or Logistic(), got {self.loss!r}"
            )
        require_choice(OPTIMIZERS, optimizer=self.optimizer)
        require_choice(SCHEDULES, schedule=self.schedule)
        require_positive(learning_rate=self.learning_rate)
        require_between(0.0, 1.0, open_high=True, momentum=self.momentum)
        require_between(0.0, float("inf"), open_high=True, weight_decay=self.weight_decay)
        for layer, rate in self.layer_rates.items():
            named = {f"layer_rates[{layer!r}]": rate}
            require_between(0.0, float("inf"), open_low=False, open_high=True, **named)
        require_count(1, batch_size=self.batch_size)
        require_count(0, seed=self.seed)
        if isinstance(self.log, str):
            require_choice(("epoch", "log", "ends"), log=self.log)
        else:
            require_count(1, log=self.log)
        self._require_length()

    def steps_per_epoch(self, examples: int) -> int:
        """Batches in one pass over so many examples."""
        return steps_per_epoch(examples, self.batch_size, self.drop_last)

    def total_steps(self, examples: int) -> int:
        """Steps of the whole run on so many examples, unless a rule stops it."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * self.steps_per_epoch(examples)

    def _require_length(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise DomainError(
                f"epochs, steps: expected exactly one of them, got epochs={self.epochs!r} and "
                f"steps={self.steps!r}; e.g. Recipe(epochs=20)"
            )
        if self.epochs is not None:
            require_count(1, epochs=self.epochs)
        if self.steps is not None:
            require_count(1, steps=self.steps)
