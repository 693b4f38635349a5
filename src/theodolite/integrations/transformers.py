"""Watch a training run of Hugging Face's Trainer."""

from functools import cache
from typing import TYPE_CHECKING, Any

from theodolite.engine.layers import unwrap
from theodolite.integrations.tracking import require_package
from theodolite.integrations.watching import Callback

__all__ = ["AlignmentCallback"]


class _Hooks(Callback):
    """A ``TrainerCallback`` that measures alignment while a model trains.

    Only the first process measures; sharded parameters (FSDP, DeepSpeed stage 3) cannot be
    measured.

    Args:
        probe: examples to measure on, drawn once: tensors, or a mapping as the model's collator
            makes it (``input_ids``, ``attention_mask``, ``labels``).
        trackers: get the numbers of each step when it is measured, and the report at the end.
        folder: where the history and ``report.html`` are written; nowhere if left out.
        **options: of :class:`theodolite.Monitor`, e.g. ``every=100``. ``budget=0.05`` is
            recommended: it keeps measuring to 5 % of the time of all but short trainings.

    Example::

        watch = AlignmentCallback(batch, every=50, budget=0.05, folder="runs/a")
        Trainer(model, args, callbacks=[watch]).train()
    """

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **others: Any) -> None:
        """Begin to watch, and measure before the first step."""
        if state.is_world_process_zero:
            self._watch.start(unwrap(others["model"]))
            self._watch.step(state.global_step)

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_others: Any) -> None:
        """Measure if it is time; the last step is measured in full when training ends."""
        if state.is_world_process_zero and state.global_step < state.max_steps:
            self._watch.step(state.global_step)

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_others: Any) -> None:
        """Measure the last step, and write the report."""
        if state.is_world_process_zero:
            self._watch.finish(state.global_step)


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
