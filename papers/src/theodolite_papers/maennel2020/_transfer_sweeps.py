"""The random sweeps over transfer settings: their settings, ranges and numbers of runs."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["TRANSFER_SWEEPS", "TransferSweep"]


@dataclass(frozen=True)
class TransferSweep:
    """Ranges of one sweep. Scales and learning rates are log-uniform, the rest uniform choices.

    References:
        [maennel2020], appendix B.
    """

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

    @property
    def models(self) -> int:
        """Number of networks: each group with real and random labels, transferred and from scratch.

        A scratch run counts once per number of transferred layers.

        Example:
            >>> TRANSFER_SWEEPS["cifar_a"].models
            960
        """
        return len(self.architectures) * self.groups * self.seeds * 2 * 2 * len(self.transferred)


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


TRANSFER_SWEEPS: dict[str, TransferSweep] = {
    "cifar_a": _cifar((0.5, 1.35), (0.008, 0.0125), ("he",), (64, 128, 256, 512, 1024)),
    "cifar_b": _cifar((0.5, 2.0), (0.005, 0.02), ("he", "orthogonal"), (512, 1024, 2048)),
}
