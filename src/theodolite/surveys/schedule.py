"""The number of examples of each part of a survey within the time limit.

One measured pass converts costs into seconds. The measured times of earlier parts correct the
expected times of later ones.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from theodolite.advice.reasons import Reason, reason
from theodolite.records import Note
from theodolite.surveys.context import SurveyContext
from theodolite.surveys.families import PARTS, Part
from theodolite.surveys.options import FEATURE_READERS
from theodolite.surveys.progress import Cost, Progress, Speed, TimeBudget

_FEWEST_ROWS, _FEATURES_SHARE = 32, 0.35  # for the parts that read features
_LEAST_SHARE = 0.15  # smallest share of the time left for the next part after a slow pass
_CHECKED = 1.7  # cost of a checked pass in plain passes, measured on three networks
# A part gets a trial from this share of the time and this multiple of `fewest` on.
_LONG, _WORTH = 0.06, 1.5
_SLOW = 0.05  # data whose reading takes a larger share of the time are read once


class Schedule:
    """Numbers of examples of all parts, within the time of the survey.

    Args:
        context: context of the survey; its plan is changed.
        budget: the time; None uses all examples.
    """

    def __init__(self, context: SurveyContext, budget: TimeBudget | None = None) -> None:
        self._context, self._budget = context, budget
        # Parts that read features take small steps on every layer. Their speed does not predict
        # that of passes and large products.
        self._reading = None if budget is None else budget.branch()
        self._cut: dict[str, tuple[int, int]] = {}
        self._reserved = 0.0  # seconds that parts with features leave for the other parts

    @classmethod
    def of(cls, context: SurveyContext, begun: float, show: Any) -> "Schedule":
        """Time one pass, if progress is shown or the time is limited.

        Only the first process times this pass: it takes few examples, and only this process chooses
        the numbers of examples.
        """
        seconds = context.options.seconds
        if show is None and seconds is None:
            return cls(context)
        try:
            with context.record.timed("trial"):
                speed = Speed.measured(context.model, context.probe.batch, context.pass_cost)
        except Exception:  # an example that the model refuses; the families give the reason
            return cls(context)
        if show is not None:
            costs = {
                stage: (tuple(speed.example * n for n in c.passes), speed.product * c.products)
                for stage, c in _stage_costs(context).items()
            }
            context.progress = Progress(show, costs, len(context.layout.layers))
        return cls(context, None if seconds is None else TimeBudget(seconds, speed, begun))

    def plan_features(self, parts: Sequence[Part]) -> None:
        """Choose the rows of all parts that read features, for the pass and the work on it."""
        if self._budget is None:
            return
        self._reserved = (1 - _FEATURES_SHARE) * self._budget.left
        self._limit_rows(parts, self._pass_cost, dict.fromkeys(part.family for part in parts))

    def plan_rows(self, parts: Sequence[Part]) -> None:
        """Choose the rows of the remaining parts, from the times of the pass and earlier parts."""
        if self._budget is not None and parts and parts[0].cost is not None:
            self._limit_rows(parts, lambda _n: 0.0, [parts[0].family], _LEAST_SHARE)

    def _limit_rows(
        self,
        parts: Sequence[Part],
        passes: Callable[[int], float],
        families: Iterable[str],
        least: float = 0.0,
    ) -> None:
        """Limit the rows of families to what these parts have time for."""
        context, budget = self._context, self._reading
        assert budget is not None
        most = max(context.row_count(part.family) for part in parts)

        def cost(n: int) -> Cost:
            costs = [part.cost(context, n) for part in parts if part.cost is not None]
            return Cost((passes(n),), sum(cost.products for cost in costs))

        share = max((budget.left - self._reserved) / max(budget.left, 1e-9), least)
        found = budget.examples(cost, most, _FEWEST_ROWS, share)
        for family in families:
            if family in context.options.families:
                self.limit(family, _FEWEST_ROWS if found is None else found)

    def _pass_cost(self, n: int) -> float:
        """Passes of single examples for this number of rows and for held-out examples."""
        probe = self._context.probe
        return _CHECKED * (n + self._held_out) * len(probe) / max(1, probe.row_count)

    @property
    def _held_out(self) -> int:
        """Number of held-out examples whose features are read."""
        held_out = self._context.held_out_read
        return self._context.plan.size("held_out", 0 if held_out is None else len(held_out))

    def learn_pass(self, seconds: float) -> None:
        """Compare the time of the pass that collects features with the expected time."""
        if self._budget is not None:
            examples = self._context.rows_read + self._held_out
            self._budget.learn(Cost((_CHECKED * examples,)), seconds)
            self._reading = self._budget.branch()

    def plan_part(self, part: Part) -> Reason | None:
        """Choose the examples of a part with its own passes; return the reason if too few fit."""
        budget, context, family = self._budget, self._context, part.family
        if budget is None or part.cost is None or part.reads_features:
            return None
        if family in context.options.named_sizes:
            return None
        cost = part.cost
        most = context.count(family)
        if family == "covariance":
            most = self._covariance_examples()
        found = budget.examples(lambda n: cost(context, n), most, part.fewest, part.share)
        if found is None:
            expected = budget.expected(cost(context, min(part.fewest, most)))
            total = budget.seconds - budget.left + 2 * expected
            return reason(
                Note.NO_TIME,
                fewest=part.fewest,
                expected=expected,
                left=max(budget.left, 0.0),
                total=_round_up(total),
            )
        self.limit(family, found)
        return None

    def wants_trial(self, part: Part) -> bool:
        """Whether a part is long enough to be timed on few examples first."""
        budget, count = self._budget, self._context.count(part.family)
        if budget is None or part.cost is None or part.reads_features or not part.tried:
            return False
        named = part.family in self._context.options.named_sizes
        long = budget.expected(part.cost(self._context, count)) > _LONG * budget.seconds
        return long and not named and count > _WORTH * part.fewest

    def keeps_trial(self, part: Part) -> bool:
        """Whether hardly more examples fit than the trial has measured."""
        late = self.plan_part(part) is not None
        few = self._context.count(part.family) <= _WORTH * part.fewest
        return late or few

    def _covariance_examples(self) -> int:
        """All the data, unless reading them again takes long."""
        context, probe = self._context, self._context.probe
        if context.plan.sizes["covariance"] is not None:
            return context.count("covariance")
        slow = not probe.complete or probe.reading > _SLOW * (context.options.seconds or math.inf)
        return len(probe) if slow else probe.given

    def learn(self, part: Part, seconds: float) -> None:
        """Compare the time of a part with the expected time."""
        if self._budget is not None and part.cost is not None:
            reads, context = part.reads_features, self._context
            count = context.row_count(part.family) if reads else context.count(part.family)
            budget = self._reading if reads else self._budget
            assert budget is not None
            budget.learn(part.cost(context, count), seconds)

    def limit(self, family: str, count: int) -> None:
        """Limit the examples of a family."""
        context = self._context
        if family in context.options.named_sizes:
            return
        available = context.probe.row_count if family in FEATURE_READERS[:2] else len(context.probe)
        if family == "covariance" and context.plan.sizes[family] is None:
            available = context.probe.given
        wanted = context.plan.size(family, available)
        if count < wanted or (family == "covariance" and not context.probe.complete):
            self._cut[family] = count, max(wanted, self._cut.get(family, (0, 0))[1])
            context.plan = context.plan.with_sizes(**{family: count})

    def cut(self) -> Reason | None:
        """The cuts of the time limit, with the argument that lifts it."""
        if not self._cut:
            return None
        task = self._context.task
        rows = FEATURE_READERS[:2] if task is not None and task.unit == "token" else ()
        parts = {f: [*counts, *["positions"] * (f in rows)] for f, counts in self._cut.items()}
        return reason(Note.CUT, parts=parts, limit=self._context.options.seconds)


def _round_up(seconds: float) -> int:
    """Seconds rounded up to tens, or to hundreds above 200."""
    step = 10 if seconds < 200 else 100
    return int(-(-seconds // step) * step)


def _stage_costs(context: SurveyContext) -> dict[str, Cost]:
    """Costs of the pass over the features and of all stages, in order."""
    families = context.options.families
    read = max((context.count(f) for f in FEATURE_READERS if f in families), default=0)
    costs = {"features": Cost((float(read),))} if read else {}
    for part in PARTS:
        if part.cost is not None and part.family in families:
            costs[part.stage] = part.cost(context, context.count(part.family))
    return costs
