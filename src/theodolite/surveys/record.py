"""Collects the results of families: rows, curves, warnings, routes, seconds."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from theodolite.advice.reasons import Reason, not_measured
from theodolite.advice.reasons import reason as words
from theodolite.records import Estimate, Note
from theodolite.surveys.layers import Layer

# Where the numbers of a family come from; features have the place that the layer names.
_READS = {"covariance": "inputs", "tangent": "parameters", "gradient": "parameters"}


def chance(draws: Tensor | None) -> tuple[float | None, float | None]:
    """Mean and standard deviation for permuted labels; None without permutations."""
    if draws is None or draws.numel() == 0:
        return None, None
    values = draws.double().cpu().numpy()
    values = values[~np.isnan(values)]
    if len(values) < 2:
        return None, None
    return float(values.mean()), float(values.std(ddof=1))


class RecordBuilder:
    """Collects the parts of a survey record while families run.

    Args:
        curves: whether curves are kept.
    """

    def __init__(self, curves: bool = True) -> None:
        self.rows: list[dict[str, Any]] = []
        self.curves: list[dict[str, Any]] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.probes: dict[str, Any] | None = None
        self.example_losses: dict[str, Any] | None = None
        self.skipped: dict[str, Reason] = {}
        self.routes: dict[str, dict[str, Any]] = {}
        self.seconds: dict[str, float] = {}
        self._warnings: dict[tuple[str | None, str, str], dict[str, Any]] = {}
        self._wants_curves = curves

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """One entry per layer and measure."""
        return list(self._warnings.values())

    def row(
        self,
        layer: Layer | None,
        family: str,
        measure: str,
        estimate: Estimate,
        *,
        n: int,
        reason: Reason | None = None,
        read_at: str | None = None,
    ) -> None:
        """Add a number.

        Args:
            layer: the layer; None for the whole model.
            family: family of the number.
            measure: name of the measure.
            estimate: the number with its uncertainty.
            n: number of examples (covariance: filters).
            reason: why it is undefined, if it is.
            read_at: where it was measured; by default the place of its family.
        """
        undefined = math.isnan(estimate.value)
        why = (reason or words(Note.UNDEFINED)) if undefined else None
        if read_at is None:
            read_at = _READS.get(family) or ("outputs" if layer is None else layer.read_at)
        self.rows.append(
            {"layer": None if layer is None else layer.name, "family": family, "measure": measure}
            | vars(estimate)
            | {"n": n, "read_at": read_at, "reason": None if why is None else str(why)}
        )
        if undefined and why is not None:
            self.warn(layer, family, measure, why)

    def warn(self, layer: Layer | None, family: str, measure: str, text: Reason) -> None:
        """Add a note with its kind, once per layer and measure; repetitions are counted."""
        place = None if layer is None else layer.name
        key = (place, family, measure)
        if key in self._warnings:
            self._warnings[key]["count"] += 1
            return
        entry = {
            "layer": place,
            "family": family,
            "measure": measure,
            "text": str(text),
            "note": text.note.value,
            "count": 1,
        }
        self._warnings[key] = entry

    def not_measured(self, family: str, measure: str, why: Reason) -> None:
        """Add a note about a number of the whole model that was not measured."""
        self.warn(None, family, measure, not_measured(why))
        self._warnings[None, family, measure].setdefault("reason", str(why))

    def curve(
        self,
        layer: Layer | None,
        family: str,
        name: str,
        arrays: Mapping[str, Tensor],
        **labels: str,
    ) -> None:
        """Add a curve, images or a matrix; a survey without curves drops it."""
        if not self._wants_curves:
            return
        place = "model" if layer is None else str(layer.index)
        names = {role: f"{family}/{place}/{name}/{role}" for role in arrays}
        for role, values in arrays.items():
            self.arrays[names[role]] = _array(values)
        owner = None if layer is None else layer.name
        entry = {"layer": owner, "family": family, "name": name, "arrays": names, "labels": labels}
        self.curves.append(entry)

    def absorb(self, other: "RecordBuilder") -> None:
        """Add all results of another builder."""
        self.rows += other.rows
        self.curves += other.curves
        self.arrays |= other.arrays
        self.routes |= other.routes
        self._warnings |= other._warnings

    def keep_probes(
        self, measure: str, judged_on: str, fitted_on: int, layers: list[str], scores: Tensor
    ) -> None:
        """Keep the scores of linear probes per example; their mean is the value of the row.

        Args:
            measure: measure of the rows.
            judged_on: "held-out" or "left-out" examples.
            fitted_on: number of examples of the probe set.
            layers: layers with a linear probe.
            scores: one row per layer, one column per example that judges the probes.
        """
        name = "probe/scores"
        self.arrays[name] = _array(scores)
        self.probes = {
            "measure": measure,
            "judged_on": judged_on,
            "fitted_on": fitted_on,
            "layers": layers,
            "scores": name,
        }

    def keep_example_losses(self, mean: Tensor, measurements: int) -> None:
        """Keep the mean loss of every example of the probe set, if curves are kept."""
        if self._wants_curves:
            self.arrays["loss/mean"] = _array(mean)
            self.example_losses = {"mean": "loss/mean", "measurements": measurements}

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the seconds of a block to those of a part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[part] = self.seconds.get(part, 0.0) + spent


def _array(values: Tensor) -> np.ndarray:
    plain = values.detach().cpu()
    # Curves are only drawn, so float32 is enough and halves their size on disk.
    return (plain.float() if plain.is_floating_point() else plain.to(torch.int64)).numpy()
