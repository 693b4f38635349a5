"""Predictors, rules, hypotheses and thresholds that were fixed before the judged half was run.

``chosen.toml`` has the layer, moment and direction of each measure, and the patience of each rule.
:mod:`theodolite_papers.alignment_zoo.pilot` chose them on the pilot half alone. ``registered.toml``
has the hypotheses with their thresholds, written by hand after a look at the pilot half. A claim of
the ledger is one hypothesis, and its digest covers the sentence with its threshold.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from math import nan
from typing import Any

from theodolite_papers.alignment_zoo.alarms import AlarmRule
from theodolite_papers.alignment_zoo.judging import (
    STATISTICS,
    WRONG,
    Sample,
    possible_values,
    wrong_answers,
)
from theodolite_papers.alignment_zoo.predictors import Predictor
from theodolite_papers.ledger import Outcome, above, below, decided, outcome, pass_rate, shown_as

__all__ = ["Hypothesis", "Registered", "registered"]


@dataclass(frozen=True)
class Hypothesis:
    """A statement about the judged half that can fail.

    Args:
        name: short.
        text: the sentence, with its threshold.
        statistic: a key of ``STATISTICS``.
        of: column or rule that it is about.
        at_least: threshold, where the statistic should be large.
        at_most: threshold, where it should be small.
        than: columns or rules that it should be better than, as well.
        beside: columns or rules whose statistic is shown with it.
    """

    name: str
    text: str
    statistic: str
    of: str = ""
    at_least: float | None = None
    at_most: float | None = None
    than: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def check(self, sample: Sample) -> Outcome:
        """Whether the hypothesis holds, with the deciding numbers; None if undefined."""
        measure = STATISTICS[self.statistic]
        value = measure(sample, self.of)
        others = {name: measure(sample, name) for name in self.than}
        shown = others | {name: measure(sample, name) for name in self.beside}
        numbers = {self.of or self.statistic: value, **shown}
        if value != value:
            return outcome(None, **numbers)
        name = self.of or self.statistic
        possible = possible_values(self.statistic)
        known = {other: o for other, o in others.items() if o == o}
        if self.at_least is not None:
            bound = above(name, value, self.at_least, strict=False, possible=possible)
            leads = [above(f"{name} minus {other}", value - o) for other, o in known.items()]
        else:
            assert self.at_most is not None
            bound = below(name, value, self.at_most, strict=False, possible=possible)
            leads = [below(f"{name} minus {other}", value - o) for other, o in known.items()]
        if self.statistic in WRONG:  # a share of 0 of a few networks has an interval: the exact one
            wrong = wrong_answers(sample, self.statistic)
            interval = pass_rate(int(wrong.sum()), len(wrong))
            bound = replace(bound, interval=interval, unit=f"{len(wrong)} networks")
        if self.statistic == "worst":  # leaving out a group hardly changes a maximum
            bound = replace(bound, interval=(nan, nan))
        return shown_as(decided(bound, *leads), **numbers)


@dataclass(frozen=True)
class Registered:
    """One question: the numbers that are compared, and the hypotheses.

    Args:
        outcome: column of the table that is predicted.
        predictors: what may predict it.
        hypotheses: what was expected.
        rules: of the alarm question.
        scores: columns of the transfers, for the question about transfer.
    """

    outcome: str
    predictors: tuple[Predictor, ...]
    hypotheses: tuple[Hypothesis, ...]
    rules: Mapping[str, AlarmRule]
    scores: Mapping[str, bool]

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns of the predictors in a sample."""
        return tuple(predictor.key for predictor in self.predictors)


@cache
def registered(question: str) -> Registered:
    """The registration of a question.

    Example:
        >>> registered("generalisation").outcome
        'gap'
    """
    here = resources.files("theodolite_papers.alignment_zoo")
    chosen, written = (
        tomllib.loads(here.joinpath(name).read_text(encoding="utf-8")).get(question, {})
        for name in ("chosen.toml", "registered.toml")
    )
    scores = chosen.get("scores", {}) | written.get("scores", {})
    return from_table(chosen | written | {"scores": scores})


def from_table(table: Mapping[str, Any]) -> Registered:
    """A hypothesis from a table of the file."""
    entries: list[dict[str, Any]] = [
        {k: tuple(v) if isinstance(v, list) else v for k, v in one.items()}
        for one in table.get("hypotheses", [])
    ]
    return Registered(
        table.get("outcome", ""),
        tuple(Predictor(**one) for one in table.get("predictors", [])),
        tuple(Hypothesis(**one) for one in entries),
        {name: AlarmRule(**one) for name, one in table.get("rules", {}).items()},
        dict(table.get("scores", {})),
    )
