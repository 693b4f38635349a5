"""Correlation of two lists of results, where some may be missing."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from theodolite.measures.kernel import correlation_table

__all__ = ["pearson", "spearman"]

Numbers = Sequence[float] | np.ndarray


def spearman(first: Numbers, second: Numbers) -> float:
    """Rank correlation of the finite pairs; nan for fewer than two or a constant list."""
    return _correlation(first, second, "spearman")


def pearson(first: Numbers, second: Numbers) -> float:
    """Linear correlation of the finite pairs; nan for fewer than two or a constant list."""
    return _correlation(first, second, "pearson")


def _correlation(first: Numbers, second: Numbers, method: Literal["pearson", "spearman"]) -> float:
    a, b = (torch.as_tensor(np.asarray(v, dtype=np.float64))[:, None] for v in (first, second))
    keep = (a.isfinite() & b.isfinite())[:, 0]
    if int(keep.sum()) < 2:
        return float("nan")
    return float(correlation_table(a[keep], b[keep], method).coefficients[0, 0])
