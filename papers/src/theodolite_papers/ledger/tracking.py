"""Sweeps in MLflow: one run for the sweep, with one nested run for each of its points."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from theodolite.integrations.mlflow import RunStore, default_tracking_uri

__all__ = ["MLflowSweep"]

_MOST_RUNS = 50_000  # limit of the server for one answer
_PARENT, _SWEEP = "mlflow.parentRunId", "theodolite.sweep"


class SweepStore(RunStore):
    """A store that also finds, reopens and deletes runs."""

    def tagged(self, tag: str, value: str, *, finished: bool = False) -> dict[str, str]:
        """Name -> id of the latest run of each name with this tag.

        With ``finished=True`` only finished runs count. A run that was interrupted while its
        numbers were sent is not finished.
        """
        query = f"tags.`{tag}` = '{value}'" + " and status = 'FINISHED'" * finished
        with self.explained():
            runs = self.client.search_runs(
                [self.experiment], query, max_results=_MOST_RUNS, order_by=["start_time ASC"]
            )
        return {str(run.info.run_name): str(run.info.run_id) for run in runs}

    def reopen(self, run: str) -> None:
        """Mark a run as running again."""
        with self.explained():
            self.client.update_run(run, status="RUNNING")

    def delete(self, run: str) -> None:
        """Delete a run; MLflow keeps deleted runs in its trash."""
        with self.explained():
            self.client.delete_run(run)


class MLflowSweep:
    """A parent run for a sweep, with one nested run for each of its points.

    As a context manager it ends the parent run: as failed if the block raises, as killed if it is
    interrupted.

    Args:
        name: name of the parent run.
        tracking_uri: address such as ``"sqlite:///runs.db"``. By default the address that MLflow is
            set to, or ``mlflow.db`` in the working directory.
        experiment: experiment of the runs; created if it does not exist.
        key: identifies the sweep, for instance its study and its folder of records. An interrupted
            sweep continues in the run with the same key. Without a key every sweep is a new run.
        parameters: parameters of the parent run.

    Raises:
        TrackingError: If the address does not work.
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
        self._store = SweepStore(self.tracking_uri, experiment)
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
        """Whether the sweep has a run of this name with all its numbers."""
        return name in self._complete

    def log_run(
        self, name: str, parameters: Mapping[str, Any], numbers: Mapping[str, float]
    ) -> None:
        """Log one run of the sweep; it replaces an earlier run of the same name."""
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
    """A digest of letters and digits, because a query cannot contain the quotes of a path."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]
