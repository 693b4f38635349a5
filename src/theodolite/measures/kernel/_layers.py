"""CKA of many layers with each other and with labels, each kernel read once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_labels,
    require_same_length,
)
from theodolite.errors import ShapeError
from theodolite.linalg import array_function, eps_of, prints_shapes
from theodolite.measures.kernel._from_features import (
    CenteredRows,
    LabelKernel,
    factor_products,
    require_paired_features,
    vanishing,
    with_labels,
)
from theodolite.measures.kernel.alignment import cka_from_products

Estimator = Literal["debiased", "biased"]


@prints_shapes
@dataclass(frozen=True)
class CkaMatrix:
    """CKA of every pair of layers, and of every layer with the labels."""

    between: Float[Tensor, "l l"]
    target: Float[Tensor, " l"] | None  # None without labels
    estimator: Estimator


@array_function
def cka_matrix(
    layers: Sequence[Float[Tensor, "n _"]] | Mapping[str, Float[Tensor, "n _"]],
    labels: Integer[Tensor, " n"] | None = None,
    debiased: bool = True,
) -> CkaMatrix:
    r"""Linear CKA of many layers with each other and with labels, each kernel computed once.

    The cheaper of two routes is used: blocks :math:`F_a^\top F_b` for all pairs, or tiles of all
    Gram matrices at once, which then serve every pair. No n x n matrix exists at any time.

    Range: entries in [-1, 1]; biased: [0, 1].
    Invariant to: scaling, orthogonal maps and shifts of any layer; a joint permutation.
    Undefined (``nan``): entries of layers that are constant up to rounding, of labels of one class;
        debiased: fewer than four examples.

    Args:
        layers: features of every layer, one row per example, the same examples in the same order;
            a list, or a mapping such as :func:`theodolite.features` returns.
        labels: integer class of every example.
        debiased: use the debiased estimator; False uses the paper's plug-in form.

    Returns:
        The table of all pairs of layers and, if labels are given, CKA to labels of each
        layer.

    Raises:
        ShapeError: If there is no layer, or the layers differ in their number of rows.
        DomainError: If an entry is not finite or a label is negative, or one is a Gram matrix.

    Examples:
        >>> x = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
        >>> table = cka_matrix([x, -x], torch.tensor([0, 0, 1, 1]), debiased=False)
        >>> [round(value, 4) for value in (table.between[0, 1].item(), table.target[0].item())]
        [1.0, 0.9412]

    References:
        [canatar2022], Fig. 1; [kornblith2019], Fig. 2; [song2012], Eq. (5).
    """
    parts, factors = _factors(layers, "cka")
    count, eps = len(factors), eps_of(*parts)
    if labels is None:
        products = factor_products(factors)
        defined = ~vanishing(factors, products.traces, eps)
    else:
        kernel = _label_kernel(labels, parts[0], factors[0])
        products = with_labels(factors, kernel)
        varies = ~vanishing(factors, products.traces[:count], eps)
        defined = torch.cat([varies, kernel.defined.unsqueeze(0)])
    values = cka_from_products(products, debiased=debiased, eps=eps, defined=defined)
    target = None if labels is None else values[:count, count]
    return CkaMatrix(values[:count, :count], target, "debiased" if debiased else "biased")


def _factors(
    layers: Sequence[Tensor] | Mapping[str, Tensor], of_grams: str
) -> tuple[list[Tensor], list[CenteredRows]]:
    """Every layer's features, checked, and their factors."""
    if len(layers) == 0:
        raise ShapeError("layers: expected at least one layer's features, got none")
    named = layers if isinstance(layers, Mapping) else dict(enumerate(layers))
    require_paired_features(of_grams, **{f"layers[{key!r}]": layer for key, layer in named.items()})
    return list(named.values()), [CenteredRows.of(layer) for layer in named.values()]


def _label_kernel(labels: Tensor, layer: Tensor, factor: CenteredRows) -> LabelKernel:
    require_axes(1, labels=labels)
    require_same_length(layer=layer, labels=labels)
    return LabelKernel.of(labels.to(factor.rows.device), require_labels(labels))
