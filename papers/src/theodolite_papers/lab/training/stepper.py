"""One step of training: forward, backward, update; on a GPU recorded once and replayed.

Small networks on a GPU spend their time launching kernels. After a few ordinary steps a step is
recorded as a CUDA graph, one for each size of batch, and from then on launched as a whole.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Stepper", "own_stream"]

_WARM_UP = 3  # libraries set themselves up in the first steps, which cannot be recorded


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    arguments: tuple[Tensor, ...]
    losses: Tensor

    def replay(self, arguments: tuple[Tensor, ...]) -> Tensor:
        for ours, given in zip(self.arguments, arguments, strict=True):
            ours.copy_(given)
        self.graph.replay()
        return self.losses


class Stepper:
    """Calls ``losses(*arguments)``, differentiates the sum, and updates.

    Args:
        losses: mean loss of the batch that the arguments describe, or one per network of an
            ensemble. Arguments of equal size have equal shapes.
        optimizer: over the parameters that ``losses`` uses.
        graphs: whether to record steps; only on a GPU.
    """

    def __init__(
        self,
        losses: Callable[..., Tensor],
        optimizer: torch.optim.Optimizer,
        graphs: bool,
    ) -> None:
        self._losses, self._optimizer, self._graphs = losses, optimizer, graphs
        self._seen: Counter[int] = Counter()
        self._recordings: dict[int, _Recording] = {}

    def __call__(self, *arguments: Tensor) -> Tensor:
        """Do one step; the losses before it, which the next call may overwrite."""
        size = arguments[-1].numel()
        if not (self._graphs and arguments[0].is_cuda):
            return self._eager(arguments)
        self._seen[size] += 1
        if self._seen[size] <= _WARM_UP:
            return self._eager(arguments)
        if size not in self._recordings and not self._record(arguments):
            return self._eager(arguments)
        return self._recordings[size].replay(arguments)

    def _eager(self, arguments: tuple[Tensor, ...]) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        losses = self._losses(*arguments)
        (losses.sum() if losses.ndim else losses).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return losses.detach()

    def _record(self, arguments: tuple[Tensor, ...]) -> bool:
        """Record a step without doing it; False where the network cannot be recorded."""
        graph = torch.cuda.CUDAGraph()
        arguments = tuple(argument.clone() for argument in arguments)
        self._optimizer.zero_grad(set_to_none=True)
        try:
            with torch.cuda.graph(graph):
                losses = self._eager(arguments)
        except RuntimeError as error:
            self._graphs = False
            first = str(error).partition("\n")[0]
            warnings.warn(
                f"steps run one kernel at a time, since this network cannot be recorded: {first}; "
                "pass Recipe(graphs=False) to choose that",
                stacklevel=2,
            )
            return False
        self._recordings[arguments[-1].numel()] = _Recording(graph, arguments, losses)
        return True


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """On a GPU run the block on a stream of its own, as recording demands."""
    if device.type != "cuda":
        yield
        return
    outer = torch.cuda.current_stream(device)
    inner = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    inner.wait_stream(outer)
    try:
        with torch.cuda.device(device), torch.cuda.stream(inner):
            yield
    finally:
        outer.wait_stream(inner)
