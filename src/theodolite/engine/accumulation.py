"""Norms and class sums of per-example gradients while batches in class order go by.

Memory is twice the length of a gradient, whatever the number of classes: the sum of the class that
is open, and the sum over all classes (:class:`ClassTally`). :class:`LayerSums` is what they give.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from theodolite._distributed import ALONE, Processes
from theodolite.engine.batches import Batch, even_spans
from theodolite.engine.calls import tensors_in
from theodolite.engine.check import (
    Asked,
    ask_loss,
    ask_rows,
    company_gradients,
    compare_gradients,
    require_finite,
)
from theodolite.engine.factors import DenseFactors, Factors, joined, loss_factors
from theodolite.engine.plan import ParameterGroup, group_parameters
from theodolite.engine.runs import (
    BatchLoss,
    ForwardRun,
    ModelRecorder,
    Progress,
    plain_gradients,
)
from theodolite.engine.state import model_device, without_autocast
from theodolite.linalg import SetSums, mean_over_classes, ratio_or_nan, target_columns

LOGITS = "all logits"  # beside the parameters; names of modules have no spaces

__all__ = [
    "LOGITS",
    "TOTAL",
    "ClassTally",
    "GradientAccumulation",
    "LayerSums",
    "Segment",
    "UnitSums",
]

K = TypeVar("K", bound=Hashable)
Names = tuple[str, ...]  # parameters of one group


_CHUNK_BYTES = {"cpu": 2**25, "cuda": 2**30}  # stays near the cache; keeps the GPU busy
_SUM_BYTES = 12  # of one entry of a sum, in float32 and in float64


@dataclass(frozen=True)
class Segment:
    """Consecutive examples of one class; ``closes`` if no later example belongs to the class."""

    label: int
    start: int
    stop: int
    closes: bool

    def inside(self, rows: slice) -> "Segment | None":
        """The part inside some rows, counted from the first of them; None if there is none."""
        start, stop = max(self.start, rows.start), min(self.stop, rows.stop)
        if start >= stop:
            return None
        closes = self.closes and stop == self.stop
        return Segment(self.label, start - rows.start, stop - rows.start, closes)


class ClassTally:
    r"""Accumulates :math:`\|\sum_{i \in c} v_i\|^2` per class and of the sum over all classes.

    Nothing is read back from the device before the end: a GPU is never waited for.

    Args:
        scales: per class, a factor of its sum in a second total (for means of class means); filled
            in by the owner no later than the class closes.
    """

    def __init__(self, scales: Float[Tensor, " k"] | None = None) -> None:
        self._scales = scales
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
            self._open = sums[-1].to(torch.float64, copy=True)

    def skip(self, parts: Sequence[Segment]) -> None:
        """Segments whose vectors are all zero."""
        if self._open is not None and parts[0].closes:
            self._close((parts[0].label,), self._open.unsqueeze(0))
            self._open = None

    def _close(self, labels: tuple[int, ...], sums: Float[Tensor, "s p"]) -> None:
        self.closed.append((labels, _norms(sums)))
        # float64 accumulation cannot recover bits lost in float32 products
        total = sums[0] if len(sums) == 1 else sums.sum(0)
        if self._total is None:
            self._total = total
        else:
            self._total = self._total.double().add_(total)
        if self._scales is not None:
            scaled = self._scales[[*labels]] @ sums.double()
            self._scaled = scaled if self._scaled is None else self._scaled.add_(scaled)

    @property
    def total_norm(self) -> Float[Tensor, ""] | None:
        """Norm of the sum over all classes; None if there was none."""
        if self._settled is not None:
            return self._settled[0]
        return None if self._total is None else _norms(self._total.unsqueeze(0))[0]

    @property
    def scaled_norm(self) -> Float[Tensor, ""] | None:
        """Norm of the sum of scaled class sums; None if there was none."""
        if self._settled is not None:
            return self._settled[1]
        return None if self._scaled is None else _norms(self._scaled.unsqueeze(0))[0]

    def shape(self) -> tuple[int, bool]:
        """Entries of the vectors, and whether scaled sums are kept."""
        assert self._total is not None  # every class has been closed
        assert self._open is None
        return len(self._total), self._scales is not None

    def add_up(self, processes: Processes, zeros: Tensor, scaled: bool) -> None:
        """Sums over the classes of all processes, each of which has other classes."""
        own = [(labels, norms.cpu()) for labels, norms in self.closed]
        closed = [item for part in processes.gather(own) for item in part]
        self.closed = [(labels, norms.to(zeros)) for labels, norms in closed]
        self._total = processes.sum(zeros if self._total is None else self._total.to(zeros))
        if scaled:
            self._scaled = processes.sum(zeros if self._scaled is None else self._scaled)


def _norms(rows: Float[Tensor, "s p"]) -> Float[Tensor, " s"]:
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)


def shared_tallies(
    tallies: dict[K, ClassTally], processes: Processes, device: torch.device
) -> dict[K, ClassTally]:
    """The tallies of all processes added up, in one order everywhere."""
    if processes.alone:
        return tallies
    known: dict[K, tuple[int, bool]] = {}
    for part in processes.gather({key: tally.shape() for key, tally in tallies.items()}):
        known |= {key: shape for key, shape in part.items() if key not in known}
    for key, (entries, scaled) in known.items():
        tally = tallies.setdefault(key, ClassTally())
        zeros = torch.zeros(entries, dtype=torch.float64, device=device)
        tally.add_up(processes, zeros, scaled)
    return {key: tallies[key] for key in known}


def class_squares(tallies: Sequence[ClassTally], classes: int) -> Float[Tensor, "m k"]:
    """Squared norms of classes' sums, one row per tally, in one copy."""
    squares = torch.zeros(len(tallies), classes, dtype=torch.float64)
    places = [
        (row, label)
        for row, tally in enumerate(tallies)
        for labels, _ in tally.closed
        for label in labels
    ]
    if places:
        flat = torch.cat([values for tally in tallies for _, values in tally.closed])
        squares[tuple(torch.tensor(places).T)] = flat.cpu().square()
    return squares


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

    @classmethod
    def of_gram(
        cls, gram: Float[Tensor, "*layers n n"], groups: Float[Tensor, "n k"]
    ) -> "UnitSums":
        """The sums of layers from the inner products of their gradients, in float64."""
        lengths = gram.diagonal(dim1=-2, dim2=-1).clamp(min=0.0).sqrt()
        scale = torch.where(lengths > 0, 1 / lengths, torch.zeros_like(lengths))
        cosines = gram * scale.unsqueeze(-2) * scale.unsqueeze(-1)
        counts = (lengths > 0).double() @ groups
        by_class = groups.mT @ cosines @ groups
        means = (1 / counts.clamp(min=1.0)).unsqueeze(-1)
        both = (means.mT @ by_class @ means).squeeze((-2, -1))
        return cls(counts, by_class.diagonal(dim1=-2, dim2=-1), cosines.sum((-2, -1)), both)

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

    @classmethod
    def of_gram(
        cls,
        gram: Float[Tensor, "*layers n n"],
        groups: Float[Tensor, "n k"],
        weight_norm: float = math.nan,
    ) -> "LayerSums":
        """The sums of one layer, or of several side by side, from inner products of gradients.

        Args:
            gram: inner products of all pairs of examples, in float64.
            groups: one where an example belongs to a class.
            weight_norm: norm of the layer's parameters.

        Example:
            >>> gradients, groups = torch.eye(2).double(), torch.ones(2, 1).double()
            >>> LayerSums.of_gram(gradients @ gradients.mT, groups).classes.sum_square.tolist()
            [2.0]
        """
        every = groups.new_ones(len(groups), 1)
        return cls(
            SetSums.of_gram(gram, groups),
            SetSums.of_gram(gram, every)[..., 0],
            gram.diagonal(dim1=-2, dim2=-1).clamp(min=0.0).sqrt(),
            gram.new_full(gram.shape[:-2], weight_norm),
            UnitSums.of_gram(gram, groups),
        )

    def row(self, index: int) -> "LayerSums":
        """One of several layers side by side."""
        classes, overall = (
            SetSums(*(getattr(sums, field.name)[index] for field in fields(sums)))
            for sums in (self.classes, self.overall)
        )
        units = None if self.units is None else self.units.row(index)
        return LayerSums(classes, overall, self.norms[index], self.weight_norm[index], units)


# All parameters together, beside the layers; names of modules have no spaces.
TOTAL = "all parameters"


class GradientAccumulation:
    """Sums while batches in class order go by; the device is not waited for before the end.

    Args:
        recorder: the model and its parameters.
        loss: one number per example.
        labels: class of each example, on the CPU.
        stiffness: also add up unit vectors.
        processes: that share the work; each takes whole classes.
        alone: whether examples are measured one by one, by plain autograd.
    """

    def __init__(
        self,
        recorder: ModelRecorder,
        loss: BatchLoss,
        labels: Tensor,
        stiffness: bool,
        processes: Processes = ALONE,
        *,
        alone: bool = False,
    ) -> None:
        self._recorder, self._loss, self._stiffness = recorder, loss, stiffness
        self.progress: Progress | None = None
        self._processes = processes
        owned = recorder.ownership
        self._order = labels.argsort(stable=True)
        self._labels = labels[self._order]
        self._listed = self._labels.tolist()
        self._classes = int(labels.max()) + 1
        self._layers = {**owned.layers, TOTAL: tuple(owned.parameters), LOGITS: (LOGITS,)}
        device = model_device(recorder.model)
        self._rows: dict[Names, int] = {}  # row of a group in the table of squared norms
        self._squares = torch.zeros(
            len(owned.parameters) + 1, len(labels), dtype=torch.float64, device=device
        )
        self._tallies: dict[Names, ClassTally] = {}
        self._losses: list[Tensor] = []
        self._weight_squares: Tensor | None = None
        self._alone = alone
        if stiffness:
            self._groups = target_columns(self._labels, self._classes).to(device)
            self._scales = self._groups.new_ones(len(self._layers), self._classes)
            self._units: dict[tuple[str, Names], ClassTally] = {}

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers, all parameters, and the logits: the rows of :meth:`sums`."""
        return tuple(self._layers)

    def _membership(self) -> Float[Tensor, "layers groups"]:
        """One where a layer owns a group: all of its parameters, or none."""
        members = torch.zeros(len(self._layers), len(self._squares), dtype=torch.float64)
        for index, names in enumerate(self._layers.values()):
            for group, row in self._rows.items():
                if group[0] in names:
                    members[index, row] = 1.0
        return members

    def run(self, data: Batch, batch_size: int) -> None:
        """The batches of this process, checked as the recorder's check wants it.

        Raises:
            NotFollowedError: If the examples cannot be followed together.
        """
        own, device = self._own(), self._squares.device
        on_device = any(t.device == device for t in tensors_in((data.args, dict(data.kwargs))))
        ordered = data.take(self._order) if on_device and device.type != "cpu" else None
        for part in even_spans(own.stop - own.start, 1 if self._alone else batch_size):
            start = own.start + part.start
            span = slice(start, own.start + part.stop)
            if ordered is not None:  # slices; picking by index would wait for the device
                batch = ordered.take(span).to(device)
            else:
                batch = data.take(self._order[span]).to(device)
            if self._alone:
                self._add_alone(batch, start)
            else:
                self._add(batch, start)
            if self.progress is not None:
                share = span.stop / len(self._labels)
                self.progress(share, f"examples {span.start} to {span.stop - 1}")

    def _own(self) -> slice:
        """Examples in class order that this process looks at: about its part, in whole classes."""
        part = self._processes.part(len(self._labels))
        if self._processes.alone:
            return part
        edges = [0, *(self._labels.diff().nonzero().flatten() + 1).tolist(), len(self._labels)]
        start = min(edges, key=lambda edge: abs(edge - part.start))
        return slice(start, min(edges, key=lambda edge: abs(edge - part.stop)))

    def add_up(self) -> None:
        """What all processes have found, in all of them."""
        own, processes, device = self._own(), self._processes, self._squares.device
        if processes.alone:
            return
        self._tallies = shared_tallies(self._tallies, processes, device)
        squares = torch.zeros_like(self._squares)
        for row, group in enumerate(self._tallies):
            if group in self._rows:
                squares[row] = self._squares[self._rows[group]]
        self._squares = processes.sum(squares)
        self._rows = {group: row for row, group in enumerate(self._tallies)}
        losses = torch.zeros(len(self._labels), dtype=torch.float64, device=device)
        if self._losses:
            losses[own] = torch.cat(self._losses).double()
        self._losses = [processes.sum(losses)]
        if self._stiffness:
            self._units = shared_tallies(self._units, processes, device)

    def _add(self, batch: Batch, start: int) -> None:
        """One batch: a recorded forward pass, a backward pass to all uses, and the reductions."""
        segments = self._segments(start, start + len(batch))
        span = slice(start, start + len(batch))
        places = self._order[span].tolist()
        run = self._recorder.run(batch, self._loss, places)
        losses = run.losses
        assert losses is not None
        require_finite(self._recorder.model, losses, batch, places)
        self._losses.append(losses.detach())
        is_asked = self._recorder.check.asks(run.suspects)
        edges = [get_gradient_edge(run.outputs), *run.edges()]
        arrived: list[Tensor | None] = list(
            torch.autograd.grad(losses.sum(), edges, retain_graph=is_asked, allow_unused=True)
        )
        asked = self._ask(run, batch, start, arrived) if is_asked else None
        del losses, edges
        groups = group_parameters(run.uses, self._recorder.ownership)
        self._weight_squares = self._squares_of_weights()
        factors = list(self._factors(run, groups, arrived))
        squares = self._reduce(factors, segments, span)
        if asked is not None:
            self._compare(asked, run, factors, squares)
        if self._stiffness:
            self._add_units(factors, segments, span)

    def _ask(
        self, run: ForwardRun, batch: Batch, start: int, arrived: list[Tensor | None]
    ) -> tuple[Asked, Float[Tensor, " n"]]:
        """Ask about rows and the loss; the weights of examples that run again."""
        recorder, slopes = self._recorder, arrived[0]
        assert slopes is not None
        assert run.losses is not None
        weights = ask_rows(recorder, run, slopes, arrived[1:])
        parts = recorder.check.parts(len(batch))
        own = torch.zeros_like(weights)
        for part in parts:
            own[part] = weights[part]
        outputs = run.outputs.detach()
        asked = Asked(batch, start, outputs, parts, (slopes * own[:, None]).to(slopes.dtype))
        ask_loss(recorder, self._loss, asked, run.losses.detach(), slopes)
        return asked, own

    def _compare(
        self,
        asked: tuple[Asked, Float[Tensor, " n"]],
        run: ForwardRun,
        factors: Sequence[Factors],
        squares: Sequence[Tensor],
    ) -> None:
        """Weighted sums of gradients, and norms of one example, against plain autograd."""
        batch, weights = asked
        place = batch.places[-1]
        wanted = company_gradients(self._recorder, batch)
        alone = company_gradients(self._recorder, replace(batch, parts=[[place]]))
        derived = {
            root
            for use in run.uses
            if use.origin.tensor.grad_fn is not None
            for root in use.origin.roots
        }
        found: dict[str, Tensor] = {}
        sizes: dict[str, Tensor] = {}
        norms: dict[str, Tensor] = {}
        lengths: dict[str, Tensor] = {}
        for own, square in zip(factors, squares, strict=True):
            if own.names == (LOGITS,):
                continue
            total = own.weighted_sums([slice(0, len(weights))], weights.unsqueeze(1))[0]
            values = square.flatten().clamp(min=0.0)
            for name, piece in own.unpack(total).items():
                # Parts of a derived parameter are in an order of their own: lengths are compared.
                arranged = torch.linalg.vector_norm if name in derived else torch.flatten
                found[name] = arranged(piece)
                sizes[name] = (values @ weights.square()).sqrt()
                if name in wanted:
                    wanted[name] = arranged(wanted[name])
            norms[own.names[0]] = values[place].sqrt() * weights[place].abs()
            parts = [alone[name].flatten() for name in own.names if name in alone]
            if parts:
                lengths[own.names[0]] = torch.linalg.vector_norm(torch.cat(parts).double())
        compare_gradients(self._recorder, found, wanted, sizes)
        compare_gradients(self._recorder, norms, lengths, norms)

    def _add_alone(self, batch: Batch, start: int) -> None:
        """One example, by plain autograd."""
        outputs = self._recorder.run_plainly(batch)
        losses = self._loss(outputs, batch)
        self._losses.append(losses.detach())
        parameters = self._recorder.ownership.parameters
        found = plain_gradients(losses.sum(), {LOGITS: outputs, **parameters})
        factors: list[Factors] = []
        for name, tensor in {LOGITS: outputs, **parameters}.items():
            entries = tensor.numel() * (2 if tensor.is_complex() else 1)
            zeros = torch.zeros(entries, dtype=losses.dtype, device=losses.device)
            factors.append(DenseFactors((name,), [found.get(name, zeros).reshape(1, 1, -1)]))
        segments, span = self._segments(start, start + 1), slice(start, start + 1)
        self._reduce(factors, segments, span)
        if self._stiffness:
            self._add_units(factors, segments, span)

    def _reduce(
        self, factors: Sequence[Factors], segments: list[Segment], span: slice
    ) -> list[Float[Tensor, " n"]]:
        """Squared norms into the table, sums into the tallies; the squared norms of each group."""
        norms: list[Tensor] = []
        last = span.stop == len(self._labels) and self._processes.alone
        for own in factors:
            tally = self._tallies.setdefault(own.names, ClassTally())
            squares = []
            for part, cut in self._parts(own, segments):
                with without_autocast(self._squares.device):
                    squares.append(part.squared_norms()[:, 0])
                    for some in _groups(cut, part.entries, self._squares.device):
                        tally.add(some, part.weighted_sums(_ranges(some)))
            norms.append(joined(squares, 0))
            row = self._rows.setdefault(own.names, len(self._rows))
            self._squares[row, span] = norms[-1].clamp(min=0.0)
        given = {own.names for own in factors}
        for names, tally in self._tallies.items():
            if names not in given:
                tally.skip(segments)
            if last:
                tally.settle()
        return norms

    def _parts(
        self, factors: Factors, segments: list[Segment]
    ) -> Iterator[tuple[Factors, list[Segment]]]:
        """Factors of as many examples as fit at a time, and their segments."""
        limit = _CHUNK_BYTES.get(self._squares.device.type, _CHUNK_BYTES["cpu"])
        for rows in factors.spans(limit):
            inside = (segment.inside(rows) for segment in segments)
            yield factors[rows], [segment for segment in inside if segment is not None]

    def _segments(self, start: int, stop: int) -> list[Segment]:
        """Runs of one class; a class closes where the next example of all has another label."""
        labels = self._listed[start : stop + 1]
        count = stop - start
        changes = [i for i in range(1, count) if labels[i] != labels[i - 1]]
        last_closes = len(labels) == count or labels[count] != labels[count - 1]
        edges = [0, *changes, count]
        return [
            Segment(labels[low], low, high, high < count or last_closes)
            for low, high in pairwise(edges)
        ]

    def _factors(
        self, run: ForwardRun, groups: list[ParameterGroup], arrived: list[Tensor | None]
    ) -> Iterator[Factors]:
        logits, *others = arrived
        assert logits is not None
        yield DenseFactors((LOGITS,), [logits.flatten(1).unsqueeze(1)])
        by_use = run.by_use(others)
        yield from loss_factors(groups, run.uses, by_use, self._recorder.ownership.parameters)

    def _add_units(self, factors: Sequence[Factors], segments: list[Segment], span: slice) -> None:
        """A second, weighted sum: each gradient divided by its norm in the layer."""
        members = self._membership().to(self._squares.device)
        norms = (members @ self._squares[:, : span.stop]).sqrt()
        counts = (norms > 0).double() @ self._groups[: span.stop]
        self._scales.copy_(1.0 / counts.clamp(min=1.0))
        inverse = torch.where(norms > 0, 1.0 / norms, torch.zeros_like(norms))[:, span]
        given = set()
        for own in factors:
            for row, (layer, names) in enumerate(self._layers.items()):
                if own.names[0] not in names:
                    continue
                given.add((layer, own.names))
                tally = self._units.setdefault((layer, own.names), ClassTally(self._scales[row]))
                start = 0
                for part, cut in self._parts(own, segments):
                    weights = inverse[row, start : start + len(part)].unsqueeze(1)
                    start += len(part)
                    for some in _groups(cut, part.entries, self._squares.device):
                        with without_autocast(self._squares.device):
                            tally.add(some, part.weighted_sums(_ranges(some), weights))
        for key, tally in self._units.items():
            if key not in given:
                tally.skip(segments)
            if span.stop == len(self._labels) and self._processes.alone:
                tally.settle()

    def losses(self) -> Float[Tensor, " n"]:
        """Losses in the order of the data."""
        return self._in_data_order(torch.cat(self._losses).cpu())

    def _in_data_order(self, values: Float[Tensor, "*layers n"]) -> Float[Tensor, "*layers n"]:
        result = torch.empty_like(values)
        result[..., self._order] = values
        return result

    def sums(self) -> LayerSums:
        """What has been added up, one row per entry of :attr:`layers`."""
        members = self._membership()
        squares = members @ self._squares.cpu()
        groups = target_columns(self._labels, self._classes)
        by_class, whole = (members[:, : len(self._rows)] @ part for part in self._class_sums())
        classes = SetSums.of_groups(groups, squares, by_class)
        everyone = SetSums.of_groups(groups.new_ones(len(groups), 1), squares, whole.unsqueeze(1))
        units = self._unit_sums(squares > 0, groups) if self._stiffness else None
        norms = self._in_data_order(squares.sqrt())
        return LayerSums(classes, everyone[:, 0], norms, self._weight_norms(), units)

    def _class_sums(self) -> tuple[Float[Tensor, "m k"], Float[Tensor, " m"]]:
        """Squared norms of sums, by class and overall, in the order of the table's rows."""
        tallies = [self._tallies[group] for group in self._rows]
        return class_squares(tallies, self._classes), _gathered(tallies, "total_norm").square()

    def _squares_of_weights(self) -> Float[Tensor, " parameters"]:
        """Of all parameters, on their device, computed once."""
        if self._weight_squares is not None:
            return self._weight_squares
        parameters = self._recorder.ownership.parameters.values()
        return squared_norms([value.detach() for value in parameters])

    def _weight_norms(self) -> Float[Tensor, " layers"]:
        found = self._squares_of_weights().tolist()
        squares = dict(zip(self._recorder.ownership.parameters, found, strict=True))
        norms = [
            math.nan if names == (LOGITS,) else math.sqrt(sum(squares[name] for name in names))
            for names in self._layers.values()
        ]
        return torch.tensor(norms, dtype=torch.float64)

    def _unit_sums(self, nonzero: Tensor, groups: Float[Tensor, "n k"]) -> UnitSums:
        by_layer = [
            [tally for (owner, _), tally in self._units.items() if owner == layer]
            for layer in self._layers
        ]
        squares = [class_squares(tallies, self._classes).sum(0) for tallies in by_layer]
        total, mean = (
            torch.stack([_gathered(tallies, name).square().sum() for tallies in by_layer])
            for name in ("total_norm", "scaled_norm")
        )
        return UnitSums(nonzero.double() @ groups, torch.stack(squares), total, mean)


def _groups(segments: list[Segment], entries: int, device: torch.device) -> Iterator[list[Segment]]:
    """Neighbouring segments whose sums together stay below the limit of the device."""
    limit = _CHUNK_BYTES.get(device.type, _CHUNK_BYTES["cpu"])
    step = max(1, limit // max(1, entries * _SUM_BYTES))
    for start in range(0, len(segments), step):
        yield segments[start : start + step]


def _ranges(segments: Sequence[Segment]) -> list[slice]:
    return [slice(segment.start, segment.stop) for segment in segments]


def squared_norms(tensors: Sequence[Tensor]) -> Float[Tensor, " m"]:
    """Squared norm of each tensor in float64, in one call."""
    real = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
    return torch.stack(torch._foreach_norm(real, 2, torch.float64)).square()


def _gathered(tallies: list[ClassTally], what: str) -> Float[Tensor, " m"]:
    """Numbers of all tallies from the device in one copy; None is zero."""
    values = [getattr(tally, what) for tally in tallies]
    present = [value for value in values if value is not None]
    if not present:
        return torch.zeros(len(values), dtype=torch.float64)
    zero = present[0].new_zeros(())
    return torch.stack([zero if value is None else value for value in values]).double().cpu()
