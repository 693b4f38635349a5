"""Which outputs a tangent kernel is about: all of them, one, their trace, or a loss."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from theodolite.checks import require_choice
from theodolite.engine._losses import Loss, per_example_loss
from theodolite.engine.batches import Batch
from theodolite.errors import DomainError

__all__ = ["Mode", "OutputChoice", "Outputs", "resolve_outputs"]

Mode = Literal["full", "trace", "diagonal"]
Outputs = str | int | Loss


@dataclass(frozen=True)
class OutputChoice:
    """How rows of outputs become the functions whose gradients are compared.

    Args:
        mode: ``"full"``, ``"trace"`` or ``"diagonal"``; a single function uses ``"trace"``.
        index: The one output that counts, or None.
        loss: A loss with one value per example, or None.
    """

    mode: Mode
    index: int | None = None
    loss: Loss | None = None

    def select(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The chosen functions of every example, (n, c)."""
        if self.loss is not None:
            return per_example_loss(self.loss)(outputs, batch).unsqueeze(1)
        if self.index is None:
            return outputs
        count = outputs.shape[1]
        if not -count <= self.index < count:
            raise DomainError(
                f"outputs: expected an index below the number of outputs {count}, got {self.index}"
            )
        return outputs[:, self.index % count, None]


def resolve_outputs(outputs: Outputs) -> OutputChoice:
    """Turn the keyword ``outputs`` into a choice."""
    if isinstance(outputs, str):
        require_choice(("full", "trace", "diagonal"), outputs=outputs)
        modes: dict[str, Mode] = {"full": "full", "trace": "trace", "diagonal": "diagonal"}
        return OutputChoice(modes[outputs])
    if isinstance(outputs, int) and not isinstance(outputs, bool):
        return OutputChoice("trace", index=outputs)
    if callable(outputs):
        return OutputChoice("trace", loss=outputs)
    raise DomainError(
        "outputs: expected 'full', 'trace', 'diagonal', an index or a loss with one value per "
        f"example, got {outputs!r}"
    )
