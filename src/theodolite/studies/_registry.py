"""Every study, found by name: each module of a family's package holds one as ``STUDY``."""

import importlib
import pkgutil
import re
from collections.abc import Mapping
from functools import cache

from theodolite.errors import UnknownNameError
from theodolite.studies._papers import PAPERS
from theodolite.studies._study import Study

__all__ = ["all_studies", "find_study"]


@cache
def all_studies() -> Mapping[str, Study]:
    """Id -> study, paper by paper and figure by figure."""
    found: dict[str, Study] = {}
    for paper in PAPERS.values():
        package = importlib.import_module(f"theodolite.studies.{paper.family}")
        names = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name[0] != "_"]
        modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
        studies = [study for module in modules for study in _studies_in(module)]
        found |= {study.id: study for study in sorted(studies, key=_order)}
    return found


def find_study(name: str) -> Study:
    """The study of this id.

    Raises:
        UnknownNameError: If there is none; the message lists the nearest ids.
    """
    studies = all_studies()
    if name not in studies:
        raise UnknownNameError("study", name, studies)
    return studies[name]


def _studies_in(module: object) -> tuple[Study, ...]:
    one = getattr(module, "STUDY", None)
    return getattr(module, "STUDIES", ()) if one is None else (one,)


def _order(study: Study) -> tuple[bool, list[int], str]:
    name = study.id.split(".", 1)[1]
    return (not name.startswith("fig"), [int(d) for d in re.findall(r"\d+", name)], name)
