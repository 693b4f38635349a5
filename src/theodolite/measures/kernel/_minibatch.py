"""CKA from minibatches: three sums of unbiased HSIC, one ratio at the end."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_count
from theodolite.linalg import array_function, double, ratio_or_nan, safe_sqrt
from theodolite.measures.kernel._factors import Factor, factor_products, safe_scale
from theodolite.measures.kernel._linear import require_paired_features

__all__ = ["MinibatchHsic", "minibatch_cka"]

_FEWEST = 4  # the unbiased estimator needs four distinct examples


@dataclass(frozen=True)
class MinibatchHsic:
    r"""Sums over minibatches of the unbiased HSIC of two layers, and of each with itself.

    ``MinibatchHsic.of(a, b) + MinibatchHsic.of(c, d)`` accumulates; ``.cka`` is the ratio of the
    sums. Every sum is unbiased whatever the batch size; batches below four examples count zero.

    References:
        [nguyen2021], Eq. (3).
    """

    cross: Float[Tensor, ""]
    own_a: Float[Tensor, ""]
    own_b: Float[Tensor, ""]

    @classmethod
    def of(
        cls, features_a: Float[Tensor, "n d"], features_b: Float[Tensor, "n e"]
    ) -> "MinibatchHsic":
        """The three terms of one batch, in float64."""
        require_paired_features(features_a=features_a, features_b=features_b)
        a, b = Factor.of(features_a), Factor.of(features_b)
        if len(features_a) < _FEWEST:
            zero = a.mean.new_zeros(())
            return cls(zero, zero, zero)
        values = factor_products([a, b]).hsic(debiased=True)
        p, q = a.scale * a.scale, b.scale * b.scale
        return cls(values[0, 1] * p * q, values[0, 0] * p * p, values[1, 1] * q * q)

    def __add__(self, other: "MinibatchHsic") -> "MinibatchHsic":
        """The sums of both groups of batches."""
        return MinibatchHsic(
            self.cross + other.cross, self.own_a + other.own_a, self.own_b + other.own_b
        )

    @property
    def cka(self) -> Float[Tensor, ""]:
        """Ratio of the sums; nan where a self term is not positive."""
        defined = (self.own_a > 0) & (self.own_b > 0)
        return ratio_or_nan(self.cross, safe_sqrt(self.own_a) * safe_sqrt(self.own_b), defined)


@array_function
def minibatch_cka(
    features_a: Float[Tensor, "n d"], features_b: Float[Tensor, "n e"], batch_size: int
) -> Float[Tensor, ""]:
    r"""CKA from consecutive minibatches: for comparison with what others report.

    .. math:: \frac{\sum_b \mathrm{HSIC}_1(K_b, L_b)}
              {\sqrt{\sum_b \mathrm{HSIC}_1(K_b, K_b)}\sqrt{\sum_b \mathrm{HSIC}_1(L_b, L_b)}}

    One batch gives the debiased :func:`linear_cka`, which needs no more memory and less luck.
    Averaging biased values over batches instead grows as the batch shrinks. For a stream, add up
    :class:`MinibatchHsic`.

    Range: [-1, 1].
    Invariant to: swapping arguments; scaling, orthogonal maps and shifts of either side.
    Undefined (``nan``): no batch of four examples; a self term that is not positive.

    Args:
        features_a: :math:`F`, one row per example.
        features_b: :math:`G`, of the same examples in the same order.
        batch_size: examples per batch; a last batch of fewer than four is left out.

    Raises:
        ShapeError: If these are not matrices with equally many rows.
        DomainError: If an entry is not finite, or the batch size is below four.

    Example:
        >>> x = torch.arange(8.0).unsqueeze(1)
        >>> round(minibatch_cka(x, 2 * x, batch_size=4).item(), 4)
        1.0

    References:
        [nguyen2021], Eq. (3); [song2012], Eq. (5).
    """
    require_paired_features(features_a=features_a, features_b=features_b)
    require_count(_FEWEST, batch_size=batch_size)
    unit_a, unit_b = safe_scale(features_a), safe_scale(features_b)  # the same for all batches
    batches = zip(
        torch.split(features_a, batch_size), torch.split(features_b, batch_size), strict=True
    )
    first, *rest = (MinibatchHsic.of(double(a) / unit_a, double(b) / unit_b) for a, b in batches)
    return sum(rest, start=first).cka
