"""Every measure, every array argument: what is no array, or has no sensible shape, is refused."""

import numpy as np
import pytest
import torch

from tests.conformance.inputs import draw
from tests.conformance.laws import ROWS
from theodolite.errors import DomainError, DtypeError, ShapeError, TheodoliteError

EACH = [pytest.param(row, id=f"{row.family}.{row.name}") for row in ROWS.values()]
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
@pytest.mark.parametrize("row", EACH)
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


LABELLED = [
    pytest.param(row, name, id=row.name)
    for row in ROWS.values()
    for name, kind in row.inputs.items()
    if kind == "labels" and not row.name.startswith("one_vs_one")
]


@pytest.mark.parametrize(("row", "name"), LABELLED)
def test_names_that_are_no_class_numbers_are_refused(row, name):
    """Hashes and identities: work would grow with the largest of them."""
    arguments = tensors(draw(row.inputs, "random"))
    names = {**arguments, name: arguments[name] * 10**9 + 7}
    with pytest.raises(DomainError, match=rf"{name}: .* got a label of .*torch\.unique"):
        row(**names)
