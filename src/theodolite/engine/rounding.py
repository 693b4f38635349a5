"""What rounding explains: tolerances by dtype, and tensors that must be equal up to them.

:class:`Rounding` counts the results of a pass by dtype and gives the relative difference of two
passes that rounding can explain. :class:`Comparison` compares pairs of tensors, row by row.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.engine.batches import spans
from theodolite.engine.state import HALF
from theodolite.errors import DtypeError

_WIDE = (torch.float64, torch.complex128, torch.float32, torch.complex64)
_KNOWN = (*_WIDE, *HALF)
_INTEGERS = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
})  # fmt: skip
# Assumed terms of a sum in float32 or float64; half precision rounds once per sum.
_WIDE_TERMS = 4e4
_LEAST_CALLS = 8  # assumed number of calls at least: scripted code and custom functions hide some
_MARGIN = 4.0  # no ordinary network of tests/engine/networks exceeds it; it was not fitted to one
_CHUNK = 2**18  # numbers that are converted or subtracted at a time

BACKWARD_FACTOR = 3.0  # one forward and two backward passes: three times the tolerance
# A vanishing gradient (of a shift before a normalisation) consists of rounding of the others: about
# one unit of rounding of all gradients, rarely more than this share of their tolerance. Between the
# two, rounding and an error look alike.
VANISHING_SHARE = 0.05


class Rounding:
    """The rounding that results of calls can have, by dtype.

    A result that is rounded to nearest has a relative error of about ``eps / sqrt(12)``. k
    independent roundings add up to ``sqrt(k)`` times as much. In half precision a call rounds once.
    In float32 and float64 it rounds once for every term of its sums.
    """

    def __init__(self, counts: Iterable[torch.dtype] | None = None) -> None:
        self.counts: Counter[torch.dtype] = Counter(counts or ())

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Record the tensors in the result of a call."""
        for tensor in tensors:
            if tensor.dtype not in _INTEGERS:
                self.counts[tensor.dtype] += 1

    def tolerance(self) -> float:
        """Relative difference between two passes that rounding can explain.

        Raises:
            DtypeError: If the rounding of a dtype is not known.
        """
        unknown = sorted(str(dtype) for dtype in self.counts if dtype not in _KNOWN)
        if unknown:
            raise DtypeError(
                f"model: expected numbers of float64, float32, float16 or bfloat16, got "
                f"{unknown[0]}, whose rounding is not known here; convert the model to one of these"
            )
        variance = 0.0
        for dtype, count in self.counts.items():
            terms = 1.0 if dtype in HALF else _WIDE_TERMS
            variance += torch.finfo(dtype).eps ** 2 / 12 * max(count, _LEAST_CALLS) * terms
        return float(_MARGIN * variance**0.5)

    def unit(self) -> float:
        """The unit of rounding of the coarsest result."""
        return max((torch.finfo(dtype).eps for dtype in self.counts), default=0.0)


class Comparison:
    """Pairs of tensors that must be equal, compared together to wait for a device only once.

    The difference of a row is divided by its norm or, if larger, by the median of all norms. A
    small number beside large ones may be rounding. Several rows that agree in relation to the root
    mean square of all norms are not compared one by one.
    """

    def __init__(self) -> None:
        self._pairs: list[_Pair] = []

    def add_rows(
        self,
        name: str,
        found: Tensor,
        wanted: Tensor,
        whole: Tensor | None = None,
        weights: Float[Tensor, " n"] | None = None,
    ) -> None:
        """Every row of a tensor must equal that of another.

        Args:
            name: Name of the comparison.
            found: The rows.
            wanted: The correct rows.
            whole: All rows, for the scale of the comparison; None takes the wanted rows.
            weights: Factors of the wanted rows; None for ones.
        """
        if weights is not None:
            weights = weights.view(-1, *(1,) * (wanted.dim() - 1))
        self._pairs.append(_Pair(name, found, wanted, whole, weights))

    def first_above(self, tolerance: float, unit: float = 0.0) -> tuple[str, float] | None:
        """The first pair with a larger difference, and the difference; waits for the device.

        Args:
            tolerance: Relative difference that rounding explains.
            unit: Difference that rounding explains in any pair, relative to the largest pair.
        """
        if not self._pairs:
            return None
        with torch.no_grad():
            device = self._pairs[0].found.device
            norms = [norm.to(device) for pair in self._pairs for norm in pair.norms()]
            found = torch.stack(norms).tolist()
            for pair, gap, norm in zip(self._pairs, found[::2], found[1::2], strict=True):
                # All differences of a pair together are mostly as small as that of a row must be.
                # Otherwise, or if squares over- or underflow, the exact comparison follows, which
                # takes three times as long.
                size = norm / pair.scale_count**0.5
                if gap <= tolerance * size and _smallest(pair.found) < size < math.inf:
                    continue
                gap = float(pair.gap())
                if not gap <= tolerance and not self._vanishes(pair, unit):
                    return pair.name, gap
        return None

    def _vanishes(self, pair: "_Pair", unit: float) -> bool:
        """Whether all differences of a pair are at most a unit of rounding of the largest pair."""
        if unit == 0 or pair.found.shape != pair.wanted.shape:
            return False
        found, wanted = pair.rows()
        largest = max(float(norm_of(other.rows()[1])) for other in self._pairs)
        return float(norm_of(found - wanted)) <= unit * largest


@dataclass(slots=True)
class _Pair:
    """Rows and the correct rows, see :meth:`Comparison.add_rows`."""

    name: str
    found: Tensor
    wanted: Tensor
    whole: Tensor | None
    weights: Tensor | None

    @property
    def scale_rows(self) -> Tensor | None:
        """All rows, of which these are some; None for a single row, which has its own scale."""
        return None if self.found.shape[0] == 1 else self.whole

    @property
    def scale_count(self) -> int:
        """Number of rows that give the scale."""
        return max(1, (self.found if self.scale_rows is None else self.scale_rows).shape[0])

    def norms(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The norm of all differences, and of the rows of the scale; zeros without differences.

        Some rows at a time: new memory for all differences would take ten times as long as the
        comparison.
        """
        found, norm = self.found, torch.linalg.vector_norm
        if found.shape != self.wanted.shape or found.numel() == 0:
            return found.new_zeros(()), found.new_zeros(())
        if found.numel() <= _CHUNK or found.is_cuda:
            found, wanted = self.rows()
            return norm(found - wanted), norm(
                wanted if self.scale_rows is None else wide(self.scale_rows)
            )
        gaps, sizes = [], []
        for rows in spans(len(found), max(1, _CHUNK * len(found) // found.numel())):
            part, wanted = self.rows(rows)
            gaps.append(norm(part - wanted))
            sizes.append(norm(wanted))
        sizes = sizes if self.scale_rows is None else [norm(wide(self.scale_rows))]
        return norm(torch.stack(gaps)), norm(torch.stack(sizes))

    def rows(self, rows: slice | None = None) -> tuple[Float[Tensor, "n ..."], Tensor]:
        """Some of the rows or all, and what they should be."""
        found, wanted, weights = self.found, self.wanted, self.weights
        if rows is not None:
            found, wanted = found[rows], wanted[rows]
            weights = None if weights is None else weights[rows]
        found, wanted = wide(found), wide(wanted)
        return found, wanted if weights is None else wanted * weights.to(wanted)

    def gap(self) -> Float[Tensor, ""]:
        """The largest relative difference, for numbers of any size; infinities are equal."""
        if self.found.shape != self.wanted.shape:
            return torch.full((), torch.inf)
        if self.found.numel() == 0:
            return torch.zeros(())
        found, wanted = (_without_infinities(part.reshape(len(part), -1)) for part in self.rows())
        norms = _norms(wanted)
        every = norms
        if self.whole is not None:
            whole = wide(self.whole)
            every = _norms(_without_infinities(whole.reshape(len(whole), -1)))
        scale = torch.maximum(norms, every.median())
        return relative(_norms(found - wanted), scale).amax()


def wide(tensor: Tensor) -> Tensor:
    """The tensor, at least in float32."""
    return tensor if tensor.dtype in _WIDE else tensor.float()


_SMALLEST, _SMALLEST_DOUBLE = (
    1e6 * torch.finfo(dtype).tiny ** 0.5 for dtype in (torch.float32, torch.float64)
)


def _smallest(tensor: Tensor) -> float:
    """The norm above which squares of the dtype do not underflow."""
    double = tensor.dtype in (torch.float64, torch.complex128)
    return _SMALLEST_DOUBLE if double else _SMALLEST


def _without_infinities(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Replace equal infinities, as in masks of attention, by zeros."""
    real = torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows
    return real.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _norms(rows: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Norms of rows without overflow. Adding up in float64 would take ten times as long."""
    largest = rows.abs().amax(1).clamp(min=torch.finfo(rows.dtype).tiny)  # of each row
    return torch.linalg.vector_norm(rows / largest[:, None], dim=1).double() * largest.double()


def norm_of(tensor: Tensor) -> Float[Tensor, ""]:
    """The norm of a tensor in float64, without overflow."""
    if tensor.numel() == 0:
        return torch.zeros((), dtype=torch.float64, device=tensor.device)
    parts = torch.split(wide(tensor).reshape(1, -1), _CHUNK, 1)
    return torch.linalg.vector_norm(torch.cat([_norms(part) for part in parts]))


def _quick_norm(tensor: Tensor) -> Float[Tensor, ""]:
    """The norm; on a CPU in parts, because ``vector_norm`` adds entries one after the other."""
    if not tensor.is_cpu or tensor.numel() <= _CHUNK:
        return torch.linalg.vector_norm(tensor)
    parts = torch.split(tensor.reshape(-1), _CHUNK)
    return torch.linalg.vector_norm(torch.stack([*map(torch.linalg.vector_norm, parts)]))


def norms_of(tensors: Sequence[Tensor]) -> list[float]:
    """Norms of several real tensors; waits for the device once."""
    if not tensors:
        return []
    device = tensors[0].device
    quick = [_quick_norm(wide(tensor)).to(device) for tensor in tensors]
    return [
        norm if _smallest(tensor) < norm < math.inf else float(norm_of(tensor))
        for tensor, norm in zip(tensors, torch.stack(quick).tolist(), strict=True)
    ]


def inner_product(first: Tensor, second: Tensor) -> Float[Tensor, ""]:
    """Inner product in float64, without float64 copies of large tensors."""
    parts = (torch.split(gradient.flatten(), _CHUNK) for gradient in (first, second))
    pairs = zip(*parts, strict=True)
    return torch.stack([a.double() @ b.double() for a, b in pairs]).sum()


def relative(gaps: Tensor, scale: Tensor) -> Tensor:
    """Relative differences; zero if everything is zero."""
    return gaps / scale.double().clamp(min=torch.finfo(torch.float64).tiny)
