"""Extreme memorisation, and the measures of two vectors alone."""

from dataclasses import dataclass
from math import inf, nan, sqrt

from theodolite.checks import require_between, require_count

_MODES = ("min", "eta")


def is_extreme_memorization(
    train_accuracy: float,
    test_accuracy: float,
    chance: float,
    test_size: int,
    tolerance: float = 0.0,
) -> bool:
    r"""Whether training accuracy is perfect while test accuracy is at chance level.

    .. math:: a_\text{train} \ge 1 - \text{tol},\qquad
              a_\text{test} \le p + 3\sqrt{p(1-p)/n_\text{test}}

    Args:
        train_accuracy: share of training examples that are right.
        test_accuracy: share of test examples that are right.
        chance: :math:`p`, 1/k for balanced classes, else the share of the largest class.
        test_size: number of test examples.
        tolerance: how far from perfect training accuracy may be.

    Returns:
        True for extreme memorization; False for the ordinary kind and for generalisation.

    Raises:
        DomainError: If a share is outside [0, 1] or the test set is empty.

    Examples:
        >>> is_extreme_memorization(1.0, 0.104, chance=0.1, test_size=10_000)
        True
        >>> is_extreme_memorization(1.0, 0.35, chance=0.1, test_size=10_000)
        False

    References:
        [mehta2021], section 1. Differs from paper: the three standard errors are ours.
    """
    require_between(0.0, 1.0, train_accuracy=train_accuracy, test_accuracy=test_accuracy)
    require_between(0.0, 1.0, chance=chance, tolerance=tolerance)
    require_count(1, test_size=test_size)
    noise = 3 * sqrt(chance * (1 - chance) / test_size)
    return train_accuracy >= 1 - tolerance and test_accuracy <= chance + noise


@dataclass(frozen=True)
class TwoVectorMeasures:
    """The four measures on a set of two vectors."""

    diversity: float
    stiffness: float
    confusion: float
    alignment: float


def two_vector_measures(norm_a: float, norm_b: float, cosine: float) -> TwoVectorMeasures:
    r"""Omega, diversity, stiffness and confusion of two vectors of given norms and angle.

    .. math:: D = \frac{A^2+B^2}{A^2+B^2+2ABc},\quad S = c,\quad F = ABc,\quad
              \Omega = \frac{4ABc}{(A+B)^2}

    Args:
        norm_a: :math:`A`.
        norm_b: :math:`B`.
        cosine: :math:`c` of the angle between them; without meaning if a norm is zero.

    Raises:
        DomainError: If a norm is negative or the cosine outside [-1, 1].

    Examples:
        >>> two_vector_measures(1.0, 3.0, 0.5).alignment
        0.375

    References:
        [mehta2021], Figure 3.
    """
    require_between(0.0, inf, open_high=True, norm_a=norm_a, norm_b=norm_b)
    require_between(-1.0, 1.0, cosine=cosine)
    squares, product = norm_a**2 + norm_b**2, norm_a * norm_b * cosine
    if squares == 0:
        return TwoVectorMeasures(nan, nan, 0.0, nan)
    cancelled = squares + 2 * product
    return TwoVectorMeasures(
        diversity=squares / cancelled if cancelled > 0 else inf,
        stiffness=cosine if norm_a and norm_b else nan,
        confusion=product,
        alignment=4 * product / (norm_a + norm_b) ** 2,
    )
