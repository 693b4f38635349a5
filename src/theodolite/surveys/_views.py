"""Features of every layer on the probe: what representation, kernel and feature Omega read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.engine import OutputReader, feature_grams, features
from theodolite.engine.batches import Batch
from theodolite.linalg import eps_of, numerical_rank, symmetric_eigen, thin_svd
from theodolite.measures.representation import prepare_features
from theodolite.surveys._layers import Layer, Layout
from theodolite.surveys._settings import Pool, Settings

__all__ = [
    "Basis",
    "Held",
    "View",
    "input_view",
    "read_views",
    "spectrum_views",
    "stackable",
    "why_undefined",
]

_DEFAULT_LIMIT = 2 * 2**30
_SMALL = 512  # examples
_STACKED = 2**23  # bytes of inner products that are worked on side by side
_KEPT = 2**28  # bytes of features that are kept rather than multiplied out batch by batch


@dataclass(frozen=True)
class Basis:
    """Left singular vectors and singular values of features with rows of unit length."""

    left: Float[Tensor, "n r"]
    values: Float[Tensor, " r"]
    resolved_above: float


@dataclass(frozen=True)
class View:
    """Features of one layer: themselves where they are narrow, else their inner products."""

    width: int
    rows: Float[Tensor, "n d"] | None = None
    products: Float[Tensor, "n n"] | None = None
    rounding: float | None = None  # of the dtype the features came in, where products are finer

    def __len__(self) -> int:
        held = self.products if self.rows is None else self.rows
        assert held is not None
        return len(held)

    @property
    def eps(self) -> float:
        """Rounding of the dtype in which the features came."""
        held = self.products if self.rows is None else self.rows
        assert held is not None
        return eps_of(held) if self.rounding is None else self.rounding

    @cached_property
    def gram(self) -> Float[Tensor, "n n"]:
        """Inner products of all pairs of examples, in float64."""
        if self.products is not None:
            return self.products.double()
        assert self.rows is not None
        wide = self.rows.double()
        return wide @ wide.mT

    def fresh(self) -> "View":
        """The same features; what follows from them is kept only while it is small."""
        if len(self) <= _SMALL:
            return self
        return View(self.width, self.rows, self.products, self.rounding)

    def settled(self) -> "View":
        """Few examples on a GPU move to the CPU, which decomposes small matrices faster."""
        held = self.products if self.rows is None else self.rows
        assert held is not None
        if held.device.type == "cpu" or len(self) > _SMALL:
            return self
        if self.rows is not None and self.width <= len(self):
            return View(self.width, self.rows.cpu())
        return View(self.width, None, self.gram.cpu(), self.eps)

    def take(self, indices: Tensor) -> "View":
        """Some of the examples."""
        if self.rows is not None and (self.width < len(self) or "gram" not in vars(self)):
            return View(self.width, self.rows[indices.to(self.rows.device)])
        where = indices.to(self.gram.device)
        return View(self.width, None, self.gram[where][:, where], self.eps)

    @cached_property
    def basis(self) -> Basis:
        """Singular basis of the features after every row was brought to length 1."""
        if self.rows is not None and self.width <= len(self):
            prepared = prepare_features(self.rows).features
            left, values, _ = thin_svd(prepared)
            rank = numerical_rank(values, tuple(prepared.shape), self.eps)
            return Basis(left[:, :rank], values[:rank], 0.0)
        values, vectors = symmetric_eigen(self._unit_gram())
        top = values[:1].clamp(min=0.0)
        floor = float((8 * self.eps * top).sum())
        kept = values > floor
        return Basis(vectors[:, kept], values[kept].sqrt(), floor**0.5)

    def _unit_gram(self) -> Tensor:
        norms = self.gram.diagonal().clamp(min=0.0).sqrt()
        scale = torch.where(norms > 0, 1 / norms, torch.zeros_like(norms))
        return self.gram * scale * scale.unsqueeze(1)


@dataclass(frozen=True)
class Held:
    """What a pass over the probe leaves.

    Args:
        views: layer -> its features.
        outputs: of the model, where they were asked for and the pass kept features; in the first
            process only.
    """

    views: Mapping[str, View]
    outputs: Float[Tensor, "n c"] | None = None


def read_views(
    model: nn.Module,
    batch: Batch,
    layout: Layout,
    settings: Settings,
    reading: OutputReader | None = None,
) -> Held:
    """Views of all layers that give one row per example, in one or two passes over the probe.

    Features of layers wider than the probe are kept only if all of them fit into little memory.
    Several processes get the views of their own layers: kept features come from everybody's part
    of the probe, what is wider is multiplied out by its owner.
    """
    names = layout.with_features()
    pool: Pool = settings.pool or "flatten"
    wide = [name for name in names if pool == "flatten" and _width(layout, name) > len(batch)]
    most = min(_KEPT, (settings.room or _KEPT) // 4)
    if 4 * len(batch) * sum(_width(layout, name) for name in wide) <= most:
        wide = []
    narrow = [name for name in names if name not in wide]
    found: dict[str, View] = {}
    outputs = None
    if narrow:
        owners = _owners(layout, narrow, settings)
        kept, outputs = shared_features(model, batch, owners, pool, settings, reading)
        found |= {name: View(rows.shape[1], rows) for name, rows in kept.items()}
    processes = settings.processes
    wide = [name for name in wide if processes.owner(layout[name].index) == processes.rank]
    if wide:
        limit = (settings.room or _DEFAULT_LIMIT) // 2
        each = 4 * sum(_width(layout, name) for name in wide)
        size = max(1, min(settings.batch_size, limit // (2 * each)))
        grams = feature_grams(
            model, batch, wide, pool, read="raw", batch_size=size, memory_limit=limit
        )
        found |= {name: View(grams.widths[name], products=grams[name]) for name in grams}
    return Held({name: found[name].settled() for name in names if name in found}, outputs)


def spectrum_views(
    model: nn.Module,
    batch: Batch,
    layout: Layout,
    settings: Settings,
    views: Mapping[str, View],
) -> dict[str, View]:
    """Views for spectra: maps by their largest value per channel, vectors as they are."""
    if settings.pool is not None:
        return dict(views)
    pooled = {name: _largest(view, layout[name].shape or ()) for name, view in views.items()}
    lacking = [name for name, view in pooled.items() if view is None]
    everywhere = {name for names in settings.processes.gather(lacking) for name in names}
    missing = [name for name in layout.with_features() if name in everywhere]
    if missing:
        owners = _owners(layout, missing, settings)
        kept, _ = shared_features(model, batch, owners, "max", settings)
        pooled |= {name: View(rows.shape[1], rows) for name, rows in kept.items()}
    return {name: view for name, view in pooled.items() if view is not None}


def shared_features(
    model: nn.Module,
    batch: Batch,
    owners: Mapping[str, int],
    pool: Pool,
    settings: Settings,
    reading: OutputReader | None = None,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Features of this process's layers, to which all processes contribute some examples.

    Beside them the model's outputs, in the first process, where they are read.
    """
    processes = settings.processes
    part = processes.part(len(batch))
    own: Mapping[str, Tensor] = {}
    outputs: Tensor | None = None
    nothing = next(model.parameters(), torch.empty(0)).new_empty(0)
    with processes.together():
        if part.stop > part.start:
            examples = batch if processes.alone else batch.take(part)
            size = settings.batch_size
            own = kept = features(
                model, examples, list(owners), pool, read="raw", batch_size=size, outputs=reading
            )
            outputs = kept.outputs
    if processes.alone:
        return dict(own), outputs
    found: dict[str, Tensor] = {}
    for name, owner in owners.items():
        parts = processes.collect(own.get(name, nothing), owner)
        if parts:
            found[name] = _rejoined(parts)
    if reading is None:
        return found, None
    parts = processes.collect(nothing if outputs is None else outputs, 0)
    return found, _rejoined(parts) if parts else None


def _rejoined(parts: Sequence[Tensor]) -> Tensor:
    """The examples of all processes, of which some may have had none."""
    return torch.cat([rows for rows in parts if rows.numel() or rows.ndim > 1])


def _owners(layout: Layout, names: Sequence[str], settings: Settings) -> dict[str, int]:
    return {name: settings.processes.owner(layout[name].index) for name in names}


def _largest(view: View, shape: tuple[int, ...]) -> View | None:
    """Vectors as they are, kept maps by their largest value; None where the model must run."""
    if len(shape) < 2:
        return view
    if view.rows is None or len(shape) < 3:  # (tokens, channels) and (channels, steps) look alike
        return None
    rows = view.rows.reshape(len(view), shape[0], -1).amax(2)
    return View(rows.shape[1], rows)


def stackable(views: Iterable[tuple[Layer, View]]) -> Iterator[list[tuple[Layer, View]]]:
    """Layers whose inner products are small enough to be worked on side by side.

    A call for a stack of small matrices costs what one for a single matrix does.
    """
    group: list[tuple[Layer, View]] = []
    for layer, view in views:
        fits = (len(group) + 1) * 8 * len(view) ** 2 <= _STACKED
        if group and not fits:
            yield group
            group = []
        group.append((layer, view))
    if group:
        yield group


def why_undefined(gram: Float[Tensor, "n n"], otherwise: str) -> str:
    """Why a number of features is undefined: a diverged run first of all."""
    finite = bool(gram.isfinite().all())
    return otherwise if finite else "the features are not finite: the run has diverged"


def input_view(batch: Batch) -> View | None:
    """The inputs as features; None where they are not numbers with one row per example."""
    values = [*batch.args, *batch.kwargs.values()]
    first = values[0] if values else None
    usable = isinstance(first, Tensor) and not first.is_nested and first.is_floating_point()
    if not usable:
        return None
    assert isinstance(first, Tensor)
    rows = first.flatten(1)
    return View(rows.shape[1], rows)


def _width(layout: Layout, name: str) -> int:
    return int(torch.Size(layout[name].shape or ()).numel())
