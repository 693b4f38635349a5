"""Numbers and reports in an MLflow run."""

import time
from collections.abc import Mapping
from pathlib import Path

from theodolite.integrations.tracking import require_package

__all__ = ["MLflowTracker"]

_MOST = 1000  # metrics in one request; the server refuses more


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
