"""Curvature of a model's outputs: the part of the loss Hessian that the Gauss-Newton matrix leaves.

Products with a vector cost about two backward passes; the matrix is never formed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import require_finite
from theodolite.engine._losses import Loss, per_example_loss
from theodolite.engine._operators import ParameterOperator, Pass, flat
from theodolite.engine.batches import Batch, iterate_batches
from theodolite.engine.layers import Layers, own_parameters, unwrap
from theodolite.engine.modes import require_fixed_mode
from theodolite.engine.readouts import Readout, read_outputs, resolve_readout
from theodolite.engine.state import exact_arithmetic, untouched

__all__ = ["OutputHessian", "output_hessian"]

_BATCH_SIZE = 256


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
        [lou2022], section 4 and appendix; the decomposition of the loss Hessian.
    """
    plain = unwrap(model)
    require_fixed_mode(plain)
    owned = own_parameters(plain, layers, params)
    read = resolve_readout(readout)
    losses_of = per_example_loss(loss)
    device = next(iter(owned.parameters.values())).device
    with untouched(plain), exact_arithmetic(device):
        options: dict[str, Any] = {"targets": targets, "batch_fn": batch_fn, "device": device}
        batches = list(iterate_batches(inputs, batch_size=batch_size or _BATCH_SIZE, **options))
        count = sum(map(len, batches))
        passes = []
        for batch in batches:
            with torch.no_grad():
                outputs = read_outputs(batch.run(plain), batch, read)
            require_finite(outputs=outputs)
            leaf = outputs.detach().requires_grad_()
            (slope,) = torch.autograd.grad(losses_of(leaf, batch).sum() / count, leaf)
            passes.append(Pass(batch, slope))
    return OutputHessian(plain, owned, passes, read)
