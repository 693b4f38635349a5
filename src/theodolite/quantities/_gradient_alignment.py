"""How the gradients of single examples agree, per layer: the family's numbers from their sums."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import require_choice
from theodolite.linalg import ratio_or_nan
from theodolite.measures.gradient._alignment import mean_over_defined
from theodolite.quantities._gradients import GradientSums, gradient_sums
from theodolite.quantities._layer_sums import LayerSums
from theodolite.quantities._losses import Loss

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

    omega: Float[Tensor, ""]
    in_class: Float[Tensor, ""]
    contrast: Float[Tensor, ""]
    classes: Float[Tensor, " k"]
    weighted: Float[Tensor, ""]
    diversity: Float[Tensor, ""]
    relative_norm: Float[Tensor, ""]
    stiffness: Float[Tensor, ""] | None = None
    within_class_stiffness: Float[Tensor, ""] | None = None
    between_class_stiffness: Float[Tensor, ""] | None = None


@dataclass(frozen=True)
class GradientAlignment(Mapping[str, LayerGradientAlignment]):
    """Layer -> alignment of its gradients.

    Args:
        layers: one entry per layer.
        logits: of the gradients with respect to the outputs.
        total: of all parameters together; not the mean over layers.
        sums: what the numbers were made of.
    """

    layers: Mapping[str, LayerGradientAlignment]
    logits: LayerGradientAlignment
    total: LayerGradientAlignment
    sums: GradientSums

    def __getitem__(self, layer: str) -> LayerGradientAlignment:
        return self.layers[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


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
        inputs: anything that :func:`theodolite.capture.batches.single_batch` accepts.
        targets: of the same examples, where ``inputs`` does not hold them.
        loss: (outputs, targets) -> one number per example; None is the cross-entropy.
        zero: value of a class whose gradients are all zero, ``"nan"`` (left out) or ``"zero"``.
        **options: of :func:`gradient_sums`: ``labels``, ``layers``, ``params``, ``readout``,
            ``stiffness``, ``batch_size``, ``batch_fn``, ``check``.

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
    return GradientAlignment(
        {name: alignment_of_sums(layer, zero) for name, layer in sums.items()},
        alignment_of_sums(sums.logits, zero),
        alignment_of_sums(sums.total, zero),
        sums,
    )


def alignment_of_sums(sums: LayerSums, zero: str = "nan") -> LayerGradientAlignment:
    """The numbers that follow from the sums of one layer."""
    classes, omega = sums.classes.alignment(zero), sums.overall.alignment(zero)
    in_class = mean_over_defined(classes)
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
