"""The model on the bench: what all families read, computed once and on demand."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.engine import OutputReader
from theodolite.engine.batches import Batch, iterate_batches
from theodolite.engine.readouts import read_outputs, resolve_readout
from theodolite.engine.state import exact_arithmetic
from theodolite.surveys._draws import Draws
from theodolite.surveys._layers import Layer, Layout
from theodolite.surveys._probe import Probe
from theodolite.surveys._progress import Steps, Watch
from theodolite.surveys._settings import FEATURE_READERS, Loss, Settings
from theodolite.surveys._sheet import Sheet
from theodolite.surveys._tasks import Task, example_loss
from theodolite.surveys._views import Held, View, read_views, spectrum_views

__all__ = ["Bench", "model_outputs", "own_layers", "owners", "within_step"]


@dataclass(frozen=True)
class Bench:
    """A model in evaluation mode with its probe.

    Args:
        model: unwrapped.
        data: all that was given, for sums over everything.
        probe: the examples.
        layout: the layers.
        settings: what was asked for.
        draws: permutations and half-samples.
        steps: is told what is being done.
    """

    model: nn.Module
    data: Any
    probe: Probe
    layout: Layout
    settings: Settings
    draws: Draws
    steps: Steps

    def count(self, family: str) -> int:
        """Examples that a family takes."""
        return self.settings.size(family, len(self.probe))

    def examples(self, family: str) -> tuple[Batch, Task]:
        """The examples of a family with their targets."""
        return self.probe.take(self.count(family))

    def columns(self, family: str) -> Float[Tensor, "n c"]:
        """Targets of a family's examples as columns."""
        columns = self.examples(family)[1].columns
        assert columns is not None  # the family would not run without
        return columns

    @property
    def loss(self) -> Loss:
        """The user's loss, or the one that goes with the targets."""
        return example_loss(self.probe.task.kind, self.settings.loss)

    @cached_property
    def held(self) -> Held:
        """Features of this process's layers, for as many examples as any family takes.

        Where the loss is wanted and the model gives rows, its outputs come from the same pass.
        """
        readers = set(FEATURE_READERS) & set(self.settings.families)
        family = max(sorted(readers), key=self.count)
        batch, _ = self.examples(family)
        wanted = "gradient" in readers and self.layout.outputs is not None
        reading = _reading(self.settings) if wanted else None
        return read_views(self.model, batch, self.layout, self.settings, reading)

    def views(self, family: str) -> Iterator[tuple[Layer, View]]:
        """Features of this process's layers on the examples of a family."""
        count = self.count(family)
        for name, view in self.held.views.items():
            whole = len(view) == count
            yield self.layout[name], view.fresh() if whole else view.take(torch.arange(count))

    def spectrum_views(self) -> Iterator[tuple[Layer, View]]:
        """Features of this process's layers as spectra want them."""
        batch, _ = self.examples("kernel")
        held = {layer.name: view for layer, view in self.views("kernel")}
        pooled = spectrum_views(self.model, batch, self.layout, self.settings, held)
        for name, view in pooled.items():
            yield self.layout[name], view.fresh()

    @contextmanager
    def step(self, sheet: Sheet, family: str, layer: Layer | None = None) -> Iterator[None]:
        """One piece of work, timed and reported."""
        self.steps.begin(family, "" if layer is None else layer.name)
        with sheet.timed(family):
            yield


def model_outputs(bench: Bench, batch: Batch) -> Float[Tensor, "n c"]:
    """Outputs for the first examples, in the first process; from the pass over the features.

    Where all layers are so wide that it kept their inner products only, the model runs again.
    """
    if bench.held.outputs is not None:
        return bench.held.outputs[: len(batch)]
    parts = iterate_batches(batch, batch_size=bench.settings.batch_size)
    read = _reading(bench.settings)
    with torch.no_grad(), exact_arithmetic(next(bench.model.parameters()).device):
        return torch.cat([read(part.run(bench.model), part) for part in parts])


def _reading(settings: Settings) -> OutputReader:
    readout = resolve_readout(settings.readout)
    return lambda answer, batch: read_outputs(answer, batch, readout)


def within_step(bench: Bench) -> Watch | None:
    """For a long step to tell how far it is; several processes are not at the same place."""
    return bench.steps.within if bench.settings.processes.alone else None


def owners(bench: Bench, layers: Sequence[Layer]) -> dict[str, int]:
    """Layer -> process whose work it is."""
    return {layer.name: bench.settings.processes.owner(layer.index) for layer in layers}


def own_layers(bench: Bench, layers: Sequence[Layer]) -> list[Layer]:
    """Layers whose rows are this process's work."""
    processes = bench.settings.processes
    return [layer for layer in layers if processes.owner(layer.index) == processes.rank]
