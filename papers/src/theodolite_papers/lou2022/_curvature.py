"""Curvature of the loss: Fisher information per layer, and the Hessian of the outputs.

The Fisher information is taken in output space, as a matrix over examples and outputs, from tangent
kernels. The Hessian of the loss minus the Gauss-Newton matrix is the curvature of the outputs
themselves. :class:`OutputHessian` gives its products with vectors.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Shaped
from scipy.sparse.linalg import LinearOperator
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from theodolite.checks import require_choice, require_finite
from theodolite.engine import (
    Batch,
    Layers,
    Loss,
    Ownership,
    Readout,
    exact_arithmetic,
    iterate_batches,
    model_device,
    own_parameters,
    per_example_loss,
    read_outputs,
    require_fixed_mode,
    resolve_readout,
    tangent_kernels,
    untouched,
    unwrap,
)
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite.linalg import Eigen, double, prints_shapes, symmetric_eigen, top_eigen_operator
from theodolite_papers.lou2022.formulas.losses import cross_entropy_hessian, squared_error_hessian

_HESSIANS: dict[str, Callable[[Tensor], Tensor]] = {
    "cross_entropy": cross_entropy_hessian,
    "squared_error": squared_error_hessian,
}


_BATCH_SIZE = 256
_DENSE_BELOW = 512  # the full matrix is cheaper than ARPACK's start-up below this many parameters


@dataclass(frozen=True)
class Pass:
    """Some examples, and the weight of each of their outputs."""

    batch: Batch
    weights: Tensor


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors one after the other, detached."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@prints_shapes
@dataclass(frozen=True)
class LayerFisher:
    r"""Fisher information of one layer in output space, :math:`G = S^{1/2} K S^{1/2}`.

    Both fields are arguments of ``fisher_gram``, ``fisher_stable_rank`` and ``fisher_correlation``
    in :mod:`theodolite_papers.lou2022.formulas.fisher`.

    Args:
        kernel: :math:`K`, the tangent kernel.
        hessian: :math:`S`, one block per example, of the mean loss.
    """

    kernel: Float[Tensor, "n c n c"]
    hessian: Float[Tensor, "n c c"]

    def trace(self) -> Float[Tensor, ""]:
        """Sum of the eigenvalues of the Fisher matrix."""
        blocks = double(self.kernel).diagonal(dim1=0, dim2=2)  # (c, c, n), one per example
        return (blocks.permute(2, 0, 1) * double(self.hessian)).sum()


@dataclass(frozen=True)
class Fisher(Mapping[str, LayerFisher]):
    """Layer -> Fisher information; ``total`` for all layers together."""

    layers: Mapping[str, LayerFisher]
    total: LayerFisher

    def __getitem__(self, layer: str) -> LayerFisher:
        return self.layers[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def fisher(
    model: nn.Module,
    inputs: Any,
    layers: Layers = "*",
    *,
    loss: str = "cross_entropy",
    **options: Any,
) -> Fisher:
    r"""Fisher information of every layer, in output space.

    .. math:: I_l = \Psi_l S \Psi_l^\top, \qquad G_l = S^{1/2} K_l S^{1/2}

    The model Fisher (expectation over predicted labels) on these inputs, not the matrix of outer
    products of observed gradients. Matrices are as large as examples times outputs, squared.

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        inputs: as for :func:`tangent_kernels`.
        layers: names, patterns or a predicate; ``"*"`` takes layers with parameters of their own.
        loss: ``"cross_entropy"`` (outputs are logits) or ``"squared_error"``, both means over
            examples.
        **options: of :func:`tangent_kernels`: ``readout``, ``params``, ``batch_size``,
            ``memory_limit``, ``dtype``, ``batch_fn``, ``check``.

    Example:
        >>> found = fisher(nn.Linear(2, 3), torch.randn(4, 2))
        >>> found[""].kernel.shape, found[""].hessian.shape
        (torch.Size([4, 3, 4, 3]), torch.Size([4, 3, 3]))

    References:
        [lou2022], Appendix G.
    """
    require_choice(tuple(_HESSIANS), loss=loss)
    kernels = tangent_kernels(model, inputs, layers, "full", **options)
    hessian = _HESSIANS[loss](kernels.outputs.detach())
    found = {name: LayerFisher(kernel, hessian) for name, kernel in kernels.items()}
    return Fisher(found, LayerFisher(kernels.total, hessian))


@final
class OutputHessian:
    r"""The matrix :math:`H_w = \sum_{x,i} w_{x,i} \nabla^2_\theta f^i(x)` as a linear operator.

    Symmetric, over all chosen parameters. Vectors are flat, parameters in order of registration.
    Built by :func:`output_hessian`.
    """

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
        # Fused attention cannot be differentiated twice.
        with (
            untouched(self._model),
            exact_arithmetic(self._tensors[0].device),
            sdpa_kernel(SDPBackend.MATH),
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

    @property
    def weights(self) -> Float[Tensor, "n c"]:
        """:math:`w`, the gradient of the mean loss with respect to the outputs."""
        return torch.cat([one.weights for one in self._passes])

    def gradient(self) -> Float[Tensor, " p"]:
        r""":math:`\Psi w`, the gradient of the mean loss."""
        total = torch.zeros(self.shape[0]).to(self._tensors[0])
        with self._running():
            for one in self._passes:
                total += flat(self._gradient(self._outputs(one.batch), one.weights, keep=False))
        return total

    def _products(self, outputs: Tensor, one: Pass, columns: Sequence[Tensor]) -> Iterator[Tensor]:
        grads = self._gradient(outputs, one.weights, keep=True, create=True)
        for column in columns:
            terms = [
                (grad * piece).sum()
                for grad, piece in zip(grads, self._pieces(column), strict=True)
                if grad.requires_grad
            ]
            if not terms:  # outputs that are linear in every parameter
                yield torch.zeros_like(column)
                continue
            yield flat(self._gradient(torch.stack(terms).sum(), None, keep=True))


def output_hessian(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    loss: Loss | None = None,
    *,
    layers: Layers = "*",
    params: Any = None,
    readout: str | Readout | None = None,
    batch_size: int | None = None,
    batch_fn: Callable[[Any], Batch] | None = None,
) -> OutputHessian:
    r"""The output part of the Hessian of the mean loss.

    .. math:: \nabla^2_\theta L = H_w + \Psi S \Psi^\top,
              \qquad H_w = \sum_{x,i} w_{x,i} \nabla^2_\theta f^i(x),\; w = \partial L/\partial F

    with w treated as a constant. For piecewise linear networks its diagonal blocks vanish.

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        inputs: anything that :func:`theodolite.engine.batches.iterate_batches` accepts.
        targets: of the same examples, where ``inputs`` does not hold them.
        loss: (outputs, targets) -> one number per example; None is the cross-entropy.
        layers: layers for energies and moments; the matrix covers all parameters chosen.
        params: which trainable parameters count; None takes all.
        readout: (model output, batch) -> ``(n, c)``, or ``"last"``, ``"mean"``, ``"cls"``.
        batch_size: examples in one pass; None takes 256.
        batch_fn: turns an item of the data into a batch.

    Raises:
        DomainError: If the model normalises over the batch, drops out units, or has NaN outputs.
        ShapeError: If the loss does not give one number per example.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False))
        >>> hessian = output_hessian(model, torch.eye(2), torch.tensor([0, 1]))
        >>> hessian.shape
        (12, 12)

    References:
        [lou2022], Appendix B.4, the decomposition of the loss Hessian.
    """
    losses_of = per_example_loss(loss)
    plain = unwrap(model)
    require_fixed_mode(plain)
    owned, read = own_parameters(plain, layers, params), resolve_readout(readout)
    device, size = model_device(plain), batch_size or _BATCH_SIZE
    options = {"targets": targets, "batch_fn": batch_fn, "device": device}
    with untouched(plain), exact_arithmetic(device):
        batches = list(iterate_batches(inputs, batch_size=size, **options))
        count = sum(map(len, batches))
        passes = []
        for batch in batches:
            with torch.no_grad():
                values = read_outputs(batch.run(plain), batch, read)
            require_finite(outputs=values)
            leaf = values.detach().requires_grad_()
            (slopes,) = torch.autograd.grad(losses_of(leaf, batch).sum() / count, leaf)
            passes.append(Pass(batch, slopes))
    return OutputHessian(plain, owned, passes, read)
