"""Every measure, every array argument: what is no array, or has no sensible shape, is refused."""

import numpy as np
import pytest
import torch

from tests.conformance.inputs import draw
from theodolite.errors import DomainError, DtypeError, ShapeError, TheodoliteError
from theodolite.measures.registry import MEASURES

ROWS = [pytest.param(row, id=f"{row.family}.{row.name}") for row in MEASURES.values()]
TAKES_NUMBERS = {"rotation_information", "rotation_angle_deviation", "rotation_length"}
BAD = {
    "list": (lambda value: value.tolist(), DtypeError, "got list; convert it with torch.as_tensor"),
    "none": (lambda value: None, DtypeError, "got NoneType"),
    "complex": (lambda value: value + 0j, DtypeError, "expected real numbers"),
    "empty": (lambda value: value[:0], ShapeError, "expected"),
    "number": (lambda value: value.flatten()[0], (ShapeError, DomainError), "expected"),
}


def tensors(arguments):
    return {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }


def is_optional(row, name, kind):
    """Where the bad value is a documented choice: no thresholds, no columns; single numbers."""
    if kind == "none":
        return name in {"thresholds", "columns"}
    return kind == "number" and row.name in TAKES_NUMBERS


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("row", ROWS)
def test_says_which_argument_is_malformed(row, kind):
    spoil, error, message = BAD[kind]
    arguments = tensors(draw(row.inputs, "random"))
    for name, value in arguments.items():
        if not isinstance(value, torch.Tensor) or is_optional(row, name, kind):
            continue
        with pytest.raises(error, match=message) as raised:
            row(**{**arguments, name: spoil(value)})
        assert name in str(raised.value)
        assert isinstance(raised.value, TheodoliteError)
