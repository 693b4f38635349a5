"""An experiment in a file: a model, data and a recipe by name, as TOML.

.. code-block:: toml

    [model]
    name = "mlp"
    sizes = [64, 128, 10]

    [data]
    name = "digits"
    scaling = "unit_interval"

    [recipe]
    optimizer = "adam"
    learning_rate = 1e-3
    epochs = 20
"""

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from theodolite.checks import require_choice, require_count
from theodolite.data import SCALINGS, Dataset, load_data, scaled
from theodolite.errors import DomainError, UnknownNameError
from theodolite_papers.lab import models
from theodolite_papers.lab.training.checkpoints import Checkpoint
from theodolite_papers.lab.training.evaluation import TrainingLog
from theodolite_papers.lab.training.loop import train
from theodolite_papers.lab.training.recipe import Recipe, recipe_from_mapping

__all__ = ["MODELS", "Experiment", "read_experiment", "run_experiment"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "conv_net": models.conv_net,
    "densenet121": models.densenet121,
    "efficientnet_lite0": models.efficientnet_lite0,
    "kernel_resnet": models.kernel_resnet,
    "mlp": models.mlp,
    "mobilenet_v2": models.mobilenet_v2,
    "ntk_mlp": models.ntk_mlp,
    "resnet18": models.resnet18,
    "resnet18_v2": models.resnet18_v2,
    "resnet50": models.resnet50,
    "simple_cnn": models.simple_cnn,
    "simple_cnn_pooled": models.simple_cnn_pooled,
    "strided_cnn": models.strided_cnn,
    "vgg16": models.vgg16,
    "vgg19": models.vgg19,
    "wide_resnet": models.wide_resnet,
}


@dataclass(frozen=True)
class Experiment:
    """What to train on what, and how.

    Args:
        model: name in :data:`MODELS`.
        data: a word that :func:`load_data` understands.
        recipe: how to train.
        model_options: arguments of the model.
        model_seed: of its initial weights; the recipe's if not given.
        scaling: of the inputs, e.g. ``"unit_interval"``; pixels must be scaled.
        data_seed: of a random split or of drawn data; a fixed split if not given.

    Raises:
        UnknownNameError: If the model or one of its options does not exist; lists the nearest.
    """

    model: str
    data: str
    recipe: Recipe
    model_options: Mapping[str, Any] = field(default_factory=dict)
    model_seed: int | None = None
    scaling: str | None = None
    data_seed: int | None = None

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise UnknownNameError("model", self.model, MODELS)
        known = list(inspect.signature(MODELS[self.model]).parameters)
        for option in self.model_options:
            if option not in known or option == "generator":
                raise UnknownNameError(f"option of {self.model}", option, known)
        if self.scaling is not None:
            require_choice(SCALINGS, scaling=self.scaling)
        for seed in (self.model_seed, self.data_seed):
            if seed is not None:
                require_count(0, seed=seed)

    def build_model(self) -> nn.Module:
        """The network with its initial weights."""
        seed = self.recipe.seed if self.model_seed is None else self.model_seed
        generator = torch.Generator().manual_seed(seed)
        options = {
            name: tuple(value) if name == "input_shape" else value
            for name, value in self.model_options.items()
        }
        try:
            return MODELS[self.model](**options, generator=generator)
        except TypeError as error:
            raise DomainError(f"[model]: {self.model} cannot be built ({error})") from error

    def load_data(self) -> Dataset:
        """The data, scaled."""
        generator = None
        if self.data_seed is not None:
            generator = torch.Generator().manual_seed(self.data_seed)
        dataset = load_data(self.data, generator)
        if self.scaling is not None:
            dataset = scaled(dataset, self.scaling)  # type: ignore[arg-type]
        if not dataset.x_train.is_floating_point():
            raise DomainError(
                f"[data]: {self.data} holds raw {dataset.x_train.dtype} values; add "
                'scaling = "unit_interval" or another one'
            )
        return dataset


def read_experiment(path: str | Path) -> Experiment:
    """An experiment from a TOML file with the sections model, data and recipe.

    Raises:
        DomainError: If the file is no TOML, or a section or its name is missing.
        UnknownNameError: If a section, setting, model or option does not exist.
    """
    try:
        sections = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DomainError(
            f"{path}: expected a TOML file, but it cannot be read ({error.strerror})"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DomainError(f"{path}: expected a TOML file, got: {error}") from error
    known = ("model", "data", "recipe")
    for name in sections:
        if name not in known:
            raise UnknownNameError("section", name, known)
    missing = [name for name in known if not isinstance(sections.get(name), dict)]
    if missing:
        raise DomainError(f"{path}: expected sections [model], [data], [recipe]; missing {missing}")
    model, data = dict(sections["model"]), dict(sections["data"])
    names = _pop_name(path, "model", model), _pop_name(path, "data", data)
    unknown = [name for name in data if name not in ("scaling", "seed")]
    if unknown:
        raise UnknownNameError("setting of [data]", unknown[0], ("name", "scaling", "seed"))
    return Experiment(
        *names,
        recipe_from_mapping(sections["recipe"]),
        model_seed=model.pop("seed", None),
        model_options=model,
        scaling=data.get("scaling"),
        data_seed=data.get("seed"),
    )


def _pop_name(path: str | Path, section: str, settings: dict[str, Any]) -> str:
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise DomainError(f"{path}: expected a name in [{section}], got {name!r}")
    return name


def run_experiment(
    experiment: Experiment,
    *,
    device: str = "cpu",
    checkpoint: Checkpoint | str | Path | None = None,
    progress: bool = False,
) -> tuple[nn.Module, TrainingLog]:
    """Train the experiment's network on its data; the network and the log.

    Raises:
        DomainError: If the device does not exist here.
    """
    try:
        model = experiment.build_model().to(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        first = str(error).partition("\n")[0][:100]
        raise DomainError(f"device: {device!r} cannot be used here ({first}); try cpu") from error
    dataset = experiment.load_data()
    log = train(
        model,
        (dataset.x_train, dataset.y_train),
        experiment.recipe,
        test=(dataset.x_test, dataset.y_test),
        checkpoint=checkpoint,
        progress=progress,
    )
    return model, log
