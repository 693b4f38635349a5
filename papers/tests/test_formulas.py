"""Formulas of the papers: against slow literal forms, in their ranges, with their invariances."""

import numpy as np
import pytest

from papers.tests.laws import FORMULAS
from tests.conformance.inputs import CASES, draw
from tests.conformance.test_conformance import outcome, precision, tensors, tolerance_unit
from tests.conformance.transformations import TRANSFORMATIONS
from tests.reference import REFERENCES
from tests.tolerances import TOLERANCE, assert_close
from theodolite.errors import TheodoliteError

EACH = [pytest.param(row, id=f"{row.family}.{row.name}") for row in FORMULAS.values()]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("row", EACH)
def test_agrees_with_the_literal_reference_and_stays_in_its_range(row, case):
    arguments = draw(row.inputs, case)
    reference = REFERENCES[row.name]
    given = tensors(arguments)
    expected = outcome(
        reference, {**arguments, **row.options, **precision(reference, dtype(given))}
    )
    actual = outcome(row, given)
    if isinstance(expected, type):
        assert actual is expected
        return
    unit = tolerance_unit(row, arguments)
    assert_close(actual, expected, scale=unit)
    defined = actual[~actual.isnan()]
    slack = TOLERANCE[defined.dtype if defined.is_floating_point() else dtype(given)] * unit
    assert ((defined >= row.range[0] - slack) & (defined <= row.range[1] + slack)).all()


def dtype(arguments):
    """That of the floating-point arguments."""
    return next(
        value.dtype
        for value in arguments.values()
        if hasattr(value, "dtype") and value.is_floating_point()
    )


@pytest.mark.parametrize("case", ["random", "rank_deficient"])
@pytest.mark.parametrize(
    ("row", "invariance"),
    [
        pytest.param(row, invariance, id=f"{row.name}-{invariance[0]}-{'+'.join(invariance[1:])}")
        for row in FORMULAS.values()
        for invariance in row.invariances
    ],
)
def test_keeps_its_invariances(row, invariance, case):
    arguments = draw(row.inputs, case, seed=2)
    before = outcome(row, tensors(arguments))
    moved = dict(arguments)
    TRANSFORMATIONS[invariance[0]](moved, invariance[1:], np.random.default_rng(3))
    after = outcome(row, tensors(moved))
    if isinstance(before, type):
        assert after is before
    else:
        assert_close(after, before, scale=10 * tolerance_unit(row, arguments))


@pytest.mark.parametrize("row", EACH)
def test_numpy_in_numpy_out(row):
    arguments = draw(row.inputs, "random")
    value = row(**arguments)
    assert isinstance(value, (np.ndarray, np.generic))
    assert_close(value, row(**tensors(arguments)), scale=tolerance_unit(row, arguments))


@pytest.mark.parametrize("row", EACH)
def test_refuses_what_is_not_finite(row):
    for name, value in draw(row.inputs, "random").items():
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            continue
        arguments = tensors(draw(row.inputs, "random"))
        arguments[name].view(-1)[0] = float("nan")
        with pytest.raises(TheodoliteError):
            row(**arguments)
