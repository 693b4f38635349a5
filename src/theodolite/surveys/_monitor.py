"""Training loop to History: the five angles while a model trains, without disturbing it."""

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn

from theodolite._distributed import Group, Processes
from theodolite.checks import require_count
from theodolite.engine.batches import Batch
from theodolite.engine.layers import Layers, unwrap
from theodolite.engine.readouts import Readout
from theodolite.engine.state import untouched
from theodolite.errors import DomainError
from theodolite.records import Record, Run, save_run, save_step
from theodolite.surveys._history import History
from theodolite.surveys._measure import measure_model, versions
from theodolite.surveys._probe import draw_probe
from theodolite.surveys._result import Survey
from theodolite.surveys._schedule import Cadence, Every, described, schedule
from theodolite.surveys._settings import FAMILIES, Labeling, Loss, Pool, Settings
from theodolite.surveys._survey import place_of

__all__ = ["MONITOR_SIZES", "Monitor", "undisturbed"]

# Fewer examples than a survey: a measurement should cost no more than a few training steps.
MONITOR_SIZES: Mapping[str, int | None] = {
    "representation": 100,
    "covariance": 100,
    "kernel": 100,
    "tangent": 16,
    "gradient": 50,
    "pairs": 0,
}
_PROBES = 16  # of the tangent sketch; with 4, alignments of a trained CNN were a third too high
_LAST_PROBES = 32
_LAST_NULLS = 20
_MOST_LAYERS = 16  # of deeper models, blocks and the layers outside them


class Monitor:
    """Measures a model on a fixed probe at some steps of its training.

    Training is not disturbed: the weights are bitwise the same as without the monitor. The random
    state is put back after every measurement, the training flag of every module too. A run that
    diverges goes on: what cannot be measured then says why.

    Args:
        model: what is trained; measured in evaluation mode.
        probe: (inputs, targets), a data loader, or anything that a survey takes; drawn once,
            balanced over classes, hashed into the record, kept on the device.
        loss: (outputs, targets) -> one number per example, or a loss of torch.
        every: a number of steps, the steps themselves, a function of the step, or ``"log"`` for
            steps that grow by a quarter.
        cadence: family, or ``"curves"``, -> k: taken at one measurement in k, the first and the
            last among them (curves at 0, 1, 2, 4, ..., 256 times k of them, which keeps records
            small); one number for all. By default 1 for what is named, be it steps or
            families; with all families at a number of steps 8 for representation, tangent and
            gradient (the loss and Omega of features are always taken) and 16 for curves.
        truth: true labels of the probe's examples in the order given, where the probe has others,
            such as the shuffled ones of the training; gives ``cka_truth`` beside ``cka_target``.
        families: which families to measure.
        layers: see :func:`theodolite.survey`.
        readout: see :func:`theodolite.survey`.
        pool: see :func:`theodolite.survey`.
        image_shape: see :func:`theodolite.survey`.
        sizes: family -> largest number of examples; by default 100 for representation,
            covariance and kernel, 50 for gradient, 16 for tangent, no pairs of gradients.
        nulls: permutations of the labels behind every null; 0 for none. The last step has at
            least 20; chance of covariances, which needs no labels, is there at every step.
        tangent: ``"sketch"`` by default; ``"exact"`` adds stable rank and correlation.
        probes: random vectors of the sketch; few make its numbers noisy, often too high (see their
            errors). The last step has at least 32.
        deep_covariance: covariances of all layers instead of the first.
        memory_limit: bytes that buffers may take.
        device: where the probe should lie; None for that of the model.
        batch_size: examples in one pass.
        batch_fn: turns an item of the probe into a batch.
        seed: of probe, permutations and random bases.
        folder: write every step there at once; a killed run leaves what it had measured.
        name: what to call the run in comparisons.
        split: what the probe is, such as "train" or "test".
        labels: what the labels are, such as "true" or "trained-on".
        classes: names of the classes.
        group: processes that measure together, see :func:`theodolite.survey`: each is given a part
            of the probe, or all the same one, and calls :meth:`step` at the same steps.

    Raises:
        DomainError: If a setting is out of range.
        UnknownNameError: If a family, or a part of the cadence, does not exist.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> x, y = torch.randn(20, 2), torch.arange(20) % 2
        >>> with Monitor(model, probe=(x, y), every=5, families="kernel") as monitor:
        ...     for step in range(10):
        ...         _ = monitor.step(step)  # after the update of the weights
        >>> monitor.history.steps
        [0, 5, 9]
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Any,
        loss: Loss | None = None,
        every: Every = 100,
        *,
        cadence: int | Mapping[str, int] | None = None,
        truth: Any = None,
        families: str | Sequence[str] = FAMILIES,
        layers: Layers | None = None,
        readout: str | Readout | None = None,
        pool: Pool | None = None,
        image_shape: tuple[int, ...] | None = None,
        sizes: Mapping[str, int | None] | None = None,
        nulls: int = 0,
        tangent: str = "sketch",
        probes: int = _PROBES,
        deep_covariance: bool = False,
        memory_limit: int | None = None,
        device: torch.device | str | None = None,
        batch_size: int = 256,
        batch_fn: Callable[[Any], Batch] | None = None,
        seed: int = 0,
        folder: str | os.PathLike[str] | None = None,
        name: str = "",
        split: str = "unknown",
        labels: str = "given",
        classes: Sequence[str] | None = None,
        group: Group = "auto",
    ) -> None:
        self.model = model
        self._due = schedule(every)
        self._every = described(every)
        self._labeling = Labeling(name, split, labels, classes)
        self._folder = None if folder is None else Path(folder)
        self._records: list[Record] = []
        self._count = 0  # of measurements that were due
        self._last: int | None = None
        self._processes = Processes.of(group)
        with self._processes.together(), undisturbed(unwrap(model)):
            self._settings = Settings.of(
                families,
                {**MONITOR_SIZES, **dict(sizes or {})},
                layers=layers,
                loss=loss,
                readout=readout,
                pool=pool,
                image_shape=image_shape,
                nulls=nulls,
                tangent=tangent,
                probes=probes,
                deep_covariance=deep_covariance,
                stiffness=False,
                heat_maps=False,
                most_layers=_MOST_LAYERS,
                memory_limit=memory_limit,
                device=device,
                batch_size=batch_size,
                batch_fn=batch_fn,
                seed=seed,
                processes=self._processes,
            )
            self._cadence = Cadence.of(cadence, every, self._settings.families)
            self._settings.require_common(call="Monitor", **self._schedule())
            place = place_of(unwrap(model), device)
            drawn = draw_probe(probe, self._settings, device=place, truth=truth)
            self._probe = replace(drawn, shard=replace(drawn.shard, copies=True))

    def step(self, step: int) -> Survey | None:
        """Call after every training step; measures where one is due.

        Args:
            step: its number, larger than the one before.

        Returns:
            What was measured, or None.

        Raises:
            DomainError: If the steps do not increase.
        """
        require_count(0, step=step)
        due = self._due(step)
        with self._processes.together() if due else nullcontext():
            if self._last is not None and step <= self._last:
                raise DomainError(
                    f"step: expected more than {self._last}, got {step}; steps increase"
                )
            self._last = step
            if not due:
                return None
            families = self._settings.families
            resting = self._cadence.resting(self._count, families)
            if "gradient" not in families and len(resting) == len(families):
                self._count += 1
                return None
            found = self._counted(step, resting)
            return found if found.record.contents["rows"] else None

    def measure(self, step: int) -> Survey:
        """Measure all families now, whatever the schedule says."""
        return self._counted(step, {})

    def _counted(self, step: int, resting: Mapping[str, str]) -> Survey:
        curves = self._cadence.draws_curves(self._count)
        self._count += 1
        return self._measure(step, replace(self._settings, curves=curves, resting=resting))

    @property
    def history(self) -> History:
        """All that has been measured so far."""
        run = Run(self._labeling.name, self._head(), tuple(self._records))
        return History(run, writes=self._processes.rank == 0)

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Measure the last step too, unless the training failed."""
        if kind is None:
            self.close()

    def close(self) -> None:
        """Measure the last step in full: with curves, heat maps, stiffness and nulls."""
        if self._last is None:
            return
        full = replace(
            self._settings,
            stiffness=True,
            heat_maps=True,
            nulls=max(_LAST_NULLS, self._settings.nulls),
            probes=max(_LAST_PROBES, self._settings.probes),
        )
        if self._records and self._records[-1].contents["step"] == self._last:
            self._records.pop()
        self._measure(self._last, full)

    def _measure(self, step: int, settings: Settings) -> Survey:
        if self._records:  # the first measurement has compared the engine with plain autograd
            settings = replace(settings, check=False, diverging=True)
        model = unwrap(self.model)
        with self._processes.together(), undisturbed(model), one_thread_beside_gpu(model):
            settings.require_common(call="Monitor", step=step)
            record = measure_model(
                self.model, self._probe.batch, self._probe, settings, self._labeling, step=step
            )
            if record.contents["rows"]:  # none where all that is not at rest does not apply
                self._keep(record)
        return Survey(record, writes=self._processes.rank == 0)

    def _keep(self, record: Record) -> None:
        self._records.append(record)
        if self._folder is not None and self._processes.rank == 0:
            if len(self._records) == 1:
                save_run(Run(self._labeling.name, self._head(), ()), self._folder)
            save_step(record, self._folder)

    def _schedule(self) -> dict[str, Any]:
        return {"every": self._every, "cadence": self._cadence.describe()}

    def _head(self) -> Record:
        config = self._settings.describe() | self._schedule()
        head: dict[str, Any] = {"kind": "history", "name": self._labeling.name, "config": config}
        if self._records:
            first = self._records[0].contents
            head |= {key: first[key] for key in ("data", "layers")}
        else:
            head |= {"data": {"probe_hash": self._probe.digest}, "layers": []}
        return Record(head | {"versions": versions()})


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Random state of torch, NumPy and Python, training flags and gradients are put back."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the user's state)
    try:
        with untouched(model):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def one_thread_beside_gpu(model: nn.Module) -> Iterator[None]:
    """For a model on a GPU: what is left to the CPU is small, and done by one thread.

    Several threads wait for each other, now and then for 100 ms: half of all the time that a
    monitor takes.
    """
    threads = torch.get_num_threads()
    if threads == 1 or not any(parameter.is_cuda for parameter in model.parameters()):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
