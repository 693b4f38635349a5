"""The five papers, and what in them is not as printed."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PAPERS", "Erratum", "Paper"]


@dataclass(frozen=True)
class Erratum:
    """A sentence of a paper that is wrong or leaves a choice.

    Args:
        id: as in the code that rests on it, such as ``"E2"``.
        printed: what the paper says.
        true: what is true, or what was chosen.
    """

    id: str
    printed: str
    true: str


@dataclass(frozen=True)
class Paper:
    """A paper whose experiments are studies here.

    Args:
        key: in docs/references.bib, and first part of its studies' ids.
        family: the measures that it defines; also the package of its studies.
        title: of the paper.
    """

    key: str
    family: str
    title: str


PAPERS: Mapping[str, Paper] = {
    paper.key: paper
    for paper in (
        Paper("imani2022", "representation", "Representation Alignment in Neural Networks"),
        Paper(
            "maennel2020",
            "covariance",
            "What Do Neural Networks Learn When Trained With Random Labels?",
        ),
        Paper(
            "canatar2022", "kernel", "A Kernel Analysis of Feature Learning in Deep Neural Networks"
        ),
        Paper(
            "lou2022", "tangent", "Feature Learning and Signal Propagation in Deep Neural Networks"
        ),
        Paper("mehta2021", "gradient", "Extreme Memorization via Scale of Initialization"),
    )
}
