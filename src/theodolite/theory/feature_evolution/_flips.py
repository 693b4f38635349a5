"""Which side of its kink every unit is on, for any network: read from the operations it runs."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["activation_pattern", "count_flips"]

_ATEN = torch.ops.aten
# Operations with one kink at zero, as the dispatcher sees them whatever module or function ran.
_KINKED = {
    _ATEN.relu.default,
    _ATEN.relu_.default,
    _ATEN.leaky_relu.default,
    _ATEN.leaky_relu_.default,
    _ATEN._prelu_kernel.default,
    _ATEN.threshold.default,
    _ATEN.threshold_.default,
    _ATEN.clamp_min.default,
    _ATEN.clamp_min_.default,
}
_POOLS = {
    _ATEN.max_pool2d_with_indices.default,
    _ATEN.max_pool3d_with_indices.default,
    _ATEN.adaptive_max_pool2d.default,
    _ATEN.adaptive_max_pool3d.default,
}


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the sign of every input of a kinked operation, and the choices of max pooling."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.patterns: list[Tensor] = []

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function in _KINKED:  # before the call, which may be in place
            self.patterns.append((args[0] > 0).clone())
        result = function(*args, **(kwargs or {}))
        if function in _POOLS:
            self.patterns.append(result[1].clone())
        return result


def activation_pattern(function: Callable[[Tensor], Tensor], parameters: Tensor) -> list[Tensor]:
    """Signs and choices in the order of execution, for one evaluation without gradients."""
    with torch.no_grad(), _Recorder() as recorder:
        function(parameters)
    return recorder.patterns


def count_flips(before: list[Tensor], after: list[Tensor]) -> int:
    """Number of units, over all examples, that are on another side or choose another input."""
    return sum(int((a != b).sum()) for a, b in zip(before, after, strict=True))
