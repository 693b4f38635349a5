"""Comparisons with plain autograd: gradients, kernels, their range, and finite numbers.

The check (:mod:`theodolite.engine.check`) draws the examples and the weights. This module compares
the weighted gradients of the batch with those of plain autograd. It does so for sums of gradients
(:func:`compare_gradients`), kernels (:func:`compare_kernels`) and their quadratic forms
(:func:`compare_forms`). A kernel or a gradient outside the range of its dtype is refused.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from theodolite.checks import dtype_text
from theodolite.engine.batches import Batch
from theodolite.engine.calls import CannotSplitError, WrongGradientError, tensors_in
from theodolite.engine.check import Rerun, run_again
from theodolite.engine.rounding import (
    BACKWARD_FACTOR,
    VANISHING_SHARE,
    inner_product,
    norm_of,
    norms_of,
    wide,
)
from theodolite.errors import CaptureError, NotFiniteError, RangeError

if TYPE_CHECKING:
    from theodolite.engine.factors import Factors
    from theodolite.engine.inputs import BatchList
    from theodolite.engine.runs import ModelRecorder

# Kernels above this multiple of the smallest number of their dtype have all digits.
_SAFE_MULTIPLE = 1e6


def rerun_gradients(
    recorder: "ModelRecorder",
    rerun: Rerun,
    output_weights: Sequence[Float[Tensor, "m c"]],
) -> Iterator[dict[str, Tensor]]:
    """For each set of weights, the gradients of the weighted outputs that run again, in turn."""
    outputs = torch.cat([*run_again(recorder, rerun)])
    for weights in output_weights:  # later comparisons use the graph of the single run again
        yield plain_gradients(outputs, recorder.ownership.parameters, weights, keep=True)


def part_gradients(recorder: "ModelRecorder", rerun: Rerun) -> Iterator[dict[str, Tensor]]:
    """Gradient of the weighted outputs of each part that runs again; the last is one example."""
    weights = rerun.output_weights
    for outputs in run_again(recorder, rerun):
        own, weights = weights[: len(outputs)], weights[len(outputs) :]
        yield plain_gradients(outputs, recorder.ownership.parameters, own)


def compare_gradients(
    recorder: "ModelRecorder",
    found: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    sizes: Mapping[str, float],
) -> None:
    """Compare weighted sums of gradients with those of plain autograd, for every parameter.

    A missing sum is zero. ``sizes`` are roots of the sums of the squared norms of the terms.
    """
    names = list(dict.fromkeys([*found, *wanted]))

    def difference(name: str) -> Tensor:
        if name not in wanted:
            return found[name]
        if name not in found:
            return wanted[name]
        return found[name].flatten() - wanted[name].flatten().to(found[name])

    with torch.no_grad():
        norms = [torch.linalg.vector_norm(wide(difference(name))) for name in names]
        gaps = torch.stack(norms).tolist() if norms else []
    terms = [sizes.get(name, 0.0) for name in names]
    limit = BACKWARD_FACTOR * recorder.tolerance
    if all(gap <= limit * size < math.inf for gap, size in zip(gaps, terms, strict=True)):
        return  # nothing else needs to be known
    for index, (name, gap, size) in enumerate(zip(names, gaps, terms, strict=True)):
        if name not in found or math.isfinite(gap + size):
            continue
        if name in wanted and wanted[name].isfinite().all():
            _require_in_range(name, found[name], size)
        gaps[index] = float(norm_of(difference(name)))
    known = dict(zip(wanted, norms_of(list(wanted.values())), strict=True))
    scales = [max(known.get(name, 0.0), size) for name, size in zip(names, terms, strict=True)]
    require_rounding(recorder, names, gaps, scales)


def _require_in_range(name: str, total: Tensor, size: float) -> None:
    if math.isfinite(size) and total.isfinite().all():
        return
    raise NotFiniteError(
        f"gradients with respect to {name!r}: expected sums within the range of "
        f"{dtype_text(total.dtype)}, got infinity; measure model.double(), with inputs in float64"
    )


def require_rounding(
    recorder: "ModelRecorder", names: Sequence[str], gaps: Sequence[float], scales: Sequence[float]
) -> None:
    """Check that gaps, the norms of differences from plain autograd, are rounding."""
    limit, whole = BACKWARD_FACTOR * recorder.tolerance, math.hypot(*scales)
    unit = min(recorder.unit, limit * VANISHING_SHARE)
    for name, gap, scale in zip(names, gaps, scales, strict=True):
        if not gap <= limit * scale + unit * whole:
            raise _disagrees(
                f"gradients with respect to {name!r}: expected weighted sums that agree with "
                f"autograd, got a relative difference of {_ratio(gap, scale):.2g}",
                vanishing=gap <= limit * (scale + VANISHING_SHARE * whole),
            )


def _disagrees(text: str, *, vanishing: bool) -> CannotSplitError:
    """Plain autograd gives another gradient; for a vanishing one, rounding may be the reason."""
    return CannotSplitError(text) if vanishing else WrongGradientError(text)


def _ratio(gap: float, scale: float) -> float:
    return gap / scale if scale > 0 else math.inf


def compare_kernels(
    recorder: "ModelRecorder",
    kernels: Mapping[str, Tensor],
    sides: tuple[Sequence[Rerun], Sequence[Rerun]],
) -> None:
    r"""Compare kernels of the examples that run again with plain autograd.

    :math:`u^T K_l v` of every layer must be the inner product of the gradients of ``sum u f`` and
    ``sum v f``. A kernel that is summed over outputs, or has one entry per output, takes one such
    gradient for every output. Checked batches of both sides are paired in order; the shorter list
    is repeated.
    """
    left, right = sides
    for index in range(max(len(left), len(right)) if left and right else 0):
        first, second = left[index % len(left)], right[index % len(right)]
        _compare_block(recorder, kernels, first, second)


def _compare_block(
    recorder: "ModelRecorder",
    kernels: Mapping[str, Tensor],
    left: Rerun,
    right: Rerun,
) -> None:
    mode = recorder.choice.mode
    of_columns: Iterator[dict[str, Tensor]] = iter(())
    if left is not right:
        of_columns = rerun_gradients(recorder, right, right.weights_by_output(mode))
    squares: list[dict[str, float]] = []
    products = squares if left is right else []
    for first in rerun_gradients(recorder, left, left.weights_by_output(mode)):
        norms = zip(first, norms_of([*first.values()]), strict=True)
        squares.append({name: norm * norm for name, norm in norms})
        if left is not right:
            second = next(of_columns)
            names = [name for name in first if name in second]
            products.append(
                {name: float(inner_product(first[name], second[name])) for name in names}
            )
            del second  # before the next gradient of the other side
    wanted = {
        layer: sum((found[name] for found in products for name in names if name in found), 0.0)
        for layer, names in recorder.ownership.layers.items()
    }
    _compare_groups(recorder, left, squares)
    u, v = left.output_weights, right.output_weights
    u, v = (u.flatten(), v.flatten()) if mode == "full" else (u[:, 0], v[:, 0])
    rows, columns = (side.index + side.start for side in (left, right))
    parts = [_entries(kernel, rows, columns, mode) for kernel in kernels.values()]
    v = v.to(parts[0])
    forms = (torch.stack([part @ v for part in parts]).to(u) @ u).tolist()
    by_layer, sizes = (dict(zip(kernels, found, strict=True)) for found in (forms, norms_of(parts)))
    compare_forms(recorder, by_layer, wanted, sizes)


def compare_forms(
    recorder: "ModelRecorder",
    forms: Mapping[str, float],
    wanted: Mapping[str, float],
    scales: Mapping[str, float],
) -> None:
    """Compare quadratic forms of layers' kernels with inner products of two plain gradients.

    ``scales`` are the norms of the terms of each form.
    """
    bases = {layer: max(scales[layer], abs(wanted[layer])) for layer in forms}
    limit, whole = BACKWARD_FACTOR * recorder.tolerance, math.hypot(*bases.values()) ** 0.5

    def explained(gap: float, base: float, rounding: float) -> bool:
        """A form is a product of two gradients, each of which contains rounding."""
        left = rounding * whole
        return gap <= limit * base + left * (2 * base**0.5 + left)

    unit = min(recorder.unit, limit * VANISHING_SHARE)
    for layer, base in bases.items():
        gap = abs(forms[layer] - wanted[layer])
        if not explained(gap, base, unit):
            raise _disagrees(
                f"layer {layer!r}: expected its kernel to agree with autograd, got a relative "
                f"difference of {_ratio(gap, base):.2g}",
                vanishing=explained(gap, base, limit * VANISHING_SHARE),
            )


def compare_in_batch(recorder: "ModelRecorder", rerun: Rerun) -> None:
    """Compare weighted gradients of plain autograd in the batch and in another batch."""
    outputs = recorder.chosen_outputs(rerun.batch)[rerun.index]
    weights = rerun.output_weights
    found = plain_gradients(outputs, recorder.ownership.parameters, weights)
    if found and not all_finite(found.values()):  # an example outside the part has them, times zero
        for row in range(len(rerun.batch)):
            alone = recorder.chosen_outputs(rerun.batch.take([row])).sum()
            own = plain_gradients(alone, recorder.ownership.parameters)
            require_finite_gradients(all_finite(own.values()), [rerun.start + row])
    (wanted,) = rerun_gradients(recorder, rerun, [weights])
    compare_gradients(recorder, found, wanted, {})


def with_group_norms(rerun: Rerun, factors: Sequence["Factors"], mode: str, limit: int) -> Rerun:
    """The same batch with norms of weighted sums of gradients, from the factors of some groups."""
    if not factors:
        return rerun
    sets = rerun.weights_by_output(mode)
    sums: list[Tensor] = []
    squares: list[Tensor] = []
    for own in factors:
        chosen = own[rerun.index]
        spans = [*chosen.spans(limit)]
        parts = [chosen[span] for span in spans]
        for weights in sets:
            found = [
                part.weighted_sums([slice(0, len(part))], weights[span])[0]
                for part, span in zip(parts, spans, strict=True)
            ]
            sums.append(sum(found[1:], found[0]))
        squares.append(torch.cat([part.squared_norms() for part in parts]))
    terms = torch.stack(squares).clamp(min=0.0) * sum(weights.square() for weights in sets)
    sizes, norms = terms.sum((1, 2)).sqrt().tolist(), iter(norms_of(sums))
    groups = {
        own.names: (math.hypot(*islice(norms, len(sets))), size)
        for own, size in zip(factors, sizes, strict=True)
    }
    return replace(rerun, group_norms=groups)


def _compare_groups(
    recorder: "ModelRecorder", rerun: Rerun, squares: Sequence[Mapping[str, float]]
) -> None:
    """Compare norms of weighted sums for each group; a large group of a layer hides a small one.

    ``squares`` has the squared norms of autograd's sums, for every set of weights.
    """
    names, gaps, scales = [], [], []
    for group, (found, size) in rerun.group_norms.items():
        wanted = sum(of[name] for of in squares for name in group if name in of) ** 0.5
        names.append(group[0])
        gaps.append(abs(found - wanted))
        scales.append(max(wanted, size))
    require_rounding(recorder, names, gaps, scales)


def _entries(kernel: Tensor, rows: Tensor, columns: Tensor, mode: str) -> Tensor:
    """The entries of a kernel that are compared, as a matrix."""
    if mode == "full":
        part = kernel.index_select(0, rows).index_select(2, columns)  # (rows, c, columns, c)
        return part.flatten(2).flatten(0, 1)
    return kernel[rows[:, None], columns]


def require_range(
    recorder: "ModelRecorder",
    kernels: Mapping[str, Tensor],
    sides: "tuple[BatchList, BatchList]",
) -> None:
    """Check that kernels are finite, and not zero unless gradients are zero.

    Raises:
        NotFiniteError: If the gradients of an example are not finite.
        RangeError: If a kernel exceeds the range of its dtype.
    """
    limits = [end for kernel in kernels.values() if kernel.numel() for end in kernel.aminmax()]
    ends = torch.stack(limits).tolist() if limits else []
    largest = [max(-low, high) for low, high in zip(ends[::2], ends[1::2], strict=True)]
    named = [layer for layer, kernel in kernels.items() if kernel.numel()]
    mode = recorder.choice.mode
    for layer, size in zip(named, largest, strict=True):
        kernel, limit = kernels[layer], torch.finfo(kernels[layer].dtype)
        if not math.isfinite(size):
            *_, left, right = (
                _equal_output_entries(kernel, mode).isfinite().logical_not().nonzero()[0].tolist()
            )
            for side, example in zip(sides, (left, right), strict=True):
                _require_finite_gradients(recorder, side, example)
            raise out_of_range(layer, kernel.dtype, f"above {limit.max:.1e}")
        if size > _SAFE_MULTIPLE * limit.tiny or sides[0] is not sides[1]:
            continue
        own = _squared_gradient(recorder, sides[0], 0, recorder.ownership.layers[layer])
        found = _equal_output_entries(kernel, mode)[..., 0, 0].double().sum()
        if (own - found).abs() > recorder.tolerance * own:
            raise out_of_range(layer, kernel.dtype, f"below {limit.tiny:.1e}")


def _equal_output_entries(kernel: Tensor, mode: str) -> Float[Tensor, "*outputs n m"]:
    """Entries between equal outputs of two examples; for a full kernel a view of its diagonal."""
    return kernel.diagonal(dim1=1, dim2=3).movedim(2, 0) if mode == "full" else kernel


def out_of_range(layer: str, dtype: torch.dtype, got: str) -> RangeError:
    """The error of a kernel with numbers outside the range of its dtype."""
    double = dtype == torch.float64
    advice = "pass dtype=torch.float64, or a model and data in float64"
    advice = "divide the outputs by a constant" if double else advice
    return RangeError(
        f"layer {layer!r}: expected a kernel within the range of {dtype_text(dtype)}, got "
        f"numbers {got}; {advice}"
    )


def _single_gradients(
    recorder: "ModelRecorder", side: "BatchList", example: int
) -> Iterator[dict[str, Tensor]]:
    """Gradients of every output of one example, by plain autograd."""
    (one,) = side.take(slice(example, example + 1))
    outputs = recorder.chosen_outputs(one)
    for value in outputs[0]:
        yield plain_gradients(value, recorder.ownership.parameters, keep=True)


def _squared_gradient(
    recorder: "ModelRecorder", side: "BatchList", example: int, names: Iterable[str]
) -> Float[Tensor, ""]:
    """Sum of the squared norms of an example's gradients with respect to some parameters."""
    total = torch.zeros((), dtype=torch.float64)
    for found in _single_gradients(recorder, side, example):
        squares = [found[name].double().square().sum() for name in names if name in found]
        total = sum(squares, total.to(squares[0]) if squares else total)
    return total


def _require_finite_gradients(recorder: "ModelRecorder", side: "BatchList", example: int) -> None:
    for found in _single_gradients(recorder, side, example):
        require_finite_gradients(all_finite(found.values()), [example])


def all_finite(tensors: Iterable[Tensor]) -> Bool[Tensor, " 1"]:
    """Whether all numbers of several tensors are finite."""
    return torch.stack([tensor.isfinite().all() for tensor in tensors]).all()[None]


def require_finite_gradients(finite: Bool[Tensor, " n"], examples: Sequence[int]) -> None:
    """Check that the gradients of every example are finite; the error names the first other."""
    wrong = finite.logical_not().nonzero().flatten().tolist()
    if wrong:
        raise NotFiniteError(
            f"model: expected finite gradients, got NaN or infinity for example "
            f"{examples[wrong[0]]}, whose "
            "outputs are finite; a slope without bound, as that of a root or a norm at zero, is "
            "the usual cause: leave the example out, or add a small constant inside the root"
        )


def require_finite(model: nn.Module, values: Tensor, batch: Batch, examples: Sequence[int]) -> None:
    """Check that all numbers are finite; the error names the weight or the example.

    ``values`` has one row per example of the batch; ``examples`` are their indices in the data.
    """
    if math.isfinite(values.detach().sum()):  # not so if any number is not finite
        return
    finite = values.detach().isfinite().reshape(len(values), -1).all(1)
    if finite.all():
        return
    for name, parameter in model.named_parameters():
        if not parameter.detach().isfinite().all():
            raise NotFiniteError(
                f"model: expected finite weights, got NaN or infinity in {name!r}; a diverged "
                "run is the usual cause, load an earlier checkpoint"
            )
    wrong = (~finite).nonzero().flatten().tolist()
    one = batch.take(slice(wrong[0], wrong[0] + 1))
    given = [t for t in tensors_in((one.args, dict(one.kwargs))) if t.is_floating_point()]
    inputs = any(not t.isfinite().all() for t in given if not t.is_nested)
    where = "its inputs hold NaN or infinity" if inputs else "its inputs are finite"
    more = f" ({len(wrong)} examples of this batch)" if len(wrong) > 1 else ""
    advice = "leave it out or repair it" if inputs else "check the scale of weights and activations"
    raise NotFiniteError(
        f"model: expected finite outputs, got NaN or infinity for example {examples[wrong[0]]}"
        f"{more}; {where}: {advice}"
    )


def plain_gradients(
    outputs: Tensor,
    parameters: Mapping[str, Tensor],
    weights: Tensor | None = None,
    *,
    keep: bool = False,
) -> dict[str, Tensor]:
    """Gradients of weighted outputs by plain autograd, as real dense tensors.

    A complex entry becomes two numbers. Parameters that the outputs do not depend on are left out.
    ``keep`` the graph if it is needed again.
    """
    wanted, start = list(parameters.values()), None if weights is None else weights.to(outputs)
    try:
        found = torch.autograd.grad(outputs, wanted, start, retain_graph=keep, allow_unused=True)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise CaptureError(
            f"model: expected a backward pass, but autograd refuses: {first}"
        ) from error
    present = {name: g for name, g in zip(parameters, found, strict=True) if g is not None}
    return {name: as_real(gradient) for name, gradient in present.items()}


def add_gradients(total: dict[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Add gradients of parameters to a dictionary of sums."""
    for name, gradient in found.items():
        total[name] = total[name] + gradient if name in total else gradient


def as_real(gradient: Tensor) -> Tensor:
    """A gradient as a real dense tensor; a complex entry becomes two numbers."""
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return torch.view_as_real(dense) if dense.is_complex() else dense
