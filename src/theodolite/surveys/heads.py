"""A pretrained model up to its head, and a new head on the features that the old head received.

Fine-tuning on a new task begins with the pretrained body and an untrained linear head. At that
moment the tangent kernel has two parts. The part of the head is the kernel of the features. The
part of the body depends on the weights of the head. A head of zeros would give no gradients to the
body. A head that is fitted to the labels would leak all labels into the kernel. So the head has
independent random rows, and the body's kernel is averaged over them. The size of the head would set
the weights of the two parts, so both kernels are scaled and mixed instead.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.engine import Batch, first_tensor, untouched
from theodolite.engine.layers import CONVOLUTIONS
from theodolite.errors import DomainError, ShapeError, UnknownNameError

_CHANNELS_FIRST = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)


class _ReachedError(Exception):
    """Raised when the forward pass reaches the old head; has the input of the head."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


class Body(nn.Module):
    """A model up to its head: one row of features per example.

    Args:
        model: any module.
        head: name of the layer whose input is read; this layer does not run. None reads the output
            of the model. Tokens are averaged without padding. Maps are averaged over positions:
            the axes before the last one of a linear head, or after the channels of a convolution.
        channels_last: without a head, whether the model returns maps with features in the last
            axis. None: three axes are tokens, more axes are maps with channels first.
    """

    def __init__(
        self, model: nn.Module, head: str | None, channels_last: bool | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.channels_last = channels_last

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Features (n, d)."""
        mask = kwargs.get("attention_mask")
        if self.head is None:
            returned = first_tensor(self.model(*args, **kwargs), "output of the model")
            return _rows(returned, mask, channels_last=self.channels_last)

        def stop(_module: nn.Module, given: Any, named: Mapping[str, Any]) -> None:
            raise _ReachedError(first_tensor([*given, *named.values()], "input of the head"))

        target = self.model.get_submodule(self.head)
        handle = target.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self.model(*args, **kwargs)
        except _ReachedError as reached:
            return _rows(reached.features, mask, channels_last=_channels_last(target))
        finally:
            handle.remove()
        raise DomainError(
            f"head: expected a layer that the forward pass calls, got {self.head!r}, which it "
            "does not call; pass head='auto', or the name of the last layer that runs"
        )


class WithHead(nn.Module):
    """A body with a new linear head of independent random rows.

    Args:
        body: the pretrained part.
        width: number of its features.
        rows: number of outputs; with more, the traced kernel of the body is closer to its mean.
        seed: seed of the rows.
        like: a parameter or features that give device and dtype.
    """

    def __init__(self, body: Body, width: int, rows: int, seed: int, like: Tensor) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, rows)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(rows, width, generator=generator) / width**0.5)
            self.head.bias.zero_()
        self.head.to(like.device, like.dtype)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Outputs (n, rows)."""
        return self.head(self.body(*args, **kwargs))


def pretrained_body(model: nn.Module, batch: Batch, head: str | None = "auto") -> Body:
    """The model up to its head.

    The head is the last layer with parameters that runs. It must be linear (or a convolution over
    single positions), and the model must return its output, possibly reshaped. A model without a
    head decides itself where its features are.

    Args:
        model: any module, unwrapped.
        batch: a few examples.
        head: name of the head; ``"auto"`` finds it; None: there is no head.

    Raises:
        UnknownNameError: If there is no layer of this name.
    """
    named = dict(model.named_modules())
    if head is not None and head != "auto":
        if head not in named:
            raise UnknownNameError("head", head, named)
        return Body(model, head)
    name, result, returned = _last_layer(model, batch)
    if name is None or result is None:
        return Body(model, None)
    module, same = named[name], result.shape == returned.shape
    linear = isinstance(module, nn.Linear) and same
    single = isinstance(module, CONVOLUTIONS) and set(module.kernel_size) == {1}
    if head == "auto" and (linear or (single and returned.shape[:2] == result.shape[:2])):
        return Body(model, name)
    return Body(model, None, _channels_last(module) if same and name else None)


def _last_layer(model: nn.Module, batch: Batch) -> tuple[str | None, Tensor | None, Tensor]:
    """The last layer with parameters that runs, what it returns, and what the model returns."""
    last: list[tuple[str, Tensor]] = []

    def watch(name: str) -> Any:
        def hook(_module: nn.Module, _given: Any, returned: Any) -> None:
            if isinstance(returned, Tensor):
                last.append((name, returned))

        return hook

    handles = [
        module.register_forward_hook(watch(name))
        for name, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    try:
        with untouched(model), torch.no_grad():
            model.eval()
            returned = first_tensor(batch.run(model), "output of the model")
    finally:
        for handle in handles:
            handle.remove()
    name, result = last[-1] if last else (None, None)
    return name, result, returned


def _channels_last(layer: nn.Module) -> bool | None:
    """Whether a layer has features in the last axis; None if this is unknown."""
    if isinstance(layer, (nn.LayerNorm, nn.RMSNorm)):
        return True if len(layer.normalized_shape) == 1 else None
    if isinstance(layer, nn.Linear):
        return True
    return False if isinstance(layer, (*CONVOLUTIONS, *_CHANNELS_FIRST)) else None


def _rows(values: Tensor, mask: Any, *, channels_last: bool | None = None) -> Tensor:
    """One row per example: the mean over tokens without padding, or over the positions of a map.

    By default three axes are tokens, and more axes are maps with channels first.
    """
    if values.ndim < 2:
        raise ShapeError(
            f"features: expected one row per example, got shape {tuple(values.shape)}; pass head="
        )
    if values.ndim == 2:
        return values
    if not (values.ndim == 3 if channels_last is None else channels_last):
        return values.flatten(2).mean(2)
    rows = values.flatten(1, -2)
    if not isinstance(mask, Tensor) or mask.shape != rows.shape[:2]:
        return rows.mean(1)
    counts = mask.to(rows.device, rows.dtype).unsqueeze(2)
    return (rows * counts).sum(1) / counts.sum(1).clamp_min(1)
