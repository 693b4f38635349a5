"""Rank models for a new task from labelled examples: which model, which layer, how accurate.

Each model is built, measured and released before the next one. Nothing is trained. Linear probes
and regressions with the exact tangent kernel leave out one example at a time, in closed form.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.advice.choosing import (
    FEW_LABELS,
    Candidate,
    choosing_notes,
    ranked,
    tied,
    transfer_answers,
)
from theodolite.advice.reasons import Reason, error_kind, reason
from theodolite.checks import (
    require_count,
    require_flag,
    require_function,
    require_kind,
    require_positive,
    size_in_bytes,
    size_text,
)
from theodolite.engine import (
    Batch,
    Layers,
    available_bytes,
    features,
    limited_memory,
    model_device,
    require_device,
    require_pool,
    select_layers,
    tensors_in,
    untouched,
)
from theodolite.errors import (
    DomainError,
    DtypeError,
    MemoryLimitError,
    RecordError,
    UnknownNameError,
    UnwrittenWarning,
)
from theodolite.linalg import LeaveOneOut, regression_targets
from theodolite.measures import representation
from theodolite.records import (
    Note,
    Record,
    load_record,
    require_path,
    require_transfer_model,
    save_record,
)
from theodolite.surveys.heads import Body, pretrained_body
from theodolite.surveys.layers import Footprint, Layer, survey_layers
from theodolite.surveys.options import SurveyOptions
from theodolite.surveys.plan import LIVE, USED, warn_of_memory
from theodolite.surveys.probe import Probe, draw_probe, fit_inputs
from theodolite.surveys.progress import Speed, TimeBudget, cube_seconds
from theodolite.surveys.results import unused_folder
from theodolite.surveys.run import versions
from theodolite.surveys.targets import Task
from theodolite.surveys.transfer_regressions import (
    KernelRegressions,
    body_kernel,
    forecast,
    kernel_regressions,
    predicted_curve,
    regressions_cost,
)
from theodolite.surveys.transfer_results import Transfer
from theodolite.surveys.transfer_sources import (
    Source,
    built_model,
    from_items,
    identity,
    items_digest,
    named_sources,
    numbered,
    own_name,
    unmatched,
)
from theodolite.surveys.transfer_time import (
    PROBED,
    Limit,
    Pace,
    Trial,
    chosen_examples,
    fewest_examples,
)
from theodolite.sweeps import Failure, RayResources, Report, run_in_processes, run_on_ray
from theodolite.theory.learning import LearningCurve

Prepare = Callable[[Any], Any]

_FEW = 20  # examples of the kernel whose time predicts that of a larger one
_KERNELS = 7  # kernels between all examples that exist at one time, in float64
_PATIENCE = 1.2  # time over the limit, or a model's share of it, above which a note says so
_TRIALS = 0.1  # share of the time for trials of more than one model
_TRIED = 16  # examples of a trial
_GROWTH = 1.5  # a larger tangent kernel is measured if it has this many times the examples


@dataclass(frozen=True)
class TransferOptions:
    """Options of a ranking; the defaults suit a few hundred labels and models of any size.

    Args:
        examples: largest number of examples, with as many of each class as possible.
        tangent: whether to measure the tangent kernel; otherwise features alone are used.
        tangent_examples: largest number of examples for the tangent kernel.
        head: name of the layer that a new head replaces. "auto" finds it. None: the model returns
            features. If models differ, pass a mapping from models to names.
        layers: layers with linear probes: names in the model, patterns, or a predicate of (name,
            module); by default as in a survey.
        pool: how the output of a layer becomes one row: "mean", "max", "flatten", "cls", "last".
        labels: numbers of labels for the learning curve; by default up to ten times the examples.
        batch_size: examples in one forward pass for features. Tangent kernels choose their own.
        seconds: time limit for all models together; each gets an equal share. If needed, all models
            use a half, a quarter, ... of the examples, at least 250 and two of each class. Tangent
            kernels may use fewer. The numbers are chosen from the measured speed, and notes give
            them. Reading the data, starting processes and building models are never cut. Of models
            that are built one at a time only the first is timed beforehand. A note says if the
            ranking, or one model, took longer. None for no limit.
        memory_limit: limit for the memory that measuring adds, in bytes or as a size such as "4GB".
            Models and data do not count. A model that needs more is refused with a reason.
        device: device for measuring; by default that of each model.
        seed: seed of the drawn examples and of the new head.
        name: name of the result.
    """

    examples: int = 2000
    tangent: bool = True
    tangent_examples: int = 400
    head: str | Mapping[str, str | None] | None = "auto"
    layers: Layers | None = None
    pool: str = "mean"
    labels: Sequence[int] | None = None
    batch_size: int = 64
    seconds: float | None = None
    memory_limit: int | str | None = None
    device: torch.device | str | None = None
    seed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        require_count(20, examples=self.examples, tangent_examples=self.tangent_examples)
        require_count(1, batch_size=self.batch_size)
        if self.seconds is not None:
            require_positive(seconds=self.seconds)
        require_flag(tangent=self.tangent)
        require_kind(Integral, seed=self.seed)
        require_kind(str, name=self.name)
        require_kind((str, Mapping, type(None)), head=self.head)
        if self.labels is not None:
            require_kind(Iterable, labels=self.labels)
        counts = enumerate([] if self.labels is None else self.labels)
        require_positive(**{f"labels[{place}]": count for place, count in counts})
        require_pool(self.pool)
        object.__setattr__(self, "memory_limit", size_in_bytes(self.memory_limit))

    def describe(self) -> dict[str, Any]:
        """The options as plain data for the record."""
        plain = {key: getattr(self, key) for key in ("examples", "tangent", "tangent_examples")}
        plain |= {key: getattr(self, key) for key in ("pool", "batch_size", "memory_limit", "seed")}
        plain["head"] = dict(self.head) if isinstance(self.head, Mapping) else self.head
        plain["layers"] = "default" if self.layers is None else str(self.layers)
        plain["labels"] = None if self.labels is None else [int(count) for count in self.labels]
        if self.seconds is not None:
            plain["seconds"] = self.seconds
        return plain | {"device": None if self.device is None else str(self.device)}


def transfer(
    models: nn.Module | Source | Sequence[Source] | Mapping[str, Source],
    data: Any,
    *,
    targets: Any = None,
    prepare: Prepare | Mapping[str, Prepare] | None = None,
    options: TransferOptions | None = None,
    workers: int = 1,
    ray: RayResources | None = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
    progress: Callable[[float, str], None] | None = None,
    **keywords: Any,
) -> Transfer:
    """Rank models for a new task, with forecasts of fine-tuning and of more labels.

    Nothing is trained, and no held-out data are needed. No model may have been trained on these
    labels. Otherwise its forecast would be far too high. Models are ranked by the leave-one-out
    error of a kernel regression. Its kernel is the mean of two, scaled alike: that of the features
    before the head, and the exact tangent kernel of the weights below a new head. If there are more
    labels than the tangent kernel was measured on, the features of all layers replace it. Their
    error on all labels is then multiplied by a ratio on the examples of the tangent kernel: its
    error over theirs. Models whose errors do not differ significantly are a tie. Layers are
    compared by linear probes.

    Args:
        models: one model, a list, or a mapping from names. A model is a module, a callable that
            builds one, or a name as on the command line (``FILE.py:CALLABLE``, ``timm:NAME``,
            ``hf:NAME``). Callables and names are built one at a time and then released.
        data: labelled examples of the new task, in any form that :func:`theodolite.survey` takes.
            Or a list of texts (images, files) with their labels, which ``prepare`` converts into
            tensors. Numbers instead of classes make it a regression.
        targets: targets of the examples, if ``data`` does not contain them.
        prepare: a function that converts a few examples into the inputs of a model: it resizes
            images, repeats a channel, splits texts into tokens. If models differ, pass a mapping
            from models to functions.
        options: a :class:`TransferOptions`; you may also pass its fields as keywords.
        workers: number of processes that measure one model each; models must then be picklable.
        ray: measure the models as trials of Ray instead.
        folder: where each model's numbers are saved when they are known, and the result at the end.
            The same call with the same examples and options resumes an interrupted run; you may add
            models. A folder with another run is not changed. If the disk is full, the ranking is
            returned with a warning.
        overwrite: measure all models again, and replace any run in the folder.
        progress: a function that is called with the finished share and a text.
        **keywords: fields of :class:`TransferOptions`.

    Returns:
        The ranking with forecasts, linear probes of every layer, and learning curves.

    Raises:
        DomainError: If the targets cannot be learned (one class, no class with two examples), or no
            model could be measured.
        DtypeError: If an entry of ``models`` is not a model, or an argument has a wrong class.
        UnknownNameError: If an option does not exist.

    Examples:
        >>> from torch import nn
        >>> x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
        >>> y = (x[:, 0] * x[:, 1] > 0).long()
        >>> def network(width):
        ...     torch.manual_seed(0)
        ...     return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))
        >>> found = transfer({"wide": network(64), "narrow": network(2)}, (x, y))
        >>> found.names
        ['wide', 'narrow']
    """
    begun = time.perf_counter()
    chosen = _chosen(options, keywords)
    _require_callables(prepare, progress)
    require_kind((RayResources, type(None)), ray=ray)
    require_flag(overwrite=overwrite)
    if folder is not None:
        require_path(folder=folder)
    sources = named_sources(models)
    require_count(1, workers=workers)
    survey_options = SurveyOptions(
        families="representation",
        sizes={"representation": chosen.examples},
        seed=chosen.seed,
        seconds=None,  # no time limit for reading the data
    )
    data, items = numbered(data, targets)
    probe = draw_probe(data, survey_options, targets=targets)
    probe = replace(probe, digest=items_digest(items or [], probe.digest))
    _require_task(probe)
    notes = unmatched(sources, head=chosen.head, prepare=prepare)
    _require_memory(len(probe), chosen)
    work = _Work(probe, chosen, prepare, items)
    store = None
    if folder is not None:
        store = _Store(_folder(Path(folder), probe, chosen, overwrite=overwrite))
    kept: dict[str, Record] = {}
    digests: dict[str, str] = {}
    waiting = []
    for name, source in sources.items():
        found = None
        if store is not None:
            digests[name] = work.digest(name, source)
            found = None if overwrite else store.known(name, digests[name])
        if found is None:
            waiting.append((name, source))
        else:
            kept[name] = found
    waiting += _on_more_examples(sources, kept)
    work = work.in_time(begun, waiting, kept, workers=workers, here=ray is None)
    notes = [*_require_task(work.probe), *notes, *_cut(probe, work.probe, chosen.seconds)]
    probe = work.probe

    def keep(job: tuple[str, Source], outcome: Record) -> None:
        name = job[0]
        kept[name] = outcome
        if store is not None:
            contents = {**outcome.contents, "digest": digests[name]}
            kept[name] = replace(outcome, contents=contents)
            store.keep(name, kept[name])

    report = progress or (lambda share, text: None)
    if ray is not None:
        failures = run_on_ray(work, waiting, keep, resources=ray, report=report) if waiting else []
    else:
        failures = run_in_processes(work, waiting, keep, workers=workers, report=report)
    if not kept:
        reasons = "; ".join(f"{failure.job[0]}: {failure.reason}" for failure in failures)
        raise DomainError(
            f"models: expected at least one that can be measured, got none: {reasons}"
        )
    notes += _late(begun, kept, chosen.seconds)
    result = Transfer(_joined(sources, kept, failures, probe, chosen, notes))
    return result if store is None else store.finish(result)


def _chosen(options: TransferOptions | None, keywords: Mapping[str, Any]) -> TransferOptions:
    """The options with the keywords of the call, which take precedence."""
    if options is not None and not isinstance(options, TransferOptions):
        raise DtypeError(
            f"options: expected TransferOptions, got {type(options).__name__}; pass its fields as "
            "keywords, such as seed=1"
        )
    known = [entry.name for entry in fields(TransferOptions)]
    for name in keywords:
        if name not in known:
            raise UnknownNameError("option", name, known)
    return replace(options or TransferOptions(), **keywords)


def _require_callables(prepare: Any, progress: Any) -> None:
    mapped = prepare if isinstance(prepare, Mapping) else {None: prepare}
    for name, function in mapped.items():
        if function is not None:
            require_function(**{"prepare" if name is None else f"prepare[{name!r}]": function})
    if progress is not None:
        require_function(progress=progress)


def _folder(wanted: Path, probe: Probe, options: TransferOptions, *, overwrite: bool) -> Path:
    """Return the folder if it is free or holds an earlier part of this run, else one beside it."""
    if overwrite:
        return unused_folder(wanted, overwrite=True)
    try:
        contents = load_record(wanted).contents
    except RecordError:
        return unused_folder(wanted)
    data = contents.get("data")
    same = isinstance(data, dict) and data.get("probe_hash") == probe.digest
    return unused_folder(wanted, overwrite=same and contents.get("config") == options.describe())


def _require_task(probe: Probe) -> list[Reason]:
    """Check that the targets can be learned; return notes about them."""
    known = probe.targets
    if known.columns is None:
        got = "none" if known.task is Task.UNLABELED else "targets that are neither"
        raise DomainError(
            f"targets: expected one class or number for each example, got {got}; pass"
            " (inputs, targets) or targets="
        )
    if len(probe) < 20:
        raise DomainError(
            f"data: expected at least 20 labelled examples, got {len(probe)}; label more, or "
            "fine-tune all models and compare them"
        )
    if known.labels is None:
        return []
    counts = torch.bincount(known.labels)
    present, alone = int((counts > 0).sum()), (counts == 1).nonzero().flatten().tolist()
    if present < 2:
        raise DomainError(
            "targets: expected at least two classes, got one; there is nothing to learn"
        )
    if len(alone) == present:
        raise DomainError(
            "targets: expected classes with at least two examples, since each is predicted from "
            "the others, got one of every class; pass numbers to regress as floats"
        )
    notes: list[Reason] = []
    if alone:
        notes.append(reason(Note.SINGLE_CLASSES, alone=len(alone), classes=present))
    few = counts[(counts > 0) & (counts < FEW_LABELS)]
    if len(few):
        facts = {"few": len(few), "classes": present, "enough": FEW_LABELS}
        notes.append(reason(Note.FEW_LABELS, smallest=int(few.min()), **facts))
    return notes


def _cut(given: Probe, used: Probe, seconds: float | None) -> list[Reason]:
    """A note if the time limit left fewer examples."""
    if len(used) == len(given):
        return []
    facts = {"count": len(used), "wanted": len(given), "seconds": seconds}
    return [reason(Note.FEWER_EXAMPLES, **facts)]


def _on_more_examples(
    sources: Mapping[str, Source], kept: dict[str, Record]
) -> list[tuple[str, Source]]:
    """Take out models that earlier runs with a time limit measured on more examples than others."""
    counts = {name: record.contents["examples"] for name, record in kept.items()}
    names = [name for name, count in counts.items() if count > min(counts.values())]
    for name in names:
        del kept[name]
    return [(name, sources[name]) for name in names]


def _late(begun: float, kept: Mapping[str, Record], seconds: float | None) -> list[Reason]:
    """A note if the ranking passed its time limit and no model says so, as with processes."""
    notes = [note for record in kept.values() for note in record.contents["notes"]]
    said = {note["note"] for note in notes if isinstance(note, Mapping)}  # not in old records
    if seconds is None or Note.BEYOND_SECONDS in said:
        return []
    if time.perf_counter() - begun <= _PATIENCE * seconds:
        return []
    return [reason(Note.BEYOND_SECONDS, seconds=seconds)]


def _require_memory(count: int, options: TransferOptions) -> None:
    """Refuse kernels between all examples above the limit; warn of those above free memory."""
    limit = size_in_bytes(options.memory_limit)
    need = _KERNELS * 8 * count**2
    if limit is not None and need > limit:
        raise MemoryLimitError(
            f"memory_limit: kernels between {count} examples need {size_text(need)}, more than "
            f"{size_text(limit)}; pass examples={int((limit / _KERNELS / 8) ** 0.5)} or less"
        )
    warn_of_memory(max(need, limit or 0), available_bytes(torch.device("cpu")))


class _Store:
    """The folder of a ranking. If the disk is full, measured numbers stay in memory.

    Args:
        folder: a free folder, or one with an earlier part of this run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, Record] = {}  # models that are not on disk

    def known(self, name: str, digest: str) -> Record | None:
        """The record of a model from an earlier run with the same examples and options.

        If it is damaged, the model is measured again.
        """
        place = self._place(name)
        try:
            record = require_transfer_model(load_record(place), place, name)
        except RecordError:
            return None
        return record if record.contents.get("digest") == digest else None

    def keep(self, name: str, record: Record) -> None:
        """Save the numbers of a model, and those that could not be saved earlier."""
        warned = bool(self._waiting)
        self._waiting[name] = record
        problem = self._problem(self._flush)
        if problem is not None and not warned:
            warn(
                f"{name} is not on disk: {problem}. It stays in memory; other models are measured.",
                UnwrittenWarning,
                stacklevel=2,
            )

    def finish(self, result: Transfer) -> Transfer:
        """Save the ranking. If that fails, the result says so."""
        problem = self._problem(lambda: result.save(self._folder, overwrite=True))
        self._problem(self._flush)
        if problem is None:
            return result
        warn(
            f"the ranking is not on disk: {problem}. Save it while this process lives: "
            "result.save(folder).",
            UnwrittenWarning,
            stacklevel=3,
        )
        return replace(result, unwritten=problem)

    def _flush(self) -> None:
        for name in list(self._waiting):
            save_record(self._waiting[name], self._place(name))
            del self._waiting[name]

    def _problem(self, write: Callable[[], object]) -> str | None:
        """The reason why something cannot be written; None if it was written."""
        try:
            write()
        except (OSError, RecordError) as error:
            return str(error)
        return None

    def _place(self, name: str) -> Path:
        word = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.")[:40]
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        return self._folder / "models" / f"{word}-{digest}"


@dataclass(frozen=True)
class _Work:
    """Measures one model; this object is sent to worker processes.

    Args:
        probe: the examples.
        options: options of the ranking.
        prepare: the user's function, or one for each model.
        items: objects behind the examples, if they are not tensors.
        pace: the time of each model; None without a limit.
        built: the model that was built for a trial.
    """

    probe: Probe
    options: TransferOptions
    prepare: Prepare | Mapping[str, Prepare] | None
    items: Sequence[Any] | None
    pace: Pace | None = None
    built: dict[str, nn.Module] = field(default_factory=dict)

    def _prepare(self, name: str) -> Prepare | None:
        return self.prepare.get(name) if isinstance(self.prepare, Mapping) else self.prepare

    def _converter(self, name: str) -> Prepare | None:
        """The function that converts examples, or the numbers of objects, for one model."""
        prepare = self._prepare(name)
        return prepare if self.items is None else from_items(self.items, prepare, name)

    def in_time(
        self,
        begun: float,
        waiting: Sequence[tuple[str, Source]],
        kept: Mapping[str, Record],
        *,
        workers: int,
        here: bool,
    ) -> "_Work":
        """The same work on as many examples as fit into the time, if it is limited.

        All models get the same examples. If an earlier run has measured some, theirs.

        Args:
            begun: start of the time.
            waiting: the models, in their order.
            kept: records of models that were measured.
            workers: number of processes.
            here: whether one worker is this process.
        """
        options, built = self.options, dict[str, nn.Module]()
        if options.seconds is None:
            return self
        budget = TimeBudget(options.seconds, Speed(1.0, 0.0), begun)
        trials = self._trials(budget, waiting, built)
        rounds = max(1, -(-len(waiting) // workers))
        count = min((r.contents["examples"] for r in kept.values()), default=len(self.probe))
        if trials and not kept:
            fewest = fewest_examples(self.probe.targets.labels, count)
            tangent = options.tangent_examples if options.tangent else 0
            count = chosen_examples(budget, trials, rounds, count, fewest, tangent)
        in_turn = here and (workers == 1 or len(waiting) == 1)
        names = tuple(name for name, _ in waiting) if in_turn else None
        speed = trials[0].speed if trials else Speed(0.0, 0.0)
        pace = Pace(budget, names, max(budget.left, 0.0) / rounds, speed)
        built = built if in_turn else {}
        return replace(self, probe=self.probe.first(count), pace=pace, built=built)

    def _trials(
        self,
        budget: TimeBudget,
        waiting: Sequence[tuple[str, Source]],
        built: dict[str, nn.Module],
    ) -> list[Trial]:
        """Speed and sizes of the models that are there, or of the first one that can be built.

        The largest model comes first. If the time for trials ends, the rest count as the smallest
        one that was tried.
        """
        modules = [(name, model) for name, model in waiting if isinstance(model, nn.Module)]
        modules.sort(key=lambda job: -sum(p.numel() for p in job[1].parameters()))
        found: list[Trial] = []
        for place, (name, source) in enumerate(modules or waiting):
            late = budget.left < (1 - _TRIALS) * budget.seconds
            if found and (late or not modules):
                return found + found[-1:] * (len(modules) - place)
            try:
                model = built_model(name, source)
                found.append(_trial(name, model, self.probe, self.options, self._converter(name)))
            except Exception:  # measuring the model gives the reason
                continue
            if not modules:
                built[name] = model
        return found

    def digest(self, name: str, source: Source) -> str:
        """A digest of examples, options and model. It shows whether an old record may be used."""
        prepare = self._prepare(name)
        parts: list[Any] = [self.probe.digest, self.options.describe(), name, identity(source)]
        parts.append(None if prepare is None else identity(prepare))
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def __call__(self, job: tuple[str, Source], report: Report) -> Record:
        """Build the model, measure it and release it."""
        name, source = job
        began = time.perf_counter()
        seconds = None if self.pace is None else self.pace.seconds(name)
        model = self.built.pop(name, None)
        model = built_model(name, source) if model is None else model
        built = time.perf_counter() - began
        limit = None
        if self.pace is not None and seconds is not None:
            limit = Limit(began + seconds, self.pace.speed)
        prepare = self._converter(name)
        record = _measured(name, model, self.probe, self.options, prepare, report, limit)
        contents = dict(record.contents)
        contents["source"] = source if isinstance(source, str) else own_name(source)
        contents["seconds"] = {"build": built, **contents["seconds"]}
        if seconds is not None and time.perf_counter() - began > _PATIENCE * seconds:
            late = reason(Note.BEYOND_SECONDS, seconds=self.options.seconds)
            contents["notes"] = [*contents["notes"], late.to_entry()]
        return replace(record, contents=contents)


@dataclass(frozen=True)
class _Prepared:
    """Examples in the form that one model takes, converted batch by batch at each use."""

    batch: Batch
    prepare: Prepare | None
    size: int
    place: torch.device | str
    cast: Callable[[Batch], Batch] | None = None

    def part(self, chosen: slice) -> Batch:
        """Some of the examples."""
        few = self.batch.take(chosen)
        if self.prepare is not None:
            few = _as_batch(self.prepare, few).to(self.place)
        return few if self.cast is None else self.cast(few)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.batch), self.size):
            yield self.part(slice(start, start + self.size))

    def first(self, count: int) -> "_Prepared":
        """The first examples alone."""
        return replace(self, batch=self.batch.take(slice(0, count)))


def _as_batch(prepare: Prepare, batch: Batch) -> Batch:
    """Apply the user's function; it may return a tensor, a tuple or keyword arguments."""
    given = batch.args[0] if len(batch.args) == 1 else (batch.args or dict(batch.kwargs))
    made = prepare(given)
    if isinstance(made, Batch):
        return replace(made, targets=batch.targets)
    if isinstance(made, Mapping):
        return Batch((), dict(made), batch.targets, made.get("attention_mask"))
    args = made if isinstance(made, tuple) else (made,)
    return Batch(args, {}, batch.targets, None)


def _measured(
    name: str,
    model: nn.Module,
    probe: Probe,
    options: TransferOptions,
    prepare: Prepare | None,
    report: Report,
    time_limit: Limit | None,
) -> Record:
    """Measure all numbers of one model, within its time limit if there is one."""
    seconds: dict[str, float] = {}
    notes: list[Reason] = []
    limit = size_in_bytes(options.memory_limit)
    with _body_and_examples(name, model, probe, options, prepare) as (body, examples):
        began = time.perf_counter()
        shown, footprint = _layers(body, examples.part(slice(0, 3)), options)
        examples, free = _fitting(examples, probe, shown, footprint, limit)
        rows, outputs = _features(body, examples, shown, options.pool)
        seconds["features"] = time.perf_counter() - began
        report(0.3, f"{name}: features")
        answers = _answers(probe, outputs.device)
        layers = [
            {"name": layer.name.removeprefix("model.").removeprefix("model"), "type": layer.type}
            | {"read_at": layer.read_at, **_probe(rows[layer.name], answers)}
            for layer in shown
        ]
        if shown and not _are_equal(rows[shown[-1].name], outputs):
            where = {"name": "outputs" if body.head is None else "input of the head"}
            where |= {"type": "", "read_at": ""}
            layers.append(where | _probe(outputs, answers))
        seconds["probes"] = time.perf_counter() - began - seconds["features"]
        report(0.5, f"{name}: linear probes")
        began = time.perf_counter()
        until = None
        if time_limit is not None:
            widths = [rows[layer.name].shape[1] for layer in shown]
            tangent = min(options.tangent_examples, len(outputs))
            sizes = widths, outputs.shape[1], regression_targets(answers)[0].shape[1]
            until = time_limit.end - time_limit.speed.seconds(
                regressions_cost(len(outputs), tangent, *sizes)
            )
        options = replace(options, memory_limit=free)
        of_body = _body_kernel(body, outputs, examples, options, notes, until)
        found = kernel_regressions(outputs, [rows[layer.name] for layer in shown], of_body, answers)
        seconds["tangent"] = time.perf_counter() - began
    frozen = not _trainable(body)
    curve = predicted_curve(found, answers, options.labels, frozen=frozen)
    best = min(layers, key=lambda entry: entry["error"], default=None)
    answers = answers.cpu()
    contents = {
        "kind": "transfer-model",
        "name": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "head": body.head,
        "width": int(layers[-1]["width"]) if layers else 0,
        "examples": len(probe),
        "error": found.error,
        "forecast": forecast(found, answers, frozen=frozen),
        "frozen": frozen,
        "tangent_missing": options.tangent and not frozen and not found.tangent,
        "features": {"n": len(probe), **_numbers(found.every_head_features)},
        "features_beside": {"n": found.count, **_numbers(found.head_features)},
        "tangent": {"n": found.count, **_numbers(found.head_and_body)} if found.tangent else None,
        "layers": layers,
        "best_layer": None if best is None else best["name"],
        "seconds": seconds,
        "notes": [note.to_entry() for note in notes],
    }
    return Record(contents, _model_arrays(found, curve, answers))


@contextmanager
def _body_and_examples(
    name: str, model: nn.Module, probe: Probe, options: TransferOptions, prepare: Prepare | None
) -> Iterator[tuple[Body, _Prepared]]:
    """The model up to its head and the examples that it takes; the model is restored afterwards."""
    require_device(options.device, model)
    place = options.device or model_device(model)
    limit = size_in_bytes(options.memory_limit)
    with _moved(model, options.device), limited_memory(limit), untouched(model):
        model.eval()
        examples = _Prepared(probe.batch.to(place), prepare, options.batch_size, place)
        few = replace(probe, batch=examples.part(slice(0, 2)), notes={})
        if probe.suspect is not None and prepare is not None:
            index, odd = probe.suspect
            few = replace(few, suspect=(index, _as_batch(prepare, odd)))
        fit = fit_inputs(model, few, SurveyOptions())
        examples = replace(examples, cast=fit.cast)
        head = options.head
        wanted = head.get(name, "auto") if isinstance(head, Mapping) else head
        yield pretrained_body(model, examples.part(slice(0, 3)), wanted), examples


def _trial(
    name: str, model: nn.Module, probe: Probe, options: TransferOptions, prepare: Prepare | None
) -> Trial:
    """Speed and sizes of one model, from a few examples."""
    with _body_and_examples(name, model, probe, options, prepare) as (body, examples):
        start = examples.part(slice(0, 3))
        shown, footprint = _layers(body, start, options)
        limit = size_in_bytes(options.memory_limit)
        examples, _ = _fitting(examples, probe, shown, footprint, limit)
        began = time.perf_counter()
        few = examples.part(slice(0, min(_TRIED, examples.size)))
        preparing = (time.perf_counter() - began) / len(few)
        with torch.no_grad():
            outputs = start.run(body)
        speed = Speed.measured(body, few, footprint.per_example(footprint.products))
        speed = replace(speed, cube=cube_seconds(outputs.device))
        columns = regression_targets(_answers(probe, outputs.device))[0].shape[1]
        layers = tuple(layer.features for layer in shown)
        return Trial(speed, preparing, layers, outputs.shape[1], columns)


def _model_arrays(
    found: KernelRegressions, curve: LearningCurve, answers: Tensor
) -> dict[str, np.ndarray]:
    """Squared error of every example, and the learning curve."""
    columns, _ = regression_targets(answers[: found.count])
    misses = (columns - found.head_and_body.predictions.cpu().double()).square().sum(1)
    keys = ("labels", "error", "error_interval", "accuracy", "accuracy_interval")
    curves = {f"curve/{key}": np.asarray(getattr(curve, key).cpu()) for key in keys}
    return {"misses": misses.numpy(), **curves}


def _trainable(body: Body) -> list[str]:
    """Parameters below the head that fine-tuning would change."""
    return [
        name
        for name, parameter in body.named_parameters()
        if parameter.requires_grad and not _is_head(name, body.head)
    ]


def _body_kernel(
    body: Body,
    rows: Tensor,
    examples: _Prepared,
    options: TransferOptions,
    notes: list[Reason],
    until: float | None,
) -> Tensor | None:
    """The tangent kernel below the head, between as many examples as the options allow."""
    trained = _trainable(body)
    if not trained:
        notes.append(reason(Note.NOTHING_TRAINABLE))
    if not trained or not options.tangent:
        return None

    def measured(count: int) -> Tensor | None:
        few = examples.first(count)
        limits = {"seed": options.seed, "memory_limit": options.memory_limit}
        return body_kernel(body, rows, few, trained, notes, **limits)

    wanted = min(options.tangent_examples, len(rows))
    if until is None or wanted <= _FEW:
        return measured(wanted)
    count, more, found = 0, _FEW, None
    while more == wanted > count or more >= _GROWTH * count:
        began, count = time.perf_counter(), more
        found = measured(count)
        if found is None:
            return None
        now = time.perf_counter()
        # Time grows no faster than the square of the number of examples. Few examples take longer
        # than that of many predicts, so larger kernels are tried step by step.
        more = min(wanted, int(count * (max(until - now, 0.0) / (now - began)) ** 0.5))
    if count < wanted:
        facts = {"count": count, "wanted": wanted, "seconds": options.seconds}
        notes.append(reason(Note.FEWER_FOR_SECONDS, **facts))
    return found


@contextmanager
def _moved(model: nn.Module, device: torch.device | str | None) -> Iterator[None]:
    """Move the model to a device inside the block, and back after it."""
    home = model_device(model)
    if device is None:
        yield
        return
    try:
        model.to(device)
        yield
    finally:
        model.to(home)


def _fitting(
    examples: _Prepared,
    probe: Probe,
    shown: Sequence[Layer],
    footprint: Footprint,
    limit: int | None,
) -> tuple[_Prepared, int | None]:
    """Examples in batches that fit into the memory limit, and the bytes left for tangent kernels.

    Raises:
        MemoryLimitError: If features of all examples, with a pass of one or with the kernels
            between all examples, do not fit.
    """
    if limit is None:
        return examples, None
    count = len(examples.batch)
    kept = sum(tensor.nbytes for tensor in tensors_in(probe.batch.args))
    kept += 4 * count * sum(layer.features for layer in shown)
    single = LIVE * footprint.per_example(footprint.largest)
    kernels = _KERNELS * 8 * count**2
    free = int(USED * limit) - kept
    if free < max(single, kernels):
        raise MemoryLimitError(
            f"memory_limit: expected at least {size_text((kept + max(single, kernels)) / USED)} "
            f"({size_text(kept)} for {count} examples and their features, {size_text(single)} for "
            f"a pass of one, {size_text(kernels)} for kernels), got {size_text(limit)}; pass fewer "
            "examples= or layers="
        )
    return replace(examples, size=max(1, min(examples.size, free // max(1, single)))), free


def _layers(body: Body, few: Batch, options: TransferOptions) -> tuple[list[Layer], Footprint]:
    """The layers below the head, none if the model is only a head; and the work of a pass."""
    below = [name for name, _ in body.named_parameters() if not _is_head(name, body.head)]
    if not below and options.layers is None:
        return [], Footprint()
    names = None
    if options.layers is not None and options.layers != "*":
        names = [f"model.{name}".rstrip(".") for name in select_layers(body.model, options.layers)]
    layout = survey_layers(body, few, names, pool=options.pool)
    shown = [layer for layer in layout.with_features() if not _is_head(layer.name, body.head)]
    return shown, layout.footprint


def _features(
    body: Body, examples: _Prepared, shown: Sequence[Layer], pool: str
) -> tuple[Mapping[str, Tensor], Tensor]:
    """The features of every layer and the inputs of the head, in one pass."""
    if not shown:
        with torch.no_grad():
            return {}, torch.cat([batch.run(body) for batch in examples])
    names = [layer.name for layer in shown]
    found = features(
        body, examples, names, pool, batch_size=None, outputs=lambda returned, _batch: returned
    )
    assert found.outputs is not None
    return found, found.outputs


def _is_head(layer: str, head: str | None) -> bool:
    whole = f"model.{head}" if head else "model"
    return head is not None and (layer == whole or layer.startswith(f"{whole}."))


def _answers(probe: Probe, device: torch.device) -> Tensor:
    """Class labels, or the target columns of a regression."""
    labels, columns = probe.targets.labels, probe.targets.columns
    assert columns is not None
    return columns.to(device) if labels is None else labels.to(device)


def _are_equal(rows: Tensor, others: Tensor) -> bool:
    if rows.shape != others.shape:
        return False
    return torch.allclose(rows.double(), others.double(), rtol=100 * torch.finfo(others.dtype).eps)


def _probe(rows: Tensor, answers: Tensor) -> dict[str, Any]:
    """The linear probe of features, and their label alignment."""
    count = min(len(rows), PROBED)
    own = representation.leave_one_out_probe(rows[:count], answers[:count])
    area = representation.alignment_area(rows[:count], answers[:count])
    return {
        "width": int(rows.shape[1]),
        "n": count,
        **_numbers(own),
        "alignment_area": float(area),
    }


def _numbers(found: LeaveOneOut) -> dict[str, float]:
    return {
        "error": float(found.error),
        "error_low": float(found.error_interval[0]),
        "error_high": float(found.error_interval[1]),
        "accuracy": float(found.accuracy),
        "accuracy_low": float(found.accuracy_interval[0]),
        "accuracy_high": float(found.accuracy_interval[1]),
    }


def _joined(
    sources: Mapping[str, Source],
    kept: Mapping[str, Record],
    failures: Sequence[Failure],
    probe: Probe,
    options: TransferOptions,
    notes: list[Reason],
) -> Record:
    """Join the records of all models, best first, failed ones last."""
    candidates = [
        Candidate(
            name,
            record.contents["error"],
            record.contents["features_beside"]["error"],
            record.contents["forecast"]["value"],
            record.contents["parameters"],
            record.arrays["misses"],
            incomplete=record.contents["tangent_missing"],
            frozen=record.contents["frozen"],
        )
        for name, record in ((name, kept[name]) for name in sources if name in kept)
    ]
    order = [entry.name for entry in ranked(candidates)]
    arrays = {
        f"{index}/{key}": array
        for index, name in enumerate(order)
        for key, array in kept[name].arrays.items()
    }
    labels = probe.targets.labels
    counts = None if labels is None else torch.bincount(labels)
    notes = [*notes, *choosing_notes(candidates, points=labels is not None)]
    contents = {
        "kind": "transfer",
        "name": options.name,
        "config": options.describe(),
        "data": {
            "n": probe.given,
            "probe": len(probe),
            "probe_hash": probe.digest,
            "task": probe.targets.task.value,
            "num_classes": None if counts is None else int(counts.count_nonzero()),
            "chance": None if counts is None else float(counts.max() / len(probe)),
            "smallest_class": None if counts is None else int(counts[counts > 0].min()),
        },
        "models": [dict(kept[name].contents) for name in order],
        "ties": tied(candidates),
        "problems": {failure.job[0]: failure.reason for failure in failures},
        "problem_notes": {f.job[0]: error_kind(f.kind).value for f in failures},
        "notes": [note.to_entry() for note in notes],
        "versions": versions(),
    }
    contents["answers"] = [a.to_entry() for a in transfer_answers(contents, arrays)]
    return Record(contents, arrays)
