"""Compare two initializations: filters drawn at random, and filters drawn from the data.

Run: ``python docs/examples/compare_initializations.py``. Filters that follow the patches of the
images show as a misalignment below that of random bases; then see what training makes of both.
"""

from pathlib import Path

import torch
from torch import nn

import theodolite as th
from theodolite.data import Dataset, digits, scaled
from theodolite.interventions import covariance_init_
from theodolite_papers.lab.models import simple_cnn
from theodolite_papers.lab.training import Recipe, train

FAMILIES = ("representation", "covariance", "kernel")


def network() -> nn.Sequential:
    """A small CNN for 8x8 images, the same every time."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, 8, 8)
    return simple_cnn(conv_layers=2, filters=32, units=64, input_shape=shape, generator=generator)


def surveyed(name: str, model: nn.Module, data: Dataset) -> th.Survey:
    """Three families on the test set."""
    pairs = (data.x_test, data.y_test)
    labels = {"split": "test", "label_source": "true"}
    return th.survey(model, pairs, families=FAMILIES, name=name, options=labels)


def main(folder: Path = Path("runs/initializations"), epochs: int = 5) -> th.Comparison:
    """Survey both networks before and after training."""
    data = scaled(digits(), "unit_interval")
    networks = {"random": network(), "from the data": network()}
    generator = torch.Generator().manual_seed(1)
    covariance_init_(networks["from the data"], data.x_train, tau="f1", generator=generator)
    surveys = [surveyed(f"{name}, before", model, data) for name, model in networks.items()]
    for name, model in networks.items():
        recipe = Recipe(optimizer="adam", learning_rate=1e-3, batch_size=128, epochs=epochs)
        log = train(model, (data.x_train, data.y_train), recipe, test=(data.x_test, data.y_test))
        surveys.append(surveyed(f"{name}, after", model, data))
        assert log.final.test is not None
        print(f"{name}: test accuracy {log.final.test.accuracy:.3f}")
    for survey in surveys:
        print(survey.summary(), end="\n\n")
    comparison = th.compare(*surveys)
    print(comparison.to_html(folder / "report.html"))
    return comparison


if __name__ == "__main__":
    main()
