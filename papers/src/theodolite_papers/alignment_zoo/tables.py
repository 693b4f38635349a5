"""The tables of the alignment zoo: networks, measurements, curves and transfers, in one file.

.. code-block:: python

    from theodolite_papers import alignment_zoo

    zoo = alignment_zoo.load()
    zoo.measurements  # one row per network, moment, probe, layer and measure

A table is a data frame. On disk every column is one array of a compressed ``.npz``. Texts are codes
that point into a list of words. Numbers have the smallest type that holds them. The file is read
without pickle.
"""

import io
import os
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from theodolite.errors import RecordError
from theodolite.records import require_path

__all__ = ["RECORDS", "Zoo", "load", "merge", "save"]

RECORDS = Path(__file__).parents[3] / "records" / "alignment_zoo"
_FILE = "zoo.npz"
_RENAMED = ("readout", "probe")  # part of a measure's name when the file was written -> now

# Columns that every table needs; ``schema`` describes all columns.
_KEYS = {
    "networks": ("network", "half", "group", "changed", "data", "family", "noise"),
    "measurements": (
        "network", "moment", "step", "probe", "layer", "family", "measure", "value",
    ),
    "curves": ("network", "step", "test_accuracy"),
    "transfers": ("network", "target"),
}  # fmt: skip


@dataclass(frozen=True)
class Zoo:
    """The tables; an empty frame where there is none.

    Args:
        networks: one row per network: factors and outcomes.
        measurements: one row per network, moment, probe, layer and measure.
        curves: one row per network and checked step; a column for every quantity.
        transfers: one row per source and target.
    """

    networks: pd.DataFrame = field(default_factory=pd.DataFrame)
    measurements: pd.DataFrame = field(default_factory=pd.DataFrame)
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)
    transfers: pd.DataFrame = field(default_factory=pd.DataFrame)

    def of_half(self, half: str) -> "Zoo":
        """The networks of one half, with their rows in all tables."""
        networks = self.networks[self.networks["half"] == half]
        return self.of_networks(networks["network"])

    def of_networks(self, names: Iterable[str]) -> "Zoo":
        """The rows of these networks."""
        kept = set(names)
        return Zoo(**{name: _rows_of(table, kept) for name, table in self._tables().items()})

    def _tables(self) -> dict[str, pd.DataFrame]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


def _rows_of(table: pd.DataFrame, names: set[str]) -> pd.DataFrame:
    return table if table.empty else table[table["network"].isin(names)].reset_index(drop=True)


def save(zoo: Zoo, folder: str | os.PathLike[str]) -> Path:
    """Write the tables to ``zoo.npz`` in a folder, in one step.

    Raises:
        RecordError: If a table misses a column.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, table in zoo._tables().items():
        missing = [] if table.empty else [c for c in _KEYS[name] if c not in table]
        if missing:
            raise RecordError(
                f"{name}: expected the columns {list(_KEYS[name])}, but {missing} is missing"
            )
        for column in table:
            arrays |= _packed(f"{name}/{column}", table[column], exact=name == "networks")
    target = Path(folder) / _FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_LZMA) as file:
        for key, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            file.writestr(f"{key}.npy", buffer.getvalue())
    os.replace(part, target)
    return target


def load(folder: str | os.PathLike[str] = RECORDS) -> Zoo:
    """Read the tables of a folder; those of the study by default.

    Raises:
        RecordError: If the file is not there or damaged.
    """
    require_path(folder=folder)
    path = Path(folder) / _FILE
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise RecordError(f"{path}: expected the tables of the alignment zoo: {error}") from error
    columns: dict[str, dict[str, object]] = {one.name: {} for one in fields(Zoo)}
    for key, array in arrays.items():
        table, column = key.split("/", 1)
        if column.endswith("#words"):
            continue
        words = arrays.get(f"{key}#words")
        if words is not None:
            words = np.char.replace(words, *_RENAMED)
        columns[table][column.replace(*_RENAMED)] = (
            (array.astype(np.float64) if array.dtype.kind == "f" else array)
            if words is None
            else pd.Categorical.from_codes(array.astype(np.int64), pd.Index(words.tolist()))
        )
    return Zoo(**{name: pd.DataFrame(table) for name, table in columns.items()})


def merge(zoos: Iterable[Zoo]) -> Zoo:
    """The rows of several files; if a network is in two files, the rows of the later one count."""
    given, seen = list(zoos), set[str]()
    kept = []
    for zoo in reversed(given):
        names = set() if zoo.networks.empty else set(zoo.networks["network"])
        kept.append(zoo.of_networks(names - seen) if names & seen else zoo)
        seen |= names
    tables = {}
    for one in fields(Zoo):
        found = [getattr(zoo, one.name) for zoo in reversed(kept)]
        parts = [table for table in found if not table.empty]
        tables[one.name] = _joined(parts) if parts else pd.DataFrame()
    return Zoo(**tables)


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    plain = [
        part.astype({c: object for c in part if isinstance(part[c].dtype, pd.CategoricalDtype)})
        for part in parts
    ]
    return pd.concat(plain, ignore_index=True)


def _packed(key: str, column: Any, exact: bool) -> dict[str, np.ndarray]:
    if column.dtype.kind in "iub":
        values = column.to_numpy()
        return {key: values.astype(np.min_scalar_type(-1 - int(abs(values).max(initial=0))))
                if values.dtype.kind != "b" else values}  # fmt: skip
    if column.dtype.kind == "f":
        values = column.to_numpy(np.float64)
        return {key: values if exact else _rounded(values)}
    words, codes = np.unique(column.astype(str).to_numpy().astype(str), return_inverse=True)
    return {key: codes.astype(np.min_scalar_type(len(words))), f"{key}#words": words}


def _rounded(values: np.ndarray) -> np.ndarray:
    """Single precision with the last 8 of 23 bits dropped (5 digits): noise does not compress."""
    bits = values.astype(np.float32).view(np.uint32)
    kept = np.where(np.isfinite(values), (bits + np.uint32(0x80)) & np.uint32(0xFFFFFF00), bits)
    return kept.view(np.float32)
