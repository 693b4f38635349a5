"""Every study, found by name: each module of a family's package holds one as ``STUDY``."""

import importlib
import pkgutil
import re
from collections.abc import Mapping
from functools import cache

from theodolite.errors import UnknownNameError
from theodolite_papers.ledger._papers import PAPERS
from theodolite_papers.ledger._study import Study

__all__ = ["all_studies", "find_study"]


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
