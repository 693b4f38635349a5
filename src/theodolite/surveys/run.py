"""The main job: a model and data in, a survey out.

One measurement has four parts: find the layers, plan, collect the features, ask every family. A
family that cannot be measured says why, and the others go on.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from theodolite._distributed import Processes, alike
from theodolite._version import __version__
from theodolite.advice import answers_of
from theodolite.advice.reasons import Reason, failure, not_measured, reason
from theodolite.advice.summary import measured_text
from theodolite.checks import size_in_bytes
from theodolite.engine import (
    Batch,
    Layers,
    Loss,
    Pool,
    Readout,
    limited_memory,
    only_trainable,
    require_device,
    require_model,
    untouched,
    unwrap,
)
from theodolite.errors import (
    DomainError,
    NotFiniteError,
    ProcessError,
    RangeError,
)
from theodolite.records import Note, Record
from theodolite.surveys.context import Draws, EarlierResults, SurveyContext
from theodolite.surveys.covariance import without_matrices
from theodolite.surveys.families import PARTS, Part
from theodolite.surveys.fit import measure_loss, require_example_loss
from theodolite.surveys.layers import Layer, Layout, survey_layers
from theodolite.surveys.options import SECONDS, SurveyOptions, group_of
from theodolite.surveys.plan import SurveyPlan
from theodolite.surveys.probe import Probe, draw_fitting, require_order, reusable
from theodolite.surveys.progress import ProgressBar, shown_progress
from theodolite.surveys.record import RecordBuilder
from theodolite.surveys.results import Survey
from theodolite.surveys.schedule import Schedule
from theodolite.surveys.targets import Task


def survey(
    model: nn.Module,
    data: Any,
    targets: Any = None,
    *,
    held_out: Any = None,
    truth: Any = None,
    groups: Any = None,
    families: str | Sequence[str] | None = None,
    layers: Layers | None = None,
    pool: Pool | None = None,
    loss: Loss | None = None,
    readout: str | Readout | None = None,
    seconds: float | int | None = SECONDS,
    examples: int | None = None,
    batch_fn: Callable[[Any], Batch] | None = None,
    progress: ProgressBar = "auto",
    options: SurveyOptions | Mapping[str, Any] | None = None,
    **others: Any,
) -> Survey:
    """Measure how a model aligns with its labels and its inputs, layer by layer.

    The survey measures all five families on a probe set that is balanced over classes. It has a
    limit of 30 seconds (``seconds=``): it measures its speed, then each family uses as many
    examples as the time allows. The model is measured in evaluation mode. Its training flags,
    gradients and random-number state are left unchanged. A family that does not apply to the data
    (regression, several labels, no labels) or that fails says why. Ctrl-C returns the families that
    are done.

    Under ``torch.distributed`` every process calls ``survey`` with the same model and options and
    with its own part of the data, which may be empty. Parts are joined in the order of the ranks.
    Data that are the same in every process count once. All processes get the numbers that one
    process with all the data would get. Only the first process writes files. If one process fails,
    all raise.

    Args:
        model: any module.
        data: a data loader, a pair (inputs, targets), inputs alone, a mapping, a data set of torch
            or Hugging Face, or an iterable of batches or examples. For a model with several inputs
            pass ((first, second), targets) or a mapping from argument names.
        targets: targets of the examples, if ``data`` does not contain them.
        held_out: examples that the model was not trained on, in any form that ``data`` takes. With
            them the survey says whether the model learned or memorised.
        truth: true labels of the examples in the order of the data, if the targets are other
            labels, such as random ones. Adds ``cka_truth`` to ``cka_target``.
        groups: a number or a name for each example in the order of the data, such as its document
            or domain. Gradients are compared within groups.
        families: which families to measure, as in :class:`SurveyOptions`; all by default.
        layers: which layers to show, as in :class:`SurveyOptions`.
        pool: how the output of a layer becomes one vector per example. By default maps are averaged
            over a 4 x 4 grid, and tokens over all that are not padding.
        loss: (outputs, targets) -> one number per example, or a loss of torch.
        readout: (model output, batch) -> (n, c), or ``"last"``, ``"mean"``, ``"cls"``.
        seconds: the time limit; the result says which families used fewer examples. None uses all
            examples of ``sizes``.
        examples: the number of examples to read from the start of the data. Streams may be endless.
        batch_fn: turns an item of the data into a :class:`theodolite.engine.Batch`, for data in
            another form.
        progress: ``"auto"`` shows a bar on a terminal, and lines elsewhere if the survey takes
            longer than ten seconds. True prints lines from the start, False prints nothing. Or
            pass a function of (fraction done, description).
        options: a :class:`SurveyOptions`, or a mapping of the fields that differ from its
            defaults. The keywords above take precedence.
        **others: any other field of :class:`SurveyOptions` by its name, such as ``sizes=``,
            ``permutations=``, ``params=``, ``seed=`` or ``name=``.

    Returns:
        The answers, the table of numbers and the curves of every layer.

    Raises:
        DomainError: If a label or an option is out of range, or if no family applies.
        ShapeError: If there is no example, or inputs, targets and truth differ in number.
        UnknownNameError: If a layer, a family or an option does not exist.
        ProcessError: If another process failed, with its message.

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> x, y = torch.randn(40, 3), torch.arange(40) % 2
        >>> found = survey(model, (x, y), families=["representation", "kernel"])
        >>> found.layers, found.record.contents["data"]["class_counts"]
        (['0', '2'], [20, 20])
    """
    begun = perf_counter()
    processes = Processes.of(others.get("group", group_of(options)))
    with processes.together():
        chosen = SurveyOptions.of(
            options,
            families=families,
            layers=layers,
            pool=pool,
            loss=loss,
            readout=readout,
            examples=examples,
            batch_fn=batch_fn,
            **others,
        )
        if seconds != SECONDS:
            chosen = replace(chosen, seconds=seconds)
        chosen.require_common(processes, call="survey")
        require_model(model)
        require_device(chosen.device, model)
        inner = unwrap(model)
        with limited_memory(size_in_bytes(chosen.memory_limit)), untouched(inner):
            require_order(data, truth)
            everything = reusable(data, chosen, targets, empty=not processes.alone)
            probe, judges, fit = draw_fitting(
                inner,
                everything,
                chosen,
                processes,
                held_out=held_out,
                targets=targets if chosen.examples is None else None,
                truth=truth,
                groups=groups,
            )
            record = measure_model(
                inner,
                fit.data(everything, chosen.batch_fn),
                probe,
                chosen,
                SurveyPlan(partial=processes.alone),
                held_out=judges,
                processes=processes,
                progress=progress,
                begun=begun,
            )
    return Survey(record, writes=processes.rank == 0)


def measure_model(
    model: nn.Module,
    data: Any,
    probe: Probe,
    options: SurveyOptions,
    plan: SurveyPlan,
    *,
    held_out: Probe | None,
    processes: Processes,
    step: int | None = None,
    progress: ProgressBar = False,
    earlier: EarlierResults | None = None,
    begun: float | None = None,
) -> Record:
    """Measure one moment and return its record; the caller restores the model.

    Args:
        model: the model, unwrapped.
        data: all the given data, for sums over all examples.
        probe: the probe set.
        options: the user's options.
        plan: which parts to measure this time.
        held_out: examples that the model was not trained on.
        processes: the processes that take part.
        step: the training step.
        progress: see :func:`survey`.
        earlier: results that later measurements of the same model reuse.
        begun: start of the time that ``options.seconds`` limits; now by default.

    Raises:
        DomainError: If labels exceed the outputs, or no family applies.
    """
    memory = earlier or EarlierResults()
    begun = perf_counter() if begun is None else begun
    record = RecordBuilder(plan.curves)
    with (
        alike(model, processes),
        record.timed("total"),
        only_trainable(model, options.params),
        shown_progress(progress) if progress and processes.rank == 0 else nullcontext() as show,
    ):
        model.eval()
        layout = _layout(model, probe, options, plan.most_layers, memory)
        plan = plan.fitted(options, layout, probe, processes, held_out)
        context = SurveyContext(
            model=model,
            data=data,
            probe=probe,
            layout=layout,
            options=options,
            plan=plan,
            draws=Draws.of(max(len(probe), probe.row_count), options),
            record=record,
            processes=processes,
            held_out=held_out,
            earlier=memory,
        )
        _require_options(context)
        found, failure = None, None
        if processes.rank == 0:
            try:
                schedule = Schedule.of(context, begun, show)
                measure_families(context, schedule)
                found = finished_record(context, step, schedule.cut())
            except Exception as error:
                failure = error
            context.dismiss()
        else:
            context.serve()
        processes.share_failure(failure)
        kept: Record = processes.spread(found)
        return kept


def _layout(
    model: nn.Module, probe: Probe, options: SurveyOptions, most_layers: int, memory: EarlierResults
) -> Layout:
    """Find the layers. A model that is measured repeatedly is searched once."""
    names = tuple(name for name, _ in model.named_modules())
    positions = probe.positions
    known = memory.layout
    if known is None or known[0] != names:
        found = survey_layers(
            model,
            probe.batch,
            options.layers,
            readout=options.readout if positions is None else positions.task.tangent_readout,
            read=options.read,
            pool=options.reduction,
            most=most_layers,
        )
        if positions is not None and probe.by_position:
            found = found.at_positions(model, positions.task.pool, positions.task.outside)
        memory.layout = known = names, found
    return known[1]


def measure_families(context: SurveyContext, schedule: Schedule) -> None:
    """Collect features once, then measure every part; a part that fails leaves a reason.

    The loss comes last. Its row belongs to the gradient family, where reports look for it.
    """
    record = context.record
    try:
        _measure_parts(context, schedule)
    except KeyboardInterrupt:
        if not context.plan.partial or not record.rows:
            raise
        done = {row["family"] for row in record.rows}
        for family in context.options.families:
            if family not in done:
                record.skipped[family] = reason(Note.INTERRUPTED)
    order = {family: place for place, family in enumerate(context.options.families)}
    record.rows.sort(key=lambda row: order.get(row["family"], len(order)))
    record.curves.sort(key=lambda curve: order.get(curve["family"], len(order)))


def _measure_parts(context: SurveyContext, schedule: Schedule) -> None:
    families, record = context.options.families, context.record
    reasons = {family: _inapplicable(context, family) for family in families}
    reasons |= {family: why for family, why in context.plan.not_due.items() if family in families}
    parts = [part for part in PARTS if part.family in families]
    due = [part for part in parts if part.always or reasons[part.family] is None]
    unread = None
    readers = [part for part in due if part.reads_features]
    if readers:
        schedule.plan_features(readers)
        start = perf_counter()
        with context.step("features"):
            unread = _tried(context, context.collect_features)
        schedule.learn_pass(perf_counter() - start)
    for part in parts:
        if part.family not in record.skipped:
            why = None if part.always else reasons[part.family]
            if part.reads_features:
                why = why or unread
            if part in readers:
                schedule.plan_rows(readers[readers.index(part) :])
            _measure_part(context, schedule, part, why)
        if part is parts[-1] or not any(p.reads_features for p in parts[parts.index(part) + 1 :]):
            context.collected.clear()  # the families that follow read no features
    if "gradient" in families or record.rows:
        _measure_loss(context)


def _measure_part(
    context: SurveyContext, schedule: Schedule, part: Part, why: Reason | None
) -> None:
    family, record, known = part.family, context.record, len(context.record.rows)
    why = why or schedule.plan_part(part) or _measured_part(context, schedule, part)
    row = part.row
    if context.given is not None and family == "gradient":  # survey_features: headline only
        row = row or "omega_contrast"
    if why is not None and row:
        record.not_measured(family, row, why)
    elif why is not None:
        record.skipped[family] = why
    _report(context, part, record.rows[known:], why)


def _measured_part(context: SurveyContext, schedule: Schedule, part: Part) -> Reason | None:
    """Measure a part. If it may take longer than expected, first try it on few examples."""
    if schedule.wants_trial(part):
        planned, trial = context.plan, RecordBuilder(context.plan.curves)
        context.plan = planned.with_sizes(**{part.family: part.fewest})
        start = perf_counter()
        why = _tried(context, partial(part.measure, context, trial))
        if why is not None:
            return why
        schedule.learn(part, perf_counter() - start)
        context.plan = planned
        if schedule.keeps_trial(part):
            schedule.limit(part.family, part.fewest)
            context.record.absorb(trial)
            return None
    start = perf_counter()
    why = _tried(context, partial(part.measure, context, context.record))
    if why is None:
        schedule.learn(part, perf_counter() - start)
    return why


def _report(
    context: SurveyContext, part: Part, rows: Sequence[Mapping[str, Any]], why: Reason | None
) -> None:
    """Report the headline number of a part, from the smallest to the largest."""
    if context.progress is None:
        return
    if why is not None:
        context.progress.skip(part.stage)
        context.progress.result(f"{part.family}: {not_measured(why)}")
        return
    if not part.stage or part.stage != part.family:
        return
    text = measured_text(part.family, rows)
    if text is not None:
        context.progress.result(text)


def _measure_loss(context: SurveyContext) -> None:
    """Measure the loss, for all choices of families. A failing default loss is ignored here."""
    if _without_loss(context) is not None:
        return
    why = _tried(context, partial(measure_loss, context, context.record))
    wanted = "gradient" in context.options.families or context.options.loss is not None
    if why is not None and wanted:
        context.record.not_measured("gradient", "loss", why)


def _without_loss(context: SurveyContext) -> Reason | None:
    """Say why these data and this model have no loss; None if they have one."""
    asked, layout = context.probe.targets.task, context.layout
    if context.given is not None:
        return layout.problem
    if asked is Task.UNLABELED and context.task is None:
        return reason(Note.NO_LOSS)
    if asked is Task.SEQUENCES and context.options.loss is None:
        return _without_places(layout) or reason(Note.SEQUENCE_TARGETS)
    if layout.outputs is None:
        return reason(Note.NO_OUTPUT_ROWS, problem=layout.problem)
    return None


def _without_places(layout: Layout) -> Reason | None:
    """Say why labels per position do not fit the outputs; None if they fit."""
    if layout.outputs is not None or layout.problem is None:
        return None
    return reason(Note.NO_OUTPUT_POSITIONS, problem=layout.problem)


def _tried(context: SurveyContext, measure: Callable[[], None]) -> Reason | None:
    """Measure one part; return the reason if it fails.

    Reasons are: the engine cannot follow the model, memory is too small, an unexpected error, or
    non-finite values of a training that diverged. None of them ends the measurement.
    """
    try:
        measure()
    except Exception as error:  # whatever it is, the other families go on
        of_inputs = isinstance(error, NotFiniteError) and not isinstance(error, RangeError)
        if of_inputs and not context.plan.diverging:
            raise
        if isinstance(error, ProcessError) and not error.unexpected:
            raise
        return failure(error)
    return None


def _inapplicable(context: SurveyContext, family: str) -> Reason | None:
    """Say why a family does not apply to these data and this model; None if it applies."""
    targets, layout, task = context.probe.targets, context.layout, context.task
    if context.given is not None and family in ("covariance", "tangent"):
        return layout.problem
    if family in ("representation", "tangent") and context.probe.rows.columns is None:
        if task is not None:
            return reason(Note.NO_EXAMPLE_LABELS)
        why = _without_places(layout) if targets.task is Task.SEQUENCES else None
        return why or reason(Note.NO_TARGETS, task=targets.task)
    if family == "covariance":
        return without_matrices(context)
    if family not in ("tangent", "gradient"):
        return None
    if family == "gradient" and (why := _without_loss(context)) is not None:
        return why
    if layout.outputs is None:
        return reason(Note.NO_OUTPUT_ROWS, problem=layout.problem)
    if not layout.with_parameters():
        return reason(Note.NO_PARAMETERS)
    return None


def _require_options(context: SurveyContext) -> None:
    """Check that the user's arguments fit the model. Later failures are reasons, not errors.

    Raises:
        DomainError: If labels exceed the outputs, or targets and outputs differ in number.
        ShapeError: If the loss does not give one number per example.
    """
    names, k = context.options.classes, context.probe.rows.num_classes
    if context.task is None and names is not None and k is not None and len(names) < k:
        raise DomainError(
            f"classes: expected a name for each of {k} classes, got {len(names)}; leave classes= "
            "out to number them"
        )
    layout, targets = context.layout, context.probe.rows
    wants = {family for family in context.options.families if not _inapplicable(context, family)}
    if context.task is None and (
        "tangent" in wants or ("gradient" in wants and targets.labels is not None)
    ):
        assert layout.outputs is not None  # they would not apply
        targets.require_outputs(layout.outputs)
    if "gradient" in wants or context.options.loss is not None:
        require_example_loss(context)


def finished_record(context: SurveyContext, step: int | None, cut: Reason | None = None) -> Record:
    """Make the record from the rows and curves of all families.

    Raises:
        DomainError: If no family applies.
    """
    options, plan, processes = context.options, context.plan, context.processes
    record = context.record
    for family, note in plan.notes.items():
        record.warn(None, family, "examples", note)
    for part, note in context.probe.notes.items():
        record.warn(None, options.families[0], part, note)
    first = not plan.not_due and not plan.diverging
    if first and not record.rows:  # later steps of a monitor record the reason instead
        raise DomainError(
            "families: expected at least one that applies to this model and these data, got none: "
            + "; ".join(f"{family}: {why}" for family, why in record.skipped.items())
        )
    config = options.describe() | {
        "batch_size": plan.batch_size,
        "sizes": dict(plan.sizes),
        "most_layers": plan.most_layers,
    }
    together = {} if processes.alone else {"processes": processes.size}
    contents = {
        "kind": "survey",
        "name": options.name,
        "step": step,
        "config": together | config,
        "data": _data(context),
        "layers": [layer.describe() for layer in _shown_layers(context)],
        "rows": record.rows,
        "answers": [],
        "cut": None if cut is None else cut.to_entry(),
        "probes": record.probes,
        "example_losses": record.example_losses,
        "curves": record.curves,
        "skipped": {family: str(why) for family, why in record.skipped.items()},
        "skipped_notes": {family: why.note.value for family, why in record.skipped.items()},
        "warnings": record.warnings,
        "routes": record.routes,
        "seconds": record.seconds,
        "versions": versions(),
    }
    reasons = {
        f"rows/{index}/value": row["reason"]
        for index, row in enumerate(record.rows)
        if row["reason"] is not None
    }
    contents["answers"] = answers_of(contents, record.arrays)
    return Record(contents, record.arrays, reasons)


def _shown_layers(context: SurveyContext) -> list[Layer]:
    """Return the layers, preceded by the raw inputs if these have a row."""
    raw, layers = context.layout.raw_input, context.layout.layers
    first = any(row["layer"] == raw.name for row in context.record.rows)
    return [raw, *layers] if first else list(layers)


def _data(context: SurveyContext) -> dict[str, Any]:
    probe, targets, options = context.probe, context.probe.rows, context.options
    task = context.task
    first = [*probe.batch.args, *probe.batch.kwargs.values()][0]
    known = isinstance(first, torch.Tensor)
    names, k = options.classes, targets.num_classes
    if task is not None and task.unit == "sequence":
        names = probe.group_names or None
    elif task is not None and task.classes is not None and not _are_names(names, k):
        names = task.classes
    if names is None and k is not None:
        names = [str(index) for index in range(k)]
    counts = None if targets.labels is None else targets.labels.bincount(minlength=k or 0)
    return {
        "n": probe.given,
        "task": targets.task.value if task is None else task.name,
        "num_classes": k,
        "classes": None if names is None else [str(name) for name in names],
        "class_counts": None if counts is None else counts.tolist(),
        "split": options.split,
        "label_source": options.label_source,
        "probe": len(probe),
        "probe_hash": probe.digest,
        "held_out": None if context.held_out is None else len(context.held_out),
        "input_shape": list(first.shape[1:]) if known and context.given is None else None,
        "outputs": context.layout.outputs,
        **({"repeated": probe.repeated} if probe.repeated else {}),
        **({"left_out": dict(probe.left_out)} if probe.left_out else {}),
        **_groups(probe),
        **({} if task is None else {"unit": task.unit, "rows": probe.row_count}),
    }


def _are_names(names: Sequence[Any] | None, count: int | None) -> bool:
    return names is not None and len(names) == count and all(isinstance(n, str) for n in names)


def _groups(probe: Probe) -> dict[str, Any]:
    """Names and sizes of the groups in the probe set, if there are groups."""
    if probe.groups is None or probe.groups.labels is None:
        return {}
    counts = probe.groups.labels.bincount(minlength=len(probe.group_names))
    return {"groups": list(probe.group_names), "group_counts": counts.tolist()}


def versions() -> dict[str, str]:
    """Versions of the software that made the numbers.

    Returns:
        Name of the software -> its version.
    """
    return {
        "theodolite": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
