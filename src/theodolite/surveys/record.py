"""What families write their results on: rows, curves, warnings, routes, seconds."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from theodolite.advice.reasons import Reason
from theodolite.advice.reasons import reason as words
from theodolite.records import Estimate, Note
from theodolite.surveys.layers import Layer

__all__ = ["RecordBuilder", "chance"]

# What the numbers of a family are made of; features are read where the layer says.
_READS = {"covariance": "inputs", "tangent": "parameters", "gradient": "parameters"}


def chance(draws: Tensor | None) -> tuple[float | None, float | None]:
    """Mean and standard deviation of values under the null; None where none were drawn."""
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
        self.skipped: dict[str, str] = {}
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
        reason: str | None = None,
        read_at: str | None = None,
    ) -> None:
        """Add a number.

        Args:
            layer: None for the whole model.
            family: that it belongs to.
            measure: its name.
            estimate: the number with its uncertainty.
            n: examples (covariance: filters) behind it.
            reason: why it is undefined, where it is.
            read_at: what it was read from; by default what its family reads.
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

    def warn(self, layer: Layer | None, family: str, measure: str, text: str) -> None:
        """Say something once per layer and measure, with its kind; repetitions are counted."""
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
            "count": 1,
        }
        if isinstance(text, Reason):
            entry["note"] = text.note.value
        self._warnings[key] = entry

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
        """Take over what was written down elsewhere."""
        self.rows += other.rows
        self.curves += other.curves
        self.arrays |= other.arrays
        self.routes |= other.routes
        self._warnings |= other._warnings

    def keep_probes(
        self, measure: str, judged_on: str, fitted_on: int, layers: list[str], scores: Tensor
    ) -> None:
        """What every example adds to the number of a linear probe: its mean is the row's value.

        Args:
            measure: of the rows.
            judged_on: "held-out" or "left-out" examples.
            fitted_on: examples of the probe set.
            layers: those with a probe.
            scores: one row per layer, one column per example that judges them.
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
        """The mean loss of every example of the probe set, where curves are kept."""
        if self._wants_curves:
            self.arrays["loss/mean"] = _array(mean)
            self.example_losses = {"mean": "loss/mean", "measurements": measurements}

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the seconds of a block to a part's."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[part] = self.seconds.get(part, 0.0) + spent


def _array(values: Tensor) -> np.ndarray:
    plain = values.detach().cpu()
    # Curves are for the eye: half of the digits of float64 are noise on disk.
    return (plain.float() if plain.is_floating_point() else plain.to(torch.int64)).numpy()
