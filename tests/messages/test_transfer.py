"""What th.transfer says of models that are none."""

import pytest
import torch
from torch import nn

import theodolite as th
from theodolite.errors import DomainError, DtypeError, UnknownNameError

TASK = (torch.randn(40, 3), torch.arange(40) % 2)


@pytest.mark.parametrize("bad", [3, [3], {"a": 3}], ids=["number", "list", "mapping"])
def test_what_is_no_model_is_refused(bad):
    with pytest.raises(DtypeError, match=r"expected a torch\.nn\.Module, a callable"):
        th.transfer(bad, TASK)


def test_no_model_is_refused():
    with pytest.raises(DomainError, match="at least one model, got none"):
        th.transfer([], TASK)


def test_a_callable_that_builds_something_else_is_named():
    with pytest.raises(DomainError, match=r"models\['wrong'\]: expected a callable that returns"):
        th.transfer({"wrong": lambda: 3}, TASK)


def test_an_unknown_option_is_named():
    with pytest.raises(UnknownNameError, match="unknown option 'tangents'; did you mean 'tangent'"):
        th.transfer(nn.Linear(3, 2), TASK, tangents=True)
