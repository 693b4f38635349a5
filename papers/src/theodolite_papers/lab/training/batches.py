"""The data of a run on its device; the examples of each step, and their augmentation.

Seeds are derived from the run's seed, one for each purpose and each epoch or step. The order of
any epoch is known without earlier ones, so a run can be resumed anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from theodolite.checks import (
    require_axes,
    require_count,
    require_finite,
    require_labels,
    require_nonempty,
    require_same_length,
)
from theodolite.errors import DomainError, ShapeError
from theodolite_papers.lab.training.evaluation import in_mode
from theodolite_papers.lab.training.losses import Logistic, Loss

__all__ = [
    "Augmentation",
    "Batches",
    "Data",
    "PlacedData",
    "derived_seed",
    "epoch_order",
    "place_data",
    "steps_per_epoch",
]

Data = tuple[Any, Any]  # inputs and targets, as given
_Purpose = Literal["order", "augmentation", "noise"]
_PURPOSES = {"order": 0, "augmentation": 1, "noise": 2}


def derived_seed(seed: int, purpose: _Purpose, index: int = 0) -> int:
    """A seed that depends on all three, unlike those of all neighbours."""
    sequence = np.random.SeedSequence([seed, _PURPOSES[purpose], index])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)  # torch takes 63 bits


def _seeded(
    seed: int, purpose: _Purpose, index: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A generator with the derived seed."""
    return torch.Generator(device).manual_seed(derived_seed(seed, purpose, index))


def epoch_order(seed: int, epoch: int, examples: int) -> Int[Tensor, " n"]:
    """The order in which one epoch visits the examples: a fresh permutation per (seed, epoch)."""
    return torch.randperm(examples, generator=_seeded(seed, "order", epoch))


def steps_per_epoch(examples: int, batch_size: int, drop_last: bool = False) -> int:
    """Batches in one pass over the data.

    Raises:
        DomainError: If the last batch is dropped and there is no other.

    Example:
        >>> steps_per_epoch(20_000, 256, drop_last=True), steps_per_epoch(50_000, 256)
        (78, 196)
    """
    require_count(1, examples=examples, batch_size=batch_size)
    if not drop_last:
        return ceil(examples / batch_size)
    if examples < batch_size:
        raise DomainError(
            f"batch_size: expected at most the {examples} examples where incomplete batches are "
            f"dropped, got {batch_size}; pass a smaller batch_size or drop_last=False"
        )
    return examples // batch_size


@dataclass(frozen=True)
class PlacedData:
    """Inputs and targets on the device; ``stacked`` ones have one row per network."""

    inputs: Tensor
    targets: Tensor
    stacked: bool = False

    @property
    def examples(self) -> int:
        """How many there are (for each network)."""
        return self.inputs.shape[int(self.stacked)]


def place_data(model: nn.Module, data: Data, loss: Loss, name: str = "data") -> PlacedData:
    """Inputs and targets as tensors on the model's device, real numbers in its dtype; checked.

    Raises:
        ShapeError: If there is not one target per input.
        DomainError: If an input is not finite, or a label has no output of the network.
    """
    inputs, targets = (torch.as_tensor(part) for part in data)
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    if parameter is None:
        raise DomainError("model: expected at least one parameter to train, got none")
    device, dtype = parameter.device, parameter.dtype
    inputs = inputs.to(device, dtype if inputs.is_floating_point() else None)
    targets = targets.to(device, dtype if targets.is_floating_point() else None)
    named = {f"{name}[0]": inputs, f"{name}[1]": targets}
    require_nonempty(**named)
    require_same_length(**named)
    require_finite(**named)
    if not targets.is_floating_point() and not isinstance(loss, Logistic):
        with in_mode(model, training=False), torch.no_grad():
            outputs = model(inputs[:1])
        # On a GPU a label without an output would end the process without an error.
        require_labels(targets, outputs.shape[1], name=f"{name}[1]")
        targets = targets.long()
    return PlacedData(inputs, targets)


@dataclass(frozen=True)
class Augmentation:
    """Horizontal flip (every second image), translation within a padding, a square cut out.

    Uncovered and cut-out pixels have the value ``fill``: 0, the mean of standardised images.

    Args:
        flip: whether images are mirrored with probability 1/2.
        padding: largest translation, in pixels, along each axis.
        cutout: side of the square that is replaced; 0 replaces nothing.
        fill: the value put in.

    Example:
        >>> images = torch.ones(2, 3, 8, 8)
        >>> cut = Augmentation(flip=False, padding=0, cutout=4)(images, torch.Generator())
        >>> (cut == 0).sum().item() == 2 * 3 * 16
        True

    References:
        [canatar2022], section IV. Differs from paper: it does not say which augmentation; this is
        the recipe of the training library that it names.
    """

    flip: bool = True
    padding: int = 2
    cutout: int = 4
    fill: float = 0.0

    def __post_init__(self) -> None:
        require_count(0, padding=self.padding, cutout=self.cutout)

    def __call__(
        self, images: Float[Tensor, "n c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c h w"]:
        """Changed copies of the images; the generator lives on their device."""
        require_axes(4, images=images)
        height, width = images.shape[2:]
        if self.cutout > min(height, width):
            raise ShapeError(
                f"cutout: expected at most the images' side {min(height, width)}, got {self.cutout}"
            )

        def draws(options: int) -> Int[Tensor, " n"]:
            """One uniform integer below ``options`` per image."""
            return torch.randint(options, (len(images),), generator=generator, device=images.device)

        # All numbers are drawn in a fixed order, so that one option does not change another's
        # numbers.
        mirrored, down, right = draws(2), draws(2 * self.padding + 1), draws(2 * self.padding + 1)
        top, left = draws(height - self.cutout + 1), draws(width - self.cutout + 1)
        if self.flip:
            images = torch.where(mirrored.view(-1, 1, 1, 1) == 1, images.flip(3), images)
        if self.padding:
            images = self._translated(images, down, right)
        if self.cutout:
            rows = _inside(top, self.cutout, height)[:, None, :, None]
            columns = _inside(left, self.cutout, width)[:, None, None, :]
            images = images.masked_fill(rows & columns, self.fill)
        return images

    def _translated(self, images: Tensor, down: Tensor, right: Tensor) -> Tensor:
        height, width = images.shape[2:]
        padded = functional.pad(images, [self.padding] * 4, value=self.fill)
        device = images.device
        rows = down[:, None] + torch.arange(height, device=device)
        columns = right[:, None] + torch.arange(width, device=device)
        which = torch.arange(len(images), device=device)[:, None, None]
        channels_last = padded.permute(0, 2, 3, 1)
        return channels_last[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _inside(start: Tensor, length: int, size: int) -> Tensor:
    positions = torch.arange(size, device=start.device)
    return (positions >= start[:, None]) & (positions < start[:, None] + length)


class Batches:
    """Inputs and targets of any step, without state that depends on earlier steps.

    Args:
        data: on its device.
        seeds: one, or one for each network of an ensemble; every answer then has a row per seed.
        batch_size: examples per step.
        drop_last: whether the incomplete last batch of an epoch is left out.
        augmentation: random changes of the images of each batch.
    """

    def __init__(
        self,
        data: PlacedData,
        seeds: int | Sequence[int],
        batch_size: int,
        drop_last: bool = False,
        augmentation: Augmentation | None = None,
    ) -> None:
        self._data, self._seeds = data, seeds
        self._batch_size, self._augmentation = batch_size, augmentation
        self._device = data.inputs.device
        self._rows = (torch.arange(len(data.inputs), device=self._device)[:, None],)
        self._per_epoch = steps_per_epoch(data.examples, batch_size, drop_last)
        self._epoch, self._chosen = -1, tuple[Tensor, ...]()

    def arguments(self, step: int) -> tuple[Tensor, ...]:
        """Arguments of :meth:`assemble` for a step, counted from 0; small if nothing is random."""
        epoch, position = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._chosen = torch.split(self._order(epoch), self._batch_size, dim=-1)
        chosen = self._chosen[position]
        if self._augmentation is None:
            return (chosen,)
        # Drawn from a generator of this step; a recorded step cannot draw them.
        inputs, targets = self._gathered(chosen)
        return self._augmented(self._augmentation, inputs, step), targets

    def assemble(self, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the step; the same kernels for all steps, so it can be recorded."""
        return arguments if len(arguments) == 2 else self._gathered(arguments[0])

    def _gathered(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        where = (*self._rows, chosen) if self._data.stacked else (chosen,)
        return self._data.inputs[where], self._data.targets[where]

    def _order(self, epoch: int) -> Tensor:
        if isinstance(self._seeds, int):
            return epoch_order(self._seeds, epoch, self._data.examples).to(self._device)
        orders = [epoch_order(seed, epoch, self._data.examples) for seed in self._seeds]
        return torch.stack(orders).to(self._device)

    def _augmented(self, augmentation: Augmentation, inputs: Tensor, step: int) -> Tensor:
        def changed(images: Tensor, seed: int) -> Tensor:
            return augmentation(images, _seeded(seed, "augmentation", step, self._device))

        if isinstance(self._seeds, int):
            return changed(inputs, self._seeds)
        return torch.stack(list(map(changed, inputs, self._seeds)))
