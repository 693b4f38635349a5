"""A monitor for the training loops of other packages."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any
from warnings import warn

from torch import nn

from theodolite.errors import RecordError, UnwrittenWarning
from theodolite.integrations.tracking import Tracker, parameters, scalars
from theodolite.records import Record, listed, require_class, require_path
from theodolite.surveys import History, Monitor

__all__ = ["Watch"]


class Watch:
    """Opens a monitor when training starts, calls it at every step, closes it at the end.

    The callbacks of trainers are subclasses of this class and of the trainer's own.

    Args:
        probe: the probe set: inputs and targets.
        trackers: trackers that get the settings, the numbers of each measured step, and the report
            at the end. If a tracker raises an error, the training goes on. One warning says so,
            every step tries again, and the end names what was not logged.
        folder: folder where every step is written at once, and ``report.html`` at the end.
        **options: options of :class:`theodolite.Monitor`, e.g. ``every``, ``families``, ``loss``.
    """

    def __init__(
        self,
        probe: Any,
        *,
        trackers: Sequence[Tracker] = (),
        folder: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        require_class(Sequence, trackers=trackers)
        require_class(Tracker, **{f"trackers[{i}]": part for i, part in enumerate(trackers)})
        if folder is not None:
            require_path(folder=folder)
        self.probe, self.trackers, self.options = probe, tuple(trackers), options
        self.folder = None if folder is None else Path(folder)
        self.monitor: Monitor | None = None
        self._receivers: list[_Receiver] = []
        self._latest: int | None = None
        self._tracked: tuple[int, set[str]] | None = None  # the last step sent, and its numbers

    @property
    def history(self) -> History:
        """All measurements so far.

        Raises:
            RuntimeError: Before training has started.
        """
        if self.monitor is None:
            raise RuntimeError(
                "there is no history yet, because training has not started; read it after train() "
                "or fit()"
            )
        return self.monitor.history

    @property
    def overhead(self) -> float:
        """Time spent on measuring and on the page, as a share of all other time since the start."""
        return 0.0 if self.monitor is None else self.monitor.overhead

    def start(self, model: nn.Module, more: Sequence[Tracker] = ()) -> None:
        """Start to watch a model, after it was moved to its device."""
        # Trainers call this in their first process only; other processes would not answer.
        alone = {"group": None} | dict(self.options.get("options") or {})
        keywords = self.options | {"options": alone}
        self.monitor = Monitor(model, self.probe, folder=self.folder, **keywords)
        self._receivers = [_Receiver(tracker) for tracker in (*self.trackers, *more)]
        self._latest = self._tracked = None

    def step(self, step: int) -> dict[str, float]:
        """The numbers of this step; empty if it is not due or was measured before."""
        if self.monitor is None or step == self._latest:  # called again while gradients accumulate
            return {}
        self._latest = step
        survey = self.monitor.step(step)
        return {} if survey is None else self._send(survey.record)

    def finish(self, step: int | None = None) -> dict[str, float]:
        """Measure the last step in full, then write and send the report.

        Args:
            step: number of the last step, if :meth:`step` was not called for it.

        Returns:
            The new numbers of the last step, which is measured in full.
        """
        if self.monitor is None:
            return {}
        self.monitor.close(step)
        steps = self.history.run.steps
        values = self._send(steps[-1]) if steps else {}
        report = self._write_report() if steps else None
        for receiver in self._receivers:
            if report is not None:
                receiver.get("the report", receiver.tracker.log_report, report)
            receiver.get("what was waiting", receiver.tracker.close)
            receiver.warn_of_missing()
        return values

    def _write_report(self) -> Path | None:
        """Write the page of the run; a full disk does not end the training."""
        if self.monitor is None or self.monitor.folder is None:
            return None
        with self.monitor.budget.measuring():
            try:
                return self.history.to_html(self.monitor.folder / "report.html")
            except (OSError, RecordError) as error:
                warn(
                    f"the report is not on disk: {error}. Write it elsewhere while this process "
                    "lives: history.to_html(path).",
                    UnwrittenWarning,
                    stacklevel=3,
                )
                return None

    def _send(self, record: Record) -> dict[str, float]:
        """Send the numbers of a step that trackers do not have yet."""
        if self._tracked is None:
            for receiver in self._receivers:
                receiver.get("the settings", receiver.tracker.log_parameters, parameters(record))
        step = record.contents["step"]
        known = self._tracked[1] if self._tracked and self._tracked[0] == step else set()
        values = {name: value for name, value in scalars(record).items() if name not in known}
        self._tracked = step, known | values.keys()
        for receiver in self._receivers if values else ():
            receiver.get(f"step {step}", receiver.tracker.log, values, step)
        return values


_QUICK = 1.0  # seconds; faster errors do not delay the training noticeably
_REST = 10  # pause after a slow error, in multiples of its duration


class _Receiver:
    """A tracker that may raise errors. An absent server neither ends nor delays the training.

    Some clients wait for an absent server for minutes. Such a tracker is then not called for ten
    times as long, so that it takes at most a tenth of the time.
    """

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._name = getattr(tracker, "name", type(tracker).__name__)
        self._missing: dict[str, None] = {}  # in order, each once
        self._problem, self._alone_until = "", 0.0

    def get(self, what: str, call: Callable[..., None], *values: Any) -> None:
        """Call the tracker; the first error gives a warning, and every error is recorded."""
        began = monotonic()
        if began < self._alone_until:
            self._missing[what] = None
            return
        try:
            call(*values)
        except Exception as error:  # packages, networks and servers raise any kind of error
            took = monotonic() - began
            if took > _QUICK:
                self._alone_until = began + took + _REST * took
            self._problem = f"{type(error).__name__}: {error}"
            if not self._missing:
                warn(
                    f"{self._name} did not get {what} ({self._problem}). The training goes on.",
                    stacklevel=4,
                )
            self._missing[what] = None

    def warn_of_missing(self) -> None:
        """Warn at the end of everything that the tracker did not get."""
        if self._missing:
            warn(
                f"{self._name} did not get {listed(self._missing, most=6)} (last error: "
                f"{self._problem}). Send the whole run again: "
                "theodolite.integrations.track(history, tracker).",
                stacklevel=3,
            )
