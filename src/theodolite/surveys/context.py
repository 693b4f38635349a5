"""The model, the probe set and the collectors that families read.

Families run in the first process only, with one model and one probe set. A collector runs in every
process. The first process announces the call, and the others wait for it in
:meth:`SurveyContext.serve`. The results of the passes are gathered in the first process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from theodolite._distributed import ALONE, Processes
from theodolite.advice.reasons import Reason, reason
from theodolite.engine import (
    Batch,
    ContractionSizes,
    GradientAlignment,
    Loss,
    OutputReader,
    Pool,
    Readout,
    TangentAlignments,
    TangentKernels,
    contraction_costs,
    exact_arithmetic,
    feature_grams,
    features,
    first_output,
    forward_backward_kernels,
    gradient_alignment,
    input_samples,
    iterate_batches,
    read_outputs,
    resolve_readout,
    shared_moments,
    shared_tangent_kernels,
    tangent_alignments,
    whole_batch,
)
from theodolite.errors import MemoryLimitError, ShapeError, TheodoliteError
from theodolite.linalg import Moments, RowSample, dual_gram, eps_of
from theodolite.records import Note
from theodolite.surveys.layers import Layer, Layout
from theodolite.surveys.options import FEATURE_READERS, SurveyOptions
from theodolite.surveys.plan import KEPT_PRODUCTS, SurveyPlan
from theodolite.surveys.positions import PositionTask
from theodolite.surveys.probe import Probe
from theodolite.surveys.progress import EIGEN, Progress
from theodolite.surveys.record import RecordBuilder
from theodolite.surveys.targets import Targets

S = TypeVar("S", bound=Sized)
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

_SUMS = 20  # float32 copies of the parameters, for sums over examples and unit vectors in float64
_PLAIN_SUMS = 6  # the same without unit vectors
_CHECKED = 3  # copies of the parameters, for gradients and sums that are compared with autograd
_KEPT_RESULTS = 3  # multiple of a forward pass: results, their gradients, and conversions
_GRADIENTS = 4  # copies of an example's gradient with respect to the largest tensor
_KEPT_COPIES = 12  # copies of a layer's output, for norms, activations and gradients
_TINY = 2e7  # cost of a step of tiny matrices
_ON_CPU = 200  # with fewer examples a CPU decomposes faster than a GPU
_KEPT = 2**28  # bytes of features that are kept; larger ones are multiplied batch by batch


@dataclass(frozen=True)
class LayerFeatures:
    """Features of one layer: the features if they are narrow, otherwise their inner products.

    Args:
        width: number of features.
        rows: the features.
        products: inner products of all pairs of examples, if the features are not kept.
        rounding: rounding of the original dtype of the features, if products have more digits.
    """

    width: int
    rows: Float[Tensor, "n d"] | None = None
    products: Float[Tensor, "n n"] | None = None
    rounding: float | None = None

    @property
    def _kept(self) -> Tensor:
        kept = self.products if self.rows is None else self.rows
        assert kept is not None
        return kept

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return self._kept.device

    @property
    def eps(self) -> float:
        """Rounding of the original dtype of the features."""
        return eps_of(self._kept) if self.rounding is None else self.rounding

    @cached_property
    def gram(self) -> Float[Tensor, "n n"]:
        """Inner products of all pairs of examples, in float64."""
        if self.products is not None:
            return self.products.double()
        assert self.rows is not None
        return dual_gram(self.rows)

    def lengths(self) -> Float[Tensor, " n"]:
        """Norm of every example's features, in float64."""
        if self.rows is not None:
            return self.rows.double().norm(dim=1)
        return self.gram.diagonal().clamp(min=0.0).sqrt()

    @property
    def constant(self) -> bool:
        """Whether examples differ only by rounding."""
        total = self.gram.diagonal().sum()
        return bool(total - self.gram.mean() * len(self) <= (8 * self.eps) ** 2 * total)

    def take(self, indices: Tensor) -> "LayerFeatures":
        """Some of the examples."""
        if self.rows is not None and (self.width < len(self) or "gram" not in vars(self)):
            return LayerFeatures(self.width, self.rows[indices.to(self.rows.device)])
        where = indices.to(self.gram.device)
        return LayerFeatures(self.width, None, self.gram[where][:, where], self.eps)

    def first(self, count: int) -> "LayerFeatures":
        """The first examples; derived values are kept only if they are small."""
        if count < len(self):
            return self.take(torch.arange(count))
        if count <= KEPT_PRODUCTS:
            return self
        return LayerFeatures(self.width, self.rows, self.products, self.rounding)

    def settled(self) -> "LayerFeatures":
        """Move few examples from a GPU to the CPU, which decomposes small matrices faster."""
        if self.device.type == "cpu" or len(self) > _ON_CPU:
            return self
        if self.rows is not None and self.width <= len(self):
            return LayerFeatures(self.width, self.rows.cpu())
        return LayerFeatures(self.width, None, self.gram.cpu(), self.eps)


@dataclass(frozen=True)
class Draws:
    """Random numbers for chance levels and errors, the same for all layers and families.

    The same numbers permute any number of leading examples.

    Args:
        permuted: one number per permutation and example; sorting them gives the permutation.
        halved: one number per half-sample and example.
    """

    permuted: Float[Tensor, "b n"]
    halved: Float[Tensor, "h n"]

    @classmethod
    def of(cls, examples: int, options: SurveyOptions) -> "Draws":
        """Draw them all."""
        generator = options.seeded(1)
        permuted, halved = (
            torch.rand(count, examples, generator=generator, device=generator.device).cpu()
            for count in (options.permutations, options.half_samples)
        )
        return cls(permuted, halved)

    def orders(self, count: int) -> Int[Tensor, "b m"]:
        """Permutations of the first examples."""
        return self.permuted[:, :count].argsort(1)

    def halves(self, count: int) -> Int[Tensor, "h k"]:
        """Halves of the first examples, without repetition, each in increasing order.

        The spread over halves estimates the standard error itself: if half of n examples is
        deleted, the factor (n - d) / d of the jackknife is 1. Bootstrap samples would repeat
        examples. That biases measures that leave out the pairing of an example with itself.
        """
        return self.halved[:, :count].argsort(1)[:, : count // 2].sort(1).values

    def permutations_of(self, columns: Float[Tensor, "m c"]) -> Float[Tensor, "b m c"]:
        """Targets in the order of every permutation."""
        return columns[self.orders(len(columns)).to(columns.device)]


@dataclass
class EarlierResults:
    """Results that later measurements of the same model reuse.

    Args:
        layout: names of the modules, and the layers among them.
        moments: moments of the inputs of layers that receive the data unchanged.
        losses: losses of the probe set's sequences and of held-out ones, at the first measurement.
        watching: whether a monitor measures, so that losses of examples add up.
        loss_sums: sum of the losses of every example, and the number of measurements.
    """

    layout: tuple[tuple[str, ...], Layout] | None = None
    moments: tuple[tuple[Any, ...], Moments | RowSample] | None = None
    losses: tuple[Float[Tensor, " n"], Float[Tensor, " m"]] | None = None
    watching: bool = False
    loss_sums: tuple[Float[Tensor, " n"], int] | None = None


def _collector(
    method: "Callable[Concatenate[SurveyContext, P], R]",
) -> "Callable[Concatenate[SurveyContext, P], R]":
    """A method that every process runs, with plain arguments; the first process announces it."""

    @wraps(method)
    def collect(self: "SurveyContext", /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.processes.rank == 0:
            self.processes.spread((method.__name__, args, kwargs, self.plan))
        with self.processes.together():
            return method(self, *args, **kwargs)

    return collect


@dataclass(kw_only=True)
class SurveyContext:
    """A model in evaluation mode with its probe set.

    Args:
        model: the model, unwrapped.
        probe: the probe set.
        layout: the layers.
        options: the user's options.
        plan: sizes and memory; sizes may shrink while the time runs out.
        data: all the given data, for sums over all examples.
        draws: permutations and half-samples.
        record: collects the times.
        progress: called with a description of the work, if progress is shown.
        processes: the processes that take part.
        held_out: examples that the model was not trained on.
        earlier: results that later measurements of the same model reuse.
        given: layer -> features that were given as arrays, if there is no model.
        collected: layer -> its features, after :meth:`collect_features`: those of the probe set,
            followed by those of held-out examples.
        rows_read: number of rows of the probe set among them.
        model_outputs: outputs for the examples, if the pass over the features read them.
        outputs_of_held_out: outputs for held-out examples, if that pass read them.
    """

    model: nn.Module
    probe: Probe
    layout: Layout
    options: SurveyOptions
    plan: SurveyPlan
    draws: Draws
    record: RecordBuilder
    data: Any = None
    progress: Progress | None = None
    processes: Processes = ALONE
    held_out: Probe | None = None
    earlier: EarlierResults = field(default_factory=EarlierResults)
    given: Mapping[str, Tensor] | None = None
    collected: dict[str, LayerFeatures] = field(default_factory=dict)
    rows_read: int = 0
    model_outputs: list[Tensor] = field(default_factory=list)
    outputs_of_held_out: list[Tensor] = field(default_factory=list)

    @property
    def keeps_inputs(self) -> bool:
        """Whether :meth:`input_moments` may keep the inputs, if they are few, instead of sums."""
        return self.processes.alone

    @property
    def target_count(self) -> int:
        """Number of target columns."""
        columns = self.probe.rows.columns
        return 1 if columns is None else columns.shape[1]

    @cached_property
    def pass_cost(self) -> float:
        """Multiply-adds of the forward pass of one example."""
        return float(self.layout.footprint.per_example(self.layout.footprint.products))

    @cached_property
    def matrices(self) -> list[tuple[int, int, int]]:
        """Positions, rows and columns of the layers' matrices."""
        found = (_matrix(self.model, layer) for layer in self.layout.layers)
        return [sizes for sizes in found if sizes is not None]

    def kernels_cost(self, count: int, outputs: int) -> float:
        """Multiply-adds of the tangent kernels of ``count`` examples."""
        sizes = (ContractionSizes(count, count, outputs, c, d, t) for t, c, d in self.matrices)
        return sum(min(contraction_costs(size).values()) for size in sizes)

    def decomposed_cost(self, count: int) -> float:
        """Multiply-adds of decompositions of the features of all layers."""
        widths = (layer.features for layer in self.layout.with_features())
        return sum(_TINY + EIGEN * count * min(count, width) ** 2 for width in widths)

    def serve(self) -> None:
        """Run the collectors that the first process announces, until it has finished."""
        while (call := self.processes.spread(None)) is not None:
            name, args, kwargs, self.plan = call
            with suppress(Exception):  # the first process reports errors
                getattr(self, name)(*args, **kwargs)

    def dismiss(self) -> None:
        """Tell the other processes that there is nothing more to collect."""
        self.processes.spread(None)

    def count(self, family: str) -> int:
        """Number of examples that a family uses."""
        return self.plan.size(family, len(self.probe))

    def examples(self, family: str, count: int | None = None) -> tuple[Batch, Targets]:
        """The examples of a family, or the first ``count`` of them, with their targets.

        For labels per position, tangent kernels use one position of each example. Gradients are
        grouped by the user's groups, or by class.
        """
        count = self.count(family) if count is None else count
        probe = self.probe
        if family == "tangent" and probe.by_position and probe.positions is not None:
            return probe.positions.singles(probe.batch, count)
        batch, targets = probe.take(count)
        if family == "gradient" and probe.groups is not None:
            return batch, probe.groups.take(count)
        return batch, targets

    def row_count(self, family: str) -> int:
        """Number of rows of features that a family uses: positions or examples."""
        if not self.probe.by_position:
            return self.count(family)
        unit = "kernel" if family == "gradient" else family  # the gradient size counts examples
        return self.plan.size(unit, self.probe.row_count)

    def row_targets(self, family: str) -> Targets:
        """Targets of the rows of features of a family."""
        return self.probe.rows.take(self.row_count(family))

    def inputs(self, family: str) -> LayerFeatures | None:
        """The inputs as features; None if they are not numbers, or rows are positions."""
        return None if self.probe.by_position else input_features(self.examples(family)[0])

    @property
    def held_out_targets(self) -> Targets | None:
        """Targets of the held-out examples whose features were read; None if there are none."""
        count = min((len(entry) for entry in self.collected.values()), default=0) - self.rows_read
        if self.held_out_read is None or self.probe.by_position or count < 2:
            return None
        return self.held_out_read.rows.take(count)

    def raw_inputs(self) -> LayerFeatures | None:
        """The raw inputs of the examples whose features were read.

        Numbers are unchanged and tokens are counted; None for other inputs.
        """
        if self.probe.by_position or self.given is not None:
            return None
        batch = self.probe.take(self.rows_read)[0]
        if self.held_out_targets is not None and self.held_out_read is not None:
            count = next(iter(self.collected.values()))
            batch = joined(batch, self.held_out_read.take(len(count) - self.rows_read)[0])
        return input_features(batch) or token_counts(batch)

    @property
    def task(self) -> PositionTask | None:
        """The task, if it has labels per position."""
        return None if self.probe.positions is None else self.probe.positions.task

    @property
    def pool(self) -> Pool:
        """How the output of a layer becomes one or several rows, equally in all layers."""
        if self.task is not None and self.probe.by_position:
            return self.task.pool
        return self.options.reduction

    @property
    def pool_name(self) -> str:
        """The pooling in words."""
        return "positions" if self.probe.by_position else self.options.describe()["pool"]

    def _readout(self, of_loss: bool) -> str | Readout | None:
        """The function from the output of the model to rows of losses or of outputs."""
        if self.task is None:
            return self.options.readout
        return self.task.loss_readout if of_loss else self.task.tangent_readout

    @contextmanager
    def step(self, stage: str, layer: Layer | None = None) -> Iterator[None]:
        """Time one step and report progress."""
        if self.progress is not None:
            self.progress.begin(stage, "" if layer is None else layer.name)
        with self.record.timed(stage):
            yield

    @property
    def held_out_read(self) -> Probe | None:
        """Held-out examples whose features are read after those of the probe set."""
        others = self.held_out
        if others is None or self.task is not None or self.given is not None:
            return None
        return others if others.rows.task is self.probe.rows.task else None

    @_collector
    def collect_features(self) -> None:
        """Read the features of all layers, for the largest number of examples of any family.

        Held-out examples follow those of the probe set. If a layer is wider than the number of
        examples, its features are kept only if those of all layers fit into little memory.
        Otherwise their inner products are kept. Outputs of the model come from the same pass.
        """
        readers = set(FEATURE_READERS) & set(self.options.families)
        batch, _ = self.examples(max(sorted(readers), key=self.count))
        positions = self.probe.positions if self.probe.by_position else None
        if positions is not None:
            batch = self.probe.batch
        if self.given is not None:
            rows = {name: part[: len(batch)] for name, part in self.given.items()}
            kept = {name: LayerFeatures(part.shape[1], part) for name, part in rows.items()}
            self.collected.update({name: part.settled() for name, part in kept.items()})
            return
        own = self.rows_read = len(batch)
        if self.held_out_read is not None and self.plan.curves:
            batch = joined(
                batch,
                self.held_out_read.take(self.plan.size("held_out", len(self.held_out_read)))[0],
            )
        layers, pool = self.layout.with_features(), self.pool
        wide = [layer for layer in layers if layer.features > len(batch)]
        most = min(_KEPT, self.plan.free_bytes // 4)
        if positions is not None or 4 * len(batch) * sum(la.features for la in wide) <= most:
            wide = []
        narrow = [layer for layer in layers if layer not in wide]
        found: dict[str, LayerFeatures] = {}
        if narrow:
            reader = None if self.layout.outputs is None else self._reader()
            if self.task is not None and self.task.labels.shift and positions is None:
                # Losses use the original mask, so they need their own pass.
                batch, reader = replace(batch, mask=self.task.behind_first(batch)), None
            rows = self._shared_rows(batch, narrow, pool, reader)
            if self.model_outputs and len(batch) > own:
                outputs = self.model_outputs.pop()
                self.model_outputs.append(outputs[:own])
                self.outputs_of_held_out.append(outputs[own:])
            if positions is not None:
                most = max(map(self.row_count, readers))
                rows = {name: positions.rows(part, most) for name, part in rows.items()}
            found |= {name: LayerFeatures(part.shape[1], part) for name, part in rows.items()}
        if wide:
            found |= self._shared_grams(batch, wide)
        order = [layer.name for layer in layers if layer.name in found]
        self.collected.update({name: found[name].settled() for name in order})

    def features(self, family: str) -> Iterator[tuple[Layer, LayerFeatures]]:
        """Features of all layers on the examples of a family."""
        for name, entry in self.collected.items():
            yield self.layout[name], entry.first(self.row_count(family))

    def _shared_rows(
        self, batch: Batch, layers: Sequence[Layer], pool: Pool, reader: OutputReader | None = None
    ) -> dict[str, Tensor]:
        """Features of layers, and outputs if they are read, in the first process.

        Every process passes some of the examples through the model.
        """
        processes, part = self.processes, self.processes.part(len(batch))
        own: Mapping[str, Tensor] = {}
        outputs: Tensor | None = None
        with processes.together():
            if part.stop > part.start:
                own = found = features(
                    self.model,
                    batch if processes.alone else batch.take(part),
                    [layer.name for layer in layers],
                    pool,
                    read={layer.name: layer.point for layer in layers},
                    batch_size=self.plan.batch_size,
                    outputs=reader,
                    check=self.plan.check,
                )
                outputs = found.outputs
        if processes.alone:
            self.model_outputs.extend([] if outputs is None else [outputs])
            return dict(own)
        nothing = next(self.model.parameters(), torch.empty(0)).new_empty(0)
        kept: dict[str, Tensor] = {}
        for layer in layers:
            parts = processes.collect(own.get(layer.name, nothing), 0)
            if parts:
                kept[layer.name] = _rejoined(parts)
        if reader is not None:
            parts = processes.collect(nothing if outputs is None else outputs, 0)
            self.model_outputs.extend([_rejoined(parts)] if parts else [])
        return kept

    def _shared_grams(self, batch: Batch, layers: Sequence[Layer]) -> dict[str, LayerFeatures]:
        """Inner products of the features of wide layers, in the first process.

        Every process computes those of some of the layers.
        """
        processes, device = self.processes, next(self.model.parameters()).device
        owned = layers[processes.rank :: processes.size]
        own: dict[str, tuple[int, Tensor]] = {}
        with processes.together():
            if owned:
                limit = self.plan.free_bytes // 2
                size = limit // (8 * sum(layer.width for layer in owned))
                grams = feature_grams(
                    self.model,
                    batch,
                    [layer.name for layer in owned],
                    self.pool,
                    read={layer.name: layer.point for layer in owned},
                    batch_size=max(1, min(self.plan.batch_size, size)),
                    memory_limit=limit,
                    check=self.plan.check,
                )
                own = {name: (grams.widths[name], grams[name]) for name in grams}
        kept: dict[str, LayerFeatures] = {}
        for place, layer in enumerate(layers):
            known = own.pop(layer.name, None)
            if known is not None and not processes.alone:
                known = known[0], known[1].cpu()  # another process may use another device
            width, products = processes.spread(known, processes.owner(place))
            if processes.rank == 0:
                kept[layer.name] = LayerFeatures(width, None, products.to(device))
        return kept

    def _reader(self) -> OutputReader:
        if self.task is not None:
            return self.task.reader
        readout = resolve_readout(self.options.readout)
        return lambda returned, batch: read_outputs(returned, batch, readout)

    def outputs(self, batch: Batch) -> Float[Tensor, "n c"]:
        """Outputs for the first examples, from the pass over the features.

        If that pass has too few examples, or kept inner products only, the model runs once more.
        """
        for outputs in self.model_outputs:
            if len(outputs) >= len(batch):
                return outputs[: len(batch)]
        self.model_outputs.append(self.forward(len(batch)))
        return self.model_outputs[-1]

    def held_out_outputs(self) -> Float[Tensor, "m c"]:
        """Outputs for all held-out examples."""
        assert self.held_out is not None
        count = len(self.held_out)
        if not self.outputs_of_held_out or len(self.outputs_of_held_out[0]) < count:
            self.outputs_of_held_out[:] = [self.forward(count, held_out=True)]
        return self.outputs_of_held_out[0]

    @_collector
    def forward(self, count: int, *, held_out: bool = False) -> Float[Tensor, "n c"]:
        """Outputs for the first examples or the first held-out ones, from a separate pass.

        Every process passes some of the examples through the model.
        """
        probe = self.held_out if held_out else self.probe
        assert probe is not None
        batch, read = probe.batch.take(slice(0, count)), self._reader()
        processes, part = self.processes, self.processes.part(len(batch))
        device = next(self.model.parameters()).device
        own = torch.empty(0, device=device)
        with processes.together(), torch.no_grad(), exact_arithmetic(device):
            if part.stop > part.start:
                few = batch if processes.alone else batch.take(part)
                batches = iterate_batches(few, batch_size=self.plan.batch_size)
                own = torch.cat([read(some.run(self.model), some) for some in batches])
        parts = processes.collect(own, 0)
        return _rejoined(parts) if parts else own

    @_collector
    def heat_maps(
        self, layers: Sequence[str], order: Sequence[int], together: int
    ) -> dict[str, tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]]:
        """Forward and backward kernels of linear layers, on the first examples in a given order.

        Every process computes those of some of the layers. Layers whose kernels fail are left out.

        Args:
            layers: names of the layers.
            order: numbers of the examples.
            together: number of layers in one pass.
        """
        processes = self.processes
        batch = self.examples("tangent", len(order))[0].take(torch.tensor(order))
        owned = layers[processes.rank :: processes.size]
        own: dict[str, tuple[Tensor, Tensor]] = {}
        with processes.together():
            for start in range(0, len(owned), together):
                with suppress(TheodoliteError):  # a failed picture must not lose the numbers
                    own |= forward_backward_kernels(
                        self.model,
                        batch,
                        owned[start : start + together],
                        readout=self.options.readout,
                    )
        pictures = {name: (there.cpu(), back.cpu()) for name, (there, back) in own.items()}
        found = {name: pair for part in processes.gather(pictures) for name, pair in part.items()}
        return {name: found[name] for name in layers if name in found}

    @_collector
    def tangent_kernels(
        self, layers: Sequence[Layer], family: str, count: int, *, of_loss: bool = False
    ) -> TangentKernels:
        """Tangent kernels for the examples of a family: of the outputs, or of every loss."""
        batch, _ = self.examples(family, count)
        columns = 1 if of_loss else self.layout.outputs or 1
        return shared_tangent_kernels(
            self.model,
            batch,
            {layer.name: layer.owned for layer in layers},
            self.processes,
            readout=self._readout(of_loss=of_loss),
            **self.plan.kernel_options(
                self.options,
                self.layout,
                columns,
                capped=self.task is not None,
                launched=next(self.model.parameters()).is_cuda,
            ),
            **({"outputs": self.loss} if of_loss else {}),
            check=self.plan.check,
            progress=self._within,
        )

    @_collector
    def tangent_sketch(self, layers: Sequence[Layer]) -> TangentAlignments:
        """Alignments from random vectors."""
        batch, known = self.examples("tangent")
        columns = self.layout.outputs or 1
        return tangent_alignments(
            self.model,
            replace(batch, targets=known.outputs(columns)),
            layers={layer.name: layer.owned for layer in layers},
            method="sketch",
            sketch_vectors=self.options.sketch_vectors,
            readout=self._readout(of_loss=False),
            **self.plan.kernel_options(
                self.options, self.layout, columns, capped=self.task is not None
            ),
            generator=torch.Generator().manual_seed(self.options.seed),
            processes=self.processes,
        )

    @_collector
    def gradient_sums(self, layers: Sequence[Layer]) -> GradientAlignment:
        """Sums of the gradients of single examples, within classes and overall.

        Sums of unit vectors need three times the memory and are left out if they do not fit.

        Raises:
            MemoryLimitError: If the sums alone, or one example, do not fit.
        """
        batch, targets = self.examples("gradient")
        stiffness = self.options.details
        try:
            rows = self._backward_batch(stiffness)
        except MemoryLimitError:
            stiffness, rows = False, self._backward_batch(False)
        return gradient_alignment(
            self.model,
            batch,
            loss=self.loss,
            labels=targets.labels,
            layers={layer.name: layer.owned for layer in layers},
            readout=self._readout(of_loss=True),
            stiffness=stiffness,
            batch_size=rows,
            check=self.plan.check,
            progress=self._within,
            processes=self.processes,
        )

    @property
    def loss(self) -> Loss:
        """A loss with one number per example: the user's loss, or the default for the targets."""
        if self.probe.positions is not None:
            return first_output  # the readout returns losses
        return self.probe.targets.loss(self.options.loss)

    def _backward_batch(self, stiffness: bool) -> int:
        """Number of examples in one backward pass within the memory limit."""
        sizes = [4 * p.numel() for p in self.model.parameters() if p.requires_grad]
        weights = sum(sizes)
        fixed = _SUMS * weights
        each = _KEPT_COPIES * 4 * sum(layer.width for layer in self.layout.layers)
        passing = self.layout.footprint  # blocks keep more than their outputs
        each = max(each, 2 * passing.per_example(passing.total))
        each += _GRADIENTS * max(sizes, default=0)
        free = self.plan.free_bytes
        if self.task is not None:
            count, weights = self.count("gradient"), sum(sizes)
            each = _KEPT_RESULTS * passing.per_example(passing.total)
            if count * each + _CHECKED * weights <= free:
                return count  # a single batch needs no sums
            fixed = (_SUMS if stiffness else _PLAIN_SUMS) * weights
        if fixed + each > free:
            raise MemoryLimitError(
                f"gradients: sums of the size of the parameters take {fixed:,} bytes and one "
                f"example takes {each:,}, but {free:,} are left of memory_limit; pass a larger "
                "memory_limit"
            )
        return max(1, min(self.plan.batch_size, (free - fixed) // max(each, 1)))

    @_collector
    def input_moments(self, layers: Sequence[Layer]) -> dict[str, Moments | RowSample]:
        """Moments of the inputs of layers, over the examples of all processes.

        A single process keeps the inputs themselves if they have fewer entries than the sums.
        """
        own: dict[str, Moments | RowSample] = {}
        data = self._covariance_data()
        with self.processes.together():
            if data is not None:
                own = input_samples(
                    self.model,
                    data,
                    [layer.name for layer in layers],
                    batch_size=self.plan.batch_size,
                    batch_fn=self.options.batch_fn,
                    few=self.keeps_inputs,
                )
        if self.processes.alone:
            return own
        sums = {name: part for name, part in own.items() if isinstance(part, Moments)}
        device = next(self.model.get_submodule(layers[0].name).parameters()).device
        names = [layer.name for layer in layers]
        return dict(shared_moments(self.processes, sums, names, device))

    def _covariance_data(self) -> Any:
        """All the data, or the requested part of the probe set; only this process's part."""
        processes, shard = self.processes, self.probe.shard
        everything = self.plan.sizes["covariance"] is None
        if processes.alone:
            return self.data if everything else self.examples("covariance")[0]
        if not everything:
            batch, _ = self.examples("covariance")
            part = processes.part(len(batch))
            return batch.take(part) if part.stop > part.start else None
        if not shard.copies:
            return self.data if shard.own else None
        size, convert = self.plan.batch_size, self.options.batch_fn
        batches = iterate_batches(self.data, batch_size=size, batch_fn=convert)
        return list(islice(batches, processes.rank, None, processes.size)) or None

    def _within(self, share: float, _what: str = "") -> None:
        """Report the progress of a long pass; processes progress at different speeds."""
        if self.progress is not None and self.processes.alone:
            self.progress.within(share)


def _matrix(model: nn.Module, layer: Layer) -> tuple[int, int, int] | None:
    """Positions, rows and columns of a layer's matrix; None if it has no matrix."""
    weight = getattr(model.get_submodule(layer.name), "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim < 2 or not layer.width:
        return None
    return max(1, layer.width // len(weight)), len(weight), weight[0].numel()


def _rejoined(parts: Sequence[Tensor]) -> Tensor:
    """Join the examples of all processes; some may have none."""
    given = [rows for rows in parts if rows.numel() or rows.ndim > 1]
    return given[0] if len(given) == 1 else torch.cat(given)


def joined(first: Batch, second: Batch) -> Batch:
    """Join the examples of two batches; the first alone if their shapes differ."""
    try:
        return whole_batch([first, replace(second, positions=first.positions)])
    except ShapeError:
        return first


def side_by_side(entries: Iterable[tuple[Layer, S]], most: int) -> Iterator[list[tuple[Layer, S]]]:
    """Groups of layers whose inner products together take at most this number of bytes.

    One call for a stack of small matrices takes as long as one call for a single matrix.
    """
    return grouped(entries, lambda group: len(group) * 8 * len(group[-1][1]) ** 2 <= most)


def grouped(entries: Iterable[T], fits: Callable[[list[T]], bool]) -> Iterator[list[T]]:
    """Groups of neighbours, each as long as it fits, with at least one entry."""
    group: list[T] = []
    for entry in entries:
        if group and not fits([*group, entry]):
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


def input_features(batch: Batch) -> LayerFeatures | None:
    """The inputs as features; None where they are not numbers with one row per example."""
    values = [*batch.args, *batch.kwargs.values()]
    first = values[0] if values else None
    if not isinstance(first, Tensor) or first.is_nested or not first.is_floating_point():
        return None
    rows = first.flatten(1)
    return LayerFeatures(rows.shape[1], rows)


def token_counts(batch: Batch) -> LayerFeatures | None:
    """Counts of every token in each example, without padding; None without tokens."""
    values = [batch.kwargs.get("input_ids"), *batch.args, *batch.kwargs.values()]
    tokens = next((value for value in values if isinstance(value, Tensor)), None)
    if tokens is None or tokens.is_nested or tokens.is_floating_point() or tokens.ndim != 2:
        return None
    known, places = torch.unique(tokens, return_inverse=True)
    ones = torch.ones(tokens.shape, device=tokens.device)
    if batch.mask is not None and batch.mask.shape == tokens.shape:
        ones = batch.mask.to(ones)
    counts = torch.zeros(len(tokens), len(known), device=tokens.device)
    return LayerFeatures(len(known), counts.scatter_add_(1, places, ones))


def why_undefined(gram: Float[Tensor, "n n"], otherwise: Reason) -> Reason:
    """Why a number of features is undefined; a diverged run is the first reason."""
    finite = bool(gram.isfinite().all())
    return otherwise if finite else reason(Note.NOT_FINITE)
