"""The shape checker is on in this folder: declared shapes hold, also of results."""

import jaxtyping
import pytest
import torch

from theodolite.engine import feature_grams
from theodolite.linalg import double_center


@pytest.mark.parametrize(
    "call",
    [
        lambda: double_center(torch.zeros(3)),
        lambda: feature_grams(torch.nn.Linear(2, 2), torch.zeros(3, 2), center="yes"),
    ],
    ids=["linalg", "engine"],
)
def test_calls_with_other_shapes_or_types_are_refused(call):
    with pytest.raises(jaxtyping.TypeCheckError):
        call()
