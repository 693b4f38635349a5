"""What formulas of gradient alignment say about bad input."""

import pytest

from theodolite.errors import DomainError
from theodolite_papers.mehta2021.formulas import memorisation


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: memorisation.is_extreme_memorization(1.2, 0.1, 0.1, 100),
            r"train_accuracy: expected a number in \[0.0, 1.0\], got 1.2",
        ),
        (
            lambda: memorisation.is_extreme_memorization(1.0, 0.1, 0.1, 0),
            "test_size: expected an integer of at least 1, got 0",
        ),
        (lambda: memorisation.two_vector_measures(-1.0, 1.0, 0.0), "norm_a"),
    ],
)
def test_message(call, message):
    with pytest.raises(DomainError, match=message):
        call()
