"""Which model to start from: a ranking, and what one should know before following it.

Numbers only; :func:`theodolite.transfer` measures them. Each entry has the leave-one-out error of a
model on the new task, by which it is ranked, and what the list by size would have said: a ranking
that says no more than that list is told so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, isnan, sqrt

import numpy as np

from theodolite.records import listed

__all__ = ["SMALL_ERROR", "Candidate", "choosing_notes", "ranked"]

# Leave-one-out error above which fine-tuned networks learn features that kernel regression does not
# see: below it forecasts hold to a few points on most targets, above it networks may come out up to
# 47 points higher (benchmarks/transfer).
SMALL_ERROR = 0.7
_CLEAR = 2.0  # standard errors of the difference between two models on the same examples
_SAME_LIST = 0.8  # Kendall's tau above which two rankings are one


@dataclass(frozen=True)
class Candidate:
    """What is known of one model on the new task.

    Args:
        name: of the model.
        error: leave-one-out error by which it is ranked, 1 for that of the mean; nan if unknown.
        features_error: the same of a read-out of the features alone, on the same examples.
        forecast: accuracy, or error for regression, that is expected of fine-tuning.
        parameters: how many.
        misses: squared error of each example, in one order for all models.
        incomplete: whether the tangent kernel was wanted and could not be measured.
        frozen: whether it is only read out, so that it learns no feature.
    """

    name: str
    error: float
    features_error: float
    forecast: float
    parameters: int
    misses: np.ndarray = field(repr=False, compare=False, default_factory=lambda: np.empty(0))
    incomplete: bool = False
    frozen: bool = False


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Best first; models without a number come last, in the order given.

    Example:
        >>> pair = [Candidate("a", 0.5, 0.5, 0.7, 10), Candidate("b", 0.3, 0.4, 0.8, 5)]
        >>> [entry.name for entry in ranked(pair)]
        ['b', 'a']
    """
    return sorted(candidates, key=lambda entry: inf if isnan(entry.error) else entry.error)


def choosing_notes(candidates: Sequence[Candidate], *, points: bool = True) -> list[str]:
    """What to know about a ranking, as sentences.

    How sure the first place is, where the evidence disagrees, and whether the list by size says
    the same.

    Args:
        candidates: in any order.
        points: whether forecasts are accuracies, whose differences are told in points.

    Example:
        >>> pair = [Candidate("a", 0.5, 0.3, 0.7, 10), Candidate("b", 0.3, 0.4, 0.8, 5)]
        >>> for note in choosing_notes(pair):
        ...     print(note)
        Read-outs of the features alone would start from a; with the tangent kernel b comes first.
        The list by size would start from a, whose forecast is 10.0 points lower.
    """
    known = [entry for entry in ranked(candidates) if isfinite(entry.error)]
    notes = []
    low = [entry for entry in known if points and entry.error > SMALL_ERROR]
    bounds = [entry.name for entry in low if not entry.frozen]
    if bounds:
        several = len(bounds) > 1
        what = "Forecasts and learning curves" if several else "Forecast and learning curve"
        notes.append(
            f"{what} of {listed(bounds, most=4)} may be far too low: more than "
            f"{100 * SMALL_ERROR:.0f} % of the spread of the labels stays unexplained, and "
            "fine-tuning has new features to learn."
        )
    if len(known) < 2:
        return notes
    first = known[0]
    alone = [entry.name for entry in known if entry.incomplete]
    if 0 < len(alone) < len(known):
        notes.append(
            f"{listed(alone, most=4)} {'is' if len(alone) == 1 else 'are'} judged by features "
            "alone, the others with the tangent kernel, whose errors are lower: "
            f"{'its place' if len(alone) == 1 else 'their places'} may be too low."
        )
    equals = [entry.name for entry in known[1:] if not _apart(first, entry)]
    if len(first.misses) and equals:
        notes.append(
            f"{first.name} comes first, but on these examples {listed(equals, most=4)} "
            f"{'is' if len(equals) == 1 else 'are'} not told apart from it."
        )
    likely = max(known, key=lambda entry: entry.forecast)
    if points and likely.forecast > first.forecast:
        notes.append(
            f"Models are ranked by squared error, which few examples tell more finely than "
            f"accuracy; by forecast accuracy {likely.name} comes first."
        )
    plain = min(known, key=lambda entry: _number(entry.features_error))
    if plain.name != first.name:
        notes.append(
            f"Read-outs of the features alone would start from {plain.name}; with the tangent "
            f"kernel {first.name} comes first."
        )
    notes.append(_beside_size(known, points))
    return notes


def _number(value: float) -> float:
    return inf if isnan(value) else value


def _apart(first: Candidate, other: Candidate) -> bool:
    """Whether the errors of two models differ by more than chance, example by example."""
    count = min(len(first.misses), len(other.misses))
    if count < 2:
        return True
    gaps = other.misses[:count] - first.misses[:count]
    error = float(gaps.std(ddof=1)) / sqrt(count)
    return float(gaps.mean()) > _CLEAR * error


def _beside_size(known: Sequence[Candidate], points: bool) -> str:
    """The ranking beside the list by number of parameters, largest first."""
    from scipy.stats import kendalltau

    first, largest = known[0], max(known, key=lambda entry: entry.parameters)
    if len({entry.parameters for entry in known}) == 1:
        return "All models have the same size; the list by size says nothing here."
    tau = float(kendalltau([-e.error for e in known], [e.parameters for e in known]).statistic)
    if largest.name == first.name and (tau >= _SAME_LIST or len(known) == 2):
        return (
            "The ranking is that of the list by size, largest first: for these models it says no "
            "more than their numbers of parameters."
        )
    if largest.name == first.name:
        return (
            f"The list by size would start from {first.name}, too; below the first place the two "
            f"lists differ (Kendall's tau {tau:.2f})."
        )
    gap = first.forecast - largest.forecast if points else largest.forecast - first.forecast
    size = f"{100 * abs(gap):.1f} points" if points else f"{abs(gap):.3f}"
    told = f"{size} {'lower' if points == (gap > 0) else 'higher'}" if abs(gap) > 5e-4 else "equal"
    return f"The list by size would start from {largest.name}, whose forecast is {told}."
