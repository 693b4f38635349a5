"""What a survey was asked for: every setting in force, for the code and for the record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from theodolite._distributed import ALONE, Processes
from theodolite.checks import require_choice, require_count
from theodolite.engine.batches import Batch
from theodolite.engine.layers import Layers
from theodolite.engine.readouts import Readout
from theodolite.errors import DomainError, UnknownNameError

__all__ = [
    "FAMILIES",
    "FEATURE_READERS",
    "MANY_OUTPUTS",
    "SIZES",
    "Labeling",
    "Loss",
    "Pool",
    "Settings",
]

Loss = Callable[[Tensor, Any], Tensor]
Pool = str | Callable[[Tensor], Tensor]

FAMILIES = ("representation", "covariance", "kernel", "tangent", "gradient")
FEATURE_READERS = ("representation", "kernel", "gradient")  # families that read layers' outputs

# Largest number of examples of each family; None takes all the data that was given.
SIZES: Mapping[str, int | None] = {
    "representation": 2000,
    "covariance": None,
    "kernel": 2000,
    "tangent": 200,
    "gradient": 1000,
    # For what needs all pairs of gradients (confusion, nulls and errors of Omega); None takes as
    # many as the family where that is cheap, else 100. 0 leaves it out.
    "pairs": None,
}
MANY_OUTPUTS = 32  # from here on tangent kernels are sketched


@dataclass(frozen=True)
class Labeling:
    """What the user says about the data: it belongs to every number of the record.

    Args:
        name: of the survey, for comparisons.
        split: "train", "test" or the like.
        labels: "true", "trained-on", "shuffled" or the like.
        classes: names of the classes.
    """

    name: str = ""
    split: str = "unknown"
    labels: str = "given"
    classes: Sequence[str] | None = None


@dataclass(frozen=True)
class Settings:
    """Settings of one survey; the fields are the keywords of ``theodolite.survey``."""

    families: tuple[str, ...] = FAMILIES
    layers: Layers | None = None
    loss: Loss | None = None
    readout: str | Readout | None = None
    pool: Pool | None = None
    image_shape: tuple[int, ...] | None = None
    sizes: Mapping[str, int | None] = field(default_factory=lambda: dict(SIZES))
    nulls: int = 20
    bootstrap: int = 0
    memory_limit: int | None = None
    device: torch.device | str | None = None
    batch_size: int = 256
    batch_fn: Callable[[Any], Batch] | None = None
    seed: int = 0
    generator: torch.Generator | None = None
    tangent: str = "auto"
    probes: int = 32
    curves: bool = True
    check: bool = True
    diverging: bool = False  # numbers that are not finite are a reason, not an error
    deep_covariance: bool = True
    stiffness: bool = True
    heat_maps: bool = True
    room: int | None = None  # bytes for the work of one family; chosen from the limit
    most_layers: int = 40  # with more than this, layers inside blocks are left out
    processes: Processes = ALONE
    # Families that a monitor does not take at this step -> why; loss and feature Omega never rest.
    resting: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for family in self.families:
            if family not in FAMILIES:
                raise UnknownNameError("family", family, FAMILIES)
        if not self.families:
            raise DomainError("families: expected at least one of them, got none")
        require_choice(("auto", "exact", "sketch"), tangent=self.tangent)
        require_count(3, probes=self.probes)
        require_count(1, batch_size=self.batch_size)
        require_count(0, nulls=self.nulls, bootstrap=self.bootstrap)
        for name, size in self.sizes.items():
            if name not in SIZES:
                raise UnknownNameError("family in sizes", name, SIZES)
            if size is not None:
                require_count(0 if name == "pairs" else 2, **{f"sizes[{name!r}]": size})

    @classmethod
    def of(cls, families: str | Sequence[str], sizes: Any, **others: Any) -> "Settings":
        """Settings from what the user passed: one family or several, some sizes or none."""
        names = (families,) if isinstance(families, str) else tuple(families)
        chosen = tuple(family for family in FAMILIES if family in names)
        unknown = tuple(family for family in names if family not in FAMILIES)
        return cls((*chosen, *unknown), sizes={**SIZES, **dict(sizes or {})}, **others)

    def seeded(self, stream: int = 0) -> torch.Generator:
        """The user's generator, or one with the seed and numbers of its own for every stream."""
        return self.generator or torch.Generator().manual_seed(1000 * self.seed + stream)

    def size(self, family: str, available: int) -> int:
        """How many of the examples a family takes."""
        size = self.sizes[family]
        return available if size is None else min(size, available)

    def largest(self) -> int | None:
        """Examples that the probe needs for all families together."""
        named = [f for f in self.families if f != "covariance" or self.sizes[f] is not None]
        wanted = [self.sizes[family] for family in named]
        if "gradient" in self.families:
            wanted += [self.sizes["pairs"] or 0]
        numbers = [size for size in wanted if size is not None]
        return max(numbers, default=2) if len(numbers) == len(wanted) else None

    def require_common(self, **others: Any) -> None:
        """The same settings, and other plain values, in every process.

        Raises:
            DomainError: If they differ, naming the first that does.
        """
        processes = self.processes
        if processes.alone:
            return
        own = {key: repr(value) for key, value in (self.describe() | others).items()}
        first = processes.spread(own)
        with processes.together():
            for key in own | first:
                mine, theirs = own.get(key), first.get(key)
                if mine != theirs and key != "device":
                    raise DomainError(
                        f"{key}: expected the same in every process, got {mine} here and {theirs} "
                        "in process 0; pass the same settings everywhere"
                    )

    def without(self, family: str) -> "Settings":
        """The same settings less one family."""
        return replace(self, families=tuple(f for f in self.families if f != family))

    def describe(self) -> dict[str, Any]:
        """Plain data for the record."""
        together = {} if self.processes.alone else {"processes": self.processes.size}
        return together | {
            "families": list(self.families),
            "layers": "default" if self.layers is None else _text(self.layers),
            "loss": "default" if self.loss is None else _text(self.loss),
            "readout": "default" if self.readout is None else _text(self.readout),
            "pool": "flatten" if self.pool is None else _text(self.pool),
            "spectrum_pool": "max" if self.pool is None else _text(self.pool),
            "image_shape": None if self.image_shape is None else list(self.image_shape),
            "sizes": dict(self.sizes),
            "nulls": self.nulls,
            "bootstrap": self.bootstrap,
            "seed": self.seed if self.generator is None else None,
            "device": None if self.device is None else str(self.device),
            "batch_size": self.batch_size,
            "memory_limit": self.memory_limit,
            "tangent": self.tangent,
            "probes": self.probes,
            "deep_covariance": self.deep_covariance,
            "stiffness": self.stiffness,
            "heat_maps": self.heat_maps,
            "most_layers": self.most_layers,
            "mode": "evaluation",
        }


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    return [str(item) for item in value]
