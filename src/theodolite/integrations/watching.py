"""A monitor that somebody else's training loop drives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from theodolite._monitor import History, Monitor
from theodolite.integrations.tracking import Tracker, scalars

__all__ = ["Watch"]


class Watch:
    """Opens a monitor when training starts, asks it at every step, closes it at the end.

    Args:
        probe: inputs and targets to measure on.
        trackers: get the numbers of each step when it is measured, and the report at the end.
        folder: where the history and ``report.html`` are written; nowhere if left out.
        **options: of :class:`theodolite.Monitor`, e.g. ``every``, ``families``, ``loss``.
    """

    def __init__(
        self,
        probe: Any,
        *,
        trackers: Sequence[Tracker] = (),
        folder: str | Path | None = None,
        **options: Any,
    ) -> None:
        self.probe, self.trackers, self.options = probe, tuple(trackers), options
        self.folder = None if folder is None else Path(folder)
        self.monitor: Monitor | None = None
        self._latest: int | None = None

    @property
    def history(self) -> History:
        """What has been measured so far.

        Raises:
            RuntimeError: Before training has started.
        """
        if self.monitor is None:
            raise RuntimeError("there is no history yet: training has not started")
        return self.monitor.history

    def start(self, model: nn.Module) -> None:
        """Begin to watch a model that is on its device."""
        self.monitor = Monitor(model, probe=self.probe, **self.options)
        self.monitor.__enter__()
        self._latest = None

    def step(self, step: int) -> dict[str, float]:
        """The numbers of this step; empty where it is not measured, or was before."""
        if self.monitor is None or step == self._latest:
            return {}
        self._latest = step
        survey = self.monitor.step(step)
        if survey is None:
            return {}
        values = scalars(survey.record)
        for tracker in self.trackers:
            tracker.log(values, step)
        return values

    def finish(self) -> Path | None:
        """Close the monitor; write and send the report. Returns where it is."""
        if self.monitor is None:
            return None
        self.monitor.__exit__(None, None, None)
        report = None
        if self.folder is not None:
            self.history.save(self.folder)
            report = Path(self.history.to_html(self.folder / "report.html"))
        for tracker in self.trackers:
            if report is not None:
                tracker.log_report(report)
            tracker.close()
        return report
