"""Inputs in the form that a model takes: two examples are tried first, or after a failed pass.

If the model accepts the inputs only after a cast, they are cast with one warning. Otherwise an
error says what was expected, what was passed and what to do. All functions that take a model and
data use this module.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from dis import opmap
from functools import partial
from inspect import Parameter, signature
from typing import Any
from warnings import catch_warnings, warn, warn_explicit

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from theodolite.checks import dtype_text
from theodolite.engine.batches import TARGET_KEYS, Batch, spans
from theodolite.engine.calls import tensors_in
from theodolite.engine.layers import unwrap
from theodolite.engine.state import (
    evaluating,
    model_device,
    untouched,
    without_gradients,
)
from theodolite.errors import DomainError, DtypeError, ShapeError, TheodoliteError

Cast = Callable[[Batch], Batch]

# Attributes of sharded parameters: DTensor (fully_shard, tensor parallelism), the flat parameters
# of FullyShardedDataParallel, and parameters of DeepSpeed's third stage.
_SHARDED = ("full_tensor", "_sharding_strategy", "_local_shard", "ds_id")


@dataclass(frozen=True)
class FittedBatch:
    """How inputs are converted for a model.

    Args:
        returned: Output of the model for them.
        cast: Converts the inputs; None if no conversion is needed.
        notes: "columns", "inputs" -> what was changed.
    """

    returned: Any = None
    cast: Cast | None = None
    notes: dict[str, str] = field(default_factory=dict)

    def convert(self, batch: Batch) -> Batch:
        """Another batch of the same inputs, in this form."""
        return batch if self.cast is None else self.cast(batch)


def require_model(model: Any) -> None:
    """Check for a module with weights.

    Raises:
        DtypeError: If it is a class, or not a module.
        DomainError: If its weights have no shape yet, are on the meta device, or are divided among
            several processes.
    """
    if isinstance(model, type):
        raise DtypeError(
            f"model: expected a module, got the class {model.__name__}; make an instance first, "
            f"such as {model.__name__}()"
        )
    if not isinstance(model, nn.Module):
        raise DtypeError(
            f"model: expected a torch.nn.Module, got {type(model).__name__}; wrap it in a module"
        )
    for name, parameter in model.named_parameters():
        plain = type(parameter) is nn.Parameter and not vars(parameter)
        if not plain and any(hasattr(parameter, mark) for mark in _SHARDED):
            raise DomainError(
                f"model: expected whole weights in every process, got a part of {name!r} (FSDP, "
                "tensor parallelism, ZeRO-3); measure a model that was loaded from a full state "
                "dict, or replicate with DistributedDataParallel"
            )
        if is_lazy(parameter):
            raise DomainError(
                f"model: expected weights with a shape, {name!r} is made by the first batch (a "
                "lazy module); call model(batch) once before"
            )
        if parameter.is_meta:
            raise DomainError(
                f"model: expected weights, got the meta device for {name!r}, which holds shapes "
                "and no numbers; call model.to_empty(device=...) and load the weights"
            )


def require_device(device: torch.device | str | None, model: nn.Module) -> None:
    """Check that a device is available.

    Raises:
        DomainError: If it is not available, or cannot hold numbers.
    """
    try:
        missing = device is not None and torch.empty(0, device=device).is_meta
    except (RuntimeError, AssertionError, TypeError):
        missing = True
    if missing:
        raise DomainError(
            f"device: expected a device of this machine that holds numbers, got {str(device)!r}; "
            f"leave device= out to use the model's device, {str(model_device(model))!r}"
        )


def fit_batch(model: nn.Module, few: Batch) -> FittedBatch:
    """Try examples unchanged, then cast to the dtype of the weights.

    Integers are cast only if casting real numbers is not enough, so that token ids stay integers.

    Args:
        model: The model, unwrapped; it is not changed.
        few: One or two examples, on the device of the model.

    Raises:
        ShapeError: If the model accepts none of these; other errors of the model are passed on.
        DtypeError: If it takes token ids and gets real numbers.
    """
    by_name = _named(model, few)
    notes, named = by_name.notes, by_name.convert(few)
    with untouched(model), evaluating(model):  # calling code expects the original mode
        try:
            with catch_warnings(record=True) as said:  # of a call that fails they mislead
                returned = without_gradients(lambda: named.run(model))
            for one in said:
                warn_explicit(one.message, one.category, one.filename, one.lineno)
            return FittedBatch(returned, by_name.cast, notes)
        except TheodoliteError:
            raise
        except Exception as error:
            whole = _as_one_mapping(model, few)
            if whole is not None:
                notes["columns"] = "the columns are passed as one mapping, as forward takes them"
                return FittedBatch(whole, _one_mapping, notes)
            found = _first_that_works(model, named)
            if found is None and not _about_inputs(model, error, named):
                raise
            if found is None:
                raise _refusal(model, named, error) from error
            returned, cast, notes["inputs"] = found
            return FittedBatch(returned, _composed(by_name.cast, cast), notes)


def fitted_batches(model: nn.Module, data: Any, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches in the form that the model takes; a change gives a warning.

    Args:
        model: Any module.
        data: The data as the user passed them; a :class:`Batch` is not changed.
        batches: Batches of these data.
    """
    fitted = FittedBatch() if isinstance(data, Batch) else None
    for batch in batches:
        if fitted is None:
            plain = unwrap(model)
            fitted = fit_batch(plain, batch.take(slice(0, 2)).to(model_device(plain)))
            for note in fitted.notes.values():
                warn(note, stacklevel=4)
        yield fitted.convert(batch)


def _named(model: nn.Module, batch: Batch) -> FittedBatch:
    """Name columns as the forward pass names them; the model does not run."""
    notes: dict[str, str] = {}
    convert, decode = _by_signature(model, batch, notes), _decoder_inputs(model, batch, notes)
    return FittedBatch(None, convert if decode is None else _composed(convert, decode), notes)


def _by_signature(model: nn.Module, batch: Batch, notes: dict[str, str]) -> Cast | None:
    """Columns of a table as the forward pass names them.

    A single column with an unknown name is its first argument; other unknown columns are left out.
    """
    if batch.args or not batch.kwargs:
        return None
    try:
        parameters = signature(model.forward).parameters
    except (TypeError, ValueError):  # a forward pass in another language
        return None
    known = {name for name, entry in parameters.items() if entry.kind != Parameter.VAR_POSITIONAL}
    free = any(entry.kind == Parameter.VAR_KEYWORD for entry in parameters.values())
    strange = [key for key in batch.kwargs if key not in known]
    if free or not strange:
        return None
    if len(batch.kwargs) == 1:
        notes["columns"] = f"the column {strange[0]!r} is the first input of the model"
        return lambda batch: replace(batch, args=tuple(batch.kwargs.values()), kwargs={})
    if len(strange) == len(batch.kwargs):
        return None
    named = ", ".join(map(repr, strange))
    notes["columns"] = f"left out, since the model takes no input of that name: {named}"
    return lambda batch: replace(
        batch, kwargs={key: value for key, value in batch.kwargs.items() if key in known}
    )


def _decoder_inputs(model: nn.Module, batch: Batch, notes: dict[str, str]) -> Cast | None:
    """The inputs of a decoder, made from the labels as the model itself does."""
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    known = {"decoder_input_ids", "decoder_inputs_embeds"} & set(batch.kwargs)
    if not callable(shift) or known or not isinstance(batch.targets, Tensor):
        return None
    notes["columns"] = "the decoder takes the labels, moved by one position"
    return lambda batch: replace(
        batch, kwargs={**batch.kwargs, "decoder_input_ids": shift(labels=batch.targets)}
    )


def _one_mapping(batch: Batch) -> Batch:
    """All columns as one argument, and the targets under their usual names."""
    targets = {} if batch.targets is None else dict.fromkeys(TARGET_KEYS, batch.targets)
    return replace(batch, args=({**targets, **batch.kwargs},), kwargs={})


def _as_one_mapping(model: nn.Module, few: Batch) -> Any:
    """Output of a model that takes a batch as one mapping; None for other models."""
    if few.args or not few.kwargs:
        return None
    try:
        return without_gradients(lambda: _one_mapping(few).run(model))
    except Exception:  # the first error is raised
        return None


def _composed(first: Cast | None, second: Cast) -> Cast:
    return second if first is None else lambda batch: second(first(batch))


def _first_that_works(model: nn.Module, batch: Batch) -> tuple[Any, Cast, str] | None:
    """Output of the model after a cast, the cast, and the sentence about it."""
    for text, cast in _casts(model, batch):
        try:
            return without_gradients(partial(cast(batch).run, model)), cast, text
        except Exception:  # the first error is raised
            continue
    return None


def _casts(model: nn.Module, batch: Batch) -> list[tuple[str, Cast]]:
    """Casts that may help, each with a sentence about it."""
    tensors = [tensor for tensor in tensors_in(batch.inputs) if not tensor.is_complex()]
    known = [parameter.dtype for parameter in model.parameters()]
    wanted = [dtype for dtype in dict.fromkeys(known) if dtype.is_floating_point]
    casts: list[tuple[str, Cast]] = []
    for integers in (False, True):
        for dtype in wanted:
            other = [t.dtype for t in tensors if t.dtype != dtype]
            changed = [d for d in dict.fromkeys(other) if d.is_floating_point or integers]
            if not changed or (integers and all(d.is_floating_point for d in changed)):
                continue
            names = " and ".join(map(dtype_text, changed))
            text = f"inputs in {names} were cast to {dtype_text(dtype)}, the dtype of the weights"
            casts.append((text, partial(Batch.cast, dtype=dtype, integers=integers)))
    return casts


def _about_inputs(model: nn.Module, error: Exception, batch: Batch) -> bool:
    """Whether an error of the forward pass may come from the inputs, rather than from the model.

    Errors of operations and calls may. Those that the model raises itself say what it expects.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    kinds = (RuntimeError, ValueError, TypeError, IndexError)
    known = isinstance(error, kinds) and not isinstance(error, NotImplementedError)
    return (known and not _raised_by(model, error)) or _swapped(batch)


def _raised_by(model: nn.Module, error: Exception) -> bool:
    """Whether a ``raise`` statement in the code of a module, not of torch, made the error."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None or place.tb_frame.f_code.co_code[place.tb_lasti] != opmap["RAISE_VARARGS"]:
        return False
    file = place.tb_frame.f_globals.get("__name__", "")
    own = {type(module).__module__ for module in model.modules()}
    return file in own and file.partition(".")[0] != "torch"


def _swapped(batch: Batch) -> bool:
    """Whether a batch looks like (targets, inputs)."""
    given = tensors_in(batch.inputs)
    labels = len(given) == 1 and given[0].dim() == 1 and not given[0].is_floating_point()
    return labels and isinstance(batch.targets, Tensor) and batch.targets.dim() > 1


def _failing(model: nn.Module, batch: Batch) -> tuple[str | None, tuple[Any, ...]]:
    """The innermost module that fails in the forward pass, and its inputs."""
    running: list[tuple[str | None, tuple[Any, ...]]] = [(None, ())]

    def enter_as(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda _module, args: running.append((name, args))

    def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
        running.pop()

    with ExitStack() as hooks, suppress(Exception):
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(enter_as(name)).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        batch.run(model)
    return running[-1]


def _refusal(model: nn.Module, batch: Batch, error: Exception) -> TheodoliteError:
    """The error of the forward pass, in terms of the user's arguments."""
    layer, inputs = _failing(model, batch)
    given = tensors_in(batch.inputs)
    shapes = ", ".join(f"{dtype_text(t.dtype)} of shape (n{_rest(t)})" for t in given)
    reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
    why = f"{type(error).__name__}: {reason}".removesuffix(": ").rstrip(".")
    targets = batch.targets
    if _swapped(batch):
        return ShapeError(
            f"data: expected (inputs, targets), got one whole number and "
            f"{tuple(targets.shape[1:])} numbers per example, which looks like (targets, inputs); "
            "swap the two"
        )
    module = None if layer is None else model.get_submodule(layer)
    width = _width(module, inputs)
    name = f"layer {layer!r}" if layer else "the model"
    if width is not None:
        return ShapeError(
            f"data: expected {width[0]} {width[2]} for {name} "
            f"({type(module).__name__}), got {width[1]} from inputs of shape "
            f"{', '.join(f'(n{_rest(t)})' for t in given)}; pass inputs as in training"
        )
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and _real(inputs):
        return DtypeError(
            f"data: expected whole numbers, token ids, for {name} "
            f"({type(module).__name__}), got {shapes}; pass ids.long()"
        )
    names = [repr(key) for key in batch.kwargs]
    call = f"(b[{names[0]}], b[{names[-1]}])" if len(names) > 1 else "(inputs, targets)"
    return ShapeError(
        f"data: expected inputs that the model takes, got {shapes or 'none that are tensors'}, at "
        f"which {name} fails with {why}; pass inputs as in training, or say which column is which: "
        f"batch_fn=lambda b: {call}"
    )


def _rest(tensor: Tensor) -> str:
    if tensor.is_nested:
        return ", ..."
    sizes = ", ".join(map(str, tensor.shape[1:]))
    return f", {sizes}" if sizes else ","


def _real(inputs: tuple[Any, ...]) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in inputs)


def _width(module: nn.Module | None, inputs: tuple[Any, ...]) -> tuple[int, int, str] | None:
    """Expected and given number of features or channels, if they differ."""
    first = inputs[0] if inputs else None
    if not isinstance(first, Tensor) or first.is_nested or first.dim() < 2:
        return None
    if isinstance(module, nn.Linear):
        expected, got, what = module.in_features, first.shape[-1], "features"
    elif isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        if first.dim() != module.weight.dim():
            return None
        expected, got, what = module.in_channels, first.shape[1], "channels"
    else:
        return None
    return None if expected == got else (expected, got, what)


@dataclass(frozen=True)
class BatchList:
    """Batches that are read once or several times."""

    batches: list[Batch]
    # The same as the user passed them, for fit; empty if they were fitted already.
    given: list[Batch] = field(default_factory=list)

    @classmethod
    def of(cls, model: nn.Module, data: Any, batches: Iterable[Batch]) -> "BatchList":
        """Batches of these data, with columns named as in the model; it does not run.

        Raises:
            ShapeError: If there is no batch.
        """
        given = list(batches)
        if not given:
            raise ShapeError("inputs: expected at least one batch, got none; the data set is empty")
        if isinstance(data, Batch):
            return cls(given)
        by_name = _named(unwrap(model), given[0])
        for note in by_name.notes.values():
            warn(note, stacklevel=4)
        return cls([by_name.convert(batch) for batch in given], given)

    def fit(self, model: nn.Module) -> bool:
        """Cast batches that the model has refused; False if there is no further cast.

        Raises:
            ShapeError: If it accepts none of the casts; the message says what it expects.
        """
        if not self.given:
            return False
        few = self.given[0].take(slice(0, 2)).to(model_device(model))
        fitted, known = fit_batch(model, few), _named(model, few).notes
        if fitted.cast is None or fitted.notes == known:
            return False
        for note in fitted.notes.values():
            if note not in known.values():
                warn(note, stacklevel=4)
        self.batches[:] = map(fitted.cast, self.given)
        self.given.clear()
        return True

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def take(self, span: slice) -> list[Batch]:
        """Some consecutive examples, as parts of the batches that hold them."""
        found, start = [], 0
        for batch in self.batches:
            first, last = max(span.start - start, 0), min(span.stop - start, len(batch))
            if first < last:
                found.append(batch.take(slice(first, last)))
            start += len(batch)
        return found

    def blocks(self, size: int, batch_size: int) -> Iterator["ExampleBlock"]:
        """Blocks of at most ``size`` examples, in batches for single forward passes."""
        for span in spans(len(self), size):
            batches = self.take(span)
            parts = [b.take(part) for b in batches for part in spans(len(b), batch_size)]
            yield ExampleBlock(span, parts)


@dataclass(frozen=True)
class ExampleBlock:
    """Consecutive examples whose factors are kept together; ``span`` has their indices."""

    span: slice
    batches: list[Batch]
