"""One moment of a model: run the families that apply, and put the record together."""

import platform
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from theodolite._version import __version__
from theodolite.engine.layers import unwrap
from theodolite.engine.state import untouched
from theodolite.errors import CaptureError, DomainError, MemoryLimitError, NotFiniteError
from theodolite.records import Record
from theodolite.surveys._bench import Bench
from theodolite.surveys._costs import predicted_costs
from theodolite.surveys._covariance import matrix_layers, measure_covariance
from theodolite.surveys._draws import Draws
from theodolite.surveys._gradient import measure_features, measure_gradient, measure_loss
from theodolite.surveys._kernel import measure_kernel
from theodolite.surveys._layers import Layout, survey_layers
from theodolite.surveys._memory import fit_settings, freed
from theodolite.surveys._probe import Probe
from theodolite.surveys._progress import Progress, watched
from theodolite.surveys._replicas import alike
from theodolite.surveys._representation import measure_representation
from theodolite.surveys._settings import FEATURE_READERS, Labeling, Settings
from theodolite.surveys._sheet import Sheet
from theodolite.surveys._tangent import measure_tangent

__all__ = ["measure_model", "versions"]

_LAYOUTS: WeakKeyDictionary[nn.Module, tuple[Any, Layout]] = WeakKeyDictionary()

_FAMILIES: dict[str, Callable[[Bench, Sheet], None]] = {
    "representation": measure_representation,
    "covariance": measure_covariance,
    "kernel": measure_kernel,
    "tangent": measure_tangent,
    "gradient": measure_gradient,
}


def measure_model(
    model: nn.Module,
    data: Any,
    probe: Probe,
    settings: Settings,
    labeling: Labeling,
    *,
    step: int | None = None,
    progress: Progress = False,
) -> Record:
    """The record of one moment; the model is left as it was found.

    Raises:
        DomainError: If labels exceed the outputs, or no family applies.
    """
    inner = unwrap(model)
    processes = settings.processes
    sheet = Sheet(settings.curves, processes)
    with processes.together(), untouched(inner), alike(inner, processes), sheet.timed("total"):
        inner.eval()
        layout = _layout(inner, probe, settings)
        fitted = fit_settings(settings, inner, layout, probe)
        settings = fitted.settings
        draws = Draws.of(len(probe), settings.nulls, settings.bootstrap, settings.seeded(1))
        shown = progress if processes.rank == 0 else False
        costs = predicted_costs(inner, layout, probe, settings) if shown else {}
        with watched(shown, costs) as steps:
            bench = Bench(inner, data, probe, layout, settings, draws, steps)
            _run(bench, sheet)
        for family, note in fitted.notes.items():
            sheet.warn(None, (family, "examples"), note)
    sheet.complete()
    if not settings.resting and not settings.diverging:  # the first step of a monitor had some
        _require_rows(sheet)
    return _record(bench, sheet, labeling, step)


def _layout(model: nn.Module, probe: Probe, settings: Settings) -> Layout:
    """The layers; remembered for later steps of a monitor, which check nothing a second time."""
    names = tuple(name for name, _ in model.named_modules())
    choices = (settings.layers, settings.readout, settings.most_layers)
    key = (probe.digest, names, choices)
    known = _LAYOUTS.get(model)
    if known is None or settings.check or known[0] != key:
        known = key, survey_layers(model, probe.batch, *choices)
        _LAYOUTS[model] = known
    return known[1]


def _run(bench: Bench, sheet: Sheet) -> None:
    families = bench.settings.families
    awake = {*families} - {*bench.settings.resting} | {"gradient"} & {*families}
    if awake & set(FEATURE_READERS):
        with bench.step(sheet, "features"):
            _ = bench.held
            freed(bench.settings)
    for family in families:
        sheet.section()
        why = _why_not(bench, family)
        if why is None:
            why = _tried(_FAMILIES[family], bench, sheet)
        freed(bench.settings)
        if why is not None:
            sheet.skipped[family] = why
        if family == "gradient":
            sheet.section()
            _measure_always(bench, sheet)


def _measure_always(bench: Bench, sheet: Sheet) -> None:
    """What is cheap of the gradient family, also where it rests or the engine fails: the loss."""
    if _inapplicable(bench, "gradient") is None:
        with bench.settings.processes.together():
            measure_loss(bench, sheet)
    sheet.section()
    measure_features(bench, sheet)


def _require_rows(sheet: Sheet) -> None:
    if not sheet.rows:
        raise DomainError(
            "families: expected at least one that applies to this model and these data, got none: "
            + "; ".join(f"{family}: {why}" for family, why in sheet.skipped.items())
        )


def _tried(measure: Callable[[Bench, Sheet], None], bench: Bench, sheet: Sheet) -> str | None:
    """Run a family; the reason if it cannot be taken.

    The engine cannot follow the model, memory does not suffice, or the training that a monitor
    watches has diverged: it is not the monitor that ends it.
    """
    try:
        with bench.settings.processes.together():
            measure(bench, sheet)
    except (CaptureError, MemoryLimitError) as error:
        return str(error)
    except NotFiniteError as error:
        if not bench.settings.diverging:
            raise
        return str(error)
    return None


def _why_not(bench: Bench, family: str) -> str | None:
    """Why a family is not taken, in a sentence; None if it is."""
    why = bench.settings.resting.get(family) or _inapplicable(bench, family)
    task, outputs = bench.probe.task, bench.layout.outputs
    if why is None and family in ("tangent", "gradient") and task.labels is not None:
        assert outputs is not None  # it would not apply
        task.outputs(outputs)  # labels beyond the outputs are an error, not a reason
    return why


def _inapplicable(bench: Bench, family: str) -> str | None:
    """Why a family does not apply to these data and this model; None if it does."""
    task, layout = bench.probe.task, bench.layout
    if family in ("representation", "tangent") and task.columns is None:
        return f"{task.kind} data: there are no targets to align with"
    if family == "covariance":
        return None if matrix_layers(bench) else "no linear or convolutional layer is called"
    if family == "gradient" and task.kind == "unlabeled":
        return "unlabeled data: gradients need a loss, and a loss needs targets"
    if family == "gradient" and task.kind == "sequence" and bench.settings.loss is None:
        return "targets are sequences: pass loss= with one number per example"
    if family not in ("tangent", "gradient"):
        return None
    if layout.outputs is None:
        return f"the model gives no row of outputs per example: {layout.problem}"
    if not any(layer.parameters for layer in layout.layers):
        return "no layer has trainable parameters"
    return None


def _record(bench: Bench, sheet: Sheet, labeling: Labeling, step: int | None) -> Record:
    contents = {
        "kind": "survey",
        "name": labeling.name,
        "step": step,
        "config": bench.settings.describe(),
        "data": _data(bench, labeling),
        "layers": [layer.describe() for layer in bench.layout.layers],
        "rows": sheet.rows,
        "curves": sheet.curves,
        "skipped": sheet.skipped,
        "warnings": sheet.warnings,
        "routes": sheet.routes,
        "seconds": sheet.seconds,
        "versions": versions(),
    }
    reasons = {
        f"rows/{index}/value": row["reason"]
        for index, row in enumerate(sheet.rows)
        if row["reason"] is not None
    }
    return Record(contents, sheet.arrays, reasons)


def _data(bench: Bench, labeling: Labeling) -> dict[str, Any]:
    probe, task = bench.probe, bench.probe.task
    first = [*probe.batch.args, *probe.batch.kwargs.values()][0]
    names = labeling.classes
    if names is None and task.num_classes is not None:
        names = [str(index) for index in range(task.num_classes)]
    counts = None if task.labels is None else task.labels.bincount(minlength=task.num_classes or 0)
    return {
        "n": probe.given,
        "task": task.kind,
        "num_classes": task.num_classes,
        "classes": None if names is None else [str(name) for name in names],
        "class_counts": None if counts is None else counts.tolist(),
        "split": labeling.split,
        "labels": labeling.labels,
        "probe": len(probe),
        "probe_hash": probe.digest,
        "input_shape": list(first.shape[1:]) if isinstance(first, torch.Tensor) else None,
        "outputs": bench.layout.outputs,
    }


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    return {
        "theodolite": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
