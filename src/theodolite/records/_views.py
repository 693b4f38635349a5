"""Runs as pages and sentences read them: every number by name, with its path in the record."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from theodolite.records._files import Record
from theodolite.records._runs import Run
from theodolite.records._tables import layers_with_few_filters
from theodolite.records._words import finite

_MOST_CURVES = 6

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Moment:
    """One step of one run; ``run`` and ``position`` are the first parts of paths in a page."""

    run: int
    position: int
    record: Record

    @cached_property
    def step(self) -> int:
        """The training step; 0 outside a training run."""
        return int(self.record.contents.get("step") or 0)

    @cached_property
    def _rows(self) -> dict[tuple[str, str, str | None], int]:
        rows = self.record.contents.get("rows", [])
        found = {(r["family"], r["measure"], r.get("layer")): i for i, r in enumerate(rows)}
        for layer in self.layers_with_few_filters:
            del found["covariance", "relative_misalignment", layer]
        return found

    @cached_property
    def layers_with_few_filters(self) -> list[str]:
        """Layers whose filters are too few or too isotropic to judge their misalignment."""
        return layers_with_few_filters(self.record.contents.get("rows", []))

    @cached_property
    def _notes(self) -> dict[tuple[str | None, str, str | None], str | None]:
        warnings = self.record.contents.get("warnings", [])
        return {(w.get("family"), w["measure"], w.get("layer")): w.get("note") for w in warnings}

    def note(self, family: str, measure: str, layer: str | None) -> str | None:
        """The kind of the note about a number, one of :class:`Note`; None without a note."""
        return self._notes.get((family, measure, layer))

    @cached_property
    def _curves(self) -> dict[tuple[str, str, str | None], Mapping[str, Any]]:
        curves = self.record.contents.get("curves", [])
        return {(c["family"], c["name"], c.get("layer")): c for c in curves}

    @property
    def has_curves(self) -> bool:
        """Whether the record has the arrays of this step."""
        return bool(self._curves)

    def index(self, family: str, measure: str, layer: str | None) -> int | None:
        """Position of a row in the record; None if it was not measured."""
        return self._rows.get((family, measure, layer))

    def row(self, family: str, measure: str, layer: str | None) -> Row | None:
        """A row of the record; None if it was not measured."""
        index = self.index(family, measure, layer)
        return None if index is None else self.record.contents["rows"][index]

    def value(self, family: str, measure: str, layer: str | None) -> float:
        """A number of the record; nan if it was not measured."""
        row = self.row(family, measure, layer)
        return float("nan") if row is None or row["value"] is None else float(row["value"])

    def array(
        self, family: str, name: str, layer: str | None, role: str
    ) -> tuple[str, np.ndarray] | None:
        """An array of a curve with its name in the record; None if there is none."""
        curve = self._curves.get((family, name, layer))
        key = None if curve is None else curve["arrays"].get(role)
        return None if key is None else (key, self.record.arrays[key])

    def measures(self) -> Iterator[tuple[str, str, str | None]]:
        """Family, measure and layer of every row."""
        return iter(self._rows)

    def curve_names(self) -> Iterator[tuple[str, str, str | None]]:
        """Family, name and layer of every curve."""
        return iter(self._curves)


@dataclass(frozen=True)
class Chance:
    """The chance level of a number: mean and standard deviation."""

    mean: float
    sd: float

    def score(self, value: float) -> float:
        """Standard deviations from chance; nan if all permutations give the same value."""
        return (value - self.mean) / self.sd if self.sd else math.nan


@dataclass(frozen=True)
class RunView:
    """One run with the moments that a page shows."""

    index: int
    name: str
    run: Run
    moments: tuple[Moment, ...]

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in order of execution."""
        return [layer["name"] for layer in self.run.head.contents.get("layers", [])]

    def measured(self, family: str, measure: str) -> bool:
        """Whether any layer has this number at any step."""
        return (family, measure) in self._holders

    def moments_with(self, family: str, measure: str) -> list[Moment]:
        """The moments with this number."""
        return self._holders.get((family, measure), [])

    def has_curve(self, family: str, name: str) -> bool:
        """Whether any layer has this curve at any step that is shown."""
        wanted = (family, name)
        return any(
            (f, n) == wanted
            for moment in self.moments_with_curves
            for f, n, _ in moment.curve_names()
        )

    @property
    def last(self) -> Moment:
        """The latest moment."""
        return self.moments[-1]

    def at(self, step: int | None) -> Moment:
        """The latest moment that is not after the step (the latest of all for None)."""
        before = [m for m in self.moments if step is None or m.step <= step]
        return before[-1] if before else self.moments[0]

    def latest_with(self, step: int | None, family: str, measure: str) -> Moment:
        """The latest moment with this number, up to the step; without one, the moment of the step.

        A monitor measures costly numbers at some steps only.
        """
        key = (step, family, measure)
        if key not in self._held:
            known = self.moments_with(family, measure)
            before = [m for m in known if step is None or m.step <= step]
            self._held[key] = before[-1] if before else self.at(step)
        return self._held[key]

    def with_chance(self, step: int | None, family: str, measure: str) -> Moment:
        """The moment whose chance levels are compared with the numbers of a step.

        A monitor computes them at its last step; earlier steps are compared with these.
        """
        here = self.latest_with(step, family, measure)
        known = self._chance_holders.get((family, measure), {})
        return here if here.position in known or not known else known[max(known)]

    @cached_property
    def _held(self) -> dict[tuple[int | None, str, str], Moment]:
        """Results of ``holding``, because a page asks for the same ones thousands of times."""
        return {}

    @cached_property
    def _chance_holders(self) -> dict[tuple[str, str], dict[int, Moment]]:
        """Moments with a chance level, by family and measure, then position."""
        found: dict[tuple[str, str], dict[int, Moment]] = {}
        for moment in self.moments:
            rows = moment.record.contents.get("rows", [])
            drawn = [(r["family"], r["measure"]) for r in rows if finite(r.get("null_mean"))]
            for name in dict.fromkeys(drawn):
                found.setdefault(name, {})[moment.position] = moment
        return found

    def chance(self, step: int | None, family: str, measure: str, layer: str) -> "Chance | None":
        """The chance level of a layer; None if it was not measured."""
        row = self.with_chance(step, family, measure).row(family, measure, layer) or {}
        if not finite(row.get("null_mean")):
            return None
        spread = float(row["null_sd"]) if finite(row.get("null_sd")) else 0.0
        return Chance(float(row["null_mean"]), spread)

    @cached_property
    def _holders(self) -> dict[tuple[str, str], list[Moment]]:
        return _holders(self.moments)

    @cached_property
    def moments_with_curves(self) -> list[Moment]:
        """Moments whose curves are shown; more would make most of a page's size."""
        kept = [m for m in self.moments if m.has_curves]
        return [kept[i] for i in spaced(len(kept), _MOST_CURVES)]

    def with_curves_at(self, step: int | None) -> Moment:
        """The same among the moments whose curves are shown; without any, the moment itself."""
        kept = self.moments_with_curves
        before = [m for m in kept if step is None or m.step <= step]
        return before[-1] if before else kept[0] if kept else self.at(step)


@dataclass(frozen=True)
class Group:
    """Runs of one network: they have the same layers and share every figure."""

    index: int
    runs: tuple[RunView, ...]

    @property
    def name(self) -> str:
        """The common part of the names of the runs, or all names."""
        names = [run.name for run in self.runs]
        common = _common_words(names) if len(names) > 1 else names[0]
        return common or " / ".join(names)

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in order of execution."""
        return self.runs[0].layers

    @property
    def is_history(self) -> bool:
        """Whether there are several steps."""
        return any(len(run.moments) > 1 for run in self.runs)

    @cached_property
    def steps(self) -> list[int]:
        """Every step at which one of the runs was measured."""
        return sorted({moment.step for run in self.runs for moment in run.moments})

    @cached_property
    def _measures(self) -> dict[tuple[str, str, str | None], None]:
        """Family, measure and layer of every number somewhere in the group, in order."""
        moments = (moment for run in self.runs for moment in run.moments)
        return dict.fromkeys(name for moment in moments for name in moment.measures())

    def measured(self, family: str, measure: str | None = None) -> list[str]:
        """Layers that have a number of the family (or this measure) somewhere in the group."""
        found = {la for f, m, la in self._measures if f == family and measure in {None, m}}
        return [layer for layer in self.layers if layer in found]

    def layers_with_curve(self, family: str, name: str) -> list[str]:
        """Layers that have this curve somewhere in the group."""
        found = {
            layer
            for run in self.runs
            for moment in run.moments
            for f, n, layer in moment.curve_names()
            if f == family and n == name
        }
        return [layer for layer in self.layers if layer in found]

    def whole_model_measures(self, family: str) -> list[str]:
        """Measures of the whole model in this family."""
        return [m for f, m, layer in self._measures if f == family and layer is None]


def groups_of(runs: Sequence[Run], most_steps: int, most_numbers: int = 10**9) -> list[Group]:
    """The runs with different names, grouped by their layers, each with at most this many steps.

    Args:
        runs: surveys or histories.
        most_steps: of each run.
        most_numbers: layers times steps: deep networks show fewer steps.
    """
    names = [run.name for run in runs]
    if len(runs) == 1 and not names[0]:
        names = ["Training run" if runs[0].is_history else "Survey"]
    deepest = max((len(run.head.contents.get("layers", [])) for run in runs), default=1)
    most_steps = max(8, min(most_steps, most_numbers // max(1, deepest)))
    views = [
        RunView(i, name, run, _moments(i, run, most_steps))
        for i, (name, run) in enumerate(zip(unique_names(names), runs, strict=True))
    ]
    by_layers: dict[tuple[str, ...], list[RunView]] = {}
    for view in views:
        by_layers.setdefault(tuple(view.layers), []).append(view)
    return [Group(i, tuple(members)) for i, members in enumerate(by_layers.values())]


def _moments(index: int, run: Run, most_steps: int) -> tuple[Moment, ...]:
    every = [Moment(index, i, record) for i, record in enumerate(run.steps)]
    if len(every) <= most_steps:
        return tuple(every)
    # Steps that kept their curves stay in: the sliders of curves stop there.
    kept = {moment.position for moment in every if moment.has_curves}
    for found in _holders(every).values():
        if len(found) < len(every):
            kept |= {found[i].position for i in spaced(len(found), most_steps // 2)}
    kept |= set(spaced(len(every), max(2, most_steps - len(kept))))
    return tuple(every[i] for i in sorted(kept))


def _holders(moments: Sequence[Moment]) -> dict[tuple[str, str], list[Moment]]:
    """Moments that have a number, by family and measure."""
    found: dict[tuple[str, str], list[Moment]] = {}
    for moment in moments:
        for name in dict.fromkeys((family, m) for family, m, _ in moment.measures()):
            found.setdefault(name, []).append(moment)
    return found


def unique_names(names: Sequence[str]) -> list[str]:
    """Names of which no two are equal: an empty or repeated name gets a number.

    Examples:
        >>> unique_names(["cnn", "", "cnn"])
        ['cnn', 'run 2', 'cnn (2)']
    """
    taken: list[str] = []
    for index, name in enumerate(names, start=1):
        plain = name or f"run {index}"
        fresh, number = plain, 2
        while fresh in taken:
            fresh, number = f"{plain} ({number})", number + 1
        taken.append(fresh)
    return taken


def _common_words(names: Sequence[str]) -> str:
    common: list[str] = []
    for words in zip(*(name.split() for name in names), strict=False):
        if len(set(words)) > 1:
            break
        common.append(words[0])
    return " ".join(common).strip(" ,:;-–/()")


def spaced(count: int, most: int, *, logarithmic: bool = False) -> list[int]:
    """At most this many of ``range(count)``, evenly spaced, including the first and the last.

    Examples:
        >>> spaced(9, 3), spaced(3, 9), spaced(1000, 4, logarithmic=True)
        ([0, 4, 8], [0, 1, 2], [0, 9, 99, 999])
    """
    if count <= most:
        return list(range(count))
    positions = np.linspace(0, count - 1, most)
    if logarithmic:
        positions = np.geomspace(1, count, most) - 1
    return sorted({round(float(position)) for position in positions})
