"""Measured change of tangent features in a real step, and the units that change sign."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from theodolite.checks import require_count, require_finite, require_same_shape
from theodolite.errors import ShapeError
from theodolite.linalg import double, prints_shapes, ratio_or_nan
from theodolite_papers.lou2022.formulas.homogeneity import TangentMap
from theodolite_papers.lou2022.formulas.losses import cross_entropy_gradient

_ATEN = torch.ops.aten
# Operations with one kink at zero, by their names in the dispatcher of torch.
_KINKED = {
    _ATEN.relu.default,
    _ATEN.relu_.default,
    _ATEN.leaky_relu.default,
    _ATEN.leaky_relu_.default,
    _ATEN._prelu_kernel.default,
    _ATEN.threshold.default,
    _ATEN.threshold_.default,
    _ATEN.clamp_min.default,
    _ATEN.clamp_min_.default,
}
_POOLS = {
    _ATEN.max_pool2d_with_indices.default,
    _ATEN.max_pool3d_with_indices.default,
    _ATEN.adaptive_max_pool2d.default,
    _ATEN.adaptive_max_pool3d.default,
}


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records signs of the inputs of piecewise linear operations, and choices of max pooling."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.patterns: list[Tensor] = []

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function in _KINKED:  # before the call, which may be in place
            self.patterns.append((args[0] > 0).clone())
        result = function(*args, **(kwargs or {}))
        if function in _POOLS:
            self.patterns.append(result[1].clone())
        return result


def activation_pattern(function: Callable[[Tensor], Tensor], parameters: Tensor) -> list[Tensor]:
    """Signs and choices in the order of execution, for one evaluation without gradients."""
    with torch.no_grad(), _Recorder() as recorder:
        function(parameters)
    return recorder.patterns


def count_flips(before: list[Tensor], after: list[Tensor]) -> int:
    """Number of units, over all examples, that change sign or choose another input."""
    return sum(int((a != b).sum()) for a, b in zip(before, after, strict=True))


@prints_shapes
@dataclass(frozen=True)
class FeatureChange:
    """Change of the combined tangent features between two moments of a network."""

    measured: Float[Tensor, " p"]
    first_order: Float[Tensor, " p"]
    flips: int  # (unit, example) pairs whose activation changed sign in between

    @property
    def relative_error(self) -> Float[Tensor, ""]:
        """``|measured - first order| / |measured|``; nan where nothing changed."""
        return ratio_or_nan((self.measured - self.first_order).norm(), self.measured.norm())


@prints_shapes
@dataclass(frozen=True)
class FeatureUpdate:
    """Agreement of the measured change of label features with the predicted one."""

    cosine: Float[Tensor, ""]
    pearson: Float[Tensor, ""]
    flip_free_cosine: Float[Tensor, ""]  # of the infinitesimal change, without any sign flip
    flips: int


def feature_change(
    before: nn.Module, after: nn.Module, inputs: Tensor, weights: Float[Tensor, "n c"]
) -> FeatureChange:
    r"""Change of :math:`\Psi v` in a training step, and its first-order prediction.

    .. math:: \Psi(t+1)v - \Psi(t)v \approx H_v(t)\,(\theta(t+1) - \theta(t))

    Exact for two layers while no unit changes sign; the error relative to the change is
    proportional to the step for more. Tangent features *jump* when a ReLU changes sign, and the
    jumps are not of higher order: see the number of flips.

    Args:
        before: The network at step t.
        after: The same network at step t + 1.
        inputs: A batch.
        weights: :math:`v`, over examples and outputs.

    Raises:
        ShapeError: If the networks have different parameters, or the weights do not match.

    Examples:
        >>> before = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False)
        ... )
        >>> after = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False)
        ... )
        >>> change = feature_change(before, after, torch.eye(2), torch.ones(2, 1))
        >>> change.flips, bool(change.relative_error < 1e-9)
        (0, True)

    References:
        [lou2022], Approximation 2.
    """
    network, target = _moments(before, after, inputs)
    require_finite(weights=weights)
    require_same_shape(weights=weights, outputs=network.outputs())
    v = double(weights)
    step = target.parameters - network.parameters
    return FeatureChange(
        measured=target.pull(v) - network.pull(v),
        first_order=network.bend(v, step),
        flips=_flips(network, target),
    )


def feature_update_correlation(
    before: nn.Module,
    after: nn.Module,
    inputs: Tensor,
    targets: Float[Tensor, "n c"],
    *,
    loss_gradient: Float[Tensor, "n c"] | None = None,
    projection: int | None = None,
    generator: torch.Generator | None = None,
) -> FeatureUpdate:
    r"""Correlation of the change of the label features with its prediction from the Hessian.

    .. math:: \operatorname{corr}\big(U(\Psi(t+1)\tilde Y - \Psi(t)\tilde Y),\;
              -U H_w(t)\Psi(t)\tilde Y\big)

    Range: [-1, 1].
    Undefined (``nan``): nothing changed, or the prediction is zero.

    High early in training if logits are small. With an ordinary initialisation of a deep ReLU
    network the value is dominated by sign flips; therefore the flip-free value, in which the
    change is :math:`H_{\tilde Y}\,\Delta\theta`, and the number of flips are given with it.

    Args:
        before: The network at step t.
        after: The same network at step t + 1.
        inputs: A batch.
        targets: :math:`Y`, one-hot; other real targets need their own ``loss_gradient``.
        loss_gradient: :math:`w` at step t; None for the mean cross-entropy.
        projection: Rows r of a Gaussian :math:`U`; None for the identity.
        generator: Of the projection.

    Raises:
        ShapeError: If the networks or the targets do not match.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
        >>> feature_update_correlation(model, model, torch.eye(2), torch.eye(2)).flips
        0

    References:
        [lou2022], Figure 5 and Approximations 1 and 2.

    Differs from paper:
        U is not defined in the paper; the identity is exact and as cheap.
    """
    network, target = _moments(before, after, inputs)
    outputs = network.outputs()
    require_finite(targets=targets)
    require_same_shape(targets=targets, outputs=outputs)
    y = double(targets) - double(targets).mean()
    w = cross_entropy_gradient(outputs, double(targets)) if loss_gradient is None else loss_gradient
    require_finite(loss_gradient=w)
    require_same_shape(loss_gradient=w, outputs=outputs)
    predicted = -network.bend(double(w), network.pull(y))
    vectors = torch.stack(
        [
            target.pull(y) - network.pull(y),
            predicted,
            network.bend(y, target.parameters - network.parameters),
        ]
    )
    measured, predicted, smooth = _project(vectors, projection, generator)
    return FeatureUpdate(
        cosine=_cosine(measured, predicted),
        pearson=_cosine(measured - measured.mean(), predicted - predicted.mean()),
        flip_free_cosine=_cosine(smooth, predicted),
        flips=_flips(network, target),
    )


def _moments(before: nn.Module, after: nn.Module, inputs: Tensor) -> tuple[TangentMap, TangentMap]:
    shapes = [
        {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        for model in (before, after)
    ]
    if shapes[0] != shapes[1]:
        differing = sorted(set(shapes[0].items()) ^ set(shapes[1].items()))
        raise ShapeError(
            "after: expected the network of before with the same parameters, "
            f"but {differing[0][0]!r} differs; pass two copies of one network"
        )
    return TangentMap.of(before, inputs), TangentMap.of(after, inputs)


def _flips(network: TangentMap, target: TangentMap) -> int:
    return count_flips(
        *(activation_pattern(moment.function, moment.parameters) for moment in (network, target))
    )


def _project(vectors: Tensor, rows: int | None, generator: torch.Generator | None) -> Tensor:
    """``U v`` of each row v, with the same U, one row of U at a time."""
    if rows is None:
        return vectors
    require_count(1, projection=rows)
    device = generator.device if generator is not None else None
    draws = (
        torch.randn(vectors.shape[1], dtype=torch.float64, generator=generator, device=device)
        for _ in range(rows)
    )
    return torch.stack([vectors @ draw.to(vectors) for draw in draws], dim=1) / rows**0.5


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return ratio_or_nan(a @ b, a.norm() * b.norm())
