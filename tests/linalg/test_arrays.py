"""NumPy in, NumPy out; promotion; results back in the promised dtype."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.errors import DtypeError
from theodolite.linalg import array_function, double, eps_of


@dataclass(frozen=True)
class Pair:
    total: Tensor
    counts: Tensor
    name: str


@array_function
def total(values: Float[Tensor, "n d"], labels: Int[Tensor, " n"] | None = None) -> Pair:
    counts = torch.bincount(labels) if labels is not None else torch.tensor([len(values)])
    return Pair(double(values).sum(), counts, str(values.dtype))


@array_function
def mixed(values: Int[Tensor, " n"] | Float[Tensor, "n c"]) -> Tensor:
    return values


@array_function
def both(parts: list[Float[Tensor, " n"]]) -> tuple[Tensor, dict[str, Tensor]]:
    return torch.cat(parts), {"sum": sum(part.sum() for part in parts)}


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (torch.bfloat16, "torch.float32"),
        (torch.float16, "torch.float32"),
        (torch.float32, "torch.float32"),
        (torch.float64, "torch.float64"),
        (torch.int32, "torch.float64"),
        (torch.bool, "torch.float64"),
    ],
)
def test_promotion(given, seen):
    result = total(torch.ones(3, 2).to(given))
    assert result.name == seen
    assert str(result.total.dtype) == seen
    assert result.total.ndim == 0
    assert result.counts.dtype == torch.int64


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "longdouble", ">f4", "uint8", "uint64", "int16"]
)
def test_numpy_comes_back_as_numpy(dtype):
    values = np.arange(6).reshape(3, 2).astype(dtype)
    result = total(values, np.array([0, 1, 1], dtype=np.int32))
    assert isinstance(result.total, np.ndarray)
    assert result.total.shape == ()
    assert result.total == 15
    assert isinstance(result.counts, np.ndarray)
    assert result.counts.tolist() == [1, 2]


def test_numpy_views_are_copied():
    values = np.arange(12.0).reshape(3, 4)[::-1, ::2]
    values.flags.writeable = False
    assert total(values).total == values.sum()


def test_unions_with_integers_are_not_promoted():
    assert mixed(torch.arange(3)).dtype == torch.int64
    assert mixed(torch.ones(3, 2, dtype=torch.float16)).dtype == torch.float32


def test_lists_and_containers():
    joined, sums = both([np.ones(2, dtype=np.float32), np.ones(3)])
    assert isinstance(joined, np.ndarray)
    assert joined.dtype == np.float64
    assert sums["sum"] == 5


def test_kinds_may_not_be_mixed():
    with pytest.raises(DtypeError, match="all NumPy arrays or all tensors"):
        total(torch.ones(3, 2), np.array([0, 1, 1]))


@pytest.mark.parametrize(
    "values", [np.ones((2, 2)) * 1j, np.array([["a", "b"]])], ids=["complex", "text"]
)
def test_only_real_numbers(values):
    with pytest.raises(DtypeError, match="values: expected real numbers"):
        total(values)


def test_gradient_flows_through():
    values = torch.ones(3, 2, requires_grad=True)
    total(values).total.backward()
    assert torch.equal(values.grad, torch.ones(3, 2))


def test_eps_is_that_of_the_coarsest_input():
    assert eps_of(torch.ones(1), torch.ones(1).double()) == torch.finfo(torch.float32).eps


@pytest.mark.parametrize("value", [[1, 2], None, 3, "labels"], ids=["list", "none", "int", "text"])
def test_what_is_no_array_is_refused_by_name(value):
    with pytest.raises(DtypeError, match="values: expected a tensor or a NumPy array, got"):
        mixed(value)


def test_none_and_numbers_pass_where_the_annotation_admits_them():
    @array_function
    def twice(value: Float[Tensor, ""] | float | None = None) -> float | None:
        return None if value is None else 2 * float(value)

    assert [twice(None), twice(2), twice(np.float32(2)), twice(torch.tensor(2.0))] == [
        None,
        4,
        4,
        4,
    ]
