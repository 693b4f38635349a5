"""One protocol for data: all accepted forms of data become an iterator of batches.

Inputs, targets and the mask of valid positions stay together, so that selecting examples or moving
to a device cannot separate them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from theodolite.checks import require_count, require_function
from theodolite.engine.calls import NestingError, leaves, map_leaves
from theodolite.engine.state import trim_memory
from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.linalg import prints_shapes

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
MASK_KEY = "attention_mask"
IGNORED = -100  # label of a position that does not count, as in torch and Hugging Face
BATCH_SIZE = 256  # examples of a forward pass by default; single examples become such batches


@prints_shapes
@dataclass(frozen=True)
class Batch:
    """Inputs of one call of the model, with the targets and the mask of the same examples.

    Args:
        args: Positional arguments of the model.
        kwargs: Keyword arguments of the model.
        targets: Targets, one entry per example; None for unlabelled data.
        mask: Valid positions, (n, T), for padded inputs; None if all are valid.
        positions: Positions of the features, (n, k), -1 for none; None if examples are read as a
            whole.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    targets: Any = None
    mask: Tensor | None = None
    positions: Tensor | None = None

    @property
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the model, as nested values."""
        return self.args, dict(self.kwargs)

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _count(self) -> int:
        if self.args and _counts(self.args[0]):
            return int(self.args[0].size(0))
        counted = [leaf for leaf in leaves(self.inputs) if _counts(leaf)]
        if not counted:
            raise ShapeError("expected at least one tensor among the inputs of a batch, got none")
        return int(counted[0].size(0))

    def take(self, indices: slice | Tensor | list[int]) -> "Batch":
        """The examples at these indices, in this order; the batch itself for all of them."""
        count = len(self)
        if isinstance(indices, slice) and indices == slice(0, count):
            return self
        if isinstance(indices, list):  # once for all tensors
            indices = torch.tensor(indices, dtype=torch.long)

        def pick(leaf: Any) -> Any:
            return _take(leaf, indices) if _counts(leaf) and leaf.size(0) == count else leaf

        return self._map(pick)

    def to(self, device: torch.device | str | None) -> "Batch":
        """The same batch with every tensor on this device."""
        if device is None:
            return self
        return self._map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf)

    def cast(self, dtype: torch.dtype, *, integers: bool = False) -> "Batch":
        """The same batch with real inputs, and on request integers, converted to this dtype.

        Targets and mask do not change.
        """

        def convert(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf is self.mask:
                return leaf
            real = leaf.is_floating_point()
            return leaf.to(dtype) if real or (integers and not leaf.is_complex()) else leaf

        return self.map_inputs(convert)

    def map_inputs(self, function: Callable[[Any], Any]) -> "Batch":
        """The same batch with a function applied to every value among the inputs."""
        args, kwargs = map_leaves(function, self.inputs)
        return replace(self, args=args, kwargs=kwargs)

    def _map(self, function: Callable[[Any], Any]) -> "Batch":
        return Batch(*map_leaves(function, _parts_of(self)))

    def copied(self) -> "Batch":
        """The same batch with copies of the inputs; targets and mask stay as they are."""
        copies: dict[int, Tensor] = {}  # a tensor that is passed twice stays one tensor

        def copy(leaf: Any) -> Any:
            if isinstance(leaf, Tensor) and id(leaf) not in copies:
                copies[id(leaf)] = leaf.clone()
            return copies.get(id(leaf), leaf)

        return self.map_inputs(copy)

    def run(self, model: Callable[..., Any]) -> Any:
        """Call the model with copies of these inputs, because it may overwrite what it gets."""
        trim_memory()
        copied = self.copied()
        return model(*copied.args, **copied.kwargs)


def _counts(leaf: Any) -> bool:
    """Whether a value has one entry per example."""
    return isinstance(leaf, Tensor) and leaf.dim() > 0


def _take(tensor: Tensor, indices: slice | Tensor) -> Tensor:
    if not tensor.is_nested:
        return tensor[indices]
    parts = list(tensor.unbind())
    chosen = parts[indices] if isinstance(indices, slice) else [parts[int(k)] for k in indices]
    return torch.nested.as_nested_tensor(chosen, layout=tensor.layout)


def iterate_batches(
    data: Any,
    *,
    targets: Any = None,
    batch_size: int | None = None,
    batch_fn: Callable[[Any], Any] | None = None,
    device: torch.device | str | None = None,
    empty: bool = False,
    examples: int | None = None,
) -> Iterator[Batch]:
    """Convert any accepted form of data into batches.

    Accepted forms are:

    * a tensor or array of inputs;
    * a tuple ``(inputs, targets)``, whose inputs may be a tuple of positional arguments;
    * a list of batches, each of them in one of these forms (a list of two tensors is two batches
      of inputs, and refused if the second could be targets of the first);
    * a mapping of keyword arguments, with targets under ``labels``, ``label``, ``targets``,
      ``target`` or ``y``;
    * a :class:`Batch`;
    * a data set of torch or of Hugging Face, a data loader, or another iterable of these forms. An
      iterable may also give single examples, each a mapping or a pair whose target is one number.

    Columns of text are left out.

    Args:
        data: The data.
        targets: Targets, if ``data`` contains inputs only.
        batch_size: Split batches into parts of at most this many examples; None keeps them.
        batch_fn: Converts an item of ``data`` into a :class:`Batch` or another form above. Items
            that are batches already stay unchanged. Items of a data set that torch cannot collate
            come as a list.
        device: Device for the batches; None keeps their device.
        empty: Leave out batches without examples instead of refusing them.
        examples: Stop after this many examples and read no further item; None reads all.

    Raises:
        ShapeError: If a batch has no examples, or inputs and targets differ in number.
        DomainError: If both the data and ``targets`` hold targets, or the batch size is below 1.
        DtypeError: If an item is of a kind that the model cannot be called with.
    """
    if batch_size is not None:
        require_count(1, batch_size=batch_size)
    if batch_fn is not None:
        require_function(batch_fn=batch_fn)
    left = examples
    for item in _items(data, batch_fn, examples):
        known = batch_fn is None or isinstance(item, Batch)
        batch = _batch_of(item if known else batch_fn(item))  # type: ignore[misc]
        if targets is not None:
            batch = _with_targets(batch, targets)
        if empty and len(batch) == 0:
            continue
        _require_matching(batch)
        if left is not None:
            batch = batch if len(batch) <= left else batch.take(slice(0, left))
            left -= len(batch)
        for span in even_spans(len(batch), batch_size or len(batch)):
            yield batch.take(span).to(device)
        if left == 0:
            return


def _with_targets(batch: Batch, targets: Any) -> Batch:
    if batch.targets is not None:
        raise DomainError(
            "targets: expected none, since the data hold targets already; leave out one of them, "
            "and pass several inputs of a model as ((first, second), targets)"
        )
    return replace(batch, targets=_as_targets(targets))


def whole_batch(data: Any, **options: Any) -> Batch:
    """All the data as one batch; :func:`iterate_batches` lists the accepted forms."""
    batches = list(iterate_batches(data, **options))
    if len(batches) == 1:
        return batches[0]
    if not batches:
        raise ShapeError("expected at least one batch, got none; the data set is empty")
    batches = _of_one_length(batches)
    try:
        joined = map_leaves(lambda *parts: _joined(parts), *map(_parts_of, batches))
    except NestingError:
        raise ShapeError(
            "expected all batches as tensors, all as pairs or all as mappings, got a mixture; "
            "pass batch_fn= to convert them"
        ) from None
    return Batch(*joined)


def _of_one_length(batches: list[Batch]) -> list[Batch]:
    """Pad batches of different lengths to the longest one.

    Added positions have mask 0 and the label -100, which losses ignore. Batches without masks stay
    unchanged, because padding could not be distinguished from tokens.
    """
    masks = [batch.mask for batch in batches if batch.mask is not None and batch.mask.dim() == 2]
    if len(masks) < len(batches):
        return batches
    longest = max(mask.shape[1] for mask in masks)
    known = [b.targets for b in batches if isinstance(b.targets, Tensor) and b.targets.dim() == 2]
    labels = [targets.shape[1] for targets in known]
    found = []
    for batch, mask in zip(batches, masks, strict=True):

        def longer(leaf: Any, length: int = mask.shape[1]) -> Any:
            if not isinstance(leaf, Tensor) or leaf.dim() < 2 or leaf.shape[1] != length:
                return leaf
            return _lengthened(leaf, longest, 0)

        targets = batch.targets
        if len(labels) == len(batches) and not targets.is_floating_point():
            targets = _lengthened(targets, max(labels), IGNORED)
        mask = _lengthened(mask, longest, 0)
        found.append(replace(batch.map_inputs(longer), targets=targets, mask=mask))
    return found


def _lengthened(tensor: Tensor, length: int, value: int) -> Tensor:
    """Extend a value at the end of the second axis."""
    shape = (len(tensor), length - tensor.shape[1], *tensor.shape[2:])
    return torch.cat([tensor, tensor.new_full(shape, value)], 1)


def _parts_of(batch: Batch) -> tuple[Any, ...]:
    return *batch.inputs, batch.targets, batch.mask, batch.positions


def _joined(leaves: tuple[Any, ...]) -> Any:
    if not _counts(leaves[0]):
        return leaves[0]
    if leaves[0].is_nested:
        parts = [part for leaf in leaves for part in leaf.unbind()]
        return torch.nested.as_nested_tensor(parts, layout=leaves[0].layout)
    if len({leaf.shape[1:] for leaf in leaves}) > 1:
        raise ShapeError(
            "expected examples of one shape where all of them are needed at once, got "
            f"{sorted({tuple(leaf.shape[1:]) for leaf in leaves})}; pad them to one length"
        )
    return torch.cat(leaves)


def _items(data: Any, batch_fn: Callable[[Any], Batch] | None, limit: int | None) -> Iterable[Any]:
    """The data if they are one batch, otherwise an iterator over them."""
    if isinstance(data, DataLoader):
        return data
    if _is_hugging_face(data):
        few = data if limit is None else data.take(min(limit, _length(data, limit)))
        tables = few.iter(batch_size=BATCH_SIZE)
        return tables if batch_fn is not None else map(_columns, tables)
    if isinstance(data, IterableDataset) and limit is not None:
        return _collated(islice(data, limit))
    if isinstance(data, Dataset):
        few = data if limit is None else Subset(data, range(min(limit, _length(data, limit))))
        collate = default_collate if batch_fn is None else _collated_or_listed
        return DataLoader(few, batch_size=BATCH_SIZE, collate_fn=collate)
    if batch_fn is not None:
        return data if isinstance(data, Iterable) and not _is_one_batch(data) else [data]
    if _is_one_batch(data):
        return [data]
    if isinstance(data, Iterable) and not hasattr(data, "iloc"):
        return _gathered(data, limit)
    raise DtypeError(
        f"data: expected tensors, (inputs, targets), a mapping, a data loader or an iterable of "
        f"batches, got {type(data).__name__}; "
        + ("pass data.to_numpy()" if hasattr(data, "iloc") else "pass batch_fn= to convert it")
    )


def _length(data: Any, otherwise: int) -> int:
    return len(data) if hasattr(data, "__len__") else otherwise


def _collated(items: Iterator[Any]) -> Iterator[Any]:
    """Single examples in batches, as a loader would collate them."""
    while group := list(islice(items, BATCH_SIZE)):
        yield default_collate(group)


def _collated_or_listed(items: list[Any]) -> Any:
    try:
        return default_collate(items)
    except TypeError:
        return items


def _is_hugging_face(data: Any) -> bool:
    """Whether it is a data set of Hugging Face, without importing its package."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(data).__mro__}
    names = ("datasets.arrow_dataset.Dataset", "datasets.iterable_dataset.IterableDataset")
    return not kinds.isdisjoint(names)


def _gathered(items: Iterable[Any], limit: int | None) -> Iterator[Any]:
    """Single examples in groups, up to the limit; batches unchanged."""
    waiting: list[Any] = []
    count = 0
    for item in items:
        if not _is_example(item):
            yield item
            continue
        waiting.append(item)
        count += 1
        if len(waiting) == BATCH_SIZE or count == limit:
            yield _stacked(waiting)
            waiting = []
    if waiting:
        yield _stacked(waiting)


def _is_example(item: Any) -> bool:
    """Whether an item is a single example: its target is one number or name, or all are lists."""
    if isinstance(item, Mapping):
        for key in TARGET_KEYS:
            if key in item:
                return _is_one_number(item[key])
        values = list(item.values())
        plain = [v for v in values if isinstance(v, (list, str))]
        return (
            len(values) > 0 and len(plain) == len(values) and all(map(_is_text_or_numbers, values))
        )
    return isinstance(item, (tuple, list)) and len(item) == 2 and _is_one_number(item[1])


def _is_one_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() == 0
    return isinstance(value, (bool, int, float, str, np.generic))


def _is_text_or_numbers(value: Any) -> bool:
    """Whether a value is a word, or a list of numbers rather than of lists."""
    return isinstance(value, str) or (len(value) > 0 and isinstance(value[0], (int, float)))


def _stacked(examples: list[Any]) -> Any:
    """A batch of single examples: a mapping or a pair, unchanged."""
    first = examples[0]
    if not isinstance(first, Mapping):
        inputs, targets = (list(part) for part in zip(*examples, strict=True))
        if isinstance(first[0], Mapping):
            return _stacked(inputs), _column("targets", targets)
        if isinstance(first[0], (tuple, list)) and not _is_text_or_numbers(first[0]):
            columns = tuple(_column("inputs", list(part)) for part in zip(*inputs, strict=True))
            return columns, _column("targets", targets)
        return _column("inputs", inputs), _column("targets", targets)
    for example in examples:
        if not isinstance(example, Mapping) or example.keys() != first.keys():
            raise ShapeError(
                f"data: expected examples with the entries {sorted(first)}, got one with "
                f"{sorted(example) if isinstance(example, Mapping) else type(example).__name__}; "
                "give every example the same entries"
            )
    return _columns({key: [example[key] for example in examples] for key in first})


def _columns(table: Mapping[str, Any]) -> dict[str, Any]:
    """Convert lists with an entry per example into tensors; words are kept as targets only."""
    found = {}
    for key, values in table.items():
        if _is_text(values) and key not in TARGET_KEYS:
            continue
        listed = isinstance(values, list) and len(values) > 0
        found[key] = _column(key, values) if listed else values
    return found


def _is_text(values: Any) -> bool:
    """Whether a column has text, or nothing, for each example; no model takes such a column."""
    if isinstance(values, np.ndarray):
        return values.dtype.kind in "OSU"
    listed = isinstance(values, (list, tuple)) and len(values) > 0
    return listed and isinstance(values[0], (str, bytes, type(None)))


def _column(name: str, values: list[Any]) -> Any:
    """One entry per example, as a tensor if they are numbers, otherwise unchanged."""
    if isinstance(values[0], Tensor):
        shapes = {tuple(value.shape) for value in values}
        if len(shapes) == 1:
            return torch.stack(values)
    elif isinstance(values[0], (bool, int, float, list, np.ndarray, np.generic)):
        try:
            array = np.asarray(values)
        except ValueError:  # rows of different lengths
            shapes = {np.shape(value) for value in values}
        else:
            if array.dtype.kind not in "biuf":
                return values
            # Python numbers have no dtype; real ones get the default of torch.
            real = array.dtype.kind == "f" and not isinstance(values[0], (np.ndarray, np.generic))
            return torch.from_numpy(array).to(torch.get_default_dtype() if real else None)
    else:
        return values
    raise ShapeError(
        f"{name}: expected examples of one shape, got {sorted(shapes)[0]} and {sorted(shapes)[-1]};"
        " pad them to one length first, for tokens with padding='max_length' of the tokenizer"
    )


def _is_one_batch(data: Any) -> bool:
    """Whether the data are one batch; a list never is, since it may hold two batches."""
    if isinstance(data, list):
        _require_batches(data)
    return isinstance(data, (Batch, Tensor, np.ndarray, Mapping, tuple))


def _require_batches(data: list[Any]) -> None:
    """Refuse a list of two tensors, if the second could be the targets of the first."""
    kinds = (Tensor, np.ndarray)
    if len(data) != 2 or not all(isinstance(entry, kinds) for entry in data):
        return
    first, second = (tuple(entry.shape) for entry in data)
    if first[:1] == second[:1] and first[1:] != second[1:]:
        raise ShapeError(
            f"data: expected a tuple (inputs, targets) or a list of batches, got a list of two "
            f"tensors of shapes {first} and {second}; pass (inputs, targets) as a tuple"
        )


def _batch_of(item: Any) -> Batch:
    if isinstance(item, Batch):
        return item
    if isinstance(item, Mapping):
        return _batch_of_mapping(dict(item))
    if isinstance(item, (Tensor, np.ndarray)):
        return Batch((_as_tensor(item),))
    if isinstance(item, (tuple, list)) and 0 < len(item) <= 2:
        return _batch_of_pair(item[0], _as_targets(item[1]) if len(item) == 2 else None)
    several = isinstance(item, (tuple, list))
    raise DtypeError(
        "data: expected a batch as a tensor, (inputs, targets) or a mapping, got "
        f"{type(item).__name__}{f' of {len(item)}' if several else ''}; pass several inputs as "
        "((first, second), targets), or say which part is which: batch_fn=lambda b: (b[0], b[1])"
    )


def _batch_of_pair(inputs: Any, targets: Any) -> Batch:
    if isinstance(inputs, Mapping):
        batch = _batch_of(inputs)
        return batch if targets is None else replace(batch, targets=targets)
    several = isinstance(inputs, (tuple, list))
    return Batch(tuple(map(_as_tensor, inputs if several else [inputs])), targets=targets)


def _batch_of_mapping(inputs: dict[str, Any]) -> Batch:
    targets = None
    for key in TARGET_KEYS:
        if key in inputs:
            targets = _as_targets(inputs.pop(key))
            break
    if any(isinstance(value, (Tensor, np.ndarray)) for value in inputs.values()):
        inputs = {key: value for key, value in inputs.items() if not _is_text(value)}
    else:
        inputs = _columns(inputs)
    inputs = {key: _as_tensor(value) for key, value in inputs.items()}
    mask = inputs.get(MASK_KEY)
    return Batch((), inputs, targets, mask if isinstance(mask, Tensor) else None)


def _as_tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in "biufc":
        raise DtypeError(
            f"data: expected numbers, got an array of {value.dtype}; encode text and other objects "
            "as numbers"
        )
    return torch.from_numpy(value)


def _as_targets(value: Any) -> Any:
    """Convert lists of numbers, columns of tables and arrays into tensors; keep other values."""
    if isinstance(value, (list, tuple)):
        plain = len(value) > 0 and isinstance(value[0], (int, float, str, list, np.generic))
    else:
        plain = not isinstance(value, Tensor) and hasattr(value, "__array__")
    if not plain:
        return value
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        return value
    if array.dtype.kind not in "biuf":
        raise DtypeError(
            f"targets: expected class indices or numbers, got text, such as {str(array.flat[0])!r};"
            " number the classes first: np.unique(targets, return_inverse=True)[1], or for a data "
            "set of Hugging Face dataset.class_encode_column(name)"
        )
    # PyTorch refuses read-only memory, which pandas returns, and swapped bytes.
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _require_matching(batch: Batch) -> None:
    count = len(batch)
    if count == 0:
        raise ShapeError("expected at least one example in a batch, got none")
    for leaf in leaves(batch.inputs):
        if not _counts(leaf) or leaf.is_nested or leaf.size(0) != count:
            continue
        if leaf.is_meta or leaf.layout != torch.strided:
            got = "the meta device, which holds no numbers" if leaf.is_meta else str(leaf.layout)
            raise DtypeError(
                f"data: expected dense tensors with numbers, got {got}; convert them, as with "
                "to_dense()"
            )
    if isinstance(batch.targets, Tensor) and batch.targets.dim() and len(batch.targets) != count:
        raise ShapeError(
            f"expected one target per example, got {count} examples and {len(batch.targets)} "
            "targets; pass batch_fn= if the inputs are not a plain (inputs, targets) pair"
        )


def spans(length: int, size: int) -> Iterator[slice]:
    """Consecutive ranges of at most this size."""
    for start in range(0, length, size):
        yield slice(start, min(length, start + size))


def even_spans(length: int, size: int) -> Iterator[slice]:
    """Ranges whose lengths differ by at most one; cuDNN searches again for every batch size."""
    parts = -(-length // size)
    for part in range(parts):
        yield slice(length * part // parts, length * (part + 1) // parts)
