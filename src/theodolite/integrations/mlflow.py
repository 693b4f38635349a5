"""Numbers, parameters and reports in MLflow: in a SQLite file, or on a server."""

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
from theodolite.records import require_class, require_path

__all__ = [
    "MLflowTracker",
    "RunStore",
    "default_tracking_uri",
    "without_password",
]

_DATABASE = "mlflow.db"
_SQLITE = "sqlite:///"
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # limits of the server for one request
_LONGEST = 500  # largest number of characters of a parameter
_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


def default_tracking_uri(folder: str | os.PathLike[str] = ".") -> str:
    """The address from MLflow's own setting (``MLFLOW_TRACKING_URI``), or a SQLite file.

    Args:
        folder: where the SQLite file lies if MLflow has no setting.

    Returns:
        An address for ``MLflowTracker``.

    Examples:
        >>> default_tracking_uri("runs")  # doctest: +SKIP
        'sqlite:////home/me/runs/mlflow.db'
    """
    require_path(folder=folder)
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
    require_class(str, text=text)
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
        with self.explained():
            self.client = mlflow.MlflowClient(tracking_uri)

    def start(self, name: str | None = None, tags: Mapping[str, str] | None = None) -> str:
        """Create a run; return its id."""
        with self.explained():
            run = self.client.create_run(self.experiment, run_name=name, tags=dict(tags or {}))
        return str(run.info.run_id)

    def log_numbers(self, run: str, values: Mapping[str, float], step: int = 0) -> None:
        """Log numbers; undefined numbers are left out, because MLflow cannot store them."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(accepted(name), value, now, step)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        with self.explained():
            for part in _parts(metrics, _MOST_METRICS):
                self.client.log_batch(run, metrics=part)

    def log_parameters(self, run: str, values: Mapping[str, Any]) -> None:
        """Log settings as text; MLflow cannot change a setting that the run already has."""
        from mlflow.entities import Param

        with self.explained():
            present = self.client.get_run(run).data.params
            new = [
                Param(accepted(name), str(value)[:_LONGEST])
                for name, value in values.items()
                if accepted(name) not in present
            ]
            for part in _parts(new, _MOST_PARAMETERS):
                self.client.log_batch(run, params=part)

    def keep_file(self, run: str, path: Path) -> None:
        """Keep a file as an artifact."""
        with self.explained():
            self.client.log_artifact(run, str(path))

    def end(self, run: str, status: str = "FINISHED") -> None:
        """Set the final status of a run: "FINISHED", "FAILED" or "KILLED"."""
        with self.explained():
            self.client.set_terminated(run, status)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Convert errors of MLflow, its database and its drivers into a TrackingError."""
        try:
            yield
        except TrackingError:
            raise
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise TrackingError(
                f"tracking in {without_password(self.uri)!r} failed: {without_password(reason)}; "
                "expected the address of a running MLflow server, or of a database such as "
                "'sqlite:///runs.db'"
            ) from error

    @cached_property
    def experiment(self) -> str:
        """Id of the experiment, which is created if it does not exist."""
        database = _database(self.uri)
        if database is not None:
            database.parent.mkdir(parents=True, exist_ok=True)
        with _first_answer():
            found = self.client.get_experiment_by_name(self._name)
        if found is not None:
            return str(found.experiment_id)
        beside = None if database is None else database.with_name(f"{database.stem}-artifacts")
        place = None if beside is None else beside.as_uri()
        return str(self.client.create_experiment(self._name, artifact_location=place))


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
        require_class(str, experiment=experiment)
        for name, value in {"run_id": run_id, "tracking_uri": tracking_uri}.items():
            if value is not None:
                require_class(str, **{name: value})
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
        require_class(Mapping, values=values)
        self._store.log_parameters(self.run_id, values)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the numbers of one step."""
        require_class(Mapping, values=values)
        require_class(int, step=step)
        self._store.log_numbers(self.run_id, values, step)

    def log_report(self, path: Path) -> None:
        """Keep a file as an artifact."""
        require_path(path=path)
        self._store.keep_file(self.run_id, path)

    def close(self) -> None:
        """End the run if it was made here."""
        if self._owned:
            self._store.end(self.run_id)
