"""Watch a training run of Hugging Face's Trainer."""

from functools import cache
from typing import TYPE_CHECKING, Any

from theodolite.engine.layers import unwrap
from theodolite.integrations.tracking import require_package
from theodolite.integrations.watching import Watch

__all__ = ["AlignmentCallback"]


class _Hooks(Watch):
    """A ``TrainerCallback`` that measures alignment while a model trains.

    Only the first process measures; sharded parameters (FSDP, DeepSpeed stage 3) cannot be
    measured.

    Args:
        probe: the probe set, drawn once: tensors, or a batch of the model's collator
            (``input_ids``, ``attention_mask``, ``labels``).
        trackers: trackers that get the numbers of each measured step, and the report at the end.
        folder: folder for the history and ``report.html``; by default nothing is written.
        **options: options of :class:`theodolite.Monitor`, e.g. ``every=100``. We recommend
            ``budget=0.05``: except in short runs, measuring then takes at most 5 % of the time.

    Example::

        watch = AlignmentCallback(batch, every=50, budget=0.05, folder="runs/a")
        Trainer(model, args, callbacks=[watch]).train()
    """

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **others: Any) -> None:
        """Start the monitor, and measure before the first step."""
        if state.is_world_process_zero:
            self.start(unwrap(others["model"]))
            self.step(state.global_step)

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_others: Any) -> None:
        """Measure if a measurement is due; the end of training measures the last step in full."""
        if state.is_world_process_zero and state.global_step < state.max_steps:
            self.step(state.global_step)

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_others: Any) -> None:
        """Measure the last step, and write the report."""
        if state.is_world_process_zero:
            self.finish(state.global_step)


@cache
def _callback_class() -> type:
    """The hooks as a subclass of transformers', made when transformers is first needed."""
    base = require_package("transformers", "hf").TrainerCallback
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
