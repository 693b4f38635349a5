"""The main job: a model and data in, a survey out.

One measurement has four parts: find the layers, plan, collect the features, ask every family. A
family that cannot be measured says why, and the others go on.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from theodolite._distributed import Processes, alike
from theodolite._version import __version__
from theodolite.engine import (
    Layers,
    Loss,
    Parameters,
    Read,
    Readout,
    only_trainable,
    require_device,
    require_model,
    untouched,
    unwrap,
)
from theodolite.errors import (
    CaptureError,
    DomainError,
    NotFiniteError,
    ProcessError,
    TheodoliteError,
)
from theodolite.records import Record
from theodolite.surveys.answers import answers_of
from theodolite.surveys.context import Draws, Remembered, SurveyContext
from theodolite.surveys.covariance import (
    covariance_cost,
    measure_covariance,
    require_image_shape,
    without_matrices,
)
from theodolite.surveys.fit import measure_fit, measure_loss, require_example_loss
from theodolite.surveys.gradient import (
    gradient_cost,
    measure_feature_contrast,
    measure_gradient,
)
from theodolite.surveys.kernel import kernel_cost, measure_kernel
from theodolite.surveys.layers import Layout, survey_layers
from theodolite.surveys.options import (
    FEATURE_READERS,
    SurveyOptions,
    group_of,
)
from theodolite.surveys.plan import SurveyPlan, trim_memory
from theodolite.surveys.probe import Probe, draw_fitting, require_order, reusable
from theodolite.surveys.progress import (
    Progress,
    ProgressBar,
    StageCost,
    WorkCounts,
    shown_progress,
)
from theodolite.surveys.record import RecordBuilder
from theodolite.surveys.representation import measure_representation, representation_cost
from theodolite.surveys.results import Survey
from theodolite.surveys.tangent import measure_tangent, tangent_cost, too_long

__all__ = ["finished_record", "measure_families", "measure_model", "survey", "versions"]

Measure = Callable[[SurveyContext, RecordBuilder], None]


@dataclass(frozen=True)
class _Part:
    """A part of a family; where one fails, the others go on.

    Args:
        family: that its rows belong to.
        measure: writes them down.
        cost: of the family, for the progress bar.
        reads_features: whether it needs the pass that collects them.
        row: whose absence is explained where the part fails; by default the whole family's is.
        always: taken also where the family is not due or does not apply.
    """

    family: str
    measure: Measure
    cost: Callable[[WorkCounts], StageCost] | None = None
    reads_features: bool = False
    row: str = ""
    always: bool = False


_PARTS = (
    _Part("representation", measure_representation, representation_cost, reads_features=True),
    _Part("representation", measure_fit, row="accuracy"),
    _Part("covariance", measure_covariance, covariance_cost),
    _Part("kernel", measure_kernel, kernel_cost, reads_features=True),
    _Part("tangent", measure_tangent, tangent_cost),
    # The headline needs features and no gradients: it is cheap.
    _Part(
        "gradient",
        measure_feature_contrast,
        reads_features=True,
        row="feature_omega_contrast",
        always=True,
    ),
    _Part("gradient", measure_gradient, gradient_cost),
)


def stage_costs(work: WorkCounts) -> dict[str, StageCost]:
    """What the pass over the features and the families cost, in their order."""
    families = work.options.families
    read = max((work.count(f) for f in FEATURE_READERS if f in families), default=0)
    costs: dict[str, StageCost] = {"features": ([read * work.single], 0.0)} if read else {}
    for part in _PARTS:
        if part.cost is not None and part.family in families:
            costs[part.family] = part.cost(work)
    return costs


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
    read: Read | None = None,
    loss: Loss | None = None,
    readout: str | Readout | None = None,
    examples: int | None = None,
    sizes: Mapping[str, int | None] | None = None,
    permutations: int | None = None,
    unit: str | None = None,
    classes: Sequence[str] | Sequence[int] | None = None,
    params: Parameters = None,
    device: torch.device | str | None = None,
    seed: int | None = None,
    name: str | None = None,
    progress: ProgressBar = False,
    options: SurveyOptions | Mapping[str, Any] | None = None,
) -> Survey:
    """Measure the alignment of a model with its task, its data and itself, layer by layer.

    All five families in one go, on a probe that is balanced over classes. The model is measured in
    evaluation mode and left as it was found: training flags, gradients, random state. Families
    that do not apply to the data (regression, several labels, no labels), or that fail, say why.

    Under ``torch.distributed`` every process calls this with the same model and options and its
    own part of the data, of any size, none included; parts follow each other by rank, and data
    that is the same everywhere counts once. The work is shared, and all processes get the numbers
    that one process with all the data would; only the first writes files. If one fails, all raise.

    Args:
        model: any module.
        data: a data loader, (inputs, targets), inputs, a mapping, a data set of torch or of
            Hugging Face, batches or single examples of these; of a model with several inputs
            ((first, second), targets), or a mapping by their names.
        targets: of the same examples, where the data holds none.
        held_out: examples that the model was not trained on, in any form that ``data`` takes: then
            the survey says what is learned and what is memorised.
        truth: true labels of the same examples in the order of the data, where the targets are
            others, such as shuffled ones; gives ``cka_truth`` beside ``cka_target``.
        groups: a number or a name for each example in the order of the data, such as its document
            or domain: gradients are compared within groups.
        families: which families to measure, as in :class:`SurveyOptions`; all by default.
        layers: which layers to show, as in :class:`SurveyOptions`.
        read: ``"next"`` for what the next layer receives, ``"raw"`` for a layer's own output.
        loss: (outputs, targets) -> one number per example, or a loss of torch.
        readout: (model output, batch) -> (n, c), or ``"last"``, ``"mean"``, ``"cls"``.
        examples: read so many from the start of the data, and nothing beyond; streams may be
            endless.
        sizes: family -> largest number of examples.
        permutations: of the labels, behind every chance level; 0 for none.
        unit: where labels come per position, ``"token"`` or ``"sequence"``, as in
            :class:`SurveyOptions`.
        classes: names of the classes, or, where labels come per position, which labels to look at.
        params: which trainable parameters gradients are taken of, such as ``"*lora*"``.
        device: where the inputs should lie; None for that of the model.
        seed: of the probe, permutations and random bases.
        name: what to call the survey in comparisons.
        progress: True for a bar, or a function of (fraction done, what is being done).
        options: all that can be chosen, as :class:`SurveyOptions` or a mapping of what differs
            from its defaults; the keywords above go before it.

    Raises:
        DomainError: If labels are out of range, an option is, or no family applies.
        ShapeError: If there is no example, or inputs, targets and truth differ in number.
        UnknownNameError: If a layer, a family or an option does not exist.
        ProcessError: If another process failed, with its message.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> x, y = torch.randn(40, 3), torch.arange(40) % 2
        >>> found = survey(model, (x, y), families=["representation", "kernel"])
        >>> found.layers, found.record.contents["data"]["class_counts"]
        (['0', '2'], [20, 20])
    """
    processes = Processes.of(group_of(options))
    with processes.together():
        chosen = SurveyOptions.of(
            options,
            families=families,
            layers=layers,
            read=read,
            loss=loss,
            readout=readout,
            examples=examples,
            sizes=sizes,
            permutations=permutations,
            unit=unit,
            classes=classes,
            params=params,
            device=device,
            seed=seed,
            name=name,
        )
        chosen.require_common(processes, call="survey")
        require_model(model)
        require_device(chosen.device, model)
        inner = unwrap(model)
        with untouched(inner):
            require_order(data, truth)
            everything = reusable(data, chosen, targets, empty=not processes.alone)
            probe, others, fit = draw_fitting(
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
                held_out=others,
                processes=processes,
                progress=progress,
            )
    return Survey(record, writes=processes.rank == 0)


def measure_model(
    model: nn.Module,
    data: Any,
    probe: Probe,
    options: SurveyOptions,
    plan: SurveyPlan | None = None,
    *,
    held_out: Probe | None = None,
    processes: Processes,
    step: int | None = None,
    progress: ProgressBar = False,
    remembered: Remembered | None = None,
) -> Record:
    """The record of one moment; whoever calls it puts the model back as it was found.

    Args:
        model: unwrapped.
        data: all that was given, for sums over everything.
        probe: the examples.
        options: what the user chose.
        plan: what is taken this time, where that is not everything.
        held_out: examples that the model was not trained on.
        processes: those that take part.
        step: of the training.
        progress: see :func:`survey`.
        remembered: what measurements of one model hand on to each other.

    Raises:
        DomainError: If labels exceed the outputs, or no family applies.
    """
    plan, memory = plan or SurveyPlan(), remembered or Remembered()
    record = RecordBuilder(plan.curves, processes)
    with (
        alike(model, processes),
        record.timed("total"),
        only_trainable(model, options.params),
        shown_progress(progress) if progress and processes.rank == 0 else nullcontext() as show,
    ):
        model.eval()
        layout = _layout(model, probe, options, memory)
        plan = plan.fitted(options, layout, probe, processes)
        rows = max(len(probe), probe.row_count)
        draws = Draws.of(rows, options.permutations, options.half_samples, options.seeded(1))
        watched: Progress | None = None
        if show is not None:
            work = WorkCounts(model, layout, probe, options, plan)
            watched = Progress(show, stage_costs(work), len(layout.layers))
        context = SurveyContext(
            model,
            data,
            probe,
            layout,
            options,
            plan,
            draws,
            watched,
            record,
            processes,
            held_out,
            memory,
        )
        measure_families(context, record)
    return finished_record(context, record, step)


def finished_record(context: SurveyContext, record: RecordBuilder, step: int | None) -> Record:
    """The record of what the families have written down.

    Raises:
        DomainError: If no family applies.
    """
    plan = context.plan
    for family, note in plan.notes.items():
        record.warn(None, family, "examples", note)
    for part, note in context.probe.notes.items():
        record.warn(None, context.options.families[0], part, note)
    record.complete()
    first = not plan.not_due and not plan.diverging
    if first and not record.rows:  # at later steps of a monitor a reason is enough
        raise DomainError(
            "families: expected at least one that applies to this model and these data, got none: "
            + "; ".join(f"{family}: {why}" for family, why in record.skipped.items())
        )
    return _record(context, record, step)


def _layout(model: nn.Module, probe: Probe, options: SurveyOptions, memory: Remembered) -> Layout:
    """The layers; of one model that is measured again and again they are found once."""
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
            most=options.most_layers,
        )
        if positions is not None and probe.by_position:
            found = found.at_positions(model, positions.task.pool, positions.task.outside)
        memory.layout = known = names, found
    return known[1]


def measure_families(context: SurveyContext, record: RecordBuilder) -> None:
    """Collect features once, then take every part; what cannot be taken is a reason.

    The loss comes last. Its row is one of the gradient family, where reports look for it.
    """
    families = context.options.families
    reasons = {family: _inapplicable(context, family) for family in families}
    _require_options(context, reasons)
    parts = [part for part in _PARTS if part.family in families]
    unread = _read_features(context, parts)
    for part in parts:
        family = part.family
        if family in record.skipped:
            continue
        record.section()
        why = None if part.always else context.plan.not_due.get(family) or reasons[family]
        if part.reads_features:
            why = why or unread
        if why is None:
            why = _tried(context, partial(part.measure, context, record))
        row = part.row
        if context.given is not None and family == "gradient":  # features alone have its headline
            row = row or "omega_contrast"
        if why is not None and row:
            record.warn(None, family, row, f"not measured: {why}")
        elif why is not None:
            record.skipped[family] = why
        trim_memory(context.options)
    if "gradient" in families or any(context.processes.gather(bool(record.rows))):
        record.section()
        _measure_loss(context, record)


def _read_features(context: SurveyContext, parts: Sequence[_Part]) -> str | None:
    """Collect features, where a part that is due reads them; the reason if there are none."""
    due = [part for part in parts if part.always or part.family not in context.plan.not_due]
    if not any(part.reads_features for part in due):
        return None
    with context.step("features"):
        why = _tried(context, context.collect_features)
    trim_memory(context.options)
    return why


def _measure_loss(context: SurveyContext, record: RecordBuilder) -> None:
    """The loss, whatever the families; a default that does not fit matters to gradients only."""
    if _without_loss(context) is not None:
        return
    why = _tried(context, partial(measure_loss, context, record))
    wanted = "gradient" in context.options.families or context.options.loss is not None
    if why is not None and wanted:
        record.warn(None, "gradient", "loss", f"not measured: {why}")


def _without_loss(context: SurveyContext) -> str | None:
    """Why these data and this model have no loss; None if they have."""
    kind, layout = context.probe.targets.kind, context.layout
    if context.given is not None:
        return layout.problem
    if kind == "unlabeled" and context.task is None:
        return "unlabeled data: gradients need a loss, and a loss needs targets"
    if kind == "sequence" and context.options.loss is None:
        return _without_places(layout) or (
            "targets are sequences: pass loss= with one number per example"
        )
    if layout.outputs is None:
        return f"the model gives no row of outputs per example: {layout.problem}"
    return None


def _without_places(layout: Layout) -> str | None:
    """Why labels per position cannot be held against outputs; None where the model has some."""
    if layout.outputs is not None or layout.problem is None:
        return None
    return f"labels per position need outputs per position: {layout.problem}"


def _tried(context: SurveyContext, measure: Callable[[], None]) -> str | None:
    """Run a part of the measurement, in all processes; the reason if it cannot be taken.

    The engine cannot follow the model, memory does not suffice, something unforeseen happens, or
    the training that a monitor watches has diverged: it is not the measurement that ends it.
    """
    try:
        with context.processes.together():
            try:
                measure()
            except TheodoliteError:
                raise
            except Exception as error:  # whatever it is, the other families go on
                raise CaptureError(f"{type(error).__name__}: {error}") from error
    except NotFiniteError as error:
        if not context.plan.diverging:
            raise
        return str(error)
    except TheodoliteError as error:
        if isinstance(error, ProcessError) and not error.unexpected:
            raise
        return str(error)
    return None


def _inapplicable(context: SurveyContext, family: str) -> str | None:
    """Why a family does not apply to these data and this model; None if it does."""
    targets, layout, task = context.probe.targets, context.layout, context.task
    if context.given is not None and family in ("covariance", "tangent"):
        return layout.problem
    if family in ("representation", "tangent") and context.probe.rows.columns is None:
        if task is not None:
            return "whole examples have no labels of their own: pass groups=, or unit='token'"
        why = _without_places(layout) if targets.kind == "sequence" else None
        return why or f"{targets.kind} data: there are no targets to align with"
    if family == "covariance":
        return without_matrices(context)
    if family not in ("tangent", "gradient"):
        return None
    if family == "gradient" and (why := _without_loss(context)) is not None:
        return why
    if layout.outputs is None:
        return f"the model gives no row of outputs per example: {layout.problem}"
    if not layout.with_parameters():
        return "no layer has trainable parameters"
    return too_long(context) if family == "tangent" else None


def _require_options(context: SurveyContext, reasons: Mapping[str, str | None]) -> None:
    """What the user gave fits the model; what fails from here on is a reason, not an error.

    Raises:
        DomainError: If labels exceed the outputs, or targets and outputs differ in number.
        ShapeError: If the loss does not give one number per example, or an image has other sizes.
    """
    layout, targets = context.layout, context.probe.rows
    wants = {family for family, why in reasons.items() if why is None}
    if context.task is None and (
        "tangent" in wants or ("gradient" in wants and targets.labels is not None)
    ):
        assert layout.outputs is not None  # they would not apply
        targets.require_outputs(layout.outputs)
    if "gradient" in wants or context.options.loss is not None:
        require_example_loss(context)
    if "covariance" in wants:
        require_image_shape(context)


def _record(context: SurveyContext, record: RecordBuilder, step: int | None) -> Record:
    options, plan, processes = context.options, context.plan, context.processes
    config = options.describe() | {"batch_size": plan.batch_size, "sizes": dict(plan.sizes)}
    together = {} if processes.alone else {"processes": processes.size}
    contents = {
        "kind": "survey",
        "name": options.name,
        "step": step,
        "config": together | config,
        "data": _data(context),
        "layers": [layer.describe() for layer in context.layout.layers],
        "rows": record.rows,
        "answers": [],
        "curves": record.curves,
        "skipped": record.skipped,
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
    contents["answers"] = answers_of(contents)
    return Record(contents, record.arrays, reasons)


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
        "task": targets.kind if task is None else task.name,
        "num_classes": k,
        "classes": None if names is None else [str(name) for name in names],
        "class_counts": None if counts is None else counts.tolist(),
        "split": options.split,
        "label_source": options.label_source,
        "probe": len(probe),
        "probe_hash": probe.digest,
        "input_shape": list(first.shape[1:]) if known and context.given is None else None,
        "outputs": context.layout.outputs,
        **_groups(probe),
        **({} if task is None else {"unit": task.unit, "rows": probe.row_count}),
    }


def _are_names(names: Sequence[Any] | None, count: int | None) -> bool:
    return names is not None and len(names) == count and all(isinstance(n, str) for n in names)


def _groups(probe: Probe) -> dict[str, Any]:
    """Names and sizes of the groups of the probe, where there are some."""
    if probe.groups is None or probe.groups.labels is None:
        return {}
    counts = probe.groups.labels.bincount(minlength=len(probe.group_names))
    return {"groups": list(probe.group_names), "group_counts": counts.tolist()}


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    return {
        "theodolite": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
