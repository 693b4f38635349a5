"""Features of layers: one vector per example, batch by batch, in order of execution.

:func:`features` keeps all of them. :func:`feature_chunks` gives one batch at a time, for sums of
any kind. :func:`feature_moments` adds up means and covariances; its memory does not grow with the
number of examples. :func:`feature_grams` gives Gram matrices of all examples. The flattened maps of
many examples do not fit into memory, but an ``n x n`` matrix does. The features of a tile of
examples are multiplied with themselves and with every later batch, and then released.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import (
    require_choice,
    require_flag,
    require_function,
    require_kind,
    size_in_bytes,
    size_text,
)
from theodolite.engine.batches import BATCH_SIZE, Batch, even_spans, iterate_batches
from theodolite.engine.calls import CannotSplitError, has_storage
from theodolite.engine.check import (
    Cause,
    Check,
    Checked,
    Checker,
    Measured,
    require_check,
)
from theodolite.engine.compare import require_finite
from theodolite.engine.hooks import (
    Read,
    ReadPoint,
    capture_features,
    capture_outputs,
    follow_layers,
)
from theodolite.engine.inputs import fitted_batches, require_model
from theodolite.engine.layers import (
    LayerMapping,
    Layers,
    layers_text,
    owner_of,
    select_layers,
    unwrap,
)
from theodolite.engine.one_by_one import (
    require_same_one_by_one,
    require_same_outputs_again,
    require_single_examples,
)
from theodolite.engine.pooling import Pool, pooled, require_pool
from theodolite.engine.readouts import main_tensor
from theodolite.engine.recorder import UseRecorder, watch_calls
from theodolite.engine.rounding import Comparison
from theodolite.engine.state import (
    DEFAULT_MEMORY_LIMIT,
    exact_arithmetic,
    limited_memory,
    model_device,
    require_fixed_mode,
    untouched,
)
from theodolite.errors import (
    CaptureError,
    DomainError,
    DtypeError,
    MemoryLimitError,
    ShapeError,
    TheodoliteError,
)
from theodolite.linalg import Moments, double, double_center

_T = TypeVar("_T")
_TRIAL = 3  # examples of the pass that finds the places where layers are read

OutputReader = Callable[[Any, Batch], Tensor]  # (output of the model, batch) -> rows


@dataclass(frozen=True)
class FeatureChunk:
    """Features of consecutive examples.

    Args:
        start: Index of the first example.
        layers: Layer -> ``(n, d)``, in order of execution.
        targets: Their targets, if the data contain targets.
    """

    start: int
    layers: Mapping[str, Tensor]
    targets: Any = None

    def __len__(self) -> int:
        return len(next(iter(self.layers.values())))


@dataclass(frozen=True)
class Features(LayerMapping[Tensor], Measured):
    """Layer -> features ``(n, d)``, in order of execution.

    Args:
        layers: The features.
        targets: Targets of the same examples, if the data contain targets.
        calls: Number of calls of each layer in one forward pass; the features are from its last
            call.
        pool: How outputs became vectors.
        read_at: Layer -> the place where its features were read, in words.
        outputs: Rows made from the output of the model, if they were requested.
        checked: How examples were measured, and what was checked.
    """

    layers: Mapping[str, Tensor]
    targets: Tensor | None
    calls: Mapping[str, int]
    pool: str
    read_at: Mapping[str, str]
    outputs: Tensor | None = None
    checked: Checked = field(default_factory=Checked)

    def __repr__(self) -> str:
        n = len(next(iter(self.layers.values()), ()))
        return f"Features({n} examples, {layers_text(self)})"


@dataclass(frozen=True)
class _Pass:
    """One forward pass: output of the model, vectors of layers, numbers of calls."""

    returned: Any
    rows: dict[str, Tensor]
    call_counts: dict[str, int]


class FeatureReader:
    """Reads the features of layers; remembers which layers ran, where they are read, how often.

    The rows that ``output_reader`` makes of the model's output are kept in ``outputs``. Layers that
    run for some examples only are refused or, if it ``may_drop_layers``, left out.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        pool: Pool,
        read: Read | Mapping[str, ReadPoint],
        check: Check,
        output_reader: OutputReader | None = None,
        *,
        may_drop_layers: bool = False,
    ) -> None:
        require_pool(pool)
        require_check(check)
        require_kind((str, Mapping), read=read)
        if isinstance(read, str):
            require_choice(("next", "raw"), read=read)
        if output_reader is not None:
            require_function(outputs=output_reader)
        self.raw = read == "raw"
        self.output_reader, self.may_drop_layers = output_reader, may_drop_layers
        self.outputs: list[Tensor] = []
        self.points = read if isinstance(read, Mapping) else {} if self.raw else None
        require_model(model)
        self.model = unwrap(model)
        self.device = model_device(self.model)
        require_fixed_mode(self.model)
        self.pool = pool
        self.names = _candidates(self.model, layers)
        self._by_name = {layers} if isinstance(layers, str) else set()
        if not isinstance(layers, str) and not callable(layers):
            self._by_name = set(layers)
        self.calls: dict[str, int] = {}
        self._checker = Checker(check)
        self._fallback: Checked | None = None  # why examples run one at a time
        self._start = 0  # index of the first example of the next batch
        self._takes_gradients = False  # whether the forward pass takes gradients itself
        self._modules = dict(self.model.named_modules(remove_duplicate=False))

    def read(self, batch: Batch) -> dict[str, Tensor]:
        """Features of one batch, in order of execution; a refused single example is an error."""
        try:
            return self._read(batch)
        except Exception as error:
            if not isinstance(error, TheodoliteError):
                require_single_examples(self.model, [batch])
            raise

    def _read(self, batch: Batch) -> dict[str, Tensor]:
        """Features of one batch.

        Some examples run again, as single examples and in other batches. If their features differ,
        they depend on other examples, and features are read one example at a time.
        """
        if self.points is None:
            self.points = self._without_gradients(lambda: self._find_points(batch))
        examples = range(self._start, self._start + len(batch))
        self._start = examples.stop
        if self._fallback is not None:
            return self._one_by_one(batch, examples)
        watch = watch_calls(batch)
        with watch if self._checker.mode else nullcontext():
            found = self._pass(batch)
        if not self._checker.mode:
            return self._rows_of_pass(batch, found)
        for rows in found.rows.values():
            if len(rows) == len(batch):
                require_finite(self.model, rows, batch, examples)
        try:
            without = self._check(batch, found, watch)
        except CannotSplitError as error:
            self._fallback = self._checker.summary(error)
            require_same_one_by_one(self.model, self._model_rows, [batch])
            # A batch may be in random order, but a single example must repeat in every layer.
            one, again = (self._pass(batch.take(slice(0, 1))).rows for _ in range(2))
            pairs = [(again.get(name, rows[:0]), rows) for name, rows in one.items()]
            pairs.append((self._model_rows(batch), self._as_rows(found.returned, batch)))
            require_same_outputs_again(pairs, watch.rounding.tolerance())
            whole = {name for name, rows in found.rows.items() if len(rows) == len(batch)}
            return self._one_by_one(batch, examples, whole)
        return self._rows_of_pass(batch, found, without)

    def _check(self, batch: Batch, found: "_Pass", watch: UseRecorder) -> set[str]:
        """Check that rows are the same for single examples and in other batches.

        Returns:
            Layers of the first batch that have as many rows for any number of examples: a table of
            positions, or a layer with the sequence in front.
        """
        watch.rounding.add(list(found.rows.values()))
        checker, tolerance = self._checker, watch.rounding.tolerance()
        drawn = checker.draw_single_rows(len(batch))
        is_due = checker.draw_whether_due(watch.suspects)
        singles = drawn if watch.suspects else drawn[:1]
        if checker.every or len(batch) == 1:
            singles = []  # they are among the parts that run again
        checker.single_examples += len(singles)
        parts, without = [[row] for row in singles], set[str]()
        if is_due:  # the first single example is the last part of a rerun
            rerun = checker.draw_parts(len(batch), singles[0] if singles else None)
            parts = parts[1:] + rerun[::-1]
        for part in parts:
            cause = Cause.SINGLE_EXAMPLE if len(part) == 1 else Cause.OTHER_BATCH
            again = self._pass(batch.take(part))
            compared = Comparison()
            for name, rows in found.rows.items():
                if len(rows) != len(batch):
                    continue  # an output without examples, such as a table of positions
                other = again.rows.get(name, rows[:0])
                may_leave_out = not self.calls and name not in self._by_name
                is_same_call = again.call_counts.get(name) == found.call_counts[name]
                if may_leave_out and is_same_call and len(other) == len(rows) != len(part):
                    without.add(name)
                if name in without:
                    continue
                compared.add_rows(name, other, rows[part], whole=rows)
            wrong = compared.first_above(tolerance)
            if wrong is not None:
                raise CannotSplitError(
                    f"layer {wrong[0]!r} gives an example other features if the other examples of "
                    "its batch change",
                    cause,
                )
        return without

    def _without_gradients(self, run: Callable[[], _T]) -> _T:
        """Run the model without gradients, or with them if its forward pass takes gradients."""
        try:
            with torch.set_grad_enabled(self._takes_gradients):
                return run()
        except RuntimeError:
            if self._takes_gradients:
                raise
            self._takes_gradients = True
            return self._without_gradients(run)

    def _find_points(self, batch: Batch) -> dict[str, ReadPoint]:
        """The places where the layers' features are read, found by a trial pass."""
        trial = batch.take(slice(0, min(_TRIAL, len(batch))))
        with follow_layers(self.model, self.names) as follower:
            trial.run(self.model)
        return follower.read_points()

    def _pass(self, batch: Batch) -> "_Pass":
        """One forward pass, without checks of what the layers return."""
        return self._without_gradients(lambda: self._run_captured(batch))

    def _run_captured(self, batch: Batch) -> "_Pass":
        """The same with the current setting of gradients."""
        call_counts: dict[str, int] = {}

        def reduce(name: str, output: Tensor) -> Tensor:
            if not has_storage(output):
                raise CaptureError(
                    f"layer {name!r}: expected outputs that can be read, but it runs inside a "
                    "transform of torch.func (vmap, grad); choose the layer around it"
                )
            call_counts[name] = call_counts.get(name, 0) + 1
            module = self._modules[name]
            vectors = pooled(output, self.pool, module, batch.mask, batch.positions)
            return vectors.clone() if _shares(vectors, output) else vectors

        known = self.points or {}
        points = {name: known.get(name, ReadPoint()) for name in self.names}
        capture = (
            capture_outputs(self.model, self.names, reduce)
            if self.raw
            else capture_features(self.model, points, reduce)
        )
        with capture as outputs:
            returned = batch.run(self.model)
        return _Pass(returned, {name: outputs[name][-1] for name in call_counts}, call_counts)

    def _model_rows(self, batch: Batch) -> Tensor:
        """The output of the model in a pass of its own, one row per example."""
        with torch.set_grad_enabled(self._takes_gradients):
            return self._as_rows(batch.run(self.model), batch)

    def _as_rows(self, returned: Any, batch: Batch) -> Tensor:
        """What the model returned as one row per example; zeros if it has no such rows."""
        try:
            rows = main_tensor(returned).detach()
        except DtypeError:
            return torch.zeros(len(batch), 1)
        if rows.dim() < 2 and (len(batch) == 1 or rows.numel() == len(batch)):
            rows = rows.reshape(len(batch), -1)
        whole = rows.dim() > 1 and len(rows) == len(batch) and rows.is_floating_point()
        return rows.flatten(1) if whole else torch.zeros(len(batch), 1)

    def _one_by_one(
        self, batch: Batch, examples: range, whole: set[str] | None = None
    ) -> dict[str, Tensor]:
        """Features of examples run one by one, without layers that run for some of them only.

        ``whole`` has the layers that gave one row per example in the batch, if they are known.
        """
        passes = [self._pass(batch.take(slice(k, k + 1))) for k in range(len(batch))]
        counts = passes[0].call_counts
        kept = {
            name: calls
            for name, calls in counts.items()
            if name in self._by_name
            or (
                all(one.call_counts.get(name) == calls for one in passes)
                and all(len(one.rows[name]) == 1 for one in passes)
                and (whole is None or name in whole)
            )
        } or counts  # the error names the first of them
        joined = {
            name: _over_batches(name, [one.rows[name] for one in passes if name in one.rows])
            for name in kept
        }
        for rows in joined.values():
            if len(rows) == len(batch):
                require_finite(self.model, rows, batch, examples)
        for row, one in enumerate(passes):
            if self.output_reader is not None:
                single = batch.take(slice(row, row + 1))
                self.outputs.append(self.output_reader(one.returned, single))
        return self._rows_of_fixed_layers(batch, joined, kept)

    def _rows_of_pass(
        self, batch: Batch, found: "_Pass", without: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Features from a pass over the whole batch, ``without`` some layers."""
        if self.output_reader is not None:
            self.outputs.append(self.output_reader(found.returned, batch))
        rows, call_counts = found.rows, found.call_counts
        if without:
            call_counts = {name: k for name, k in call_counts.items() if name not in without}
        if without and not call_counts:
            raise ShapeError(
                f"features of {min(without)!r}: expected one row per example, got {len(batch)} for "
                "any number of examples; leave this layer out, or pass pool= as a function"
            )
        if not self.calls:  # a pattern may match layers without examples: tables of positions
            call_counts = {
                name: calls
                for name, calls in call_counts.items()
                if name in self._by_name or len(rows[name]) == len(batch)
            } or call_counts
        return self._rows_of_fixed_layers(batch, rows, call_counts)

    def _rows_of_fixed_layers(
        self, batch: Batch, rows: dict[str, Tensor], call_counts: dict[str, int]
    ) -> dict[str, Tensor]:
        """Rows of the layers, which the first batch fixes; each must have one row per example."""
        self._fix_layers(call_counts)
        for name in call_counts:
            if len(rows[name]) != len(batch):
                raise ShapeError(
                    f"features of {name!r}: expected one row per example, {len(batch)}, got "
                    f"{len(rows[name])}; leave this layer out, or pass pool= as a function"
                )
        return {name: rows[name] for name in self.calls}

    @property
    def checked(self) -> Checked:
        """How examples were measured, and what was checked."""
        return self._checker.summary() if self._fallback is None else self._fallback

    def read_at(self) -> dict[str, str]:
        """Layer -> the place where it is read, in words."""
        return {name: str((self.points or {}).get(name, ReadPoint())) for name in self.names}

    def _fix_layers(self, call_counts: dict[str, int]) -> None:
        """After the first batch the layers and their order are fixed."""
        if not self.calls:
            silent = [name for name in self.names if name not in call_counts]
            named = [name for name in silent if name in self._by_name]
            if named or not call_counts:
                raise DomainError(
                    f"layers: expected layers that run in the forward pass, {named or silent} "
                    "do not; choose the layer around them"
                )
            self.names = list(call_counts)
            self.calls = dict(call_counts)
        elif (
            self.may_drop_layers
            and self._fallback is not None
            and not (self._by_name & set(self.calls)) - set(call_counts)
        ):
            self.calls = {n: k for n, k in self.calls.items() if call_counts.get(n) == k}
            self.names = list(self.calls)
        elif call_counts != self.calls:
            raise DomainError(
                "layers: expected the same calls of layers for every batch, got "
                f"{call_counts} after {self.calls}; choose layers that always run"
            )


def _shares(vectors: Tensor, output: Tensor) -> bool:
    """Whether a later in-place operation on the output would reach the vectors."""
    if output.is_nested:
        return False
    return vectors.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()


def _takes_hooks(module: nn.Module) -> bool:
    """Whether the module takes hooks; scripted modules do not, traced ones do."""
    if not isinstance(module, torch.jit.ScriptModule):
        return True
    try:
        module.register_forward_hook(lambda *_: None).remove()
    except RuntimeError:
        return False
    return True


def _candidates(model: nn.Module, layers: Layers) -> list[str]:
    if not isinstance(layers, str) or layers != "*":
        return select_layers(model, layers)
    named = model.named_parameters(remove_duplicate=False)
    names = dict.fromkeys(owner_of(name) for name, _ in named)
    modules = dict(model.named_modules(remove_duplicate=False))
    seen = [name for name in names if _takes_hooks(modules[name])]
    if not seen and names:
        raise DomainError(
            "layers: expected layers whose outputs can be read, got only scripted modules, which "
            "allow no hooks; pass the module as it was before torch.jit.script"
        )
    return seen or select_layers(model, layers)


def feature_chunks(
    model: nn.Module,
    data: Any,
    layers: Layers = "*",
    pool: Pool = "flatten",
    *,
    read: Read | Mapping[str, ReadPoint] = "next",
    batch_size: int | None = BATCH_SIZE,
    check: Check = True,
    **options: Any,
) -> Iterator[FeatureChunk]:
    """Features batch by batch, for sums over examples.

    Args:
        model: Any module, in evaluation mode; it is left as it was found.
        data: Anything that :func:`theodolite.engine.batches.iterate_batches` accepts.
        layers: Names, patterns or a predicate; ``"*"`` takes layers with parameters of their own
            that give one row per example.
        pool: How an output becomes a vector: ``"flatten"``, ``"grid"``, ``"mean"``, ``"max"``,
            ``"cls"``, ``"last"`` or a function of the output, see :func:`pooled`.
        read: ``"next"`` reads the input of the next layer, after the normalisation and activation
            that follow; ``"raw"`` reads the layer's own output.
        batch_size: Split batches into parts of at most this many examples; None keeps them.
        check: Check that each row depends on its own example only: in some batches (True), in all
            of them with every example by itself (``"every"``), or not at all (False). If rows
            differ, features are read one example at a time. :mod:`theodolite.engine.check` says
            how, and what True can miss.
        **options: ``batch_fn`` and ``targets`` of ``iterate_batches``.

    Raises:
        CaptureError: If examples depend on each other or on random numbers.
        DomainError: If the model is in training mode where that changes results (batch statistics,
            dropout), or a named layer does not run.
    """
    reader = FeatureReader(model, layers, pool, read, check)
    batches = iterate_batches(data, batch_size=batch_size, device=reader.device, **options)
    yield from _chunks_of_features(reader, fitted_batches(model, data, batches))


def _chunks_of_features(reader: FeatureReader, batches: Iterator[Batch]) -> Iterator[FeatureChunk]:
    """Yield chunks outside the contexts, so that the caller's code runs without them."""
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
    batch_size: int | None = BATCH_SIZE,
    outputs: OutputReader | None = None,
    check: Check = True,
    **options: Any,
) -> Features:
    """Features of layers for all the data, ``(n, d)`` each.

    Use :func:`feature_moments` or :func:`feature_grams` for measures that need sums only. They do
    not keep the features. If a layer runs several times in a pass, the features are those of its
    last call, and ``calls`` has the number.

    Args:
        model: Any module, in evaluation mode; it is left as it was found.
        data: Anything that :func:`theodolite.engine.batches.iterate_batches` accepts. Inputs of
            another dtype than the model's are cast, with a warning.
        layers: Names, patterns or a predicate; ``"*"`` takes layers with parameters of their own
            that give one row per example.
        pool: How an output becomes a vector, see :func:`feature_chunks`.
        read: Where a layer is read, see :func:`feature_chunks`.
        batch_size: Split batches into parts of at most this many examples; None keeps them.
        outputs: (output of the model, batch) -> rows to keep too, from the same pass.
        check: See :func:`feature_chunks`.
        **options: ``batch_fn`` and ``targets`` of ``iterate_batches``.

    Returns:
        Features of every layer by name, one row per example.

    Raises:
        DomainError: If the model normalises over the batch or drops out units, or a named layer
            does not run.
        ShapeError: If features differ in length between batches, or there is no example.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
        >>> {name: tuple(rows.shape) for name, rows in features(model, torch.ones(5, 2)).items()}
        {'0': (5, 3), '2': (5, 1)}
    """
    reader = FeatureReader(model, layers, pool, read, check, outputs, may_drop_layers=True)
    rows: dict[str, list[Tensor]] = {}
    targets: list[Any] = []
    batches = iterate_batches(data, batch_size=batch_size, device=reader.device, **options)
    for chunk in _chunks_of_features(reader, fitted_batches(model, data, batches)):
        targets.append(chunk.targets)
        for name, vectors in chunk.layers.items():
            rows.setdefault(name, []).append(vectors)
    if not rows:
        raise ShapeError("data: expected at least one batch, got none; the data set is empty")
    joined = {name: _over_batches(name, rows.pop(name)) for name in reader.calls}
    kept = None if outputs is None else torch.cat(reader.outputs)
    return Features(
        joined,
        join_targets(targets),
        reader.calls,
        _pool_name(pool),
        reader.read_at(),
        kept,
        reader.checked,
    )


def _over_batches(name: str, parts: list[Tensor]) -> Tensor:
    lengths = sorted({part.shape[1] for part in parts})
    if len(lengths) > 1:
        raise ShapeError(
            f"features of {name!r}: expected one length in all batches, got {lengths}; "
            'pad the inputs to one length, or pool="mean"'
        )
    return torch.cat(parts)


def join_targets(targets: list[Any]) -> Tensor | None:
    """The targets of all batches, if every batch has a tensor of targets."""
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
    batch_size: int | None = BATCH_SIZE,
    **options: Any,
) -> dict[str, Moments]:
    """Count, mean and scatter of each layer's features; memory does not grow with the data.

    Args:
        model: Any module, in evaluation mode; it is left as it was found.
        data: Anything that :func:`theodolite.engine.batches.iterate_batches` accepts.
        layers: Names, patterns or a predicate; ``"*"`` takes layers with parameters of their own
            that give one row per example.
        pool: How an output becomes a vector, see :func:`feature_chunks`.
        read: Where a layer is read, see :func:`feature_chunks`.
        batch_size: Split batches into parts of at most this many examples; None keeps them.
        **options: ``batch_fn`` and ``targets`` of ``iterate_batches``.

    Returns:
        Mean and covariance sums of the features of every layer.

    Examples:
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


_USABLE = 0.8  # of a limit: libraries below torch make their own copies
_LIVE_RESULTS = 6  # results of operations that exist at one time


@dataclass(frozen=True)
class FeatureGrams(LayerMapping[Tensor]):
    """Layer -> Gram matrix ``(n, n)`` of its features, in order of execution.

    Args:
        layers: The matrices.
        targets: Targets of the same examples, if the data contain targets.
        widths: Layer -> number of features.
        tiles: Number of tiles of examples.
        centered: Whether the mean feature was removed.
    """

    layers: Mapping[str, Float[Tensor, "n n"]]
    targets: Tensor | None
    widths: Mapping[str, int]
    tiles: int
    centered: bool

    def __repr__(self) -> str:
        n = len(next(iter(self.layers.values()), ()))
        return f"FeatureGrams({n} examples, {layers_text(self)})"


def feature_grams(
    model: nn.Module,
    data: Any,
    layers: Layers = "*",
    pool: Pool = "flatten",
    *,
    read: Read | Mapping[str, ReadPoint] = "next",
    center: bool = False,
    dtype: torch.dtype | None = None,
    batch_size: int | None = None,
    memory_limit: int | str | None = None,
    check: Check = True,
    **options: Any,
) -> FeatureGrams:
    r"""Gram matrices :math:`K = F F^\top` of the features of layers over all the data.

    The value does not depend on the batch size or the memory limit beyond rounding.

    Args:
        model: Any module, in evaluation mode; it is left as it was found.
        data: Anything that :func:`theodolite.engine.batches.iterate_batches` accepts. The inputs of
            all examples are kept in memory.
        layers: Names, patterns or a predicate; ``"*"`` takes layers with parameters of their own
            that give one row per example.
        pool: How an output becomes a vector, see :func:`feature_chunks`.
        read: Where a layer is read, see :func:`feature_chunks`.
        center: Remove the mean feature: :math:`HKH`, in float64. The mean is subtracted before the
            product, so that a large mean costs no digits.
        dtype: Dtype of the products; None keeps that of the features.
        batch_size: Examples in one forward pass; None takes 256.
        memory_limit: Limit for matrices, buffers of features and a pass (unless ``batch_size`` is
            given), in bytes or as a size such as "4GB". None: buffers take at most half of the free
            memory of a GPU, 2 GiB on a CPU.
        check: See :func:`feature_chunks`.
        **options: ``batch_fn`` and ``targets`` of ``iterate_batches``.

    Returns:
        Inner products of the features of all pairs of examples, for every layer.

    Raises:
        DomainError: If the model normalises over the batch or drops out units, or a named layer
            does not run. Or if the features of one batch exceed the memory limit.
        ShapeError: If features differ in length between batches, or there is no example.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU())
        >>> grams = feature_grams(model, torch.eye(2), center=True)
        >>> grams["0"].sum().abs().item() < 1e-6
        True
    """
    require_flag(center=center)
    require_kind((torch.dtype, type(None)), dtype=dtype)
    reader = FeatureReader(model, layers, pool, read, check)
    limit = size_in_bytes(memory_limit)
    with untouched(reader.model), exact_arithmetic(reader.device), limited_memory(limit):
        size = BATCH_SIZE if batch_size is None else batch_size
        read_batches = iterate_batches(data, batch_size=size, **options)
        batches = list(fitted_batches(model, data, read_batches))
        if not batches:
            raise ShapeError("data: expected at least one batch, got none; the data set is empty")
        if limit is not None and batch_size is None:
            batches, limit = _limited_batches(reader, batches, limit)
        work = _GramTiles(reader, batches, dtype, center)
        tiles = work.fill(_buffer_limit(limit, reader.device))
        grams = work.grams
    if center:
        grams = {name: double_center(double(gram)) for name, gram in grams.items()}
    targets = join_targets([batch.targets for batch in batches])
    return FeatureGrams(grams, targets, work.widths, tiles, center)


def _limited_batches(
    reader: FeatureReader, batches: list[Batch], limit: int
) -> tuple[list[Batch], int]:
    """The batches in parts that fit beside the Gram matrices, and the limit for a tile."""
    one = reader.read(batches[0].take(slice(0, 1)).to(reader.device))
    count = sum(map(len, batches))
    grams = sum(count**2 * rows.element_size() for rows in one.values())
    single = sum(rows.nbytes for rows in one.values())
    single += _LIVE_RESULTS * max(rows.nbytes for rows in one.values())
    free = int(_USABLE * limit) - grams
    if free < 4 * single:
        raise MemoryLimitError(
            f"memory_limit: expected at least {size_text((grams + 4 * single) / _USABLE)} "
            f"({size_text(grams)} for {len(one)} matrices of {count} x {count}, "
            f"{size_text(single)} for one example), got {size_text(limit)}; pass fewer examples or "
            "layers"
        )
    size = free // 4 // single
    parts = [batch.take(span) for batch in batches for span in even_spans(len(batch), size)]
    return parts, free // 2


def _buffer_limit(memory_limit: int | None, device: torch.device) -> int:
    if memory_limit is not None:
        return memory_limit
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return DEFAULT_MEMORY_LIMIT


class _GramTiles:
    """Fills Gram matrices tile by tile."""

    def __init__(
        self, reader: FeatureReader, batches: list[Batch], dtype: torch.dtype | None, center: bool
    ) -> None:
        self.reader, self.batches, self.dtype = reader, batches, dtype
        ends = [0, *accumulate(map(len, batches))]
        self.spans = [slice(*pair) for pair in pairwise(ends)]
        first = self._read(0)
        self.widths = {name: rows.shape[1] for name, rows in first.items()}
        self.grams = {name: rows.new_empty(ends[-1], ends[-1]) for name, rows in first.items()}
        self.shifts = {name: rows.mean(0) for name, rows in first.items()} if center else {}
        self._first: dict[str, Tensor] | None = first

    def _read(self, index: int) -> dict[str, Tensor]:
        rows = self.reader.read(self.batches[index].to(self.reader.device))
        return {name: value.to(self.dtype or value.dtype) for name, value in rows.items()}

    def _rows(self, index: int) -> dict[str, Tensor]:
        """Features of a batch, about those of the first one; its first pass is used."""
        rows = self._read(index) if self._first is None or index else self._first
        self._first = None
        for name, value in rows.items():
            if value.shape[1] != self.widths[name]:
                raise ShapeError(
                    f"features of {name!r}: expected {self.widths[name]} as in the first batch, "
                    f'got {value.shape[1]}; pad the inputs to one length, or pool="mean"'
                )
            if self.shifts:
                value -= self.shifts[name]
        return rows

    def fill(self, limit: int) -> int:
        """Fill the matrices; return the number of tiles."""
        size = next(iter(self.grams.values())).element_size()
        per_example = sum(self.widths.values()) * size
        most = limit // per_example
        largest = max(map(len, self.batches))
        if most < largest:
            raise DomainError(
                f"memory_limit: expected at least {largest * per_example:,} bytes, the features of "
                f"one batch, got {limit:,}; lower batch_size, choose fewer layers, or pool them"
            )
        first, tiles = 0, 0
        while first < len(self.batches):
            start = self.spans[first].start
            fitting = (k for k, span in enumerate(self.spans) if span.stop - start <= most)
            first, tiles = self._fill_tile(range(first, max(fitting) + 1)), tiles + 1
        return tiles

    def _fill_tile(self, batches: range) -> int:
        """Multiply one tile with itself and all later batches; return the first of these."""
        rows = slice(self.spans[batches[0]].start, self.spans[batches[-1]].stop)
        tile = self._tile(batches)
        for name, part in tile.items():
            torch.mm(part, part.mT, out=self.grams[name][rows, rows])
        for later in range(batches.stop, len(self.batches)):
            columns = self.spans[later]
            for name, part in self._rows(later).items():
                block = tile[name] @ part.mT
                self.grams[name][rows, columns] = block
                self.grams[name][columns, rows] = block.mT
        return batches.stop

    def _tile(self, batches: range) -> dict[str, Tensor]:
        """Features of the batches of a tile, one matrix per layer; a single batch is not copied."""
        if len(batches) == 1:
            return self._rows(batches[0])
        start, stop = self.spans[batches[0]].start, self.spans[batches[-1]].stop
        tile = {
            name: gram.new_empty(stop - start, self.widths[name])
            for name, gram in self.grams.items()
        }
        for batch in batches:
            span = self.spans[batch]
            for name, rows in self._rows(batch).items():
                tile[name][span.start - start : span.stop - start] = rows
        return tile
