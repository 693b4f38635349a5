"""Does what the factors give agree with plain autograd? Asked of every run, unless told not to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.engine.layers import Ownership
from theodolite.engine.state import rounding_dtypes
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


@dataclass(frozen=True)
class _Comparison:
    """Squared norms found and those of plain autograd, on the device."""

    what: str
    names: tuple[str, ...]
    left: Tensor
    right: Tensor
    examples: int


class GradientCheck:
    """Comparisons that wait on the device until someone asks for the verdict."""

    def __init__(self, owned: Ownership) -> None:
        self._parameters = owned.parameters
        self._waiting: list[_Comparison] = []

    def plain_squares(
        self, losses: Tensor, names: Sequence[str] | None = None, *, keep: bool = False
    ) -> dict[str, Tensor]:
        """Squared norms of autograd's own gradient of the summed loss; zero where there is none."""
        chosen = list(self._parameters) if names is None else list(names)
        grads = torch.autograd.grad(
            losses.sum(),
            [self._parameters[name] for name in chosen],
            retain_graph=keep,
            allow_unused=True,
        )
        present = {name: g for name, g in zip(chosen, grads, strict=True) if g is not None}
        zero = losses.new_zeros((), dtype=torch.float64)
        squares = squared_norms(list(present.values())) if present else ()
        found = dict(zip(present, squares, strict=True))
        return {name: found.get(name, zero) for name in chosen}

    def compare(
        self,
        what: str,
        found: Mapping[str, Tensor],
        plain: Mapping[str, Tensor],
        examples: int,
    ) -> None:
        """Note two sets of squared norms, one entry per parameter; not found means zero."""
        zero = next(iter(plain.values())).new_zeros(())
        left = torch.stack([found.get(name, zero) for name in plain])
        right = torch.stack(list(plain.values()))
        self._waiting.append(_Comparison(what, tuple(plain), left, right, examples))

    def require_agreement(self, dtype: torch.dtype) -> None:
        """Judge what is waiting.

        Args:
            dtype: That of the losses; parameters and an autocast may be coarser.

        Raises:
            CaptureError: If squared norms differ by more than rounding explains.
        """
        dtypes = {dtype} | rounding_dtypes(self._parameters.values())
        eps = max(torch.finfo(kind).eps for kind in dtypes)
        for one in self._waiting:
            left, right = one.left.cpu(), one.right.cpu()
            scale = torch.maximum(left, right)
            vanishing = one.examples * (_VANISHING * eps) ** 2 * scale.sum()
            allowed = _RELATIVE * eps * scale + vanishing
            wrong = ((left - right).abs() > allowed).nonzero().flatten().tolist()
            if wrong:
                name = one.names[wrong[0]]
                raise CaptureError(
                    f"{one.what} with respect to {name!r}: expected squared norm "
                    f"{right[wrong[0]]:.6g} as autograd gives it, got {left[wrong[0]]:.6g}; "
                    "examples may depend on each other or on chance (use model.eval()), else a "
                    "rule is wrong: please report it"
                )
        self._waiting.clear()
