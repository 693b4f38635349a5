"""Compare two initialisations: filters drawn at random, and filters made from the data.

Run: ``python docs/examples/compare_initializations.py``. If filters follow the patches of the
images, their misalignment is below that of random bases. The example measures both networks before
and after training.
"""

from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import theodolite as th
from theodolite.data import Dataset, digits, scaled
from theodolite.interventions import covariance_init_, initialize_

FAMILIES = ("representation", "covariance", "kernel")


def network() -> nn.Module:
    """A small CNN for 8x8 images, the same every time."""
    layers = OrderedDict(
        conv1=nn.Conv2d(1, 32, 3, padding=1),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 32, 3, padding=1),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        dense=nn.Linear(32 * 8 * 8, 64),
        relu3=nn.ReLU(),
        head=nn.Linear(64, 10),
    )
    generator = torch.Generator().manual_seed(0)
    return initialize_(nn.Sequential(layers), generator=generator)


def train(model: nn.Module, data: Dataset, epochs: int) -> float:
    """Adam on batches of 128; returns the test accuracy."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _epoch in range(epochs):
        for rows in torch.randperm(len(data.x_train), generator=generator).split(128):
            optimizer.zero_grad()
            cross_entropy(model(data.x_train[rows]), data.y_train[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return (model(data.x_test).argmax(1) == data.y_test).double().mean().item()


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
        print(f"{name}: test accuracy {train(model, data, epochs):.3f}")
        surveys.append(surveyed(f"{name}, after", model, data))
    for survey in surveys:
        print(survey.summary(), end="\n\n")
    comparison = th.compare(*surveys)
    print(comparison.to_html(folder / "report.html"))
    return comparison


if __name__ == "__main__":
    main()
