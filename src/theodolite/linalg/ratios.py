"""Quotients whose undefined value is nan and whose gradient is then zero."""

import torch
from torch import Tensor

__all__ = ["nan_unless", "ratio_or_nan", "safe_sqrt"]


def ratio_or_nan(numerator: Tensor, denominator: Tensor, defined: Tensor | bool = True) -> Tensor:
    """``numerator / denominator`` where defined and the denominator is not zero, else nan.

    The division only ever sees a denominator that is safe, so that no inf or nan reaches the
    gradient from an entry that is masked out.
    """
    valid = (denominator != 0) & defined
    safe = torch.where(valid, denominator, torch.ones_like(denominator))
    return nan_unless(valid, numerator / safe)


def nan_unless(defined: Tensor, value: Tensor) -> Tensor:
    """The value where defined, else nan with gradient zero."""
    return torch.where(defined, value, torch.full_like(value, torch.nan))


def safe_sqrt(value: Tensor) -> Tensor:
    """Square root of a number that is not negative, with gradient zero (not inf) at zero.

    Values below zero, which only rounding produces, count as zero.
    """
    positive = value > 0
    root = torch.where(positive, value, torch.ones_like(value)).sqrt()
    return torch.where(positive, root, torch.zeros_like(value))
