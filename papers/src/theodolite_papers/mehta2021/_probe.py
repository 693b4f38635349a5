"""What is measured of a network at one step: accuracy, and agreement on a fixed probe set."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from theodolite.data import Dataset
from theodolite.engine import features, gradient_alignment, tangent_kernels
from theodolite.engine.state import exact_arithmetic
from theodolite.measures.gradient import alignment_contrast, confusion_of_gram, in_class_alignment
from theodolite_papers.lab.data import balanced_rows
from theodolite_papers.lab.training import Hinge, Loss, Softmax, Squared, evaluate

__all__ = ["LOSSES", "QUANTITIES", "Probe"]

LOSSES: dict[str, Callable[[], Loss]] = {
    "softmax": Softmax,
    "hinge": Hinge,
    # The program's mean over the classes, not the text's half sum.
    "squared": lambda: Squared(reduction="mean"),
}

QUANTITIES = (
    "train",  # accuracy
    "test",
    "hidden",  # in-class alignment of the gradients of the first layer
    "top",  # of the last layer
    "logit",  # of the outputs
    "representation",  # of the activations of the last hidden layer
    "hidden_contrast",  # in-class minus overall
    "representation_contrast",
    "relative_norm",  # of the first layer
    "diversity",
    "stiffness",
    "confusion",
)


@dataclass(frozen=True)
class Probe:
    """A class-balanced part of the training set, and both whole sets for the accuracies.

    Args:
        data: on the device of the networks, with the labels that are trained on.
        rows: of the training set, equally many of each class.
        loss: that is trained with.
        layers: first layer, last layer, and the activation before the last layer.
    """

    data: Dataset
    rows: Tensor
    loss: Loss
    layers: tuple[str, str, str]

    @classmethod
    def of(
        cls,
        data: Dataset,
        size: int,
        loss: Loss,
        layers: tuple[str, str, str],
        generator: torch.Generator,
    ) -> "Probe":
        """A probe of at most ``size`` rows; with many classes the first ten, as the program."""
        classes = list(range(min(data.num_classes, 10)))
        labels = data.y_train.cpu()
        fewest = min(int((labels == c).sum()) for c in classes)
        each = min(size // len(classes), fewest)
        rows = balanced_rows(labels, each * len(classes), classes, generator)
        return cls(data, rows.to(data.x_train.device), loss, layers)

    def accuracies(self, model: nn.Module) -> dict[str, float]:
        """Share of right answers on both whole sets."""
        data = self.data
        return {
            "train": evaluate(model, data.x_train, data.y_train, self.loss).accuracy,
            "test": evaluate(model, data.x_test, data.y_test, self.loss).accuracy,
        }

    def representation(self, model: nn.Module) -> dict[str, float]:
        """Alignment and contrast of the last hidden layer; a class of zeros counts as 0."""
        x, y = self.data.x_train[self.rows], self.data.y_train[self.rows]
        with exact_arithmetic(x.device):
            hidden = features(model, x, [self.layers[2]], read="raw")[self.layers[2]]
        return {
            "representation": float(in_class_alignment(hidden, y, zero="zero")),
            "representation_contrast": float(alignment_contrast(hidden, y, zero="zero")),
        }

    def gradients(self, model: nn.Module, check: bool = False) -> dict[str, float]:
        """Agreement of the gradients of single examples; a class of zeros counts as 0."""
        x, y = self.data.x_train[self.rows], self.data.y_train[self.rows]
        first, last, _ = self.layers
        found = gradient_alignment(
            model, x, y, self.loss, zero="zero", stiffness=True, check=check, layers=[first, last]
        )
        hidden, top = found[first], found[last]
        gram = tangent_kernels(model, (x, y), [first], outputs=self.loss, check=False)[first]
        assert hidden.stiffness is not None
        return {
            "hidden": float(hidden.in_class),
            "top": float(top.in_class),
            "logit": float(found.logits.in_class),
            "hidden_contrast": float(hidden.contrast),
            "relative_norm": float(hidden.relative_norm),
            "diversity": float(hidden.diversity),
            "stiffness": float(hidden.stiffness),
            "confusion": float(confusion_of_gram(gram)),
        }

    def everything(self, model: nn.Module, check: bool = False) -> dict[str, float]:
        """One value of each of ``QUANTITIES``."""
        return self.accuracies(model) | self.representation(model) | self.gradients(model, check)
