"""Norms and class sums of per-example gradients while batches in class order go by.

Memory is twice the length of a gradient, whatever the number of classes: the sum of the class that
is open, and the sum over all classes (:class:`ClassTally`). :class:`LayerSums` is what they give.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from theodolite._distributed import ALONE, Processes
from theodolite.engine._example_gradients import (
    DenseGradients,
    ExampleGradients,
    Segment,
    example_gradients,
)
from theodolite.engine._examples import Check, require_independent, tolerance_of
from theodolite.engine._gradient_bundles import Bundle, bundled, part_norms
from theodolite.engine._gradient_samples import (
    LOGITS,
    GradientCheck,
    GradientSample,
    in_background,
    squared_norms,
)
from theodolite.engine._plan import ParameterGroup, group_parameters
from theodolite.engine._runs import (
    BatchLoss,
    ForwardRun,
    ModelRecorder,
    Progress,
    plain_gradients,
)
from theodolite.engine._signatures import Signature, remember_check
from theodolite.engine.batches import Batch, even_spans
from theodolite.engine.calls import NotFollowedError, tensors_in
from theodolite.engine.state import model_device
from theodolite.linalg import SetSums, mean_over_classes, ratio_or_nan, target_columns

__all__ = [
    "LOGITS",
    "TOTAL",
    "ClassTally",
    "GradientAccumulation",
    "LayerSums",
    "UnevenError",
    "UnitSums",
]

K = TypeVar("K", bound=Hashable)


class ClassTally:
    r"""Accumulates :math:`\|\sum_{i \in c} v_i\|^2` per class and of the sum over all classes.

    Nothing is read back from the device before the end: a GPU is never waited for.

    Args:
        scales: per class, a factor of its sum in a second total (for means of class means); filled
            in by the owner no later than the class closes.
        widths: entries of each part, where vectors are several parts stacked or side by side: norms
            are then taken part by part.
        dtype: of sums; float32 suffices for products of half precision, and is read twice as fast.
    """

    def __init__(
        self,
        scales: Float[Tensor, " k"] | None = None,
        widths: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self._scales, self._widths, self._dtype = scales, widths, dtype
        self.parts = max(1, len(widths))
        self.closed: list[tuple[tuple[int, ...], Tensor]] = []
        self._open: Tensor | None = None
        self._total: Tensor | None = None
        self._scaled: Tensor | None = None
        self._settled: tuple[Tensor | None, Tensor | None] | None = None

    def settle(self) -> None:
        """Keep numbers in the place of sums: no further vector comes."""
        self._settled = self.total_norm, self.scaled_norm
        self._total = self._scaled = None

    def add(self, parts: Sequence[Segment], sums: Float[Tensor, "s *m p"]) -> None:
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

    def _norms(self, sums: Float[Tensor, "s *m p"]) -> Float[Tensor, "s m"]:
        return part_norms(sums, self._widths, exact=self._dtype == torch.float64)

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

    def outline(self) -> tuple[torch.Size, bool, tuple[int, ...]]:
        """Shape of the vectors, whether scaled sums are kept, and the widths of their parts."""
        assert self._total is not None  # every class has been closed
        assert self._open is None
        return self._total.shape, self._scales is not None, self._widths

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
    known: dict[K, tuple[torch.Size, bool, tuple[int, ...]]] = {}
    for part in processes.gather({key: tally.outline() for key, tally in tallies.items()}):
        known |= {key: outline for key, outline in part.items() if key not in known}
    for key, (shape, scaled, widths) in known.items():
        if key not in tallies:
            tallies[key] = ClassTally(widths=widths)
        zeros = torch.zeros(shape, dtype=torch.float64, device=device)
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


class UnevenError(NotFollowedError):
    """Tensors that are treated together have gradients in some batches only."""


class GradientAccumulation:
    """Sums while batches in class order go by; the device is not waited for before the end.

    Args:
        recorder: the model and its parameters.
        loss: one number per example.
        labels: class of each example, on the CPU.
        stiffness: also add up unit vectors.
        processes: that share the work; each takes whole classes.
        alone: whether examples are measured one by one, by plain autograd.
        stacked: whether matrices of several layers are treated together.
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
        stacked: bool = True,
    ) -> None:
        self._recorder, self._loss, self._stiffness = recorder, loss, stiffness
        recorder.arithmetic = (stacked, stiffness)
        self.progress: Progress | None = None
        self._processes = processes
        owned = recorder.ownership
        self._order = labels.argsort(stable=True)
        self._labels = labels[self._order]
        self._listed = self._labels.tolist()
        self._classes = int(labels.max()) + 1
        self._layers = {**owned.layers, TOTAL: tuple(owned.parameters), LOGITS: (LOGITS,)}
        device = model_device(recorder.model)
        self._rows: dict[str, int] = {}  # row of a tensor in the table of squared norms
        self._squares = torch.zeros(
            len(owned.parameters) + 1, len(labels), dtype=torch.float64, device=device
        )
        self._tallies: dict[tuple[str, ...], ClassTally] = {}
        self._losses: list[Tensor] = []
        self._weight_squares: Tensor | None = None
        self._check = GradientCheck(recorder)
        self._alone, self._stacked = alone, stacked
        self._kinds: set[tuple[Any, ...]] = set()  # ways through the model that were taken
        self._signatures: list[Signature | None] = []  # of passes that are compared
        self._compared: set[str] = set()  # what was compared with autograd, in words
        self._differences: list[tuple[Tensor, Batch]] = []
        if stiffness:
            self._groups = target_columns(self._labels, self._classes).to(device)
            self._scales = self._groups.new_ones(len(self._layers), self._classes)
            self._units: dict[tuple[str, str], ClassTally] = {}

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers, all parameters, and the logits: the rows of :meth:`sums`."""
        return tuple(self._layers)

    @property
    def checked(self) -> str:
        """What was compared with autograd, in words; the least of all batches."""
        kinds = ("some examples", "every example", "remembered")
        return next((kind for kind in kinds if kind in self._compared), "nothing")

    def _membership(self) -> Float[Tensor, "layers names"]:
        """One where a layer owns a tensor."""
        members = torch.zeros(len(self._layers), len(self._squares), dtype=torch.float64)
        places = [
            (index, self._rows[name])
            for index, names in enumerate(self._layers.values())
            for name in names
            if name in self._rows
        ]
        members[tuple(torch.tensor(places).T)] = 1.0
        return members

    def run(self, data: Batch, batch_size: int, *, check: Check) -> None:
        """The batches of this process; some examples run again and are compared with autograd.

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
                self._add(batch, start, check)
            if self.progress is not None:
                share = span.stop / len(self._labels)
                self.progress(share, f"examples {span.start} to {span.stop - 1}")
        if self._losses:
            self._judge(torch.cat(self._losses))

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
        used = [name for group in self._tallies for name in group]
        squares = torch.zeros_like(self._squares)
        for row, name in enumerate(used):
            if name in self._rows:
                squares[row] = self._squares[self._rows[name]]
        self._squares = processes.sum(squares)
        self._rows = {name: row for row, name in enumerate(used)}
        losses = torch.zeros(len(self._labels), dtype=torch.float64, device=device)
        if self._losses:
            losses[own] = torch.cat(self._losses).double()
        self._losses = [processes.sum(losses)]
        if self._stiffness:
            self._units = shared_tallies(self._units, processes, device)

    def _judge(self, losses: Float[Tensor, " n"]) -> None:
        """Wait for what was compared; raise if something is wrong."""
        self._recorder.require_finite(losses)
        kinds = {self._losses[0].dtype} | self._recorder.rounding
        for differences, batch in self._differences:
            require_independent(
                self._recorder.model,
                differences,
                tolerance_of(kinds),
                self._recorder.model_outputs,
                batch,
            )
        self._differences.clear()
        self._check.require_agreement(self._losses[0].dtype)
        for signature in self._signatures:
            remember_check(self._recorder.model, signature)

    def _add(self, batch: Batch, start: int, check: Check) -> None:
        """One batch: a recorded forward pass, a backward pass to all uses, and the reductions.

        Batches that take another way through the model than those before are checked; Python
        goes on while autograd launches the backward pass, with the forward pass of some examples,
        and with the reductions while it launches the backward pass of these.
        """
        segments = self._segments(start, start + len(batch))
        run = self._recorder.run(batch, self._loss)
        losses = run.losses
        assert losses is not None
        self._losses.append(losses.detach())
        sample = None
        every = check == "every" or self._recorder.unsure
        if check and (every or run.draws or run.kind not in self._kinds):
            self._kinds.add(run.kind)
            if run.remembered:
                self._compared.add("remembered")
            else:
                sample = GradientSample(self._recorder, self._loss, run, batch, every=every)
                self._compared.add("every example" if every else "some examples")
                self._signatures.append(run.signature)
        backward = partial(torch.autograd.grad, losses.sum(), self._inputs(run), allow_unused=True)
        begun = in_background(losses.device, backward)
        del losses, backward
        try:  # meanwhile
            groups = group_parameters(run.uses, self._recorder.ownership)
            self._weight_squares = self._squares_of_weights()
            if sample is not None:
                sample.run_again()
        finally:
            arrived: list[Tensor | None] = list(begun())
            del begun
        if sample is not None:
            assert arrived[0] is not None
            sample.weigh(self._check.draw(arrived[0]))
        span = slice(start, start + len(batch))
        kept = list(arrived) if self._stiffness else None
        bundles = bundled(self._gradients(run, groups, arrived), stacked=self._stacked)
        if sample is None:
            self._reduce(bundles, segments, span)
        else:
            waiting = list(bundles)
            squares = self._reduce(iter(waiting), segments, span)
            for bundle, own in zip(waiting, squares, strict=True):
                sample.compare(self._check, bundle, own.clamp(min=0.0).sqrt())
            self._differences += sample.finish(self._check)
            del waiting
        if kept is not None:
            self._add_units(self._gradients(run, groups, kept), segments, span)

    def _add_alone(self, batch: Batch, start: int) -> None:
        """One example, by plain autograd."""
        outputs = self._recorder.run_plainly(batch)
        losses = self._loss(outputs, batch)
        self._losses.append(losses.detach())
        parameters = self._recorder.ownership.parameters
        found = plain_gradients(losses.sum(), {LOGITS: outputs, **parameters})
        gradients: dict[str, ExampleGradients] = {}
        for name, tensor in {LOGITS: outputs, **parameters}.items():
            entries = tensor.numel() * (2 if tensor.is_complex() else 1)
            zeros = torch.zeros(entries, dtype=losses.dtype, device=losses.device)
            gradients[name] = DenseGradients(found.get(name, zeros).reshape(1, -1))
        segments, span = self._segments(start, start + 1), slice(start, start + 1)
        self._reduce(bundled(iter(gradients.items())), segments, span)
        if self._stiffness:
            self._add_units(iter(gradients.items()), segments, span)

    def _reduce(
        self,
        bundles: Iterator[Bundle],
        segments: list[Segment],
        span: slice,
    ) -> list[Float[Tensor, "m n"]]:
        """Norms into the table, sums into the tallies; the squared norms of every bundle."""
        norms: list[Tensor] = []
        rows: list[int] = []
        for bundle in bundles:
            if bundle.names not in self._tallies:
                if any(name in self._rows for name in bundle.names):
                    raise UnevenError("some parameters take part in some batches only")
                dtype = torch.float32 if bundle.gradients.coarse else torch.float64
                self._tallies[bundle.names] = ClassTally(widths=bundle.widths, dtype=dtype)
            norms.append(bundle.reduce(segments, self._tallies[bundle.names].add))
            if span.stop == len(self._labels) and self._processes.alone:
                self._tallies[bundle.names].settle()
            rows += [self._rows.setdefault(name, len(self._rows)) for name in bundle.names]
        table = torch.cat(norms).clamp_(min=0.0)
        if rows == list(range(len(rows))):  # always, unless parameters take part in some batches
            self._squares[: len(rows), span] = table
        else:
            for row, values in zip(rows, table, strict=True):
                self._squares[row, span] = values
        return norms

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

    def _inputs(self, run: ForwardRun) -> list[GradientEdge]:
        """Where gradients arrive: at the outputs, and at the results of all uses."""
        return [get_gradient_edge(run.outputs), *(edge for use in run.uses for edge in use.edges)]

    def _gradients(
        self, run: ForwardRun, groups: list[ParameterGroup], arrived: list[Tensor | None]
    ) -> Iterator[tuple[str, ExampleGradients]]:
        logits, *others = arrived
        assert logits is not None
        yield LOGITS, DenseGradients(logits)
        owned = self._recorder.ownership
        yield from example_gradients(run.uses, groups, others, owned, len(logits))

    def _add_units(
        self,
        gradients: Iterator[tuple[str, ExampleGradients]],
        segments: list[Segment],
        span: slice,
    ) -> None:
        """A second, weighted sum: each gradient divided by its norm in the layer."""
        members = self._membership().to(self._squares.device)
        norms = (members @ self._squares[:, : span.stop]).sqrt()
        counts = (norms > 0).double() @ self._groups[: span.stop]
        self._scales.copy_(1.0 / counts.clamp(min=1.0))
        inverse = torch.where(norms > 0, 1.0 / norms, torch.zeros_like(norms))[:, span]
        for name, values in gradients:
            for row, (layer, names) in enumerate(self._layers.items()):
                if name not in names:
                    continue
                if (layer, name) not in self._units:
                    self._units[layer, name] = ClassTally(self._scales[row])
                values.weighted_sums(segments, inverse[row], self._units[layer, name].add)
                if span.stop == len(self._labels) and self._processes.alone:
                    self._units[layer, name].settle()

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
        places = {name: k for k, name in enumerate(n for group in self._tallies for n in group)}
        order = [places[name] for name in self._rows]
        tallies = list(self._tallies.values())
        by_class = class_squares(tallies, self._classes)
        whole = _gathered(tallies, "total_norm").square()
        return by_class[order], whole[order]

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
            [self._units[layer, name] for name in names if (layer, name) in self._units]
            for layer, names in self._layers.items()
        ]
        squares = [class_squares(tallies, self._classes).sum(0) for tallies in by_layer]
        total, mean = (
            torch.stack([_gathered(tallies, name).square().sum() for tallies in by_layer])
            for name in ("total_norm", "scaled_norm")
        )
        return UnitSums(nonzero.double() @ groups, torch.stack(squares), total, mean)


def _gathered(tallies: list[ClassTally], what: str) -> Float[Tensor, " m"]:
    """Numbers of all tallies from the device in one copy; None is zero."""
    if not tallies:
        return torch.zeros(0, dtype=torch.float64)
    values = [getattr(tally, what) for tally in tallies]
    zeros = next((value.new_zeros(1) for value in values if value is not None), torch.zeros(1))
    parts = [
        zeros.expand(tally.parts) if value is None else value
        for tally, value in zip(tallies, values, strict=True)
    ]
    return torch.cat(parts).double().cpu()
