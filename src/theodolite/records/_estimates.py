"""A number with its uncertainty: standard error, chance level, interval of a share."""

import math
from dataclasses import dataclass

# Standard deviations from chance, or errors from each other: closer numbers may be equal.
CHANCE = 2.0
NORMAL = 1.959963984540054  # quantile of the normal distribution, for 95 % intervals


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error and its chance level.

    Examples:
        >>> estimate = Estimate(0.42, error=0.03, null_mean=0.02, null_sd=0.01, method="jackknife")
        >>> round(estimate.z_score, 4)
        40.0
    """

    value: float
    error: float | None = None
    null_mean: float | None = None
    null_sd: float | None = None
    method: str = "exact"

    @property
    def z_score(self) -> float:
        """Distance from the chance level in standard deviations; nan without a chance level."""
        if self.null_mean is None or not self.null_sd:
            return math.nan
        return (self.value - self.null_mean) / self.null_sd


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n independent draws, after Wilson.

    Examples:
        >>> low, high = wilson(1.0, 500)
        >>> round(low, 4), high
        (0.9924, 1.0)
    """
    square = NORMAL**2 / n
    middle = (share + square / 2) / (1 + square)
    half = NORMAL * (max(share * (1 - share), 0.0) / n + square / (4 * n)) ** 0.5 / (1 + square)
    return 0.0 if share <= 0 else middle - half, 1.0 if share >= 1 else middle + half
