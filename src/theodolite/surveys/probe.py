"""The examples that all families share, and their targets: drawn once, balanced, hashed.

Each of several processes may hold a part of the data. Their parts follow each other by rank, and
all processes draw the probe that one process with all the data would.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils.data import DataLoader, RandomSampler

from theodolite._distributed import ALONE, Processes
from theodolite.engine import Batch, iterate_batches, single_batch
from theodolite.errors import DomainError, ShapeError
from theodolite.surveys.options import SurveyOptions
from theodolite.surveys.positions import Positions, PositionTask
from theodolite.surveys.targets import Targets, in_turns

__all__ = ["Probe", "draw_probe", "probe_digest", "require_order", "reusable"]


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
        groups: of the examples, such as their documents or domains; None where none were given.
        group_names: of the groups, in the order of their numbers.
        positions: those that were drawn, where labels come per position.
    """

    batch: Batch
    targets: Targets
    given: int
    digest: str
    shard: Shard = field(default_factory=Shard)
    truth: Targets | None = None
    suspect: tuple[int, Batch] | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    groups: Targets | None = None
    group_names: tuple[str, ...] = ()
    positions: Positions | None = None

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
        order = in_turns(torch.arange(len(labels)), labels, len(labels))
        batch = self.batch.take(order)
        if convert:
            batch = replace(batch, targets=labels[order].to(batch.targets.device))
        truth = None if self.truth is None else self.truth.take(order)
        return replace(self, batch=batch, targets=Targets.of_labels(labels[order]), truth=truth)

    def at_positions(self, task: PositionTask, options: SurveyOptions) -> "Probe":
        """The first of the examples with positions drawn from them; their targets are groups."""
        count = min(len(self), task.most(options))
        batch = self.batch.take(slice(0, count))
        drawn = task.draw(batch, options)
        groups = None if self.groups is None else self.groups.take(count)
        return replace(
            self,
            batch=replace(batch, positions=drawn.index.to(batch.targets.device)),
            targets=Targets("unlabeled") if groups is None else groups,
            truth=None,
            groups=groups,
            positions=drawn,
        )

    @property
    def by_position(self) -> bool:
        """Whether features are those of single positions."""
        return self.positions is not None and self.positions.task.unit == "token"

    @property
    def rows(self) -> Targets:
        """Targets of the rows of features: of positions, or of examples."""
        if self.positions is not None and self.by_position:
            return self.positions.targets
        return self.targets

    @property
    def row_count(self) -> int:
        """Rows of features that there are: positions, or examples."""
        return len(self.positions or ()) if self.by_position else len(self)


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
    groups: Any = None,
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
        groups: a number or a name for each of them, in their order.

    Raises:
        ShapeError: If there is no example, or there are more or fewer true labels or groups.
        DomainError: If true labels or groups are given for data in random order.
    """
    require_order(data, truth)
    require_order(data, groups, "groups")
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
    if options.examples is not None:
        own = sum(shard.own)
        truth, groups = (None if part is None else part[:own] for part in (truth, groups))
    found = Targets.of(batch.targets)
    grouped, names = _grouped(groups, places, shard, processes)
    if grouped is not None and grouped.labels is not None and found.labels is None:
        turns = in_turns(torch.arange(len(places)), grouped.labels, len(places))
        batch, places, grouped = batch.take(turns), places[turns], grouped.take(turns)
        found = Targets.of(batch.targets)
    true = _true_targets(truth, places, shard, processes)
    return Probe(
        batch.to(device),
        found,
        shard.total,
        probe_digest(batch),
        shard,
        true,
        suspects.first,
        groups=grouped,
        group_names=names,
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
    wanted[in_turns(keys, labels, limit)] = True
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
    return _Drawn(batch, keys, places).take(in_turns(keys, _labels(batch, classes), limit))


def _labels(batch: Batch, classes: bool | None) -> Tensor | None:
    return None if classes is False else Targets.of(batch.targets).labels


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


def require_order(data: Any, truth: Any, what: str = "truth") -> None:
    """Labels beside the data need data that come in one order.

    Raises:
        DomainError: If a loader shuffles.
    """
    if truth is None or not isinstance(data, DataLoader):
        return
    sampler, order = data.sampler, "the true labels" if what == "truth" else what
    if isinstance(sampler, RandomSampler) or getattr(sampler, "shuffle", False):
        raise DomainError(
            f"{what}: expected data in the order of {order}"
            ", got a loader that shuffles; pass a loader with shuffle=False, or (inputs, targets)"
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


def _grouped(
    groups: Any, places: Tensor, shard: Shard, processes: Processes
) -> tuple[Targets | None, tuple[str, ...]]:
    """Groups of some examples, numbered in the order of their names; None where there are none.

    Raises:
        ShapeError: If a process gave more or fewer than it has examples.
    """
    if not any(processes.gather(groups is not None)):
        return None, ()
    count = sum(shard.own)
    listed: list[Any] = []
    with processes.together():
        if groups is not None and count:
            listed = groups.tolist() if hasattr(groups, "tolist") else list(groups)
        if len(listed) != count:
            raise ShapeError(
                f"groups: expected one for each of {count} examples, got {len(listed)}; pass them "
                "in the order of the data"
            )
    known = [name for part in processes.gather(listed) for name in part]
    names = sorted(set(known))
    numbers = {name: number for number, name in enumerate(names)}
    labels = torch.tensor([numbers[name] for name in known])[places]
    return Targets.of_labels(labels), tuple(map(str, names))


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
