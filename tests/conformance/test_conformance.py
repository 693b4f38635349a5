"""Laws that hold for every measure, read off its row in the registry and its law."""

import inspect
from math import isfinite

import numpy as np
import pytest
import torch

from tests.conformance.inputs import CASES, draw
from tests.conformance.laws import FAMILIES, ROWS
from tests.conformance.transformations import TRANSFORMATIONS
from tests.reference import REFERENCES
from tests.tolerances import TOLERANCE, assert_close
from theodolite import measures
from theodolite.errors import TheodoliteError

EACH = [pytest.param(row, id=f"{row.family}.{row.name}") for row in ROWS.values()]
BOTH = [torch.float64, torch.float32]


def tensors(arguments, dtype=torch.float64):
    """The drawn arguments as tensors; integers stay integers, plain numbers stay plain."""

    def convert(value):
        if not isinstance(value, np.ndarray):
            return value
        tensor = torch.from_numpy(value.copy())
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return {name: convert(value) for name, value in arguments.items()}


def tolerance_unit(row, arguments):
    """Natural scale times condition number of a row at some arguments."""
    unit = float(row.scale(**tensors(arguments))) * float(row.condition(**tensors(arguments)))
    return unit if isfinite(unit) else 1.0


def outcome(function, arguments):
    """The value, or the class of the error this library raises on purpose."""
    try:
        return function(**arguments)
    except TheodoliteError as error:
        return type(error)


def precision(reference, dtype):
    """Rounding unit of the input, for references whose thresholds depend on it."""
    if "eps" not in inspect.signature(reference).parameters:
        return {}
    return {"eps": torch.finfo(dtype).eps}


# Single precision differs from double in its thresholds alone: two cases show them.
PRECISIONS = [
    *((torch.float64, case) for case in CASES),
    *((torch.float32, case) for case in ("random", "rank_deficient")),
]


@pytest.mark.parametrize(("dtype", "case"), PRECISIONS, ids=str)
@pytest.mark.parametrize("row", EACH)
def test_agrees_with_the_literal_reference_and_stays_in_its_range(row, dtype, case):
    arguments = draw(row.inputs, case)
    rounded = {
        name: value.astype(np.float32).astype(np.float64)
        if dtype == torch.float32 and isinstance(value, np.ndarray) and value.dtype.kind == "f"
        else value
        for name, value in arguments.items()
    }
    reference = REFERENCES[row.name]
    expected = outcome(reference, {**rounded, **row.options, **precision(reference, dtype)})
    actual = outcome(row, tensors(rounded, dtype))
    if isinstance(expected, type):
        assert actual is expected
        return
    unit = tolerance_unit(row, rounded)
    assert_close(actual, expected, scale=unit, dtype=dtype)
    defined, slack = actual[~actual.isnan()], TOLERANCE[dtype] * unit
    assert ((defined >= row.range[0] - slack) & (defined <= row.range[1] + slack)).all()


@pytest.mark.parametrize("case", ["random", "rank_deficient", "wide"])
@pytest.mark.parametrize(
    ("row", "invariance"),
    [
        pytest.param(
            row,
            invariance,
            id=f"{row.name}-{invariance[0]}-{'+'.join(invariance[1:])}",
        )
        for row in ROWS.values()
        for invariance in row.invariances
    ],
)
def test_keeps_its_invariances(row, invariance, case):
    arguments = draw(row.inputs, case, seed=2)
    before = outcome(row, tensors(arguments))
    moved = dict(arguments)
    rng = np.random.default_rng(3)
    TRANSFORMATIONS[invariance[0]](moved, invariance[1:], rng)
    after = outcome(row, tensors(moved))
    if isinstance(before, type):
        assert after is before
    else:
        assert_close(after, before, scale=10 * tolerance_unit(row, arguments))


@pytest.mark.parametrize("factor", [1e-200, 1e200])
@pytest.mark.parametrize(
    ("row", "name"),
    [
        pytest.param(row, name, id=f"{row.name}-{name}")
        for row in ROWS.values()
        for invariance in row.invariances
        for name in invariance[1:]
        if invariance[0] == "scale"
    ],
)
def test_scale_free_up_to_the_limits_of_float64(row, name, factor):
    arguments = draw(row.inputs, "random", seed=2)
    before = row(**tensors(arguments))
    after = row(**tensors({**arguments, name: arguments[name] * factor}))
    assert_close(after, before, scale=10 * tolerance_unit(row, arguments))


@pytest.mark.parametrize("row", EACH)
def test_numpy_in_numpy_out(row):
    arguments = draw(row.inputs, "random")
    value = row(**arguments)
    assert isinstance(value, (np.ndarray, np.generic))
    assert_close(value, row(**tensors(arguments)), scale=tolerance_unit(row, arguments))


@pytest.mark.parametrize("dtype", [*BOTH, torch.bfloat16], ids=["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("row", EACH)
def test_answers_in_the_promoted_dtype(row, dtype):
    arguments = draw(row.inputs, "random")
    floats = [v for v in arguments.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
    value = outcome(row, tensors(arguments, dtype))  # rounding may break symmetry or definiteness
    if isinstance(value, type) or not value.is_floating_point() or not floats:
        return
    assert value.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)


def gradients(row, arguments, name):
    """Value and gradient of the sum of the defined entries with respect to one argument."""
    leaves = tensors(arguments)
    leaves[name] = leaves[name].clone().requires_grad_()
    value = row(**leaves)
    if not (isinstance(value, torch.Tensor) and value.requires_grad):
        return value, None
    value.sum().backward()
    return value.detach(), leaves[name].grad


DIFFERENTIABLE = [
    pytest.param(row, name, id=f"{row.name}-{name}")
    for row in ROWS.values()
    for name, differentiable in row.differentiable.items()
    if differentiable
]


@pytest.mark.parametrize(("row", "name"), DIFFERENTIABLE)
def test_gradient_is_the_derivative(row, name):
    arguments = draw(row.inputs, "random", seed=4)
    _, gradient = gradients(row, arguments, name)
    assert gradient is not None
    rng = np.random.default_rng(5)
    value = arguments[name]
    direction = rng.standard_normal(value.shape)
    if value.ndim == 2 and np.array_equal(value, value.T):
        direction = (direction + direction.T) / 2  # stay inside the symmetric matrices
    if value.ndim == 3 and np.array_equal(value, value.swapaxes(1, 2)):
        direction = (direction + direction.swapaxes(1, 2)) / 2  # and the symmetric blocks
    if value.ndim == 4:
        direction = direction + direction.transpose(2, 3, 0, 1)
    step = 1e-6 * np.abs(value).max() / np.abs(direction).max()
    ahead = row(**tensors({**arguments, name: value + step * direction}))
    behind = row(**tensors({**arguments, name: value - step * direction}))
    expected = float((ahead - behind).sum()) / (2 * step)
    actual = float((gradient.numpy() * direction).sum())
    assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6 * tolerance_unit(row, arguments))


# A gradient comes back, but not one to rely on: one-sided or infinite at rank deficiency, or
# pointing out of the orthonormal matrices.
PARTLY_DIFFERENTIABLE = {
    ("kernel_spectrum", "gram"),
    ("relative_misalignment", "bases"),
}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        pytest.param(row, name, id=f"{row.name}-{name}")
        for row in ROWS.values()
        for name, differentiable in row.differentiable.items()
        if not differentiable and (row.name, name) not in PARTLY_DIFFERENTIABLE
    ],
)
def test_what_is_not_differentiable_gives_no_gradient(row, name):
    _, gradient = gradients(row, draw(row.inputs, "random", seed=4), name)
    assert gradient is None


@pytest.mark.parametrize("case", ["tied", "rank_deficient"])
@pytest.mark.parametrize(("row", "name"), DIFFERENTIABLE)
def test_gradient_is_finite_at_degenerate_inputs(row, name, case):
    arguments = draw(row.inputs, case, seed=6)
    try:
        _, gradient = gradients(row, arguments, name)
    except TheodoliteError:
        return
    assert gradient is None or gradient.isfinite().all()


@pytest.mark.parametrize(("row", "name"), DIFFERENTIABLE)
def test_undefined_is_nan_with_gradient_zero(row, name):
    arguments = draw(row.inputs, "random", seed=7)
    arguments[name] = np.zeros_like(arguments[name])
    try:
        value, gradient = gradients(row, arguments, name)
    except TheodoliteError:
        return
    if value.isnan().all() and gradient is not None:
        assert (gradient == 0).all()
    elif gradient is not None:
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("row", "name", "zeroed"),
    [
        pytest.param(row, name, zeroed, id=f"{row.name}-{name}-by-{zeroed}")
        for row in ROWS.values()
        for name, differentiable in row.differentiable.items()
        for zeroed in row.differentiable
        if differentiable and zeroed != name
    ],
)
def test_undefined_by_another_argument_has_gradient_zero_too(row, name, zeroed):
    arguments = draw(row.inputs, "random", seed=7)
    arguments[zeroed] = np.zeros_like(arguments[zeroed])
    try:
        value, gradient = gradients(row, arguments, name)
    except TheodoliteError:
        return
    if value.isnan().all() and gradient is not None:
        assert (gradient == 0).all()
    elif gradient is not None:
        assert gradient.isfinite().all()


@pytest.mark.parametrize("row", EACH)
def test_refuses_what_is_not_finite(row):
    for name, value in draw(row.inputs, "random").items():
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            continue
        arguments = tensors(draw(row.inputs, "random"))
        arguments[name].view(-1)[0] = float("nan")
        with pytest.raises(TheodoliteError):
            row(**arguments)


@pytest.mark.parametrize("row", EACH)
def test_leaves_its_arguments_alone(row):
    arguments = tensors(draw(row.inputs, "random"))
    before = {name: value.clone() for name, value in arguments.items() if hasattr(value, "clone")}
    row(**arguments)
    for name, value in before.items():
        assert torch.equal(arguments[name], value)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_exported_name_is_a_row_or_a_listed_helper(family):
    module = getattr(measures, family)
    rows = {row.function.__name__ for row in ROWS.values() if row.family == family}
    assert set(module.__all__) == rows | FAMILIES[family].HELPERS
    assert not rows & FAMILIES[family].HELPERS


@pytest.mark.parametrize("row", EACH)
def test_a_row_is_complete(row):
    parameters = inspect.signature(row.function).parameters
    assert set(row.inputs) | set(row.options) <= set(parameters)
    assert row.meaning.endswith(".")
    assert row.reference.startswith("[")
    assert row.range[0] < row.range[1]
    assert set(row.gradients) <= set(row.differentiable)
    assert row.name in REFERENCES


@pytest.mark.parametrize("row", EACH)
def test_the_docstring_says_what_a_measure_is(row):
    text = inspect.getdoc(row.function)
    sections = [".. math::", "Range:", "Undefined", "Args:", "Raises:", "Examples:", "References:"]
    sections += ["Invariant to:"] if row.invariances else []
    assert [section for section in sections if section not in text] == []
