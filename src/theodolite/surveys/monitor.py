"""Training loop to History: the five angles while a model trains, without disturbing it."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any
from warnings import warn

import torch
from torch import nn

from theodolite._distributed import Processes
from theodolite.advice.reasons import reason
from theodolite.checks import require_count
from theodolite.engine import (
    Layers,
    Loss,
    Parameters,
    Read,
    Readout,
    require_device,
    require_model,
    untouched,
    unwrap,
)
from theodolite.errors import DomainError, UnknownNameError, UnwrittenWarning
from theodolite.records import FAMILIES, HistoryWriter, Note, Record, Run, listed
from theodolite.surveys.context import EarlierResults
from theodolite.surveys.options import SurveyOptions, group_of
from theodolite.surveys.plan import SurveyPlan
from theodolite.surveys.probe import draw_fitting
from theodolite.surveys.results import History, Survey, unused_folder
from theodolite.surveys.run import measure_model, versions

__all__ = ["Budget", "Monitor", "one_thread_beside_gpu"]

_LAST_SKETCH_VECTORS = 32
_MOST_LAYERS = 16  # with more of them, blocks stand for the layers inside them
_LAST_PERMUTATIONS = 20
_LAST_DOUBLING = 2**8  # with the last step in full that makes eleven steps with curves

# What takes most of the time of a measurement: decompositions, backward passes, and curves.
SPARSE: Mapping[str, int] = {"representation": 8, "tangent": 8, "gradient": 8, "curves": 16}
_PARTS = (*FAMILIES, "curves")

Every = int | Collection[int] | Callable[[int], bool] | str


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
        budget: a share of the training's time, such as 0.05: a step that is due is passed over
            until it and the last one fit into it (:class:`Budget`, also for another clock). The
            first measurement and the last come in any case: short runs exceed it
            (:attr:`overhead`).
            ``monitor.budget`` keeps the time: what else belongs to measuring, such as writing a
            page, is counted by ``with monitor.budget.measuring():``.
        held_out: examples that the model is not trained on: each measurement with curves then says
            what is learned and what is memorised. Where labels come per position, each measurement
            has their loss, and how much of what was gained on the probe they share.
        truth: true labels of the probe's examples in the order given, where the probe has others,
            such as the random ones of the training; gives ``cka_truth`` beside ``cka_target``.
        groups: a number or a name for each of the probe's examples, such as its document or
            domain: gradients are compared within groups.
        families: which families to measure.
        layers: which layers to show, as in :class:`SurveyOptions`.
        read: ``"next"`` for what the next layer receives, ``"raw"`` for a layer's own output.
        readout: (model output, batch) -> (n, c), or ``"last"``, ``"mean"``, ``"cls"``.
        sizes: family -> largest number of examples.
        permutations: of the labels, behind every chance level; none by default. The last step has
            at least 20; chance of covariances, which needs no labels, is there at every step.
        unit: where labels come per position, ``"token"`` or ``"sequence"``, as in
            :class:`SurveyOptions`.
        classes: names of the classes, or, where labels come per position, which labels to look at.
        params: which trainable parameters gradients are taken of, such as ``"*lora*"``.
        folder: write every step there at once; a killed run leaves what it had measured. One that
            holds a run is left as it is, and ``folder-2`` written beside it (:attr:`folder`). Where
            the disk is full the training goes on: a warning says so once, every measurement tries
            again, and the end says which steps were not written.
        overwrite: write over what is there.
        name: what to call the run in comparisons.
        options: all that can be chosen, as a mapping of what differs from
            :meth:`SurveyOptions.monitor`, or as an object; the keywords above go before it. Several
            processes (``group``) measure together, as in :func:`theodolite.survey`: each is given a
            part of the probe, or all the same one, and calls :meth:`step` at the same steps.

    Raises:
        DomainError: If an option is out of range.
        UnknownNameError: If a family, an option, or a part of the cadence does not exist.

    Examples:
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
        budget: "float | Budget | None" = None,
        held_out: Any = None,
        truth: Any = None,
        groups: Any = None,
        families: str | Sequence[str] | None = None,
        layers: Layers | None = None,
        read: Read | None = None,
        readout: str | Readout | None = None,
        sizes: Mapping[str, int | None] | None = None,
        permutations: int | None = None,
        unit: str | None = None,
        classes: Sequence[str] | Sequence[int] | None = None,
        params: Parameters = None,
        folder: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        name: str | None = None,
        options: SurveyOptions | Mapping[str, Any] | None = None,
    ) -> None:
        require_model(model)
        self.model = model
        self._is_due = schedule(every)
        self._every = described(every)
        self.budget = budget if isinstance(budget, Budget) else Budget(budget)
        self._records: list[Record] = []
        self._count = 0  # of measurements that were due
        self._last: int | None = None
        self._earlier = EarlierResults(watching=True)
        self._processes = Processes.of(group_of(options))
        with (
            self.budget.measuring(),
            self._processes.together(),
            untouched(unwrap(model)),
        ):
            self.folder: Path | None = None
            self._writer: HistoryWriter | None = None
            self._warned = False
            if folder is not None:
                with self._processes.together():
                    if self._processes.rank == 0:
                        self.folder = unused_folder(folder, overwrite=overwrite)
                        self._writer = HistoryWriter(self.folder, overwrite=overwrite)
                self.folder = self._processes.spread(self.folder)
            self._options = SurveyOptions.of(
                options,
                SurveyOptions.monitor,
                families=families,
                layers=layers,
                read=read,
                loss=loss,
                readout=readout,
                sizes=sizes,
                permutations=permutations,
                unit=unit,
                classes=classes,
                params=params,
                name=name,
            )
            self._cadence = Cadence.of(cadence, every, self._options.families)
            self._options.require_common(self._processes, call="Monitor", **self._schedule())
            require_device(self._options.device, model)
            drawn, self._held_out, _ = draw_fitting(
                unwrap(model),
                probe,
                self._options,
                self._processes,
                held_out=held_out,
                truth=truth,
                groups=groups,
            )
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
        due = self._is_due(step)
        with self._processes.together() if due else nullcontext():
            self._begin(step)
            if not due or not self._affordable():
                return None
            families = self._options.families
            not_due = self._cadence.not_due(self._count, families)
            # The loss and the feature contrast of the gradient family are always due.
            if "gradient" not in families and len(not_due) == len(families):
                self._count += 1
                return None
            found = self._measure(step, self._options, self._planned(not_due))
            return found if found.record.contents["rows"] else None

    def _begin(self, step: int) -> None:
        if self._last is not None and step <= self._last:
            raise DomainError(f"step: expected more than {self._last}, got {step}; steps increase")
        self._last = step

    def measure(self, step: int) -> Survey:
        """Measure all families now, whatever the schedule says."""
        return self._measure(step, self._options, self._planned({}))

    def close(self, step: int | None = None) -> None:
        """Measure the last step in full: with curves, heat maps, stiffness and chance levels.

        Args:
            step: its number, where :meth:`step` did not get it; what is due at the last step
                is then measured once.
        """
        if step is not None and step != self._last:
            self._begin(step)
        if self._last is None:
            return
        chosen, sizes = self._options, dict(self._options.sizes)
        if self._probe.positions is not None and self._probe.groups is not None:
            sizes["pairs"] = None  # Few sequences need the chance level of their group contrast.
        full = replace(
            chosen,
            sizes=sizes,
            details=True,
            permutations=max(_LAST_PERMUTATIONS, chosen.permutations),
            sketch_vectors=max(_LAST_SKETCH_VECTORS, chosen.sketch_vectors),
        )
        if self._records and self._records[-1].contents["step"] == self._last:
            self._records.pop()
        self._measure(self._last, full, SurveyPlan())
        self._warn_of_unwritten()

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
        else:
            self._warn_of_unwritten()

    @property
    def overhead(self) -> float:
        """Time spent on measuring, as a share of all other time since the monitor was made."""
        return self.budget.overhead

    def _affordable(self) -> bool:
        """Whether the budget allows a measurement; the first process decides for all."""
        if self.budget.share is None or not self._records:
            return True
        allowed: bool = self._processes.spread(self.budget.allows())
        return allowed

    @property
    def history(self) -> History:
        """All that has been measured so far."""
        run = Run(self._options.name, self._head(), tuple(self._records))
        return History(run, writes=self._processes.rank == 0)

    def _planned(self, not_due: Mapping[str, str]) -> SurveyPlan:
        """The next measurement of the schedule."""
        curves = self._cadence.draws_curves(self._count)
        self._count += 1
        return SurveyPlan(curves=curves, not_due=not_due)

    def _measure(self, step: int, options: SurveyOptions, plan: SurveyPlan) -> Survey:
        plan = replace(plan, most_layers=_MOST_LAYERS)
        if self._records:  # the first measurement has compared the engine with plain autograd
            plan = replace(plan, check=False, diverging=True)
        model = unwrap(self.model)
        _finish_training_step(model)
        with (
            self.budget.measuring(),
            self._processes.together(),
            untouched(model),
            one_thread_beside_gpu(model),
        ):
            options.require_common(self._processes, call="Monitor", step=step)
            record = measure_model(
                model,
                self._probe.batch,
                self._probe,
                options,
                plan,
                held_out=self._held_out,
                processes=self._processes,
                step=step,
                earlier=self._earlier,
            )
            if record.contents["rows"]:  # none where all that is due does not apply
                self._keep(record)
        return Survey(record, writes=self._processes.rank == 0)

    def _keep(self, record: Record) -> None:
        self._records.append(record)
        if self._writer is None:
            return
        self._writer.write(self.history.run)
        if self._writer.folder != self.folder:
            warn(
                f"{self.folder} holds another run now: this one is in {self._writer.folder}",
                stacklevel=4,
            )
            self.folder = self._writer.folder
        if self._writer.problem is not None and not self._warned:
            self._warned = True
            warn(
                f"step {record.contents['step']} is not on disk: {self._writer.problem}. The "
                "training goes on, the numbers stay in memory, and every measurement tries again.",
                UnwrittenWarning,
                stacklevel=5,
            )

    def _warn_of_unwritten(self) -> None:
        """Try once more to write what could not be written; say what is left."""
        if self._writer is None or not self._writer.waiting:
            return
        self._writer.flush(self.history.run)
        if self._writer.waiting:
            steps = listed(map(str, self._writer.waiting), most=5)
            warn(
                f"{len(self._writer.waiting)} of {len(self._records)} measurements are not on disk "
                f"(steps {steps}): {self._writer.problem}. Save them while this process lives: "
                "monitor.history.save(folder).",
                UnwrittenWarning,
                stacklevel=3,
            )

    def _schedule(self) -> dict[str, Any]:
        given = {"every": self._every, "cadence": self._cadence.describe()}
        return given | ({} if self.budget.share is None else {"budget": self.budget.share})

    def _head(self) -> Record:
        config = self._options.describe() | self._schedule()
        if not self._processes.alone:
            config["processes"] = self._processes.size
        head: dict[str, Any] = {"kind": "history", "name": self._options.name, "config": config}
        if self._records:
            first = self._records[0].contents
            head |= {key: first[key] for key in ("data", "layers")}
        else:
            head |= {"data": {"probe_hash": self._probe.digest}, "layers": []}
        return Record(head | {"versions": versions()})


def schedule(every: Every) -> Callable[[int], bool]:
    """Whether a step is due."""
    if callable(every):
        return lambda step: bool(every(step))
    if isinstance(every, str) and every == "log":
        return _is_logarithmic
    if isinstance(every, str) or not isinstance(every, (int, Iterable)):
        raise DomainError(
            f'every: expected a whole number, steps, a function or "log", got {every!r}'
        )
    if isinstance(every, int):
        require_count(1, every=every)
        return lambda step: step % every == 0
    steps = frozenset(every)
    return lambda step: step in steps


def _is_logarithmic(step: int) -> bool:
    """0 to 4, and then steps that grow by a quarter: 5, 6, 7, 8, 10, 12, 15, 18, ..."""
    due = 5
    while due < step:
        due = max(due + 1, due * 5 // 4)
    return step < 5 or step == due


def described(every: Every) -> Any:
    """The schedule as plain data for the record."""
    if callable(every):
        return str(getattr(every, "__name__", type(every).__name__))
    return every if isinstance(every, (int, str)) else sorted(every)


@dataclass(frozen=True)
class Cadence:
    """Which parts of a measurement are due: a part of k at measurements 0, k, 2 k, ...

    Args:
        parts: family, or "curves", -> k; 1 for those that are not named.
    """

    parts: Mapping[str, int]

    @classmethod
    def of(
        cls, cadence: int | Mapping[str, int] | None, every: Every, families: Sequence[str]
    ) -> "Cadence":
        """What the user asked for, or the default.

        The default is sparse only for all families at a fixed distance: there the number of
        measurements grows with the training, and no family was named.

        Raises:
            DomainError: If a number is below 1.
            UnknownNameError: If a part does not exist.
        """
        if cadence is None:
            everything = isinstance(every, int) and set(families) == set(FAMILIES)
            return cls(dict(SPARSE) if everything else {})
        if not isinstance(cadence, Mapping):
            require_count(1, cadence=cadence)
        chosen = dict(cadence) if isinstance(cadence, Mapping) else dict.fromkeys(_PARTS, cadence)
        for part, distance in chosen.items():
            if part not in _PARTS:
                raise UnknownNameError("part of cadence", part, _PARTS)
            require_count(1, **{f"cadence[{part!r}]": distance})
        return cls(chosen)

    def not_due(self, index: int, families: Sequence[str]) -> dict[str, str]:
        """Families that are not taken at the measurement of this index, with the reason."""
        distances = {family: self.parts.get(family, 1) for family in families}
        return {
            family: reason(Note.NOT_DUE, distance=distance)
            for family, distance in distances.items()
            if index % distance
        }

    def draws_curves(self, index: int) -> bool:
        """Whether the measurement of this index keeps curves: k times 0, 1, 2, 4, ..., 256."""
        turn, rest = divmod(index, self.parts.get("curves", 1))
        return not rest and (turn < 2 or (turn & (turn - 1) == 0 and turn <= _LAST_DOUBLING))

    def describe(self) -> dict[str, int]:
        """Plain data for the record: every part that is not always due."""
        return {part: distance for part, distance in self.parts.items() if distance > 1}


class Budget:
    """Time that measuring takes, held against the time that training takes beside it.

    A measurement is put off until it and the last one, each taken to be as long as the longest so
    far, fit into a share of the training so far. So a run stays within that share once it is long
    enough for its first and its last measurement.

    Args:
        share: of the time of the training, such as 0.05; None for any.
        clock: gives seconds; another one makes what is measured, and when, reproducible.

    Raises:
        DomainError: If the share is not positive.

    Examples:
        >>> now = 0.0
        >>> budget = Budget(0.1, clock=lambda: now)
        >>> with budget.measuring():
        ...     now += 2
        >>> now += 20
        >>> budget.overhead, budget.allows()
        (0.1, False)
        >>> now += 40  # three measurements of two seconds fit into a tenth of sixty
        >>> budget.allows()
        True
    """

    def __init__(
        self, share: float | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if share is not None and not share > 0:
            raise DomainError(
                f"budget: expected a positive share of the training's time, such as 0.05, got "
                f"{share}; leave budget= out to measure at every step that is due"
            )
        self.share, self._clock = share, clock
        self._begun, self._spent, self._longest = clock(), 0.0, 0.0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """What happens inside is no training."""
        start = self._clock()
        try:
            yield
        finally:
            passed = self._clock() - start
            self._spent, self._longest = self._spent + passed, max(self._longest, passed)

    @property
    def overhead(self) -> float:
        """Time spent on measuring, as a share of all other time since the start."""
        training = self._training()
        return self._spent / training if training > 0 else float("inf") if self._spent else 0.0

    def allows(self) -> bool:
        """Whether there is time for a measurement, and for the last one after it."""
        if self.share is None:
            return True
        return self._spent + 2 * self._longest <= self.share * self._training()

    def _training(self) -> float:
        return self._clock() - self._begun - self._spent


def _finish_training_step(model: nn.Module) -> None:
    """Wait for the GPU: what it still does is training, and not the time of a measurement."""
    for device in {parameter.device for parameter in model.parameters() if parameter.is_cuda}:
        torch.cuda.synchronize(device)


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
