"""The newest numbers of a run: a monitor takes what is costly at some of its steps only."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from theodolite.records._files import Record
from theodolite.records._runs import Run

__all__ = ["Latest", "latest_numbers"]


@dataclass(frozen=True)
class Latest:
    """The last step of a run, completed by what steps before it measured and it did not.

    Args:
        record: the last step, with rows and warnings of the families that it left out.
        steps: family -> the step that its numbers are from.
    """

    record: Record
    steps: Mapping[str, int | None]

    @property
    def earlier(self) -> dict[int | None, list[str]]:
        """Steps before the last -> the families that are from there."""
        found: dict[int | None, list[str]] = {}
        for family, step in self.steps.items():
            if step != self.record.contents["step"]:
                found.setdefault(step, []).append(family)
        return found


def latest_numbers(run: Run) -> Latest:
    """Of every family the numbers of the last step that took it.

    A family that no step took is left out, with the reason that the first step gives: later ones
    may say that it was not its turn. Of a run that was closed, and of a survey, this is the last
    step itself.

    Args:
        run: with at least one step.
    """
    last = run.steps[-1].contents
    families = dict.fromkeys(row["family"] for step in run.steps for row in step.contents["rows"])
    sources = {family: _source(run, family) for family in families}
    found = {family: contents for family, contents in sources.items() if contents is not None}
    parts = {
        "rows": _joined(found, last, "rows"),
        "warnings": _joined(found, last, "warnings"),
        "skipped": {
            family: run.steps[0].contents["skipped"].get(family, why)
            for family, why in last["skipped"].items()
            if family not in found
        },
    }
    steps = {family: contents["step"] for family, contents in found.items()}
    return Latest(replace(run.steps[-1], contents={**last, **parts}), steps)


def _source(run: Run, family: str) -> Mapping[str, Any] | None:
    """The last step that took a family."""
    taken = (r.contents for r in reversed(run.steps) if family not in r.contents["skipped"])
    return next(taken, None)


def _joined(
    found: Mapping[str, Mapping[str, Any]], last: Mapping[str, Any], part: str
) -> list[Mapping[str, Any]]:
    """Entries of the last step, and those of other steps that it has no newer ones for."""
    entries = list(last[part])
    known = {_name(entry) for entry in entries}
    for family, contents in found.items():
        if contents is not last:
            entries += _of(contents[part], family, known)
    return entries


def _of(
    entries: Iterable[Mapping[str, Any]], family: str, known: set[tuple[Any, ...]]
) -> list[Mapping[str, Any]]:
    return [e for e in entries if e.get("family") == family and _name(e) not in known]


def _name(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(key) for key in ("layer", "family", "measure"))
