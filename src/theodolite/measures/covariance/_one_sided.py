"""Misalignment by one of the two Kullback-Leibler divergences instead of their sum."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_choice
from theodolite.linalg import array_function
from theodolite.measures.covariance._misalignment import prepared, quadratic_forms

__all__ = ["one_sided_misalignment"]


@array_function
def one_sided_misalignment(
    data_covariance: Float[Tensor, "d d"],
    weight_covariance: Float[Tensor, "*batch d d"],
    *,
    first: Literal["weights", "aligned"] = "weights",
    rtol: float | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Smallest Kullback-Leibler divergence between weights and anything aligned with the data.

    .. math:: \inf_\Sigma \mathrm{KL}(B \| \Sigma) = \tfrac12 \Big( \sum_i d_i
              \log \frac{\operatorname{tr}(B|_{V_i})}{d_i} - \log\det B \Big)

    and the same with :math:`B^{-1}` for :math:`\inf_\Sigma \mathrm{KL}(\Sigma \| B)`. The two add
    up to at most :func:`misalignment`.

    Range: [0, inf).
    Invariant to: rotating both; scaling either.
    Undefined: never.

    Args:
        data_covariance: :math:`A`, whose eigenspaces are :math:`V_i`.
        weight_covariance: :math:`B`, positive definite, or a stack.
        first: first argument of the divergence, ``"weights"`` for :math:`\mathrm{KL}(B \| \Sigma)`,
            ``"aligned"`` for :math:`\mathrm{KL}(\Sigma \| B)`.
        rtol: relative gap of eigenvalues of :math:`A` that count as equal.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If a matrix is not symmetric or not finite, or :math:`B` not definite.

    Example:
        >>> weights = torch.diag(torch.tensor([1.0, 2.0]))
        >>> round(one_sided_misalignment(torch.eye(2), weights).item(), 4)
        0.0589

    References:
        [maennel2020], Definition 2 with one divergence; ours.
    """
    require_choice(("weights", "aligned"), first=first)
    spaces, L = prepared(data_covariance, weight_covariance, rtol=rtol)
    forms, inverse_forms = quadratic_forms(spaces.vectors, L)
    half_log_det = L.diagonal(0, -2, -1).log().sum(-1)
    traces = forms if first == "weights" else inverse_forms
    spread = (spaces.means(traces).log() * spaces.dimensions).sum(-1) / 2
    return (spread - half_log_det if first == "weights" else spread + half_log_det).clamp(min=0)
