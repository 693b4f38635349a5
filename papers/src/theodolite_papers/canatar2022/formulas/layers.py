"""CKA of every layer with one reference, in order of depth."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.linalg import array_function
from theodolite.measures.kernel import linear_cka, target_cka


@array_function
def layer_profile(
    layers: Sequence[Float[Tensor, "n _"]],
    reference: Integer[Tensor, " n"] | Float[Tensor, "n e"],
    debiased: bool = True,
) -> Float[Tensor, " l"]:
    r"""Linear CKA of every layer with one reference: class labels, targets, or the inputs.

    .. math:: l \mapsto \mathrm{CKA}(K^{(l)}, K_{\bar f})

    The paper's layer-averaged CKA is the plain mean of the values, and its "CKA" the last one.

    Range: entries in [-1, 1]; biased: [0, 1].
    Invariant to: scaling, orthogonal maps and shifts of any layer; a joint permutation.
    Undefined (``nan``): entries of layers that are constant up to rounding.

    Args:
        layers: features of every layer in order of depth, one row per example.
        reference: integer labels, or a matrix with one row per example.
        debiased: use the debiased estimator; False uses the paper's plug-in form.

    Raises:
        ShapeError: If numbers of rows differ.
        DomainError: If an entry is not finite or a label is negative.

    Examples:
        >>> x = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
        >>> found = layer_profile([x, x > 2], torch.tensor([0, 0, 1, 1]), debiased=False)
        >>> [round(value, 4) for value in found.tolist()]
        [0.9412, 1.0]

    References:
        [canatar2022], Fig. 1 and Table I.
    """
    if reference.ndim == 1:
        return torch.stack([target_cka(rows, reference, debiased=debiased) for rows in layers])
    return torch.stack([linear_cka(rows, reference, debiased) for rows in layers])
