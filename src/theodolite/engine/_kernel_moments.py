"""The Frobenius norm of a centred kernel that is never held as a whole."""

import torch
from torch import Tensor

from theodolite.engine._blocks import spans

__all__ = ["KernelMoments"]

_ROWS = 1024  # rows of a block that are converted to float64 at a time


class KernelMoments:
    r"""Sums over the blocks of one symmetric kernel, in float64.

    .. math:: \|CKC\|_F^2 = \sum K^2 - \tfrac{2}{m} |K1|^2 + \tfrac{1}{m^2} (1^\top K 1)^2

    A constant is subtracted from all entries first. It changes nothing after centring, and keeps
    digits where kernels are nearly constant, as those of deep networks at initialisation are.

    Args:
        size: m, rows of the kernel.
        device: Where the sums are kept.
        labels: Vector whose quadratic form is added up too.
    """

    def __init__(self, size: int, device: torch.device, labels: Tensor) -> None:
        self._size, self._labels = size, labels.double()
        self._offset: Tensor | None = None
        self._squares = torch.zeros((), dtype=torch.float64, device=device)
        self._form = torch.zeros((), dtype=torch.float64, device=device)
        self._rows = torch.zeros(size, dtype=torch.float64, device=device)

    def add(self, block: Tensor, rows: slice, columns: slice) -> None:
        """Add a block, and its mirror image unless it lies on the diagonal."""
        if self._offset is None:
            self._offset = block.double().mean()
        weight = 1.0 if rows == columns else 2.0
        for part in spans(len(block), _ROWS):
            values = block[part].double()
            place = slice(rows.start + part.start, rows.start + part.stop)
            form = self._labels[place] @ (values @ self._labels[columns])
            self._form += weight * form
            values -= self._offset
            self._squares += weight * values.square().sum()
            self._rows[place] += values.sum(1)
            if weight == 2.0:
                self._rows[columns] += values.sum(0)

    @property
    def form(self) -> Tensor:
        """Quadratic form of the labels."""
        return self._form

    @property
    def uncentered(self) -> Tensor:
        """Norm before centring, up to the constant that was subtracted."""
        offset = torch.zeros_like(self._form) if self._offset is None else self._offset
        m = self._size
        shifted = self._squares + 2 * offset * self._rows.sum() + m * m * offset.square()
        return shifted.clamp(min=0.0).sqrt()

    @property
    def centered(self) -> Tensor:
        """Norm of the centred kernel."""
        m, r = self._size, self._rows
        squared = self._squares - (2 / m) * (r @ r) + r.sum().square() / (m * m)
        return squared.clamp(min=0.0).sqrt()
