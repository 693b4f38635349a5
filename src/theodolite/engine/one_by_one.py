"""After a failure in batches: whether examples may be measured one at a time instead.

Plain autograd measures one example at a time, if the gradients of a batch cannot be divided among
its examples. :func:`tried_in_batches` measures in batches and decides this from the error.
:func:`require_sound_fallback` then checks that every example has the same outputs alone, that
outputs and gradients repeat, and that the rules hold for single examples. Otherwise the numbers
would be wrong one at a time too.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from theodolite.engine.batches import Batch
from theodolite.engine.calls import CannotSplitError, WrongGradientError
from theodolite.engine.check import Checker
from theodolite.engine.compare import all_finite, compare_gradients, plain_gradients
from theodolite.engine.recorder import watch_calls
from theodolite.engine.rounding import Comparison
from theodolite.engine.state import (
    evaluating,
    model_device,
    preserved_randomness,
    preserved_state,
    random_states,
)
from theodolite.errors import CaptureError, NotFiniteError, RangeError, TheodoliteError

if TYPE_CHECKING:
    from theodolite.engine.inputs import BatchList
    from theodolite.engine.runs import ModelRecorder

Answer = TypeVar("Answer")


def tried_in_batches(
    model: nn.Module, sides: Sequence["BatchList"], measure: Callable[[], Answer]
) -> tuple[Answer | None, Exception | None]:
    """Measure in batches; return the answer, or why examples must be measured one at a time.

    Inputs are cast only after the model has refused them, and the measurement starts again. Trying
    them first would cost a pass in every call. Errors that plain autograd with one example would
    raise too are passed on. A model that takes a batch and refuses one example is an error.
    """
    while True:
        try:
            return measure(), None
        except Exception as error:
            if not isinstance(error, TheodoliteError):
                if any(side.fit(model) for side in sides):
                    continue
                device = model_device(model)
                require_single_examples(
                    model, (batch.to(device) for side in sides for batch in side.batches)
                )
            if not can_run_one_by_one(error):
                raise
            return None, error


def require_sound_fallback(
    recorder: "ModelRecorder",
    batches: Iterable[Batch],
    error: Exception | None,
    singles: Iterable[Batch],
    measure: Callable[[Batch], Any],
) -> None:
    """Check that a measurement one example at a time will be right, before it starts.

    Outputs must not depend on other examples, outputs and gradients must not change from pass to
    pass, and rules must hold for single examples.

    Args:
        recorder: The model, and the batch that failed.
        batches: All examples.
        error: What was raised in batches; None if only another process failed.
        singles: Some single examples.
        measure: Measures and checks one of them, with rules.
    """
    failed = [] if recorder.batch is None else [recorder.batch]
    require_same_one_by_one(recorder.model, recorder.detached_model_outputs, [*failed, *batches])
    if isinstance(error, CannotSplitError):
        pairs = [(recorder.detached_outputs(batch), then) for batch, then in error.seen]
        require_same_outputs_again(pairs, recorder.tolerance)
    singles = [*singles]
    _require_same_gradients_again(recorder, [*failed, *singles])
    if not isinstance(error, WrongGradientError):
        return
    for one in singles:  # if these agree, only the division of the batch was wrong
        try:
            measure(one)
        except WrongGradientError as wrong:
            raise CaptureError(f"{wrong}; {_why_rules_are_wrong(recorder, one)}") from wrong
        except RangeError:
            raise
        except (CannotSplitError, NotFiniteError):
            continue  # rounding of what vanishes; the measurement itself names the example


def _require_same_gradients_again(recorder: "ModelRecorder", batches: Iterable[Batch]) -> None:
    """Check that two passes over a batch give the same gradients by plain autograd.

    A batch that cannot run, or whose gradients are not finite, is left to the measurement.
    """
    parameters = recorder.ownership.parameters
    for batch in batches:
        passes = []
        for _ in range(2):
            try:
                outputs = recorder.usable_outputs(batch)
                weights = Checker().draw_weights(*outputs.shape)  # the same in both passes
                passes.append(plain_gradients(outputs, parameters, weights))
            except Exception as error:
                if not can_run_one_by_one(error):
                    raise
        if len(passes) < 2 or not all(all_finite(found.values()) for found in passes if found):
            continue
        first, again = passes
        try:
            compare_gradients(recorder, again, first, {})
        except WrongGradientError as wrong:
            raise CaptureError(
                "model: expected the same gradients in every pass over the same examples, got "
                "others in a second one: a hook or a custom autograd.Function draws random "
                "numbers, or changes from pass to pass; remove it while measuring"
            ) from wrong
        except CannotSplitError:
            continue  # rounding of what vanishes


def _why_rules_are_wrong(recorder: "ModelRecorder", one: Batch) -> str:
    """Why gradients of a single example differ from plain autograd."""
    parameters = recorder.ownership.parameters.items()
    hooked = [name for name, parameter in parameters if parameter._backward_hooks]
    if hooked:
        return f"hooks change the gradient of {hooked[0]!r}: remove them while measuring"
    functions = sorted({use.function for use in recorder.run(one).uses})
    return (
        "unless a hook or a custom autograd.Function changes gradients, the model changes from "
        f"pass to pass, or rounding errors grow, the rule of one of {functions} is wrong for this "
        "call: report it, or remove it from theodolite.engine.rules.RULES"
    )


def can_run_one_by_one(error: Exception) -> bool:
    """Whether examples may be measured one at a time after a failure of the batch.

    This includes failures of the engine itself, because plain autograd does not need the engine.
    Errors of the model or of the user's functions occur again.
    """
    if isinstance(error, CannotSplitError):
        return True
    ours = isinstance(error, TheodoliteError | torch.OutOfMemoryError)
    kinds = (RuntimeError, IndexError, NotImplementedError, AssertionError)
    return isinstance(error, kinds) and not ours


def require_single_examples(model: nn.Module, batches: Iterable[Batch]) -> None:
    """After an error: check that a model that takes a batch also takes one example of it."""
    for batch in batches:
        error = _raised(model, batch.take(slice(0, 1)))
        if error is not None and _raised(model, batch) is None:
            raise _takes_no_single(batch, error) from error


def _raised(model: nn.Module, batch: Batch) -> Exception | None:
    """The exception of a forward pass, or None."""
    try:
        batch.run(model)
    except Exception as error:  # the caller handles it
        return error
    return None


def _takes_no_single(batch: Batch, error: Exception) -> CaptureError:
    lines = str(error).splitlines() or [""]
    return CaptureError(
        f"model: expected to take one example, got {type(error).__name__} where it takes "
        f"{len(batch)}: {lines[0]}; use a part of the model that takes any number of examples"
    )


def require_same_one_by_one(
    model: nn.Module, outputs: Callable[[Batch], Tensor], batches: Iterable[Batch]
) -> None:
    """Check that every example has the same outputs alone as in its batch.

    ``outputs`` makes one pass without gradients over every batch and one over each of its examples.
    The error names the reason for a difference. A model that only takes single examples cannot mix
    them.
    """
    for batch in batches:
        watch = watch_calls(batch)
        try:
            with watch:
                together = outputs(batch)
            watch.rounding.add([together])
        except Exception as error:
            if can_run_one_by_one(error):
                return
            raise
        try:
            one_by_one = torch.cat(
                [outputs(batch.take(slice(k, k + 1))) for k in range(len(batch))]
            )
        except Exception as error:
            if isinstance(error, TheodoliteError) or not can_run_one_by_one(error):
                raise
            raise _takes_no_single(batch, error) from error
        compared = Comparison()
        compared.add_rows("outputs", one_by_one, together)
        found = compared.first_above(watch.rounding.tolerance())
        if found is not None:
            raise _why_outputs_differ(model, outputs, batch, found[1], watch.rounding.tolerance())


def require_same_outputs_again(pairs: Iterable[tuple[Tensor, Tensor]], tolerance: float) -> None:
    """Check that batches after a failure still give the same numbers: the model has not changed.

    ``pairs`` are the numbers now and before, one row per example.
    """
    compared = Comparison()
    for now, then in pairs:
        compared.add_rows("outputs", now, then)
    found = compared.first_above(tolerance)
    if found is not None:
        raise CaptureError(f"{_differs(found[1])}: {_OUT_OF_SIGHT}; {_REMOVE}")


_OUT_OF_SIGHT = (
    "the model changes from pass to pass, by random numbers or a state that torch does not know"
)
_REMOVE = "remove counters, caches and generators of its own while measuring"


def _differs(share: float) -> str:
    return (
        f"model: expected the same outputs whenever an example is run, got a relative difference "
        f"of {share:.2g} between two passes"
    )


def _why_outputs_differ(
    model: nn.Module,
    outputs: Callable[[Batch], Tensor],
    batch: Batch,
    share: float,
    tolerance: float,
) -> CaptureError:
    """Why outputs of two passes differ: random numbers, a state of the model, or other examples.

    ``share`` is their relative difference.
    """

    def same(first: Tensor, second: Tensor) -> bool:
        compared = Comparison()
        compared.add_rows("outputs", first, second)
        return compared.first_above(tolerance) is None

    def run(*, random: bool = False, state: bool = False) -> Tensor:
        """The outputs; afterwards generators and buffers are restored unless they may change."""
        generators, buffers = preserved_randomness(()), preserved_state(model)
        with nullcontext() if state else buffers, nullcontext() if random else generators:
            return outputs(batch)

    first = run()
    training = [name for name, module in model.named_modules() if module.training and name]
    hint = ""
    if training and _cured(model, outputs, batch, same):
        hint = f"; {training[0]!r} and others are in training mode: call model.eval()"
    start = _differs(share)
    if not same(first, run()):
        return CaptureError(f"{start}: {_OUT_OF_SIGHT}{hint}; {_REMOVE}")
    with preserved_randomness(()):
        before = random_states()
        run(random=True)
        draws = random_states() != before
        if not same(first, run(random=True)):
            return CaptureError(
                f"{start}: random numbers are drawn{hint}; replace functional "
                "dropout(training=True) and other functions that draw them"
            )
    values = {name: None if b is None else b.clone() for name, b in model.named_buffers()}
    with preserved_state(model):
        run(state=True)
        changed = [
            name for name, b in model.named_buffers()
            if name not in values or values[name] is None or not torch.equal(values[name], b)
        ]  # fmt: skip
        differs = not same(first, run(state=True))
    if differs:
        if not changed:
            return CaptureError(f"{start}: {_OUT_OF_SIGHT}{hint}; {_REMOVE}")
        named = ", ".join(map(repr, changed[:3]))
        return CaptureError(
            f"{start}: the model changes from pass to pass, its forward pass writes to buffer "
            f"{named}{hint}; freeze it while measuring"
        )
    if len(batch) == 1:  # there is no other example
        return CaptureError(f"{start}: {_OUT_OF_SIGHT}{hint}; {_REMOVE}")
    chance = "the random numbers that it draws differ, " if draws else ""
    return CaptureError(
        "model: expected the same outputs for an example in every batch, got a relative "
        f"difference of {share:.2g}: examples depend on each other, as with batch statistics, "
        f"contrastive heads or experts of limited capacity, {chance}or rounding errors grow{hint}; "
        "use a readout or a part of the model that answers for each example"
    )


def _cured(
    model: nn.Module,
    outputs: Callable[[Batch], Tensor],
    batch: Batch,
    same: Callable[[Tensor, Tensor], bool],
) -> bool:
    """Whether evaluation mode removes the dependence on other examples or random numbers."""
    with evaluating(model), preserved_randomness(()), preserved_state(model):
        whole = outputs(batch)
        one_by_one = torch.cat([outputs(batch.take(slice(k, k + 1))) for k in range(len(batch))])
    return same(whole, one_by_one)
