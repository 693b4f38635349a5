"""Numbers and reports in a Weights & Biases run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from theodolite.integrations.tracking import require_package

__all__ = ["WandbTracker"]

_STEP = "alignment/step"
_FAMILIES = ("representation", "covariance", "kernel", "tangent", "gradient")


class WandbTracker:
    """Logs settings, scalars with an axis of their own, and the report as an artifact.

    The run's step counter belongs to the training loop, which may be ahead: W&B drops numbers of
    earlier steps. So the alignment numbers carry their step themselves.

    Args:
        run: what ``wandb.init`` gave.
    """

    def __init__(self, run: Any) -> None:
        self._wandb = require_package("wandb", "track")
        self.run = run
        run.define_metric(_STEP, hidden=True)
        for family in _FAMILIES:
            run.define_metric(f"{family}/*", step_metric=_STEP)

    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Keep the settings in the run's config, under "alignment"."""
        self.run.config.update({"alignment": dict(values)}, allow_val_change=True)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the numbers of one step."""
        self.run.log({**values, _STEP: step})

    def log_report(self, path: Path) -> None:
        """Keep a file as an artifact of type "report"."""
        artifact = self._wandb.Artifact("theodolite-report", type="report")
        artifact.add_file(str(path), name=path.name)
        self.run.log_artifact(artifact)

    def close(self) -> None:
        """Nothing waits here; the run belongs to the caller."""
