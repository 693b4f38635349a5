"""The probe set that all families share: drawn once, balanced over classes, made to fit the model.

Each of several processes may hold a part of the data. All draw the probe set that one process with
all the data would draw (``shards.py``). The record lists every change of the data.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from theodolite._distributed import ALONE, Processes
from theodolite.advice.reasons import Reason, reason
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
    tensors_in,
    untouched,
    whole_batch,
)
from theodolite.errors import DomainError, DtypeError, NotFiniteError, ShapeError
from theodolite.records import Note
from theodolite.surveys.copies import input_keys, usable_examples
from theodolite.surveys.options import SurveyOptions
from theodolite.surveys.positions import Positions, PositionTask, find_task
from theodolite.surveys.shards import (
    Shard,
    find_shard,
    grouped_targets,
    probe_digest,
    true_targets,
)
from theodolite.surveys.targets import MOST_CLASSES, Targets, Task, in_turns, loss_of_maps

_LEFT_OUT = {"copies": Note.HELD_OUT_COPIES, "new_classes": Note.HELD_OUT_CLASSES}
_READING = 0.25  # largest share of the time of a survey for reading the data


class _Drawn(NamedTuple):
    """Examples, each with a random number and its place in the data."""

    batch: Batch
    keys: Tensor
    places: Tensor

    def take(self, chosen: Tensor) -> "_Drawn":
        """Some of the examples."""
        return _Drawn(self.batch.take(chosen), self.keys[chosen], self.places[chosen])


@dataclass(frozen=True)
class Probe:
    """The examples for all families. Each family uses as many as it needs from the front.

    Classes alternate, so that any number of first examples is balanced.

    Args:
        batch: the examples.
        targets: their targets.
        given: number of examples in the data.
        digest: SHA-256 over inputs and targets.
        shard: the part of the data that this process has, if there are several processes.
        truth: true labels of the same examples, if the targets are other labels.
        suspect: the first example with an input that is nan or infinite, and its place.
        notes: changes that the model needs: what was changed -> how.
        groups: groups of the examples, such as documents or domains; None if not given.
        group_names: names of the groups, in the order of their numbers.
        positions: the drawn positions, for labels per position.
        reading: seconds for reading the data.
        complete: whether all the data were read before the time limit.
        repeated: number of examples whose inputs occur more than once among these.
        class_counts: number of examples of every class in the data; None without single labels.
        left_out: number of held-out examples left out as "copies" or "new_classes".
    """

    batch: Batch
    targets: Targets
    given: int
    digest: str
    shard: Shard = field(default_factory=Shard)
    truth: Targets | None = None
    suspect: tuple[int, Batch] | None = None
    notes: Mapping[str, Reason] = field(default_factory=dict)
    groups: Targets | None = None
    group_names: tuple[str, ...] = ()
    positions: Positions | None = None
    reading: float = 0.0
    complete: bool = True
    repeated: int = 0
    class_counts: Tensor | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, count: int) -> tuple[Batch, Targets]:
        """The first examples and their targets."""
        return self.batch.take(slice(0, count)), self.targets.take(count)

    def first(self, count: int) -> "Probe":
        """The first examples alone, scaled by their own targets. Their digest is that of all."""
        if count >= len(self):
            return self
        batch, targets = self.take(count)
        if targets.unscaled is not None:
            targets = Targets.of_numbers(targets.unscaled)
        truth, groups = (
            None if part is None else part.take(count) for part in (self.truth, self.groups)
        )
        return replace(self, batch=batch, targets=targets, truth=truth, groups=groups)

    def with_classes(self, *, convert: bool) -> "Probe":
        """The same examples with whole real targets as class labels, balanced over classes.

        Args:
            convert: whether the loss gets class labels too.
        """
        labels = torch.as_tensor(self.batch.targets).detach().cpu().flatten().long()
        order = in_turns(torch.arange(len(labels)), labels, len(labels))
        batch = self.batch.take(order)
        if convert:
            batch = replace(batch, targets=labels[order].to(batch.targets.device))
        truth = None if self.truth is None else self.truth.take(order)
        return replace(self, batch=batch, targets=Targets.of_labels(labels[order]), truth=truth)

    def at_positions(self, task: PositionTask, options: SurveyOptions) -> "Probe":
        """The first examples with drawn positions; their targets are groups."""
        count = min(len(self), task.most(options))
        batch = self.batch.take(slice(0, count))
        drawn = task.draw(batch, options)
        groups = None if self.groups is None else self.groups.take(count)
        return replace(
            self,
            batch=replace(batch, positions=drawn.index.to(batch.targets.device)),
            targets=Targets(Task.UNLABELED) if groups is None else groups,
            truth=None,
            groups=groups,
            positions=drawn,
        )

    @property
    def by_position(self) -> bool:
        """Whether features are those of single positions."""
        return self.positions is not None and self.positions.task.unit == "token"

    @property
    def rows(self) -> Targets:
        """Targets of the rows of features: positions or examples."""
        if self.positions is not None and self.by_position:
            return self.positions.targets
        return self.targets

    @property
    def row_count(self) -> int:
        """Number of rows of features: positions or examples."""
        return len(self.positions or ()) if self.by_position else len(self)


def reusable(data: Any, options: SurveyOptions, targets: Any = None, *, empty: bool = False) -> Any:
    """Data that can be read more than once.

    An iterator is read into a list. With ``examples=`` only this many are read, in one pass.
    """
    if options.examples is None:
        return list(data) if isinstance(data, Iterator) else data
    batches = iterate_batches(
        data,
        targets=targets,
        batch_fn=options.batch_fn,
        empty=empty,
        examples=options.examples,
    )
    return list(batches)


def draw_probe(
    data: Any,
    options: SurveyOptions,
    processes: Processes = ALONE,
    *,
    targets: Any = None,
    device: torch.device | str | None = None,
    truth: Any = None,
    groups: Any = None,
    seen: list[Tensor] | None = None,
) -> Probe:
    """Draw examples at random, as many of each class as possible.

    The data are read once. At any time at most twice the requested examples and a batch are kept.
    If each of several processes has a part of the data, all get the probe set that one process with
    all the data would draw. A loader is then read twice.

    Args:
        data: anything that ``iterate_batches`` accepts.
        options: numbers of examples of the families, and the seed.
        processes: the processes that take part.
        targets: targets of the same examples, if ``data`` does not contain them.
        device: device for the probe set.
        truth: true labels of this process's examples, in their order.
        groups: a number or a name for each of these examples, in their order.
        seen: list that gets the keys of all inputs that this process reads.

    Raises:
        ShapeError: If there is no example, or there are more or fewer true labels or groups.
        DomainError: If true labels or groups are given for data in random order.
    """
    require_order(data, truth)
    require_order(data, groups, "groups")
    generator = options.seeded()
    limit = options.largest()
    alone = processes.alone
    reading = _Reading(options.seconds if alone else None, seen)

    def batches() -> Iterator[Batch]:
        found = iterate_batches(
            data,
            targets=targets,
            batch_fn=options.batch_fn,
            empty=not alone,
            examples=options.examples,
        )
        return reading.watch(found)

    if alone:
        kept, given = _kept(batches(), generator, limit)
        shard = Shard(own=(given,))
    else:
        kept, shard = _kept_by_all(batches, processes, generator, limit)
    if not kept:
        raise ShapeError("data: expected at least one example, got none; the data set is empty")
    if shard.total == 1:
        raise ShapeError(
            "data: expected at least two examples, since alignment compares examples with each "
            "other, got one; pass more, and single inputs with an axis for examples"
        )
    batch, _, places = _selected(kept, limit or shard.total, shard.classes)
    if options.examples is not None:
        own = sum(shard.own)
        truth, groups = (None if part is None else part[:own] for part in (truth, groups))
    found = Targets.of(batch.targets)
    grouped, names = grouped_targets(groups, places, shard, processes)
    if grouped is not None and grouped.labels is not None and found.labels is None:
        turns = in_turns(torch.arange(len(places)), grouped.labels, len(places))
        batch, places, grouped = batch.take(turns), places[turns], grouped.take(turns)
        found = Targets.of(batch.targets)
    true = true_targets(truth, places, shard, processes)
    return Probe(
        batch.to(device),
        found,
        shard.total,
        probe_digest(batch),
        shard,
        true,
        reading.suspect if alone else None,
        groups=grouped,
        group_names=names,
        reading=reading.seconds if alone else 0.0,
        complete=reading.complete,
        class_counts=_added([part for some in processes.gather(reading.counts) for part in some]),
    )


def _class_counts(batch: Batch) -> Tensor | None:
    """Examples of every class in a batch; None where examples have no single labels."""
    targets = batch.targets
    if not isinstance(targets, Tensor) or targets.numel() != len(batch) or targets.is_complex():
        return None
    labels = targets.detach().cpu().flatten()
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        return None
    if not bool((labels >= 0).all()) or float(labels.max()) >= MOST_CLASSES:
        return None
    return labels.long().bincount()


def _added(counts: Sequence[Tensor | None]) -> Tensor | None:
    """Counts of all batches; None if some have no labels."""
    known = [part for part in counts if part is not None]
    if not known or len(known) < len(counts):
        return None
    total = torch.zeros(max(map(len, known)), dtype=torch.int64)
    for part in known:
        total[: len(part)] += part
    return total


class _Reading:
    """The findings while data are read; reading stops after a share of the time of the survey.

    Args:
        limit: seconds of the survey; None reads all the data.
        seen: list that gets the keys of all inputs.
    """

    def __init__(self, limit: float | int | None, seen: list[Tensor] | None) -> None:
        self._most, self._seen = None if limit is None else _READING * limit, seen
        self.seconds, self.complete = 0.0, True
        self.suspect: tuple[int, Batch] | None = None
        self.counts: list[Tensor | None] = []

    def watch(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield batches until the time is over."""
        start, given = perf_counter(), 0
        for batch in batches:
            self.seconds = perf_counter() - start
            self.counts.append(_class_counts(batch))
            keys = None if self._seen is None else input_keys(batch)
            if self._seen is not None and keys is not None:
                self._seen.append(keys)
            index = _suspect(batch) if self.suspect is None else None
            if index is not None:
                self.suspect = given + index, batch.take([index])
            given += len(batch)
            yield batch
            if self._most is not None and perf_counter() - start > self._most:
                self.complete = next(batches, None) is None
                return


def _suspect(batch: Batch) -> int | None:
    """The first example with nan or infinity in its inputs; masks may have minus infinity."""
    for leaf in tensors_in(batch.inputs):
        if leaf.is_nested or leaf.layout != torch.strided:
            continue
        if not leaf.is_floating_point() or leaf.numel() == 0 or len(leaf) != len(batch):
            continue
        peak = leaf.detach().max()  # nan if an entry is nan
        if peak.isnan() or peak == torch.inf:
            rows = leaf.detach().flatten(1) if leaf.dim() > 1 else leaf.detach().unsqueeze(1)
            return int((rows.isnan() | (rows == torch.inf)).any(1).nonzero()[0])
    return None


def _kept(
    batches: Iterator[Batch],
    generator: torch.Generator,
    limit: int | None,
    shard: Shard | None = None,
) -> tuple[list[_Drawn], int]:
    """Examples that may be drawn, each with a random number, and the number of all examples."""
    kept: list[_Drawn] = []
    waiting = given = 0
    start, classes = (0, None) if shard is None else (sum(shard.before), shard.classes)
    for batch in batches:
        places = start + given + torch.arange(len(batch))
        kept.append(_Drawn(batch, _keys(len(batch), generator), places))
        given, waiting = given + len(batch), waiting + len(batch)
        if limit is not None and waiting >= 2 * limit:
            kept = [_selected(kept, limit, classes)]
            waiting = limit
    return kept, given


def _kept_by_all(
    batches: Callable[[], Iterator[Batch]],
    processes: Processes,
    generator: torch.Generator,
    limit: int | None,
) -> tuple[list[_Drawn], Shard]:
    """The same for the data of all processes, with the random numbers of one process."""
    shard = find_shard(processes, batches)
    generator.set_state(processes.spread(generator.get_state()))
    for length in shard.before:
        _keys(length, generator)
    with processes.together():
        own, _ = _kept(batches() if shard.own else iter(()), generator, limit, shard)
        chosen = [_selected(own, limit or shard.total, shard.classes)] if own else []
    for length in shard.after:
        _keys(length, generator)
    return _exchanged(chosen, processes, limit or shard.total, shard), shard


def _exchanged(own: list[_Drawn], processes: Processes, limit: int, shard: Shard) -> list[_Drawn]:
    """The drawn examples of all processes, in every process."""
    known = [(part.keys, _labels(part.batch, shard.classes)) for part in own]
    offered = processes.gather(known)
    pairs = [pair for part in offered for pair in part]
    if not pairs:
        return []
    keys = torch.cat([part for part, _ in pairs])
    labels = None if pairs[0][1] is None else torch.cat([part for _, part in pairs])
    wanted = torch.zeros(len(keys), dtype=torch.bool)
    wanted[in_turns(keys, labels, limit)] = True
    found, start = [], 0
    for rank, part in enumerate(offered):
        count = sum(len(keys) for keys, _ in part)
        chosen = wanted[start : start + count].nonzero().flatten()
        start += count
        if len(chosen):
            picked = own[0].take(chosen) if rank == processes.rank else None
            sent = None if picked is None else picked._replace(batch=picked.batch.to("cpu"))
            found.append(processes.spread(sent, rank))
    return found


def _keys(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device).cpu()


def _selected(kept: list[_Drawn], limit: int, classes: bool | None = None) -> _Drawn:
    """The first examples when classes alternate, each class in random order.

    A process may drop examples that are not among its own first ones. An example never comes
    earlier among all examples than among some of them.
    """
    batch = whole_batch([part.batch for part in kept])
    keys, places = (torch.cat(parts) for parts in list(zip(*kept, strict=True))[1:])
    return _Drawn(batch, keys, places).take(in_turns(keys, _labels(batch, classes), limit))


def _labels(batch: Batch, classes: bool | None) -> Tensor | None:
    return None if classes is False else Targets.of(batch.targets).labels


def require_order(data: Any, truth: Any, what: str = "truth") -> None:
    """Check that data with separate labels come in a fixed order.

    Raises:
        DomainError: If a loader shuffles.
    """
    if truth is None or not isinstance(data, DataLoader):
        return
    sampler, order = data.sampler, "the true labels" if what == "truth" else what
    if isinstance(sampler, RandomSampler) or getattr(sampler, "shuffle", False):
        raise DomainError(
            f"{what}: expected data in the order of {order}"
            ", got a loader that shuffles; pass a loader with shuffle=False, or (inputs, targets)"
        )


@dataclass(frozen=True)
class Converted:
    """Data whose batches are converted at every pass."""

    data: Any
    cast: Cast
    batch_fn: Callable[[Any], Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return map(self.cast, iterate_batches(self.data, batch_fn=self.batch_fn, empty=True))


@dataclass(frozen=True)
class Fit:
    """How data are changed to fit a model.

    Args:
        cast: converts the inputs for the model; None if no conversion is needed.
        classes: whether whole real numbers are class labels.
        notes: "columns", "inputs", "targets" -> what was changed.
        task: the task, for labels per position.
    """

    cast: Cast | None
    classes: bool
    notes: dict[str, Reason]
    task: PositionTask | None = None

    def probe(self, probe: Probe, options: SurveyOptions) -> Probe:
        """The probe set in the form that the model takes."""
        if self.cast is not None:
            probe = replace(probe, batch=self.cast(probe.batch))
        if self.classes:
            probe = probe.with_classes(convert=options.loss is None)
        if self.task is not None:
            probe = probe.at_positions(self.task, options)
        notes = dict(self.notes)
        for kind, count in probe.left_out.items():
            notes[kind] = reason(_LEFT_OUT[kind], count=count)
        if not probe.complete:
            notes["data"] = reason(Note.READ_IN_PART, given=probe.given, seconds=probe.reading)
        return replace(probe, notes=notes)

    def data(self, data: Any, batch_fn: Callable[[Any], Batch] | None) -> Any:
        """All the data in the form that the model takes."""
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
    """The probe set, held-out examples if given, and how data are changed to fit the model.

    Raises:
        DomainError: If the data have targets and the held-out examples have none.
    """
    place = options.device or model_device(model)
    seen: list[Tensor] | None = None if held_out is None else []
    drawn = draw_probe(
        data, options, processes, targets=targets, device=place, truth=truth, groups=groups,
        seen=seen,
    )  # fmt: skip
    keys = input_keys(drawn.batch)
    if keys is not None:
        drawn = replace(drawn, repeated=_repeated(keys))
    fit = fit_inputs(model, drawn, options)
    others = None
    if held_out is not None:
        with _about_held_out():
            judges = draw_probe(held_out, options, processes, device=place)
            if drawn.batch.targets is not None and judges.batch.targets is None:
                raise DomainError(
                    "data: expected (inputs, targets), since the data have targets, got inputs"
                    " alone; pass their targets too"
                )
            fit_batch(model, judges.batch.take(slice(0, 2)))
        known = [part for some in processes.gather(seen) for part in some]
        drawn, others = _judging(drawn, judges, torch.cat(known) if known else None)
    probe = fit.probe(drawn, options)
    return probe, None if others is None else fit.probe(others, options), fit


@contextmanager
def _about_held_out() -> Iterator[None]:
    """Name the argument in errors about held-out examples."""
    try:
        yield
    except (DomainError, DtypeError, ShapeError) as error:
        raise type(error)(f"held_out: {error}") from error


def _repeated(keys: Tensor) -> int:
    counts = torch.unique(keys, return_counts=True)[1]
    return int(counts[counts > 1].sum())


def _judging(drawn: Probe, judges: Probe, known: Tensor | None) -> tuple[Probe, Probe | None]:
    """Held-out examples on which the training can be judged; None if there are fewer than two."""
    labels, classes = judges.targets.labels, None
    if drawn.targets.labels is not None and drawn.class_counts is not None and drawn.complete:
        classes = drawn.class_counts.nonzero().flatten()
    places, left_out = usable_examples(input_keys(judges.batch), known, labels, classes)
    if not left_out:
        return drawn, judges
    drawn = replace(drawn, left_out=left_out)
    if len(places) < 2:
        return drawn, None
    rest, targets = judges.batch.take(places), judges.targets.take(places)
    counts = None if targets.labels is None else targets.labels.bincount()
    return drawn, replace(judges, batch=rest, targets=targets, class_counts=counts)


def fit_inputs(model: nn.Module, probe: Probe, options: SurveyOptions) -> Fit:
    """Try two examples before any measurement, see :func:`theodolite.engine.fit_batch`.

    Raises:
        ShapeError: If the model accepts none of the forms; other errors of the model are passed on.
        NotFiniteError: If an input is infinite, or nan with a nan output.
    """
    few = probe.batch.take(slice(0, 2))
    fitted = fit_batch(model, few)
    task, cast = None, fitted.cast
    notes: dict[str, Reason] = {
        part: reason(Note.INPUTS_FITTED, change=change) for part, change in fitted.notes.items()
    }
    with untouched(model), torch.no_grad():
        model.eval()
        _require_finite(model, probe, cast)
    named, batch = (b if cast is None else cast(b) for b in (few, probe.batch))
    outputs = _columns(fitted.returned, named, options)
    if outputs is None and options.readout is None:
        task = _task(model, fitted.returned, named, batch, options, notes)
        if _lacks_labels(model, fitted.returned, batch) and options.loss is None:
            few, batch = (_with_next_tokens(part) for part in (named, batch))
            found: dict[str, Reason] = {}
            task = _task(model, fitted.returned, few, batch, options, found)
            if task is not None and task.labels.shift:
                notes |= found | {"targets": reason(Note.NEXT_TOKENS)}
                cast = partial(_with_next_tokens, cast=cast)
            else:  # the model sees all tokens, so there is nothing to predict
                task = None
    if task is None and options.unit is not None:
        unlabelled = probe.targets.task is Task.UNLABELED
        raise DomainError(
            f"unit: expected a label for every position of the outputs for unit={options.unit!r}, "
            f"got {'no' if unlabelled else 'other'} targets; leave unit= out"
        )
    if task is None and options.loss is None:
        probe.targets.require_classes(outputs)
    whole = outputs is not None and outputs > 1 and probe.targets.whole
    if whole:
        kind = str(getattr(probe.batch.targets, "dtype", "numbers")).removeprefix("torch.")
        notes["targets"] = reason(Note.TAKEN_AS_LABELS, kind=kind, outputs=outputs)
    return Fit(cast, whole, notes, task)


def _task(
    model: nn.Module,
    returned: Any,
    few: Batch,
    batch: Batch,
    options: SurveyOptions,
    notes: dict[str, Reason],
) -> PositionTask | None:
    """The task with labels per position; None for other tasks."""
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
    """Whether a language model got texts without labels."""
    tokens = batch.kwargs.get("input_ids", next(iter(batch.args), None))
    logits = getattr(returned, "logits", None)
    if batch.targets is not None or not isinstance(tokens, Tensor):
        return False
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    shape = (*tokens.shape[1:], vocabulary)
    return isinstance(logits, Tensor) and logits.shape[1:] == shape


def _with_next_tokens(batch: Batch, cast: Cast | None = None) -> Batch:
    """The same texts with their tokens as labels, as causal models take them, without padding."""
    batch = batch if cast is None else cast(batch)
    tokens: Tensor = batch.kwargs.get("input_ids", next(iter(batch.args), None))
    if batch.mask is not None:
        tokens = tokens.masked_fill(batch.mask.to(tokens.device) == 0, IGNORED)
    return replace(batch, targets=tokens)


def _require_finite(model: nn.Module, probe: Probe, cast: Cast | None) -> None:
    """Refuse infinite inputs, and nan unless the outputs are finite."""
    if probe.suspect is None:
        return
    place, example = probe.suspect
    example = example.to(model_device(model))
    given = tensors_in((example.args, dict(example.kwargs)))
    infinite = any(bool((tensor == torch.inf).any()) for tensor in given)
    returned = None if infinite else (example if cast is None else cast(example)).run(model)
    if not infinite and not any(bool(tensor.isnan().any()) for tensor in tensors_in(returned)):
        return
    raise NotFiniteError(
        f"data: expected finite inputs, got {'infinity' if infinite else 'nan'} in example {place} "
        "(counted from 0); leave the example out, or fill in the missing number"
    )


def _columns(returned: Any, batch: Batch, options: SurveyOptions) -> int | None:
    """Number of outputs; None unless there is one row of outputs for every example."""
    try:
        return int(read_outputs(returned, batch, resolve_readout(options.readout)).shape[1])
    except Exception:  # the survey gives the reason if outputs are needed
        return None
