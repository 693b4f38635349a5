"""First layers trained on Gaussian inputs or on images: training, measurements, pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.engine import patch_covariance, weight_covariance
from theodolite.linalg import symmetric_eigen
from theodolite.measures.covariance import compare_misalignment, transfer_function
from theodolite_papers.lab.data import gaussian_inputs, random_labels
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Recipe, TrainingState, train, train_ensemble
from theodolite_papers.ledger import Trial
from theodolite_papers.maennel2020._transfer import Images, Labeled, Network, draw_images
from theodolite_papers.maennel2020.formulas.curves import unimodality_defect

__all__ = [
    "FilterTraining",
    "FilterWatch",
    "GaussianRuns",
    "as_images",
    "covariance_of",
    "drawn_data",
    "eigenvectors",
    "filter_summary",
    "same_sign",
    "train_on_gaussians",
    "trained_filters",
]


@dataclass(frozen=True)
class GaussianRuns:
    """Independent networks, each with its own inputs, labels and initial weights.

    Args:
        variances: eigenvalues of the data covariance, which is diagonal.
        widths: of the two hidden layers.
        samples: inputs of each network.
        runs: number of networks.
        steps: of training.
        learning_rate: constant.
        batch_size: of training.
        classes: of the random labels.
        first_scale: factor of the first layer's initial weights.
        momentum: 0 is plain gradient descent.
    """

    variances: tuple[float, ...]
    widths: tuple[int, int]
    samples: int
    runs: int
    steps: int
    learning_rate: float = 0.05
    batch_size: int = 128
    classes: int = 10
    first_scale: float = 1.0
    momentum: float = 0.0

    @property
    def covariance(self) -> Tensor:
        """Covariance of the inputs."""
        return torch.diag(torch.tensor(self.variances, dtype=torch.float64))


def train_on_gaussians(
    setting: GaussianRuns, trial: Trial, stream: int = 0
) -> tuple[Tensor, float]:
    """First-layer weights (run, neuron, dimension), and the mean accuracy on the labels."""
    generator = trial.generator(stream)
    data = [_pair(setting, generator) for _ in range(setting.runs)]
    sizes: Sequence[int] = (len(setting.variances), *setting.widths, setting.classes)
    scales = [setting.first_scale, 1.0, 1.0]
    models = [
        mlp(sizes, scale=scales, generator=generator).to(trial.device) for _ in range(setting.runs)
    ]
    recipe = Recipe(
        optimizer="momentum" if setting.momentum else "sgd",
        momentum=setting.momentum,
        learning_rate=setting.learning_rate,
        batch_size=setting.batch_size,
        steps=setting.steps,
        drop_last=True,
        seed=trial.seed * 1000,
        log="ends",
    )
    logs = train_ensemble(models, data, recipe)
    weights = torch.stack([model.get_parameter("fc1.weight").detach().cpu() for model in models])
    accuracy = sum(log.final.train.accuracy for log in logs) / len(logs)
    return weights.double(), accuracy


def _pair(setting: GaussianRuns, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = gaussian_inputs(setting.samples, setting.covariance, generator=generator)
    return inputs.float(), random_labels(setting.samples, setting.classes, generator)


_CLASSES = 10


@dataclass(frozen=True)
class FilterTraining:
    """How a network with one convolution is trained on images.

    Args:
        network: one convolution of 256 filters and 64 units in the paper.
        images: what it is trained on.
        examples: number of images.
        epochs: passes over them.
        learning_rate: first rate, divided by 3 after each third.
        batch_size: incomplete batches are left out.
    """

    network: Network = field(default_factory=lambda: Network(conv_layers=1, filters=256, units=64))
    images: Images = field(default_factory=Images)
    examples: int = 50_000
    epochs: int = 40
    learning_rate: float = 0.01
    batch_size: int = 256

    def recipe(self, seed: int) -> Recipe:
        """The paper's recipe."""
        return Recipe(
            optimizer="momentum",
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            epochs=self.epochs,
            schedule="thirds",
            drop_last=True,
            seed=seed,
            log="ends",
        )

    @property
    def steps_per_epoch(self) -> int:
        """Number of whole batches in one epoch."""
        return self.examples // self.batch_size


class FilterWatch:
    """Misalignment and transfer function of the first convolution at chosen epochs."""

    def __init__(self, covariance: Tensor, steps: dict[int, int], trial: Trial) -> None:
        self._covariance, self._steps, self._trial = covariance, steps, trial
        self.epochs: list[int] = []
        self.value: list[float] = []
        self.baseline: list[list[float]] = []
        self.tau: list[list[float]] = []
        self.sigma: list[float] = []
        self.floor = float("nan")

    def __call__(self, state: TrainingState) -> None:
        """Measure if it is time."""
        if state.step in self._steps:
            self.measure(state.step, state.model)

    def measure(self, step: int, model: nn.Module) -> None:
        """Measure the filters after a step; the random bases are the same every time."""
        filters = model.get_parameter("conv1.weight").detach().cpu().double().flatten(1)
        score = compare_misalignment(
            self._covariance,
            weight_covariance(filters),
            len(filters),
            generator=self._trial.generator(90),
        )
        curve = transfer_function(self._covariance, filters)
        self.epochs.append(self._steps[step])
        self.value.append(float(score.value))
        self.baseline.append(score.baseline.tolist())
        self.floor = float(score.floor)
        self.sigma = curve.sigma.flip(0).tolist()
        self.tau.append(curve.tau.flip(0).tolist())


def filter_summary(name: str, watch: FilterWatch) -> dict[str, float]:
    """First and last scores, and the shape of the last curve, by name."""
    first, last = torch.tensor(watch.tau[0]), torch.tensor(watch.tau[-1])
    return {
        f"{name}_start": watch.value[0],
        f"{name}_end": watch.value[-1],
        f"{name}_lowest_base": min(watch.baseline[-1]),
        f"{name}_mean_base": float(np.mean(watch.baseline[-1])),
        f"{name}_mean_base_start": float(np.mean(watch.baseline[0])),
        f"{name}_defect": float(unimodality_defect(last.double())),
        f"{name}_peak": float(last.argmax()) / (len(last) - 1),
        f"{name}_top_to_peak": float(last[-1] / last.max()),
        f"{name}_spread_start": float(first.max() - first.min()),
        f"{name}_spread_end": float(last.max() - last.min()),
    }


def drawn_data(config: FilterTraining, trial: Trial, labels: str, stream: int = 0) -> Labeled:
    """Images with real or random labels."""
    ((images, real),) = draw_images(config.images, trial.generator(stream), config.examples)
    if labels == "real":
        return images, real
    return images, random_labels(len(images), _CLASSES, trial.generator(stream + 1))


def trained_filters(
    config: FilterTraining, trial: Trial, data: Labeled, stream: int, watch: FilterWatch | None
) -> tuple[nn.Module, float]:
    """A network trained from its own initial weights, and its accuracy on the labels."""
    shape = tuple(data[0].shape[1:])
    network = config.network.build(_CLASSES, shape, trial.generator(stream)).to(trial.device)
    callbacks = () if watch is None else (watch,)
    log = train(network, data, config.recipe(trial.seed * 100 + stream), callbacks=callbacks)
    return network, log.final.train.accuracy


def covariance_of(images: Tensor, side: int = 3) -> Tensor:
    """Covariance of all full patches."""
    matrix = patch_covariance(images, side)
    assert isinstance(matrix, Tensor)
    return torch.as_tensor(matrix, dtype=torch.float64)


def eigenvectors(covariance: Tensor, count: int) -> Tensor:
    """Leading eigenvectors as rows; the sum of entries is positive, else the largest entry.

    Eigenvectors have no sign of their own: a picture needs one that does not depend on the solver.
    """
    vectors = symmetric_eigen(covariance.double()).vectors[:, :count].mT
    sums = vectors.sum(1)
    places = vectors.abs().argmax(1, keepdim=True)
    largest = vectors.gather(1, places).squeeze(1)
    clear = sums.abs() > 0.1 * vectors.abs().sum(1)
    signs = torch.where(clear, sums, largest).sign()
    return vectors * signs[:, None]


def same_sign(rows: Tensor, reference: Tensor) -> Tensor:
    """Each row with the sign that agrees with the reference's row."""
    products = (rows * reference).sum(1, keepdim=True)
    return torch.where(products < 0, -rows, rows)


def as_images(rows: Tensor, side: int) -> np.ndarray:
    """Channel-major rows as images (count, side, side, channels); one channel stays gray."""
    images = rows.reshape(len(rows), -1, side, side).permute(0, 2, 3, 1).float().numpy()
    return images[..., 0] if images.shape[-1] == 1 else images
