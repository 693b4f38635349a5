"""The shape checker is on in this folder: declared shapes hold, also of results."""

import jaxtyping
import pytest
import torch

from theodolite.engine import feature_grams
from theodolite.linalg import double_center
from theodolite_papers.lou2022.formulas.hierarchy import prominence


@pytest.mark.parametrize(
    "call",
    [
        lambda: double_center(torch.zeros(3)),
        lambda: feature_grams(torch.nn.Linear(2, 2), torch.zeros(3, 2), center="yes"),
        lambda: prominence(torch.zeros(2, 2)),
    ],
    ids=["linalg", "engine", "papers"],
)
def test_calls_with_other_shapes_or_types_are_refused(call):
    with pytest.raises(jaxtyping.TypeCheckError):
        call()
