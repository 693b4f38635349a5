"""Inputs and targets of a survey as the model takes them; the record says what was changed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from theodolite._distributed import Processes
from theodolite.engine import (
    IGNORED,
    Batch,
    Cast,
    fit_batch,
    iterate_batches,
    main_tensor,
    model_device,
    read_outputs,
    resolve_readout,
    untouched,
)
from theodolite.errors import DomainError, DtypeError, NotFiniteError
from theodolite.surveys.fit import loss_of_maps
from theodolite.surveys.options import SurveyOptions
from theodolite.surveys.positions import PositionTask, find_task
from theodolite.surveys.probe import Probe, draw_probe

__all__ = ["Converted", "Fit", "draw_fitting", "fit_inputs"]


@dataclass(frozen=True)
class Converted:
    """Data whose batches are converted whenever they are gone through."""

    data: Any
    cast: Cast
    batch_fn: Callable[[Any], Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return map(self.cast, iterate_batches(self.data, batch_fn=self.batch_fn, empty=True))


@dataclass(frozen=True)
class Fit:
    """How data are made to fit a model.

    Args:
        cast: what makes the inputs those that the model takes; None where they are.
        classes: whether real numbers that are whole are class labels.
        notes: "columns", "inputs", "targets" -> what was changed.
        task: where labels come per position, what that task is.
    """

    cast: Cast | None
    classes: bool
    notes: dict[str, str]
    task: PositionTask | None = None

    def probe(self, probe: Probe, options: SurveyOptions) -> Probe:
        """The probe as the model takes it."""
        if self.cast is not None:
            probe = replace(probe, batch=self.cast(probe.batch))
        if self.classes:
            probe = probe.with_classes(convert=options.loss is None)
        if self.task is not None:
            probe = probe.at_positions(self.task, options)
        return replace(probe, notes=self.notes)

    def data(self, data: Any, batch_fn: Callable[[Any], Batch] | None) -> Any:
        """All the data as the model takes them."""
        return data if self.cast is None else Converted(data, self.cast, batch_fn)


def draw_fitting(
    model: nn.Module,
    data: Any,
    options: SurveyOptions,
    processes: Processes,
    *,
    held_out: Any = None,
    targets: Any = None,
    truth: Any = None,
    groups: Any = None,
) -> tuple[Probe, Probe | None, Fit]:
    """The probe, held-out examples if there are some, and how data are made to fit the model.

    Args:
        model: unwrapped.
        data: what examples are drawn from.
        options: what the user chose.
        processes: those that take part.
        held_out: examples that the model was not trained on.
        targets: of the same examples, where the data holds none.
        truth: true labels, where the targets are others.
        groups: of the examples.
    """
    place = options.device or model_device(model)
    drawn = draw_probe(
        data, options, processes, targets=targets, device=place, truth=truth, groups=groups
    )
    fit = fit_inputs(model, drawn, options)
    others = None
    if held_out is not None:
        others = fit.probe(draw_probe(held_out, options, processes, device=place), options)
    return fit.probe(drawn, options), others, fit


def fit_inputs(model: nn.Module, probe: Probe, options: SurveyOptions) -> Fit:
    """Try two examples before anything is measured, see :func:`theodolite.engine.fit_batch`.

    Args:
        model: unwrapped.
        probe: the examples.
        options: the readout.

    Raises:
        ShapeError: If the model takes none of these; other errors of the model are left alone.
        NotFiniteError: If an input is infinite, or nan and so is what the model returns.
    """
    few = probe.batch.take(slice(0, 2))
    fitted = fit_batch(model, few)
    outputs, task, notes, cast = None, None, dict(fitted.notes), fitted.cast
    if fitted.tried:
        with untouched(model), torch.no_grad():
            model.eval()
            _require_finite(model, probe, cast)
        named, batch = (b if cast is None else cast(b) for b in (few, probe.batch))
        outputs = _columns(fitted.returned, named, options)
        if outputs is None and options.readout is None:
            task = _task(model, fitted.returned, named, batch, options, notes)
            if _lacks_labels(model, fitted.returned, batch) and options.loss is None:
                few, batch = (_with_next_tokens(part) for part in (named, batch))
                found: dict[str, str] = {}
                task = _task(model, fitted.returned, few, batch, options, found)
                if task is not None and task.labels.shift:
                    notes |= found | {"targets": "there are no labels: they are the next tokens"}
                    cast = partial(_with_next_tokens, cast=cast)
                else:  # the model sees all tokens: nothing is left to predict
                    task = None
    if task is None and options.unit is not None:
        raise DomainError(
            "unit: expected labels for every position of the outputs, to choose unit="
            f"{options.unit!r}, got others; leave unit= out"
        )
    whole = outputs is not None and outputs > 1 and probe.targets.whole
    if whole:
        kind = getattr(probe.batch.targets, "dtype", "numbers")
        notes["targets"] = (
            f"targets are whole numbers in {str(kind).removeprefix('torch.')}, and the model has "
            f"{outputs} outputs: they are taken for class labels"
        )
    return Fit(cast, whole, notes, task)


def _task(
    model: nn.Module,
    returned: Any,
    few: Batch,
    batch: Batch,
    options: SurveyOptions,
    notes: dict[str, str],
) -> PositionTask | None:
    """The task where labels come per position; None elsewhere."""
    try:
        outputs = main_tensor(returned)
    except DtypeError:
        return None
    loss = None if options.loss is None else loss_of_maps(options.loss)
    with untouched(model), torch.no_grad():
        model.eval()
        found = find_task(model, outputs, few, batch, options, loss)
    if found is None:
        return None
    notes.update(found[1])
    return found[0]


def _lacks_labels(model: nn.Module, returned: Any, batch: Batch) -> bool:
    """Whether a language model was given texts alone."""
    tokens = batch.kwargs.get("input_ids", next(iter(batch.args), None))
    logits = getattr(returned, "logits", None)
    if batch.targets is not None or not all(isinstance(t, Tensor) for t in (tokens, logits)):
        return False
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    return logits.shape[1:] == (*tokens.shape[1:], vocabulary)


def _with_next_tokens(batch: Batch, cast: Cast | None = None) -> Batch:
    """The same texts with their tokens as labels, as causal models take them; without padding."""
    batch = batch if cast is None else cast(batch)
    tokens: Tensor = batch.kwargs.get("input_ids", next(iter(batch.args), None))
    if batch.mask is not None:
        tokens = tokens.masked_fill(batch.mask.to(tokens.device) == 0, IGNORED)
    return replace(batch, targets=tokens)


def _require_finite(model: nn.Module, probe: Probe, cast: Cast | None) -> None:
    """An input that is infinite is refused, and nan unless the model copes with it."""
    if probe.suspect is None:
        return
    place, example = probe.suspect
    example = example.to(model_device(model))
    leaves = tree_leaves((example.args, dict(example.kwargs)))
    infinite = any(bool((leaf == torch.inf).any()) for leaf in leaves if isinstance(leaf, Tensor))
    returned = None if infinite else (example if cast is None else cast(example)).run(model)
    values = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]
    if not infinite and not any(bool(tensor.isnan().any()) for tensor in values):
        return
    raise NotFiniteError(
        f"data: expected finite inputs, got {'infinity' if infinite else 'nan'} in example {place} "
        "(counted from 0); leave the example out, or fill in the missing number"
    )


def _columns(returned: Any, batch: Batch, options: SurveyOptions) -> int | None:
    """Number of outputs; None where there is no row of them for every example."""
    try:
        return int(read_outputs(returned, batch, resolve_readout(options.readout)).shape[1])
    except Exception:  # the survey says why, where outputs are needed
        return None
