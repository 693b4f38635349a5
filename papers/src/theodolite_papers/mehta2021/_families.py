"""Studies of one activation and loss over scales of initialisation, which differ in little."""

from dataclasses import dataclass, replace

from theodolite.sweeps import Space
from theodolite_papers.ledger import Claim, Panel, Results, Study
from theodolite_papers.mehta2021._pictures import scale_panels
from theodolite_papers.mehta2021._scales import Scales, measure_scales

__all__ = ["PAPER", "PART", "PART_TEXT", "SIX_PANELS", "SMOKE", "Family", "family_study"]

SMOKE = Scales(hidden=(32,), sigmas=(0.01, 0.1, 1.0), steps=20, points=3, probe=50)
PAPER = Scales(
    data="cifar10",
    hidden=(1024,),
    rate=0.01,
    batch_size=256,
    steps=100_000,
    points=32,
    probe=500,
    until_fit=True,
)
# A part of the data that every network learns to the last example long before the steps end.
PART = replace(PAPER, data="cifar10_20k", steps=60_000, points=24)
PART_TEXT = "20,000 training images of CIFAR-10, so that every network learns them all"
SIX_PANELS = (
    *("hidden", "hidden_contrast", "top", "test", "train"),
    *("representation", "representation_contrast", "logit"),
)


@dataclass(frozen=True)
class Family:
    """What makes one of these studies.

    Args:
        id: of the study.
        title: of the study.
        shows: its figures.
        lite: settings of the small version; smoke takes its activation and loss.
        paper: settings of the published one.
        sets: size -> data sets.
        claims: about it.
        panels: quantities that are drawn.
        lite_data: what stands in for the paper's data in the small version.
        paper_data: the same of the published size.
        not_run: why there are no records of the published size.
    """

    id: str
    title: str
    shows: tuple[str, ...]
    lite: Scales
    paper: Scales
    sets: dict[str, list[str]]
    claims: tuple[Claim, ...]
    panels: tuple[str, ...] = SIX_PANELS
    lite_data: str = ""
    paper_data: str = ""
    not_run: str = ""


def family_study(family: Family) -> Study:
    """The study; each data set is a point."""
    figures = ", ".join(family.shows)

    def draw(runs: Results) -> list[Panel]:
        return scale_panels(figures, runs, family.panels)

    smoke = replace(
        SMOKE,
        activation=family.lite.activation,
        loss=family.lite.loss,
        hidden=SMOKE.hidden * len(family.lite.hidden),
        first_rate=family.lite.first_rate,
    )
    return Study(
        id=family.id,
        title=family.title,
        shows=family.shows,
        measure=measure_scales,
        configs={"smoke": smoke, "lite": family.lite, "paper": family.paper},
        spaces={size: Space({"data": sets}) for size, sets in family.sets.items()},
        claims=family.claims,
        draw=draw,
        seeds={"paper": (101, 102, 103)},
        stand_in={
            size: text
            for size, text in (("lite", family.lite_data), ("paper", family.paper_data))
            if text
        },
        not_run={"paper": family.not_run} if family.not_run else {},
    )
