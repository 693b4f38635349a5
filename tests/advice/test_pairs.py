"""Sentences about the similarity of the layers of two models."""

import numpy as np
import pandas as pd

from theodolite.advice.pairs import LayerSimilarity


def test_similarities_that_are_undefined_are_said():
    """The summary of a comparison printed "CKA. " and nothing else."""
    values = pd.DataFrame([[np.nan, np.nan]], index=["fc1"], columns=["fc1", "fc2"])
    found = LayerSimilarity(values, values.to_numpy(), values.to_numpy(), np.empty(0))
    assert found.sentence(("a", "b")) == "Undefined for every pair of layers."
