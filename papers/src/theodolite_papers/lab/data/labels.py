"""Labels that are not the true ones: uniformly random, or partly corrupted."""

from dataclasses import dataclass

import torch
from jaxtyping import Integer
from torch import Tensor

from theodolite.checks import require_between, require_count, require_labels

__all__ = ["CorruptedLabels", "corrupted_labels", "random_labels"]


@dataclass(frozen=True)
class CorruptedLabels:
    """Labels of which some were redrawn, and the rows where that happened, ascending."""

    labels: Integer[Tensor, " n"]
    rows: Integer[Tensor, " k"]


def random_labels(
    count: int, num_classes: int, generator: torch.Generator | None = None
) -> Integer[Tensor, " n"]:
    """Independent uniform class labels, drawn once and then fixed.

    Args:
        count: number of examples.
        num_classes: labels are drawn from ``0 .. num_classes - 1``.
        generator: source of randomness.

    Example:
        >>> random_labels(5, 3, torch.Generator().manual_seed(0)).shape
        torch.Size([5])

    References:
        [maennel2020], appendix A.1; [imani2022], section 6.
    """
    require_count(1, count=count, num_classes=num_classes)
    return torch.randint(num_classes, (count,), generator=generator)


def corrupted_labels(
    labels: Integer[Tensor, " n"],
    fraction: float,
    num_classes: int | None = None,
    generator: torch.Generator | None = None,
) -> CorruptedLabels:
    r"""Replace an exact share of the labels by uniform draws.

    :math:`\operatorname{round}(fn)` rows, picked without replacement, get a fresh uniform label.
    The old label may recur, so about :math:`f(1 - 1/k)n` labels differ afterwards.

    Args:
        labels: true class labels.
        fraction: :math:`f`, share of rows that are redrawn.
        num_classes: :math:`k`; one more than the largest label if left out.
        generator: source of randomness.

    Raises:
        DomainError: If the fraction lies outside [0, 1] or a label outside the classes.

    Example:
        >>> noisy = corrupted_labels(torch.zeros(10, dtype=torch.long), 0.2, num_classes=4)
        >>> len(noisy.rows)
        2

    References:
        [lou2022], Figures 19 and 20.
    """
    classes = require_labels(labels, num_classes)
    require_between(0.0, 1.0, fraction=fraction)
    count = round(fraction * len(labels))
    rows = torch.randperm(len(labels), generator=generator)[:count].sort().values
    fresh = torch.randint(classes, (count,), generator=generator)
    answer = labels.clone()
    answer[rows.to(labels.device)] = fresh.to(labels)
    return CorruptedLabels(answer, rows)
