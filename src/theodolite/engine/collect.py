"""Factors of examples, collected from forward and backward passes at the uses of parameters.

There is one collector per parameter group. It begins with a pass (:meth:`Collector.begin`). It
takes the gradients of its outputs, one or several at a time, and releases the pass
(:meth:`Collector.end`). Afterwards :meth:`Collector.factors` has the factors of all examples of the
block. :func:`loss_factors` takes one pass and one number per example, for sums of gradients.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.engine.calls import Dense, Lookup, Outer, ResultGrads, split_examples
from theodolite.engine.factors import (
    DenseFactors,
    Factors,
    LookupFactors,
    MixedFactors,
    OuterFactors,
    Route,
    joined,
    scaled,
)
from theodolite.engine.patches import PatchGeometry
from theodolite.engine.plan import GroupPlan, ParameterGroup
from theodolite.engine.recorder import Use, pull_back
from theodolite.engine.state import quiet_vmap, without_autocast
from theodolite.errors import ShapeError


@dataclass(frozen=True)
class BlockSizes:
    """Sizes that all factors of one block of examples share."""

    examples: int
    output_count: int
    dtype: torch.dtype | None  # of factors; None keeps that of the gradients
    device: torch.device
    waiting_bytes: int = 2**26  # output gradients that are kept until they become gradients

    def zeros(self, like: Tensor, *shape: int) -> Tensor:
        """A tensor of zeros with one row per example."""
        dtype = self.dtype or like.dtype
        return torch.zeros(self.examples, *shape, dtype=dtype, device=self.device)

    def cast(self, tensor: Tensor) -> Tensor:
        """The tensor in the dtype of factors."""
        return tensor if self.dtype is None else tensor.to(self.dtype)


def compact(tensor: Tensor) -> Tensor:
    """The tensor; a copy if it is a part of a larger one, which can then be released."""
    part = tensor.numel() * tensor.element_size() < tensor.untyped_storage().nbytes()
    return tensor.clone() if part else tensor


class Collector(ABC):
    """Collects the factors of one group for one block of examples."""

    def __init__(self, group: ParameterGroup, sizes: BlockSizes) -> None:
        self.group, self.sizes = group, sizes
        self._span = slice(0, 0)
        self._uses: Sequence[Use] = ()

    def begin(self, span: slice, uses: Sequence[Use]) -> None:
        """Keep what is needed from a forward pass over these examples of the block."""
        for use in uses:
            use.require_not_overwritten()
        self._span, self._uses = span, uses

    @abstractmethod
    def add(self, output: int, gradients: Sequence[ResultGrads]) -> None:
        """Take the gradients of one output at each use, for the current examples."""

    def add_joint(self, outputs: range, gradients: Sequence[tuple[Tensor, ...]]) -> None:
        """Take the gradients of several outputs at each use, (outputs, n, ...)."""
        for index, output in enumerate(outputs):
            self.add(output, [tuple(part[index] for part in given) for given in gradients])

    def end(self) -> None:
        """Release the pass."""
        self._uses = ()

    @abstractmethod
    def factors(self) -> Factors | None:
        """The factors of all examples; None if no gradient has arrived."""


def _zero_filled(use: Use, given: ResultGrads) -> tuple[Tensor, ...]:
    """Gradients at the results of a call, with zeros for None."""
    like = use.origin.tensor
    return tuple(
        torch.zeros(shape, dtype=like.dtype, device=like.device) if gradient is None else gradient
        for gradient, shape in zip(given, use.result_shapes, strict=True)
    )


def _joined_output_grads(
    uses: Sequence[Use], gradients: Sequence[ResultGrads]
) -> Float[Tensor, "n C T"]:
    """Output gradients at all uses of a matrix or table, joined along the positions."""
    parts = []
    for use, given in zip(uses, gradients, strict=True):
        assert isinstance(use.structure, (Outer, Lookup))
        parts.append(use.structure.to_output_grads(*_zero_filled(use, given)))
    return joined(parts, 2)


def _joined_inputs(uses: Sequence[Use]) -> tuple[Tensor, PatchGeometry | None]:
    """Inputs of all uses of a matrix, joined; images if it has one convolution."""
    structures = [use.structure for use in uses if isinstance(use.structure, Outer)]
    if len(structures) == 1:
        inputs, geometry = structures[0].inputs, structures[0].geometry
    else:
        inputs = torch.cat([structure.rows_of_inputs() for structure in structures], 1)
        geometry = None
    return scaled(inputs, uses[0].origin.scale), geometry


def _joined_tokens(uses: Sequence[Use]) -> tuple[Int[Tensor, "n T"], int]:
    """Tokens of all lookups in a table, joined, and the length of the table."""
    lookups = [use.structure for use in uses if isinstance(use.structure, Lookup)]
    return joined([lookup.tokens for lookup in lookups], 1), lookups[0].table_length


def _padded(tensor: Tensor, axis: int, length: int, value: int = 0) -> Tensor:
    """Append a value along one axis up to this length; positions of zero weight change nothing."""
    if tensor.shape[axis] >= length:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = length - shape[axis]
    return torch.cat([tensor, tensor.new_full(shape, value)], axis)


class _PositionCollector(Collector):
    """Output gradients (n, c, C, T) of all uses, joined, for any number of positions."""

    def __init__(self, group: ParameterGroup, sizes: BlockSizes) -> None:
        super().__init__(group, sizes)
        self._output_grads: Tensor | None = None

    def add(self, output: int, gradients: Sequence[ResultGrads]) -> None:
        """Copy output gradients into place; this is their only copy."""
        if any(given[0] is not None for given in gradients):
            output_grads = _joined_output_grads(self._uses, gradients)
            self._store(range(output, output + 1), output_grads.unsqueeze(1))

    def _store(self, outputs: range, output_grads: Float[Tensor, "m k C T"]) -> None:
        if output_grads.shape[:2] == (self.sizes.examples, self.sizes.output_count):
            self._output_grads = self.sizes.cast(output_grads)
            return
        kept, length = self._output_grads, output_grads.shape[3]
        if kept is None:
            kept = self.sizes.zeros(output_grads, self.sizes.output_count, *output_grads.shape[2:])
        self._output_grads = _padded(kept, 3, length)
        self._output_grads[self._span, outputs.start : outputs.stop, :, :length] = output_grads


class LookupCollector(_PositionCollector):
    """Tokens and output gradients of a table."""

    def __init__(self, group: ParameterGroup, sizes: BlockSizes) -> None:
        super().__init__(group, sizes)
        self._tokens: Tensor | None = None

    def begin(self, span: slice, uses: Sequence[Use]) -> None:
        """Keep the tokens; -1 is a position that does not exist."""
        super().begin(span, uses)
        tokens, self._table_length = _joined_tokens(uses)
        length = tokens.shape[1]
        if self._tokens is None:
            self._tokens = tokens.new_full((self.sizes.examples, length), -1)
        self._tokens = _padded(self._tokens, 1, length, -1)
        self._tokens[span, :length] = tokens

    def _store(self, outputs: range, output_grads: Float[Tensor, "m k C T"]) -> None:
        super()._store(outputs, scaled(output_grads, self._uses[0].origin.scale))

    def factors(self) -> LookupFactors | None:
        """Tokens and output gradients."""
        if self._output_grads is None:
            return None
        assert self._tokens is not None
        output_grads = _padded(self._output_grads, 3, self._tokens.shape[1])
        return LookupFactors(self.group.parameters, self._tokens, output_grads, self._table_length)


class OuterCollector(_PositionCollector):
    """Inputs and output gradients of a matrix."""

    def __init__(self, group: ParameterGroup, sizes: BlockSizes, route: Route) -> None:
        super().__init__(group, sizes)
        self._route = route
        self._inputs: Tensor | None = None  # of all examples

    def begin(self, span: slice, uses: Sequence[Use]) -> None:
        """Keep the inputs, as images where patches can be cut from them later."""
        super().begin(span, uses)
        structure = uses[0].structure
        assert isinstance(structure, Outer)
        self._shape, self._transposed = tuple(uses[0].origin.tensor.shape), structure.transposed
        inputs, self._geometry = _joined_inputs(uses)
        inputs = self.sizes.cast(inputs)
        if len(inputs) == self.sizes.examples:
            self._inputs = compact(inputs)
            return
        if self._inputs is None:
            self._inputs = self.sizes.zeros(inputs, *inputs.shape[1:])
        if self._geometry is None:
            self._inputs = _padded(self._inputs, 1, inputs.shape[1])
        elif inputs.shape[1:] != self._inputs.shape[1:]:
            raise ShapeError(
                f"inputs: expected images of one size, got {tuple(self._inputs.shape[2:])} and "
                f"{tuple(inputs.shape[2:])}; resize them or pass one size at a time"
            )
        self._inputs[span, : inputs.shape[1]] = inputs

    def add_joint(self, outputs: range, gradients: Sequence[tuple[Tensor, ...]]) -> None:
        """The same in one copy, if the matrix has a single use."""
        if len(gradients) > 1:
            super().add_joint(outputs, gradients)
            return
        output_grads = _joint_output_grads(self._uses[0], gradients[0][0])
        if len(outputs) == self.sizes.output_count and len(output_grads) == self.sizes.examples:
            self._output_grads = self.sizes.cast(output_grads).contiguous()
        else:
            self._store(outputs, output_grads)

    def factors(self) -> OuterFactors | None:
        """Inputs with output gradients."""
        if self._output_grads is None:
            return None
        assert self._inputs is not None
        inputs = self._inputs
        if self._geometry is None:
            inputs = _padded(inputs, 1, self._output_grads.shape[3])
        return OuterFactors(
            self.group.parameters,
            inputs,
            self._output_grads,
            geometry=self._geometry,
            shape=self._shape,
            transposed=self._transposed,
            route=self._route,
        )


class FormingCollector(Collector):
    """Gradients of a matrix, formed after every backward pass because they are small.

    Output gradients of a few outputs wait, so that patches are made once for all of them.
    """

    def __init__(self, group: ParameterGroup, sizes: BlockSizes) -> None:
        super().__init__(group, sizes)
        self._inputs: Tensor | None = None  # of the current examples
        self._waiting: dict[int, Tensor] = {}  # output -> (n, C, T)
        self._gradients: list[Tensor] = []  # pieces (n, c, C, columns)

    def begin(self, span: slice, uses: Sequence[Use]) -> None:
        """Keep the inputs until the end of the pass."""
        super().begin(span, uses)
        inputs, self._geometry = _joined_inputs(uses)
        self._inputs = self.sizes.cast(inputs)

    def add(self, output: int, gradients: Sequence[ResultGrads]) -> None:
        """Keep output gradients, and form gradients if enough of them wait."""
        arrived = any(given[0] is not None for given in gradients)
        if arrived:
            self._waiting[output] = _joined_output_grads(self._uses, gradients)
        waiting = sum(part.nbytes for part in self._waiting.values())
        if not arrived or 2 * waiting > self.sizes.waiting_bytes:  # they are joined in a copy
            self._form_waiting()

    def add_joint(self, outputs: range, gradients: Sequence[tuple[Tensor, ...]]) -> None:
        """The same for several outputs without waiting, if the matrix has a single use."""
        if len(gradients) > 1:
            super().add_joint(outputs, gradients)
        else:
            self._form(outputs, _joint_output_grads(self._uses[0], gradients[0][0]))

    def _form_waiting(self) -> None:
        if self._waiting:
            outputs = range(min(self._waiting), max(self._waiting) + 1)
            output_grads = joined([part.unsqueeze(1) for part in self._waiting.values()], 1)
            self._waiting.clear()
            self._form(outputs, output_grads)

    def _form(self, outputs: range, output_grads: Float[Tensor, "m k C T"]) -> None:
        output_grads = self.sizes.cast(output_grads).contiguous()
        assert self._inputs is not None
        columns = (
            [self._inputs.mT]
            if self._geometry is None
            else self._geometry.column_parts(self._inputs)
        )
        number = 0
        for number, part in enumerate(columns):
            with without_autocast(self.sizes.device):
                product = output_grads.flatten(1, 2) @ part.mT
            self._store(number, outputs, product.view(*output_grads.shape[:3], -1))
        if self.group.bias is not None:
            self._store(number + 1, outputs, output_grads.sum(3, keepdim=True))

    def _store(self, number: int, outputs: range, values: Float[Tensor, "m k C D"]) -> None:
        if len(self._gradients) == number:
            zeros = self.sizes.zeros(values, self.sizes.output_count, *values.shape[2:])
            self._gradients.append(zeros)
        self._gradients[number][self._span, outputs.start : outputs.stop] = values

    def end(self) -> None:
        """Form the last gradients, and release the pass."""
        self._form_waiting()
        super().end()
        self._inputs = None

    def factors(self) -> DenseFactors | None:
        """The gradients."""
        parts = [part.flatten(2) for part in self._gradients]
        return DenseFactors(self.group.parameters, parts) if parts else None


def _joint_output_grads(use: Use, gradients: Tensor) -> Float[Tensor, "n k C T"]:
    """Output gradients of several outputs at one use of a matrix, from (outputs, n, ...).

    Those of the first output are mostly a view. All others have the same strides, so their places
    follow without a view for every output.
    """
    structure = use.structure
    assert isinstance(structure, Outer)
    first = structure.to_output_grads(gradients[0])
    if first.untyped_storage().data_ptr() != gradients.untyped_storage().data_ptr():
        return torch.stack([first, *(structure.to_output_grads(part) for part in gradients[1:])], 1)
    shape, steps = (len(gradients), *first.shape), (gradients.stride(0), *first.stride())
    return gradients.as_strided(shape, steps, first.storage_offset()).transpose(0, 1)


class DenseCollector(Collector):
    """Gradients (n, c, P) themselves, converted to the parameter if it was transformed."""

    def __init__(self, group: ParameterGroup, sizes: BlockSizes, parameter: Tensor) -> None:
        super().__init__(group, sizes)
        self._parameter = parameter
        self._gradients: Tensor | None = None

    def add(self, output: int, gradients: Sequence[ResultGrads]) -> None:
        """Add up the gradients of all uses."""
        for use, given in zip(self._uses, gradients, strict=True):
            if all(gradient is None for gradient in given):
                continue
            limit = self.sizes.waiting_bytes
            rows = use_gradients(use, given, self._parameter, self.group.needs_pull_back, limit)
            rows = rows.reshape(len(rows), -1)  # scalars too
            self._all_gradients(rows)[self._span, output] += self.sizes.cast(rows)

    def _all_gradients(self, rows: Tensor) -> Tensor:
        """The gradients of all examples, zeros at first."""
        if self._gradients is None:
            self._gradients = self.sizes.zeros(rows, self.sizes.output_count, rows.shape[-1])
        return self._gradients

    def add_joint(self, outputs: range, gradients: Sequence[tuple[Tensor, ...]]) -> None:
        """Several outputs in one call: normalised inputs and sums are computed once."""
        structures = [use.structure for use in self._uses]
        plain = not self.group.needs_pull_back and all(len(given) == 1 for given in gradients)
        plain &= all(use.by_rule for use in self._uses)
        if not plain or any(not isinstance(s, Dense) or s.own_rows for s in structures):
            super().add_joint(outputs, gradients)
            return
        for use, (given,) in zip(self._uses, gradients, strict=True):
            rows = _joint_example_gradients(use.structure, given)
            rows = rows.reshape(*rows.shape[:2], -1).transpose(0, 1)
            rows = self.sizes.cast(scaled(rows, use.origin.scale))
            target = self._all_gradients(rows)[self._span, outputs.start : outputs.stop]
            target.add_(rows)

    def store(self, example: int, output: int, gradient: Tensor) -> None:
        """Take the gradient of one output of one example unchanged."""
        self._all_gradients(gradient.flatten())[example, output] = gradient.flatten()

    def factors(self) -> DenseFactors | None:
        """The gradients."""
        if self._gradients is None:
            return None
        return DenseFactors(self.group.parameters, [self._gradients], self._parameter.shape)


def _joint_example_gradients(structure: Any, gradients: Tensor) -> Tensor:
    """Gradients of every example, (outputs, n, ...), from those of several outputs."""
    try:
        return quiet_vmap(structure.example_gradients)(gradients)
    except RuntimeError:  # an operation that cannot be vectorised
        return torch.stack([structure.example_gradients(part) for part in gradients])


Item = TypeVar("Item")


class MixedCollector(Collector):
    """Factors of the lookups and of the products, kept separately."""

    def __init__(self, group: ParameterGroup, sizes: BlockSizes, route: Route) -> None:
        super().__init__(group, sizes)
        self._outer = OuterCollector(group, sizes, route)
        self._lookup = LookupCollector(group, sizes)
        self._is_outer: list[bool] = []

    def begin(self, span: slice, uses: Sequence[Use]) -> None:
        """Pass every use to the collector of its kind."""
        self._is_outer = [isinstance(use.structure, Outer) for use in uses]
        self._outer.begin(span, self._chosen(uses, True))
        self._lookup.begin(span, self._chosen(uses, False))

    def add(self, output: int, gradients: Sequence[ResultGrads]) -> None:
        """Pass every gradient to the collector of its kind."""
        self._outer.add(output, self._chosen(gradients, True))
        self._lookup.add(output, self._chosen(gradients, False))

    def _chosen(self, items: Sequence[Item], kind: bool) -> list[Item]:
        return [item for item, outer in zip(items, self._is_outer, strict=True) if outer == kind]

    def end(self) -> None:
        """Release the pass."""
        self._outer.end()
        self._lookup.end()

    def factors(self) -> Factors | None:
        """Factors of both kinds, or of the kind that received gradients."""
        outer, lookup = self._outer.factors(), self._lookup.factors()
        if outer is not None and lookup is not None:
            return MixedFactors(outer, lookup)
        return outer if lookup is None else lookup


def collector_of(plan: GroupPlan, sizes: BlockSizes, parameter: Tensor) -> Collector:
    """The collector for a group of the planned kind and route."""
    group = plan.group
    if group.kind == "lookup":
        return LookupCollector(group, sizes)
    if group.kind == "mixed":
        return MixedCollector(group, sizes, plan.route)
    if group.kind == "outer" and plan.stores_gradients:
        return FormingCollector(group, sizes)
    if group.kind == "outer":
        return OuterCollector(group, sizes, plan.route)
    return DenseCollector(group, sizes, parameter)


def use_gradients(
    use: Use,
    given: ResultGrads,
    parameter: Tensor,
    needs_pull_back: bool,
    limit: int = 2**26,
) -> Float[Tensor, "n ..."]:
    """Gradients of every example at one use of a parameter.

    Gradients of the used tensor are converted to those of the parameter if it needs to be pulled
    back, at most ``limit`` bytes at a time.
    """
    origin, structure = use.origin, use.structure
    filled = _zero_filled(use, given)
    example_gradients: Callable[[Any], Tensor] = structure.example_gradients
    rows = example_gradients(filled if len(filled) > 1 else filled[0])
    if isinstance(structure, Dense) and structure.own_rows:  # parts are always pulled back
        return torch.cat([_own_part(use, structure, rows, k, parameter) for k in range(len(rows))])
    rows = rows.reshape(len(rows), *origin.tensor.shape)
    if not needs_pull_back:
        return scaled(rows, origin.scale)
    size = max(1, limit // max(1, rows[0].numel() * rows.element_size()))
    return torch.cat([pull_back(origin, parameter, part) for part in torch.split(rows, size)])


def _own_part(use: Use, structure: Dense, rows: Tensor, index: int, parameter: Tensor) -> Tensor:
    """Spread a tensor with one part per example: the gradient is zero in the parts of others."""
    assert structure.axis is not None
    full = rows.new_zeros(use.origin.tensor.shape)
    split_examples(full, len(rows), structure.axis)[index] = rows[index]
    return pull_back(use.origin, parameter, full.unsqueeze(0))


def loss_factors(
    groups: Sequence[ParameterGroup],
    uses: Sequence[Use],
    arrived: Sequence[ResultGrads],
    parameters: dict[str, torch.nn.Parameter],
    sizes: BlockSizes,
) -> Iterator[Factors]:
    """Factors of the gradients of one number per example, for every group with gradients.

    ``arrived`` has the gradients at the results of each use.
    """
    for group in groups:
        indices = [k for k in group.uses if any(given is not None for given in arrived[k])]
        if not indices:
            continue
        plan = GroupPlan(group, "positions", numbers=0, cost=0.0)
        collector = collector_of(plan, sizes, parameters[group.parameter])
        collector.begin(slice(0, sizes.examples), [uses[index] for index in indices])
        collector.add(0, [arrived[index] for index in indices])
        collector.end()
        found = collector.factors()
        assert found is not None
        yield found
