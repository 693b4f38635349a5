"""What surveys of arrays say about bad input."""

import numpy as np
import pandas as pd
import pytest

import theodolite as th
from theodolite.errors import DomainError, DtypeError, ShapeError


@pytest.mark.parametrize(
    ("features", "labels", "error", "message"),
    [
        (np.ones((4, 2)), [0, 1, 0, 1], DomainError, "features: expected .*layer: array.*ndarray"),
        ({}, [0, 1], ShapeError, "features: expected at least one layer, got none"),
        ({"a": np.ones((4, 2))}, [0, 1], ShapeError, "features.'a'.* has 4.* has 2"),
        ({"a": np.ones(4)}, [0, 1, 0, 1], ShapeError, r"features\['a'\]: .*\(4,\)"),
        ({"a": [["x"]] * 4}, [0, 1, 0, 1], DtypeError, r"features\['a'\]: expected numbers"),
        ({"a": np.full((4, 2), np.nan)}, [0, 1, 0, 1], DomainError, r"features\['a'\].*finite"),
        ({"a": np.eye(4)}, ["u", None, "u", "v"], DomainError, "labels: .* missing at 1"),
        ({"a": np.eye(4)}, [0, 1, 2, object()], DtypeError, "labels: expected"),
        (
            {"a": pd.DataFrame(np.eye(4))},
            pd.Series([0, 1, 0, 1], index=[3, 2, 1, 0]),
            DomainError,
            r"labels: expected the index of features\['a'\].*labels\.loc",
        ),
    ],
    ids=["array", "none", "lengths", "vector", "text", "nan", "missing", "objects", "index"],
)
def test_wrong_input_is_named(features, labels, error, message):
    with pytest.raises(error, match=message):
        th.survey_features(features, labels)
