"""The settings that a paper prints for its experiments, compared with ours.

Every paper's folder has a ``published.toml``. A study is a table in it, named by the second part of
its id. Each setting has the value of the paper and the place of ours::

    [fig2.settings]
    "training images" = { paper = 10000, ours = "train" }
    "epochs" = { paper = 1000, ours = "training.epochs" }
    "network" = { paper = "ResNet101", here = "MobileNetV2" }

- ``paper`` is missing if the paper gives no value.
- ``ours`` is a path of fields of the config, or ``seeds``; ``none`` is the meaning of None there.
- ``here`` is our value in words, or a table from sizes to values.

Seeds are in every table. The ledger prints the ratios of these values. A size may be called
"published" if the paper prints at least one setting and the size meets all that it prints. For
finished runs, seeds and swept settings are those of the runs, not the planned ones.

``[fig2.claims]`` has the source of each claim (paper, weakened, ours) and the paper's section::

    "order" = { source = "paper", section = "3.2" }
    "close" = { source = "weakened", section = "3.2", note = "0.9 is ours", own_bound = true }

``"*"`` stands for all claims of the study that are not named. Other tables are:

- ``[[fig2.printed]]``: panels of numbers that the paper prints. They are ``lines`` (name ->
  points), ``bars`` (name -> label -> number), or a table of ``values`` by ``rows`` and ``columns``.
- ``lesson``: a sentence about the result of the whole paper.
- ``[headlines]``: claims of the summary. ``says`` is the sentence, ``numbers`` are the numbers to
  show, each with a phrase. The number that decided is shown first without being named.
- ``[gpu_hours]``: estimated cost on one accelerator of sizes that were not run there.
- ``[core_ratio]``: hours on two cores that equal one such hour, by study.
- ``[[open]]``: further runs. ``[[unstudied]]``: figures without a study, with the reason.

Studies of our own have no paper. Their file needs ``lesson`` and ``[headlines]`` alone, and all
their claims are ours.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from theodolite_papers.ledger._panels import Bars, Heat, Line, Mark, Panel
from theodolite_papers.ledger._results import LARGE, Results
from theodolite_papers.ledger._space import point_name
from theodolite_papers.ledger._study import PAPERS, Study

__all__ = [
    "SOURCES",
    "Difference",
    "Headline",
    "Origin",
    "Setting",
    "core_ratio",
    "differences",
    "estimated_hours",
    "excuse_of",
    "headlines_of",
    "is_as_published",
    "lesson_of",
    "listed_open",
    "origin_of",
    "printed_panels",
    "setting_text",
    "settings_of",
    "size_name",
    "size_text",
    "unstudied_of",
]

SOURCES = {
    "paper": "the paper's own statement",
    "weakened": "the paper's statement with a margin, summary or restriction of ours",
    "ours": "our own: a control or a check that the paper does not state, or, in the zoo, a "
    "hypothesis that was written down before the run",
}


@dataclass(frozen=True)
class Origin:
    """The source of a claim: the paper, weakened, or ours.

    Args:
        source: a key of ``SOURCES``.
        section: of the paper, or its figure or table.
        note: what was weakened, or why.
        in_a_proof: whether it is a step of a proof, not what the theorem says.
        own_bound: whether the bound that decides is ours and the paper names none: missing it is
            never the paper's failure.
        printed_number: whether the bound is a number that the paper prints: missing it at other
            settings than the paper's is no failure.
    """

    source: str
    section: str = ""
    note: str = ""
    in_a_proof: bool = False
    own_bound: bool = False
    printed_number: bool = False


@dataclass(frozen=True)
class Headline:
    """A claim in the summary.

    Args:
        says: the claim, as a short sentence.
        numbers: those that are shown, each with a phrase.
    """

    says: str
    numbers: Mapping[str, str]


@dataclass(frozen=True)
class Difference:
    """A setting that differs from the paper's."""

    name: str
    ours: Any
    paper: Any

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's, of numbers."""
        if isinstance(self.ours, str) or isinstance(self.paper, (str, bool)):
            return None
        if isinstance(self.ours, (int, float)) and isinstance(self.paper, (int, float)):
            return self.ours / self.paper
        return None

    def __str__(self) -> str:
        """``epochs 300 (paper: 1,000, ratio 0.3)``, or ``network A (paper: B)``."""
        ours, paper = setting_text(self.ours), setting_text(self.paper)
        ratio = "" if self.ratio is None else f", ratio {self.ratio:.2g}"
        return f"{self.name} {ours} (paper: {paper}{ratio})"


@dataclass(frozen=True)
class Setting:
    """A setting of a study at one size.

    Args:
        name: of the setting.
        ours: its value here; several where points of the study differ in it.
        paper: the paper's; None where it is not printed.
    """

    name: str
    ours: Any
    paper: Any


def settings_of(study: Study, size: str, runs: Results | None = None) -> list[Setting]:
    """The settings of a study at one size beside the paper's.

    Args:
        study: the study.
        size: its size.
        runs: those that were made; without them, or where there are none, what is planned counts.
    """
    table = {**_table(study).get("settings", {})}
    if all(entry.get("ours") != "seeds" for entry in table.values()):
        table[f"{study.repeat}s"] = {"ours": "seeds"}
    points, seeds = study.points_at(size), len(study.seeds_at(size))
    if runs is not None and len(runs):
        made = {point_name(run.point) for run in runs}
        points = [point for point in points if point_name(point) in made]
        seeds = len(runs.by_seed())
    configs = [study.config_at(size, point) for point in points]
    return [
        Setting(
            name,
            seeds if entry.get("ours") == "seeds" else _ours(configs, size, entry),
            entry.get("paper"),
        )
        for name, entry in table.items()
    ]


def differences(study: Study, size: str, runs: Results | None = None) -> list[Difference]:
    """The settings in which a size, or its runs where they are given, is not as published."""
    return [
        Difference(setting.name, setting.ours, setting.paper)
        for setting in settings_of(study, size, runs)
        if setting.paper is not None and not _same(setting.ours, setting.paper)
    ]


def is_as_published(study: Study, size: str) -> bool:
    """Whether every setting that the paper prints is met; not where it prints none."""
    printed = [setting for setting in settings_of(study, size) if setting.paper is not None]
    return bool(printed) and not differences(study, size)


def size_name(study: Study, size: str, runs: Results | None = None) -> str:
    """The size; of the published one, whether it was run in part only."""
    partly = size == "published" and differences(study, size, runs)
    return "published settings, in part" if partly else size


def size_text(study: Study, size: str, runs: Results | None = None) -> str:
    """The size with its ratios: ``reduced: epochs 300 of 1,000 (0.3)``."""
    found = differences(study, size, runs)
    if found:
        return f"{size_name(study, size, runs)}: {'; '.join(str(one) for one in found)}"
    if size in LARGE and not PAPERS[study.paper].own and not is_as_published(study, size):
        return f"{size}: settings are ours, the paper prints none"
    return size


def origin_of(study: Study, claim: str) -> Origin | None:
    """The source of a claim, by its id; None if the paper's table has none."""
    if PAPERS[study.paper].own:
        return Origin("ours")
    entries = _table(study).get("claims", {})
    entry = entries.get(claim.removeprefix(f"{study.id}."), entries.get("*"))
    return None if entry is None else Origin(**entry)


def excuse_of(study: Study, claim: str, size: str) -> str:
    """Why a missed bound does not contradict the paper at this size; empty if it does."""
    origin = origin_of(study, claim)
    if origin is None or origin.source == "ours":
        return ""
    if origin.printed_number and size != "published":
        return "misses a number that is printed for other settings"
    return "misses a bound that we set" if origin.own_bound else ""


def headlines_of(paper: str) -> Mapping[str, Headline]:
    """Claims of a paper that the summary shows, by id."""
    found = _tables(paper).get("headlines", {})
    return {f"{paper}.{claim}": Headline(**one) for claim, one in found.items()}


def lesson_of(paper: str) -> str:
    """Our conclusion about a paper in one paragraph; empty if there is none."""
    return " ".join(_tables(paper).get("lesson", "").split())


def estimated_hours(study: Study, size: str) -> float:
    """Hours of all runs of a size on one accelerator, estimated; nan where that was not done."""
    name = f"{study.id.split('.', 1)[1]}.{size}"
    return float(_tables(study.paper).get("gpu_hours", {}).get(name, math.nan))


def core_ratio(paper: str, study: str) -> float:
    """Hours on two processor cores for one hour on an accelerator; nan where nothing is known."""
    table = _tables(paper).get("core_ratio", {})
    return float(table.get(study, table.get("*", math.nan)))


def listed_open(paper: str) -> list[Mapping[str, Any]]:
    """Runs that would decide a claim and belong to no size of a study, with their commands."""
    return list(_tables(paper).get("open", []))


def unstudied_of(paper: str) -> list[Mapping[str, Any]]:
    """Figures and tables that no study is about: ``shows``, and the ``reason``."""
    return list(_tables(paper).get("unstudied", []))


def printed_panels(study: Study) -> list[Panel]:
    """Panels with the numbers that the paper prints for the study's figures; empty if none."""
    return [
        Panel(
            entry["title"],
            _marks(entry),
            entry.get("x", ""),
            entry.get("y", ""),
            entry.get("log", ""),
            printed=True,
        )
        for entry in _table(study).get("printed", [])
    ]


def _marks(entry: Mapping[str, Any]) -> list[Mark]:
    if "values" in entry:
        return [Heat(np.array(entry["values"], dtype=float), entry["rows"], entry["columns"])]
    lines = [Line(name, *np.array(xy).T) for name, xy in entry.get("lines", {}).items()]
    bars = [Bars(name, list(b), list(b.values())) for name, b in entry.get("bars", {}).items()]
    return [*lines, *bars]


def _table(study: Study) -> Mapping[str, Any]:
    return _tables(study.paper).get(study.id.split(".", 1)[1], {})


@cache
def _tables(paper: str) -> Mapping[str, Any]:
    file = resources.files(f"theodolite_papers.{paper}").joinpath("published.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _ours(configs: Sequence[Any], size: str, entry: Mapping[str, Any]) -> Any:
    if "here" in entry:
        here = entry["here"]
        return here.get(size, entry.get("paper")) if isinstance(here, Mapping) else here
    found: list[Any] = []
    for value in configs:
        for name in entry["ours"].split("."):
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        value = list(value) if isinstance(value, tuple) else value
        value = entry.get("none") if value is None else value
        if value not in found:
            found.append(value)
    return found[0] if len(found) == 1 else found


def _same(ours: Any, paper: Any) -> bool:
    if isinstance(paper, list):
        return sorted(map(str, _listed(ours))) == sorted(map(str, paper))
    return bool(ours == paper)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def setting_text(value: Any) -> str:
    """A setting as the ledger prints it: ``1,000``, ``0.3``, ``yes``, ``mnist, cifar10``."""
    if isinstance(value, list):
        return ", ".join(setting_text(one) for one in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
