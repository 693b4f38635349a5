"""Tasks with labels per position: the positions that families measure, drawn once.

Features are those of single positions, drawn evenly over classes. Gradients are those of whole
sequences, whose loss is the mean over their positions.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from theodolite.advice.reasons import Reason, about_positions
from theodolite.engine import (
    IGNORED,
    AtPositions,
    Batch,
    Loss,
    PositionLabels,
    main_tensor,
)
from theodolite.errors import DomainError
from theodolite.linalg import target_columns
from theodolite.surveys.options import MONITOR_SIZES, SIZES, SurveyOptions
from theodolite.surveys.targets import Targets, Task, in_turns, turns_of

Unit = Literal["token", "sequence"]

_MANY_CLASSES = 64  # from this number of outputs on, only the most frequent labels are measured
_FREQUENT = 10  # number of most frequent labels
_SEQUENCES, _MONITORED = 64, 16  # default numbers of examples: survey, monitor
_POSITIONS = 2**15  # more examples are used while all their positions are fewer than this
_SPREAD = 4  # positions drawn from one example are at most this multiple of the mean
_SAME = 1e-3  # largest relative change of a causal model if later tokens change
_STREAM = 7  # stream of random numbers, besides those of the probe set and the permutations


@dataclass(frozen=True)
class PositionTask:
    """A task with labels per position, as found in a model and its data.

    Args:
        name: "next-token prediction", "token classification", "segmentation" and the like.
        labels: how labels are arranged beside outputs.
        classes: labels that are measured, in numerical order; None for real numbers.
        loss: (outputs, batch) -> one number per example.
        unit: "token" or "sequence", the unit of features.
        outside: a module whose layers have other positions, such as an encoder; or None.
    """

    name: str
    labels: PositionLabels
    classes: tuple[int, ...] | None
    loss: Callable[[Tensor, Batch], Tensor]
    unit: Unit = "token"
    outside: str | None = None

    @property
    def pool(self) -> AtPositions:
        """Reads features at positions."""
        return AtPositions(self.labels.grid)

    def loss_readout(self, output: Any, batch: Batch) -> Tensor:
        """The loss of every example, (n, 1)."""
        return self.loss(main_tensor(output), batch).unsqueeze(1)

    def position_readout(self, output: Any, batch: Batch) -> Tensor:
        """Outputs of the classes at the first position of every example, (n, c)."""
        assert batch.positions is not None
        rows = self.labels.rows(main_tensor(output))
        places = batch.positions[:, :1].to(rows.device).clamp(min=0)
        picked = rows.gather(1, places.unsqueeze(2).expand(-1, -1, rows.shape[2])).squeeze(1)
        if self.labels.kind != "classes":
            return picked
        return picked[:, torch.tensor(self.classes, device=rows.device)]

    def tangent_readout(self, output: Any, batch: Batch) -> Tensor:
        """The functions of tangent kernels: outputs at a position, or losses of examples."""
        read = self.position_readout if self.unit == "token" else self.loss_readout
        return read(output, batch)

    def reader(self, output: Any, batch: Batch) -> Tensor:
        """The loss of every example, and for its positions whether the largest output is right."""
        values = main_tensor(output)
        loss = self.loss(values, batch).unsqueeze(1)
        if batch.positions is None or self.classes is None:
            return loss
        places = batch.positions.to(values.device).clamp(min=0)
        wanted = self.labels.targets(batch).gather(1, places)
        rows = self.labels.rows(values)
        picked = rows.gather(1, places.unsqueeze(2).expand(-1, -1, rows.shape[2]))
        predicted = (picked[:, :, 0] > 0).long() if picked.shape[2] == 1 else picked.argmax(2)
        return torch.cat([loss, (predicted == wanted).to(loss)], 1)

    def most(self, options: SurveyOptions) -> int:
        """Number of examples: as requested, or few by default, because each is long."""
        few = max(_SEQUENCES, _POSITIONS // self.labels.count)
        asked = [family for family in ("gradient", "tangent") if family in options.families]
        found = [few] if not asked else []
        for family in asked:
            size = options.sizes[family]
            if size is None or size == SIZES[family]:
                size = few if size is None else min(few, size)
            elif size == MONITOR_SIZES[family]:
                size = min(_MONITORED, size)
            found.append(size)
        return max(found)

    def behind_first(self, batch: Batch) -> Bool[Tensor, "n p"]:
        """Tokens of every example without its first, unless it has no other.

        At the first token causal models have activations that are a hundred times as long as others
        and nearly equal in all texts ([sun2024massive]). Attention heads without a relevant token
        attend to it ([xiao2024sinks]). A few such tokens would dominate all alignments of features.
        """
        count = self.labels.count
        if self.labels.masked and batch.mask is not None:
            tokens = batch.mask.reshape(len(batch), count).bool()
        else:
            tokens = torch.ones(len(batch), count, dtype=torch.bool, device=batch.targets.device)
        return tokens & ((tokens.cumsum(1) > 1) | (tokens.sum(1, keepdim=True) == 1))

    def draw(self, batch: Batch, options: SurveyOptions) -> "Positions":
        """Draw positions evenly over classes, without the first tokens of causal models."""
        counted, labels = self.labels.counted(batch).cpu(), self.labels.targets(batch).cpu()
        if self.labels.masked and batch.mask is not None:
            # The label of padding before a text is its first token, but padding is not text.
            counted = counted & batch.mask.reshape(counted.shape).cpu().bool()
        if self.labels.shift:
            behind = counted & self.behind_first(batch).cpu()
            counted = behind if bool(behind.any()) else counted
        if self.classes is not None:
            known = torch.tensor(self.classes)
            labels = torch.searchsorted(known, labels.clamp(min=0)).clamp(max=len(known) - 1)
            counted = counted & (known[labels] == self.labels.targets(batch).cpu())
        places = counted.flatten().nonzero().flatten()
        sizes = [options.sizes[family] for family in ("representation", "kernel")]
        limit = len(places) if None in sizes else max(size or 0 for size in sizes)
        generator = options.seeded(_STREAM)
        keys = torch.rand(len(places), generator=generator, device=generator.device).cpu()
        if self.classes is None:
            chosen = places[in_turns(keys, None, limit)]
        else:
            chosen = places[in_turns(keys, labels.flatten()[places], limit)]
        examples = chosen // self.labels.count
        turns = turns_of(examples)
        cap = max(8, -(-_SPREAD * limit // len(batch)))
        chosen, examples, turns = (part[turns < cap] for part in (chosen, examples, turns))
        width = int(turns.max()) + 1 if len(turns) else 1
        index = torch.full((len(batch), width), -1)
        index[examples, turns] = chosen % self.labels.count
        if self.classes is None:
            targets = Targets.of_numbers(labels.flatten(0, 1)[chosen])
        else:
            columns = target_columns(labels.flatten()[chosen], len(self.classes))
            targets = Targets(Task.CLASSES, labels.flatten()[chosen], columns)
        return Positions(self, index, examples * width + turns, targets)


@dataclass(frozen=True)
class Positions:
    """The drawn positions of a probe set, in the order in which families use them.

    Args:
        task: the task with labels per position.
        index: drawn positions of every example, along the grid; -1 for none.
        order: places of the drawn positions in the flattened index; classes alternate.
        targets: targets of the drawn positions, in that order.
    """

    task: PositionTask
    index: Int[Tensor, "n k"]
    order: Int[Tensor, " m"]
    targets: Targets

    def __len__(self) -> int:
        return len(self.order)

    def rows(self, features: Tensor, count: int) -> Tensor:
        """Features (n, k d) of all examples as rows of the first drawn positions, (m, d)."""
        flat = features.reshape(self.index.numel(), -1)
        return flat[self.order[:count].to(flat.device)]

    def singles(self, batch: Batch, count: int) -> tuple[Batch, Targets]:
        """Examples with drawn positions, each with its first one, and the targets of these."""
        examples = self.order // self.index.shape[1]
        firsts = (turns_of(examples) == 0).nonzero().flatten()[:count]
        places = self.index.flatten()[self.order[firsts]].unsqueeze(1)
        taken = batch.take(examples[firsts])
        return replace(taken, positions=places), self.targets.take(firsts)


def find_task(
    model: nn.Module,
    outputs: Tensor,
    few: Batch,
    batch: Batch,
    options: SurveyOptions,
    loss: Loss | None,
) -> tuple[PositionTask, dict[str, Reason]] | None:
    """The task with labels per position, and notes about the choices; None for other tasks.

    Raises:
        DomainError: If no position has a label, or chosen classes are not labels.
    """
    if outputs.dim() == 0:  # a mean over the batch: not one answer per example
        return None
    like = outputs[:1].expand(len(batch), *outputs.shape[1:])
    labels = PositionLabels.of(like, batch)
    if labels is None:
        return None
    if labels.shift and not _is_causal(model, outputs, few):
        labels = replace(labels, shift=0)
    counted = labels.counted(batch)
    if not bool(counted.any()):
        raise DomainError(
            "targets: expected a label at some position, but all are "
            f"{IGNORED}, or padding by the attention mask; check the labels and the mask"
        )
    classes = None
    if labels.kind != "numbers":
        found = labels.targets(batch)[counted].cpu()
        _require_labels(found, labels)
        classes = _classes(found, labels, options)
    name = _name(model, labels, few)
    unit: Unit = "token" if options.pool is None else "sequence"
    if options.unit is not None:
        unit = "sequence" if options.unit == "sequence" else "token"
    whole = None if loss is None else _of_outputs(loss)
    outside = _encoder(model) if "decoder_input_ids" in batch.kwargs else None
    task = PositionTask(name, labels, classes, whole or labels.loss, unit, outside)
    return task, _notes(task, counted, options)


def _of_outputs(loss: Loss) -> Callable[[Tensor, Batch], Tensor]:
    return lambda outputs, batch: loss(outputs, batch.targets)


def _is_causal(model: nn.Module, outputs: Tensor, few: Batch) -> bool:
    """Whether outputs are unchanged if only later tokens change."""
    half = few.targets.shape[1] // 2

    def later(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.shape != few.targets.shape or leaf is few.mask:
            return leaf
        if leaf.is_floating_point() or leaf.dtype == torch.bool:
            return leaf
        changed = leaf.clone()
        changed[:, half:] = (leaf[:, half:] == 0).to(leaf.dtype)
        return changed

    with torch.no_grad():
        other = main_tensor(few.map_inputs(later).run(model))[:, :half]
    same = outputs[:, :half]
    return half > 0 and bool((other - same).abs().max() <= _SAME * same.abs().max())


def _require_labels(found: Tensor, labels: PositionLabels) -> None:
    most = max(2, labels.outputs)
    if int(found.min()) < 0 or int(found.max()) >= most:
        wrong = int(found.min()) if int(found.min()) < 0 else int(found.max())
        raise DomainError(
            f"targets: expected labels from 0 to {most - 1}, the number of outputs of a position "
            f"less one, or {IGNORED} where a position does not count, got {wrong}"
        )


def _classes(found: Tensor, labels: PositionLabels, options: SurveyOptions) -> tuple[int, ...]:
    """The measured labels: the chosen ones, the most frequent of many, or all."""
    values, counts = torch.unique(found, return_counts=True)
    asked = [label for label in options.classes or () if isinstance(label, int)]
    if asked:
        strange = sorted(set(asked) - set(values.tolist()))
        if strange:
            raise DomainError(
                f"classes: expected labels that the examples have, got {strange}, which occur at "
                "no position"
            )
        return tuple(sorted(set(asked)))
    if labels.outputs > _MANY_CLASSES:
        values = values[counts.argsort(descending=True, stable=True)[:_FREQUENT]]
    return tuple(sorted(values.tolist()))


def _name(model: nn.Module, labels: PositionLabels, few: Batch) -> str:
    if labels.kind == "numbers":
        return "dense regression"
    if len(labels.grid) > 1:
        return "segmentation"
    if labels.shift:
        return "next-token prediction"
    if "decoder_input_ids" in few.kwargs:
        return "sequence to sequence"
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    return "masked-token prediction" if labels.outputs == vocabulary else "token classification"


def _encoder(model: nn.Module) -> str | None:
    """Name of the encoder, which has the positions of the inputs."""
    find = getattr(model, "get_encoder", None)
    encoder = find() if callable(find) else None
    return next((name for name, module in model.named_modules() if module is encoder), None)


def _notes(task: PositionTask, counted: Tensor, options: SurveyOptions) -> dict[str, Reason]:
    labels, alone = task.labels, task.unit == "token"
    classes = list(map(str, task.classes or ())) if alone else []
    pool = str(options.describe()["pool"]) if options.pool else "mean"
    text = about_positions(
        task.name,
        int(counted.sum()),
        counted.numel(),
        shifted=labels.shift > 0,
        pool=None if alone else pool,
        labels=[*classes[:_FREQUENT], *(["..."] if len(classes) > _FREQUENT else [])],
        frequent=len(classes) < labels.outputs,
        skips_first=labels.shift > 0 and (alone or options.pool in (None, "mean", "max")),
        own_loss=task.loss != labels.loss,
    )
    return {"positions": text}
