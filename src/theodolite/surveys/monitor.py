"""Training loop to History: measure all five families while a model trains."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import Any
from warnings import warn

import torch
from torch import nn

from theodolite._distributed import Processes
from theodolite.advice.reasons import Reason, reason
from theodolite.checks import require_count, require_flag, require_function, size_in_bytes
from theodolite.engine import (
    Layers,
    Loss,
    limited_memory,
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

_LAST_SKETCH_VECTORS = 32
_MOST_LAYERS = 16  # beyond this number, blocks stand for the layers inside them
_LAST_PERMUTATIONS = 20
_LAST_DOUBLING = 2**8  # makes eleven steps with curves, the last step included

# The parts that take most of the time: decompositions, backward passes and curves.
SPARSE: Mapping[str, int] = {"representation": 8, "tangent": 8, "gradient": 8, "curves": 16}
_PARTS = (*FAMILIES, "curves")

Every = int | Collection[int] | Callable[[int], bool] | str


class Monitor:
    """Measure a model on a fixed probe set at some steps of its training.

    The monitor does not disturb the training: the weights are bitwise the same as without it (on a
    CPU). After every measurement it restores the random state and the training flag of every
    module. If the training diverges, the record says why a number cannot be measured.

    Args:
        model: the model that is trained. It is measured in evaluation mode.
        probe: the probe set: (inputs, targets), a data loader, or anything that a survey takes. It
            is drawn once, balanced over classes, kept on the device, and its hash is recorded.
        loss: (outputs, targets) -> one number per example, or a loss of torch.
        every: a number of steps, a list of steps, a function of the step, or ``"log"`` for steps
            that grow by a quarter.
        cadence: how often each family is measured: k means at every k-th measurement, the first
            and the last included. Pass a mapping from families (or ``"curves"``) to k, or one
            number for all. Curves are kept at measurements 0, k, 2 k, 4 k, ..., 256 k, which keeps
            records small. The default is 1 for steps or families that you name. Otherwise it is 8
            for representation, tangent and gradient (except loss and feature contrast, which are
            always measured) and 16 for curves.
        budget: a share of the training time, such as 0.05. The monitor skips a measurement when
            measuring would exceed this share, and reserves time for the last one. The first and
            the last measurement always take place, so short runs exceed the share
            (:attr:`overhead`). ``with monitor.budget.measuring():`` counts other work, such as
            writing a page, as measuring. For another clock pass a :class:`Budget`.
        held_out: examples that the model is not trained on. Each measurement with curves then says
            how much of the fit carries over to them. For labels per position each measurement has
            their loss, and ``carried_over``: its fall divided by the fall of the training loss.
        truth: true labels of the probe set in the given order, if its targets are other labels,
            such as random ones. Adds ``cka_truth`` to ``cka_target``.
        groups: a number or a name for each example of the probe set, such as its document or
            domain. Gradients are compared within groups.
        families: which families to measure.
        layers: which layers to show, as in :class:`SurveyOptions`.
        folder: where every step is written at once, so that a killed run keeps its measurements. If
            the folder already holds a run, ``folder-2`` is written instead (:attr:`folder`). If the
            disk is full, the training goes on. The monitor warns once, tries again at every
            measurement, and names the unwritten steps at the end.
        overwrite: replace the run in the folder.
        options: a :class:`SurveyOptions`, or a mapping of the options that differ from
            :meth:`SurveyOptions.monitor`. The keywords above take precedence. Several processes
            (``group``) measure together, as in :func:`theodolite.survey`. Each passes its part of
            the probe set, or all pass the same one. All call :meth:`step` at the same steps.
        **others: any other field of :class:`SurveyOptions` by its name, such as ``sizes=``,
            ``readout=``, ``params=`` or ``name=``. ``permutations=`` is 0 by default, and at least
            20 at the last step. Chance levels of covariances need no labels and are always
            measured.

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
        folder: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        options: SurveyOptions | Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        require_model(model)
        self.model = model
        self._is_due = schedule(every)
        self._every = described(every)
        self.budget = budget if isinstance(budget, Budget) else Budget(budget)
        self._records: list[Record] = []
        self._count = 0  # measurements that were due
        self._last: int | None = None
        self._earlier = EarlierResults(watching=True)
        require_flag(overwrite=overwrite)
        self._processes = Processes.of(others.get("group", group_of(options)))
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
                loss=loss,
                **others,
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
        """Call this after every training step; it measures if a measurement is due.

        Args:
            step: number of the step, larger than at the call before.

        Returns:
            The measurement, or None.

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
            raise DomainError(
                f"step: expected more than {self._last}, got {step}; pass increasing steps"
            )
        self._last = step

    def measure(self, step: int) -> Survey:
        """Measure all families now, whatever the schedule says.

        Args:
            step: number of the training step.

        Returns:
            The survey of this step.
        """
        require_count(0, step=step)
        return self._measure(step, self._options, self._planned({}))

    def close(self, step: int | None = None) -> None:
        """Measure the last step in full: with curves, heat maps, stiffness and chance levels.

        Args:
            step: number of the last step, if :meth:`step` was not called for it. Families that are
                due at the last step are then measured once.
        """
        if step is not None and step != self._last:
            self._begin(step)
        if self._last is None:
            return
        chosen, sizes = self._options, dict(self._options.sizes)
        if self._probe.positions is not None and self._probe.groups is not None:
            sizes["pairs"] = None  # The chance level of a group contrast needs all pairs.
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

    def _planned(self, not_due: Mapping[str, Reason]) -> SurveyPlan:
        """The next measurement of the schedule."""
        curves = self._cadence.draws_curves(self._count)
        self._count += 1
        return SurveyPlan(curves=curves, not_due=not_due)

    def _measure(self, step: int, options: SurveyOptions, plan: SurveyPlan) -> Survey:
        plan = replace(plan, most_layers=_MOST_LAYERS)
        if self._records:  # the first measurement has already checked the engine against autograd
            plan = replace(plan, check=False, diverging=True)
        model = unwrap(self.model)
        _finish_training_step(model)
        with (
            self.budget.measuring(),
            self._processes.together(),
            limited_memory(size_in_bytes(options.memory_limit)),
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
            if record.contents["rows"]:  # empty if no due family applies
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
        """Try once more to write the waiting steps; warn of those that cannot be written."""
        if self._writer is None or not self._writer.waiting:
            return
        self._writer.flush(self.history.run)
        if self._writer.waiting:
            steps = listed(map(str, self._writer.waiting), most=5)
            steps = f"step {steps}" if len(self._writer.waiting) == 1 else f"steps {steps}"
            warn(
                f"{len(self._writer.waiting)} of {len(self._records)} measurements are not on disk "
                f"({steps}): {self._writer.problem}. Save them while this process lives: "
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
        require_function(every=every)
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
    wrong = [step for step in steps if not (isinstance(step, Integral) and int(step) >= 0)]
    if wrong:
        raise DomainError(f"every: expected steps as integers of at least 0, got {wrong[0]!r}")
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
    """Which parts of a measurement are due: a part with cadence k at measurements 0, k, 2 k, ...

    Args:
        parts: family or "curves" -> k; parts without an entry have 1.
    """

    parts: Mapping[str, int]

    @classmethod
    def of(
        cls, cadence: int | Mapping[str, int] | None, every: Every, families: Sequence[str]
    ) -> "Cadence":
        """Return the user's cadence, or the default.

        The default is sparse only if all families are measured every so many steps: then the number
        of measurements grows with the training.

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

    def not_due(self, index: int, families: Sequence[str]) -> dict[str, Reason]:
        """Families that are not due at this measurement, with the reason."""
        distances = {family: self.parts.get(family, 1) for family in families}
        return {
            family: reason(Note.NOT_DUE, distance=distance)
            for family, distance in distances.items()
            if index % distance
        }

    def draws_curves(self, index: int) -> bool:
        """Whether the measurement keeps curves: number k times 0, 1, 2, 4, ..., 256."""
        turn, rest = divmod(index, self.parts.get("curves", 1))
        return not rest and (turn < 2 or (turn & (turn - 1) == 0 and turn <= _LAST_DOUBLING))

    def describe(self) -> dict[str, int]:
        """The cadence as plain data for the record: every part that is not always due."""
        return {part: distance for part, distance in self.parts.items() if distance > 1}


class Budget:
    """Limits the time of measuring to a share of the training time.

    A measurement is skipped when measuring would exceed the share. The budget assumes that this
    measurement and the last one each take as long as the longest so far. So a run stays within the
    share if it is long enough for its first and its last measurement.

    Args:
        share: share of the training time, such as 0.05; None for no limit.
        clock: returns seconds. Another clock makes the choice of measurements reproducible.

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
        if share is not None and not (isinstance(share, Real) and share > 0):
            raise DomainError(
                f"budget: expected a positive share of the training's time, such as 0.05, got "
                f"{share!r}; leave budget= out to measure at every step that is due"
            )
        self.share, self._clock = share, clock
        self._begun, self._spent, self._longest = clock(), 0.0, 0.0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time in this block as measuring. Nothing in it may update the model."""
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
        """Whether the share allows a measurement and the last one after it."""
        if self.share is None:
            return True
        return self._spent + 2 * self._longest <= self.share * self._training()

    def _training(self) -> float:
        return self._clock() - self._begun - self._spent


def _finish_training_step(model: nn.Module) -> None:
    """Wait for the GPU, so that unfinished training does not count as measuring."""
    for device in {parameter.device for parameter in model.parameters() if parameter.is_cuda}:
        torch.cuda.synchronize(device)


@contextmanager
def one_thread_beside_gpu(model: nn.Module) -> Iterator[None]:
    """Use one thread if the model is on a GPU, where little work is left for the CPU.

    Several threads sometimes wait for each other for 100 ms. That took half of the time of a
    monitor.
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
