"""The answer of :func:`tangent_kernels`: one kernel per layer, and how it was found."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from theodolite.errors import UnknownNameError

__all__ = ["Coverage", "TangentKernels"]


@dataclass(frozen=True)
class Coverage:
    """How the gradients of one parameter were obtained.

    Args:
        parameter: Name of the parameter.
        functions: Torch functions that used it, in order of use; empty if none did.
        by_rule: Whether rules covered all of them; otherwise single calls were replayed.
        route: Order of contraction: ``"hadamard"`` (one position), ``"positions"`` (Gram matrix of
            positions), ``"gradients"`` (gradients of examples), ``"unused"``.
        shared_with: Further names of the same tensor.
    """

    parameter: str
    functions: tuple[str, ...]
    by_rule: bool
    route: str
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class TangentKernels(Mapping[str, Tensor]):
    """Layer -> tangent kernel, in order of execution.

    Args:
        kernels: The kernels; a layer that contains another contains its kernel too.
        coverage: Layer -> how each of its parameters was treated.
        outputs: Values of the functions that were differentiated, (n, c).
        predicted_bytes: Peak memory that was planned, beside the model.
    """

    kernels: dict[str, Tensor]
    coverage: dict[str, tuple[Coverage, ...]]
    outputs: Tensor = field(repr=False)
    predicted_bytes: int = 0

    def __getitem__(self, layer: str) -> Tensor:
        if layer not in self.kernels:
            raise UnknownNameError("layer", layer, self.kernels)
        return self.kernels[layer]

    def __contains__(self, layer: object) -> bool:
        return layer in self.kernels

    def __iter__(self) -> Iterator[str]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __repr__(self) -> str:
        shape = tuple(next(iter(self.kernels.values())).shape)
        return f"TangentKernels({len(self)} layers of shape {shape}: {', '.join(self.kernels)})"

    @property
    def total(self) -> Tensor:
        """The kernel of all selected parameters, each counted once."""
        return self._sum(self._outermost())

    def split(self, readout: str | None = None) -> tuple[Tensor, Tensor]:
        r"""The total in two terms: that of the readout and that of everything below it.

        .. math:: K_{ij} = K^{(L)} \delta_{ij} + K^{grad}_{ij}

        Args:
            readout: The readout layer; None takes the last one that was executed.

        References:
            [canatar2022], Eq. (7). A trainable shift of the readout adds
            :math:`\delta_{ij}` to the first term.
        """
        outermost = self._outermost()
        name = outermost[-1] if readout is None else readout
        if name not in outermost:
            raise UnknownNameError("layer", name, outermost)
        below = [layer for layer in outermost if layer != name]
        first = self[name]
        return first, self._sum(below) if below else first.new_zeros(first.shape)

    def _outermost(self) -> list[str]:
        def inside(layer: str, other: str) -> bool:
            return layer != other and (other == "" or layer.startswith(other + "."))

        return [layer for layer in self if not any(inside(layer, other) for other in self)]

    def _sum(self, layers: list[str]) -> Tensor:
        total = self[layers[0]].clone()
        for layer in layers[1:]:
            total += self[layer]
        return total
