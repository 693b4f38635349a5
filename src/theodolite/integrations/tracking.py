"""Trackers: settings, numbers per layer, family and measure at every step, and the report.

This file has TensorBoard and Weights & Biases. MLflow, which also logs sweeps, has its own file.
"""

import math
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from theodolite.errors import DtypeError
from theodolite.records import FAMILIES, Record, Run, load_run, require_class, require_path

__all__ = [
    "TensorBoardTracker",
    "Tracked",
    "Tracker",
    "WandbTracker",
    "accepted",
    "parameters",
    "require_package",
    "scalars",
    "track",
]

_FOREIGN = re.compile(r"[^\w\-. /]")


@runtime_checkable
class Tracker(Protocol):
    """An object that logs settings, numbers by step, and files."""

    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Keep the settings of a run; called once, before its numbers."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the numbers of one step."""

    def log_report(self, path: Path) -> None:
        """Keep a file."""

    def close(self) -> None:
        """Send what is waiting."""


@runtime_checkable
class Tracked(Protocol):
    """A survey or a history; both have a run."""

    @property
    def run(self) -> Run:
        """Its records."""


def scalars(record: Record) -> dict[str, float]:
    """The numbers of one survey by ``family/measure/layer``; undefined ones are left out.

    Args:
        record: record of a survey, or of one step of a history.

    Returns:
        Numbers by ``family/measure/layer``.

    Examples:
        >>> row = {"layer": "fc1", "family": "kernel", "measure": "cka_target", "value": 0.5}
        >>> scalars(Record({"rows": [row]}))
        {'kernel/cka_target/fc1': 0.5}
    """
    require_class(Record, record=record)
    return {
        _tag(row): float(row["value"])
        for row in record.contents["rows"]
        if math.isfinite(row["value"])
    }


def parameters(record: Record) -> dict[str, str]:
    """Settings and data of a survey by dotted names, without unset ones.

    Args:
        record: record of a survey, or of a history or one of its steps.

    Examples:
        >>> config = {"seed": 0, "sizes": {"kernel": 2000, "pairs": None}}
        >>> parameters(Record({"config": config, "data": {"n": 30, "input_shape": [4]}}))
        {'config.seed': '0', 'config.sizes.kernel': '2000', 'data.n': '30', 'data.input_shape': '4'}
    """
    require_class(Record, record=record)
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


def track(
    run: Run | Tracked | str | Path, *trackers: Tracker, report: str | Path | None = None
) -> None:
    """Send the settings of a saved or finished run, every step, and its report to trackers.

    Args:
        run: a survey, a history, or the folder of a saved one.
        trackers: trackers that get the run.
        report: an HTML file to keep with the numbers.

    Raises:
        RecordError: If the folder holds no record, or a damaged one.

    Examples:
        >>> import torch
        >>> from theodolite import survey_features
        >>> class Printer:
        ...     def log_parameters(self, values):
        ...         print(len(values) > 0)
        ...     def log(self, values, step):
        ...         print(step, "kernel/cka_target/layer" in values)
        ...     def log_report(self, path):
        ...         print(path)
        ...     def close(self):
        ...         pass
        >>> x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        >>> found = survey_features({"layer": x}, torch.arange(40) % 2, families="kernel")
        >>> track(found, Printer())
        True
        0 True
    """
    if isinstance(run, (str, Path)):
        run = load_run(Path(run))
    elif not isinstance(run, Run):
        if not isinstance(getattr(run, "run", None), Run):
            raise DtypeError(
                "run: expected a survey, a history or the folder of a saved one, got "
                f"{type(run).__name__}"
            )
        run = run.run
    if report is not None:
        require_path(report=report)
    require_class(Tracker, **{f"trackers[{i}]": tracker for i, tracker in enumerate(trackers)})
    for tracker in trackers:
        tracker.log_parameters(parameters(run.head))
        for step in run.steps:
            tracker.log(scalars(step), step.contents.get("step") or 0)
        if report is not None:
            tracker.log_report(Path(report))


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


class TensorBoardTracker:
    """Writes scalars to an event file; settings, and where the report was copied, to the text tab.

    Args:
        folder: the log directory.

    Example::

        track(history, TensorBoardTracker("runs/a"), report="runs/a.html")
    """

    def __init__(self, folder: str | Path) -> None:
        require_path(folder=folder)
        require_package("tensorboard", "track")
        from torch.utils.tensorboard.writer import SummaryWriter

        self.folder = Path(folder)
        self._writer = SummaryWriter(str(folder))

    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Keep the settings in the text tab."""
        require_class(Mapping, values=values)
        lines = [f"{name} = {value}" for name, value in values.items()]
        # The tab shows lines that are indented by four blanks unchanged.
        self._writer.add_text("theodolite/parameters", "\n".join(f"    {line}" for line in lines))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the numbers of one step."""
        require_class(Mapping, values=values)
        require_class(int, step=step)
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)

    def log_report(self, path: Path) -> None:
        """Copy the file into the log directory."""
        require_path(path=path)
        path = Path(path)
        target = self.folder / path.name
        if target.resolve() != path.resolve():
            shutil.copyfile(path, target)
        self._writer.add_text("theodolite/report", target.resolve().as_uri())

    def close(self) -> None:
        """Flush the event file."""
        self._writer.flush()


_STEP = "alignment/step"


class WandbTracker:
    """Logs settings, numbers with their own step axis, and the report as an artifact.

    The training loop owns the step counter of the run and may be ahead, and W&B drops numbers of
    earlier steps. So the alignment numbers have their own step.

    Args:
        run: result of ``wandb.init``.
    """

    def __init__(self, run: Any) -> None:
        self._wandb = require_package("wandb", "track")
        if not hasattr(run, "define_metric"):
            raise DtypeError(f"run: expected the result of wandb.init, got {type(run).__name__}")
        self.run = run
        run.define_metric(_STEP, hidden=True)
        for family in FAMILIES:
            run.define_metric(f"{family}/*", step_metric=_STEP)

    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Keep the settings in the run's config, under "alignment"."""
        require_class(Mapping, values=values)
        self.run.config.update({"alignment": dict(values)}, allow_val_change=True)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the numbers of one step."""
        require_class(Mapping, values=values)
        require_class(int, step=step)
        self.run.log({**values, _STEP: step})

    def log_report(self, path: Path) -> None:
        """Keep a file as an artifact of type "report"."""
        require_path(path=path)
        artifact = self._wandb.Artifact("theodolite-report", type="report")
        artifact.add_file(str(path), name=Path(path).name)
        self.run.log_artifact(artifact)

    def close(self) -> None:
        """Do nothing, because the caller ends the run."""
