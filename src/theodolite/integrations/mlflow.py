"""Numbers, parameters, reports and sweeps in MLflow: in a SQLite file, or on a server."""

import hashlib
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from theodolite.errors import TrackingError
from theodolite.integrations.tracking import accepted, require_package

__all__ = [
    "MLflowSweep",
    "MLflowTracker",
    "RunStore",
    "default_tracking_uri",
    "without_password",
]

_DATABASE = "mlflow.db"
_SQLITE = "sqlite:///"
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # limits of the server for one request
_MOST_RUNS = 50_000  # limit of the server for one answer
_LONGEST = 500  # largest number of characters of a parameter
_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


def default_tracking_uri(folder: str | os.PathLike[str] = ".") -> str:
    """The address from MLflow's own setting (``MLFLOW_TRACKING_URI``), or a SQLite file.

    Args:
        folder: where the SQLite file lies if MLflow has no setting.

    Returns:
        An address for ``MLflowTracker`` and ``MLflowSweep``.

    Examples:
        >>> default_tracking_uri("runs")  # doctest: +SKIP
        'sqlite:////home/me/runs/mlflow.db'
    """
    mlflow = require_package("mlflow", "track")
    if mlflow.is_tracking_uri_set():
        return str(mlflow.get_tracking_uri())
    return _SQLITE + (Path(folder).resolve() / _DATABASE).as_posix()


def without_password(text: str) -> str:
    """A text without the users and passwords in its addresses.

    Args:
        text: any text, for example an error message.

    Returns:
        The text with every ``user:password@`` removed.

    Examples:
        >>> without_password("no answer from http://me:secret@host:5000/path")
        'no answer from http://host:5000/path'
    """
    return re.sub(r"//[^/@\s]*@", "//", text)


class RunStore:
    """Creates runs in an experiment, and adds numbers, parameters and files to them.

    Args:
        tracking_uri: address of a database or server, such as ``"sqlite:///runs.db"``.
        experiment: experiment of new runs; created if it does not exist. With a SQLite file its
            artifacts are in a folder beside the file.

    Raises:
        TrackingError: If the address does not work. Every method that needs it raises this too.
    """

    def __init__(self, tracking_uri: str, experiment: str = "theodolite") -> None:
        mlflow = require_package("mlflow", "track")
        self.uri, self._name = tracking_uri, experiment
        with _explained(tracking_uri):
            self._client = mlflow.MlflowClient(tracking_uri)

    def start(self, name: str | None = None, tags: Mapping[str, str] | None = None) -> str:
        """Create a run; return its id."""
        with _explained(self.uri):
            run = self._client.create_run(self._experiment, run_name=name, tags=dict(tags or {}))
        return str(run.info.run_id)

    def tagged(self, tag: str, value: str, *, finished: bool = False) -> dict[str, str]:
        """Name -> id of the latest run of each name with this tag.

        With ``finished=True`` only finished runs count. A run that was interrupted while its
        numbers were sent is not finished.
        """
        query = f"tags.`{tag}` = '{value}'" + " and status = 'FINISHED'" * finished
        with _explained(self.uri):
            runs = self._client.search_runs(
                [self._experiment], query, max_results=_MOST_RUNS, order_by=["start_time ASC"]
            )
        return {str(run.info.run_name): str(run.info.run_id) for run in runs}

    def reopen(self, run: str) -> None:
        """Mark a run as running again."""
        with _explained(self.uri):
            self._client.update_run(run, status="RUNNING")

    def delete(self, run: str) -> None:
        """Delete a run; MLflow keeps deleted runs in its trash."""
        with _explained(self.uri):
            self._client.delete_run(run)

    def log_numbers(self, run: str, values: Mapping[str, float], step: int = 0) -> None:
        """Log numbers; undefined numbers are left out, because MLflow cannot store them."""
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
        """Log settings as text; MLflow cannot change a setting that the run already has."""
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
        """Set the final status of a run: "FINISHED", "FAILED" or "KILLED"."""
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
    """Ask an absent server twice, not for minutes, unless the user has set the retries."""
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
    """Convert errors of MLflow, its database and its drivers into a TrackingError."""
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


_PARENT, _SWEEP = "mlflow.parentRunId", "theodolite.sweep"


class MLflowTracker:
    """Logs parameters, numbers (one request per step) and the report as an artifact.

    Args:
        run_id: id of an existing run; by default the active run, or a new one.
        tracking_uri: address such as ``"sqlite:///runs.db"`` or ``"http://127.0.0.1:5000"``. By
            default the address that MLflow is set to, or ``mlflow.db`` in the working directory.
        experiment: experiment of a new run; created if it does not exist.

    Raises:
        TrackingError: If the address does not work.
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
        if tracking_uri is None:  # MLflow's own setting names the place of an existing run
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
