"""What a similarity of two representations says of axes that it does not expect."""

import numpy as np
import pytest

from theodolite.errors import DomainError, ShapeError
from theodolite.integrations.similarity import SIMILARITIES


@pytest.mark.parametrize(
    ("first", "second", "shape", "error", "words"),
    [
        ((4, 2, 2, 2), (4, 2, 2, 2), "nd", ShapeError, "got shape .4, 2, 2, 2.; give shape='ntd'"),
        ((4, 2), (4, 2), "dn", DomainError, "'nchw'.*'dn'"),
        ((4, 2), (5, 2), "nd", ShapeError, "R.*4.*Rp.*5"),
    ],
)
def test_axes(first: tuple, second: tuple, shape: str, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        SIMILARITIES["cka"](np.ones(first), np.ones(second), shape)
