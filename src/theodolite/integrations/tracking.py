"""What trackers get: a number per layer, family and measure at every step, and the report."""

import math
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from theodolite.records import Record, Run

__all__ = ["Tracker", "require_package", "scalars", "track"]

_FOREIGN = re.compile(r"[^\w\-. /]")


@runtime_checkable
class Tracker(Protocol):
    """A place that keeps numbers by step and files."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the numbers of one step."""

    def log_report(self, path: Path) -> None:
        """Keep a file."""

    def close(self) -> None:
        """Send what is waiting."""


def scalars(record: Record, measures: Sequence[str] | None = None) -> dict[str, float]:
    """The numbers of one survey by ``family/measure/layer``; undefined ones are left out.

    Args:
        record: of a survey, or one step of a history.
        measures: only these; all of them if left out.

    Example:
        >>> row = {"layer": "fc1", "family": "kernel", "measure": "cka_target", "value": 0.5}
        >>> scalars(Record({"rows": [row]}))
        {'kernel/cka_target/fc1': 0.5}
    """
    return {
        _tag(row): float(row["value"])
        for row in record.contents["rows"]
        if (measures is None or row["measure"] in measures) and math.isfinite(row["value"])
    }


def _tag(row: Mapping[str, Any]) -> str:
    # Trackers accept letters, digits, dashes, dots, blanks and slashes, and nothing else in common.
    layer = "model" if row.get("layer") is None else row["layer"] or "(model)"
    return _FOREIGN.sub("_", f"{row['family']}/{row['measure']}/{layer}")


def track(run: Run, *trackers: Tracker, report: Path | None = None) -> None:
    """Send every step of a saved or finished run, and its report, to trackers.

    Args:
        run: e.g. ``history.run`` or ``theodolite.records.load_run(folder)``.
        trackers: where to.
        report: an HTML file to keep beside the numbers.
    """
    for tracker in trackers:
        for step in run.steps:
            tracker.log(scalars(step), step.contents.get("step") or 0)
        if report is not None:
            tracker.log_report(report)


def require_package(name: str, extra: str) -> Any:
    """Import a package that an extra brings.

    Raises:
        ImportError: If it is not installed; the message says what to install.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"{package} is not installed; run pip install 'theodolite[{extra}]'"
        ) from error
