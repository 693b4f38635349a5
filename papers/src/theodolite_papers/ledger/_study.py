"""Papers, and studies: experiments of a paper at several sizes, with their claims."""

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from theodolite.errors import DomainError, UnknownNameError
from theodolite_papers.ledger._claims import Claim
from theodolite_papers.ledger._panels import Panel
from theodolite_papers.ledger._results import Measured, Results
from theodolite_papers.ledger._space import Space

__all__ = ["PAPERS", "SIZES", "Erratum", "Paper", "Study", "Trial", "all_studies", "find_study"]


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
    """A paper whose experiments are studies here, or studies of our own that belong together.

    Args:
        key: in docs/references.bib, first part of its studies' ids, and the package of these.
        family: the measures that it defines, or "" for several families.
        title: of the paper.
        own: whether there is no paper, and every claim is ours.
    """

    key: str
    family: str
    title: str
    own: bool = False


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
        Paper("alignment_zoo", "", "The alignment zoo: which number to trust for what", own=True),
    )
}


# Seconds, for tests; minutes on two cores, a stand-in where the data are; the paper's data and
# networks with fewer examples, epochs or points; the paper's own numbers.
SIZES = ("smoke", "lite", "reduced", "published")
_SMOKE_SEEDS, _SEEDS = (0,), (101, 102, 103, 104, 105)


@dataclass(frozen=True)
class Trial:
    """Arguments of a run besides its config.

    Args:
        seed: of everything random in the run.
        device: where networks are trained.
        folder: for checkpoints of long runs; None if there is none.
        report: function of (share done, text).
    """

    seed: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    folder: Path | None = None
    report: Callable[[float, str], None] = lambda _share, _text: None

    def generator(self, stream: int = 0) -> torch.Generator:
        """A generator on the CPU; streams of one seed are independent."""
        state = np.random.SeedSequence([self.seed, stream]).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0]) % 2**63)


@dataclass(frozen=True)
class Study:
    """One experiment of a paper.

    Args:
        id: ``"<paper>.<figure>"``, such as ``"imani2022.fig7"``.
        title: what it shows, in a few words.
        shows: the figures and tables of the paper, such as ``("Figure 7",)``.
        measure: (config, trial) -> what was measured; everything that a claim or a picture needs.
        configs: size -> frozen dataclass.
        claims: the paper's statements about it.
        draw: results of one size -> panels of the picture.
        seeds: size -> seeds, where they differ from the usual ones.
        spaces: size -> settings that are swept, each a field of the config.
        stand_in: size -> what stands in for the paper's data, network or setting there.
        remarks: size -> what the paper leaves open and how it was chosen.
        not_run: size -> why there are no records of it.
        repeat: what a seed of this study numbers, such as "group".
    """

    id: str
    title: str
    shows: tuple[str, ...]
    measure: Callable[[Any, Trial], Measured]
    configs: Mapping[str, Any]
    claims: tuple[Claim, ...]
    draw: Callable[[Results], Sequence[Panel]]
    seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    spaces: Mapping[str, Space] = field(default_factory=dict)
    stand_in: Mapping[str, str] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    not_run: Mapping[str, str] = field(default_factory=dict)
    repeat: str = "seed"

    def __post_init__(self) -> None:
        for size, config in self.configs.items():
            if size not in SIZES or not dataclasses.is_dataclass(config):
                raise DomainError(f"{self.id}: expected a dataclass per size of {SIZES}")
        wrong = [claim.id for claim in self.claims if not claim.id.startswith(f"{self.id}.")]
        if wrong:
            raise DomainError(f"{self.id}: expected claims named {self.id}.NAME, got {wrong}")

    @property
    def paper(self) -> str:
        """Key of the paper in docs/references.bib, or of our own studies."""
        return self.id.split(".")[0]

    @property
    def default_size(self) -> str:
        """``lite``, or else the next larger size, or else the first size of the study."""
        larger = [size for size in SIZES[SIZES.index("lite") :] if size in self.configs]
        return larger[0] if larger else next(iter(self.configs))

    def config_at(self, size: str, point: Mapping[str, Any] | None = None) -> Any:
        """The config of a size, with the settings of a point in place.

        Raises:
            UnknownNameError: If the study has no such size, or no such setting.
        """
        if size not in self.configs and size in self.not_run:
            raise DomainError(
                f"{self.id} has no size {size!r}: {self.not_run[size]}; it has "
                f"{', '.join(self.configs)}"
            )
        if size not in self.configs:
            raise UnknownNameError(f"size of {self.id}", size, self.configs)
        config = self.configs[size]
        names = [entry.name for entry in dataclasses.fields(config)]
        for setting in point or {}:
            if setting not in names:
                raise UnknownNameError(f"setting of {self.id}", setting, names)
        return dataclasses.replace(config, **(point or {}))

    def seeds_at(self, size: str) -> tuple[int, ...]:
        """The seeds that a size is judged on."""
        return self.seeds.get(size, _SMOKE_SEEDS if size == "smoke" else _SEEDS)

    def points_at(self, size: str) -> list[Mapping[str, Any]]:
        """The points of a size; one without settings if nothing is swept."""
        space = self.spaces.get(size)
        return [{}] if space is None else list(space.points())


def all_studies() -> Mapping[str, Study]:
    """Id -> study, paper by paper and figure by figure."""
    return {id_: study for key in PAPERS for id_, study in _studies_of(key).items()}


def find_study(name: str) -> Study:
    """The study of this id; imports the studies of its paper only.

    Raises:
        UnknownNameError: If there is none; the message lists the nearest ids.
    """
    key = name.partition(".")[0]
    studies = _studies_of(key) if key in PAPERS else {}
    if name not in studies:
        raise UnknownNameError("study", name, all_studies())
    return studies[name]


@cache
def _studies_of(key: str) -> Mapping[str, Study]:
    package = importlib.import_module(f"theodolite_papers.{key}")
    names = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name[0] != "_"]
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    studies = [study for module in modules for study in _studies_in(module)]
    return {study.id: study for study in sorted(studies, key=_order)}


def _studies_in(module: object) -> tuple[Study, ...]:
    one = getattr(module, "STUDY", None)
    return getattr(module, "STUDIES", ()) if one is None else (one,)


def _order(study: Study) -> tuple[bool, list[int], str]:
    name = study.id.split(".", 1)[1]
    return (not name.startswith("fig"), [int(d) for d in re.findall(r"\d+", name)], name)
