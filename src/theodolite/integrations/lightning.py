"""Watch a Lightning training run."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from theodolite.integrations.tracking import Tracker, require_package
from theodolite.integrations.watching import Watch
from theodolite.records import require_class

__all__ = ["AlignmentCallback"]


class _Hooks(Watch):
    """A Lightning callback that measures alignment while a model trains.

    The numbers go to the trainer's loggers under ``family/measure/layer``, by optimizer step. Only
    the first process measures. Sharded parameters (FSDP) cannot be measured.

    Args:
        probe: the probe set: inputs and targets, drawn once.
        module: name of the sub-module to watch, e.g. ``"net"``; by default the LightningModule.
        trackers: trackers that also get the numbers and the report.
        folder: folder for the history and ``report.html``; by default nothing is written.
        **options: options of :class:`theodolite.Monitor`, e.g. ``every=100``.

    Example::

        Trainer(callbacks=[AlignmentCallback((x, y), module="net", every=50, folder="runs/a")])
    """

    def __init__(
        self,
        probe: Any,
        *,
        module: str = "",
        trackers: Sequence[Tracker] = (),
        folder: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(probe, trackers=trackers, folder=folder, **options)
        require_class(str, module=module)
        self.module = module

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the monitor, and measure before the first step."""
        if trainer.is_global_zero:
            loggers = [_Logger(logger) for logger in trainer.loggers]
            self.start(pl_module.get_submodule(self.module), loggers)
            self.step(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *_others: Any, **_more: Any) -> None:
        """Measure if a measurement is due."""
        if trainer.is_global_zero:
            self.step(trainer.global_step)

    def on_train_end(self, trainer: Any, _pl_module: Any) -> None:
        """Write the report."""
        if trainer.is_global_zero:
            self.finish()


class _Logger:
    """A logger of the trainer as a tracker; the trainer logs its own settings and files."""

    def __init__(self, logger: Any) -> None:
        self.name, self._logger = type(logger).__name__, logger

    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Nothing."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the numbers of one step."""
        self._logger.log_metrics(dict(values), step=step)

    def log_report(self, path: Path) -> None:
        """Nothing."""

    def close(self) -> None:
        """Do nothing, because the trainer closes its loggers."""


@cache
def _callback_class() -> type:
    """The hooks as a subclass of Lightning's, made when Lightning is first needed."""
    base = require_package("lightning.pytorch", "lightning").Callback
    members = {"__doc__": _Hooks.__doc__, "__module__": __name__}
    return type("AlignmentCallback", (_Hooks, base), members)


if TYPE_CHECKING:
    AlignmentCallback = _Hooks
else:

    def __getattr__(name: str) -> Any:
        if name == "AlignmentCallback":
            return _callback_class()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return list(__all__)
