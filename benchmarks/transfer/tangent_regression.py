r"""Regression with a tangent kernel, judged by leaving out one example with all its outputs.

.. math:: y_x - \hat y_{-x} = P_{xx}^{-1} (P y)_x, \qquad
          P = \lambda (K_c + \lambda I)^{-1} - \tfrac1n 11^\top \otimes I_c

:math:`K_c` is centred over examples; :math:`P_{xx}` is the c x c block of an example. For the trace
over outputs see ``theodolite.measures.kernel.leave_one_out_regression``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from theodolite.errors import ShapeError
from theodolite.linalg import RIDGES, LeaveOneOut, double, symmetric_eigen, unit_peak
from theodolite.linalg.leave_one_out import best_ridge

_LEAST = 1e-9  # of 1 - leverage: an example that alone spans a direction


def leave_one_out_tangent_regression(
    kernel: Tensor, targets: Tensor, ridges: Sequence[float] = RIDGES
) -> LeaveOneOut:
    """Predictions of tangent-kernel regression for each example from all the others.

    One intercept for each output. Cost: O(n^3 c^3) once, O(n^2 c^3) for each ridge.

    Args:
        kernel: axes example, output, example, output; symmetric.
        targets: class labels, one class for each output in order, or numbers (n, c).
        ridges: those that compete, in units of the mean eigenvalue of the centred kernel.
    """
    n, c = kernel.shape[:2]
    columns, names = double(targets).reshape(len(targets), -1), None
    if not targets.is_floating_point():
        columns, names = one_hot(targets, c).double(), torch.arange(c, device=targets.device)
    if columns.shape != (n, c):
        raise ShapeError(
            f"targets: expected class labels or shape {(n, c)}, one column for each output of the "
            f"kernel, got {tuple(targets.shape)}"
        )
    wide = double(unit_peak(kernel.reshape(n * c, n * c)).reshape(kernel.shape))
    wide = wide - wide.mean(0, keepdim=True)
    wide = wide - wide.mean(2, keepdim=True)
    # The intercepts are eigenvectors of eigenvalue zero. Lifted to the top, they are set apart from
    # others of eigenvalue zero and dropped, and nothing is left that cancels.
    unit = torch.einsum("xixi->", wide) / (n * c)
    lift = 2 * n * c * torch.where(unit > 0, unit, 1.0) / n
    wide = wide + lift * torch.eye(c, dtype=wide.dtype, device=wide.device).unsqueeze(1)
    values, vectors = symmetric_eigen(wide.reshape(n * c, n * c))
    values, vectors = values[c:].clamp_min(0.0), vectors[:, c:]
    parts = vectors.mT @ unit_peak(columns - columns.mean(0)).flatten()
    blocks = vectors.reshape(n, c, -1)

    def residual(ridge: Tensor) -> Tensor:
        lost = ridge / (values + ridge).clamp_min(1e-300)
        missed = (vectors @ (lost * parts)).reshape(n, c)
        own, turn = torch.linalg.eigh((blocks * lost) @ blocks.mT)
        turned = (turn.mT @ missed.unsqueeze(2)) / own.clamp_min(_LEAST).unsqueeze(2)
        return (turn @ turned).squeeze(2)

    def residuals(chosen: Tensor) -> Tensor:
        return torch.stack([residual(ridge) for ridge in chosen])

    return best_ridge(residuals, ridges, unit, columns, names)
