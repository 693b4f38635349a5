"""A network as a function of its flat parameter vector; networks homogeneous in it (Theorem A).

The functions use plain autograd in float64, and neither change nor move the model. Derivatives hold
almost everywhere: the slope of a ReLU at zero is zero.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from theodolite.checks import require_finite, require_nonempty, require_same_shape
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import double, prints_shapes

_CHUNK = 64  # derivatives taken at once: bounds memory at 64 parameter vectors per layer
_LINEAR = (nn.Linear, nn.modules.conv._ConvNd)


@prints_shapes
@dataclass(frozen=True)
class TangentMap:
    r"""Outputs :math:`F(\theta)` of fixed inputs, and products with their derivatives.

    The tangent features :math:`\Psi` have one column per example and output,
    :math:`\Psi_{(x,i)} = \nabla_\theta f^i(x)`.
    """

    function: Callable[[Tensor], Tensor]  # flat parameters -> outputs (n, c)
    parameters: Float[Tensor, " p"]
    layers: Mapping[str, slice]  # module that owns the parameters -> its part of the vector

    @classmethod
    def of(cls, model: nn.Module, inputs: Tensor) -> "TangentMap":
        """The map of a model at its present parameters."""
        _require_frozen_statistics(model)
        require_nonempty(inputs=inputs)
        require_finite(inputs=inputs)
        named = dict(model.named_parameters())
        if not named:
            raise DomainError("model: expected parameters, got none; there is nothing to train")
        shapes = [parameter.shape for parameter in named.values()]
        sizes = [parameter.numel() for parameter in named.values()]
        buffers = {name: _double(buffer) for name, buffer in model.named_buffers()}
        x = _double(inputs)

        def function(theta: Tensor) -> Tensor:
            parts = torch.split(theta, sizes)
            pieces = {
                name: part.reshape(shape)
                for name, part, shape in zip(named, parts, shapes, strict=True)
            }
            outputs: Any = functional_call(model, {**pieces, **buffers}, (x,))
            return outputs

        theta = torch.cat([double(p.detach()).reshape(-1) for p in named.values()])
        _require_outputs(function(theta), len(x))
        return cls(function, theta, _owners(named))

    def at(self, parameters: Float[Tensor, " p"]) -> "TangentMap":
        """The same map at other parameters."""
        return TangentMap(self.function, parameters, self.layers)

    def outputs(self) -> Float[Tensor, "n c"]:
        """:math:`F`."""
        with torch.no_grad():
            return self.function(self.parameters)

    def features(self) -> Float[Tensor, "n c p"]:
        r""":math:`\Psi^\top`; memory is n c p."""
        jacobian: Tensor = jacrev(self.function, chunk_size=_CHUNK)(self.parameters)
        return jacobian

    def pull(self, weights: Float[Tensor, "n c"]) -> Float[Tensor, " p"]:
        r""":math:`\Psi v`, one backward pass."""
        result: Tensor = self._gradient(weights)(self.parameters)
        return result

    def curvature(
        self, weights: Float[Tensor, "n c"], vectors: Float[Tensor, "k p"]
    ) -> Float[Tensor, "k p"]:
        r""":math:`H_v u` for each row u, with :math:`H_v = \sum v_{x,i} \nabla^2 f^i(x)`."""
        gradient = self._gradient(weights)

        def product(vector: Tensor) -> Tensor:
            result: Tensor = grad(lambda theta: gradient(theta) @ vector)(self.parameters)
            return result

        result: Tensor = vmap(product, chunk_size=_CHUNK)(vectors)
        return result

    def bend(self, weights: Float[Tensor, "n c"], vector: Float[Tensor, " p"]) -> Tensor:
        r""":math:`H_v u` for one vector."""
        return self.curvature(weights, vector.unsqueeze(0))[0]

    def _gradient(self, weights: Tensor) -> Callable[[Tensor], Tensor]:
        result: Callable[[Tensor], Tensor] = grad(
            lambda theta: (weights * self.function(theta)).sum()
        )
        return result


def _double(tensor: Tensor) -> Tensor:
    return double(tensor.detach()) if tensor.is_floating_point() else tensor


def _owners(named: Mapping[str, Tensor]) -> dict[str, slice]:
    """Parts of the flat vector by owning module; a module's own parameters are neighbours."""
    owners: dict[str, slice] = {}
    start = 0
    for name, parameter in named.items():
        owner = name.rpartition(".")[0]
        first = owners[owner].start if owner in owners else start
        start += parameter.numel()
        owners[owner] = slice(first, start)
    return owners


def _require_frozen_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        batch = isinstance(module, nn.modules.batchnorm._BatchNorm)
        noisy = isinstance(module, nn.modules.dropout._DropoutNd)
        if module.training and (batch or noisy):
            raise DomainError(
                f"model: expected outputs that depend on one example each, got the layer {name!r} "
                f"({type(module).__name__}) in training mode; call model.eval() first"
            )


def _require_outputs(outputs: Any, examples: int) -> None:
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != examples:
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ShapeError(
            f"model: expected outputs of shape (n, c) with n = {examples}, got {got}; "
            "wrap the model so that it returns one row of logits per example"
        )


@prints_shapes
@dataclass(frozen=True)
class HomogeneityCheck:
    """What Theorem A says about a network, and by how much the network departs from it.

    Errors are norms of differences relative to the largest norm over all examples and outputs:
    rounding (1e-12 or so) where the theorem holds.
    """

    depth: int  # L, the number of weight layers
    degrees: Float[Tensor, " p"]  # s: 1 for weights, l for the bias of layer l
    hessian_errors: Float[Tensor, "n c"]  # of H (s θ) = (L - s) grad f
    euler_errors: Float[Tensor, "n c"]  # of (s θ) . grad f = L f

    @property
    def largest_error(self) -> float:
        """The larger of both kinds of error over all examples and outputs."""
        return max(float(self.hessian_errors.max()), float(self.euler_errors.max()))


def check_homogeneity(model: nn.Module, inputs: Tensor) -> HomogeneityCheck:
    r"""Check Theorem A on a network: its Hessians turn parameters into gradients.

    .. math:: H^i(x)\,(s\odot\theta) = (L - s)\odot\nabla f^i(x),\qquad
              (s\odot\theta)\cdot\nabla f^i(x) = L\,f^i(x)

    with :math:`s = 1` for weights and :math:`s = l` for the bias of layer l. Without biases this
    is :math:`H^i(x)\,\theta = (L-1)\nabla f^i(x)`. It holds because
    :math:`f(\alpha^s\theta) = \alpha^L f(\theta)`.

    Domain: at least two linear or convolutional layers one after another, with positively
    homogeneous functions between them (ReLU, leaky ReLU, max and average pooling, flattening). Not
    residual sums of unequal depth, not normalisation layers, not smooth activations. Networks
    outside the domain are refused, by the kind of their parameters and by evaluating
    :math:`f(2^s\theta)`.

    Args:
        model: The network; it must return (n, c).
        inputs: A batch :math:`x`. All derivatives are taken in float64.

    Raises:
        DomainError: If the network lies outside the domain, or has a single layer.

    Examples:
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
        ... )
        >>> check = check_homogeneity(model, torch.eye(3))
        >>> check.depth, check.largest_error < 1e-9
        (2, True)

    References:
        [lou2022], Theorem A.

    Differs from paper:
        The paper has no biases, and a stray step size in its middle formula.
    """
    network, depth, degrees = _homogeneous(model, inputs)
    outputs = network.outputs()
    scaled = degrees * network.parameters
    differences, sizes, euler = [], [], []
    basis = torch.eye(outputs.numel(), dtype=outputs.dtype, device=outputs.device)
    for weights in basis.reshape(-1, *outputs.shape):
        gradient = network.pull(weights)
        expected = (depth - degrees) * gradient
        differences.append((network.bend(weights, scaled) - expected).norm())
        sizes.append(expected.norm())
        euler.append(scaled @ gradient - depth * (weights * outputs).sum())
    return HomogeneityCheck(
        depth,
        degrees,
        _relative(torch.stack(differences), torch.stack(sizes)).reshape(outputs.shape),
        _relative(torch.stack(euler).abs(), depth * outputs.abs()).reshape(outputs.shape),
    )


def homogeneous_step(
    model: nn.Module, inputs: Tensor, loss_gradient: Float[Tensor, "n c"], step_size: float
) -> Float[Tensor, " p"]:
    r"""Parameters after a step of gradient descent, from the output Hessian alone.

    .. math:: \theta' = \left(I - \frac{\eta}{L-1} H_w\right)\theta

    Args:
        model: A network without biases in the domain of :func:`check_homogeneity`.
        inputs: The batch.
        loss_gradient: :math:`w`, of the mean loss in output space.
        step_size: :math:`\eta`, the learning rate.

    Returns:
        The flat float64 parameters, in the order of ``model.parameters()``.

    Raises:
        DomainError: If the network has biases or lies outside the domain.
        ShapeError: If the loss gradient does not match the outputs.

    Examples:
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False)
        ... )
        >>> homogeneous_step(model, torch.eye(2), torch.ones(2, 1), step_size=0.1).shape
        torch.Size([6])

    References:
        [lou2022], Theorem A.
    """
    network, depth, degrees = _homogeneous(model, inputs)
    if bool((degrees != 1).any()) or any("bias" in name for name, _ in model.named_parameters()):
        raise DomainError("model: expected no biases for this identity; pass bias=False")
    require_finite(loss_gradient=loss_gradient)
    require_same_shape(loss_gradient=loss_gradient, outputs=network.outputs())
    bent = network.bend(double(loss_gradient), network.parameters)
    return network.parameters - step_size / (depth - 1) * bent


def _homogeneous(model: nn.Module, inputs: Tensor) -> tuple[TangentMap, int, Tensor]:
    """The network with its depth and degrees, or an error that says what is outside the domain."""
    linear = {name: m for name, m in model.named_modules() if isinstance(m, _LINEAR)}
    foreign = [
        name
        for name, _ in model.named_parameters()
        if name.rpartition(".")[0] not in linear
        or name.rpartition(".")[2] not in {"weight", "bias"}
    ]
    if foreign:
        raise DomainError(
            "model: expected parameters of linear and convolutional layers only, got also "
            f"{', '.join(foreign[:8])}; Theorem A does not hold with them"
        )
    depth = len(linear)
    if depth < 2:
        raise DomainError(
            f"model: expected at least two weight layers, got {depth}; with one layer the "
            "identity says nothing"
        )
    network = TangentMap.of(model, inputs)
    level = {name: index for index, name in enumerate(linear, start=1)}
    degrees = torch.cat(
        [
            network.parameters.new_full((p.numel(),), _degree(name, level))
            for name, p in model.named_parameters()
        ]
    )
    _require_homogeneous(network, depth, degrees)
    return network, depth, degrees


def _degree(name: str, level: dict[str, int]) -> float:
    owner, _, kind = name.rpartition(".")
    return 1.0 if kind == "weight" else float(level[owner])


def _require_homogeneous(network: TangentMap, depth: int, degrees: Tensor) -> None:
    outputs = network.outputs()
    doubled = network.at(network.parameters * 2**degrees).outputs() / 2.0**depth
    difference = float((doubled - outputs).abs().max())
    if not difference <= 1e-9 * float(outputs.abs().max()):
        raise DomainError(
            f"model: expected outputs homogeneous of degree {depth} in the parameters of its "
            f"{depth} weight layers, one after another, but doubling them changes "
            f"f / 2^{depth} by {difference:.1e}; normalisation, smooth activations, residual sums "
            "and layers used twice or out of order are outside Theorem A"
        )


def _relative(errors: Tensor, sizes: Tensor) -> Tensor:
    """Errors over the largest size; 0 where everything is zero."""
    largest = sizes.max()
    return errors / torch.where(largest > 0, largest, torch.ones_like(largest))
