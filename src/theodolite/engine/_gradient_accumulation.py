"""Norms and class sums of per-example gradients while batches in class order go by."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from theodolite._distributed import ALONE, Processes
from theodolite.engine._checks import GradientCheck, squared_norms
from theodolite.engine._class_sums import (
    ClassTally,
    LayerSums,
    UnitSums,
    class_squares,
    shared_tallies,
)
from theodolite.engine._example_gradients import (
    Bundle,
    DenseGradients,
    ExampleGradients,
    Segment,
    SegmentTotal,
    bundled,
    column_groups,
    example_gradients,
)
from theodolite.engine._examples import (
    output_differences,
    recomposed,
    require_independent,
    tolerance_of,
)
from theodolite.engine._runs import ForwardRun, ModelRecorder, Progress, as_real, plain_gradients
from theodolite.engine.batches import Batch, even_spans
from theodolite.engine.calls import NotFollowedError, tensors_in
from theodolite.engine.state import SideStream, model_device
from theodolite.linalg import SetSums, target_columns

__all__ = [
    "LOGITS",
    "TOTAL",
    "GradientAccumulation",
]

# Two sets beside the layers; names of modules have no spaces.
LOGITS = "all logits"
TOTAL = "all parameters"

_LARGE = 2**24  # bytes of the results of all calls for one example

BatchLoss = Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True)
class _Unchecked:
    """A batch that took a way through the model of its own, some examples of which run again.

    Args:
        start: Place of its first example.
        parts: Places in the batch, of examples that are to run together.
        outputs: Of the whole batch.
        batch: The batch.
        decisions: Numbers that the model's code decided by.
    """

    start: int
    parts: list[list[int]]
    outputs: Tensor
    batch: Batch
    decisions: tuple[Any, ...] = ()


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
        self._rows: dict[str, int] = {}  # row of a tensor in the table of squared norms
        self._squares = torch.zeros(
            len(owned.parameters) + 1, len(labels), dtype=torch.float64, device=device
        )
        self._tallies: dict[tuple[str, ...], ClassTally] = {}
        self._losses: list[Tensor] = []
        self._check = GradientCheck(recorder)
        self._alone = alone
        self._kinds: set[tuple[Any, ...]] = set()  # ways through the model that were taken
        self._unchecked: list[_Unchecked] = []
        self._differences: list[tuple[Tensor, Batch]] = []
        if stiffness:
            self._groups = target_columns(self._labels, self._classes).to(device)
            self._scales = self._groups.new_ones(len(self._layers), self._classes)
            self._units: dict[tuple[str, str], ClassTally] = {}

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers, all parameters, and the logits: the rows of :meth:`sums`."""
        return tuple(self._layers)

    def _membership(self) -> Float[Tensor, "layers names"]:
        """One where a layer owns a tensor."""
        members = torch.zeros(len(self._layers), len(self._squares), dtype=torch.float64)
        for index, names in enumerate(self._layers.values()):
            members[index, [self._rows[name] for name in names if name in self._rows]] = 1.0
        return members

    def run(self, data: Batch, batch_size: int, *, check: bool) -> None:
        """The batches of this process; some examples run again and are compared with autograd.

        They do while the device works on the batch that follows; the verdict is read one later.

        Raises:
            NotFollowedError: If the examples cannot be followed together.
        """
        own, device = self._own(), self._squares.device
        on_device = any(t.device == device for t in tensors_in((data.args, dict(data.kwargs))))
        ordered = data.take(self._order) if on_device and device.type != "cpu" else None

        def take(places: slice | list[int]) -> Batch:
            if ordered is not None:  # slices; picking by index would wait for the device
                return ordered.take(places).to(device)
            return data.take(self._order[places]).to(device)

        side_stream = SideStream(device)
        judging: tuple[SideStream, Tensor] | None = None
        for part in even_spans(own.stop - own.start, 1 if self._alone else batch_size):
            start = own.start + part.start
            span = slice(start, own.start + part.stop)
            waiting, self._unchecked = self._unchecked, []
            if self._alone:
                self._add_alone(take(span), start)
            else:
                self._add(take(span), start, check)
            if judging is not None:
                with judging[0].work():
                    self._judge(judging[1])
                judging = None
            if waiting:
                self._run_again(waiting, take, side_stream)
                judging = SideStream(device), torch.cat(self._losses)
            if self.progress is not None:
                share = span.stop / len(self._labels)
                self.progress(share, f"examples {span.start} to {span.stop - 1}")
        self._run_again(self._unchecked, take, side_stream)
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

    def _add(self, batch: Batch, start: int, check: bool) -> None:
        """One batch: a recorded forward pass, a backward pass to all uses, and the reductions."""
        segments = self._segments(start, start + len(batch))
        run = self._recorder.run(batch)
        losses = self._loss(run.outputs, batch)
        self._losses.append(losses.detach())
        # Batches that take another way through the model than those before are compared too.
        if check and (run.draws or run.kind not in self._kinds):
            self._kinds.add(run.kind)
            large = run.result_bytes > _LARGE * len(batch)
            parts = recomposed(len(batch), every=bool(run.decisions) and not large, large=large)
            outputs = run.outputs.detach()
            self._unchecked.append(_Unchecked(start, parts, outputs, batch, run.decisions))
        found = torch.autograd.grad(losses.sum(), self._inputs(run), allow_unused=True)
        del losses
        arrived: list[Tensor | None] = list(found)
        span = slice(start, start + len(batch))
        self._reduce(bundled(self._gradients(run, arrived)), segments, span)
        if self._stiffness:
            self._add_units(self._gradients(run, arrived), segments, span)

    def _run_again(
        self,
        unchecked: list[_Unchecked],
        take: Callable[[list[int]], Batch],
        side_stream: SideStream,
    ) -> None:
        """Some examples in other company, with a random weight for the loss of each of them."""
        waiting = list(unchecked)
        while waiting:
            one = waiting.pop(0)
            for places in one.parts:
                with side_stream.work():  # passes of few examples leave the device almost idle
                    part = take([one.start + place for place in places])
                    run = self._recorder.run(part)
                    every = recomposed(len(one.batch), every=True)
                    if run.decisions != one.decisions and one.parts != every:
                        waiting.append(replace(one, parts=every))
                        break
                    losses = self._loss(run.outputs, part)
                    edge = get_gradient_edge(run.outputs)
                    (slopes,) = torch.autograd.grad(losses.sum(), [edge], retain_graph=True)
                    weights = self._check.draw(slopes)
                    arrived, plain = self._weighted_gradients(run, losses, weights)
                    index = torch.tensor(places).to(weights.device)
                # In the stream of the pass, after the batch itself: backward passes of single
                # calls cannot change streams under vmap, and memory is given back there.
                side_stream = SideStream(weights.device)
                with side_stream.work():
                    differences = output_differences(one.outputs[index], run.outputs)
                    self._differences.append((differences, one.batch))
                    self._compare(run, arrived, plain, weights, one.start + index)

    def _weighted_gradients(
        self, run: ForwardRun, losses: Tensor, weights: Float[Tensor, " n"]
    ) -> tuple[list[Tensor | None], dict[str, Tensor]]:
        """Gradients of weighted losses at all uses, and those of the parameters by autograd."""
        derived = any(use.origin.tensor.grad_fn is not None for use in run.uses)
        parameters = self._recorder.ownership.parameters
        total = (weights.to(losses.dtype) * losses).sum()
        uses = self._inputs(run)
        wanted: list[Any] = [*uses, *parameters.values()]  # edges and tensors
        found = torch.autograd.grad(total, wanted, retain_graph=derived, allow_unused=True)
        plain = zip(parameters, found[len(uses) :], strict=True)
        return list(found[: len(uses)]), {
            name: as_real(gradient) for name, gradient in plain if gradient is not None
        }

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

    def _compare(
        self,
        run: ForwardRun,
        arrived: list[Tensor | None],
        plain: dict[str, Tensor],
        weights: Float[Tensor, " n"],
        examples: Int[Tensor, " n"],
    ) -> None:
        """Note how far the gradients of weighted losses are from what they must be.

        Each example's is what it was before times its weight, and they add up to autograd's.
        """
        derived = {
            root
            for use in run.uses
            if use.origin.tensor.grad_fn is not None
            for root in use.origin.roots
        }
        whole = [Segment(0, 0, len(weights), closes=True)]
        sums: dict[str, Tensor] = {}
        norms: list[Tensor] = []
        expected = {name: value.flatten() for name, value in plain.items()}
        for bundle in bundled(self._gradients(run, arrived)):
            total = SegmentTotal()
            squares = bundle.reduce(whole, total.add)
            parts = total.value.flatten()
            pieces = torch.split(parts, list(bundle.widths)) if bundle.widths else [parts]
            norms.append(squares)
            for name, piece in zip(bundle.names, pieces, strict=True):
                sums[name] = piece
                if name in derived:  # parts of a parameter, in an order of their own
                    sums[name] = torch.linalg.vector_norm(piece)
                elif name in plain:
                    expected[name] = bundle.gradients.arrange(plain[name])
        if any(name not in self._rows for name in sums):
            raise NotFollowedError("some parameters take part in some batches only")
        table = self._squares[:, examples]
        own = weights * torch.stack([table[self._rows[name]] for name in sums]).sqrt()
        self._check.compare_rows(tuple(sums), torch.cat(norms).sqrt(), own)
        spreads = dict(zip(sums, own, strict=True))
        sums.pop(LOGITS)
        self._check.compare(sums, expected, spreads)

    def _reduce(self, bundles: Iterator[Bundle], segments: list[Segment], span: slice) -> None:
        """Norms into the table, sums into the tallies."""
        norms: list[Tensor] = []
        rows: list[int] = []
        for bundle in bundles:
            if bundle.names not in self._tallies:
                if any(name in self._rows for name in bundle.names):
                    raise NotFollowedError("some parameters take part in some batches only")
                groups = column_groups(bundle.widths, self._squares.device)
                dtype = torch.float32 if bundle.gradients.coarse else torch.float64
                self._tallies[bundle.names] = ClassTally(
                    groups=groups if bundle.widths else None, dtype=dtype
                )
            norms.append(bundle.reduce(segments, self._tallies[bundle.names].add))
            if span.stop == len(self._labels) and self._processes.alone:
                self._tallies[bundle.names].settle()
            rows += [self._rows.setdefault(name, len(self._rows)) for name in bundle.names]
        table = torch.cat(norms)
        if rows == list(range(len(rows))):  # always, unless parameters take part in some batches
            self._squares[: len(rows), span] = table
        else:
            for row, values in zip(rows, table, strict=True):
                self._squares[row, span] = values

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
        self, run: ForwardRun, arrived: list[Tensor | None]
    ) -> Iterator[tuple[str, ExampleGradients]]:
        logits, *others = arrived
        assert logits is not None
        yield LOGITS, DenseGradients(logits)
        yield from example_gradients(run.uses, others, self._recorder.ownership, len(logits))

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
        names = [name for group in self._tallies for name in group]
        order = [names.index(name) for name in self._rows]
        tallies = list(self._tallies.values())
        by_class = class_squares(tallies, self._classes)
        whole = _gathered(tallies, "total_square")
        return by_class[order], whole[order]

    def _weight_norms(self) -> Float[Tensor, " layers"]:
        parameters = self._recorder.ownership.parameters
        found = squared_norms([value.detach() for value in parameters.values()]).cpu()
        by_name = dict(zip(parameters, found, strict=True))
        by_layer = [
            torch.stack([by_name[name] for name in names]).sum() if names != (LOGITS,) else None
            for names in self._layers.values()
        ]
        nan = torch.tensor(torch.nan, dtype=torch.float64)
        return torch.stack([nan if value is None else value.sqrt() for value in by_layer])

    def _unit_sums(self, nonzero: Tensor, groups: Float[Tensor, "n k"]) -> UnitSums:
        by_layer = [
            [self._units[layer, name] for name in names if (layer, name) in self._units]
            for layer, names in self._layers.items()
        ]
        squares = [class_squares(tallies, self._classes).sum(0) for tallies in by_layer]
        total, mean = (
            torch.stack([_gathered(tallies, name).sum() for tallies in by_layer])
            for name in ("total_square", "scaled_square")
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
