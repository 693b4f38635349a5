r"""Infinitely wide layers of other activations: cosines and alignments at initialisation."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_between, require_choice, require_finite
from theodolite.errors import ShapeError
from theodolite.linalg import array_function, double, ratio_or_nan
from theodolite.theory.random_features._sin import distances, require_inputs, sin_kernel, unit_rows

__all__ = ["expected_alignment", "wide_cosine", "wide_kernel"]

_ANGULAR = ("linear", "relu", "step")
_ACTIVATIONS = (*_ANGULAR, "sin")


@array_function
def wide_cosine(cosine: Float[Tensor, "*n"], activation: str) -> Float[Tensor, "*n"]:
    r"""Cosine of two inputs' features after an infinitely wide layer.

    .. math:: \text{linear: } t, \quad
              \text{relu: } \frac{\sin\theta + (\pi-\theta)\cos\theta}{\pi}, \quad
              \text{step: } \frac{\pi-\theta}{\pi}, \qquad \theta = \arccos t

    Step is the sigmoid at infinite scale; at vanishing scale a sigmoid's features are constant,
    cosine 1. None of these depends on the scale of the weights, unlike the sin layer.

    Range: [-1, 1] for linear, [0, 1] otherwise.

    Args:
        cosine: :math:`t`, of the inputs, in [-1, 1].
        activation: ``"linear"``, ``"relu"`` or ``"step"``.

    Raises:
        DomainError: If a cosine lies outside [-1, 1] or the activation is unknown.

    Example:
        >>> [round(wide_cosine(torch.tensor(0.0), name).item(), 4) for name in ("relu", "step")]
        [0.3183, 0.5]

    References:
        [cho2009], Eqs. (6) and (7) for n = 0, 1.
    """
    require_choice(_ANGULAR, activation=activation)
    require_finite(cosine=cosine)
    if cosine.numel():
        require_between(-1.0, 1.0, cosine=float(cosine.abs().max()))
    t = double(cosine)
    return t if activation == "linear" else _angular(torch.acos(t), activation)


@array_function
def wide_kernel(
    x: Float[Tensor, "n d"], y: Float[Tensor, "m d"], sigma: float, activation: str = "sin"
) -> Float[Tensor, "n m"]:
    r"""Expected product of two features of a random layer, per unit of width.

    :math:`E[\varphi(w^\top x)\varphi(w^\top y)]` with :math:`w \sim N(0, \sigma^2 I)`:

    .. math:: \text{linear: } \sigma^2\langle x,y\rangle, \quad
              \text{relu: } \sigma^2\|x\|\|y\|\,
              \frac{\sin\theta + (\pi-\theta)\cos\theta}{2\pi}, \quad
              \text{step: } \frac{\pi-\theta}{2\pi}

    and :func:`sin_kernel` for sin. A zero input gives 0, for step 1/4 against any other
    (the step at 0 is 1/2).

    Args:
        x: Inputs, one per row.
        y: Inputs, one per row.
        sigma: Standard deviation of the weights.
        activation: ``"linear"``, ``"relu"``, ``"step"`` or ``"sin"``.

    Raises:
        ShapeError: If the inputs differ in dimension.
        DomainError: If an input is not finite, sigma not positive or the activation unknown.

    Example:
        >>> wide_kernel(torch.eye(2), torch.eye(2), 1.0, "relu")
        tensor([[0.5000, 0.1592],
                [0.1592, 0.5000]])

    References:
        [cho2009], Eq. (1); [mehta2021], Eq. (1).
    """
    require_inputs(x, y, sigma)
    require_choice(_ACTIVATIONS, activation=activation)
    return _kernel(double(x), double(y), sigma, activation)


@array_function
def expected_alignment(
    inputs: Float[Tensor, "n d"], sigma: float, activation: str = "sin"
) -> Float[Tensor, ""]:
    r"""Alignment :math:`\Omega` of the features of an infinitely wide layer at initialisation.

    .. math:: \Omega = \frac{n\sum_{i\ne j} K_{ij}}{(n-1)\bigl(\sum_i\sqrt{K_{ii}}\bigr)^2}

    For inputs of equal norm the mean of the features' cosines. It depends on the scale of the
    weights for sin only, where it falls to 0.

    Undefined (``nan``): all features are zero.

    Args:
        inputs: At least two, one per row.
        sigma: Standard deviation of the weights.
        activation: ``"linear"``, ``"relu"``, ``"step"`` or ``"sin"``.

    Raises:
        ShapeError: If there are fewer than two inputs.
        DomainError: If an input is not finite, sigma not positive or the activation unknown.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> [round(expected_alignment(x, sigma).item(), 4) for sigma in (0.01, 1.0, 10.0)]
        [0.6, 0.5417, 0.0]

    References:
        [mehta2021], Eqs. (3) and (4), in expectation at infinite width.
    """
    require_inputs(inputs, inputs, sigma)
    require_choice(_ACTIVATIONS, activation=activation)
    n = len(inputs)
    if n < 2:
        raise ShapeError(f"inputs: expected at least two rows, got {n}")
    kernel = _kernel(double(inputs), double(inputs), sigma, activation)
    norms = torch.diagonal(kernel).clamp(min=0).sqrt()
    off_diagonal = kernel.sum() - torch.diagonal(kernel).sum()
    return ratio_or_nan(n * off_diagonal, (n - 1) * norms.sum().square())


def _kernel(x: Tensor, y: Tensor, sigma: float, activation: str) -> Tensor:
    if activation == "sin":
        return sin_kernel(x, y, sigma)
    if activation == "linear":
        return sigma**2 * (x @ y.mT)
    norm_x = torch.linalg.vector_norm(x, dim=1)
    norm_y = torch.linalg.vector_norm(y, dim=1)
    half = _angular(_angles(x, y), activation) / 2
    if activation == "relu":
        return sigma**2 * torch.outer(norm_x, norm_y) * half
    return torch.where((norm_x == 0).unsqueeze(1) | (norm_y == 0), 0.25, half)


def _angles(x: Tensor, y: Tensor) -> Tensor:
    """Angles between all pairs, accurate for nearly parallel inputs where arccos is not."""
    minus, plus = distances(unit_rows(x), unit_rows(y))
    return 2 * torch.atan2(minus, plus)


def _angular(theta: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return (torch.sin(theta) + (torch.pi - theta) * torch.cos(theta)) / torch.pi
    return (torch.pi - theta) / torch.pi
