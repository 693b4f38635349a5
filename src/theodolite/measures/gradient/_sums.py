"""Measures of sets of vectors from their sums: what arrays, survey and engine share."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.linalg import SetSums, ratio_or_nan

__all__ = ["SetSums", "contrast_from_sums", "mean_over_classes"]


def mean_over_classes(values: Float[Tensor, "*sets k"]) -> Float[Tensor, "*sets"]:
    """Mean over the classes where a value is defined; nan (with gradient zero) if it is nowhere.

    Example:
        >>> mean_over_classes(torch.tensor([1.0, float("nan"), 0.5])).item()
        0.75
    """
    defined = ~values.isnan()
    total = torch.where(defined, values, torch.zeros_like(values)).sum(-1)
    return ratio_or_nan(total, defined.sum(-1).to(values.dtype))


def contrast_from_sums(
    classes: SetSums, overall: SetSums, zero: str = "nan"
) -> Float[Tensor, "*sets"]:
    r"""In-class alignment minus the alignment of all pairs, from the sums of both.

    Args:
        classes: sums of every class, classes along the last axis.
        overall: sums of all vectors as one set, without that axis.
        zero: value of a set of vectors that are all zero, ``"nan"`` or ``"zero"``.

    Example:
        >>> one = SetSums(*(torch.tensor([v, v]).double() for v in (2.0, 4.0, 2.0, 2.0)))
        >>> both = SetSums(*(torch.tensor(v).double() for v in (4.0, 8.0, 4.0, 4.0)))
        >>> round(contrast_from_sums(one, both).item(), 4)
        0.6667
    """
    return mean_over_classes(classes.alignment(zero)) - overall.alignment(zero)
