"""Loss and accuracy of a network on a whole set, the log of a run, and numbers from this log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import require_axes, require_finite, require_same_length
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import array_function, double
from theodolite_papers.lab.training.losses import Loss

__all__ = [
    "CHUNK",
    "Evaluation",
    "GeneralizationGaps",
    "LogEntry",
    "TrainingLog",
    "accuracy",
    "area_under_curve",
    "evaluate",
    "evaluate_function",
    "hits",
    "in_mode",
    "log_from_dict",
]

CHUNK = 2048  # examples per forward pass: large enough for a GPU, small enough for VGG
_SIGNS = torch.tensor([-1.0, 0.0, 1.0])


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put the model into one mode; every module has its own mode back afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, before in modes.items():
            module.training = before


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and share of right answers (nan for real-valued targets) on one set."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class GeneralizationGaps:
    """Test loss minus training loss; training minus test accuracy, in percentage points.

    References:
        [lou2022], Figure 4. Differs from paper: it does not spell the gaps out; at the end of
        training is ours.
    """

    loss: float
    accuracy: float


def hits(outputs: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
    """1 where an answer is right, 0 where it is wrong, nan where "right" has no meaning.

    With several outputs the answer is the largest, the first of equal ones. With one output it is
    the sign, and 0 counts as negative.
    """
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        if targets.is_floating_point() and not bool(torch.isin(targets, _SIGNS.to(targets)).all()):
            return torch.full((len(outputs),), torch.nan, device=outputs.device)
        return ((outputs.flatten() > 0) == (targets.flatten() > 0)).float()
    if targets.is_floating_point():
        return torch.full((len(outputs),), torch.nan, device=outputs.device)
    return (outputs.argmax(1) == targets).float()


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Share of right answers; of equal outputs the first counts.

    Example:
        >>> accuracy(torch.tensor([[1.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 1]))
        1.0
    """
    require_same_length(outputs=outputs, targets=targets)
    return double(hits(outputs, targets)).mean().item()


def evaluate(model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss) -> Evaluation:
    """Mean loss and accuracy in evaluation mode, in chunks; the mode is put back.

    Args:
        model: the network.
        inputs: one row per example, on the model's device.
        targets: labels or real targets.
        loss: of one example.
    """
    require_same_length(inputs=inputs, targets=targets)
    with in_mode(model, training=False):
        (result,) = evaluate_function(lambda x, y: _one_row(model(x), y, loss), inputs, targets)
    return result


def evaluate_function(
    losses_and_hits: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    inputs: Tensor,
    targets: Tensor,
    axis: int = 0,
    chunk: int = CHUNK,
) -> list[Evaluation]:
    """Means over the examples (an axis of the data), one result per row (network)."""
    totals: list[Tensor] = []
    with torch.no_grad():
        parts = zip(
            torch.split(inputs, chunk, axis), torch.split(targets, chunk, axis), strict=True
        )
        for x, y in parts:
            losses, right = losses_and_hits(x, y)
            totals.append(torch.stack([double(losses).sum(1), double(right).sum(1)]))
    means = torch.stack(totals).sum(0) / inputs.shape[axis]
    return [Evaluation(loss, share) for loss, share in means.T.tolist()]


def _one_row(outputs: Tensor, targets: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    return loss(outputs, targets)[None], hits(outputs, targets)[None]


@dataclass(frozen=True)
class LogEntry:
    """Both sets after so many steps."""

    step: int
    train: Evaluation
    test: Evaluation | None = None


@dataclass(frozen=True)
class TrainingLog:
    """The course of a run.

    Args:
        entries: whole sets at the logged steps, the first and the last step among them.
        epoch_losses: mean training loss of each epoch, taken while it ran.
        steps: steps done.
        stopped: why the run ended: ``"length"``, ``"loss"``, ``"accuracy"``, ``"improvement"`` or
            ``"callback"``.
    """

    entries: tuple[LogEntry, ...]
    epoch_losses: tuple[float, ...]
    steps: int
    stopped: str

    @property
    def final(self) -> LogEntry:
        """The sets at the end of the run."""
        return self.entries[-1]

    @property
    def gaps(self) -> GeneralizationGaps:
        """Generalisation gaps at the end of the run.

        Raises:
            DomainError: If the run had no test set.
        """
        train, test = self.final.train, self.final.test
        if test is None:
            raise DomainError("gaps: expected a run with a test set; pass test=(x, y) to train")
        return GeneralizationGaps(test.loss - train.loss, 100 * (train.accuracy - test.accuracy))

    def curve(
        self, subset: Literal["train", "test"], quantity: Literal["loss", "accuracy"]
    ) -> tuple[list[int], list[float]]:
        """Steps and values of one quantity, e.g. for :func:`area_under_curve`.

        Raises:
            DomainError: If the curve is that of a test set and the run had none.
        """
        values: list[float] = []
        for entry in self.entries:
            evaluation = entry.train if subset == "train" else entry.test
            if evaluation is None:
                raise DomainError("curve: this run had no test set; pass test=(x, y) to train")
            values.append(evaluation.loss if quantity == "loss" else evaluation.accuracy)
        return [entry.step for entry in self.entries], values

    def to_dict(self) -> dict[str, Any]:
        """Plain data, e.g. for JSON."""
        return asdict(self)


def log_from_dict(plain: dict[str, Any]) -> TrainingLog:
    """The inverse of :meth:`TrainingLog.to_dict`."""
    entries = tuple(
        LogEntry(
            entry["step"],
            Evaluation(**entry["train"]),
            None if entry["test"] is None else Evaluation(**entry["test"]),
        )
        for entry in plain["entries"]
    )
    return TrainingLog(entries, tuple(plain["epoch_losses"]), plain["steps"], plain["stopped"])


@array_function
def area_under_curve(
    positions: Float[Tensor, " k"], values: Float[Tensor, " k"]
) -> Float[Tensor, ""]:
    r"""Area under an accuracy curve by trapezoids, divided by the length of its range.

    .. math:: \frac{1}{x_k - x_1}\sum_{i<k} \tfrac12 (v_i + v_{i+1})(x_{i+1} - x_i)

    Range: between the smallest and the largest value.
    Invariant to: shifts and positive scaling of the positions.

    Args:
        positions: :math:`x`, epochs or steps, strictly increasing.
        values: :math:`v`, e.g. accuracies.

    Raises:
        ShapeError: If there are fewer than two points, or lengths differ.
        DomainError: If the positions do not increase, or an entry is not finite.

    Example:
        >>> area_under_curve(torch.tensor([0.0, 1.0, 4.0]), torch.tensor([0.0, 1.0, 1.0])).item()
        0.875

    References:
        [maennel2020], appendix B. Differs from paper: the normalisation is ours.
    """
    require_axes(1, positions=positions, values=values)
    require_same_length(positions=positions, values=values)
    require_finite(positions=positions, values=values)
    x, v = double(positions), double(values)
    if len(x) < 2:
        raise ShapeError(f"positions: expected at least two points, got {len(x)}")
    if not bool((x.diff() > 0).all()):
        raise DomainError("positions: expected strictly increasing numbers; sort the curve first")
    return torch.trapezoid(v, x) / (x[-1] - x[0])
