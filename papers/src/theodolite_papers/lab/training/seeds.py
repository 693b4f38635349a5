"""Seeds derived from a run's seed: one for each purpose and each epoch or step.

Nothing has to be replayed to know the order of epoch 37, so a run can be resumed anywhere.
"""

from typing import Literal

import numpy as np
import torch

__all__ = ["Purpose", "derived_seed", "seeded"]

Purpose = Literal["order", "augmentation", "noise"]
_PURPOSES = {"order": 0, "augmentation": 1, "noise": 2}


def derived_seed(seed: int, purpose: Purpose, index: int = 0) -> int:
    """A seed that depends on all three, unlike those of all neighbours."""
    sequence = np.random.SeedSequence([seed, _PURPOSES[purpose], index])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)  # torch takes 63 bits


def seeded(
    seed: int, purpose: Purpose, index: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A generator with the derived seed."""
    return torch.Generator(device).manual_seed(derived_seed(seed, purpose, index))
