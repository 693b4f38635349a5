"""How the gradients of single examples agree, per layer: the family's numbers from their sums."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import require_choice
from theodolite.engine._gradients import GradientSums, gradient_sums
from theodolite.engine._layer_sums import LayerSums, mean_over_classes
from theodolite.engine._losses import Loss
from theodolite.errors import UnknownNameError
from theodolite.linalg import ratio_or_nan

__all__ = ["GradientAlignment", "LayerGradientAlignment", "alignment_of_sums", "gradient_alignment"]


@dataclass(frozen=True)
class LayerGradientAlignment:
    """Agreement of the gradients of one layer.

    Args:
        omega: alignment of all pairs.
        in_class: alignment within classes, averaged over classes where it is defined.
        contrast: the difference of the two.
        classes: alignment within each class.
        weighted: cosine of all pairs, weighted by the product of norms.
        diversity: sum of squared norms over squared norm of the sum.
        relative_norm: norm of the mean gradient over the norm of the weights.
        stiffness: mean cosine of all pairs, where unit vectors were added up.
        within_class_stiffness: the same within classes.
        between_class_stiffness: the same between classes.
    """

    omega: Float[Tensor, "*layers"]
    in_class: Float[Tensor, "*layers"]
    contrast: Float[Tensor, "*layers"]
    classes: Float[Tensor, "*layers k"]
    weighted: Float[Tensor, "*layers"]
    diversity: Float[Tensor, "*layers"]
    relative_norm: Float[Tensor, "*layers"]
    stiffness: Float[Tensor, "*layers"] | None = None
    within_class_stiffness: Float[Tensor, "*layers"] | None = None
    between_class_stiffness: Float[Tensor, "*layers"] | None = None

    def row(self, index: int) -> "LayerGradientAlignment":
        """One of several layers side by side."""
        values: list[Any] = [getattr(self, field.name) for field in fields(self)]
        picked: list[Any] = [None if value is None else value[index] for value in values]
        return LayerGradientAlignment(*picked)


@dataclass(frozen=True)
class GradientAlignment(Mapping[str, LayerGradientAlignment]):
    """Layer -> alignment of its gradients.

    Args:
        stacked: alignment of all layers side by side, then of all parameters, then of the logits.
        sums: what the numbers were made of.
    """

    stacked: LayerGradientAlignment
    sums: GradientSums

    def __getitem__(self, layer: str) -> LayerGradientAlignment:
        if layer not in self.sums.names:
            raise UnknownNameError("layer", layer, self.sums.names)
        return self.stacked.row(self.sums.names.index(layer))

    def __iter__(self) -> Iterator[str]:
        return iter(self.sums)

    def __len__(self) -> int:
        return len(self.sums)

    @property
    def total(self) -> LayerGradientAlignment:
        """Of all parameters together; not the mean over layers."""
        return self.stacked.row(-2)

    @property
    def logits(self) -> LayerGradientAlignment:
        """Of the gradients with respect to the outputs."""
        return self.stacked.row(-1)


def gradient_alignment(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    loss: Loss | None = None,
    *,
    zero: str = "nan",
    **options: Any,
) -> GradientAlignment:
    r"""Alignment of the gradients of single examples, within classes and overall, per layer.

    .. math:: \Omega_\text{in-class} = \frac1k \sum_c \frac{n_c \sum_{i \ne j \in c}
              \langle g_i, g_j\rangle}{(n_c - 1) (\sum_{i \in c} \|g_i\|)^2}

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        inputs: anything that :func:`theodolite.engine.batches.single_batch` accepts.
        targets: of the same examples, where ``inputs`` does not hold them.
        loss: (outputs, targets) -> one number per example; None is the cross-entropy.
        zero: value of a class whose gradients are all zero, ``"nan"`` (left out) or ``"zero"``.
        **options: of :func:`gradient_sums`: ``labels``, ``layers``, ``params``, ``readout``,
            ``stiffness``, ``batch_size``, ``batch_fn``, ``check``, ``processes``.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False))
        >>> found = gradient_alignment(model, torch.ones(4, 2), torch.tensor([0, 0, 1, 1]))
        >>> round(found["0"].in_class.item(), 4)
        1.0

    References:
        [mehta2021], Eq. (6).
    """
    require_choice(("nan", "zero"), zero=zero)
    sums = gradient_sums(model, inputs, targets, loss, **options)
    return GradientAlignment(alignment_of_sums(sums.stacked, zero), sums)


def alignment_of_sums(sums: LayerSums, zero: str = "nan") -> LayerGradientAlignment:
    """The numbers that follow from the sums of one layer, or of several side by side."""
    classes, omega = sums.classes.alignment(zero), sums.overall.alignment(zero)
    in_class = mean_over_classes(classes)
    mean_gradient = sums.overall.sum_square.sqrt() / sums.overall.count
    units = sums.units
    return LayerGradientAlignment(
        omega=omega,
        in_class=in_class,
        contrast=in_class - omega,
        classes=classes,
        weighted=sums.overall.weighted_alignment(),
        diversity=sums.overall.diversity(),
        relative_norm=ratio_or_nan(mean_gradient, sums.weight_norm),
        stiffness=None if units is None else units.stiffness(),
        within_class_stiffness=None if units is None else units.within_class(),
        between_class_stiffness=None if units is None else units.between_class(),
    )
