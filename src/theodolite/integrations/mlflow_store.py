"""Where MLflow keeps runs: a SQLite file with a folder of artifacts beside it, or any server."""

import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from theodolite.errors import TrackingError
from theodolite.integrations.tracking import accepted, require_package

__all__ = ["RunStore", "default_tracking_uri", "without_password"]

_DATABASE = "mlflow.db"
_SQLITE = "sqlite:///"
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # in one request; the server refuses more
_MOST_RUNS = 50_000  # in one answer
_LONGEST = 500  # characters of a parameter
_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


def default_tracking_uri(folder: str | os.PathLike[str] = ".") -> str:
    """What MLflow is set to (``MLFLOW_TRACKING_URI``), or else a SQLite file in the folder."""
    mlflow = require_package("mlflow", "track")
    if mlflow.is_tracking_uri_set():
        return str(mlflow.get_tracking_uri())
    return _SQLITE + (Path(folder).resolve() / _DATABASE).as_posix()


def without_password(text: str) -> str:
    """A text with the users and passwords of its addresses left out.

    Example:
        >>> without_password("no answer from http://me:secret@host:5000/path")
        'no answer from http://host:5000/path'
    """
    return re.sub(r"//[^/@\s]*@", "//", text)


class RunStore:
    """Makes runs in an experiment, and adds numbers, parameters and files to them.

    Args:
        tracking_uri: such as ``"sqlite:///runs.db"`` or the address of a server.
        experiment: of new runs; created if it does not exist. That of a SQLite file keeps its
            artifacts in a folder beside the file, wherever the process runs.

    Raises:
        TrackingError: If there is no such place; so does every method that needs it.
    """

    def __init__(self, tracking_uri: str, experiment: str = "theodolite") -> None:
        mlflow = require_package("mlflow", "track")
        self.uri, self._name = tracking_uri, experiment
        with _explained(tracking_uri):
            self._client = mlflow.MlflowClient(tracking_uri)

    def start(self, name: str | None = None, tags: Mapping[str, str] | None = None) -> str:
        """Make a run; its id."""
        with _explained(self.uri):
            run = self._client.create_run(self._experiment, run_name=name, tags=dict(tags or {}))
        return str(run.info.run_id)

    def tagged(self, tag: str, value: str, *, finished: bool = False) -> dict[str, str]:
        """Name -> id of the runs with this tag, the latest of a name; only finished ones if asked.

        A run that was interrupted while its numbers were sent is not finished.
        """
        query = f"tags.`{tag}` = '{value}'" + " and status = 'FINISHED'" * finished
        with _explained(self.uri):
            runs = self._client.search_runs(
                [self._experiment], query, max_results=_MOST_RUNS, order_by=["start_time ASC"]
            )
        return {str(run.info.run_name): str(run.info.run_id) for run in runs}

    def reopen(self, run: str) -> None:
        """Say that a run goes on."""
        with _explained(self.uri):
            self._client.update_run(run, status="RUNNING")

    def delete(self, run: str) -> None:
        """Put a run where MLflow keeps the deleted ones."""
        with _explained(self.uri):
            self._client.delete_run(run)

    def log_numbers(self, run: str, values: Mapping[str, float], step: int = 0) -> None:
        """Keep numbers; undefined ones are left out, as MLflow has no place for them."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(accepted(name), value, now, step)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        with _explained(self.uri):
            for part in _parts(metrics, _MOST_METRICS):
                self._client.log_batch(run, metrics=part)

    def log_parameters(self, run: str, values: Mapping[str, Any]) -> None:
        """Keep settings as text; one that the run has already stays, as it cannot be changed."""
        from mlflow.entities import Param

        with _explained(self.uri):
            present = self._client.get_run(run).data.params
            new = [
                Param(accepted(name), str(value)[:_LONGEST])
                for name, value in values.items()
                if accepted(name) not in present
            ]
            for part in _parts(new, _MOST_PARAMETERS):
                self._client.log_batch(run, params=part)

    def keep_file(self, run: str, path: Path) -> None:
        """Keep a file as an artifact."""
        with _explained(self.uri):
            self._client.log_artifact(run, str(path))

    def end(self, run: str, status: str = "FINISHED") -> None:
        """Say how a run ended: "FINISHED", "FAILED" or "KILLED"."""
        with _explained(self.uri):
            self._client.set_terminated(run, status)

    @cached_property
    def _experiment(self) -> str:
        database = _database(self.uri)
        if database is not None:
            database.parent.mkdir(parents=True, exist_ok=True)
        with _first_answer():
            found = self._client.get_experiment_by_name(self._name)
        if found is not None:
            return str(found.experiment_id)
        beside = None if database is None else database.with_name(f"{database.stem}-artifacts")
        place = None if beside is None else beside.as_uri()
        return str(self._client.create_experiment(self._name, artifact_location=place))


def _database(uri: str) -> Path | None:
    """The file of a SQLite URI; None for servers, and for databases in memory."""
    name = uri.removeprefix(_SQLITE)
    return None if name == uri or not name or name.startswith(":") else Path(name).resolve()


def _parts(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + most] for start in range(0, len(items), most))


@contextmanager
def _first_answer() -> Iterator[None]:
    """A server that is not there is not asked for minutes, unless the user has said how often."""
    if _RETRIES in os.environ:
        yield
        return
    os.environ[_RETRIES] = "1"
    try:
        yield
    finally:
        del os.environ[_RETRIES]


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    """Errors of MLflow, its database and its drivers as one of ours."""
    try:
        yield
    except TrackingError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TrackingError(
            f"tracking in {without_password(uri)!r} failed: {without_password(reason)}; expected "
            "the address of a running MLflow server, or of a database such as 'sqlite:///runs.db'"
        ) from error
