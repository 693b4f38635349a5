"""Symmetric matrices over the parameters of a model, given by their products with vectors.

The matrix is never formed. A subclass says what the examples of one batch add to a product; here is
what follows for all of them: eigenvectors, moments of layers, the operator for SciPy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from scipy.sparse.linalg import LinearOperator
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from theodolite.engine.batches import Batch, iterate_batches
from theodolite.engine.layers import Layers, Ownership, Parameters, own_parameters, unwrap
from theodolite.engine.readouts import Readout, read_outputs, resolve_readout
from theodolite.engine.state import (
    exact_arithmetic,
    model_device,
    require_fixed_mode,
    untouched,
    without_cudnn,
)
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite.linalg import Eigen, symmetric_eigen, top_eigen_operator

_BATCH_SIZE = 256
_DENSE_BELOW = 512  # the full matrix is cheaper than ARPACK's start-up below this many parameters


@dataclass(frozen=True)
class Pass:
    """Some examples and what each of their outputs is weighed with."""

    batch: Batch
    weights: Tensor


class ParameterOperator(ABC):
    """A symmetric matrix over all chosen parameters; vectors are flat, in order of registration."""

    def __init__(
        self, model: nn.Module, owned: Ownership, passes: Sequence[Pass], readout: Readout
    ) -> None:
        self._model, self._owned, self._readout = model, owned, readout
        self._passes = list(passes)
        self._tensors = list(owned.parameters.values())
        sizes = [tensor.numel() for tensor in self._tensors]
        self.shape = (sum(sizes), sum(sizes))
        ends = list(accumulate(sizes, initial=0))
        self._spans = {
            name: slice(ends[index], ends[index + 1]) for index, name in enumerate(owned.parameters)
        }

    @abstractmethod
    def _products(self, outputs: Tensor, one: Pass, columns: Sequence[Tensor]) -> Iterator[Tensor]:
        """What the examples of one pass add to the product with each vector."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in order of registration."""
        return tuple(self._owned.layers)

    def restrict(self, vectors: Shaped[Tensor, "p *k"], layer: str) -> Tensor:
        """The entries that belong to one layer."""
        if layer not in self._owned.layers:
            raise UnknownNameError("layer", layer, self._owned.layers)
        return torch.cat([vectors[self._spans[name]] for name in self._owned.layers[layer]])

    def __matmul__(self, vectors: Float[Tensor, "p *k"]) -> Float[Tensor, "p *k"]:
        """Product with one flat vector, or with several side by side."""
        if vectors.ndim not in (1, 2) or len(vectors) != self.shape[0]:
            raise ShapeError(
                f"vectors: expected one entry per parameter, {self.shape[0]}, got shape "
                f"{tuple(vectors.shape)}"
            )
        columns = vectors.to(self._tensors[0]).reshape(len(vectors), -1).unbind(1)
        sums = torch.zeros(len(columns), self.shape[0]).to(self._tensors[0])
        with self._running():
            for one in self._passes:
                products = self._products(self._outputs(one.batch), one, columns)
                for row, product in zip(sums, products, strict=True):
                    row += product
        return sums.mT.reshape(vectors.shape)

    def _outputs(self, batch: Batch) -> Tensor:
        return read_outputs(batch.run(self._model), batch, self._readout)

    @contextmanager
    def _running(self) -> Iterator[None]:
        recurrent = any(isinstance(module, nn.RNNBase) for module in self._model.modules())
        # Neither fused attention nor cuDNN's recurrent cells can be differentiated twice.
        with (
            untouched(self._model),
            exact_arithmetic(self._tensors[0].device),
            sdpa_kernel(SDPBackend.MATH),
            without_cudnn() if recurrent else nullcontext(),
        ):
            yield

    def to_dense(self) -> Float[Tensor, "p p"]:
        """The matrix itself; sensible for a few thousand parameters."""
        dense = self @ torch.eye(self.shape[0]).to(self._tensors[0])
        return (dense + dense.mT) / 2

    def linear_operator(self) -> LinearOperator:
        """For SciPy: NumPy vectors in float64 in and out."""

        def matvec(vector: np.ndarray) -> np.ndarray:
            tensor = torch.from_numpy(np.ascontiguousarray(vector, dtype=np.float64)).flatten()
            return (self @ tensor).double().cpu().numpy()

        return LinearOperator(self.shape, matvec=matvec, rmatvec=matvec, dtype=np.dtype("float64"))

    def top_eigenpairs(self, count: int) -> Eigen:
        """The ``count`` eigenvalues that are largest in absolute value, with their eigenvectors."""
        if self.shape[0] <= max(_DENSE_BELOW, count + 1):
            values, vectors = symmetric_eigen(self.to_dense())
            order = values.abs().argsort(descending=True)[:count]
            return Eigen(values[order], vectors[:, order])
        device = self._tensors[0].device
        return top_eigen_operator(
            lambda vector: self @ vector, self.shape[0], count, which="LM", device=device
        )

    def by_layer(self, vectors: Float[Tensor, "p k"]) -> tuple[Float[Tensor, "p k"], list[int]]:
        """Entries layer after layer, and the number of each: arguments of ``layer_energy``.

        Raises:
            DomainError: If the layers overlap or leave parameters out: shares would not add up.
        """
        names = [name for layer in self.layers for name in self._owned.layers[layer]]
        if sorted(names) != sorted(self._spans):
            raise DomainError(
                "layers: expected each parameter in exactly one layer, got layers that overlap or "
                'leave some out; use layers="*", or params= to leave parameters out altogether'
            )
        parts = [self.restrict(vectors, layer) for layer in self.layers]
        return torch.cat(parts), [len(part) for part in parts]

    def _pieces(self, vector: Tensor) -> list[Tensor]:
        """A flat vector cut into the shapes of the parameters."""
        pieces = torch.split(vector, [tensor.numel() for tensor in self._tensors])
        pairs = zip(pieces, self._tensors, strict=True)
        return [piece.view_as(tensor) for piece, tensor in pairs]

    def _gradient(
        self, values: Tensor, weights: Tensor | None, *, keep: bool, create: bool = False
    ) -> list[Tensor]:
        return list(
            torch.autograd.grad(
                values,
                self._tensors,
                grad_outputs=weights,
                retain_graph=keep,
                create_graph=create,
                materialize_grads=True,
            )
        )


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors one after the other, detached."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def weighted_passes(
    model: nn.Module,
    data: Any,
    weigh: Callable[[Sequence[Batch], Sequence[Tensor]], Sequence[Tensor]],
    layers: Layers,
    params: Parameters,
    readout: str | Readout | None,
    batch_size: int | None,
    **options: Any,
) -> tuple[nn.Module, Ownership, list[Pass], Readout]:
    """Arguments of an operator whose weights ``weigh`` makes of all batches and their outputs."""
    plain = unwrap(model)
    require_fixed_mode(plain)
    owned, read = own_parameters(plain, layers, params), resolve_readout(readout)
    device = model_device(plain)
    with untouched(plain), exact_arithmetic(device):
        size = batch_size or _BATCH_SIZE
        batches = list(iterate_batches(data, batch_size=size, device=device, **options))
        with torch.no_grad():
            outputs = [read_outputs(batch.run(plain), batch, read) for batch in batches]
        pairs = zip(batches, weigh(batches, outputs), strict=True)
        return plain, owned, [Pass(batch, weights) for batch, weights in pairs], read
