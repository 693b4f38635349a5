"""Numbers, parameters and reports in MLflow runs."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from theodolite.integrations.mlflow_store import RunStore, default_tracking_uri
from theodolite.integrations.tracking import require_package

__all__ = ["MLflowSweep", "MLflowTracker", "default_tracking_uri"]

_PARENT, _SWEEP = "mlflow.parentRunId", "theodolite.sweep"


class MLflowTracker:
    """Logs parameters, scalars by step, one request each, and the report as an artifact.

    Args:
        run_id: an existing run; the active one, or a new one, if left out.
        tracking_uri: such as ``"sqlite:///runs.db"`` or ``"http://127.0.0.1:5000"``; if left out
            what MLflow is set to, or else ``mlflow.db`` in the working directory.
        experiment: of a new run; created if it does not exist.

    Raises:
        TrackingError: If there is no such place.
    """

    def __init__(
        self,
        run_id: str | None = None,
        tracking_uri: str | None = None,
        experiment: str = "theodolite",
    ) -> None:
        mlflow = require_package("mlflow", "track")
        active = mlflow.active_run()
        if run_id is None and active is not None:
            run_id = active.info.run_id
        self._owned = run_id is None
        if tracking_uri is None:  # an existing run lies where MLflow's own setting says
            tracking_uri = default_tracking_uri() if self._owned else mlflow.get_tracking_uri()
        self._store = RunStore(tracking_uri, experiment)
        self.run_id: str = run_id or self._store.start()

    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Keep the settings of the run."""
        self._store.log_parameters(self.run_id, values)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the numbers of one step."""
        self._store.log_numbers(self.run_id, values, step)

    def log_report(self, path: Path) -> None:
        """Keep a file as an artifact."""
        self._store.keep_file(self.run_id, path)

    def close(self) -> None:
        """End the run if it was made here."""
        if self._owned:
            self._store.end(self.run_id)


class MLflowSweep:
    """A parent run for a sweep, and below it one run for each of its points.

    As a context it ends the parent run: failed where the block raises, killed where it is
    interrupted.

    Args:
        name: of the parent run.
        tracking_uri: such as ``"sqlite:///runs.db"`` or the address of a server; if left out what
            MLflow is set to, or else ``mlflow.db`` in the working directory.
        experiment: created if it does not exist.
        key: what is swept, and where its records are. A sweep that was interrupted goes on in the
            run of the same key; if left out, there is always a new run.
        parameters: of the parent run.

    Raises:
        TrackingError: If there is no such place.
    """

    def __init__(
        self,
        name: str,
        tracking_uri: str | None = None,
        experiment: str = "theodolite",
        *,
        key: str = "",
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.tracking_uri: str = tracking_uri or default_tracking_uri()
        self._store = RunStore(self.tracking_uri, experiment)
        self.run_id: str = self._resumed(key) or self._store.start(name, _tags(key))
        self._store.log_parameters(self.run_id, parameters or {})
        self._runs = self._store.tagged(_PARENT, self.run_id)
        self._complete = set(self._store.tagged(_PARENT, self.run_id, finished=True))

    def _resumed(self, key: str) -> str | None:
        found = self._store.tagged(_SWEEP, _digest(key)) if key else {}
        run = next(iter(found.values()), None)
        if run is not None:
            self._store.reopen(run)
        return run

    def has_run(self, name: str) -> bool:
        """Whether a run of the sweep is there, with all its numbers."""
        return name in self._complete

    def log_run(
        self, name: str, parameters: Mapping[str, Any], numbers: Mapping[str, float]
    ) -> None:
        """Keep one run of the sweep, in place of an earlier one of that name."""
        run = self._store.start(name, {_PARENT: self.run_id})
        self._store.log_parameters(run, parameters)
        self._store.log_numbers(run, numbers)
        self._store.end(run)
        if name in self._runs:
            self._store.delete(self._runs[name])
        self._runs[name] = run
        self._complete.add(name)

    def log_report(self, path: Path) -> None:
        """Keep a file as an artifact of the sweep."""
        self._store.keep_file(self.run_id, path)

    def close(self, status: str = "FINISHED") -> None:
        """End the parent run."""
        self._store.end(self.run_id, status)

    def __enter__(self) -> "MLflowSweep":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        failed = "KILLED" if interrupted else "FAILED"
        self.close("FINISHED" if kind is None else failed)


def _tags(key: str) -> dict[str, str]:
    return {_SWEEP: _digest(key)} if key else {}


def _digest(key: str) -> str:
    """Letters and digits only: a query cannot hold quotation marks of a path."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]
