"""What a test needs to know of a measure beyond its row in the registry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


def unit(**_arguments) -> float:
    """Scale 1, condition 1: the default for numbers of order one."""
    return 1.0


@dataclass(frozen=True)
class Law:
    """How to draw a measure's arguments, which maps of them leave it alone, and how well.

    ``scale`` and ``condition`` are functions of the arguments (keywords, tensors): a measure agrees
    with its literal reference within ``tolerance * scale * condition``.
    """

    inputs: Mapping[str, str]  # argument -> kind of input, the vocabulary of the input generators
    invariances: tuple[tuple[str, ...], ...] = ()  # transformation, then the arguments it maps
    scale: Callable[..., float] = unit
    condition: Callable[..., float] = unit
