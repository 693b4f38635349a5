"""Features of every layer on the probe: what representation, kernel and feature contrast read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite._distributed import Processes
from theodolite.engine import Batch, OutputReader, Pool, feature_grams, features
from theodolite.linalg import eps_of
from theodolite.surveys.layers import Layer
from theodolite.surveys.options import SurveyOptions
from theodolite.surveys.plan import SurveyPlan

__all__ = [
    "Collected",
    "LayerFeatures",
    "input_features",
    "read_features",
    "side_by_side",
    "spectrum_features",
    "why_undefined",
]

_SMALL = 512  # examples
_STACKED = 2**23  # bytes of inner products that are worked on side by side
_KEPT = 2**28  # bytes of features that are kept rather than multiplied out batch by batch


@dataclass(frozen=True)
class LayerFeatures:
    """Features of one layer: themselves where they are narrow, else their inner products.

    Args:
        width: number of features.
        rows: the features.
        products: inner products of all pairs of examples, where the features were not kept.
        rounding: of the dtype the features came in, where the products are finer.
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
    def eps(self) -> float:
        """Rounding of the dtype in which the features came."""
        return eps_of(self._kept) if self.rounding is None else self.rounding

    @cached_property
    def gram(self) -> Float[Tensor, "n n"]:
        """Inner products of all pairs of examples, in float64."""
        if self.products is not None:
            return self.products.double()
        assert self.rows is not None
        wide = self.rows.double()
        return wide @ wide.mT

    def lengths(self) -> Float[Tensor, " n"]:
        """Norm of every example's features, in float64."""
        if self.rows is not None:
            return self.rows.double().norm(dim=1)
        return self.gram.diagonal().clamp(min=0.0).sqrt()

    def take(self, indices: Tensor) -> "LayerFeatures":
        """Some of the examples."""
        if self.rows is not None and (self.width < len(self) or "gram" not in vars(self)):
            return LayerFeatures(self.width, self.rows[indices.to(self.rows.device)])
        where = indices.to(self.gram.device)
        return LayerFeatures(self.width, None, self.gram[where][:, where], self.eps)

    def first(self, count: int) -> "LayerFeatures":
        """The first examples; what follows from them is remembered only while it is small."""
        if count < len(self):
            return self.take(torch.arange(count))
        if count <= _SMALL:
            return self
        return LayerFeatures(self.width, self.rows, self.products, self.rounding)

    def settled(self) -> "LayerFeatures":
        """Few examples on a GPU move to the CPU, which decomposes small matrices faster."""
        if self._kept.device.type == "cpu" or len(self) > _SMALL:
            return self
        if self.rows is not None and self.width <= len(self):
            return LayerFeatures(self.width, self.rows.cpu())
        return LayerFeatures(self.width, None, self.gram.cpu(), self.eps)


@dataclass(frozen=True)
class Collected:
    """What a pass over the probe leaves.

    Args:
        features: layer -> its features, of this process's layers.
        outputs: of the model, where they were asked for and the pass kept features; in the first
            process only.
    """

    features: Mapping[str, LayerFeatures]
    outputs: Float[Tensor, "n c"] | None = None


def read_features(
    model: nn.Module,
    batch: Batch,
    layers: Sequence[Layer],
    options: SurveyOptions,
    plan: SurveyPlan,
    processes: Processes,
    outputs: OutputReader | None = None,
) -> Collected:
    """Features of all layers in one or two passes over the probe.

    Features of layers wider than the probe are kept only if all of them fit into little memory.
    Several processes get those of their own layers: kept features come from everybody's part of
    the probe, what is wider is multiplied out by its owner.
    """
    pool: Pool = options.pool or "flatten"
    wide = [layer for layer in layers if pool == "flatten" and layer.width > len(batch)]
    if 4 * len(batch) * sum(layer.width for layer in wide) <= min(_KEPT, plan.free_bytes // 4):
        wide = []
    narrow = [layer for layer in layers if layer not in wide]
    found: dict[str, LayerFeatures] = {}
    answers = None
    if narrow:
        kept, answers = _shared_rows(model, batch, narrow, pool, plan, processes, outputs)
        found |= {name: LayerFeatures(rows.shape[1], rows) for name, rows in kept.items()}
    own = [layer for layer in wide if processes.owner(layer.index) == processes.rank]
    if own:
        limit = plan.free_bytes // 2
        size = max(1, min(plan.batch_size, limit // (8 * sum(layer.width for layer in own))))
        read, names = {layer.name: layer.point for layer in own}, [layer.name for layer in own]
        grams = feature_grams(
            model, batch, names, pool, read=read, batch_size=size, memory_limit=limit
        )
        found |= {name: LayerFeatures(grams.widths[name], None, grams[name]) for name in grams}
    order = [layer.name for layer in layers if layer.name in found]
    return Collected({name: found[name].settled() for name in order}, answers)


def spectrum_features(
    model: nn.Module,
    batch: Batch,
    layers: Sequence[Layer],
    options: SurveyOptions,
    plan: SurveyPlan,
    processes: Processes,
    known: Mapping[str, LayerFeatures],
) -> dict[str, LayerFeatures]:
    """Features for spectra: maps by their largest value per channel, vectors as they are."""
    if options.pool is not None:
        return dict(known)
    by_name = {layer.name: layer for layer in layers}
    pooled = {name: _largest(entry, by_name[name].shape or ()) for name, entry in known.items()}
    lacking = [name for name, entry in pooled.items() if entry is None]
    everywhere = {name for names in processes.gather(lacking) for name in names}
    missing = [layer for layer in layers if layer.name in everywhere]
    if missing:
        kept, _ = _shared_rows(model, batch, missing, "max", plan, processes)
        pooled |= {name: LayerFeatures(rows.shape[1], rows) for name, rows in kept.items()}
    return {name: entry for name, entry in pooled.items() if entry is not None}


def _largest(entry: LayerFeatures, shape: tuple[int, ...]) -> LayerFeatures | None:
    """Vectors as they are, kept maps by their largest value; None where the model must run."""
    if len(shape) < 2:
        return entry
    if entry.rows is None or len(shape) < 3:  # (tokens, channels) and (channels, steps) look alike
        return None
    rows = entry.rows.reshape(len(entry), shape[0], -1).amax(2)
    return LayerFeatures(rows.shape[1], rows)


def _shared_rows(
    model: nn.Module,
    batch: Batch,
    layers: Sequence[Layer],
    pool: Pool,
    plan: SurveyPlan,
    processes: Processes,
    outputs: OutputReader | None = None,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Features of this process's layers, to which all processes contribute some examples.

    Beside them the model's outputs, in the first process, where they are read.
    """
    part = processes.part(len(batch))
    own: Mapping[str, Tensor] = {}
    answers: Tensor | None = None
    nothing = next(model.parameters(), torch.empty(0)).new_empty(0)
    with processes.together():
        if part.stop > part.start:
            own = found = features(
                model,
                batch if processes.alone else batch.take(part),
                [layer.name for layer in layers],
                pool,
                read={layer.name: layer.point for layer in layers},
                batch_size=plan.batch_size,
                outputs=outputs,
            )
            answers = found.outputs
    if processes.alone:
        return dict(own), answers
    kept: dict[str, Tensor] = {}
    for layer in layers:
        parts = processes.collect(own.get(layer.name, nothing), processes.owner(layer.index))
        if parts:
            kept[layer.name] = _rejoined(parts)
    if outputs is None:
        return kept, None
    parts = processes.collect(nothing if answers is None else answers, 0)
    return kept, _rejoined(parts) if parts else None


def _rejoined(parts: Sequence[Tensor]) -> Tensor:
    """The examples of all processes, of which some may have had none."""
    return torch.cat([rows for rows in parts if rows.numel() or rows.ndim > 1])


def side_by_side(
    entries: Iterable[tuple[Layer, LayerFeatures]],
) -> Iterator[list[tuple[Layer, LayerFeatures]]]:
    """Layers whose inner products are small enough to be worked on together.

    A call for a stack of small matrices costs what one for a single matrix does.
    """
    group: list[tuple[Layer, LayerFeatures]] = []
    for layer, entry in entries:
        fits = (len(group) + 1) * 8 * len(entry) ** 2 <= _STACKED
        if group and not fits:
            yield group
            group = []
        group.append((layer, entry))
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


def why_undefined(gram: Float[Tensor, "n n"], otherwise: str) -> str:
    """Why a number of features is undefined: a diverged run first of all."""
    finite = bool(gram.isfinite().all())
    return otherwise if finite else "the features are not finite: the run has diverged"
