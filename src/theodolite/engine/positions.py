"""Labels per position: next tokens, tags of words, maps of pixels, numbers at every step.

This module knows how labels are arranged beside the outputs of a model, which of them count, and
the loss of a sequence.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from theodolite.engine.batches import IGNORED, Batch
from theodolite.engine.calls import tensors_in
from theodolite.linalg import checks_classes

PositionKind = Literal["classes", "binary", "numbers"]


@dataclass(frozen=True)
class PositionLabels:
    """The arrangement of labels beside outputs, position by position.

    Args:
        grid: Sizes of the positions: (T,) for tokens, (H, W) for pixels.
        kind: "classes" (one label among the outputs), "binary" (0 or 1 beside a single output), or
            "numbers" (as many real numbers as outputs).
        outputs: Number of outputs at a position.
        last: Whether outputs are (n, T, c) or (n, H, W, c); otherwise (n, c, H, W).
        shift: 1 if the output at a position predicts the label of the next position.
        masked: Whether the mask of the batch says which labels count.

    Examples:
        >>> batch = Batch((torch.tensor([[5, 7, 9]]),), targets=torch.tensor([[5, 7, 9]]))
        >>> found = PositionLabels.of(torch.zeros(1, 3, 10), batch)
        >>> found.shift, found.targets(batch).tolist()
        (1, [[7, 9, -100]])
    """

    grid: tuple[int, ...]
    kind: PositionKind
    outputs: int
    last: bool
    shift: int = 0
    masked: bool = False

    @classmethod
    @checks_classes
    def of(cls, outputs: Tensor, batch: Batch) -> "PositionLabels | None":
        """The arrangement, from the shapes; None unless there is a label for every position.

        Args:
            outputs: Outputs of the model, with one or more axes of positions.
            batch: Inputs and targets. If the labels are the inputs themselves, as for the causal
                language models of Hugging Face, the shift is 1.
        """
        targets = batch.targets
        if not isinstance(targets, Tensor) or outputs.is_nested or not outputs.is_floating_point():
            return None
        if outputs.ndim < 3 or targets.ndim < 2 or len(targets) != len(outputs):
            return None
        maps, same = outputs.ndim > 3, targets.shape == outputs.shape  # maps have channels first
        ways = [not maps] if same else [not maps, maps]
        fitting = [w for w in ways if same or _positions(outputs, w) == tuple(targets.shape[1:])]
        if not fitting:
            return None
        last = fitting[0]
        grid, columns = _positions(outputs, last), outputs.shape[-1 if last else 1]
        kind: PositionKind = "numbers" if same or columns == 1 else "classes"
        if columns == 1 and _is_binary(targets):
            kind = "binary"
        elif (kind == "numbers") != targets.is_floating_point():
            return None
        shift = int(kind == "classes" and len(grid) == 1 and _labels_are_inputs(batch))
        mask, decodes = batch.mask, "decoder_input_ids" in batch.kwargs
        masked = mask is not None and not decodes and tuple(mask.shape[1:]) == grid
        return cls(grid, kind, columns, last, shift, masked)

    @property
    def count(self) -> int:
        """Positions of one example."""
        return math.prod(self.grid)

    def rows(self, outputs: Tensor) -> Float[Tensor, "n p c"]:
        """Outputs of every position."""
        return outputs.flatten(1, -2) if self.last else outputs.flatten(2).transpose(1, 2)

    def targets(self, batch: Batch) -> Tensor:
        """The target of every position, (n, p), or (n, p, c) for numbers."""
        given = batch.targets
        if self.kind == "numbers" and given.ndim == len(self.grid) + 2:
            return self.rows(given)
        flat = given.reshape(len(given), self.count)
        if self.kind == "numbers":
            return flat.unsqueeze(2)
        flat = flat.long()
        if self.shift:
            flat = functional.pad(flat[:, self.shift :], (0, self.shift), value=IGNORED)
        return flat

    def counted(self, batch: Batch) -> Bool[Tensor, "n p"]:
        """Which positions count: those that are not padding and whose label is not -100 or nan."""
        targets = self.targets(batch)
        known = ~targets.isnan().any(2) if self.kind == "numbers" else targets != IGNORED
        if self.masked and batch.mask is not None:
            mask = batch.mask.reshape(len(known), self.count).to(known.device).bool()
            known = known & functional.pad(mask[:, self.shift :], (0, self.shift), value=False)
        return known

    def losses(self, outputs: Tensor, batch: Batch) -> Float[Tensor, "n p"]:
        """Cross-entropy or squared error of every position; zero if it does not count."""
        targets, counted = self.targets(batch), self.counted(batch)
        if self.kind == "numbers":
            real = targets.to(outputs.dtype).where(counted.unsqueeze(2), 0.0)
            return (self.rows(outputs) - real).square().sum(2).where(counted, 0.0)
        wide = torch.promote_types(outputs.dtype, torch.float32)
        if self.kind == "binary":
            real = targets.clamp(min=0).to(wide)
            values = self.rows(outputs).squeeze(2).to(wide)
            losses = functional.binary_cross_entropy_with_logits(values, real, reduction="none")
            return losses.where(counted, 0.0)
        wanted = targets.where(counted, IGNORED)
        if self.last:
            flat = outputs.flatten(0, -2).to(wide)
            losses = functional.cross_entropy(
                flat, wanted.flatten(), reduction="none", ignore_index=IGNORED
            )
            return losses.view(counted.shape)
        return functional.cross_entropy(
            outputs.flatten(2).to(wide), wanted, reduction="none", ignore_index=IGNORED
        )

    def loss(self, outputs: Tensor, batch: Batch) -> Float[Tensor, " n"]:
        """Mean loss over the positions of each example that count; 0 if none counts."""
        return self.losses(outputs, batch).sum(1) / self.counted(batch).sum(1).clamp(min=1)


def _positions(outputs: Tensor, last: bool) -> tuple[int, ...]:
    return tuple(outputs.shape[1:-1] if last else outputs.shape[2:])


def _is_binary(targets: Tensor) -> bool:
    known = targets if targets.is_floating_point() else targets[targets != IGNORED]
    return bool(((known == 0) | (known == 1)).all())


def _labels_are_inputs(batch: Batch) -> bool:
    """Whether the labels that count are the inputs (whole numbers) at the same places.

    This is so for the causal language models of Hugging Face, which shift labels themselves.
    """
    targets = batch.targets
    counted = targets != IGNORED
    for tensor in tensors_in(batch.inputs):
        plain = tensor.shape == targets.shape and not tensor.is_floating_point()
        if plain and tensor is not batch.mask and bool(((tensor == targets) | ~counted).all()):
            return bool(counted.any())
    return False
