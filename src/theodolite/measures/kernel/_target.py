"""CKA of features with class labels, exact, from class means."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_finite,
    require_labels,
    require_nonempty,
    require_same_length,
)
from theodolite.linalg import array_function, eps_of
from theodolite.measures.kernel._alignment import cka_from_products
from theodolite.measures.kernel._classes import LabelKernel, with_labels
from theodolite.measures.kernel._factors import Factor, vanishing

__all__ = ["target_cka"]


@array_function
def target_cka(
    features: Float[Tensor, "n d"],
    labels: Integer[Tensor, " n"],
    num_classes: int | None = None,
    debiased: bool = True,
) -> Float[Tensor, ""]:
    r"""Centred kernel alignment of features with class labels: how far classes are apart.

    .. math:: \mathrm{CKA} = \frac{\sum_c n_c^2 |m_c - m|^2}
              {\|F_c^\top F_c\|_F \sqrt{\sum_{c,c'} (n_c \delta_{cc'} - n_c n_{c'}/n)^2}}
              \quad\text{(biased)}

    with class means :math:`m_c`: the same number as :func:`linear_cka` with one-hot labels, the
    numerator in O(n d). One for features collapsed to the corners of a simplex.

    Range: [-1, 1]; biased: [0, 1].
    Invariant to: scaling, orthogonal maps and shifts of the features; renaming classes; a joint
        permutation of examples.
    Undefined (``nan``): features constant up to rounding; one class; debiased: fewer than four
        examples, or one example per class.

    Args:
        features: :math:`F`, one row per example.
        labels: integer class of every example; classes may be absent.
        num_classes: to check the range of the labels.
        debiased: the estimator: debiased, or the paper's plug-in form.

    Raises:
        ShapeError: If there is not one label per row.
        DomainError: If an entry is not finite or a label is out of range.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
        >>> round(target_cka(x, torch.tensor([0, 0, 1, 1]), debiased=False).item(), 4)
        0.9412

    References:
        [canatar2022], Sec. III; [kornblith2019], Eq. (3); [song2012], Eq. (5).

    Differs from paper: debiased by default.
    """
    require_axes(2, features=features)
    require_nonempty(features=features)
    require_same_length(features=features, labels=labels)
    require_finite(features=features)
    classes = require_labels(labels, num_classes)
    factor = Factor.of(features)
    kernel = LabelKernel.of(labels.to(factor.rows.device), classes)
    eps = eps_of(features)
    products = with_labels([factor], kernel)
    varies = ~vanishing([factor], products.traces[:1], eps)
    defined = torch.cat([varies, kernel.defined.unsqueeze(0)])
    return cka_from_products(products, debiased=debiased, eps=eps, defined=defined)[0, 1]
