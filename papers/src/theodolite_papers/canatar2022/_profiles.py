"""CKA of layers with a reference: as the paper takes it, debiased, and by chance."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from theodolite.measures.kernel import layer_profile

__all__ = ["BIASED", "DEBIASED", "NULL", "NULL_TOP", "profile_rows", "rounded"]

# Rows of a recorded profile; columns are layers in order of depth.
BIASED, DEBIASED, NULL, NULL_TOP = range(4)


def profile_rows(
    layers: Sequence[Tensor],
    reference: Tensor,
    permutations: int,
    generator: torch.Generator,
) -> np.ndarray:
    """Biased and debiased CKA of every layer; mean and largest biased CKA of permuted references.

    The null tells which part of the paper's biased value is there for any labels: it grows with
    the rank of the layer and falls with the number of examples.
    """
    values = [layer_profile(layers, reference, debiased=kind).values for kind in (False, True)]
    rows = [torch.randperm(len(reference), generator=generator) for _ in range(permutations)]
    chance = torch.stack(
        [layer_profile(layers, reference[row], debiased=False).values for row in rows]
    )
    return rounded(torch.stack([*values, chance.mean(0), chance.amax(0)]))


def rounded(values: Tensor) -> np.ndarray:
    """For a record: float32 on the CPU."""
    return values.detach().float().cpu().numpy()
