"""The random sweeps over transfer settings: what is drawn, from which ranges, how many runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log
from typing import Literal, TypeVar

import torch

__all__ = [
    "TRANSFER_SWEEPS",
    "TransferGroup",
    "TransferRun",
    "TransferSweep",
    "draw_groups",
]

T = TypeVar("T")
Labels = Literal["real", "random"]
_LABELS: tuple[Labels, ...] = ("real", "random")


@dataclass(frozen=True)
class TransferRun:
    """One network of a group: trained downstream from a transferred or a fresh start."""

    seed: int
    pretrained: bool
    transferred: Literal["one", "all"]
    labels: Labels


@dataclass(frozen=True)
class TransferGroup:
    """Settings that all runs of a group share; the last three are the Simple CNN's alone."""

    architecture: str
    initializer: str
    init_scale: float
    learning_rate: float
    upstream_examples: int
    upstream_classes: int
    upstream_epochs: int
    conv_layers: int | None = None
    filters: int | None = None
    units: int | None = None


@dataclass(frozen=True)
class TransferSweep:
    """Ranges of one sweep. Scales and learning rates are log-uniform, the rest uniform choices."""

    groups: int
    seeds: int
    init_scale: tuple[float, float]
    learning_rate: tuple[float, float]
    upstream_examples: tuple[int, ...]
    upstream_classes: tuple[int, ...]
    upstream_epochs: tuple[int, ...]
    downstream_examples: int
    downstream_epochs: int
    conv_layers: tuple[int, ...]
    filters: tuple[int, ...]
    units: tuple[int, ...]
    transferred: tuple[Literal["one", "all"], ...]
    initializers: tuple[str, ...] = ("he",)
    architectures: tuple[str, ...] = ("simple_cnn", "vgg16", "resnet18_v2")

    def runs(self) -> list[TransferRun]:
        """All runs of one group; a scratch run counts once per number of transferred layers.

        Example:
            >>> len(TRANSFER_SWEEPS["cifar_a"].runs())
            16
        """
        options = product(range(self.seeds), (True, False), self.transferred, _LABELS)
        return [TransferRun(*option) for option in options]

    @property
    def models(self) -> int:
        """Number of networks in the whole sweep.

        Example:
            >>> TRANSFER_SWEEPS["imagenet_b"].models
            600
        """
        return len(self.architectures) * self.groups * len(self.runs())


def _cifar(
    init_scale: tuple[float, float],
    learning_rate: tuple[float, float],
    initializers: tuple[str, ...],
    units: tuple[int, ...],
) -> TransferSweep:
    return TransferSweep(
        groups=20,
        seeds=2,
        init_scale=init_scale,
        learning_rate=learning_rate,
        upstream_examples=(5_000, 10_000, 15_000, 20_000, 25_000),
        upstream_classes=(2, 5, 10, 25, 50, 100),
        upstream_epochs=(20, 40, 80, 100, 120, 150, 200),
        downstream_examples=25_000,
        downstream_epochs=200,
        conv_layers=(1, 2, 3, 4, 5),
        filters=(16, 32),
        units=units,
        transferred=("one", "all"),
        initializers=initializers,
    )


def _imagenet(upstream_examples: tuple[int, ...], downstream_examples: int) -> TransferSweep:
    return TransferSweep(
        groups=10,
        seeds=5,
        init_scale=(0.5, 1.5),
        learning_rate=(0.008, 0.0125),
        upstream_examples=upstream_examples,
        upstream_classes=(1000,),
        upstream_epochs=(100,),
        downstream_examples=downstream_examples,
        downstream_epochs=100,
        conv_layers=(1, 2, 3),
        filters=(16, 32, 64),
        units=(32, 64, 128, 256, 512, 1024),
        transferred=("all",),
    )


TRANSFER_SWEEPS: dict[str, TransferSweep] = {
    "cifar_a": _cifar((0.5, 1.35), (0.008, 0.0125), ("he",), (64, 128, 256, 512, 1024)),
    "cifar_b": _cifar((0.5, 2.0), (0.005, 0.02), ("he", "orthogonal"), (512, 1024, 2048)),
    "imagenet_a": _imagenet((50_000, 100_000), 200_000),
    "imagenet_b": _imagenet((25_000, 50_000), 50_000),
}


def draw_groups(
    sweep: TransferSweep, generator: torch.Generator | None = None
) -> list[TransferGroup]:
    """Random settings of all groups of a sweep, architecture by architecture.

    Args:
        sweep: an entry of ``TRANSFER_SWEEPS``, or one of your own.
        generator: source of randomness.

    Example:
        >>> groups = draw_groups(TRANSFER_SWEEPS["cifar_a"], torch.Generator().manual_seed(0))
        >>> len(groups), groups[0].architecture
        (60, 'simple_cnn')

    References:
        [maennel2020], appendix B.
    """
    return [
        _draw(sweep, architecture, generator)
        for architecture in sweep.architectures
        for _ in range(sweep.groups)
    ]


def _draw(
    sweep: TransferSweep, architecture: str, generator: torch.Generator | None
) -> TransferGroup:
    def choice(options: Sequence[T]) -> T:
        return options[int(torch.randint(len(options), (), generator=generator))]

    def log_uniform(bounds: tuple[float, float]) -> float:
        share = torch.rand((), generator=generator, dtype=torch.float64).item()
        return exp(log(bounds[0]) + share * log(bounds[1] / bounds[0]))

    shared = TransferGroup(
        architecture,
        choice(sweep.initializers),
        log_uniform(sweep.init_scale),
        log_uniform(sweep.learning_rate),
        choice(sweep.upstream_examples),
        choice(sweep.upstream_classes),
        choice(sweep.upstream_epochs),
    )
    if architecture != "simple_cnn":
        return shared
    sizes = choice(sweep.conv_layers), choice(sweep.filters), choice(sweep.units)
    return replace(shared, conv_layers=sizes[0], filters=sizes[1], units=sizes[2])
