"""Whether one sequence rises with another, whatever its shape."""

import numpy as np

__all__ = ["rank_correlation"]


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's, of numbers without ties."""
    one, other = (values.argsort().argsort() for values in (first, second))
    return float(np.corrcoef(one, other)[0, 1])
