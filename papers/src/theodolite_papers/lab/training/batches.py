"""The data of a run on its device, and which examples belong to which step."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from theodolite.checks import require_finite, require_labels, require_nonempty, require_same_length
from theodolite.errors import DomainError
from theodolite_papers.lab.training.augmentation import Augmentation
from theodolite_papers.lab.training.losses import Logistic, Loss
from theodolite_papers.lab.training.modes import in_mode
from theodolite_papers.lab.training.recipe import Recipe
from theodolite_papers.lab.training.seeds import seeded

__all__ = ["Batches", "epoch_order", "place_data"]


def epoch_order(seed: int, epoch: int, examples: int) -> Int[Tensor, " n"]:
    """The order in which one epoch visits the examples: a fresh permutation per (seed, epoch)."""
    return torch.randperm(examples, generator=seeded(seed, "order", epoch))


class Batches:
    """Inputs and targets of any step, without state that depends on earlier steps.

    With several seeds (an ensemble) every answer has one row per seed; the data are then shared
    or have one row per seed too.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        recipe: Recipe,
        seeds: Sequence[int] | None = None,
        stacked: bool = False,
    ) -> None:
        self._inputs, self._targets, self._recipe = inputs, targets, recipe
        self._seeds = seeds
        self._rows = (torch.arange(len(inputs), device=inputs.device)[:, None],) if stacked else ()
        self._examples = inputs.shape[1] if stacked else len(inputs)
        self._per_epoch = recipe.steps_per_epoch(self._examples)
        self._epoch, self._chosen = -1, tuple[Tensor, ...]()

    def arguments(self, step: int) -> tuple[Tensor, ...]:
        """What :meth:`assemble` needs for a step, counted from 0: small where nothing is random."""
        epoch, position = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._chosen = torch.split(self._orders(epoch), self._recipe.batch_size, dim=-1)
        chosen = self._chosen[position]
        if self._recipe.augmentation is None:
            return (chosen,)
        # Drawn from a generator of this step, which a recorded step could not do.
        inputs, targets = self._gathered(chosen)
        return self._augmented(self._recipe.augmentation, inputs, step), targets

    def assemble(self, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the step; the same kernels for all steps, so it can be recorded."""
        return arguments if len(arguments) == 2 else self._gathered(arguments[0])

    def _gathered(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        where = (*self._rows, chosen)
        return self._inputs[where], self._targets[where]

    def _orders(self, epoch: int) -> Tensor:
        seeds = [self._recipe.seed] if self._seeds is None else self._seeds
        orders = [epoch_order(seed, epoch, self._examples) for seed in seeds]
        order = orders[0] if self._seeds is None else torch.stack(orders)
        return order.to(self._inputs.device)

    def _augmented(self, augmentation: Augmentation, inputs: Tensor, step: int) -> Tensor:
        device = inputs.device
        if self._seeds is None:
            return augmentation(inputs, seeded(self._recipe.seed, "augmentation", step, device))
        changed = [
            augmentation(images, seeded(seed, "augmentation", step, device))
            for images, seed in zip(inputs, self._seeds, strict=True)
        ]
        return torch.stack(changed)


def place_data(
    model: nn.Module, data: tuple[Any, Any], loss: Loss, name: str = "data"
) -> tuple[Tensor, Tensor]:
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
        # On a GPU a label without an output would end the process, not raise.
        require_labels(targets, outputs.shape[1], name=f"{name}[1]")
        targets = targets.long()
    return inputs, targets
