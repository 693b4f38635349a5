"""All settings of a training, as one frozen value.

A :class:`Recipe` names the loss, the optimizer, the schedule of its rate, the length of the run and
the rules that end it early. It can be read from plain mappings, as TOML and JSON give them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from theodolite.checks import require_between, require_choice, require_count, require_positive
from theodolite.errors import DomainError, UnknownNameError
from theodolite_papers.lab.training.batches import Augmentation, steps_per_epoch
from theodolite_papers.lab.training.losses import Hinge, Logistic, Loss, Softmax, Squared

__all__ = ["Recipe", "Stop", "recipe_from_mapping", "schedule_factor", "stopping_reason"]

OptimizerName = Literal["sgd", "momentum", "nesterov", "adam", "rmsprop"]
_OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "momentum", "nesterov", "adam", "rmsprop")
_LOG_POINTS = 200
_LOSSES: dict[str, type] = {
    "softmax": Softmax,
    "hinge": Hinge,
    "squared": Squared,
    "logistic": Logistic,
}

Schedule = Literal["constant", "thirds", "linear", "step_decay"]
_SCHEDULES: tuple[Schedule, ...] = ("constant", "thirds", "linear", "step_decay")
_DECAY, _DECAY_EPOCHS = 0.1, 30


def schedule_factor(schedule: Schedule, step: int, total_steps: int, epoch: int = 0) -> float:
    r"""Factor of the learning rate at a step, counted from 0.

    .. math:: \text{thirds: } 3^{-([3t \ge T] + [3t \ge 2T])}, \qquad
              \text{linear: } 1 - t/T, \qquad
              \text{step decay: } 10^{-\lfloor \text{epoch}/30 \rfloor}

    Args:
        schedule: which of them, or ``"constant"``.
        step: :math:`t`.
        total_steps: :math:`T`.
        epoch: of this step, counted from 0; only the step decay reads it.

    Raises:
        DomainError: If the schedule is unknown or the step outside the run.

    Example:
        >>> [round(schedule_factor("thirds", step, 9), 4) for step in (0, 2, 3, 5, 6, 8)]
        [1.0, 1.0, 0.3333, 0.3333, 0.1111, 0.1111]

    References:
        [maennel2020], appendix A.3; [canatar2022], section IV; [imani2022], appendix D.
    """
    require_choice(_SCHEDULES, schedule=schedule)
    require_count(1, total_steps=total_steps)
    if not 0 <= step < total_steps:
        raise DomainError(f"step: expected 0 <= step < {total_steps}, got {step}")
    if schedule == "thirds":
        return 1.0 / 3 ** ((3 * step >= total_steps) + (3 * step >= 2 * total_steps))
    if schedule == "linear":
        return 1.0 - step / total_steps
    return float(_DECAY ** (epoch // _DECAY_EPOCHS)) if schedule == "step_decay" else 1.0


@dataclass(frozen=True)
class Stop:
    """Rules that end a run at the end of an epoch; a rule without a number is off.

    Args:
        loss: stop when the epoch's mean training loss is at most this.
        accuracy: stop when the training accuracy is at least this; 1 means every example.
        improvement: stop when the loss improved by less than this fraction over ``patience``
            epochs.
        patience: length of that window.

    Example:
        >>> Stop(loss=1e-3, improvement=1e-3, patience=10)
        Stop(loss=0.001, accuracy=None, improvement=0.001, patience=10)

    References:
        [imani2022], section 5; [lou2022], section 5; [mehta2021], section 3.
    """

    loss: float | None = None
    accuracy: float | None = None
    improvement: float | None = None
    patience: int = 10

    def __post_init__(self) -> None:
        if self.loss is not None:
            require_between(0.0, float("inf"), open_high=True, loss=self.loss)
        if self.accuracy is not None:
            require_between(0.0, 1.0, accuracy=self.accuracy)
        if self.improvement is not None:
            require_between(0.0, 1.0, improvement=self.improvement)
        require_count(1, patience=self.patience)


def stopping_reason(
    stop: Stop, epoch_losses: Sequence[float], accuracy: Callable[[], float]
) -> str | None:
    """Why to stop after the latest epoch, or None; asks for the accuracy only if a rule needs it.

    Example:
        >>> stopping_reason(Stop(loss=0.1), [0.5, 0.09], accuracy=lambda: 0.9)
        'loss'
    """
    if not epoch_losses:
        return None
    latest = epoch_losses[-1]
    if stop.loss is not None and latest <= stop.loss:
        return "loss"
    if stop.improvement is not None and len(epoch_losses) > stop.patience:
        before = epoch_losses[-1 - stop.patience]
        if before - latest < stop.improvement * abs(before):
            return "improvement"
    if stop.accuracy is not None and accuracy() >= stop.accuracy:
        return "accuracy"
    return None


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
        if not isinstance(self.loss, Loss):
            raise DomainError(
                f"loss: expected Softmax(), Hinge(), Squared() or Logistic(), got {self.loss!r}"
            )
        require_choice(_OPTIMIZERS, optimizer=self.optimizer)
        require_choice(_SCHEDULES, schedule=self.schedule)
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
        if (self.epochs is None) == (self.steps is None):
            raise DomainError(
                f"epochs, steps: expected exactly one of them, got epochs={self.epochs!r} and "
                f"steps={self.steps!r}; e.g. Recipe(epochs=20)"
            )
        if self.epochs is not None:
            require_count(1, epochs=self.epochs)
        if self.steps is not None:
            require_count(1, steps=self.steps)

    def steps_per_epoch(self, examples: int) -> int:
        """Batches in one pass over so many examples."""
        return steps_per_epoch(examples, self.batch_size, self.drop_last)

    def total_steps(self, examples: int) -> int:
        """Steps of the whole run on so many examples, unless a rule stops it."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * self.steps_per_epoch(examples)

    def logged_steps(self, examples: int) -> frozenset[int]:
        """Numbers of finished steps at which the sets are evaluated; 0 and the last are among them.

        Example:
            >>> sorted(Recipe(steps=7, batch_size=4, log=3).logged_steps(examples=8))
            [0, 3, 6, 7]
        """
        total = self.total_steps(examples)
        ends = {0, total}
        if self.log == "ends":
            return frozenset(ends)
        if self.log == "log":
            spaced = np.geomspace(1, total, min(_LOG_POINTS, total)).round().astype(int)
            return frozenset(ends | set(spaced.tolist()))
        interval = self.steps_per_epoch(examples) if isinstance(self.log, str) else self.log
        return frozenset(ends | set(range(0, total, interval)))


def recipe_from_mapping(settings: Mapping[str, Any]) -> Recipe:
    """A recipe from plain values: the loss by name or ``{name = ..., option = ...}``.

    Raises:
        UnknownNameError: If a setting or a loss does not exist; lists the nearest.
        DomainError: If a value is out of range or of the wrong type.

    Example:
        >>> recipe = recipe_from_mapping({"loss": {"name": "hinge", "margin": 2.0}, "epochs": 3})
        >>> recipe.loss, recipe.epochs
        (Hinge(margin=2.0), 3)
    """
    plain = dict(settings)
    if "loss" in plain:
        given = plain["loss"]
        options = dict(given) if isinstance(given, Mapping) else {"name": given}
        name = str(options.pop("name", ""))
        if name not in _LOSSES:
            raise UnknownNameError("loss", name, _LOSSES)
        plain["loss"] = _build(_LOSSES[name], f"option of {name}", options)
    if "stop" in plain:
        plain["stop"] = _build(Stop, "stopping rule", plain["stop"])
    if "augmentation" in plain:
        plain["augmentation"] = _build(Augmentation, "augmentation", plain["augmentation"])
    return _build(Recipe, "setting", plain)


def _build(kind: type, what: str, values: Any) -> Any:
    if not isinstance(values, Mapping):
        raise DomainError(f"{what}: expected a table of names and values, got {values!r}")
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise UnknownNameError(what, name, known)
    try:
        return kind(**values)
    except (TypeError, AttributeError) as error:
        raise DomainError(f"{what}: a value has the wrong type ({error})") from error
