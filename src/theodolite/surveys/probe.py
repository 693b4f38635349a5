"""The examples that all families share, and their targets: drawn once, balanced, hashed.

Each of several processes may hold a part of the data. Their parts follow each other by rank, and
all processes draw the probe that one process with all the data would.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils.data import DataLoader, RandomSampler

from theodolite._distributed import ALONE, Processes
from theodolite.engine import Batch, iterate_batches, single_batch
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import target_columns
from theodolite.measures.representation import scaled_targets
from theodolite.surveys.options import SurveyOptions

__all__ = ["Kind", "Probe", "Targets", "draw_probe", "probe_digest", "require_order", "reusable"]

Kind = Literal["classification", "regression", "multi-label", "sequence", "unlabeled"]


@dataclass(frozen=True)
class Targets:
    """Targets of all examples of a probe, read once for all families.

    Args:
        kind: what they are.
        labels: class of each example, on the CPU; None unless there are classes.
        columns: one row of numbers per example, in float64: one-hot classes, several labels as
            they are, real numbers moved to [-1, 1]; None where there is nothing to align with.
        whole: whether they are single real numbers that could be class labels.
    """

    kind: Kind
    labels: Int[Tensor, " n"] | None = None
    columns: Float[Tensor, "n c"] | None = None
    whole: bool = False

    @classmethod
    def of(cls, targets: Any) -> "Targets":
        """Read targets of any kind.

        Raises:
            DomainError: If a class label is negative or a number is not finite.
        """
        if not isinstance(targets, Tensor) or targets.ndim == 0:
            return cls("unlabeled")
        values = targets.detach().cpu()
        if values.ndim > 2:
            return cls("sequence")
        binary = bool(((values == 0) | (values == 1)).all())
        whole = not values.is_floating_point() or binary
        if values.ndim == 2 and values.shape[1] > 1:
            return cls._of_rows(values, binary)
        flat = values.reshape(len(values))
        if whole:
            return cls._of_labels(flat.long())
        return cls._of_numbers(flat.unsqueeze(1))

    @classmethod
    def _of_labels(cls, labels: Tensor) -> "Targets":
        if int(labels.min()) < 0:
            raise DomainError(
                f"targets: expected class labels of at least 0, got {int(labels.min())}; leave "
                "out examples that have none"
            )
        return cls("classification", labels, target_columns(labels, int(labels.max()) + 1))

    @classmethod
    def _of_rows(cls, values: Tensor, binary: bool) -> "Targets":
        if binary and bool((values.sum(1) == 1).all()):
            return cls("classification", values.long().argmax(1), values.double())
        if binary:
            return cls("multi-label", None, values.double())
        return cls("sequence") if not values.is_floating_point() else cls._of_numbers(values)

    @classmethod
    def _of_numbers(cls, values: Tensor) -> "Targets":
        if not bool(values.isfinite().all()):
            raise DomainError("targets: expected finite numbers, got nan or inf; clean the data")
        whole = values.shape[1] == 1 and bool(((values >= 0) & (values == values.round())).all())
        return cls("regression", None, scaled_targets(values.double()).values, whole)

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None if there are none."""
        if self.labels is None or self.columns is None:
            return None
        return self.columns.shape[1]

    def take(self, chosen: int | Tensor) -> "Targets":
        """So many of the first examples, or those at these places."""
        labels, columns = self.labels, self.columns
        which = slice(0, chosen) if isinstance(chosen, int) else chosen
        return Targets(
            self.kind,
            None if labels is None else labels[which],
            None if columns is None else columns[which],
            self.whole,
        )

    def outputs(self, count: int) -> Float[Tensor, "n c"]:
        """Targets beside outputs: as many columns as the model has.

        Raises:
            DomainError: If a label exceeds the number of outputs, or the columns do not match.
        """
        if self.columns is None:
            raise DomainError("targets: expected one per example, got none of use")
        if self.labels is not None:
            return _class_columns(self.labels, count)
        if self.columns.shape[1] != count:
            raise DomainError(
                f"targets: expected {count} numbers per example as the model's outputs, got "
                f"{self.columns.shape[1]}; pass readout="
            )
        return self.columns


def _class_columns(labels: Tensor, count: int) -> Tensor:
    highest = int(labels.max())
    if count == 1 and highest <= 1:
        return 2.0 * labels.double().unsqueeze(1) - 1.0
    if highest >= count:
        raise DomainError(
            f"targets: expected labels below {count}, the number of outputs, got {highest}; "
            "relabel, or pass readout="
        )
    return target_columns(labels, count)


@dataclass(frozen=True)
class Shard:
    """The part of the data that one process has: all processes' examples follow each other by rank.

    Args:
        before: lengths of the batches of the processes before this one.
        own: lengths of its batches.
        after: lengths of the batches of the processes that follow.
        copies: whether every process was given the same data, which then counts once.
        classes: whether all targets are class labels; None where the examples decide.
    """

    before: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    copies: bool = False
    classes: bool | None = None

    @property
    def total(self) -> int:
        """Examples of all processes."""
        return sum(self.before) + sum(self.own) + sum(self.after)


class _Drawn(NamedTuple):
    """Examples, with a random number for each and its place among all that were given."""

    batch: Batch
    keys: Tensor
    places: Tensor

    def take(self, chosen: Tensor) -> "_Drawn":
        """Some of the examples."""
        return _Drawn(self.batch.take(chosen), self.keys[chosen], self.places[chosen])


@dataclass(frozen=True)
class Probe:
    """Examples for every family; each takes as many as it needs from the front.

    Classes take turns, so that the first examples are balanced, however many are taken.

    Args:
        batch: the examples.
        targets: what they should give.
        given: number of examples that the data has.
        digest: SHA-256 over inputs and targets.
        shard: the part of the data that this process has, where there are several.
        truth: true labels of the same examples, where the targets are others.
        suspect: the first example with an input that is nan or infinite, and its place.
        notes: what was changed of it -> how, so that the model takes it.
    """

    batch: Batch
    targets: Targets
    given: int
    digest: str
    shard: Shard = field(default_factory=Shard)
    truth: Targets | None = None
    suspect: tuple[int, Batch] | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, count: int) -> tuple[Batch, Targets]:
        """The first examples and their targets."""
        return self.batch.take(slice(0, count)), self.targets.take(count)

    def with_classes(self, *, convert: bool) -> "Probe":
        """The same examples with real targets that are whole as class labels, which take turns.

        Args:
            convert: whether the loss gets class labels too.
        """
        labels = torch.as_tensor(self.batch.targets).detach().cpu().flatten().long()
        order = _first(torch.arange(len(labels)), labels, len(labels))
        batch = self.batch.take(order)
        if convert:
            batch = replace(batch, targets=labels[order].to(batch.targets.device))
        truth = None if self.truth is None else self.truth.take(order)
        return replace(self, batch=batch, targets=Targets._of_labels(labels[order]), truth=truth)

    def label_columns(self, count: int) -> dict[str, Tensor]:
        """Labels of the first examples as columns: the targets, and true labels beside them."""
        known = {"target": self.targets, "truth": self.truth}
        taken = {name: t.take(count).columns for name, t in known.items() if t is not None}
        return {name: columns for name, columns in taken.items() if columns is not None}


def reusable(data: Any, options: SurveyOptions, targets: Any = None, *, empty: bool = False) -> Any:
    """Data that can be gone through more than once.

    An iterator is read into a list. With ``examples=`` so many are read, in one pass.
    """
    if options.examples is None:
        return list(data) if isinstance(data, Iterator) else data
    batches = iterate_batches(
        data,
        targets=targets,
        batch_fn=options.batch_fn,
        empty=empty,
        examples=options.examples,
    )
    return list(batches)


def draw_probe(
    data: Any,
    options: SurveyOptions,
    processes: Processes = ALONE,
    *,
    targets: Any = None,
    device: torch.device | str | None = None,
    truth: Any = None,
) -> Probe:
    """Draw examples at random, as many of each class as possible.

    Goes through the data once. What is kept never exceeds twice what is asked for and a batch.
    With several processes, of which each has some of the data, all get the probe that one process
    with all the data would draw; a loader is gone through twice.

    Args:
        data: anything that ``iterate_batches`` accepts.
        options: how many examples the families want, and the seed.
        processes: those that take part.
        targets: of the same examples, where the data holds none.
        device: where the probe should lie.
        truth: true labels of the examples that this process has, in their order.

    Raises:
        ShapeError: If there is no example, or there are more or fewer true labels.
        DomainError: If true labels are given for data in random order.
    """
    require_order(data, truth)
    generator = options.seeded()
    limit = options.largest()

    def batches() -> Iterator[Batch]:
        return iterate_batches(
            data,
            targets=targets,
            batch_fn=options.batch_fn,
            empty=not processes.alone,
            examples=options.examples,
        )

    suspects = _Suspects()
    if processes.alone:
        kept, given = _kept(suspects.watch(batches()), generator, limit)
        shard = Shard(own=(given,))
    else:
        kept, shard = _kept_by_all(batches, processes, generator, limit)
    if not kept:
        raise ShapeError("data: expected at least one example, got none; the data set is empty")
    if shard.total == 1:
        raise ShapeError(
            "data: expected at least two examples, since alignment compares examples with each "
            "other, got one; pass more, and single inputs with an axis for examples"
        )
    batch, _, places = _selected(kept, limit or shard.total, shard.classes)
    if options.examples is not None and truth is not None:
        truth = truth[: sum(shard.own)]
    true = _true_targets(truth, places, shard, processes)
    found = Targets.of(batch.targets)
    return Probe(
        batch.to(device), found, shard.total, probe_digest(batch), shard, true, suspects.first
    )


class _Suspects:
    """Looks for inputs that are nan or infinite while batches pass."""

    def __init__(self) -> None:
        self.first: tuple[int, Batch] | None = None

    def watch(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches."""
        start = 0
        for batch in batches:
            if self.first is None:
                index = _suspect(batch)
                if index is not None:
                    self.first = start + index, batch.take([index])
            start += len(batch)
            yield batch


def _suspect(batch: Batch) -> int | None:
    """The first example with nan or infinity among its inputs; minus infinity belongs to masks."""
    for leaf in tree_leaves((batch.args, dict(batch.kwargs))):
        if not isinstance(leaf, Tensor) or leaf.is_nested or leaf.layout != torch.strided:
            continue
        if not leaf.is_floating_point() or leaf.numel() == 0 or len(leaf) != len(batch):
            continue
        peak = leaf.detach().max()  # nan where one is
        if peak.isnan() or peak == torch.inf:
            rows = leaf.detach().flatten(1) if leaf.dim() > 1 else leaf.detach().unsqueeze(1)
            return int((rows.isnan() | (rows == torch.inf)).any(1).nonzero()[0])
    return None


def _kept(
    batches: Iterator[Batch],
    generator: torch.Generator,
    limit: int | None,
    shard: Shard | None = None,
) -> tuple[list[_Drawn], int]:
    """Examples that may be selected, each with a random number; and how many there were."""
    kept: list[_Drawn] = []
    waiting = given = 0
    start, classes = (0, None) if shard is None else (sum(shard.before), shard.classes)
    for batch in batches:
        places = start + given + torch.arange(len(batch))
        kept.append(_Drawn(batch, _keys(len(batch), generator), places))
        given, waiting = given + len(batch), waiting + len(batch)
        if limit is not None and waiting >= 2 * limit:
            kept = [_selected(kept, limit, classes)]
            waiting = limit
    return kept, given


def _kept_by_all(
    batches: Callable[[], Iterator[Batch]],
    processes: Processes,
    generator: torch.Generator,
    limit: int | None,
) -> tuple[list[_Drawn], Shard]:
    """The same for the data of all processes, with the random numbers of a single one."""
    shard = _find_shard(processes, batches)
    generator.set_state(processes.spread(generator.get_state()))
    for length in shard.before:
        _keys(length, generator)
    with processes.together():
        own, _ = _kept(batches() if shard.own else iter(()), generator, limit, shard)
        chosen = [_selected(own, limit or shard.total, shard.classes)] if own else []
    for length in shard.after:
        _keys(length, generator)
    return _exchanged(chosen, processes, limit or shard.total, shard), shard


def _exchanged(own: list[_Drawn], processes: Processes, limit: int, shard: Shard) -> list[_Drawn]:
    """The examples that are selected among those of all processes, and no others, everywhere."""
    known = [(part.keys, _labels(part.batch, shard.classes)) for part in own]
    offered = processes.gather(known)
    pairs = [pair for part in offered for pair in part]
    if not pairs:
        return []
    keys = torch.cat([part for part, _ in pairs])
    labels = None if pairs[0][1] is None else torch.cat([part for _, part in pairs])
    wanted = torch.zeros(len(keys), dtype=torch.bool)
    wanted[_first(keys, labels, limit)] = True
    found, start = [], 0
    for rank, part in enumerate(offered):
        count = sum(len(keys) for keys, _ in part)
        chosen = wanted[start : start + count].nonzero().flatten()
        start += count
        if len(chosen):
            picked = own[0].take(chosen) if rank == processes.rank else None
            sent = None if picked is None else picked._replace(batch=picked.batch.to("cpu"))
            found.append(processes.spread(sent, rank))
    return found


def _keys(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device).cpu()


def _selected(kept: list[_Drawn], limit: int, classes: bool | None = None) -> _Drawn:
    """The examples that come first when classes take turns, each class in random order.

    Any process may leave out what is not among its own first ones: an example's turn among all
    examples is never before its turn among some of them.
    """
    batch = single_batch([part.batch for part in kept])
    keys, places = (torch.cat(parts) for parts in list(zip(*kept, strict=True))[1:])
    return _Drawn(batch, keys, places).take(_first(keys, _labels(batch, classes), limit))


def _labels(batch: Batch, classes: bool | None) -> Tensor | None:
    return None if classes is False else Targets.of(batch.targets).labels


def _first(keys: Tensor, labels: Tensor | None, limit: int) -> Tensor:
    """Places of the examples that come first."""
    order = keys.argsort()
    if labels is not None:
        by_class = order[labels[order].argsort(stable=True)]
        counts = labels.bincount()
        starts = counts.cumsum(0) - counts
        turns = torch.arange(len(labels)) - starts[labels[by_class]]
        order = by_class[turns.argsort(stable=True)]
    return order[:limit]


def _find_shard(processes: Processes, batches: Callable[[], Iterable[Batch]]) -> Shard:
    """Count everybody's examples; goes through the data once, which for tensors is nothing.

    Args:
        processes: those that take part.
        batches: gives this process's batches, anew at every call.
    """
    with processes.together():
        found = _Outline.of(batches())
    everybody: list[_Outline] = processes.gather(found)
    rank = processes.rank
    kinds = {kind for outline in everybody for kind in outline.kinds}
    classes = kinds == {"classification"}
    first = everybody[0]
    if first.lengths and all(outline == first for outline in everybody):
        before = () if rank == 0 else first.lengths
        return Shard(before, first.lengths if rank == 0 else (), (), True, classes)
    before, after = (
        tuple(length for outline in some for length in outline.lengths)
        for some in (everybody[:rank], everybody[rank + 1 :])
    )
    return Shard(before, found.lengths, after, False, classes)


@dataclass(frozen=True)
class _Outline:
    """What processes tell each other about their data."""

    lengths: tuple[int, ...]
    kinds: tuple[str, ...]
    digest: str  # of the first batch: the same data everywhere, or not

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> "_Outline":
        lengths: list[int] = []
        kinds: set[str] = set()
        mark = ""
        for batch in batches:
            mark = mark or probe_digest(batch)
            lengths.append(len(batch))
            kinds.add(Targets.of(batch.targets).kind)
        return cls(tuple(lengths), tuple(sorted(kinds)), mark)


def probe_digest(batch: Batch) -> str:
    """SHA-256 over inputs and targets."""
    total = hashlib.sha256()
    for tensor in _tensors(batch):
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        total.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _tensors(batch: Batch) -> Iterator[Tensor]:
    for leaf in tree_flatten((batch.args, dict(batch.kwargs), batch.targets))[0]:
        if isinstance(leaf, Tensor):
            yield from leaf.unbind() if leaf.is_nested else (leaf,)


def require_order(data: Any, truth: Any) -> None:
    """Labels beside the data need data that come in one order.

    Raises:
        DomainError: If a loader shuffles.
    """
    if truth is None or not isinstance(data, DataLoader):
        return
    sampler = data.sampler
    if isinstance(sampler, RandomSampler) or getattr(sampler, "shuffle", False):
        raise DomainError(
            "truth: expected data in the order of the true labels, got a loader that shuffles; "
            "pass a loader with shuffle=False, or (inputs, targets)"
        )


def _true_targets(truth: Any, places: Tensor, shard: Shard, processes: Processes) -> Targets | None:
    """True labels of some examples; None where nobody gave any.

    Args:
        truth: of this process's examples, in their order.
        places: of the examples among those of all processes.
        shard: the part of the data that this process has.
        processes: those that take part.

    Raises:
        ShapeError: If a process gave more or fewer than it has examples.
        DomainError: If they are no labels or numbers, or one process gave none.
    """
    given = any(processes.gather(truth is not None))
    if not given:
        return None
    with processes.together():
        own = _own_truth(truth, sum(shard.own))
    parts = [part for part in processes.gather(own) if part is not None]
    with processes.together():
        found = Targets.of(torch.cat(parts)[places])
        if found.columns is None:
            raise DomainError(
                "truth: expected a label, or a row of numbers, for every example, got whole "
                "sequences; leave truth= out"
            )
    return found


def _own_truth(truth: Any, count: int) -> Tensor | None:
    """What this process adds to the true labels of all; None where it has no examples."""
    if count == 0:
        return None
    if truth is None:
        raise DomainError(
            f"truth: expected {count} true labels as in the other processes, got none; pass the "
            "part that goes with this process's data"
        )
    values = torch.as_tensor(truth).detach().cpu()
    if values.ndim == 0 or len(values) != count:
        raise ShapeError(
            f"truth: expected one label for each of {count} examples, got "
            f"{tuple(values.shape)}; pass them in the order of the data"
        )
    if not bool(values.isfinite().all()) or (values.ndim == 1 and _negative(values)):
        raise DomainError(
            "truth: expected class labels of at least 0 or finite numbers, got others; leave out "
            "examples that have none"
        )
    return values


def _negative(values: Tensor) -> bool:
    return not values.is_floating_point() and bool((values < 0).any())
