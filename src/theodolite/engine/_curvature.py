"""Curvature of the loss: Fisher information, Gauss-Newton matrix and output Hessian, per layer.

For the usual losses the Fisher information is the Gauss-Newton matrix. In output space it is a
matrix over examples and outputs, from tangent kernels; in parameter space an operator, whose
products take two backward passes. The Hessian of the loss in the outputs is analytic. What the
Gauss-Newton matrix leaves of the loss Hessian is the curvature of the outputs themselves.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import require_choice, require_finite
from theodolite.engine._example_gradients import Segment, example_gradients
from theodolite.engine._operators import ParameterOperator, Pass, flat, weighted_passes
from theodolite.engine._runs import ModelRecorder
from theodolite.engine._tangents import tangent_kernels
from theodolite.engine.batches import Batch
from theodolite.engine.layers import LayerMapping, Layers, layers_text
from theodolite.engine.readouts import Loss, OutputChoice, Readout, per_example_loss
from theodolite.engine.state import exact_arithmetic, untouched
from theodolite.linalg import cross_entropy_hessian, double, prints_shapes, squared_error_hessian

_HESSIANS: dict[str, Callable[[Tensor], Tensor]] = {
    "cross_entropy": cross_entropy_hessian,
    "squared_error": squared_error_hessian,
}


@prints_shapes
@dataclass(frozen=True)
class LayerFisher:
    r"""Fisher information of one layer in output space, :math:`G = S^{1/2} K S^{1/2}`.

    The matrix and its numbers are measures of the two fields: ``fisher_gram(kernel, hessian)``,
    ``fisher_stable_rank`` and ``fisher_correlation`` of :mod:`theodolite.measures.tangent`.

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
class Fisher(LayerMapping[LayerFisher]):
    """Layer -> Fisher information; ``total`` for all layers together."""

    layers: Mapping[str, LayerFisher]
    total: LayerFisher
    outputs: Float[Tensor, "n c"]

    def __repr__(self) -> str:
        return f"Fisher({len(self.outputs)} examples, {layers_text(self)})"


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
    products of observed gradients. Matrices are as large as examples times outputs, squared; for
    more examples, or products in parameter space, see :func:`gauss_newton`.

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
    return Fisher(found, LayerFisher(kernels.total, hessian), kernels.outputs)


@final
class GaussNewton(ParameterOperator):
    r"""The matrix :math:`\Psi S \Psi^\top` over all parameters as a linear operator.

    Vectors are flat, parameters in order of registration. Built by :func:`gauss_newton`.
    """

    def _products(self, outputs: Tensor, one: Pass, columns: Sequence[Tensor]) -> Iterator[Tensor]:
        dummy = torch.zeros_like(outputs, requires_grad=True)
        pulled = self._gradient(outputs, dummy, keep=True, create=True)  # linear in the dummy
        for column in columns:
            pairs = zip(pulled, self._pieces(column), strict=True)
            inner = torch.stack([(grad * piece).sum() for grad, piece in pairs]).sum()
            (pushed,) = torch.autograd.grad(inner, dummy, retain_graph=True)  # Psi^T v
            weighted = (one.weights @ pushed.unsqueeze(2)).squeeze(2)
            yield flat(self._gradient(outputs, weighted, keep=True))

    def layer_traces(self) -> dict[str, Float[Tensor, ""]]:
        r"""Trace of each layer's block, exact: c backward passes, no gradient of an example kept.

        .. math:: \mathrm{tr}\,I_l = \sum_{x,i} \|\nabla_{\theta_l} (S_x^{1/2} f(x))_i\|^2
        """
        recorder = ModelRecorder(self._model, self._owned, self._readout, OutputChoice("full"))
        totals = dict.fromkeys(self._owned.parameters, torch.zeros((), dtype=torch.float64))
        with untouched(self._model), exact_arithmetic(self._tensors[0].device):
            for one in self._passes:
                for name, value in self._pass_traces(recorder, one):
                    totals[name] = totals[name].to(value.device) + value
        return {
            layer: torch.stack([totals[name].cpu() for name in names]).sum()
            for layer, names in self._owned.layers.items()
        }

    def _pass_traces(self, recorder: ModelRecorder, one: Pass) -> Iterator[tuple[str, Tensor]]:
        run = recorder.run(one.batch)
        roots = _roots(one.weights)
        edges = [edge for use in run.uses for edge in use.edges]
        for index in range(roots.shape[1]):
            arrived = torch.autograd.grad(
                run.outputs,
                edges,
                roots[:, index].contiguous(),
                retain_graph=True,
                allow_unused=True,
            )
            for name, grads in example_gradients(run.uses, arrived, self._owned, len(one.batch)):
                yield name, grads.reduce((), _discard).clamp(min=0.0).sum()


def _discard(_parts: list[Segment], _sums: Tensor) -> None:
    """Sums are not needed here."""


def _roots(hessian: Float[Tensor, "n c c"]) -> Float[Tensor, "n c c"]:
    """Symmetric roots of positive semi-definite blocks."""
    values, vectors = torch.linalg.eigh(double(hessian))
    root = (vectors * values.clamp(min=0.0).sqrt().unsqueeze(-2)) @ vectors.mT
    return root.to(hessian)


def gauss_newton(
    model: nn.Module,
    inputs: Any,
    layers: Layers = "*",
    *,
    loss: str = "cross_entropy",
    params: Any = None,
    readout: str | Readout | None = None,
    batch_size: int | None = None,
    batch_fn: Callable[[Any], Batch] | None = None,
) -> GaussNewton:
    r"""The Gauss-Newton matrix of the mean loss, :math:`\Psi S \Psi^\top`, as an operator.

    For the cross-entropy and the squared error it is the Fisher information. Memory grows with the
    parameters and one batch, not with the data or the number of outputs squared.

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        inputs: anything that :func:`theodolite.engine.batches.iterate_batches` accepts.
        layers: layers for traces, energies and moments; the matrix covers all parameters chosen.
        loss: ``"cross_entropy"`` (outputs are logits) or ``"squared_error"``.
        params: which trainable parameters count; None takes all.
        readout: (model output, batch) -> ``(n, c)``, or ``"last"``, ``"mean"``, ``"cls"``.
        batch_size: examples in one pass; None takes 256.
        batch_fn: turns an item of the data into a batch.

    Example:
        >>> matrix = gauss_newton(nn.Linear(2, 3), torch.randn(4, 2))
        >>> (matrix @ torch.ones(9)).shape
        torch.Size([9])

    References:
        [lou2022], Appendix G.
    """
    require_choice(tuple(_HESSIANS), loss=loss)

    def blocks(batches: Sequence[Batch], outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return torch.split(_HESSIANS[loss](torch.cat([*outputs])), [*map(len, batches)])

    return GaussNewton(
        *weighted_passes(
            model, inputs, blocks, layers, params, readout, batch_size, batch_fn=batch_fn
        )
    )


@final
class OutputHessian(ParameterOperator):
    r"""The matrix :math:`H_w = \sum_{x,i} w_{x,i} \nabla^2_\theta f^i(x)` as a linear operator.

    Vectors are flat, parameters in order of registration. Built by :func:`output_hessian`.
    """

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

    def slopes(batches: Sequence[Batch], outputs: Sequence[Tensor]) -> list[Tensor]:
        count = sum(map(len, batches))
        found: list[Tensor] = []
        for batch, values in zip(batches, outputs, strict=True):
            require_finite(outputs=values)
            leaf = values.detach().requires_grad_()
            found += torch.autograd.grad(losses_of(leaf, batch).sum() / count, leaf)
        return found

    options = {"targets": targets, "batch_fn": batch_fn}
    return OutputHessian(
        *weighted_passes(model, inputs, slopes, layers, params, readout, batch_size, **options)
    )
