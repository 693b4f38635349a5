"""Sums of the gradients of single examples, per layer and class, and the alignment they give.

Examples go by in class order. Gradients of single examples never exist for more than one chunk of
one layer; what is kept is a norm per example and, per parameter, two sums.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from theodolite._distributed import ALONE, Processes
from theodolite.checks import require_choice, require_count, require_labels, require_same_length
from theodolite.engine.accumulation import GradientAccumulation, LayerSums
from theodolite.engine.batches import Batch, single_batch
from theodolite.engine.calls import DisagreementError
from theodolite.engine.check import (
    Check,
    Checked,
    ExampleCheck,
    can_run_alone,
    require_alone,
    require_check,
)
from theodolite.engine.inputs import fitted_batches, require_model
from theodolite.engine.layers import Layers, layers_text, own_parameters, require_real, unwrap
from theodolite.engine.readouts import (
    LOSS,
    Loss,
    OutputChoice,
    Readout,
    first_output,
    per_example_loss,
    resolve_readout,
)
from theodolite.engine.runs import ModelRecorder, Progress
from theodolite.engine.state import (
    exact_arithmetic,
    model_device,
    require_fixed_mode,
    untouched,
)
from theodolite.errors import CaptureError, UnknownNameError
from theodolite.linalg import contrast_from_sums, mean_over_classes, ratio_or_nan

__all__ = [
    "GradientAlignment",
    "GradientSums",
    "LayerGradientAlignment",
    "alignment_of_sums",
    "gradient_alignment",
    "gradient_sums",
]

_BATCH_SIZE = 256
_LARGE_BATCH_SIZE = 512  # where a GPU has room, fewer and larger calls
_ROOMY_BYTES = 32 * 2**30


@dataclass(frozen=True)
class GradientSums(Mapping[str, LayerSums]):
    """Layer -> sums of the gradients of its parameters, in order of registration.

    Args:
        names: the layers.
        stacked: sums of all layers side by side, then of all parameters, then of the logits.
        labels: class of each example.
        losses: loss of each example.
        checked: how examples were measured, and what was asked about it.
    """

    names: tuple[str, ...]
    stacked: LayerSums
    labels: Int[Tensor, " n"]
    losses: Float[Tensor, " n"]
    checked: Checked

    def __getitem__(self, layer: str) -> LayerSums:
        if layer not in self.names:
            raise UnknownNameError("layer", layer, self.names)
        return self.stacked.row(self.names.index(layer))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"GradientSums({len(self.losses)} examples, {layers_text(self)})"

    @property
    def measured(self) -> str:
        """How examples were measured, in words."""
        return self.checked.measured

    @property
    def total(self) -> LayerSums:
        """Sums for all parameters together."""
        return self.stacked.row(-2)

    @property
    def logits(self) -> LayerSums:
        """Sums of the gradients with respect to the outputs of the model."""
        return self.stacked.row(-1)


def gradient_sums(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    loss: Loss | None = None,
    *,
    labels: Int[Tensor, " n"] | None = None,
    layers: Layers = "*",
    params: Any = None,
    readout: str | Readout | None = None,
    stiffness: bool = False,
    batch_size: int | None = None,
    batch_fn: Callable[[Any], Batch] | None = None,
    check: Check = True,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> GradientSums:
    r"""Sums of per-example gradients :math:`g_i = \nabla \ell_i`, per layer and class.

    .. math:: n_c,\quad \Big\|\sum_{i\in c} g_i\Big\|^2,\quad \sum_{i\in c} \|g_i\|,
              \quad \sum_{i\in c} \|g_i\|^2

    One forward and one backward pass over the data, without the gradients of the weights, and
    products of the size of those. The value does not depend on the batch size beyond rounding.
    Where examples cannot be followed through the model together (sorting, packing, routing, hidden
    uses of parameters), they are measured one by one by plain autograd; ``measured`` says so.

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        inputs: anything that :func:`theodolite.engine.batches.single_batch` accepts; the inputs
            of all examples are kept.
        targets: of the same examples, where ``inputs`` does not hold them.
        loss: (outputs, targets) -> one number per example; None is the cross-entropy, with
            ``readout="loss"`` the mean over the labels per position of an example.
        labels: class of each example; None takes the targets where they are class indices, else
            all examples form one class.
        layers: names, patterns or a predicate; ``"*"`` takes layers with parameters of their own.
        params: which trainable parameters count; None takes all.
        readout: (model output, batch) -> ``(n, c)``, or ``"last"``, ``"mean"``, ``"cls"``;
            ``"loss"`` for labels per position.
        stiffness: also add up gradients divided by their norms, a second product per layer.
        batch_size: examples in one pass; None takes 256, on large GPUs 512.
        batch_fn: turns an item of the data into a batch.
        check: ask whether each example's gradient is its own (:mod:`theodolite.engine.check`), for
            one to one and a half plain passes in each batch that is asked. True asks the first
            batch, some at random and those with suspect calls, and runs one example of every batch
            alone; it can miss a few examples that their company changes and that are not drawn.
            ``"every"`` asks all batches and runs every example alone. False asks nothing.
        progress: called with the share that is done and what was done, after every batch.
        processes: that have the same model and inputs and share the work, in whole classes.

    Raises:
        DomainError: If the model normalises over the batch, drops out units, has no trainable
            parameters or NaN in its weights.
        ShapeError: If the loss does not give one number per example.
        CaptureError: If examples depend on each other or on chance, or a rule is wrong.

    Example:
        >>> model = nn.Linear(2, 2, bias=False)
        >>> sums = gradient_sums(model, torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 0, 1]))
        >>> [round(omega, 4) for omega in sums[""].classes.alignment().tolist()]
        [1.0, 1.0]

    References:
        [mehta2021], Eqs. (4) to (6).
    """
    require_count(1, batch_size=_BATCH_SIZE if batch_size is None else batch_size)
    require_check(check)
    plain = unwrap(model)
    require_fixed_mode(plain)
    owned = own_parameters(plain, layers, params)
    loss = first_output if loss is None and readout == LOSS else loss
    functions = OutputChoice("full")
    readouts = resolve_readout(readout)
    recorder = ModelRecorder(plain, owned, readouts, functions, ExampleCheck(check))
    data = single_batch(inputs, targets=targets, batch_fn=batch_fn)
    classes = _labels(data, labels)
    device = model_device(plain)
    size = batch_size or _batch_size(device, len(data))

    def accumulate(alone: bool) -> GradientAccumulation:
        arguments = recorder, per_example_loss(loss), classes, stiffness, processes
        work = GradientAccumulation(*arguments, alone=alone)
        work.progress = progress
        work.run(data, size)
        return work

    with untouched(plain), exact_arithmetic(device):
        error: Exception | None = None
        try:
            require_real(owned)
            work = accumulate(False)
        except Exception as raised:
            if not can_run_alone(raised):
                raise
            error = raised
        checked = recorder.check.summary(error)
        others = processes.gather(None if error is None else checked)
        found = next((other for other in others if other is not None), None)
        if found is not None:
            failed = [] if recorder.batch is None else [recorder.batch]
            require_alone(plain, recorder.model_outputs, [*failed, data.to(device)])
            if isinstance(error, DisagreementError):
                _require_sound_rules(recorder, per_example_loss(loss), data.to(device))
            work, checked = accumulate(True), found
        work.add_up()
        stacked = work.sums()
    return GradientSums(work.layers[:-2], stacked, classes, work.losses(), checked)


def _require_sound_rules(
    recorder: ModelRecorder, loss: Callable[[Tensor, Batch], Tensor], data: Batch
) -> None:
    """Single examples agree with autograd: otherwise the rules are to blame, not the places."""
    for place in (0, len(data) - 1):
        one = data.take(slice(place, place + 1))
        labels = torch.zeros(1, dtype=torch.long)
        single = replace(recorder, check=ExampleCheck("every"))
        try:
            GradientAccumulation(single, loss, labels, False).run(one, 1)
        except DisagreementError as error:
            functions = sorted({use.function for use in single.run(one).uses})
            raise CaptureError(f"{error}; {recorder.wrong_rule(functions)}") from error


def _batch_size(device: torch.device, examples: int) -> int:
    if examples <= _BATCH_SIZE or device.type != "cuda":  # to ask for the memory takes long
        return _BATCH_SIZE
    roomy = torch.cuda.mem_get_info(device)[0] > _ROOMY_BYTES
    return _LARGE_BATCH_SIZE if roomy else _BATCH_SIZE


def _labels(data: Batch, labels: Tensor | None) -> Tensor:
    targets = data.targets
    if labels is None and isinstance(targets, Tensor) and targets.ndim == 1:
        is_index = not (targets.is_floating_point() or targets.dtype == torch.bool)
        labels = targets if is_index else None
    if labels is None:
        return torch.zeros(len(data), dtype=torch.long)
    require_labels(labels)
    require_same_length(inputs=torch.empty(len(data)), labels=labels)
    return labels.detach().cpu().long()


@dataclass(frozen=True)
class LayerGradientAlignment:
    """Agreement of the gradients of one layer.

    Args:
        omega: alignment of all pairs.
        in_class: alignment within classes, averaged over classes where it is defined.
        contrast: the difference of the two.
        classes: alignment within each class.
        weighted: cosine of all pairs, weighted by the product of norms.
        diversity: sum of squared norms over squared norm of the sum.
        relative_norm: norm of the mean gradient over the norm of the weights.
        stiffness: mean cosine of all pairs, where unit vectors were added up.
        within_class_stiffness: the same within classes.
        between_class_stiffness: the same between classes.
    """

    omega: Float[Tensor, "*layers"]
    in_class: Float[Tensor, "*layers"]
    contrast: Float[Tensor, "*layers"]
    classes: Float[Tensor, "*layers k"]
    weighted: Float[Tensor, "*layers"]
    diversity: Float[Tensor, "*layers"]
    relative_norm: Float[Tensor, "*layers"]
    stiffness: Float[Tensor, "*layers"] | None = None
    within_class_stiffness: Float[Tensor, "*layers"] | None = None
    between_class_stiffness: Float[Tensor, "*layers"] | None = None

    def row(self, index: int) -> "LayerGradientAlignment":
        """One of several layers side by side."""
        values: list[Any] = [getattr(self, field.name) for field in fields(self)]
        picked: list[Any] = [None if value is None else value[index] for value in values]
        return LayerGradientAlignment(*picked)


@dataclass(frozen=True)
class GradientAlignment(Mapping[str, LayerGradientAlignment]):
    """Layer -> alignment of its gradients.

    Args:
        stacked: alignment of all layers side by side, then of all parameters, then of the logits.
        sums: what the numbers were made of.
    """

    stacked: LayerGradientAlignment
    sums: GradientSums

    def __getitem__(self, layer: str) -> LayerGradientAlignment:
        if layer not in self.sums.names:
            raise UnknownNameError("layer", layer, self.sums.names)
        return self.stacked.row(self.sums.names.index(layer))

    def __iter__(self) -> Iterator[str]:
        return iter(self.sums)

    def __len__(self) -> int:
        return len(self.sums)

    def __repr__(self) -> str:
        return f"GradientAlignment({len(self.sums.losses)} examples, {layers_text(self)})"

    @property
    def total(self) -> LayerGradientAlignment:
        """Of all parameters together; not the mean over layers."""
        return self.stacked.row(-2)

    @property
    def logits(self) -> LayerGradientAlignment:
        """Of the gradients with respect to the outputs."""
        return self.stacked.row(-1)


def gradient_alignment(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    loss: Loss | None = None,
    *,
    zero: str = "nan",
    **options: Any,
) -> GradientAlignment:
    r"""Alignment of the gradients of single examples, within classes and overall, per layer.

    .. math:: \Omega_\text{in-class} = \frac1k \sum_c \frac{n_c \sum_{i \ne j \in c}
              \langle g_i, g_j\rangle}{(n_c - 1) (\sum_{i \in c} \|g_i\|)^2}

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        inputs: anything that :func:`theodolite.engine.batches.single_batch` accepts.
        targets: of the same examples, where ``inputs`` does not hold them.
        loss: (outputs, targets) -> one number per example; None is the cross-entropy.
        zero: value of a class whose gradients are all zero, ``"nan"`` (left out) or ``"zero"``.
        **options: of :func:`gradient_sums`: ``labels``, ``layers``, ``params``, ``readout``,
            ``stiffness``, ``batch_size``, ``batch_fn``, ``check``, ``processes``.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False))
        >>> found = gradient_alignment(model, torch.ones(4, 2), torch.tensor([0, 0, 1, 1]))
        >>> round(found["0"].in_class.item(), 4)
        1.0

    References:
        [mehta2021], Eq. (6).
    """
    require_choice(("nan", "zero"), zero=zero)
    require_model(model)
    if not isinstance(inputs, Batch):
        batch_fn = options.pop("batch_fn", None)
        batch = single_batch(inputs, targets=targets, batch_fn=batch_fn)
        (inputs,), targets = fitted_batches(model, inputs, [batch]), None
    sums = gradient_sums(model, inputs, targets, loss, **options)
    return GradientAlignment(alignment_of_sums(sums.stacked, zero), sums)


def alignment_of_sums(sums: LayerSums, zero: str = "nan") -> LayerGradientAlignment:
    """The numbers that follow from the sums of one layer, or of several side by side."""
    classes, omega = sums.classes.alignment(zero), sums.overall.alignment(zero)
    mean_gradient = sums.overall.sum_square.sqrt() / sums.overall.count
    units = sums.units
    return LayerGradientAlignment(
        omega=omega,
        in_class=mean_over_classes(classes),
        contrast=contrast_from_sums(sums.classes, sums.overall, zero),
        classes=classes,
        weighted=sums.overall.weighted_alignment(),
        diversity=sums.overall.diversity(),
        relative_norm=ratio_or_nan(mean_gradient, sums.weight_norm),
        stiffness=None if units is None else units.stiffness(),
        within_class_stiffness=None if units is None else units.within_class(),
        between_class_stiffness=None if units is None else units.between_class(),
    )
