"""Sums of per-example gradients by class: what is kept, and how batches are added.

Examples are processed in class order. Gradients of single examples exist for one chunk of one layer
at a time, or not at all if sums and norms follow from its factors. Two sums are kept for each
parameter: that of the current class and that over all classes (:class:`ClassTally`), and one norm
for each example. So memory is twice the length of a gradient, for any number of classes.
:class:`GradientAccumulation` makes the passes and checks them. :class:`LayerSums` is what it gives.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from theodolite._distributed import ALONE, Processes
from theodolite.engine.batches import Batch, even_spans
from theodolite.engine.calls import tensors_in
from theodolite.engine.check import SUSPECT_SINGLES, Rerun, RowWeights, check_loss, check_rows
from theodolite.engine.collect import BlockSizes, loss_factors
from theodolite.engine.compare import (
    add_gradients,
    compare_gradients,
    part_gradients,
    plain_gradients,
    require_finite,
    require_finite_gradients,
    require_rounding,
)
from theodolite.engine.factors import DenseFactors, Factors, joined, squared_norms_of
from theodolite.engine.one_by_one import require_same_outputs_again
from theodolite.engine.plan import ParameterGroup, group_parameters
from theodolite.engine.rounding import norms_of
from theodolite.engine.runs import BatchLoss, ForwardRun, ModelRecorder, Progress
from theodolite.engine.state import model_device, without_autocast
from theodolite.linalg import (
    SetSums,
    checks_classes,
    mean_over_classes,
    ratio_or_nan,
    target_columns,
)

LOGITS = "all logits"  # an entry beside the layers, whose names have no spaces
TOTAL = "all parameters"
_CHUNK_BYTES = {"cpu": 2**25, "cuda": 2**30}  # fits the cache of a CPU; keeps a GPU busy
_SUM_BYTES = 12  # bytes of one entry of a sum: float32 and float64

K = TypeVar("K", bound=Hashable)
Names = tuple[str, ...]  # names of the parameters of one group


@dataclass(frozen=True)
class UnitSums:
    r"""Sums of gradients divided by their norms; cosines follow from them.

    Args:
        counts: Number of nonzero gradients per class, :math:`m_c`.
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
        cls, gram: Float[Tensor, "*layers n n"], membership: Float[Tensor, "n k"]
    ) -> "UnitSums":
        """The sums of layers from the inner products of their gradients, in float64."""
        norms = gram.diagonal(dim1=-2, dim2=-1).clamp(min=0.0).sqrt()
        scale = torch.where(norms > 0, 1 / norms, torch.zeros_like(norms))
        cosines = gram * scale.unsqueeze(-2) * scale.unsqueeze(-1)
        counts = (norms > 0).double() @ membership
        by_class = membership.mT @ cosines @ membership
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
        """The sums of one layer out of several."""
        return UnitSums(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True)
class LayerSums:
    """Sufficient statistics of the gradients of one layer, on the CPU in float64.

    :meth:`theodolite.linalg.SetSums.alignment` has the formula of the alignment that they give.

    Args:
        sets: Count, squared norm of the sum, sum of norms and of squared norms, of every class and,
            last, of all examples.
        norms: Norm of each example's gradient, in the order of the data.
        weight_norm: Norm of the layer's parameters; nan if it has none.
        units: Sums of unit vectors, if stiffness is measured.
    """

    sets: SetSums
    norms: Float[Tensor, "*layers n"]
    weight_norm: Float[Tensor, "*layers"]
    units: UnitSums | None = None

    @property
    def classes(self) -> SetSums:
        """The sums of every class."""
        return self.sets[..., :-1]

    @property
    def overall(self) -> SetSums:
        """The sums of all examples as one set."""
        return self.sets[..., -1]

    @classmethod
    @checks_classes
    def of_gram(
        cls,
        gram: Float[Tensor, "*layers n n"],
        membership: Float[Tensor, "n k"],
    ) -> "LayerSums":
        """The sums of one or several layers, from inner products of gradients.

        These do not show the norms of the weights, which are nan.

        Args:
            gram: Inner products of all pairs of examples, in float64.
            membership: 1 if an example belongs to a class, otherwise 0.

        Examples:
            >>> gradients, membership = torch.eye(2).double(), torch.ones(2, 1).double()
            >>> sums = LayerSums.of_gram(gradients @ gradients.mT, membership)
            >>> sums.classes.sum_square.tolist()
            [2.0]
        """
        return cls(
            SetSums.of_gram(gram, _with_all(membership)),
            gram.diagonal(dim1=-2, dim2=-1).clamp(min=0.0).sqrt(),
            gram.new_full(gram.shape[:-2], math.nan),
            UnitSums.of_gram(gram, membership),
        )

    def row(self, index: int) -> "LayerSums":
        """The sums of one layer out of several."""
        units = None if self.units is None else self.units.row(index)
        return LayerSums(self.sets[index], self.norms[index], self.weight_norm[index], units)


def _with_all(membership: Float[Tensor, "n k"]) -> Float[Tensor, "n k+1"]:
    """Members of every class and, in a last column, of the set of all examples."""
    return torch.cat([membership, membership.new_ones(len(membership), 1)], 1)


@dataclass(frozen=True)
class Segment:
    """Consecutive examples of one class; ``closes`` if no later example belongs to the class."""

    label: int
    start: int
    stop: int
    closes: bool

    @property
    def rows(self) -> slice:
        """The examples."""
        return slice(self.start, self.stop)

    def inside(self, rows: slice) -> "Segment | None":
        """The part inside some rows, counted from the first row; None if there is none."""
        start, stop = max(self.start, rows.start), min(self.stop, rows.stop)
        if start >= stop:
            return None
        closes = self.closes and stop == self.stop
        return Segment(self.label, start - rows.start, stop - rows.start, closes)


class ClassTally:
    r"""Accumulates :math:`\|\sum_{i \in c} v_i\|^2` per class and of the sum over all classes.

    ``_close`` is called after the last example of a class. It stores the squared norm of the class
    sum, adds the sum to the total and releases it. ``settle`` replaces the totals by their squared
    norms after the last batch. Nothing is read from the device before the end, so that the CPU
    never waits for a GPU.

    Args:
        scales: Per class, a factor of its sum in a second total (for means of class means). The
            owner must set it before the class closes.

    Attributes:
        closed: Labels of classes with the squared norms of their sums, in the order of closing.
        total_square: Squared norm of the sum over all classes, once settled; None without a sum.
        scaled_square: The same for the sum of scaled class sums.
    """

    def __init__(self, scales: Float[Tensor, " k"] | None = None) -> None:
        self._scales = scales
        self.closed: list[tuple[tuple[int, ...], Tensor]] = []
        self.total_square: Tensor | None = None
        self.scaled_square: Tensor | None = None
        self._open: Tensor | None = None
        self._total: Tensor | None = None
        self._scaled: Tensor | None = None

    def settle(self) -> None:
        """Replace the sums by their squared norms; nothing can be added afterwards."""
        self.total_square, self.scaled_square = (
            None if total is None else squared_norms_of(total)
            for total in (self._total, self._scaled)
        )
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
        self.closed.append((labels, squared_norms_of(sums)))
        # The first sum keeps its dtype, mostly float32; the total is in float64 from the second on.
        total = sums[0] if len(sums) == 1 else sums.sum(0)
        if self._total is None:
            self._total = total
        else:
            self._total = self._total.double().add_(total)
        if self._scales is not None:
            scaled = self._scales[[*labels]] @ sums.double()
            self._scaled = scaled if self._scaled is None else self._scaled.add_(scaled)

    def shape(self) -> tuple[int, bool]:
        """Entries of the vectors, and whether scaled sums are kept."""
        assert self._total is not None  # every class has been closed
        assert self._open is None
        return len(self._total), self._scales is not None

    def add_up(self, processes: Processes, zeros: Tensor, scaled: bool) -> None:
        """Add up the sums over classes of all processes, and settle. Classes differ by process."""
        own = [(labels, squares.cpu()) for labels, squares in self.closed]
        closed = [item for part in processes.gather(own) for item in part]
        self.closed = [(labels, squares.to(zeros)) for labels, squares in closed]
        self._total = processes.sum(zeros if self._total is None else self._total.to(zeros))
        if scaled:
            self._scaled = processes.sum(zeros if self._scaled is None else self._scaled)
        self.settle()


def shared_tallies(
    tallies: dict[K, ClassTally], processes: Processes, device: torch.device
) -> dict[K, ClassTally]:
    """Add up the tallies of all processes, in the same order in every process."""
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
    entries = [
        (row, label)
        for row, tally in enumerate(tallies)
        for labels, _ in tally.closed
        for label in labels
    ]
    if entries:
        flat = torch.cat([values for tally in tallies for _, values in tally.closed])
        squares[tuple(torch.tensor(entries).T)] = flat.cpu()
    return squares


class GradientAccumulation:
    """Adds up batches in class order, without waiting for the device before the end.

    Args:
        recorder: The model and its parameters.
        loss: One number per example.
        labels: Class of each example, on the CPU.
        stiffness: Also add up unit vectors.
        processes: Processes that share the work; each takes whole classes.
        one_by_one: Whether plain autograd takes one example at a time.
        progress: Called after every batch.
    """

    def __init__(
        self,
        recorder: ModelRecorder,
        loss: BatchLoss,
        labels: Tensor,
        stiffness: bool,
        processes: Processes = ALONE,
        *,
        one_by_one: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._recorder, self._loss, self._stiffness = recorder, loss, stiffness
        self._processes, self._progress = processes, progress
        owned = recorder.ownership
        self._order = labels.argsort(stable=True)
        self._labels = labels[self._order]
        self._label_list = self._labels.tolist()
        self._classes = int(labels.max()) + 1
        self._layers = {**owned.layers, TOTAL: tuple(owned.parameters), LOGITS: (LOGITS,)}
        device = model_device(recorder.model)
        self._rows: dict[Names, int] = {}  # row of a group in the table of squared norms
        self._squares = torch.zeros(
            len(owned.parameters) + 1, len(labels), dtype=torch.float64, device=device
        )
        self._tallies: dict[Names, ClassTally] = {}
        self._losses: list[Tensor] = []
        self._one_by_one = one_by_one
        # An example of the first batch and its outputs. It runs again at the end, which finds a
        # model that changes from pass to pass.
        self._first_single: tuple[Batch, Tensor] | None = None
        if stiffness:
            self._class_indicators = target_columns(self._labels, self._classes).to(device)
            self._scales = self._class_indicators.new_ones(len(self._layers), self._classes)
            self._units: dict[tuple[str, Names], ClassTally] = {}

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers, all parameters, and the logits: the rows of :meth:`sums`."""
        return tuple(self._layers)

    def _group_owners(self) -> Float[Tensor, "layers groups"]:
        """1 if a layer owns a group: it owns all of its parameters, or none."""
        owners = [
            [float(group[0] in names) for group in self._rows] for names in self._layers.values()
        ]
        return torch.tensor(owners, dtype=torch.float64)

    def accumulate(self, data: Batch, batch_size: int) -> None:
        """Process the batches of this process, and check them as the recorder's check requires.

        Raises:
            CannotSplitError: If the gradients of a batch cannot be divided among its examples.
            CaptureError: If an example of the first batch has different outputs after the last one.
        """
        own, device = self._own_examples(), self._squares.device
        on_device = any(t.device == device for t in tensors_in((data.args, dict(data.kwargs))))
        ordered = data.take(self._order) if on_device and device.type != "cpu" else None
        for part in even_spans(own.stop - own.start, 1 if self._one_by_one else batch_size):
            start = own.start + part.start
            span = slice(start, own.start + part.stop)
            if ordered is not None:  # slices; picking by index would wait for the device
                batch = ordered.take(span).to(device)
            else:
                batch = data.take(self._order[span]).to(device)
            if self._one_by_one:
                self._add_single(batch, start)
            else:
                self._add_batch(batch, start)
            if self._progress is not None:
                share = span.stop / len(self._labels)
                self._progress(share, f"examples {span.start} to {span.stop - 1}")
        if self._first_single is not None and len(self._losses) > 1:
            one, then = self._first_single
            require_same_outputs_again(
                [(self._recorder.detached_outputs(one), then)], self._recorder.tolerance
            )

    def _own_examples(self) -> slice:
        """Examples, in class order, that this process measures: whole classes, about its share."""
        part = self._processes.part(len(self._labels))
        if self._processes.alone:
            return part
        edges = [0, *(self._labels.diff().nonzero().flatten() + 1).tolist(), len(self._labels)]
        start = min(edges, key=lambda edge: abs(edge - part.start))
        return slice(start, min(edges, key=lambda edge: abs(edge - part.stop)))

    def add_up(self) -> None:
        """Add up the results of all processes, in every process."""
        own, processes, device = self._own_examples(), self._processes, self._squares.device
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

    def _add_batch(self, batch: Batch, start: int) -> None:
        """One batch: a recorded forward pass, a backward pass to all uses, and the reductions."""
        segments = self._segments(start, start + len(batch))
        span = slice(start, start + len(batch))
        examples = self._order[span].tolist()
        run = self._recorder.run(batch, self._loss, examples)
        losses = run.losses
        assert losses is not None
        if self._first_single is None and run.single is not None:
            self._first_single = run.single.batch, run.single.outputs.detach()
        require_finite(self._recorder.model, losses, batch, examples)
        self._losses.append(losses.detach())
        is_due = self._recorder.checker.draw_whether_due(run.suspects)
        edges = [get_gradient_edge(run.outputs), *run.edges()]
        arrived: list[Tensor | None] = list(
            torch.autograd.grad(losses.sum(), edges, retain_graph=is_due, allow_unused=True)
        )
        checked = self._check_batch(run, batch, start, arrived) if is_due else None
        groups = group_parameters(run.uses, self._recorder.ownership)
        factors = list(self._factors(run, groups, arrived))
        squares = self._add_norms_and_sums(factors, segments, span)
        if checked is not None:
            require_finite_gradients(squares.isnan().any(0).logical_not(), examples)
            self._compare(checked, run, factors, squares)
        if self._stiffness:
            self._add_units(factors, segments, span)

    def _check_batch(
        self, run: ForwardRun, batch: Batch, start: int, arrived: list[Tensor | None]
    ) -> tuple[Rerun, Float[Tensor, " m"]]:
        """Check rows and loss; return the checked batch and the weights of its rerun examples."""
        recorder, seed = self._recorder, arrived[0]
        assert seed is not None
        assert run.losses is not None
        weights = recorder.checker.draw_example_weights(seed)
        check_rows(recorder, run, RowWeights(seed, weights), arrived[1:])
        single = None if run.single is None else run.single.row
        singles = SUSPECT_SINGLES if run.suspects else 1
        parts = recorder.checker.draw_parts(len(batch), single, singles=singles)
        rows = torch.tensor([row for part in parts for row in part], device=weights.device)
        weights = weights[rows]
        outputs, weighted = run.outputs.detach(), seed[rows] * weights[:, None]
        rerun = Rerun(batch, start, outputs, parts, weighted, single=run.single)
        check_loss(recorder, self._loss, rerun, run.losses.detach(), seed)
        return rerun, weights

    def _compare(
        self,
        checked: tuple[Rerun, Float[Tensor, " m"]],
        run: ForwardRun,
        factors: Sequence[Factors],
        squares: Float[Tensor, "groups n"],
    ) -> None:
        """Compare weighted sums of gradients, and norms of one example, with plain autograd."""
        rerun, example_weights = checked
        rows, weights = rerun.index, example_weights.unsqueeze(1)
        wanted: dict[str, Tensor] = {}
        single: dict[str, Tensor] = {}
        for single in part_gradients(self._recorder, rerun):  # the last part is one example
            add_gradients(wanted, single)
        derived = {
            root
            for use in run.uses
            if use.origin.tensor.grad_fn is not None
            for root in use.origin.roots
        }
        groups, table = factors[1:], squares[1:, rows].clamp(min=0.0)  # without the logits
        terms = table * example_weights.square()
        sizes_by_group, norms = torch.stack([terms.sum(1), terms[:, -1]]).sqrt().tolist()
        found: dict[str, Tensor] = {}
        sizes: dict[str, float] = {}
        for own, size in zip(groups, sizes_by_group, strict=True):
            part = own[rows]  # the weights of all other examples are zero
            total = part.weighted_sums([slice(0, len(part))], weights)[0]
            for name, piece in own.unpack(total).items():
                found[name], sizes[name] = piece, size
                if name in derived:  # its entries have another order, so norms are compared
                    found[name] = torch.linalg.vector_norm(piece)
                    if name in wanted:
                        wanted[name] = torch.linalg.vector_norm(wanted[name])
        compare_gradients(self._recorder, found, wanted, sizes)
        single_norms = dict(zip(single, norms_of([*single.values()]), strict=True))
        wanted_norms = [
            math.hypot(*(single_norms.get(name, 0.0) for name in own.names)) for own in groups
        ]
        gaps = [abs(norm - other) for norm, other in zip(norms, wanted_norms, strict=True)]
        names = [own.names[0] for own in groups]
        require_rounding(self._recorder, names, gaps, [*map(max, norms, wanted_norms)])

    def _add_single(self, batch: Batch, start: int) -> None:
        """Process one example by plain autograd."""
        outputs = self._recorder.usable_outputs(batch)
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
        self._add_norms_and_sums(factors, segments, span)
        if self._stiffness:
            self._add_units(factors, segments, span)

    def _add_norms_and_sums(
        self, factors: Sequence[Factors], segments: list[Segment], span: slice
    ) -> Float[Tensor, "groups n"]:
        """Store squared norms and add sums; return the squared norms of each group."""
        norms: list[Tensor] = []
        # After the last example sums become norms. Several processes add up their sums first.
        last = span.stop == len(self._labels) and self._processes.alone
        device = self._squares.device
        with without_autocast(device):
            for own in factors:
                tally = self._tallies.setdefault(own.names, ClassTally())
                squares = []
                for part, cut in self._chunks(own, segments):
                    squares.append(part.squared_norms()[:, 0])
                    for some in _segments_at_a_time(cut, part.entries, device):
                        tally.add(some, part.weighted_sums([segment.rows for segment in some]))
                norms.append(joined(squares, 0).to(device))
        rows = [self._rows.setdefault(own.names, len(self._rows)) for own in factors]
        table = torch.stack(norms)
        self._squares[rows, span] = table.clamp(min=0.0)
        given = {own.names for own in factors}
        for names, tally in self._tallies.items():
            if names not in given:
                tally.skip(segments)
            if last:
                tally.settle()
        return table

    def _chunks(
        self, factors: Factors, segments: list[Segment]
    ) -> Iterator[tuple[Factors, list[Segment]]]:
        """Factors of as many examples as fit at a time, and their segments.

        Each part is a copy: gradients that it has formed are released with it.
        """
        limit = _CHUNK_BYTES.get(self._squares.device.type, _CHUNK_BYTES["cpu"])
        for rows in factors.spans(limit):
            if rows == slice(0, len(factors)):
                yield factors[rows], segments
                return
            inside = (segment.inside(rows) for segment in segments)
            yield factors[rows], [segment for segment in inside if segment is not None]

    def _segments(self, start: int, stop: int) -> list[Segment]:
        """Runs of one class. A class closes if the next example in order has another label."""
        labels = self._label_list[start : stop + 1]
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
        sizes = BlockSizes(len(run.outputs), 1, None, run.outputs.device)
        parameters = self._recorder.ownership.parameters
        yield from loss_factors(groups, run.uses, by_use, parameters, sizes)

    def _add_units(self, factors: Sequence[Factors], segments: list[Segment], span: slice) -> None:
        """A second, weighted sum: each gradient divided by its norm in the layer."""
        owners = self._group_owners().to(self._squares.device)
        norms = (owners @ self._squares[: len(self._rows), : span.stop]).sqrt()
        counts = (norms > 0).double() @ self._class_indicators[: span.stop]
        self._scales.copy_(1.0 / counts.clamp(min=1.0))
        inverse = torch.where(norms > 0, 1.0 / norms, torch.zeros_like(norms))[:, span]
        given = set()
        for own in factors:
            start = 0
            for part, cut in self._chunks(own, segments):
                examples = slice(start, start + len(part))
                start = examples.stop
                for row, (layer, names) in enumerate(self._layers.items()):
                    if own.names[0] not in names:
                        continue
                    given.add((layer, own.names))
                    new = ClassTally(self._scales[row])
                    tally = self._units.setdefault((layer, own.names), new)
                    weights = inverse[row, examples].unsqueeze(1)
                    for some in _segments_at_a_time(cut, part.entries, self._squares.device):
                        with without_autocast(self._squares.device):
                            tally.add(
                                some,
                                part.weighted_sums([segment.rows for segment in some], weights),
                            )
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
        """The sums, one row per entry of :attr:`layers`."""
        owners = self._group_owners()
        squares = owners @ self._squares[: len(self._rows)].cpu()
        require_finite_gradients(squares.isfinite().all(0), self._order.tolist())
        membership = target_columns(self._labels, self._classes)
        tallies = [self._tallies[group] for group in self._rows]
        by_class = class_squares(tallies, self._classes)
        whole = _on_cpu([tally.total_square for tally in tallies])
        sums = owners @ torch.cat([by_class, whole[:, None]], 1)
        sets = SetSums.of_groups(_with_all(membership), squares, sums)
        units = self._unit_sums(squares > 0, membership) if self._stiffness else None
        return LayerSums(sets, self._in_data_order(squares.sqrt()), self._weight_norms(), units)

    def _weight_norms(self) -> Float[Tensor, " layers"]:
        parameters = self._recorder.ownership.parameters
        found = _norms_of_weights(list(parameters.values()))
        squares = {name: norm**2 for name, norm in zip(parameters, found, strict=True)}
        norms = [
            math.nan if names == (LOGITS,) else math.sqrt(sum(squares[name] for name in names))
            for names in self._layers.values()
        ]
        return torch.tensor(norms, dtype=torch.float64)

    def _unit_sums(self, nonzero: Tensor, membership: Float[Tensor, "n k"]) -> UnitSums:
        by_layer = [
            [tally for (owner, _), tally in self._units.items() if owner == layer]
            for layer in self._layers
        ]
        squares = [class_squares(tallies, self._classes).sum(0) for tallies in by_layer]
        totals = [_on_cpu([tally.total_square for tally in tallies]) for tallies in by_layer]
        means = [_on_cpu([tally.scaled_square for tally in tallies]) for tallies in by_layer]
        total, mean = (torch.stack([own.sum() for own in found]) for found in (totals, means))
        return UnitSums(nonzero.double() @ membership, torch.stack(squares), total, mean)


def _segments_at_a_time(
    segments: list[Segment], entries: int, device: torch.device
) -> Iterator[list[Segment]]:
    """Neighbouring segments whose sums together stay below the limit of the device."""
    limit = _CHUNK_BYTES.get(device.type, _CHUNK_BYTES["cpu"])
    step = max(1, limit // max(1, entries * _SUM_BYTES))
    for start in range(0, len(segments), step):
        yield segments[start : start + step]


def _norms_of_weights(weights: Sequence[Tensor]) -> list[float]:
    """The norm of each tensor, from float64."""
    real = [torch.view_as_real(w) if w.is_complex() else w for w in map(Tensor.detach, weights)]
    norms = [torch.linalg.vector_norm(w, dtype=torch.float64) for w in real]
    return torch.stack(norms).tolist()


def _on_cpu(values: list[Tensor | None]) -> Float[Tensor, " m"]:
    """Numbers from the device in one copy; None is zero."""
    present = [value for value in values if value is not None]
    if not present:
        return torch.zeros(len(values), dtype=torch.float64)
    zero = present[0].new_zeros(())
    return torch.stack([zero if value is None else value for value in values]).double().cpu()
