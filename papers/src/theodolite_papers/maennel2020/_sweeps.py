"""The sweeps over transfer settings: one group per point, its runs from all starts and labels."""

from dataclasses import dataclass, field

from theodolite.sweeps import LogUniform, Space
from theodolite_papers.ledger import Measured, Trial
from theodolite_papers.maennel2020._images import Images
from theodolite_papers.maennel2020._transfer import LABELS, Network, Protocol, Stage, Transfer
from theodolite_papers.maennel2020._transfer_sweeps import TRANSFER_SWEEPS, TransferSweep

__all__ = ["Group", "measure_group", "sweep_space"]

_RESIDUAL = "resnet18_v2"


@dataclass(frozen=True)
class Group:
    """Settings of a group; those that a sweep draws come first.

    Args:
        architecture: of all its networks.
        initializer: distribution of the weights.
        init_scale: factor of their standard deviation.
        learning_rate: first rate of both trainings.
        upstream_examples: with random labels.
        upstream_classes: of these labels.
        upstream_epochs: of pre-training.
        conv_layers: of the Simple CNN.
        filters: of the Simple CNN.
        units: of the Simple CNN.
        upstream_steps: instead of the epochs; 0 for none.
        downstream: fine-tuning.
        transferred: which layers are moved: ``"one"``, ``"all"``, or both in turn.
        batch_size: of both trainings.
        images: what is trained on.
        test_examples: how many test images are evaluated.
    """

    architecture: str = "simple_cnn"
    initializer: str = "he"
    init_scale: float = 1.0
    learning_rate: float = 0.01
    upstream_examples: int = 20_000
    upstream_classes: int = 10
    upstream_epochs: int = 80
    conv_layers: int = 3
    filters: int = 16
    units: int = 512
    upstream_steps: int = 0
    downstream: Stage = field(default_factory=lambda: Stage(25_000, epochs=200))
    transferred: tuple[str, ...] = ("one", "all")
    batch_size: int = 256
    images: Images = field(default_factory=Images)
    test_examples: int = 10_000

    def transfer(self) -> Transfer:
        """The group as a transfer experiment."""
        steps = self.upstream_steps or None
        network = Network(
            self.architecture,
            self.conv_layers,
            self.filters,
            self.units,
            initializer=self.initializer,  # type: ignore[arg-type]
            init_scale=self.init_scale,
        )
        upstream = Stage(
            self.upstream_examples,
            self.upstream_classes,
            epochs=None if steps else self.upstream_epochs,
            steps=steps,
        )
        return Transfer(
            network,
            upstream,
            self.downstream,
            self.learning_rate,
            self.batch_size,
            self.images,
            self.test_examples,
            rescale=self.architecture != _RESIDUAL,
        )


def measure_group(config: Group, trial: Trial) -> Measured:
    """Areas under training and test curves; a scratch run serves all numbers of layers."""
    protocol = Protocol(config.transfer(), trial)
    numbers: dict[str, float] = {}
    for labels in LABELS:
        for start in ("scratch", *config.transferred):
            if start == "scratch":
                model = protocol.scratch()
            else:
                model = protocol.start("all" if start == "all" else _first(config))
            course = protocol.finetune(model, labels)
            numbers[f"{labels}_{start}"] = course.auc
            numbers[f"test_{labels}_{start}"] = course.test_auc
    return Measured(numbers)


def _first(config: Group) -> int | list[str]:
    """The first layer; of a residual network the stem."""
    return ["stem"] if config.architecture == _RESIDUAL else 1


def sweep_space(name: str, seed: int = 0) -> Space:
    """The published ranges of a sweep: its groups for each architecture."""
    sweep: TransferSweep = TRANSFER_SWEEPS[name]
    return Space(
        {"architecture": list(sweep.architectures)},
        {
            "initializer": list(sweep.initializers),
            "init_scale": LogUniform(*sweep.init_scale),
            "learning_rate": LogUniform(*sweep.learning_rate),
            "upstream_examples": list(sweep.upstream_examples),
            "upstream_classes": list(sweep.upstream_classes),
            "upstream_epochs": list(sweep.upstream_epochs),
            "conv_layers": list(sweep.conv_layers),
            "filters": list(sweep.filters),
            "units": list(sweep.units),
        },
        samples=sweep.groups,
        seed=seed,
    )
