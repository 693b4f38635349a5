"""Does what the factors give agree with plain autograd? Asked of every run, unless told not to."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.capture.layers import Ownership
from theodolite.errors import CaptureError

__all__ = ["GradientCheck", "squared_norms"]

# Relative error of a squared norm, in units of round-off, that rounding explains.
_RELATIVE = 2e4
# Gradients that vanish (a shift before a normalisation) leave rounding of the others.
_VANISHING = 1e3


def squared_norms(tensors: Sequence[Tensor]) -> Float[Tensor, " m"]:
    """Squared norm of each tensor in float64, in one call where the device has one."""
    if tensors[0].device.type == "cuda":
        return torch.stack(torch._foreach_norm(list(tensors), 2, torch.float64)).square()
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors]
    return torch.stack(norms).square()


class GradientCheck:
    """Comparisons that wait on the device until someone asks for the verdict."""

    def __init__(self, owned: Ownership) -> None:
        self._parameters = owned.parameters
        self._waiting: list[tuple[str, Tensor, Tensor, int]] = []

    def plain_squares(self, losses: Tensor, *, keep: bool = False) -> dict[str, Tensor]:
        """Squared norms of autograd's own gradient of the summed loss."""
        grads = torch.autograd.grad(
            losses.sum(), list(self._parameters.values()), retain_graph=keep, allow_unused=True
        )
        present = {
            name: grad
            for name, grad in zip(self._parameters, grads, strict=True)
            if grad is not None
        }
        return dict(zip(present, squared_norms(list(present.values())), strict=True))

    def compare(
        self,
        what: str,
        found: Mapping[str, Tensor | None],
        plain: Mapping[str, Tensor],
        examples: int,
    ) -> None:
        """Note two sets of squared norms, one entry per parameter; absent means zero."""
        zero = next(iter(plain.values())).new_zeros(())
        left, right = [], []
        for name in self._parameters:
            value = found.get(name)
            left.append(zero if value is None else value)
            right.append(plain.get(name, zero))
        self._waiting.append((what, torch.stack(left), torch.stack(right), examples))

    def require_agreement(self, dtype: torch.dtype) -> None:
        """Judge what is waiting.

        Raises:
            CaptureError: If squared norms differ by more than rounding explains.
        """
        eps = torch.finfo(dtype).eps
        for what, on_device, plain, examples in self._waiting:
            left, right = on_device.cpu(), plain.cpu()
            scale = torch.maximum(left, right)
            allowed = _RELATIVE * eps * scale + examples * (_VANISHING * eps) ** 2 * scale.sum()
            wrong = ((left - right).abs() > allowed).nonzero().flatten().tolist()
            if wrong:
                name = list(self._parameters)[wrong[0]]
                raise CaptureError(
                    f"{what} with respect to {name!r}: expected squared norm "
                    f"{right[wrong[0]]:.6g} as autograd gives it, got {left[wrong[0]]:.6g}; "
                    "examples may depend on each other or on chance (use model.eval()), else a "
                    "rule is wrong: please report it"
                )
        self._waiting.clear()
