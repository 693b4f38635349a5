"""Sums of the gradients of single examples, per layer and class, from which alignment follows.

Examples go by in class order. Gradients of single examples never exist for more than one chunk of
one layer; what is kept is a norm per example and, per parameter, two sums.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from theodolite._distributed import ALONE, Processes
from theodolite.checks import require_count, require_labels, require_same_length
from theodolite.engine._gradient_accumulation import GradientAccumulation
from theodolite.engine._layer_sums import LayerSums
from theodolite.engine._losses import Loss, per_example_loss
from theodolite.engine._outputs import OutputChoice
from theodolite.engine._progress import Watch
from theodolite.engine._runs import Subject
from theodolite.engine.batches import Batch, single_batch
from theodolite.engine.layers import Layers, own_parameters, unwrap
from theodolite.engine.modes import require_fixed_mode
from theodolite.engine.readouts import Readout, resolve_readout
from theodolite.engine.state import exact_arithmetic, untouched
from theodolite.errors import UnknownNameError

__all__ = ["GradientSums", "gradient_sums"]

_BATCH_SIZE = 256
_LARGE_BATCH_SIZE = 512  # where a GPU has room, fewer and larger calls
_ROOM = 32 * 2**30


@dataclass(frozen=True)
class GradientSums(Mapping[str, LayerSums]):
    """Layer -> sums of the gradients of its parameters, in order of registration.

    Args:
        names: the layers.
        stacked: sums of all layers side by side, then of all parameters, then of the logits.
        labels: class of each example.
        losses: loss of each example.
    """

    names: tuple[str, ...]
    stacked: LayerSums
    labels: Int[Tensor, " n"]
    losses: Float[Tensor, " n"]

    def __getitem__(self, layer: str) -> LayerSums:
        if layer not in self.names:
            raise UnknownNameError("layer", layer, self.names)
        return self.stacked.row(self.names.index(layer))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def total(self) -> LayerSums:
        """Sums for all parameters together."""
        return self.stacked.row(-2)

    @property
    def logits(self) -> LayerSums:
        """Sums of the gradients with respect to the outputs of the model."""
        return self.stacked.row(-1)


def gradient_sums(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    loss: Loss | None = None,
    *,
    labels: Int[Tensor, " n"] | None = None,
    layers: Layers = "*",
    params: Any = None,
    readout: str | Readout | None = None,
    stiffness: bool = False,
    batch_size: int | None = None,
    batch_fn: Callable[[Any], Batch] | None = None,
    check: bool = True,
    progress: Watch | None = None,
    processes: Processes = ALONE,
) -> GradientSums:
    r"""Sums of per-example gradients :math:`g_i = \nabla \ell_i`, per layer and class.

    .. math:: n_c,\quad \Big\|\sum_{i\in c} g_i\Big\|^2,\quad \sum_{i\in c} \|g_i\|,
              \quad \sum_{i\in c} \|g_i\|^2

    One forward and one backward pass over the data, without the gradients of the weights, and
    products of the size of those. The value does not depend on the batch size beyond rounding.

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        inputs: anything that :func:`theodolite.engine.batches.single_batch` accepts; the inputs
            of all examples are kept.
        targets: of the same examples, where ``inputs`` does not hold them.
        loss: (outputs, targets) -> one number per example; None is the cross-entropy.
        labels: class of each example; None takes the targets where they are class indices, else
            all examples form one class.
        layers: names, patterns or a predicate; ``"*"`` takes layers with parameters of their own.
        params: which trainable parameters count; None takes all.
        readout: (model output, batch) -> ``(n, c)``, or ``"last"``, ``"mean"``, ``"cls"``.
        stiffness: also add up gradients divided by their norms, a second product per layer.
        batch_size: examples in one pass; None takes 256, on large GPUs 512.
        batch_fn: turns an item of the data into a batch.
        check: compare the first example with plain autograd in a pass of its own, for every
            parameter, and the sum over the first batch for the last ones; a difference is an
            error.
        progress: called with the share that is done and what was done, after every batch.
        processes: that have the same model and inputs and share the work, in whole classes.

    Raises:
        DomainError: If the model normalises over the batch, drops out units, has no trainable
            parameters or NaN in its weights.
        ShapeError: If the loss does not give one number per example.
        CaptureError: If a gradient disagrees with plain autograd.

    Example:
        >>> model = nn.Linear(2, 2, bias=False)
        >>> sums = gradient_sums(model, torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 0, 1]))
        >>> [round(omega, 4) for omega in sums[""].classes.alignment().tolist()]
        [1.0, 1.0]

    References:
        [mehta2021], Eqs. (4) to (6).
    """
    require_count(1, batch_size=_BATCH_SIZE if batch_size is None else batch_size)
    plain = unwrap(model)
    require_fixed_mode(plain)
    owned = own_parameters(plain, layers, params)
    functions = OutputChoice("full")
    subject = Subject(plain, owned, resolve_readout(readout), functions, trusted=not check)
    data = single_batch(inputs, targets=targets, batch_fn=batch_fn)
    classes = _labels(data, labels)
    work = GradientAccumulation(subject, per_example_loss(loss), classes, stiffness, processes)
    work.progress = progress
    device = next(iter(owned.parameters.values())).device
    with untouched(plain), exact_arithmetic(device):
        work.run(data, batch_size or _batch_size(device), check=check)
        stacked = work.sums()
    return GradientSums(work.layers[:-2], stacked, classes, work.losses())


def _batch_size(device: torch.device) -> int:
    roomy = device.type == "cuda" and torch.cuda.mem_get_info(device)[0] > _ROOM
    return _LARGE_BATCH_SIZE if roomy else _BATCH_SIZE


def _labels(data: Batch, labels: Tensor | None) -> Tensor:
    targets = data.targets
    if labels is None and isinstance(targets, Tensor) and targets.ndim == 1:
        is_index = not (targets.is_floating_point() or targets.dtype == torch.bool)
        labels = targets if is_index else None
    if labels is None:
        return torch.zeros(len(data), dtype=torch.long)
    require_labels(labels)
    require_same_length(inputs=torch.empty(len(data)), labels=labels)
    return labels.detach().cpu().long()
