"""Comparisons of rows whose numbers differ by many orders of magnitude."""

import pytest
import torch

from theodolite.engine.rounding import Comparison, norm_of

TOLERANCE = 1e-4


def compared(share: float) -> tuple[str, float] | None:
    """Ordinary rows that differ by a share, beside an equal row whose square overflows."""
    wanted = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    found = wanted * (1 + share)
    for rows in (wanted, found):
        rows[19, 1] = 1e25
    comparison = Comparison()
    comparison.add_rows("outputs", found, wanted)
    return comparison.first_above(TOLERANCE)


def test_rounding_beside_a_very_large_row_is_rounding() -> None:
    assert compared(1e-6) is None


def test_a_difference_beside_a_very_large_row_is_found_with_its_size() -> None:
    found = compared(1e-2)
    assert found is not None
    assert found[1] == pytest.approx(1e-2, rel=0.1)


def test_norms_of_numbers_that_differ_by_many_orders() -> None:
    assert float(norm_of(torch.tensor([3e25, 4e25, 1e-20]))) == pytest.approx(5e25)
    assert float(norm_of(torch.tensor([3e-25, 4e-25]))) == pytest.approx(5e-25)
