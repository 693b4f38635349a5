"""What a measurement is made on, and what families read of it: collected once, by all processes.

Families see a single model and a single probe. That several processes share the work is known here
alone: each collector gives a process what belongs to its own layers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from theodolite._distributed import ALONE, Processes
from theodolite.engine import (
    Batch,
    GradientAlignment,
    OutputReader,
    TangentAlignments,
    TangentKernels,
    exact_arithmetic,
    gradient_alignment,
    input_moments,
    iterate_batches,
    read_outputs,
    resolve_readout,
    shared_moments,
    shared_tangent_kernels,
    tangent_alignments,
)
from theodolite.errors import MemoryLimitError
from theodolite.linalg import Moments
from theodolite.surveys.features import (
    Collected,
    LayerFeatures,
    read_features,
    spectrum_features,
)
from theodolite.surveys.layers import Layer, Layout
from theodolite.surveys.options import FEATURE_READERS, Loss, SurveyOptions
from theodolite.surveys.plan import SurveyPlan
from theodolite.surveys.probe import Probe
from theodolite.surveys.progress import Progress
from theodolite.surveys.record import RecordBuilder
from theodolite.surveys.targets import Targets

__all__ = ["Draws", "SurveyContext"]

_SUMS = 20  # float32 copies of the parameters: sums over examples and unit vectors, in float64
_GRADIENTS = 4  # copies of an example's gradient
_KEPT_COPIES = 12  # of a layer's output: norms, activations and gradients beside it


@dataclass(frozen=True)
class Draws:
    """Random numbers behind chance levels and errors, the same for every layer and family.

    Any number of leading examples can be permuted with the same numbers.

    Args:
        permuted: a number per permutation and example; their order is the permutation.
        halved: a number per half-sample and example.
    """

    permuted: Float[Tensor, "b n"]
    halved: Float[Tensor, "h n"]

    @classmethod
    def of(
        cls, examples: int, permutations: int, half_samples: int, generator: torch.Generator
    ) -> "Draws":
        """Draw them all."""
        permuted, halved = (
            torch.rand(count, examples, generator=generator, device=generator.device).cpu()
            for count in (permutations, half_samples)
        )
        return cls(permuted, halved)

    def orders(self, count: int) -> Int[Tensor, "b m"]:
        """Permutations of the first examples."""
        return self.permuted[:, :count].argsort(1)

    def halves(self, count: int) -> Int[Tensor, "h k"]:
        """Halves of the first examples, without repetition, each in increasing order.

        The spread over halves estimates the standard error itself: a sample of n of which half is
        deleted has the jackknife's factor (n - d) / d = 1. Bootstrap samples repeat examples,
        which measures that leave out an example's pairing with itself cannot bear.
        """
        return self.halved[:, :count].argsort(1)[:, : count // 2].sort(1).values

    def shuffled(self, columns: Float[Tensor, "m c"]) -> Float[Tensor, "b m c"]:
        """Targets in the order of every permutation."""
        return columns[self.orders(len(columns)).to(columns.device)]


@dataclass(frozen=True)
class SurveyContext:
    """A model in evaluation mode with its probe.

    Args:
        model: unwrapped.
        data: all that was given, for sums over everything.
        probe: the examples.
        layout: the layers.
        options: what the user chose.
        plan: what the code chose.
        loss: with one number per example.
        draws: permutations and half-samples.
        progress: is told what is being done.
        record: is told how long it takes.
        processes: those that take part.
        remembered: what later measurements of the same model may use again.
        collected: features and outputs, once :meth:`collect_features` was called.
    """

    model: nn.Module
    data: Any
    probe: Probe
    layout: Layout
    options: SurveyOptions
    plan: SurveyPlan
    loss: Loss
    draws: Draws
    progress: Progress
    record: RecordBuilder
    processes: Processes = ALONE
    remembered: dict[str, Any] = field(default_factory=dict)
    collected: dict[str, Collected] = field(default_factory=dict)

    def count(self, family: str) -> int:
        """Examples that a family takes."""
        return self.plan.size(family, len(self.probe))

    def examples(self, family: str) -> tuple[Batch, Targets]:
        """The examples of a family with their targets."""
        return self.probe.take(self.count(family))

    @contextmanager
    def step(self, stage: str, layer: Layer | None = None) -> Iterator[None]:
        """One piece of work, timed and told."""
        self.progress.begin(stage, "" if layer is None else layer.name)
        with self.record.timed(stage):
            yield

    def own(self, layers: Sequence[Layer]) -> list[Layer]:
        """Layers whose rows are this process's work."""
        processes = self.processes
        return [layer for layer in layers if processes.owner(layer.index) == processes.rank]

    def everywhere(self, values: Mapping[int, Any]) -> dict[int, Any]:
        """The entries of all processes, in increasing order of their keys."""
        parts = self.processes.gather(dict(values))
        return dict(sorted(item for part in parts for item in part.items()))

    def collect_features(self) -> None:
        """Read the features of this process's layers, as many examples as any family takes.

        Where the loss is wanted and the model gives rows, its outputs come from the same pass.
        """
        readers = set(FEATURE_READERS) & set(self.options.families)
        batch, _ = self.examples(max(sorted(readers), key=self.count))
        wanted = "gradient" in readers and self.layout.outputs is not None
        self.collected["probe"] = read_features(
            self.model,
            batch,
            self.layout.with_features(),
            self.options,
            self.plan,
            self.processes,
            self._reader() if wanted else None,
        )

    def features(self, family: str) -> Iterator[tuple[Layer, LayerFeatures]]:
        """Features of this process's layers on the examples of a family."""
        for name, entry in self.collected["probe"].features.items():
            yield self.layout[name], entry.first(self.count(family))

    def spectrum_features(self) -> Iterator[tuple[Layer, LayerFeatures]]:
        """Features of this process's layers as spectra want them, on those of the kernel family."""
        batch, _ = self.examples("kernel")
        pooled = spectrum_features(
            self.model,
            batch,
            self.layout.with_features(),
            self.options,
            self.plan,
            self.processes,
            {layer.name: entry for layer, entry in self.features("kernel")},
        )
        for name, entry in pooled.items():
            yield self.layout[name], entry.first(len(batch))

    def _reader(self) -> OutputReader:
        readout = resolve_readout(self.options.readout)
        return lambda answer, batch: read_outputs(answer, batch, readout)

    def outputs(self, batch: Batch) -> Float[Tensor, "n c"]:
        """Outputs for the first examples, in the first process; from the pass over the features.

        Where that pass has none, because all layers are so wide that it kept their inner products
        only, the model runs again.
        """
        collected = self.collected.get("probe")
        if collected is not None and collected.outputs is not None:
            return collected.outputs[: len(batch)]
        parts = iterate_batches(batch, batch_size=self.plan.batch_size)
        read = self._reader()
        with torch.no_grad(), exact_arithmetic(next(self.model.parameters()).device):
            return torch.cat([read(part.run(self.model), part) for part in parts])

    def tangent_kernels(
        self, layers: Sequence[Layer], batch: Batch, loss: Loss | None = None
    ) -> TangentKernels:
        """Tangent kernels of this process's layers: of the outputs, or of every example's loss."""
        columns = 1 if loss is not None else self.layout.outputs or 1
        options = {} if loss is None else {"outputs": loss}
        return shared_tangent_kernels(
            self.model,
            batch,
            {layer.name: layer.owned for layer in layers},
            self._owners(layers),
            self.processes,
            readout=self.options.readout,
            **self.plan.kernel_options(self.options, self.layout, columns),
            **options,
            check=self.plan.check,
            progress=self._within,
        )

    def tangent_sketch(self, layers: Sequence[Layer], batch: Batch) -> TangentAlignments:
        """Alignments from random vectors; the batch's targets are as wide as the outputs."""
        return tangent_alignments(
            self.model,
            batch,
            layers={layer.name: layer.owned for layer in layers},
            method="sketch",
            probes=self.options.sketch_vectors,
            readout=self.options.readout,
            **self.plan.kernel_options(self.options, self.layout, self.layout.outputs or 1),
            generator=torch.Generator().manual_seed(self.options.seed),
            processes=self.processes,
        )

    def gradient_sums(self, layers: Sequence[Layer]) -> GradientAlignment:
        """Sums of the gradients of single examples, within classes and overall.

        Raises:
            MemoryLimitError: If the sums alone, or one example, do not fit.
        """
        batch, targets = self.examples("gradient")
        return gradient_alignment(
            self.model,
            batch,
            loss=self.loss,
            labels=targets.labels,
            layers={layer.name: layer.owned for layer in layers},
            readout=self.options.readout,
            stiffness=self.options.stiffness,
            batch_size=self._backward_batch(),
            check=self.plan.check,
            progress=self._within,
            processes=self.processes,
        )

    def _backward_batch(self) -> int:
        """Examples in one backward pass, so that what it keeps stays within the memory limit."""
        weights = 4 * sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        fixed = _SUMS * weights
        each = _KEPT_COPIES * 4 * sum(layer.width for layer in self.layout.layers)
        each += _GRADIENTS * weights
        free = self.plan.free_bytes
        if fixed + each > free:
            raise MemoryLimitError(
                f"gradients: sums of the size of the parameters take {fixed:,} bytes and one "
                f"example {each:,}, {free:,} are left of memory_limit; pass a larger memory_limit"
            )
        return max(1, min(self.plan.batch_size, (free - fixed) // max(each, 1)))

    def input_moments(self, layers: Sequence[Layer]) -> dict[str, Moments]:
        """Moments of the inputs of this process's layers, over everybody's examples."""
        own: dict[str, Moments] = {}
        data = self._covariance_data()
        with self.processes.together():
            if data is not None:
                own = input_moments(
                    self.model,
                    data,
                    [layer.name for layer in layers],
                    batch_size=self.plan.batch_size,
                    batch_fn=self.options.batch_fn,
                )
        device = next(self.model.get_submodule(layers[0].name).parameters()).device
        return shared_moments(self.processes, own, self._owners(layers), device)

    def _covariance_data(self) -> Any:
        """All the data, or as much of the probe as was asked for; of it this process's part."""
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

    def _owners(self, layers: Sequence[Layer]) -> dict[str, int]:
        return {layer.name: self.processes.owner(layer.index) for layer in layers}

    def _within(self, share: float, what: str = "") -> None:
        """How far a long pass is; several processes are not at the same place."""
        if self.processes.alone:
            self.progress.within(share, what)
