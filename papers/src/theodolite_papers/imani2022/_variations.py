"""The configurations of Figures 6, 17 and 18: five sweeps around one base."""

from dataclasses import dataclass, field, replace

from theodolite_papers.imani2022._networks import Training

__all__ = ["Architecture", "Variations"]


@dataclass(frozen=True)
class Architecture:
    """One configuration around the base: depth 4, width 128, ReLU, Adam, batches of 64."""

    depth: int = 4
    width: int = 128
    activation: str = "relu"
    optimizer: str = "adam"
    batch_size: int = 64


@dataclass(frozen=True)
class Variations:
    """Five sweeps around one base configuration, on one task.

    Args:
        task: what the networks learn.
        train: number of training examples.
        test: number of test examples.
        training: how long, and when it stops.
        depths: numbers of hidden layers.
        widths: of hidden layers.
        activations: beside ReLU.
        optimizers: beside Adam.
        batch_sizes: beside 64.
        bias: whether representations get a constant column.
    """

    task: str = "digits-parity"
    train: int = 640
    test: int = 797
    training: Training = field(default_factory=lambda: Training(epochs=50))
    depths: tuple[int, ...] = (1, 2, 4, 6)
    widths: tuple[int, ...] = (32, 128, 256)
    activations: tuple[str, ...] = ("tanh", "prelu", "leaky_relu", "linear")
    optimizers: tuple[str, ...] = ("sgd", "momentum", "rmsprop")
    batch_sizes: tuple[int, ...] = (32, 128, 256)
    bias: bool = True

    def architectures(self) -> dict[str, Architecture]:
        """Every configuration by name; the base is both a depth and a width."""
        base = Architecture()
        named = {f"depth {d}": replace(base, depth=d) for d in self.depths}
        named |= {f"width {w}": replace(base, width=w) for w in self.widths if w != base.width}
        named |= {a: replace(base, activation=a) for a in self.activations}
        named |= {o: replace(base, optimizer=o) for o in self.optimizers}
        return named | {f"batch {b}": replace(base, batch_size=b) for b in self.batch_sizes}
