"""Relative position of CT slices: 384 histogram features, one regression target."""

from pathlib import Path

import torch

from theodolite.checks import require_count
from theodolite.data import Dataset, disjoint_rows
from theodolite.errors import DataError
from theodolite_papers.lab.data.image_sets import data_folder

__all__ = ["CT_FILE", "load_ct_position"]

CT_FILE = "slice_localization_data.csv"
_FEATURES = 384
_COLUMNS = ("patientId", *(f"value{index}" for index in range(_FEATURES)), "reference")


def load_ct_position(
    train: int = 1000,
    test: int = 1000,
    path: str | Path | None = None,
    generator: torch.Generator | None = None,
) -> Dataset:
    """Random training and test rows of the UCI data set, unscaled.

    Args:
        train: number of training rows.
        test: number of test rows, none of them training rows.
        path: the CSV file; ``slice_localization_data.csv`` in the data folder if left out.
        generator: draws the rows.

    Returns:
        384 features per row; the target is the position along the body, 0 to 180.

    Raises:
        DataError: If the file is missing or not that table. The message says what to put where.
        DomainError: If more rows are asked for than there are.

    References:
        [graf2011]; [imani2022], Figures 1, 5 and 9.
    """
    import pandas

    require_count(1, train=train, test=test)
    file = data_folder() / CT_FILE if path is None else Path(path)
    if not file.is_file():
        raise DataError(
            f"ct_position: expected {file}, which does not exist; download 'Relative location of "
            f"CT slices on axial axis' from the UCI Machine Learning Repository (number 206) and "
            f"put {CT_FILE} there, or in the folder that THEODOLITE_DATA names"
        )
    try:
        table = pandas.read_csv(file, usecols=list(_COLUMNS), dtype="float64")
        values = torch.from_numpy(table[list(_COLUMNS[1:])].to_numpy(copy=True))
    except Exception as error:  # the parser fails in many ways on other files
        raise DataError(
            f"{file}: expected a CSV table of numbers with the columns patientId, value0 to "
            f"value383, reference ({type(error).__name__}: {error}); download it again"
        ) from error
    if len(values) == 0 or not values.isfinite().all():
        raise DataError(f"{file}: expected rows of finite numbers, got {len(values)} rows")
    rows, held_out = disjoint_rows(len(values), train, test, generator=generator)
    x, y = values[:, :_FEATURES], values[:, _FEATURES]
    return Dataset("ct_position", x[rows], y[rows], x[held_out], y[held_out])
