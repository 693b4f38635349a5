"""Features of layers: one vector per example, batch by batch, in order of execution.

:func:`features` keeps them all; :func:`feature_chunks` gives one batch at a time, for sums of any
kind; :func:`feature_moments` adds up means and covariances in memory that does not grow with the
number of examples. Gram matrices are in ``_grams.py``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import require_choice
from theodolite.engine.batches import Batch, iterate_batches
from theodolite.engine.hooks import capture_outputs
from theodolite.engine.layers import Layers, select_layers, unwrap
from theodolite.engine.read_points import Read, ReadPoint, capture_features, follow_layers
from theodolite.engine.state import exact_arithmetic, model_device, require_fixed_mode, untouched
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import Moments

__all__ = [
    "POOLS",
    "FeatureChunk",
    "Features",
    "OutputReader",
    "Pool",
    "feature_chunks",
    "feature_moments",
    "features",
    "pooled",
    "require_pool",
]

Pool = str | Callable[[Tensor], Tensor]
POOLS = ("flatten", "mean", "max", "cls", "last")

# With three axes these give (n, channels, positions); everything else gives (n, tokens, channels).
_CHANNELS_FIRST = (
    nn.Conv1d,
    nn.ConvTranspose1d,
    nn.BatchNorm1d,
    nn.InstanceNorm1d,
    nn.GroupNorm,
    nn.MaxPool1d,
    nn.AvgPool1d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveMaxPool1d,
)


def require_pool(pool: Pool) -> None:
    """A pooling is one of the names or a function of the output."""
    if not callable(pool):
        require_choice(POOLS, pool=pool)


def pooled(
    output: Tensor, pool: Pool, module: nn.Module, mask: Tensor | None = None
) -> Float[Tensor, "n d"]:
    """One vector per example from a layer's output; half precision becomes float32.

    Args:
        output: ``(n, d)``, tokens ``(n, t, d)``, or maps ``(n, channels, *sizes)``.
        pool: ``"flatten"`` keeps everything (padded tokens as zeros), ``"mean"`` and ``"max"``
            run over tokens or positions, ``"cls"`` and ``"last"`` take the first and the last
            token that is not padding; a function gets the output and gives ``(n, ...)``.
        module: the layer, which tells tokens from one-dimensional maps.
        mask: ``(n, t)``, true or 1 for tokens that count.

    Raises:
        ShapeError: If the pooling needs tokens and there are none.
    """
    values = output.detach()
    if values.is_nested:
        values, mask = _padded(values)
    if values.dtype in (torch.float16, torch.bfloat16) or not values.is_floating_point():
        values = values.float()
    if callable(pool):
        return pool(values).flatten(1)
    if values.ndim <= 2:
        return values.reshape(len(values), -1)
    if values.ndim == 3 and not isinstance(module, _CHANNELS_FIRST):
        return _pool_tokens(values, pool, _fitting(mask, values))
    return _pool_maps(values, pool, module)


def _padded(values: Tensor) -> tuple[Tensor, Tensor]:
    rows = values.unbind()
    lengths = torch.tensor([len(row) for row in rows], device=values.device)
    padded = torch.nested.to_padded_tensor(values, 0.0)
    steps = torch.arange(padded.shape[1], device=values.device)
    return padded, steps < lengths.unsqueeze(1)


def _fitting(mask: Tensor | None, values: Tensor) -> Tensor | None:
    """The mask where it describes these tokens; layers after a merge of tokens have others."""
    if mask is None or mask.shape != values.shape[:2]:
        return None
    return mask.to(values.device, torch.bool)


def _pool_tokens(values: Tensor, pool: str, mask: Tensor | None) -> Tensor:
    counts = torch.ones_like(values[..., 0], dtype=torch.bool) if mask is None else mask
    weights = counts.unsqueeze(-1)
    if pool == "flatten":
        return (values if mask is None else values.where(weights, 0.0)).flatten(1)
    if pool == "mean":
        return values.where(weights, 0.0).sum(1) / weights.sum(1).clamp(min=1)
    if pool == "max":
        return values.where(weights, -torch.inf).amax(1)
    steps = torch.arange(values.shape[1], device=values.device)
    if pool == "cls":
        index = steps.expand_as(counts).where(counts, values.shape[1] - 1).amin(1)
    else:
        index = steps.expand_as(counts).where(counts, 0).amax(1)
    return values[torch.arange(len(values), device=values.device), index]


def _pool_maps(values: Tensor, pool: str, module: nn.Module) -> Tensor:
    if pool == "flatten":
        return values.flatten(1)
    positions = tuple(range(2, values.ndim))
    if pool == "mean":
        return values.mean(positions)
    if pool == "max":
        return values.amax(positions)
    raise ShapeError(
        f"pool={pool!r}: expected tokens (n, t, d), got shape {tuple(values.shape)} from "
        f'{type(module).__name__}; use "mean", "max", "flatten" or a function'
    )


_BATCH_SIZE = 256
_TRIAL = 3  # examples of the pass that finds where layers are read

OutputReader = Callable[[Any, Batch], Tensor]  # of the model's answer to a batch


@dataclass(frozen=True)
class FeatureChunk:
    """Features of consecutive examples.

    Args:
        start: index of the first of them.
        layers: layer -> ``(n, d)``, in order of execution.
        targets: their targets, where the data has some.
    """

    start: int
    layers: Mapping[str, Tensor]
    targets: Any = None

    def __len__(self) -> int:
        return len(next(iter(self.layers.values())))


@dataclass(frozen=True)
class Features(Mapping[str, Tensor]):
    """Layer -> features ``(n, d)``, in order of execution.

    Args:
        layers: the features.
        targets: targets of the same examples, where the data has some.
        calls: how often a layer ran in one forward pass; the features are those of its last call.
        pool: how outputs became vectors.
        read_at: layer -> where its features were read, in words.
        outputs: what was kept of the model's answers, where that was asked for.
    """

    layers: Mapping[str, Tensor]
    targets: Tensor | None
    calls: Mapping[str, int]
    pool: str
    read_at: Mapping[str, str]
    outputs: Tensor | None = None

    def __getitem__(self, layer: str) -> Tensor:
        return self.layers[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


class FeatureReader:
    """Which layers to read, how, and how often each ran; one forward pass per batch."""

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        pool: Pool,
        read: Read | Mapping[str, ReadPoint] = "next",
    ) -> None:
        require_pool(pool)
        if isinstance(read, str):
            require_choice(("next", "raw"), read=read)
        self.raw = read == "raw"
        self.points = read if isinstance(read, Mapping) else {} if self.raw else None
        self.model = unwrap(model)
        self.device = model_device(self.model)
        require_fixed_mode(self.model)
        self.pool = pool
        self.names = _candidates(self.model, layers)
        self.exact = {layers} if isinstance(layers, str) else set()
        if not isinstance(layers, str) and not callable(layers):
            self.exact = set(layers)
        self.calls: dict[str, int] = {}
        self.reading: OutputReader | None = None
        self.outputs: list[Tensor] = []
        self._modules = dict(self.model.named_modules())

    def read(self, batch: Batch) -> dict[str, Tensor]:
        """Features of one batch, in order of execution."""
        order: dict[str, int] = {}

        def reduce(name: str, output: Tensor) -> Tensor:
            order[name] = order.get(name, 0) + 1
            vectors = pooled(output, self.pool, self._modules[name], batch.mask)
            return vectors.clone() if _shares(vectors, output) else vectors

        if self.points is None:
            trial = batch.take(slice(0, min(_TRIAL, len(batch))))
            with torch.no_grad(), follow_layers(self.model, self.names) as follower:
                trial.run(self.model)
            self.points = follower.read_points()
        points = {name: self.points.get(name, ReadPoint()) for name in self.names}
        capture = (
            capture_outputs(self.model, self.names, reduce)
            if self.raw
            else capture_features(self.model, points, reduce)
        )
        with torch.no_grad(), capture as outputs:
            answer = batch.run(self.model)
            if self.reading is not None:
                self.outputs.append(self.reading(answer, batch))
        rows = {name: outputs[name][-1] for name in order}
        if not self.calls:  # found by pattern, but without examples: tables of positions, say
            order = {
                name: calls
                for name, calls in order.items()
                if name in self.exact or len(rows[name]) == len(batch)
            }
        self._settle(order)
        for name in order:
            if len(rows[name]) != len(batch):
                raise ShapeError(
                    f"features of {name!r}: expected one row per example, {len(batch)}, got "
                    f"{len(rows[name])}; leave this layer out, or pass pool= as a function"
                )
        return {name: rows[name] for name in order}

    def read_at(self) -> dict[str, str]:
        """Layer -> where it is read, in words."""
        return {name: str((self.points or {}).get(name, ReadPoint())) for name in self.names}

    def _settle(self, order: dict[str, int]) -> None:
        """After the first batch the layers are known: those that ran, in this order."""
        if not self.calls:
            silent = [name for name in self.names if name not in order]
            named = [name for name in silent if name in self.exact]
            if named or not order:
                raise DomainError(
                    f"layers: expected layers that run in the forward pass, {named or silent} "
                    "do not; choose the layer around them"
                )
            self.names = list(order)
            self.calls = dict(order)
        elif order != self.calls:
            raise DomainError(
                "layers: expected the same calls of layers for every batch, got "
                f"{order} after {self.calls}; choose layers that always run"
            )


def _shares(vectors: Tensor, output: Tensor) -> bool:
    """Whether a later in-place operation on the output would reach the vectors."""
    if output.is_nested:
        return False
    return vectors.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()


def _candidates(model: nn.Module, layers: Layers) -> list[str]:
    if layers != "*":
        return select_layers(model, layers)
    owners = (name.rpartition(".")[0] for name, _ in model.named_parameters(remove_duplicate=False))
    names = dict.fromkeys(name.partition("parametrizations.")[0].rstrip(".") for name in owners)
    return list(names) or select_layers(model, layers)


def feature_chunks(
    model: nn.Module,
    data: Any,
    layers: Layers = "*",
    pool: Pool = "flatten",
    *,
    read: Read | Mapping[str, ReadPoint] = "next",
    batch_size: int | None = _BATCH_SIZE,
    **options: Any,
) -> Iterator[FeatureChunk]:
    """Features batch by batch: what sums over examples are made of.

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        data: anything that :func:`theodolite.engine.batches.iterate_batches` accepts.
        layers: names, patterns or a predicate; ``"*"`` takes layers with parameters of their own.
        pool: how an output becomes a vector: ``"flatten"``, ``"mean"``, ``"max"``, ``"cls"``,
            ``"last"`` or a function of the output; padded tokens never count.
        read: ``"next"`` reads what the next layer receives, after the normalisation and activation
            that follow; ``"raw"`` the layer's own output.
        batch_size: split batches into parts of at most this many examples; None keeps them.
        **options: ``batch_fn`` and ``targets`` of ``iterate_batches``.

    Raises:
        DomainError: If the model normalises over the batch or drops out units, or a named layer
            does not run.
    """
    reader = FeatureReader(model, layers, pool, read)
    yield from _chunks(
        reader, iterate_batches(data, batch_size=batch_size, device=reader.device, **options)
    )


def _chunks(reader: FeatureReader, batches: Iterator[Batch]) -> Iterator[FeatureChunk]:
    """The contexts close before each chunk is handed out: the caller's code runs outside them."""
    start = 0
    while True:
        with untouched(reader.model), exact_arithmetic(reader.device):
            batch = next(batches, None)
            if batch is None:
                return
            rows = reader.read(batch)
        yield FeatureChunk(start, rows, batch.targets)
        start += len(batch)


def features(
    model: nn.Module,
    data: Any,
    layers: Layers = "*",
    pool: Pool = "flatten",
    *,
    read: Read | Mapping[str, ReadPoint] = "next",
    batch_size: int | None = _BATCH_SIZE,
    outputs: OutputReader | None = None,
    **options: Any,
) -> Features:
    """Features of layers for all the data, ``(n, d)`` each.

    For measures that need sums only, :func:`feature_moments` and ``feature_grams`` do not keep
    them. A layer that runs several times in a pass gives its last output; ``calls`` says so.

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        data: anything that :func:`theodolite.engine.batches.iterate_batches` accepts.
        layers: names, patterns or a predicate; ``"*"`` takes layers with parameters of their own.
        pool: how an output becomes a vector, see :func:`feature_chunks`.
        read: where a layer is read, see :func:`feature_chunks`.
        batch_size: split batches into parts of at most this many examples; None keeps them.
        outputs: (answer of the model, batch) -> rows that are kept too, from the same pass.
        **options: ``batch_fn`` and ``targets`` of ``iterate_batches``.

    Raises:
        DomainError: If the model normalises over the batch or drops out units, or a named layer
            does not run.
        ShapeError: If features differ in length between batches, or there is no example.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
        >>> {name: tuple(rows.shape) for name, rows in features(model, torch.ones(5, 2)).items()}
        {'0': (5, 3), '2': (5, 1)}
    """
    reader = FeatureReader(model, layers, pool, read)
    reader.reading = outputs
    rows: dict[str, list[Tensor]] = {}
    targets: list[Any] = []
    batches = iterate_batches(data, batch_size=batch_size, device=reader.device, **options)
    for chunk in _chunks(reader, batches):
        targets.append(chunk.targets)
        for name, vectors in chunk.layers.items():
            rows.setdefault(name, []).append(vectors)
    if not rows:
        raise ShapeError("data: expected at least one batch, got none; the data set is empty")
    joined = {name: _joined(name, parts) for name, parts in rows.items()}
    kept = None if outputs is None else torch.cat(reader.outputs)
    return Features(
        joined, join_targets(targets), reader.calls, _pool_name(pool), reader.read_at(), kept
    )


def _joined(name: str, parts: list[Tensor]) -> Tensor:
    lengths = sorted({part.shape[1] for part in parts})
    if len(lengths) > 1:
        raise ShapeError(
            f"features of {name!r}: expected one length in all batches, got {lengths}; "
            'pad the inputs to one length, or pool="mean"'
        )
    return torch.cat(parts)


def join_targets(targets: list[Any]) -> Tensor | None:
    """The targets of all batches, where each batch has a tensor of them."""
    tensors = [target for target in targets if isinstance(target, Tensor)]
    return torch.cat(tensors) if targets and len(tensors) == len(targets) else None


def _pool_name(pool: Pool) -> str:
    return pool if isinstance(pool, str) else getattr(pool, "__name__", type(pool).__name__)


def feature_moments(
    model: nn.Module,
    data: Any,
    layers: Layers = "*",
    pool: Pool = "mean",
    *,
    read: Read | Mapping[str, ReadPoint] = "next",
    batch_size: int | None = _BATCH_SIZE,
    **options: Any,
) -> dict[str, Moments]:
    """Count, mean and scatter of each layer's features; memory does not grow with the data.

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        data: anything that :func:`theodolite.engine.batches.iterate_batches` accepts.
        layers: names, patterns or a predicate; ``"*"`` takes layers with parameters of their own.
        pool: how an output becomes a vector, see :func:`feature_chunks`.
        read: where a layer is read, see :func:`feature_chunks`.
        batch_size: split batches into parts of at most this many examples; None keeps them.
        **options: ``batch_fn`` and ``targets`` of ``iterate_batches``.

    Example:
        >>> moments = feature_moments(nn.Linear(2, 2), torch.eye(2).repeat(3, 1))
        >>> moments[""].count
        tensor(6., dtype=torch.float64)
    """
    moments: dict[str, Moments] = {}
    for chunk in feature_chunks(
        model, data, layers, pool, read=read, batch_size=batch_size, **options
    ):
        for name, rows in chunk.layers.items():
            if name in moments:
                moments[name] = moments[name] + Moments.of(rows, moments[name].shift)
            else:
                moments[name] = Moments.of(rows)
    return moments
