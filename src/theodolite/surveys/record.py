"""What families write their results on: rows, curves, warnings, routes, seconds."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from theodolite._distributed import ALONE, Processes
from theodolite.records import Estimate
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

    Several processes fill a builder each, with what they own: the layers that are theirs, and the
    first of them the whole model. Everything else is dropped, so that whoever has a number may
    write it down.

    Args:
        curves: whether curves are kept.
        processes: those that take part.
    """

    def __init__(self, curves: bool = True, processes: Processes = ALONE) -> None:
        self.rows: list[dict[str, Any]] = []
        self.curves: list[dict[str, Any]] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.skipped: dict[str, str] = {}
        self.routes: dict[str, dict[str, Any]] = {}
        self.seconds: dict[str, float] = {}
        self._warnings: dict[tuple[str | None, str, str], dict[str, Any]] = {}
        self._wants_curves = curves
        self._processes = processes
        self._section = 0
        self._places: dict[str, list[tuple[int, float]]] = {
            "rows": [],
            "curves": [],
            "warnings": [],
        }

    def section(self) -> None:
        """Begin another pass over the layers, in every process: it fixes the order of rows."""
        self._section += 1

    def _owns(self, layer: Layer | None) -> bool:
        return self._processes.rank == (0 if layer is None else self._processes.owner(layer.index))

    def _place(self, what: str, layer: Layer | None) -> None:
        self._places[what].append((self._section, math.inf if layer is None else layer.index))

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
        if not self._owns(layer):
            return
        undefined = math.isnan(estimate.value)
        why = (reason or "undefined for these numbers") if undefined else None
        if read_at is None:
            read_at = _READS.get(family) or ("outputs" if layer is None else layer.read_at)
        self._place("rows", layer)
        self.rows.append(
            {"layer": None if layer is None else layer.name, "family": family, "measure": measure}
            | vars(estimate)
            | {"n": n, "read_at": read_at, "reason": why}
        )
        if undefined and why is not None:
            self.warn(layer, family, measure, why)

    def warn(self, layer: Layer | None, family: str, measure: str, text: str) -> None:
        """Say something once per layer and measure; repetitions are counted."""
        if not self._owns(layer):
            return
        place = None if layer is None else layer.name
        key = (place, family, measure)
        if key in self._warnings:
            self._warnings[key]["count"] += 1
            return
        self._place("warnings", layer)
        entry = {"layer": place, "family": family, "measure": measure, "text": text, "count": 1}
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
        if not self._wants_curves or not self._owns(layer):
            return
        self._place("curves", layer)
        place = "model" if layer is None else str(layer.index)
        names = {role: f"{family}/{place}/{name}/{role}" for role in arrays}
        for role, values in arrays.items():
            self.arrays[names[role]] = _array(values)
        owner = None if layer is None else layer.name
        entry = {"layer": owner, "family": family, "name": name, "arrays": names, "labels": labels}
        self.curves.append(entry)

    def complete(self) -> None:
        """Rows, curves and warnings of all processes, in the order of a single one."""
        if self._processes.alone:
            return
        own = {"rows": self.rows, "curves": self.curves, "warnings": list(self._warnings.items())}
        parts = self._processes.gather((own, self._places, self.arrays))
        once = self._processes.spread((self.skipped, self.routes, self.seconds))
        self.skipped, self.routes, self.seconds = once
        merged: dict[str, list[Any]] = {}
        for what in own:
            pairs = [
                pair
                for entries, places, _ in parts
                for pair in zip(places[what], entries[what], strict=True)
            ]
            merged[what] = [entry for _, entry in sorted(pairs, key=lambda pair: pair[0])]
        self.rows, self.curves = merged["rows"], merged["curves"]
        self._warnings = dict(merged["warnings"])
        self.arrays = {name: array for _, _, arrays in parts for name, array in arrays.items()}

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
