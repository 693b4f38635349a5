"""A study: one experiment of a paper, at three sizes, with its claims."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from theodolite.errors import DomainError, UnknownNameError
from theodolite.sweeps import Space
from theodolite_papers.ledger._claims import Claim
from theodolite_papers.ledger._panels import Panel
from theodolite_papers.ledger._results import Measured, Results

__all__ = ["SIZES", "Study", "Trial"]

SIZES = ("smoke", "lite", "paper")
# Pilots and development use small seeds; verdicts come from seeds nobody has looked at.
_SEEDS: Mapping[str, tuple[int, ...]] = {
    "smoke": (0,),
    "lite": (101, 102, 103, 104, 105),
    "paper": (101, 102, 103, 104, 105),
}


@dataclass(frozen=True)
class Trial:
    """What a run of a study is given besides its config.

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
        stand_in: size -> what differs from the paper's data or setting there.
        not_run: size -> why there are no records of it.
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
    not_run: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for size, config in self.configs.items():
            if size not in SIZES or not dataclasses.is_dataclass(config):
                raise DomainError(f"{self.id}: expected a dataclass per size of {SIZES}")
        wrong = [claim.id for claim in self.claims if not claim.id.startswith(f"{self.id}.")]
        if wrong:
            raise DomainError(f"{self.id}: expected claims named {self.id}.NAME, got {wrong}")

    @property
    def paper(self) -> str:
        """Key of the paper in docs/references.bib."""
        return self.id.split(".")[0]

    def config_at(self, size: str, point: Mapping[str, Any] | None = None) -> Any:
        """The config of a size, with the settings of a point in place.

        Raises:
            UnknownNameError: If the study has no such size, or no such setting.
        """
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
        return self.seeds.get(size, _SEEDS[size])

    def points_at(self, size: str) -> list[Mapping[str, Any]]:
        """The points that a size consists of; one without settings if nothing is swept."""
        space = self.spaces.get(size)
        return [{}] if space is None else list(space.points())
