"""Was every use of every parameter seen? The graph of autograd knows them all."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from theodolite.engine.uses import Interval, UseRecorder
from theodolite.errors import CaptureError

__all__ = ["require_complete"]


def require_complete(output: Tensor, recorder: UseRecorder) -> None:
    """Every edge of the graph into a parameter was made by a call that was recorded.

    Nodes carry the running number of their creation, and the recorder kept the numbers at the
    start and end of every call that received the parameter.

    Raises:
        CaptureError: If a node that no recorded call has made uses a parameter; names both.
    """
    targets = _targets(recorder)
    for node, following in _edges(output):
        if "CheckpointFunction" in node.name():
            raise CaptureError(
                "model: expected all operations in the graph, but reentrant checkpointing hides "
                "those inside it; pass use_reentrant=False to checkpoint, or turn it off"
            )
        variable = getattr(following, "variable", following)
        if id(variable) not in targets:
            continue
        _, name, intervals = targets[id(variable)]
        if not _made_inside(node, intervals):
            raise CaptureError(
                f"parameter {name!r}: expected all of its uses to be seen, but "
                f"{node.name()} uses it out of sight; a custom autograd.Function or compiled code "
                "is the usual cause: use torch functions, or leave it out with params="
            )


def _targets(recorder: UseRecorder) -> dict[int, tuple[Any, str, list[Interval]]]:
    """Parameters, and nodes that make tensors of parameters only -> when they were used.

    Several tensors can come from one node, as the chunks of a packed weight do. Nodes are kept
    with their entries: a wrapper that is let go gives its identity to the next one.
    """
    targets: dict[int, tuple[Any, str, list[Interval]]] = {}
    for key, origin in recorder.origins.items():
        made_by = origin.tensor if origin.tensor.grad_fn is None else origin.tensor.grad_fn
        _, _, intervals = targets.setdefault(id(made_by), (made_by, origin.roots[0], []))
        intervals.extend(recorder.intervals.get(key, []))
    return targets


def _edges(output: Tensor) -> Iterator[tuple[Any, Any]]:
    """All edges of the graph below a tensor."""
    stack: list[Any] = [output.grad_fn]
    seen: dict[int, Any] = {}  # the nodes themselves are kept: their wrappers must stay alive
    while stack:
        node = stack.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        for following, _ in node.next_functions:
            if following is not None:
                yield node, following
                stack.append(following)


def _made_inside(node: Any, intervals: list[Interval]) -> bool:
    number = node._sequence_nr()
    return any(start <= number < end for start, end in intervals)
