"""Sums of per-example gradients, for each layer and class, and the alignment that follows.

:func:`gradient_sums` measures in batches or, after a failure, one example at a time;
:mod:`theodolite.engine.class_sums` adds up. :func:`gradient_alignment` turns the sums into numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from theodolite._distributed import ALONE, Processes
from theodolite.checks import (
    require_choice,
    require_count,
    require_flag,
    require_function,
    require_kind,
    require_labels,
    require_same_length,
)
from theodolite.engine.batches import BATCH_SIZE, Batch, whole_batch
from theodolite.engine.check import Check, Checked, Checker, Measured, require_check
from theodolite.engine.class_sums import GradientAccumulation, LayerSums
from theodolite.engine.inputs import BatchList, require_model
from theodolite.engine.layers import (
    LayerMapping,
    Layers,
    Parameters,
    layers_text,
    own_parameters,
    require_real,
    unwrap,
)
from theodolite.engine.one_by_one import require_sound_fallback, tried_in_batches
from theodolite.engine.readouts import (
    LOSS,
    Loss,
    OutputChoice,
    Readout,
    first_output,
    per_example_loss,
    resolve_readout,
)
from theodolite.engine.runs import BatchLoss, ModelRecorder, Progress
from theodolite.engine.state import (
    exact_arithmetic,
    model_device,
    preserved_generators,
    require_fixed_mode,
    untouched,
)
from theodolite.linalg import mean_over_classes, ratio_or_nan

_LARGE_BATCH_SIZE = 512  # for a GPU with enough free memory: fewer and larger calls
_ROOMY_BYTES = 32 * 2**30


@dataclass(frozen=True)
class GradientSums(LayerMapping[LayerSums], Measured):
    """Layer -> sums of the gradients of its parameters, in order of registration.

    Args:
        names: The layers.
        stacked: Sums of all layers, then of all parameters together, then of the logits.
        labels: Class of each example.
        losses: Loss of each example.
        checked: How examples were measured, and what was checked.
    """

    names: tuple[str, ...]
    stacked: LayerSums
    labels: Int[Tensor, " n"]
    losses: Float[Tensor, " n"]
    checked: Checked

    @cached_property
    def layers(self) -> dict[str, LayerSums]:
        """The sums of each layer."""
        return {name: self.stacked.row(index) for index, name in enumerate(self.names)}

    def __repr__(self) -> str:
        return f"GradientSums({len(self.losses)} examples, {layers_text(self)})"

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
    params: Parameters = None,
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

    It takes one forward and one backward pass over the data. Gradients of single examples exist for
    one chunk of one layer at a time, or not at all if sums and norms follow from its factors. The
    value does not depend on the batch size beyond rounding. Some models (sorting, packing, routing,
    hidden uses of parameters) do not allow to divide the gradients of a batch among its examples.
    Plain autograd then measures one example at a time, and ``measured`` says so.

    Args:
        model: Any module, in evaluation mode; it is left as it was found.
        inputs: Anything that :func:`theodolite.engine.batches.whole_batch` accepts. The inputs of
            all examples are kept in memory.
        targets: Targets of the same examples, if ``inputs`` does not contain them.
        loss: (outputs, targets) -> one number per example. None: the cross-entropy or, with
            ``readout="loss"``, its mean over the labels per position of an example.
        labels: Class of each example. None: the targets if they are class indices; otherwise all
            examples form one class.
        layers: Names, patterns or a predicate; ``"*"`` takes layers with parameters of their own.
        params: The trainable parameters to include; None includes all.
        readout: (model output, batch) -> ``(n, c)``, or ``"last"``, ``"mean"``, ``"cls"``;
            ``"loss"`` for labels per position.
        stiffness: Also add up gradients divided by their norms; takes a second product per layer.
        batch_size: Examples in one pass; None takes 256, on large GPUs 512.
        batch_fn: Turns an item of the data into a batch.
        check: Check that each gradient depends on its own example only: in some batches (True), in
            all of them with every example by itself (``"every"``), or not at all (False).
            :mod:`theodolite.engine.check` says how, and what True can miss.
        progress: Function that is called after every batch with the finished share and a text.
        processes: Processes with the same model and inputs that share the work, in whole classes.

    Returns:
        Sums of gradients by class, for every layer.

    Raises:
        DomainError: If the model is in training mode where that changes results (batch statistics,
            dropout), has no trainable parameters, or has NaN in its weights.
        ShapeError: If the loss does not give one number per example.
        CaptureError: If examples depend on each other or on random numbers, or a rule is wrong.

    Examples:
        >>> model = nn.Linear(2, 2, bias=False)
        >>> sums = gradient_sums(model, torch.eye(2).repeat(2, 1), torch.tensor([0, 1, 0, 1]))
        >>> [round(omega, 4) for omega in sums[""].classes.alignment().tolist()]
        [1.0, 1.0]

    References:
        [mehta2021], Eqs. (4) to (6).
    """
    require_count(1, batch_size=BATCH_SIZE if batch_size is None else batch_size)
    require_check(check)
    require_flag(stiffness=stiffness)
    require_kind(Processes, processes=processes)
    require_kind((Tensor, type(None)), labels=labels)
    if progress is not None:
        require_function(progress=progress)
    require_model(model)
    plain = unwrap(model)
    require_fixed_mode(plain)
    owned = own_parameters(plain, layers, params)
    readouts = resolve_readout(readout)
    example_loss = per_example_loss(first_output if loss is None and readout == LOSS else loss)
    with preserved_generators(()):  # a loader draws random numbers
        whole = whole_batch(inputs, targets=targets, batch_fn=batch_fn)
    data = BatchList.of(model, inputs, [whole])
    classes = _labels(data.batches[0], labels)
    device = model_device(plain)
    size = batch_size or _batch_size(device, len(data))

    recorder = None

    def accumulate(one_by_one: bool) -> GradientAccumulation:
        nonlocal recorder
        if not one_by_one:
            choice, checker = OutputChoice("full"), Checker(check)
            recorder = ModelRecorder(plain, owned, readouts, choice, checker)
            require_real(owned)
        assert recorder is not None
        work = GradientAccumulation(
            recorder,
            example_loss,
            classes,
            stiffness,
            processes,
            one_by_one=one_by_one,
            progress=progress,
        )
        work.accumulate(data.batches[0], size)
        return work

    with untouched(plain), exact_arithmetic(device):
        work, error = tried_in_batches(plain, [data], lambda: accumulate(one_by_one=False))
        assert recorder is not None
        checked = recorder.checker.summary(error)
        failed = processes.gather(None if error is None else checked)
        checked = next((other for other in failed if other is not None), checked)
        if not checked.batched:  # in this process or in another one
            _check_fallback(recorder, example_loss, data.batches[0].to(device), error)
            work = accumulate(one_by_one=True)
        assert work is not None
        work.add_up()
        stacked = work.sums()
    return GradientSums(work.layers[:-2], stacked, classes, work.losses(), checked)


def _check_fallback(
    recorder: ModelRecorder, loss: BatchLoss, data: Batch, error: Exception | None
) -> None:
    def measure(one: Batch) -> None:
        single = replace(recorder, checker=Checker("every"))
        label = torch.zeros(1, dtype=torch.long)
        GradientAccumulation(single, loss, label, False).accumulate(one, 1)

    singles = [data.take(slice(k, k + 1)) for k in (0, len(data) - 1)]
    require_sound_fallback(recorder, [data], error, singles, measure)


def _batch_size(device: torch.device, examples: int) -> int:
    if examples <= BATCH_SIZE or device.type != "cuda":  # reading the free memory takes long
        return BATCH_SIZE
    roomy = torch.cuda.mem_get_info(device)[0] > _ROOMY_BYTES
    return _LARGE_BATCH_SIZE if roomy else BATCH_SIZE


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
        omega: Alignment of all pairs.
        in_class: Alignment within classes, averaged over the classes for which it is defined.
        contrast: The difference of the two.
        classes: Alignment within each class.
        weighted: Cosine of all pairs, weighted by the product of norms.
        diversity: Sum of squared norms, divided by the squared norm of the sum.
        relative_norm: Norm of the mean gradient, divided by the norm of the weights.
        stiffness: Mean cosine of all pairs, if unit vectors were added up.
        within_class_stiffness: The same within classes.
        between_class_stiffness: The same between classes.
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
        """The numbers of one layer out of several."""
        values: list[Any] = [getattr(self, field.name) for field in fields(self)]
        picked: list[Any] = [None if value is None else value[index] for value in values]
        return LayerGradientAlignment(*picked)


@dataclass(frozen=True)
class GradientAlignment(LayerMapping[LayerGradientAlignment]):
    """Layer -> alignment of its gradients.

    Args:
        stacked: Alignment of all layers, then of all parameters together, then of the logits.
        sums: The sums that the numbers were computed from.
    """

    stacked: LayerGradientAlignment
    sums: GradientSums

    @cached_property
    def layers(self) -> dict[str, LayerGradientAlignment]:
        """The alignment of each layer."""
        return {name: self.stacked.row(index) for index, name in enumerate(self.sums.names)}

    def __repr__(self) -> str:
        return f"GradientAlignment({len(self.sums.losses)} examples, {layers_text(self)})"

    @property
    def total(self) -> LayerGradientAlignment:
        """Alignment of the gradients of all parameters together; not the mean over layers."""
        return self.stacked.row(-2)

    @property
    def logits(self) -> LayerGradientAlignment:
        """Alignment of the gradients with respect to the outputs."""
        return self.stacked.row(-1)


def gradient_alignment(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    loss: Loss | None = None,
    *,
    zero: str = "nan",
    labels: Int[Tensor, " n"] | None = None,
    layers: Layers = "*",
    params: Parameters = None,
    readout: str | Readout | None = None,
    stiffness: bool = False,
    batch_size: int | None = None,
    batch_fn: Callable[[Any], Batch] | None = None,
    check: Check = True,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> GradientAlignment:
    r"""Alignment of the gradients of single examples, within classes and overall, per layer.

    .. math:: \Omega_\text{in-class} = \frac1k \sum_c \frac{n_c \sum_{i \ne j \in c}
              \langle g_i, g_j\rangle}{(n_c - 1) (\sum_{i \in c} \|g_i\|)^2}

    Args:
        model: Any module, in evaluation mode; it is left as it was found.
        inputs: Anything that :func:`theodolite.engine.batches.whole_batch` accepts.
        targets: Targets of the same examples, if ``inputs`` does not contain them.
        loss: (outputs, targets) -> one number per example; None is the cross-entropy.
        zero: Value of a class whose gradients are all zero: ``"nan"`` (left out) or ``"zero"``.
        labels: See :func:`gradient_sums`.
        layers: Names, patterns or a predicate; ``"*"`` takes layers with parameters of their own.
        params: The trainable parameters to include; None includes all.
        readout: See :func:`gradient_sums`.
        stiffness: Also the mean cosines of gradients; takes a second product per layer.
        batch_size: Examples in one pass; None takes 256, on large GPUs 512.
        batch_fn: Turns an item of the data into a batch.
        check: See :func:`gradient_sums`.
        progress: Function that is called after every batch with the finished share and a text.
        processes: Processes with the same model and inputs that share the work, in whole classes.

    Returns:
        Alignment, contrast and norms of per-example gradients, for every layer and the
        whole model.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False))
        >>> found = gradient_alignment(model, torch.ones(4, 2), torch.tensor([0, 0, 1, 1]))
        >>> round(found["0"].in_class.item(), 4)
        1.0

    References:
        [mehta2021], Eq. (6).
    """
    require_choice(("nan", "zero"), zero=zero)
    sums = gradient_sums(
        model,
        inputs,
        targets,
        loss,
        labels=labels,
        layers=layers,
        params=params,
        readout=readout,
        stiffness=stiffness,
        batch_size=batch_size,
        batch_fn=batch_fn,
        check=check,
        progress=progress,
        processes=processes,
    )
    return GradientAlignment(alignment_of_sums(sums.stacked, zero), sums)


def alignment_of_sums(sums: LayerSums, zero: str = "nan") -> LayerGradientAlignment:
    """Alignment, contrast and norms from the sums of one or several layers."""
    alignments, overall = sums.sets.alignment(zero), sums.overall
    classes, omega = alignments[..., :-1], alignments[..., -1]
    in_class = mean_over_classes(classes)
    mean_gradient = overall.sum_square.sqrt() / overall.count
    units = sums.units
    return LayerGradientAlignment(
        omega=omega,
        in_class=in_class,
        contrast=in_class - omega,
        classes=classes,
        weighted=overall.weighted_alignment(),
        diversity=overall.diversity(),
        relative_norm=ratio_or_nan(mean_gradient, sums.weight_norm),
        stiffness=None if units is None else units.stiffness(),
        within_class_stiffness=None if units is None else units.within_class(),
        between_class_stiffness=None if units is None else units.between_class(),
    )
