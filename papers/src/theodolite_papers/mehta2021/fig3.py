"""Figure 3: gradient diversity, stiffness, confusion and alignment of two vectors."""

from dataclasses import dataclass

import numpy as np

from theodolite_papers.ledger import (
    Claim,
    Heat,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    above,
    below,
    decided,
    inside,
    named,
)
from theodolite_papers.mehta2021.formulas.memorisation import two_vector_measures

__all__ = ["STUDY", "TwoVectors"]

_MEASURES = ("diversity", "stiffness", "confusion", "alignment")
_STEP = 1e-5  # of the cosine, for slopes


@dataclass(frozen=True)
class TwoVectors:
    """Size of the grid: the first vector has norm 1.

    Args:
        cosines: values from -1 to 1.
        ratios: norms of the second vector, log-spaced from 0.01 to 100.
    """

    cosines: int = 31
    ratios: int = 31


def measure(config: TwoVectors, trial: Trial) -> Measured:
    """The four measures over cosine and ratio of norms, and their slopes."""
    cosines = np.linspace(-1, 1, config.cosines)
    ratios = np.geomspace(0.01, 100, config.ratios)
    grid = [[two_vector_measures(1.0, r, c) for c in cosines] for r in ratios]
    arrays = {
        name: np.array([[getattr(cell, name) for cell in row] for row in grid])
        for name in _MEASURES
    }
    steep = np.array([_slope(r, -0.9) / _slope(r, 0.9) for r in ratios])
    middle = (ratios >= 0.5) & (ratios <= 2)
    alignment, confusion = arrays["alignment"], arrays["confusion"]
    positive = cosines > 0.5
    numbers = {
        "slope_ratio": float(steep.min()),
        "slope_ratio_similar_norms": float(steep[middle].min()),
        "stiffness_over_ratios": float(np.ptp(arrays["stiffness"], axis=0).max()),
        "confusion_over_ratios": float((confusion[-1, positive] / confusion[0, positive]).min()),
        "confusion_over_cosines": float((confusion[:, -1] / confusion[:, positive][:, 0]).max()),
        "alignment_asymmetry": float(np.abs(alignment - alignment[::-1]).max()),
        "alignment_beyond_cosine": float((np.abs(alignment) - np.abs(cosines)).max()),
        "alignment_at_equal_norms": float(two_vector_measures(1.0, 1.0, 0.7).alignment),
        "alignment_at_extremes": float(np.abs(alignment[[0, -1]]).max()),
        "alignment_over_cosines": float(np.ptp(alignment[config.ratios // 2])),
    }
    finite = {name: np.nan_to_num(values, posinf=np.nan) for name, values in arrays.items()}
    return Measured(numbers, {name: values.astype(np.float16) for name, values in finite.items()})


def _slope(ratio: float, cosine: float) -> float:
    """How fast diversity changes with the cosine."""
    ends = [two_vector_measures(1.0, ratio, cosine + side).diversity for side in (-_STEP, _STEP)]
    return abs(ends[1] - ends[0]) / (2 * _STEP)


def _diversity(runs: Results) -> Outcome:
    smallest, similar = runs["slope_ratio"][0], runs["slope_ratio_similar_norms"][0]
    return decided(above("any_ratio", smallest, 1), above("similar_norms", similar, 10))


def _stiffness(runs: Results) -> Outcome:
    return decided(inside("change", runs["stiffness_over_ratios"][0], 0, 0, strict=False))


def _confusion(runs: Results) -> Outcome:
    ratios, cosines = runs["confusion_over_ratios"][0], runs["confusion_over_cosines"][0]
    quotient = above("quotient", ratios / cosines, 1000)
    return decided(quotient, over_ratios=ratios, over_cosines=cosines)


def _alignment(runs: Results) -> Outcome:
    names = ("asymmetry", "beyond_cosine", "at_equal_norms", "at_extremes", "over_cosines")
    numbers = runs.means(named(*names, prefix="alignment_"))
    return decided(
        below("asymmetry", numbers["asymmetry"], 1e-9),
        below("beyond_cosine", numbers["beyond_cosine"], 1e-9),
        inside("at_equal_norms", numbers["at_equal_norms"], 0.7 - 1e-12, 0.7 + 1e-12),
        below("at_extremes", numbers["at_extremes"], 0.05),
        above("over_cosines", numbers["over_cosines"], 1),
    )


def draw(runs: Results) -> list[Panel]:
    """A map of each measure over cosine and ratio; diversity and confusion in logarithms."""
    arrays = runs.first.arrays
    rows, columns = arrays["alignment"].shape
    ratios = [f"{r:.2g}" for r in np.geomspace(0.01, 100, rows)]
    cosines = [f"{c:.2f}" for c in np.linspace(-1, 1, columns)]
    shown = {
        "diversity": ("log10 of diversity", np.log10(arrays["diversity"])),
        "stiffness": ("stiffness", arrays["stiffness"]),
        "confusion": ("sign * log10(1 + |confusion|)", _signed_log(arrays["confusion"])),
        "alignment": ("alignment", arrays["alignment"]),
    }
    return [
        Panel(
            f"Figure 3, {title}",
            [Heat(values, ratios, cosines, diverging=True)],
            "cosine",
            "norm of the second vector",
        )
        for title, values in shown.values()
    ]


def _signed_log(values: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.log10(1 + np.abs(values))


_ID = "mehta2021.fig3"

STUDY = Study(
    id=_ID,
    title="Four measures of agreement on two vectors",
    shows=("Figure 3",),
    measure=measure,
    configs={"smoke": TwoVectors(11, 11), "lite": TwoVectors()},
    claims=(
        Claim(
            f"{_ID}.diversity",
            "diversity varies most at strongly negative cosine: steeper at -0.9 than at 0.9 for "
            "every ratio of norms, more than tenfold for ratios between 1/2 and 2",
            _diversity,
            unit="calculation",
        ),
        Claim(f"{_ID}.stiffness", "stiffness ignores the norms", _stiffness, unit="calculation"),
        Claim(
            f"{_ID}.confusion",
            "confusion is dominated by the norms: with one norm fixed it changes a thousand times "
            "more over the ratios than over cosines from 0.5 to 1",
            _confusion,
            unit="calculation",
        ),
        Claim(
            f"{_ID}.alignment",
            "alignment depends on both: it is at most the cosine, with equality at equal norms, "
            "the same for a ratio and its inverse, and vanishes when one norm does",
            _alignment,
            unit="calculation",
        ),
    ),
    draw=draw,
    seeds={"lite": (101,)},
    remarks={"lite": "axes chosen here: the paper's cannot be read off its text"},
    not_run={"published": "closed forms without data; the lite size computes them"},
)
