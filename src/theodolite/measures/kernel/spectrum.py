"""Modes of a kernel on the given examples, and the share of a target that they explain."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Integer, Shaped
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_count,
    require_finite,
    require_nonempty,
    require_same_length,
)
from theodolite.errors import DomainError
from theodolite.linalg import (
    array_function,
    checks_classes,
    double,
    double_center,
    eigenvalue_groups,
    eps_of,
    equality_tolerance,
    nan_unless,
    prints_shapes,
    ratio_or_nan,
    symmetric_eigen,
    thin_svd,
    top_eigen,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.measures.kernel.alignment import require_grams, safe_scale, target_matrix

_NEGATIVE = 1e-5  # times the largest eigenvalue: negative ones of this size are float32 rounding
_EPS64 = torch.finfo(torch.float64).eps


@prints_shapes
@dataclass(frozen=True)
class KernelSpectrum:
    r"""Eigenvalues and eigenfunctions of a kernel's integral operator on ``n`` examples.

    .. math:: K = \Phi\,\mathrm{diag}(\eta)\,\Phi^\top, \qquad \tfrac1n\Phi^\top\Phi = I

    Args:
        eigenvalues: :math:`\eta`, largest first; numbers below the noise are zero.
        eigenfunctions: :math:`\Phi`, one column per eigenvalue.
        rank: number of listed eigenvalues above the noise.
        groups: start and end of each run of equal eigenvalues, which share an eigenspace.
        complete: whether all modes that are not listed have eigenvalue zero.
    """

    eigenvalues: Float[Tensor, " r"]
    eigenfunctions: Float[Tensor, "n r"]
    rank: int
    groups: tuple[tuple[int, int], ...]
    complete: bool

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(self.eigenfunctions)


@array_function
def kernel_spectrum(gram: Float[Tensor, "n n"], count: int | None = None) -> KernelSpectrum:
    r"""Eigenvalues and eigenfunctions of a kernel given by its matrix.

    .. math:: \eta_\rho = \lambda_\rho / n, \qquad \phi_\rho(x^\mu) = \sqrt n\,u_{\rho\mu},
              \qquad K u_\rho = \lambda_\rho u_\rho

    Small eigenvalues are noise and are set to zero. The limit, relative to the largest one, is
    ``n`` times the float64 epsilon or 8 times that of the input's dtype. An eigenvalue has a
    gradient if it is above this limit and comes from the full decomposition.

    Range: eigenvalues at least 0.
    Invariant to: a permutation of examples.
    Undefined: never; a zero kernel has eigenvalues zero.

    Args:
        gram: :math:`K`, symmetric positive semi-definite.
        count: number of leading modes; an iterative solver finds them if that is cheaper.

    Returns:
        Eigenvalues, largest first, and eigenfunctions.

    Raises:
        ShapeError: If the matrix is not square.
        DomainError: If it is not symmetric, not finite, or has a clearly negative eigenvalue.

    Examples:
        >>> kernel_spectrum(torch.diag(torch.tensor([3.0, 6.0, 0.0]))).eigenvalues
        tensor([2., 1., 0.])

    References:
        [canatar2022], Eq. (1).
    """
    require_grams("call linear_spectrum", gram=gram)
    return gram_modes(gram, count)


@array_function
def linear_spectrum(features: Float[Tensor, "n d"]) -> KernelSpectrum:
    r"""Eigenvalues and eigenfunctions of a linear kernel, from the features' smaller side.

    .. math:: \eta_\rho = \sigma_\rho(F)^2 / n, \qquad \phi_\rho = \sqrt n\,u_\rho,
              \qquad F = U\Sigma V^\top

    Small singular values are noise and are set to zero. The limit, relative to the largest one, is
    ``max(n, d)`` times the float64 epsilon or 8 times that of the input's dtype. Features resolve
    modes that :func:`kernel_spectrum` of their Gram matrix loses.

    Range: eigenvalues at least 0.
    Invariant to: orthogonal maps of the features; a permutation of examples.
    Undefined: never; zero features have eigenvalues zero.

    Args:
        features: :math:`F`, one row per example.

    Returns:
        Eigenvalues, largest first, and eigenfunctions.

    Raises:
        ShapeError: If these are no matrix.
        DomainError: If an entry is not finite.

    Examples:
        >>> linear_spectrum(torch.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
        tensor([2.0000, 0.5000])

    References:
        [canatar2022], Eq. (1).
    """
    require_axes(2, features=features)
    require_nonempty(features=features)
    require_finite(features=features)
    n, eps = len(features), eps_of(features)
    left, sigma, _ = thin_svd(double(features))
    kept = sigma > _noise(max(features.shape), eps) * sigma.max()
    eta = torch.where(kept, sigma, torch.zeros_like(sigma)).square() / n
    groups = _eigenspaces(sigma[kept], eps)
    return KernelSpectrum(eta, left * n**0.5, int(kept.sum()), groups, True)


def gram_modes(
    gram: Float[Tensor, "n n"], count: int | None = None, name: str = "gram"
) -> KernelSpectrum:
    """The spectrum of a symmetric matrix of any dtype, in float64."""
    n, eps = len(gram), eps_of(gram)
    unit = safe_scale(gram)  # squares of its entries neither overflow nor vanish
    K = double(gram) / unit
    if count is None:
        values, vectors = symmetric_eigen(K)
    else:
        require_count(1, count=count)
        values, vectors = top_eigen(K, min(count, n))
    peak = values.detach().abs().max()
    if values.min() < -_NEGATIVE * peak:
        raise DomainError(
            f"{name}: expected a positive semi-definite matrix, got an eigenvalue of "
            f"{values.min().item() * unit:.3g} next to {values.max().item() * unit:.3g}; "
            "pass a kernel, e.g. features @ features.T"
        )
    kept = values > _noise(n, eps) * peak
    groups = _eigenspaces(values[kept], eps)
    eta = torch.where(kept, values, torch.zeros_like(values)) / n * unit
    complete = len(values) == n or len(values) > int(kept.sum())
    return KernelSpectrum(eta, vectors * n**0.5, int(kept.sum()), groups, complete)


def _noise(size: int, eps: float) -> float:
    """Relative level of noise: that of the decomposition, and that of the input's own rounding.

    The errors of the input are independent, so their norm does not grow with the size. The bound on
    the decomposition does. With ``n eps`` of float32 a spectrum would end at a thousandth.
    """
    return max(size * _EPS64, 8 * eps)


def _eigenspaces(levels: Tensor, eps: float) -> tuple[tuple[int, int], ...]:
    """Runs of equal levels: eigenvalues of a matrix, singular values of features.

    The tolerance does not have the factor of the matrix size that bounds the worst case. With it,
    thousands of neighbouring float32 values would form one eigenspace.
    """
    groups = eigenvalue_groups(levels.detach(), equality_tolerance(1, eps))
    return tuple((group.start, group.stop) for group in groups)


@array_function
def participation_ratio(gram: Float[Tensor, "n n"], center: bool = False) -> Float[Tensor, ""]:
    r"""Effective number of modes of a kernel, from its trace and norm.

    .. math:: \frac{(\sum_\rho \eta_\rho)^2}{\sum_\rho \eta_\rho^2}
              = \frac{(\mathrm{tr} K)^2}{\|K\|_F^2}

    One or two large modes, such as the mean at initialisation, make it small. So centre first. To
    detect a low rank use ``theodolite_papers.canatar2022.formulas.spectrum.spectral_gap``.

    Range: [0, n]; at least 1 if the matrix is positive semi-definite.
    Invariant to: scaling; orthogonal maps of both sides.
    Undefined (``nan``): the matrix is zero (after centring, up to rounding).

    Args:
        gram: :math:`K`, symmetric.
        center: centre the kernel first: :math:`HKH`.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If the matrix is not square.
        DomainError: If it is not symmetric or not finite.

    Examples:
        >>> participation_ratio(torch.eye(5)).item(), participation_ratio(torch.ones(5, 5)).item()
        (5.0, 1.0)

    References:
        [canatar2022], Fig. 3; the number is ours.
    """
    require_grams("pass gram(features)", gram=gram)
    raw = unit_peak(double(gram))
    K = double_center(raw) if center else raw
    defined = ~vanishes_when_centered(K, raw, eps_of(gram))
    return participation_from_traces(K.trace(), K.square().sum(), defined)


@checks_classes
def participation_from_traces(
    trace: Float[Tensor, "*batch"],
    trace_of_square: Float[Tensor, "*batch"],
    defined: Tensor | bool = True,
) -> Float[Tensor, "*batch"]:
    r"""Participation ratio from the sum of the eigenvalues and the sum of their squares.

    Args:
        trace: :math:`\mathrm{tr} K = n\sum_\rho\eta_\rho`.
        trace_of_square: :math:`\mathrm{tr} K^2 = n^2\sum_\rho\eta_\rho^2`.
        defined: whether the kernel is more than rounding.

    Returns:
        One number for every kernel.

    Examples:
        >>> eta = torch.tensor([2.0, 1.0])
        >>> round(participation_from_traces(eta.sum(), eta.square().sum()).item(), 4)
        1.8

    References:
        [canatar2022], Fig. 3; the number is ours.
    """
    return ratio_or_nan(trace.square(), trace_of_square, defined)


_SLACK = 1e-5  # rounding of curves that were kept in float32


@prints_shapes
@dataclass(frozen=True)
class CumulativePower:
    """Share of the target's power in the first modes, from no mode to all listed modes.

    Args:
        curve: shares, one entry more than modes. It starts at 0.
        null_power: share outside the range of the kernel; nan if not all modes are known.
        rank: number of modes whose eigenvalue is above the noise.
    """

    curve: Float[Tensor, " m"]
    null_power: Float[Tensor, ""]
    rank: int


@array_function
def cumulative_power(
    kernel: Float[Tensor, "n n"] | KernelSpectrum,
    targets: Integer[Tensor, " n"] | Shaped[Tensor, "n c"],
) -> CumulativePower:
    r"""Share of the target that lies in the leading eigenmodes of a kernel.

    .. math:: C(\rho) = \frac{\sum_{\gamma \le \rho} |a_\gamma|^2}{\sum_\gamma |a_\gamma|^2},
              \qquad a_\gamma = \tfrac1n \sum_\mu \bar f(x^\mu)\,\phi_\gamma(x^\mu)

    Here :math:`\bar f` are the targets and :math:`\phi_\gamma` the eigenfunctions
    (:class:`KernelSpectrum`). The earlier the curve reaches one, the better the task fits the
    kernel. ``null_power``, which is :math:`1 - C(r)` at the rank, is the share that no linear probe
    on the features can fit. Inside an eigenspace the basis is arbitrary, so the power of an
    eigenspace, and that of the null space, is spread evenly over its modes.

    For features pass a spectrum from :func:`linear_spectrum`. A :func:`kernel_spectrum` with
    ``count=`` gives the start of the curve. It is exact, except inside an eigenspace that the cut
    divides.

    Range: [0, 1], nondecreasing.
    Invariant to: scaling of either argument; orthogonal maps of the targets' columns; a joint
        permutation of examples.
    Undefined (``nan``): targets are zero.

    Args:
        kernel: a Gram matrix :math:`K`, or a spectrum.
        targets: integer class labels, or a matrix with one target vector per row.

    Returns:
        The curve from zero modes to all modes, and the rank of the kernel.

    Raises:
        ShapeError: If there is not one target per example.
        DomainError: If an entry is not finite or the kernel is not positive semi-definite.

    Examples:
        >>> K = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> cumulative_power(K, torch.tensor([[2.0], [1.0], [0.0]])).curve
        tensor([0.0000, 0.8000, 1.0000, 1.0000])

    References:
        [canatar2022], Eq. (2) and (3).

    Differs from paper: Eq. (3) sums strictly below the mode; this is the same curve shifted by one,
        as the text uses it.
    """
    spectrum = _spectrum_of(kernel)
    Y = unit_peak(target_matrix(targets))
    require_same_length(kernel=spectrum.eigenfunctions, targets=Y)
    phi = double(spectrum.eigenfunctions.detach())[:, : spectrum.rank]
    total = Y.square().sum()
    defined = total > 0
    power = (phi.mT @ Y).square().sum(1) / len(Y)
    shares = power / torch.where(defined, total, torch.ones_like(total))
    curve, null = _curve(_even(shares, spectrum), spectrum)
    return CumulativePower(nan_unless(defined, curve), nan_unless(defined, null), spectrum.rank)


def _spectrum_of(kernel: Tensor | KernelSpectrum) -> KernelSpectrum:
    """The spectrum itself, or that of a Gram matrix, in float64; eigenspaces have no gradient."""
    if isinstance(kernel, KernelSpectrum):
        return kernel
    require_grams("pass linear_spectrum(features)", kernel=kernel)
    return gram_modes(kernel.detach(), name="kernel")


def _even(shares: Float[Tensor, " r"], spectrum: KernelSpectrum) -> Float[Tensor, " r"]:
    """The power of every eigenspace spread evenly over its modes."""
    even = shares.clone()
    for a, b in spectrum.groups:
        if b - a > 1:
            even[a:b] = shares[a:b].mean()
    return even


def _curve(
    shares: Float[Tensor, " r"], spectrum: KernelSpectrum
) -> tuple[Float[Tensor, " m"], Float[Tensor, ""]]:
    """Running sums, if possible with the null space, and the power in the null space."""
    curve = torch.cat([shares.new_zeros(1), shares.cumsum(0)])
    if not spectrum.complete:
        return curve, torch.full_like(curve[-1], torch.nan)
    null = (1 - curve[-1]).clamp(min=0)
    modes = spectrum.count - spectrum.rank
    steps = torch.arange(1, modes + 1).to(curve) / max(modes, 1)
    return torch.cat([curve, curve[-1] + null * steps]), null


def require_curve(curve: Tensor) -> None:
    """Check for a vector that starts at zero; an undefined curve (all nan) is allowed."""
    require_axes(1, curve=curve)
    require_nonempty(curve=curve)
    if curve.isnan().all():
        return
    require_finite(curve=curve)
    if curve[0].abs() > _SLACK or (curve[1:] < curve[:-1] - _SLACK).any():
        raise DomainError(
            "curve: expected cumulative power, 0 first and nondecreasing, got "
            f"{curve[:4].tolist()}...; pass cumulative_power(...).curve"
        )


@array_function
def modes_to_reach(
    curve: Float[Tensor, " m"] | CumulativePower, share: float = 0.95
) -> Float[Tensor, ""]:
    r"""Smallest number of leading modes that explain a given share of the target.

    .. math:: \rho_q = \min\{\rho : C(\rho) \ge q\}

    Only modes of the kernel count. So pass the whole result of :func:`cumulative_power`, which
    contains the rank. In the null space the curve rises to 1 without any mode. A share that is
    reached up to rounding counts as reached.

    Range: 0 to the rank of the kernel; inf if all its modes together do not reach the share.
    Invariant to: the same as :func:`cumulative_power`.
    Undefined (``nan``): the curve is undefined, or ends (leading modes only) below the share.

    Args:
        curve: the result of :func:`cumulative_power`, or its :math:`C(0), C(1), ...` alone.
        share: the share :math:`q`.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If the curve is not a vector.
        DomainError: If it does not start at 0 or falls, or the share is outside [0, 1].

    Examples:
        >>> modes_to_reach(torch.tensor([0.0, 0.8, 1.0, 1.0]), 0.9).item()
        2.0

    References:
        [canatar2022], Fig. 3b; the number is ours.
    """
    if isinstance(curve, CumulativePower):
        values = curve.curve[: curve.rank + 1]
        beyond = torch.nan if curve.null_power.isnan().any() else torch.inf
    else:
        values, beyond = curve, torch.nan
    require_curve(values)
    require_between(0.0, 1.0, share=share)
    reached = double(values) >= share - 8 * eps_of(values)
    first = reached.to(torch.int64).argmax().double()
    return torch.where(reached.any(), first, torch.full_like(first, beyond))


@array_function
def power_area(curve: Float[Tensor, " m"]) -> Float[Tensor, ""]:
    r"""Area under the cumulative power over all modes; 1 is the largest possible area.

    .. math:: \tfrac1n \sum_{\rho=1}^{n} C(\rho)

    About one half for a target that has nothing to do with the kernel.

    Range: [0, 1].
    Invariant to: the same as :func:`cumulative_power`.
    Undefined (``nan``): the curve is undefined or has no mode.

    Args:
        curve: :math:`C(0), C(1), ...` from :func:`cumulative_power`.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If the curve is not a vector.
        DomainError: If it does not start at 0 or falls.

    Examples:
        >>> round(power_area(torch.tensor([0.0, 0.8, 1.0, 1.0])).item(), 4)
        0.9333

    References:
        [canatar2022], Eq. (3); the number is ours.
    """
    require_curve(curve)
    values = double(curve)[1:]
    return ratio_or_nan(values.sum(), values.new_tensor(float(len(values))))
