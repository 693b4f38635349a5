"""One row of the registry: all that tests and the documentation need of a measure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from torch import Tensor

__all__ = ["Family", "Invariance", "Measure", "Transformation", "unit"]

Family = Literal["representation", "covariance", "kernel", "tangent", "gradient"]

Transformation = Literal[
    "permute_rows",  # the same permutation of the examples in every named argument
    "permute_rows_and_columns",  # of Gram matrices; of both example axes of a 4-d kernel
    "rotate_columns",  # the same orthogonal map of the feature axis
    "rotate_both",  # Q A Q^T of every named square matrix, rows times Q^T of every other
    "rotate_rows",  # the same orthogonal map of the example axis
    "scale",  # by a positive number, drawn for each argument
    "negate",
    "shift_rows",  # add one constant vector to every row
    "shift_entries",  # add one constant to every entry
    "append_zero_columns",
    "swap",  # exchange the two named arguments
    "rename_classes",
    "invert",  # a positive definite matrix by its inverse
]


@dataclass(frozen=True)
class Invariance:
    """A map of some arguments that leaves the value as it was."""

    transformation: Transformation
    arguments: tuple[str, ...]


def unit(**_arguments: Any) -> float:
    """Scale 1, condition 1: the default for numbers of order one."""
    return 1.0


@dataclass(frozen=True)
class Measure:
    """What is known about a measure, or about one of its estimators.

    ``scale`` and ``condition`` are functions of the arguments (keywords, tensors): a measure agrees
    with its literal reference within ``tolerance * scale * condition``.
    """

    name: str  # of the function, with a suffix where estimators differ: "linear_cka.biased"
    function: Callable[..., Any]
    family: Family
    inputs: Mapping[str, str]  # argument -> kind of input, the vocabulary of the input generators
    meaning: str  # one sentence: what does the number tell me?
    reference: str  # "[key], Eq. (2)"
    range: tuple[float, float] = (-inf, inf)
    larger_is_more_aligned: bool | None = None  # None: neither direction means aligned
    invariances: tuple[Invariance, ...] = ()
    differentiable: Mapping[str, bool] = field(default_factory=dict)  # per array argument
    options: Mapping[str, Any] = field(default_factory=dict)  # fixed keywords of this row
    scale: Callable[..., float] = unit
    condition: Callable[..., float] = unit
    values: Callable[[Any], Tensor] | None = None  # the number inside a structured result

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        """The measure with this row's options."""
        result = self.function(*args, **{**self.options, **arguments})
        return result if self.values is None else self.values(result)
