"""A network as a function of its flat parameter vector, with first and second derivatives.

Plain autograd in float64; the model itself is neither changed nor moved. What is differentiated
is the almost-everywhere derivative: the slope of a ReLU at zero is zero.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from theodolite.checks import require_finite, require_nonempty
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg.arrays import double

__all__ = ["TangentMap"]

_CHUNK = 64  # derivatives taken at once: bounds memory at 64 parameter vectors per layer


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
