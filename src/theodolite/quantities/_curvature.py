"""Curvature of a model's outputs: the part of the loss Hessian that the Gauss-Newton matrix leaves.

Products with a vector cost about two backward passes; the matrix is never formed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from theodolite.capture.batches import Batch, iterate_batches
from theodolite.capture.layers import Layers, Ownership, own_parameters, unwrap
from theodolite.capture.modes import require_fixed_mode
from theodolite.capture.readouts import Readout, read_outputs, resolve_readout
from theodolite.capture.state import exact_arithmetic, untouched
from theodolite.checks import require_finite
from theodolite.errors import ShapeError
from theodolite.linalg import Eigen, symmetric_eigen, top_eigen_operator
from theodolite.quantities._losses import Loss, per_example_loss

__all__ = ["LayerEnergy", "LayerMoments", "OutputHessian", "output_hessian"]

_BATCH_SIZE = 256
_DENSE_BELOW = 512  # the full matrix is cheaper than ARPACK's start-up below this many parameters


@dataclass(frozen=True)
class LayerEnergy:
    """How eigenvectors spread over layers: one row per layer, one column per vector.

    Args:
        layers: names of the rows.
        squared: squared norm of the vector's part in the layer; sums to 1 for unit vectors when
            the layers hold all parameters.
        norm: its root, what the paper plots and calls energy.
        per_parameter: squared norm divided by the number of parameters of the layer.
    """

    layers: tuple[str, ...]
    squared: Float[Tensor, "layers k"]
    norm: Float[Tensor, "layers k"]
    per_parameter: Float[Tensor, "layers k"]


@dataclass(frozen=True)
class LayerMoments:
    r"""Moments :math:`m_p = \mathrm{tr}(M_l H_w^p)` of one layer, p = 2, 3, 4.

    Args:
        values: the three moments.
        errors: their standard errors over random probes; zero when exact.
    """

    values: Float[Tensor, " 3"]
    errors: Float[Tensor, " 3"]

    @property
    def mean_eigenvalue(self) -> Float[Tensor, ""]:
        """``m_3 / m_2``: eigenvalues weighted by their squares and their share in the layer."""
        return self.values[1] / self.values[0]


class OutputHessian:
    r"""The matrix :math:`H_w = \sum_{x,i} w_{x,i} \nabla^2_\theta f^i(x)` as a linear operator.

    Vectors are flat, parameters in order of registration. Built by :func:`output_hessian`.
    """

    def __init__(
        self, model: nn.Module, owned: Ownership, parts: list[tuple[Batch, Tensor]], read: Readout
    ) -> None:
        self._model, self._parts, self._read = model, parts, read
        self._owned = owned
        self._tensors = list(owned.parameters.values())
        sizes = [tensor.numel() for tensor in self._tensors]
        self.shape = (sum(sizes), sum(sizes))
        self.weights = torch.cat([weights for _, weights in parts])
        ends = np.cumsum([0, *sizes]).tolist()
        self._spans = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(owned.parameters)}

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in order of registration."""
        return tuple(self._owned.layers)

    def restrict(self, vectors: Float[Tensor, "p *k"], layer: str) -> Tensor:
        """The entries that belong to one layer."""
        return torch.cat([vectors[self._spans[name]] for name in self._owned.layers[layer]])

    def gradient(self) -> Float[Tensor, " p"]:
        r""":math:`\Psi w`, the gradient of the loss."""
        with self._running():
            total = sum((_flat(grads) for grads in self._first_order(create_graph=False)), 0.0)
        assert isinstance(total, Tensor)
        return total

    def __matmul__(self, vectors: Float[Tensor, "p *k"]) -> Float[Tensor, "p *k"]:
        """Product with one flat vector, or with several side by side."""
        if vectors.ndim not in (1, 2) or len(vectors) != self.shape[0]:
            raise ShapeError(
                f"vectors: expected one entry per parameter, {self.shape[0]}, got shape "
                f"{tuple(vectors.shape)}"
            )
        columns = vectors.reshape(len(vectors), -1).unbind(1)
        with self._running():
            products = torch.zeros(len(columns), self.shape[0]).to(self._tensors[0])
            for grads in self._first_order(create_graph=True):
                for index, column in enumerate(columns):
                    last = index == len(columns) - 1
                    products[index] += self._second_order(grads, column, retain=not last)
        return products.mT.reshape(vectors.shape)

    @contextmanager
    def _running(self) -> Iterator[None]:
        recurrent = any(isinstance(module, nn.RNNBase) for module in self._model.modules())
        device = self._tensors[0].device
        # Neither fused attention nor cuDNN's recurrent cells can be differentiated twice.
        with (
            untouched(self._model),
            exact_arithmetic(device),
            sdpa_kernel(SDPBackend.MATH),
            torch.backends.cudnn.flags(enabled=not recurrent),
        ):
            yield

    def _first_order(self, *, create_graph: bool) -> Iterator[tuple[Tensor, ...]]:
        for batch, weights in self._parts:
            outputs = read_outputs(batch.run(self._model), batch, self._read)
            yield torch.autograd.grad(
                outputs,
                self._tensors,
                grad_outputs=weights,
                create_graph=create_graph,
                materialize_grads=True,
            )

    def _second_order(self, grads: tuple[Tensor, ...], vector: Tensor, *, retain: bool) -> Tensor:
        pieces = torch.split(vector.to(grads[0]), [grad.numel() for grad in grads])
        terms = [
            (grad * piece.view_as(grad)).sum()
            for grad, piece in zip(grads, pieces, strict=True)
            if grad.requires_grad
        ]
        if not terms:  # outputs that are linear in every parameter
            return torch.zeros_like(vector)
        products = torch.autograd.grad(
            torch.stack(terms).sum(), self._tensors, retain_graph=retain, materialize_grads=True
        )
        return _flat(products)

    def to_dense(self) -> Float[Tensor, "p p"]:
        """The matrix itself; sensible for a few thousand parameters."""
        dense = self @ torch.eye(self.shape[0]).to(self._tensors[0])
        return (dense + dense.mT) / 2

    def linear_operator(self) -> LinearOperator:
        """For SciPy: NumPy vectors in float64 in and out."""

        def matvec(vector: np.ndarray) -> np.ndarray:
            tensor = torch.from_numpy(np.ascontiguousarray(vector)).flatten()
            product = self @ tensor.to(self._tensors[0])
            return product.double().cpu().numpy()

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

    def layer_energy(self, vectors: Float[Tensor, "p k"]) -> LayerEnergy:
        """The share of each layer in eigenvectors."""
        parts = [self.restrict(vectors, layer) for layer in self.layers]
        squared = torch.stack([part.square().sum(0) for part in parts])
        sizes = squared.new_tensor([len(part) for part in parts]).unsqueeze(1)
        return LayerEnergy(self.layers, squared, squared.sqrt(), squared / sizes)

    def layer_moments(
        self,
        layer: str,
        probes: int | None = None,
        generator: torch.Generator | None = None,
    ) -> LayerMoments:
        r"""Second, third and fourth moment of one layer, two products per probe.

        Args:
            layer: a name of :attr:`layers`.
            probes: number of random sign vectors on the layer (Hutchinson); None takes one unit
                vector per parameter of the layer, which is exact.
            generator: of the random signs, on the CPU.
        """
        inside = torch.zeros(self.shape[0], dtype=torch.bool)
        for name in self._owned.layers[layer]:
            inside[self._spans[name]] = True
        samples = torch.stack([self._probe(probe) for probe in _probes(inside, probes, generator)])
        if probes is None:
            return LayerMoments(samples.sum(0), torch.zeros_like(samples[0]))
        spread = samples.std(0) if probes > 1 else torch.full_like(samples[0], torch.nan)
        return LayerMoments(samples.mean(0), spread / probes**0.5)

    def _probe(self, probe: Tensor) -> Tensor:
        once = self @ probe.to(self._tensors[0])
        twice = self @ once
        a, b = once.double(), twice.double()
        return torch.stack([a @ a, a @ b, b @ b])


def _probes(
    inside: Tensor, count: int | None, generator: torch.Generator | None
) -> Iterator[Tensor]:
    indices = inside.nonzero().flatten()
    for index in indices if count is None else range(count):
        probe = torch.zeros(len(inside))
        if count is None:
            probe[index] = 1.0
        else:
            signs = torch.randint(2, (len(indices),), generator=generator)
            probe[indices] = 2.0 * signs - 1.0
        yield probe


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def output_hessian(  # noqa: PLR0913 (shared keywords)
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    loss: Loss | None = None,
    *,
    layers: Layers = "*",
    params: Any = None,
    readout: str | Readout | None = None,
    batch_size: int = _BATCH_SIZE,
    batch_fn: Callable[[Any], Batch] | None = None,
) -> OutputHessian:
    r"""The output part of the Hessian of the mean loss.

    .. math:: \nabla^2_\theta L = H_w + \Psi S \Psi^\top,
              \qquad H_w = \sum_{x,i} w_{x,i} \nabla^2_\theta f^i(x),\; w = \partial L/\partial F

    with w treated as a constant. For piecewise linear networks its diagonal blocks vanish.

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        inputs: anything that :func:`theodolite.capture.batches.iterate_batches` accepts.
        targets: of the same examples, where ``inputs`` does not hold them.
        loss: (outputs, targets) -> one number per example; None is the cross-entropy.
        layers: layers for energies and moments; the matrix covers all parameters chosen.
        params: which trainable parameters count; None takes all.
        readout: (model output, batch) -> ``(n, c)``, or ``"last"``, ``"mean"``, ``"cls"``.
        batch_size: examples in one pass.
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
        [lou2022], section 4 and appendix; the decomposition of the loss Hessian.
    """
    plain = unwrap(model)
    require_fixed_mode(plain)
    owned = own_parameters(plain, layers, params)
    read = resolve_readout(readout)
    losses_of = per_example_loss(loss)
    device = next(iter(owned.parameters.values())).device
    with untouched(plain), exact_arithmetic(device):
        batches = list(
            iterate_batches(
                inputs, targets=targets, batch_size=batch_size, batch_fn=batch_fn, device=device
            )
        )
        count = sum(map(len, batches))
        parts = []
        for batch in batches:
            with torch.no_grad():
                outputs = read_outputs(batch.run(plain), batch, read)
            require_finite(outputs=outputs)
            leaf = outputs.detach().requires_grad_()
            (slope,) = torch.autograd.grad(losses_of(leaf, batch).sum() / count, leaf)
            parts.append((batch, slope))
    return OutputHessian(plain, owned, parts, read)
