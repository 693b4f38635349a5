"""Numbers and reports in an MLflow run."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from theodolite.integrations.tracking import require_package

__all__ = ["MLflowSweep", "MLflowTracker"]

_MOST = 1000  # metrics in one request; the server refuses more
_MOST_PARAMETERS, _LONGEST = 100, 500  # and longer values


class MLflowTracker:
    """Logs scalars by step, one request each, and the report as an artifact.

    Args:
        run_id: an existing run; the active one, or a new one, if left out.
        tracking_uri: of the server, e.g. ``"http://127.0.0.1:5000"``; MLflow's setting if left out.
    """

    def __init__(self, run_id: str | None = None, tracking_uri: str | None = None) -> None:
        mlflow = require_package("mlflow", "track")
        from mlflow.entities import Metric

        self._metric = Metric
        self._client = mlflow.MlflowClient(tracking_uri)
        active = mlflow.active_run()
        if run_id is None and active is not None:
            run_id = active.info.run_id
        self._owned = run_id is None
        self.run_id: str = run_id or self._client.create_run("0").info.run_id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the numbers of one step."""
        now = int(time.time() * 1000)
        metrics = [self._metric(tag, value, now, step) for tag, value in values.items()]
        for start in range(0, len(metrics), _MOST):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + _MOST])

    def log_report(self, path: Path) -> None:
        """Keep a file as an artifact."""
        self._client.log_artifact(self.run_id, str(path))

    def close(self) -> None:
        """End the run if it was made here."""
        if self._owned:
            self._client.set_terminated(self.run_id)


class MLflowSweep:
    """A parent run for a sweep, and below it one run for each of its points.

    Args:
        name: of the parent run.
        tracking_uri: such as ``"sqlite:///runs.db"`` or the address of a server.
        experiment: created if it does not exist.
    """

    def __init__(self, name: str, tracking_uri: str, experiment: str = "theodolite") -> None:
        mlflow = require_package("mlflow", "track")
        from mlflow.entities import Metric, Param

        self._metric, self._param = Metric, Param
        self._client = mlflow.MlflowClient(tracking_uri)
        found = self._client.get_experiment_by_name(experiment)
        self._experiment: str = (
            self._client.create_experiment(experiment) if found is None else found.experiment_id
        )
        parent = self._client.create_run(self._experiment, run_name=name)
        self.run_id: str = parent.info.run_id

    def log_run(
        self, name: str, parameters: Mapping[str, Any], numbers: Mapping[str, float]
    ) -> None:
        """Keep one run of the sweep; undefined numbers are left out, as MLflow has no place."""
        run = self._client.create_run(
            self._experiment, run_name=name, tags={"mlflow.parentRunId": self.run_id}
        )
        now = int(time.time() * 1000)
        metrics = [self._metric(_tag(key), value, now, 0) for key, value in numbers.items()
                   if math.isfinite(value)]  # fmt: skip
        params = [self._param(key, str(value)[:_LONGEST]) for key, value in parameters.items()]
        self._client.log_batch(run.info.run_id, params=params[:_MOST_PARAMETERS])
        for start in range(0, len(metrics), _MOST):
            self._client.log_batch(run.info.run_id, metrics=metrics[start : start + _MOST])
        self._client.set_terminated(run.info.run_id)

    def log_report(self, path: Path) -> None:
        """Keep a file as an artifact of the sweep."""
        self._client.log_artifact(self.run_id, str(path))

    def close(self) -> None:
        """End the parent run."""
        self._client.set_terminated(self.run_id)


def _tag(name: str) -> str:
    """The name with only the characters that MLflow allows."""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in name)
