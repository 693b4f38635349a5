"""Factors of examples, collected from forward and backward passes at the uses of parameters.

:func:`loss_factors` takes one pass and one number per example, for sums of gradients. For all
outputs of a block of examples there are collectors, one per parameter group. A collector begins
with a pass (:meth:`Collector.begin`). It takes the gradients of its outputs, one or several at a
time, and releases the pass (:meth:`Collector.end`). Afterwards :meth:`Collector.factors` has the
factors of all examples of the block.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.engine.calls import Dense, Lookup, Outer, ResultGrads, split_examples
from theodolite.engine.factors import (
    DenseFactors,
    Factors,
    LookupFactors,
    MixedFactors,
    OuterFactors,
    joined,
    scaled,
)
from theodolite.engine.patches import PatchGeometry
from theodolite.engine.plan import GroupPlan, ParameterGroup, Route
from theodolite.engine.recorder import Use, pull_back
from theodolite.engine.state import quiet_vmap, without_autocast
from theodolite.errors import ShapeError


@dataclass(frozen=True)
class BlockSizes:
    """Sizes that all factors of one block of examples share."""

    examples: int
    output_count: int
    dtype: torch.dtype
    device: torch.device
    waiting_bytes: int = 2**26  # output gradients that are kept until they become gradients

    def zeros(self, *shape: int) -> Tensor:
        """A tensor of zeros with one row per example."""
        return torch.zeros(self.examples, *shape, dtype=self.dtype, device=self.device)


def compact(tensor: Tensor) -> Tensor:
    """The tensor; a copy if it is a part of a larger one, which can then be released."""
    part = tensor.numel() * tensor.element_size() < tensor.untyped_storage().nbytes()
    return tensor.clone() if part else tensor


class Collector(ABC):
    """Collects the factors of one group for one block of examples.

    Args:
        group: The group.
        sizes: Sizes of the block.
    """

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


def _joined_inputs(structures: Sequence[Outer]) -> tuple[Tensor, PatchGeometry | None]:
    """Inputs of all uses of a matrix, joined; images if it has one convolution."""
    if len(structures) == 1:
        return structures[0].inputs, structures[0].geometry
    return torch.cat([structure.rows_of_inputs() for structure in structures], 1), None


def _padded(tensor: Tensor, axis: int, length: int) -> Tensor:
    """Append zeros along one axis up to this length; positions of zero weight change nothing."""
    if tensor.shape[axis] == length:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = length - shape[axis]
    return torch.cat([tensor, tensor.new_zeros(shape)], axis)


class _PositionCollector(Collector):
    """Output gradients (n, c, C, T) of all uses, joined, for any number of positions."""

    def __init__(self, group: ParameterGroup, sizes: BlockSizes) -> None:
        super().__init__(group, sizes)
        self._output_grads: Tensor | None = None

    def add(self, output: int, gradients: Sequence[ResultGrads]) -> None:
        """Copy output gradients into place; this is their only copy."""
        output_grads = self._joined(gradients)
        if output_grads is None:
            return
        _, C, T = output_grads.shape
        if self._output_grads is None:
            self._output_grads = self.sizes.zeros(self.sizes.output_count, C, T)
        self._output_grads = _padded(self._output_grads, 3, max(T, self._output_grads.shape[3]))
        self._output_grads[self._span, output, :, :T].copy_(output_grads)

    def _joined(self, gradients: Sequence[ResultGrads]) -> Tensor | None:
        if all(given[0] is None for given in gradients):
            return None
        parts = []
        for use, (gradient,) in zip(self._uses, gradients, strict=True):
            assert isinstance(use.structure, (Outer, Lookup))
            if gradient is None:
                shape, sizes = use.result_shapes[0], self.sizes
                gradient = torch.zeros(shape, dtype=sizes.dtype, device=sizes.device)
            parts.append(use.structure.to_output_grads(gradient))
        return joined(parts, 2)


class LookupCollector(_PositionCollector):
    """Tokens and output gradients of a table."""

    def __init__(self, group: ParameterGroup, sizes: BlockSizes) -> None:
        super().__init__(group, sizes)
        self._tokens: Tensor | None = None
        self._table = 0

    def begin(self, span: slice, uses: Sequence[Use]) -> None:
        """Keep the tokens; -1 is a position that does not exist."""
        super().begin(span, uses)
        lookups = [use.structure for use in uses if isinstance(use.structure, Lookup)]
        tokens = joined([lookup.tokens for lookup in lookups], 1)
        self._table = lookups[0].table_length
        if self._tokens is None:
            shape = (self.sizes.examples, tokens.shape[1])
            self._tokens = torch.full(shape, -1, dtype=torch.long, device=tokens.device)
        missing = tokens.shape[1] - self._tokens.shape[1]
        if missing > 0:
            filler = self._tokens.new_full((len(self._tokens), missing), -1)
            self._tokens = torch.cat([self._tokens, filler], 1)
        self._tokens[span, : tokens.shape[1]] = tokens

    def _joined(self, gradients: Sequence[ResultGrads]) -> Tensor | None:
        output_grads = super()._joined(gradients)
        return (
            output_grads
            if output_grads is None
            else scaled(output_grads, self._uses[0].origin.scale)
        )

    def factors(self) -> LookupFactors | None:
        """Tokens and output gradients."""
        if self._output_grads is None:
            return None
        assert self._tokens is not None
        length = max(self._tokens.shape[1], self._output_grads.shape[3])
        output_grads = _padded(self._output_grads, 3, length)
        return LookupFactors(self.group.parameters, self._tokens, output_grads, self._table)


class OuterCollector(_PositionCollector):
    """Inputs and output gradients of a matrix, or its gradients if these are kept.

    Args:
        group: The group.
        sizes: Sizes of the block.
        route: The order of contraction.
        stores_gradients: Whether gradients are kept instead of their factors.
    """

    def __init__(
        self, group: ParameterGroup, sizes: BlockSizes, route: Route, stores_gradients: bool = False
    ) -> None:
        super().__init__(group, sizes)
        self._route, self._stores_gradients = route, stores_gradients
        self._geometry: PatchGeometry | None = None
        self._inputs: Tensor | None = None  # inputs of all examples
        self._pass_inputs: Tensor  # inputs of the current examples
        self._gradients: list[Tensor] = []
        self._waiting: Tensor | None = None
        self._first = 0

    def begin(self, span: slice, uses: Sequence[Use]) -> None:
        """Keep the inputs, as images where patches can be cut from them later."""
        super().begin(span, uses)
        structures = [use.structure for use in uses if isinstance(use.structure, Outer)]
        origin = uses[0].origin
        self._shape, self._transposed = tuple(origin.tensor.shape), structures[0].transposed
        inputs, self._geometry = _joined_inputs(structures)
        self._pass_inputs = scaled(inputs.to(self.sizes.dtype), origin.scale)
        if not self._stores_gradients:
            self._keep(self._pass_inputs)

    def _keep(self, inputs: Tensor) -> None:
        if inputs.shape[0] == self.sizes.examples:
            self._inputs = compact(inputs)
            return
        if self._inputs is None:
            self._inputs = self.sizes.zeros(*inputs.shape[1:])
        if self._geometry is not None and inputs.shape[1:] != self._inputs.shape[1:]:
            raise ShapeError(
                f"inputs: expected images of one size, got {tuple(self._inputs.shape[2:])} and "
                f"{tuple(inputs.shape[2:])}; resize them or pass one size at a time"
            )
        if self._geometry is None and inputs.shape[1] > self._inputs.shape[1]:
            self._inputs = _padded(self._inputs, 1, inputs.shape[1])
        self._inputs[(self._span, slice(0, inputs.shape[1]))] = inputs

    def add(self, output: int, gradients: Sequence[ResultGrads]) -> None:
        """Keep output gradients, or the gradients that they make with the inputs."""
        if not self._stores_gradients:
            super().add(output, gradients)
            return
        output_grads = self._joined(gradients)
        if output_grads is not None:
            self._wait(output, output_grads)
        if self._waiting is not None and output + 1 == self._first + self._waiting.shape[1]:
            self._form()

    def _wait(self, output: int, output_grads: Tensor) -> None:
        """Keep output gradients of a few outputs, so that patches are made once for all of them."""
        if self._waiting is None:
            n, C, T = output_grads.shape
            size = n * C * T * self.sizes.dtype.itemsize
            waiting = self.sizes.waiting_bytes // max(1, size)
            count = max(1, min(self.sizes.output_count - output, waiting))
            self._first = output
            if count == 1:  # large ones are used at once, without a copy
                self._waiting = self._own(output_grads.unsqueeze(1))
                return
            self._waiting = torch.zeros(
                n, count, C, T, dtype=self.sizes.dtype, device=output_grads.device
            )
        self._waiting[:, output - self._first].copy_(output_grads)

    def _form(self) -> None:
        """Make gradients from the waiting output gradients."""
        assert self._waiting is not None
        output_grads, self._waiting = self._waiting, None
        _, count, C, _ = output_grads.shape
        target_rows = (self._span, slice(self._first, self._first + count))
        number = 0
        for number, columns in enumerate(self._columns()):
            target = self._part(number, C, columns.shape[1])[target_rows]
            with without_autocast(self.sizes.device):
                product = output_grads.flatten(1, 2) @ columns.mT
            target.copy_(product.view(target.shape))
        if self.group.bias is not None:
            self._part(number + 1, C, 1)[target_rows] = output_grads.sum(3, keepdim=True)

    def add_joint(self, outputs: range, gradients: Sequence[tuple[Tensor, ...]]) -> None:
        """The same in one copy, if the matrix has a single use."""
        if len(gradients) > 1:
            super().add_joint(outputs, gradients)
            return
        structure = self._uses[0].structure
        assert isinstance(structure, Outer)
        output_grads = _joint_output_grads(structure, gradients[0][0])  # (n, outputs, C, T)
        if self._stores_gradients:
            self._waiting, self._first = self._own(output_grads), outputs.start
            self._form()
        elif len(outputs) == self.sizes.output_count and len(output_grads) == self.sizes.examples:
            self._output_grads = self._own(output_grads)
        else:
            self._place(outputs, output_grads)

    def _own(self, output_grads: Tensor) -> Tensor:
        return output_grads.to(self.sizes.dtype).contiguous()

    def _place(self, outputs: range, output_grads: Tensor) -> None:
        if self._output_grads is None:
            self._output_grads = self.sizes.zeros(self.sizes.output_count, *output_grads.shape[2:])
        length = output_grads.shape[3]
        longest = max(length, self._output_grads.shape[3])
        self._output_grads = _padded(self._output_grads, 3, longest)
        self._output_grads[self._span, outputs.start : outputs.stop, :, :length] = output_grads

    def _part(self, number: int, rows: int, columns: int) -> Tensor:
        if len(self._gradients) == number:
            self._gradients.append(self.sizes.zeros(self.sizes.output_count, rows, columns))
        return self._gradients[number]

    def _columns(self) -> Iterable[Tensor]:
        if self._geometry is None:
            return [self._pass_inputs.transpose(1, 2)]
        return self._geometry.column_parts(self._pass_inputs)

    def end(self) -> None:
        """Release the pass and its inputs."""
        if self._waiting is not None:
            self._form()
        super().end()
        del self._pass_inputs

    def factors(self) -> OuterFactors | DenseFactors | None:
        """Inputs with output gradients, or gradients."""
        names = self.group.parameters
        if self._stores_gradients:
            parts = [part.flatten(2) for part in self._gradients]
            return DenseFactors(names, parts) if parts else None
        if self._output_grads is None:
            return None
        assert self._inputs is not None
        inputs = self._inputs
        if self._geometry is None:
            inputs = _padded(inputs, 1, max(inputs.shape[1], self._output_grads.shape[3]))
        return OuterFactors(
            names,
            inputs,
            self._output_grads,
            geometry=self._geometry,
            shape=self._shape,
            transposed=self._transposed,
            route=self._route,
        )


def _joint_output_grads(structure: Outer, gradients: Tensor) -> Tensor:
    """Output gradients of several outputs, from (outputs, n, ...) to (n, outputs, C, T).

    Those of the first output are mostly a view. All others have the same strides, so their places
    follow without a view for every output.
    """
    first = structure.to_output_grads(gradients[0])
    if first.untyped_storage().data_ptr() != gradients.untyped_storage().data_ptr():
        return torch.stack([first, *(structure.to_output_grads(part) for part in gradients[1:])], 1)
    shape, steps = (len(gradients), *first.shape), (gradients.stride(0), *first.stride())
    return gradients.as_strided(shape, steps, first.storage_offset()).transpose(0, 1)


class DenseCollector(Collector):
    """Gradients (n, c, P) themselves, converted to the parameter if it was transformed.

    Args:
        group: The group.
        sizes: Sizes of the block.
        parameter: The parameter.
    """

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
            self._space(rows.shape[1])[self._span, output] += rows.to(self.sizes.dtype)

    def _space(self, entries: int) -> Tensor:
        if self._gradients is None:
            self._gradients = self.sizes.zeros(self.sizes.output_count, entries)
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
            rows = scaled(rows, use.origin.scale).to(self.sizes.dtype)
            target = self._space(rows.shape[2])[self._span, outputs.start : outputs.stop]
            target.add_(rows)

    def put(self, example: int, output: int, gradient: Tensor) -> None:
        """Take the gradient of one output of one example unchanged."""
        self._space(gradient.numel())[example, output] = gradient.flatten()

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
        if isinstance(outer, OuterFactors) and lookup is not None:
            return MixedFactors(outer, lookup)
        return outer if lookup is None else lookup


def collector_of(plan: GroupPlan, sizes: BlockSizes, parameter: Tensor) -> Collector:
    """The collector for a group of the planned kind and route."""
    group = plan.group
    if group.kind == "lookup":
        return LookupCollector(group, sizes)
    if group.kind == "mixed":
        return MixedCollector(group, sizes, plan.route)
    if group.kind == "outer":
        return OuterCollector(group, sizes, plan.route, plan.stores_gradients)
    return DenseCollector(group, sizes, parameter)


def use_gradients(
    use: Use,
    given: ResultGrads,
    parameter: Tensor,
    needs_pull_back: bool,
    limit: int = 2**26,
) -> Float[Tensor, "n ..."]:
    """Gradients of every example at one use of a parameter.

    Args:
        use: The use.
        given: Gradients at the results of its call; None if zero.
        parameter: The parameter.
        needs_pull_back: Whether gradients of the used tensor are converted to those of the
            parameter.
        limit: Bytes that are converted at a time.
    """
    origin, structure = use.origin, use.structure
    device = next(gradient.device for gradient in given if gradient is not None)
    filled = tuple(
        torch.zeros(shape, dtype=origin.tensor.dtype, device=device)
        if gradient is None
        else gradient
        for gradient, shape in zip(given, use.result_shapes, strict=True)
    )
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
) -> Iterator[Factors]:
    """Factors of the gradients of one number per example, for every group with gradients.

    Args:
        groups: The uses of one pass, by parameters.
        uses: All uses of the pass.
        arrived: Gradients at the results of each use; None if zero.
        parameters: Name -> parameter.
    """
    for group in groups:
        chosen = [
            (uses[index], arrived[index])
            for index in group.uses
            if any(gradient is not None for gradient in arrived[index])
        ]
        if not chosen:
            continue
        for use, _ in chosen:
            use.require_not_overwritten()
        yield _loss_factors(group, chosen, parameters[group.parameter])


Chosen = list[tuple[Use, ResultGrads]]


def _loss_factors(group: ParameterGroup, chosen: Chosen, parameter: Tensor) -> Factors:
    if group.kind == "mixed":
        outer = [pair for pair in chosen if isinstance(pair[0].structure, Outer)]
        lookup = [pair for pair in chosen if isinstance(pair[0].structure, Lookup)]
        if outer and lookup:
            return MixedFactors(_outer(group, outer), _lookup(group, lookup))
        return _outer(group, outer) if outer else _lookup(group, lookup)
    if group.kind == "outer":
        return _outer(group, chosen)
    if group.kind == "lookup":
        return _lookup(group, chosen)
    rows = [use_gradients(use, given, parameter, group.needs_pull_back) for use, given in chosen]
    total = rows[0] if len(rows) == 1 else torch.stack(rows).sum(0)
    shape = parameter.shape if group.needs_pull_back else chosen[0][0].origin.tensor.shape
    return DenseFactors(group.parameters, [total.reshape(len(total), 1, -1)], shape)


def _outer(group: ParameterGroup, chosen: Chosen) -> OuterFactors:
    structures: list[Outer] = []
    output_grads: list[Tensor] = []
    for use, (gradient,) in chosen:
        assert isinstance(use.structure, Outer)
        assert gradient is not None
        structures.append(use.structure)
        output_grads.append(use.structure.to_output_grads(gradient))
    origin = chosen[0][0].origin
    inputs, geometry = _joined_inputs(structures)
    return OuterFactors(
        group.parameters,
        scaled(inputs, origin.scale),
        joined(output_grads, 2).unsqueeze(1),
        geometry=geometry,
        shape=origin.tensor.shape,
        transposed=structures[0].transposed,
    )


def _lookup(group: ParameterGroup, chosen: Chosen) -> LookupFactors:
    tokens: list[Tensor] = []
    output_grads: list[Tensor] = []
    for use, (gradient,) in chosen:
        assert isinstance(use.structure, Lookup)
        assert gradient is not None
        tokens.append(use.structure.tokens)
        output_grads.append(use.structure.to_output_grads(gradient))
    first, origin = chosen[0][0].structure, chosen[0][0].origin
    assert isinstance(first, Lookup)
    grads = scaled(joined(output_grads, 2), origin.scale).unsqueeze(1)
    return LookupFactors(group.parameters, joined(tokens, 1), grads, first.table_length)
