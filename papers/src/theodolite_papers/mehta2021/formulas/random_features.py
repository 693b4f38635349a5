r"""Wide random layers of sines and other activations: kernels, bounds, a test of Theorem 1.

The weights are i.i.d. :math:`N(0, \sigma^2)`. All values are per unit of width: multiply by the
width h for the inner product of two hidden representations.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_choice,
    require_count,
    require_finite,
    require_nonempty,
    require_positive,
)
from theodolite.errors import ShapeError
from theodolite.linalg import array_function, double, nan_unless, prints_shapes, ratio_or_nan

_BOUNDS = ("printed", "one_sided", "corrected", "proof")
_STANDARD_ERRORS = 5.0
_ANGULAR = ("linear", "relu", "step")
_ACTIVATIONS = (*_ANGULAR, "sin")


@array_function
def sin_kernel(
    x: Float[Tensor, "n d"], y: Float[Tensor, "m d"], sigma: float, *, bias: bool = False
) -> Float[Tensor, "n m"]:
    r"""Expected product of two sin features, exactly.

    .. math:: E[\sin(w^\top x)\sin(w^\top y)]
              = \tfrac12\bigl(e^{-\sigma^2\|x-y\|^2/2} - e^{-\sigma^2\|x+y\|^2/2}\bigr)
              = e^{-\sigma^2(\|x\|^2+\|y\|^2)/2}\,\sinh(\sigma^2\langle x, y\rangle)

    With a bias, uniform on :math:`[0, 2\pi]`: :math:`\tfrac12 e^{-\sigma^2\|x-y\|^2/2}`.

    Range: [-1/2, 1/2].
    Invariant to: orthogonal maps of both; changes sign with either argument (without bias).

    Args:
        x: Inputs, one per row.
        y: Inputs, one per row.
        sigma: :math:`\sigma > 0`, standard deviation of the weights.
        bias: Whether the layer has a random phase.

    Raises:
        ShapeError: If the inputs differ in dimension.
        DomainError: If an input is not finite or sigma not positive.

    Examples:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> sin_kernel(x, x, 1.0)
        tensor([[0.4323, 0.0000],
                [0.0000, 0.4323]])

    References:
        [mehta2021], Eq. (1) and Theorem 1; [rahimi2007] for the Gaussian kernel.
        Differs from paper: the exact value instead of a bound.
    """
    require_inputs(x, y, sigma)
    wide_x, wide_y = double(x), double(y)
    minus, plus = distances(wide_x, wide_y)
    if bias:
        return _gaussian(minus, sigma) / 2
    # The larger exponential outside, its relative gap to the other inside: neither overflow for
    # wide weights nor cancellation for narrow ones.
    inner = sigma**2 * (wide_x @ wide_y.mT)
    size = -torch.expm1(-2 * inner.abs()) / 2
    return inner.sign() * size * _gaussian(torch.minimum(minus, plus), sigma)


@array_function
def sin_energy(x: Float[Tensor, "n d"], sigma: float) -> Float[Tensor, " n"]:
    r"""Expected square of a sin feature: the diagonal of :func:`sin_kernel`.

    .. math:: E[\sin^2(w^\top x)] = \tfrac12\bigl(1 - e^{-2\sigma^2\|x\|^2}\bigr)

    Args:
        x: Inputs, one per row.
        sigma: Standard deviation of the weights.

    Raises:
        DomainError: If an input is not finite or sigma not positive.

    Examples:
        >>> sin_energy(torch.tensor([[1.0], [100.0]]), 1.0)
        tensor([0.4323, 0.5000])

    References:
        [mehta2021], appendix B.
    """
    require_inputs(x, x, sigma)
    return _energy(double(x), sigma)


@array_function
def sin_cosine(
    x: Float[Tensor, "n d"], y: Float[Tensor, "m d"], sigma: float
) -> Float[Tensor, "n m"]:
    r"""Cosine between two inputs' features in an infinitely wide sin layer.

    .. math:: \frac{\sinh(\sigma^2\langle x,y\rangle)}
              {\sqrt{\sinh(\sigma^2\|x\|^2)\,\sinh(\sigma^2\|y\|^2)}}

    The cosine of the inputs as :math:`\sigma \to 0`; tends to 0 as :math:`\sigma \to \infty`
    unless :math:`y = \pm x`; strictly falling in :math:`\sigma` for equal norms.

    Range: [-1, 1].
    Undefined (``nan``): an input is zero.

    Args:
        x: Inputs, one per row.
        y: Inputs, one per row.
        sigma: :math:`\sigma > 0`, standard deviation of the weights.

    Raises:
        ShapeError: If the inputs differ in dimension.
        DomainError: If an input is not finite or sigma not positive.

    Examples:
        >>> x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8]])
        >>> [round(sin_cosine(x, y, sigma).item(), 4) for sigma in (0.01, 1.0, 10.0)]
        [0.6, 0.5417, 0.0]

    References:
        [mehta2021], section 3.1.
    """
    require_inputs(x, y, sigma)
    wide_x, wide_y = double(x), double(y)
    inner = sigma**2 * (wide_x @ wide_y.mT)
    own_x, own_y = ((sigma * wide).square().sum(1) for wide in (wide_x, wide_y))
    saturation = torch.outer(_saturation(own_x).sqrt(), _saturation(own_y).sqrt())
    nearer = torch.minimum(*distances(wide_x, wide_y))
    cosine = unit_rows(wide_x) @ unit_rows(wide_y).mT
    value = cosine * _saturation(inner.abs()) / saturation * _gaussian(nearer, sigma)
    return nan_unless(wide_x.any(1, keepdim=True) & wide_y.any(1), value)


@array_function
def sin_bound(
    x: Float[Tensor, "n d"], y: Float[Tensor, "m d"], sigma: float, form: str = "corrected"
) -> Float[Tensor, "n m"]:
    r"""Bounds on :func:`sin_kernel`: that of the paper, and corrected ones.

    * ``"printed"``: :math:`e^{-\sigma^2\|x-y\|^2/2}`. True for the value, false for its absolute
      value: at :math:`y = -x` that tends to 1/2 while the bound vanishes.
    * ``"one_sided"``: half of it, true for the value; for the absolute value where
      :math:`\langle x,y\rangle \ge 0`.
    * ``"corrected"``: :math:`\tfrac12 e^{-\sigma^2\min(\|x-y\|^2,\|x+y\|^2)/2}`, true for the
      absolute value.
    * ``"proof"``: :math:`e^{-\sigma^2\|\Delta\|^2/2}` with
      :math:`\Delta = y - x\,\langle x,y\rangle/\|x\|^2`, true for the absolute value and at least
      twice the corrected one.

    Args:
        x: Inputs, one per row.
        y: Inputs, one per row.
        sigma: Standard deviation of the weights.
        form: Which bound.

    Raises:
        ShapeError: If the inputs differ in dimension.
        DomainError: If an input is not finite, sigma not positive or the form unknown.

    Examples:
        >>> x = torch.tensor([[1.0]])
        >>> [round(sin_bound(x, -x, 2.0, form).item(), 4) for form in ("printed", "corrected")]
        [0.0003, 0.5]
        >>> round(sin_kernel(x, -x, 2.0).item(), 4)
        -0.4998

    References:
        [mehta2021], Theorem 1 and appendix B.
        Differs from paper: the last step of the published proof replaces :math:`\|\Delta\|` by the
        larger :math:`\|x-y\|`, the wrong direction; the printed form is kept with the others.
    """
    require_inputs(x, y, sigma)
    require_choice(_BOUNDS, form=form)
    wide_x, wide_y = double(x), double(y)
    minus, plus = distances(wide_x, wide_y)
    if form == "proof":
        return _gaussian(_perpendicular(wide_x, wide_y), sigma)
    if form == "corrected":
        return _gaussian(torch.minimum(minus, plus), sigma) / 2
    printed = _gaussian(minus, sigma)
    return printed if form == "printed" else printed / 2


def require_inputs(x: Tensor, y: Tensor, sigma: float) -> None:
    """Two sets of finite inputs of one dimension, and a positive scale."""
    require_axes(2, x=x, y=y)
    require_nonempty(x=x, y=y)
    if x.shape[1] != y.shape[1]:
        raise ShapeError(
            f"x and y: expected one input dimension, got {x.shape[1]} and {y.shape[1]}"
        )
    require_finite(x=x, y=y)
    require_positive(sigma=sigma)


def distances(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``|x - y|`` and ``|x + y|`` from differences: via inner products they would cancel."""
    exact = "donot_use_mm_for_euclid_dist"
    minus = torch.cdist(x, y, compute_mode=exact)
    return minus, torch.cdist(x, -y, compute_mode=exact)


def unit_rows(x: Tensor) -> Tensor:
    """Rows of length 1; a zero row stays zero."""
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x / torch.where(norms > 0, norms, torch.ones_like(norms))


def _perpendicular(x: Tensor, y: Tensor) -> Tensor:
    """Norm of the part of y orthogonal to x, ``|y| sin``, by the double-angle formula."""
    minus, plus = distances(unit_rows(x), unit_rows(y))
    sine = torch.where(x.any(1, keepdim=True), minus * plus / 2, torch.ones_like(minus))
    return torch.linalg.vector_norm(y, dim=1) * sine


def _gaussian(distance: Tensor, sigma: float) -> Tensor:
    return torch.exp(-(sigma * distance).square() / 2)


def _saturation(z: Tensor) -> Tensor:
    """``(1 - exp(-2z)) / 2z``: 1 at zero, where a ratio of energies would be 0 / 0."""
    safe = torch.where(z > 0, z, torch.ones_like(z))
    return torch.where(z > 0, -torch.expm1(-2 * safe) / (2 * safe), torch.ones_like(z))


def _energy(x: Tensor, sigma: float) -> Tensor:
    return -torch.expm1(-2 * sigma**2 * x.square().sum(1)) / 2


@prints_shapes
@dataclass(frozen=True)
class SinTheorem:
    """Exact value, simulation and bounds of the sin kernel for every pair of inputs."""

    exact: Float[Tensor, "n n"]
    simulated: Float[Tensor, "n n"]
    standard_error: Float[Tensor, "n n"]
    printed: Float[Tensor, "n n"]
    corrected: Float[Tensor, "n n"]
    proof: Float[Tensor, "n n"]
    simulation_agrees: Bool[Tensor, "n n"]  # within five standard errors
    printed_holds: Bool[Tensor, "n n"]  # for the value itself
    printed_holds_absolute: Bool[Tensor, "n n"]  # may fail where the inner product is negative
    corrected_holds: Bool[Tensor, "n n"]
    proof_holds: Bool[Tensor, "n n"]


@array_function
def check_sin_theorem(
    inputs: Float[Tensor, "n d"],
    sigma: float,
    width: int = 256,
    draws: int = 100,
    generator: torch.Generator | None = None,
) -> SinTheorem:
    """A test of Theorem 1 on every pair of inputs, with a Monte Carlo simulation of the layer.

    Args:
        inputs: One per row.
        sigma: Standard deviation of the weights.
        width: Hidden units of each simulated layer.
        draws: Simulated layers, at least 2.
        generator: Source of the weights.

    Raises:
        DomainError: If an input is not finite, sigma not positive or a count too small.

    Examples:
        >>> x = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
        >>> check = check_sin_theorem(x, 1.0, generator=torch.Generator().manual_seed(0))
        >>> bool(check.simulation_agrees.all()), bool(check.corrected_holds.all())
        (True, True)
        >>> check.printed_holds_absolute
        tensor([[ True, False],
                [False,  True]])

    References:
        [mehta2021], Theorem 1.
    """
    require_inputs(inputs, inputs, sigma)
    require_count(1, width=width)
    require_count(2, draws=draws)
    x = double(inputs)
    exact = sin_kernel(x, x, sigma)
    bounds = {form: sin_bound(x, x, sigma, form) for form in ("printed", "corrected", "proof")}
    mean, error = _simulate(x, sigma, width, draws, generator)
    slack = 1 + 1e-12  # the corrected bound is attained
    return SinTheorem(
        exact=exact,
        simulated=mean,
        standard_error=error,
        **bounds,
        simulation_agrees=(mean - exact).abs() <= _STANDARD_ERRORS * error + 1e-15,
        printed_holds=exact <= bounds["printed"] * slack,
        printed_holds_absolute=exact.abs() <= bounds["printed"] * slack,
        corrected_holds=exact.abs() <= bounds["corrected"] * slack,
        proof_holds=exact.abs() <= bounds["proof"] * slack,
    )


def _simulate(
    x: Tensor, sigma: float, width: int, draws: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Mean and standard error, over layers, of the product of two inputs' features per unit."""
    total, squares = torch.zeros(2, len(x), len(x), dtype=x.dtype, device=x.device)
    for _ in range(draws):
        weights = torch.randn(width, x.shape[1], generator=generator, dtype=x.dtype)
        hidden = torch.sin(x @ (sigma * weights.to(x.device)).mT)
        product = hidden @ hidden.mT / width
        total, squares = total + product, squares + product.square()
    mean = total / draws
    variance = (squares / draws - mean.square()).clamp(min=0) * draws / (draws - 1)
    return mean, (variance / draws).sqrt()


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

    Examples:
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

    Examples:
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

    Examples:
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
