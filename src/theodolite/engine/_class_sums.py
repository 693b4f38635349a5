"""Squared norms of sums over classes, and the statistics of a layer that are made of them.

Vectors arrive in class order. Memory is twice the length of a vector, whatever the number of
classes: the sum of the class that is open, and the sum over all classes.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite._distributed import Processes
from theodolite.engine._example_gradients import Segment, row_norms
from theodolite.linalg import SetSums, mean_over_classes, ratio_or_nan

K = TypeVar("K", bound=Hashable)


class ClassTally:
    r"""Accumulates :math:`\|\sum_{i \in c} v_i\|^2` per class and of the sum over all classes.

    Nothing is read back from the device before the end: a GPU is never waited for.

    Args:
        scales: per class, a factor of its sum in a second total (for means of class means); filled
            in by the owner no later than the class closes.
        groups: where vectors are several parts side by side, one column per part that is one on
            its entries: squared norms are then taken part by part.
        dtype: of sums; float32 suffices for products of half precision, and is read twice as fast.
    """

    def __init__(
        self,
        scales: Float[Tensor, " k"] | None = None,
        groups: Float[Tensor, "p m"] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self._scales, self._groups, self._dtype = scales, groups, dtype
        self.parts = 1 if groups is None else groups.shape[1]
        self.closed: list[tuple[tuple[int, ...], Tensor]] = []
        self._open: Tensor | None = None
        self._total: Tensor | None = None
        self._scaled: Tensor | None = None
        self._settled: tuple[Tensor | None, Tensor | None] | None = None

    def settle(self) -> None:
        """Keep numbers in the place of sums: no further vector comes."""
        self._settled = self.total_norm, self.scaled_norm
        self._total = self._scaled = None

    def add(self, parts: Sequence[Segment], sums: Float[Tensor, "s p"]) -> None:
        """Sums of consecutive segments; the first may continue the open class."""
        labels = tuple(part.label for part in parts if part.closes)
        if self._open is not None:
            self._open += sums[0]
            if not labels:
                return
            self._close(labels[:1], self._open.unsqueeze(0))
            self._open, sums, labels = None, sums[1:], labels[1:]
        if labels:
            self._close(labels, sums[: len(labels)])
        if len(sums) > len(labels):
            self._open = sums[-1].to(self._dtype, copy=True)

    def _close(self, labels: tuple[int, ...], sums: Tensor) -> None:
        self.closed.append((labels, self._norms(sums)))
        # In the precision of the products: wider sums do not find again what these have lost.
        total = sums[0] if len(sums) == 1 else sums.sum(0)
        if self._total is None:
            self._total = total
        else:
            self._total = self._total.to(self._dtype).add_(total)
        if self._scales is not None:
            factors = self._scales[_index(labels, sums.device)]
            scaled = factors @ sums.double()
            self._scaled = scaled if self._scaled is None else self._scaled.add_(scaled)

    def _norms(self, sums: Float[Tensor, "s p"]) -> Float[Tensor, "s m"]:
        if self._groups is None:
            return row_norms(sums, exact=self._dtype == torch.float64).unsqueeze(1)
        return (sums.double().square() @ self._groups).sqrt()

    def _norm(self, vector: Tensor | None) -> Float[Tensor, " m"] | None:
        return None if vector is None else self._norms(vector.unsqueeze(0)).squeeze(0)

    @property
    def total_norm(self) -> Float[Tensor, " m"] | None:
        """Norm of the sum over all classes; None if there was none."""
        return self._norm(self._total) if self._settled is None else self._settled[0]

    @property
    def scaled_norm(self) -> Float[Tensor, " m"] | None:
        """Norm of the sum of scaled class sums; None if there was none."""
        return self._norm(self._scaled) if self._settled is None else self._settled[1]

    def outline(self) -> tuple[int, bool, Tensor | None]:
        """Length of the vectors, whether scaled sums are kept, and the vectors' parts."""
        assert self._total is not None  # every class has been closed
        assert self._open is None
        groups = None if self._groups is None else self._groups.cpu()
        return len(self._total), self._scales is not None, groups

    def add_up(self, processes: Processes, zeros: Tensor, scaled: bool) -> None:
        """Sums over the classes of all processes, each of which has other classes."""
        own = [(labels, norms.cpu()) for labels, norms in self.closed]
        closed = [item for part in processes.gather(own) for item in part]
        self.closed = [(labels, norms.to(zeros)) for labels, norms in closed]
        self._total = processes.sum(zeros if self._total is None else self._total.to(zeros))
        if scaled:
            self._scaled = processes.sum(zeros if self._scaled is None else self._scaled)


def shared_tallies(
    tallies: dict[K, ClassTally], processes: Processes, device: torch.device
) -> dict[K, ClassTally]:
    """The tallies of all processes added up, in one order everywhere."""
    if processes.alone:
        return tallies
    known: dict[K, tuple[int, bool, Tensor | None]] = {}
    for part in processes.gather({key: tally.outline() for key, tally in tallies.items()}):
        known |= {key: outline for key, outline in part.items() if key not in known}
    for key, (length, scaled, groups) in known.items():
        if key not in tallies:
            tallies[key] = ClassTally(groups=None if groups is None else groups.to(device))
        zeros = torch.zeros(length, dtype=torch.float64, device=device)
        tallies[key].add_up(processes, zeros, scaled)
    return {key: tallies[key] for key in known}


def class_squares(tallies: Sequence[ClassTally], classes: int) -> Float[Tensor, "m k"]:
    """Squared norms of classes' sums, one row per part of each tally, in one copy."""
    count = sum(tally.parts for tally in tallies)
    squares = torch.zeros(count, classes, dtype=torch.float64)
    rows: list[int] = []
    columns: list[int] = []
    first = 0
    for tally in tallies:
        labels = [label for part, _ in tally.closed for label in part]
        rows += [first + part for _ in labels for part in range(tally.parts)]
        columns += [label for label in labels for _ in range(tally.parts)]
        first += tally.parts
    if rows:
        flat = [values.flatten() for tally in tallies for _, values in tally.closed]
        squares[rows, columns] = torch.cat(flat).cpu().square()
    return squares


@lru_cache(maxsize=64)
def _index(labels: tuple[int, ...], device: torch.device) -> Tensor:
    """Labels on the device, copied there once."""
    return torch.tensor(labels, device=device)


@dataclass(frozen=True)
class UnitSums:
    r"""Sums of gradients divided by their norms, from which cosines follow.

    Args:
        counts: gradients per class that are not zero, :math:`m_c`.
        squares: :math:`\|\sum_{i \in c} u_i\|^2` per class.
        total_square: :math:`\|\sum_i u_i\|^2`.
        mean_square: :math:`\|\sum_c \tfrac{1}{m_c} \sum_{i \in c} u_i\|^2`.
    """

    counts: Float[Tensor, "*layers k"]
    squares: Float[Tensor, "*layers k"]
    total_square: Float[Tensor, "*layers"]
    mean_square: Float[Tensor, "*layers"]

    def stiffness(self) -> Float[Tensor, "*layers"]:
        """Mean cosine of two different gradients."""
        count = self.counts.sum(-1)
        return ratio_or_nan(self.total_square - count, count * (count - 1))

    def within_class(self) -> Float[Tensor, "*layers"]:
        """Mean cosine of two different gradients of one class, averaged over classes."""
        m = self.counts
        return mean_over_classes(ratio_or_nan(self.squares - m, m * (m - 1)))

    def between_class(self) -> Float[Tensor, "*layers"]:
        """Mean cosine of gradients of two different classes, averaged over pairs of classes."""
        present = (self.counts > 0).sum(-1).to(self.squares.dtype)
        own = (self.squares / self.counts.clamp(min=1.0).square()).sum(-1)
        return ratio_or_nan(self.mean_square - own, present * (present - 1))

    def row(self, index: int) -> "UnitSums":
        """One of several layers side by side."""
        return UnitSums(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True)
class LayerSums:
    """Sufficient statistics of the gradients of one layer, on the CPU in float64.

    Args:
        classes: count, squared norm of the sum, sum of norms and of squared norms, per class.
        overall: the same for all examples as one set.
        norms: norm of each example's gradient, in the order of the data.
        weight_norm: norm of the layer's parameters; nan where there are none.
        units: sums of unit vectors, where stiffness is measured.
    """

    classes: SetSums
    overall: SetSums
    norms: Float[Tensor, "*layers n"]
    weight_norm: Float[Tensor, "*layers"]
    units: UnitSums | None = None

    def row(self, index: int) -> "LayerSums":
        """One of several layers side by side."""
        classes, overall = (
            SetSums(*(getattr(sums, field.name)[index] for field in fields(sums)))
            for sums in (self.classes, self.overall)
        )
        units = None if self.units is None else self.units.row(index)
        return LayerSums(classes, overall, self.norms[index], self.weight_norm[index], units)
