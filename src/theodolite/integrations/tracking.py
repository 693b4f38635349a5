"""What trackers get: settings, a number per layer, family and measure at every step, a report."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from theodolite.records import Record, Run

__all__ = ["Tracker", "accepted", "parameters", "require_package", "scalars", "track"]

_FOREIGN = re.compile(r"[^\w\-. /]")


@runtime_checkable
class Tracker(Protocol):
    """A place that keeps settings, numbers by step, and files."""

    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Keep the settings of a run; told once, before its numbers."""

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


def parameters(record: Record) -> dict[str, str]:
    """How and on what a survey was made, by dotted names; what was not set is left out.

    Args:
        record: of a survey, or the head or one step of a history.

    Example:
        >>> config = {"seed": 0, "sizes": {"kernel": 2000, "pairs": None}}
        >>> parameters(Record({"config": config, "data": {"n": 30, "input_shape": [4]}}))
        {'config.seed': '0', 'config.sizes.kernel': '2000', 'data.n': '30', 'data.input_shape': '4'}
    """
    parts = {name: record.contents.get(name, {}) for name in ("config", "data")}
    return dict(_flat("", parts))


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, list):
            yield f"{prefix}{name}", ", ".join(str(item) for item in value)
        elif value is not None:
            yield f"{prefix}{name}", str(value)


def accepted(name: str) -> str:
    """The name with only what trackers accept: letters, digits, dashes, dots, blanks, slashes."""
    return _FOREIGN.sub("_", name)


def _tag(row: Mapping[str, Any]) -> str:
    layer = "model" if row.get("layer") is None else row["layer"] or "(model)"
    return accepted(f"{row['family']}/{row['measure']}/{layer}")


def track(run: Run, *trackers: Tracker, report: Path | None = None) -> None:
    """Send the settings of a saved or finished run, every step, and its report to trackers.

    Args:
        run: e.g. ``history.run`` or ``theodolite.records.load_run(folder)``.
        trackers: where to.
        report: an HTML file to keep beside the numbers.
    """
    for tracker in trackers:
        tracker.log_parameters(parameters(run.head))
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
