"""How closely two ways to the same number must agree, by dtype (of the measure's natural scale)."""

import numpy as np
import torch

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def assert_close(actual, expected, *, scale: float = 1.0, dtype: torch.dtype = torch.float64):
    """Equal within the dtype's tolerance times the scale; nan equals nan."""
    actual = np.asarray(actual.detach() if isinstance(actual, torch.Tensor) else actual)
    np.testing.assert_allclose(
        np.asarray(actual, dtype=np.float64),
        np.asarray(expected, dtype=np.float64),
        rtol=0,
        atol=TOLERANCE[dtype] * scale,
        equal_nan=True,
    )
