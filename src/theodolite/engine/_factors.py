"""What is kept of each parameter group between the backward passes and the contraction."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from theodolite.engine._plan import GroupPlan, ParameterGroup, Route
from theodolite.engine._products import Products
from theodolite.engine.calls import Dense, Lookup, Outer, split_examples
from theodolite.engine.patches import PatchGeometry
from theodolite.engine.state import quiet_vmap
from theodolite.engine.uses import Use, pull_back
from theodolite.errors import ShapeError

__all__ = [
    "DenseFactors",
    "FactorLayout",
    "Factors",
    "Gradients",
    "LookupFactors",
    "MixedFactors",
    "OuterFactors",
    "compact",
    "crossed",
    "empty_factors",
]

Gradients = tuple[Tensor | None, ...]

_WHOLE_BYTES = 2**22  # patches of one example that are cut at once
_WAITING_BYTES = 2**26  # output gradients that wait to be turned into gradients


@dataclass(frozen=True)
class FactorLayout:
    """What all factors of one block of examples have in common, and how they are multiplied."""

    examples: int
    outputs: int
    dtype: torch.dtype
    device: torch.device
    products: Products = field(default_factory=Products)

    def zeros(self, *shape: int) -> Tensor:
        """A tensor of zeros with one row per example."""
        return torch.zeros(self.examples, *shape, dtype=self.dtype, device=self.device)


def compact(tensor: Tensor) -> Tensor:
    """A copy of what is a part of something larger, which would be kept in memory with it."""
    part = tensor.numel() * tensor.element_size() < tensor.untyped_storage().nbytes()
    return tensor.clone() if part else tensor


class Factors(ABC):
    """Factors of the gradients of one group, for one block of examples.

    Args:
        group: The group.
        layout: Sizes.
        route: How the kernel will be contracted.
        stores_gradients: Whether gradients are kept, and not what they are made of.
    """

    def __init__(
        self,
        group: ParameterGroup,
        layout: FactorLayout,
        route: Route,
        stores_gradients: bool = False,
    ) -> None:
        self.group, self.layout, self.route = group, layout, route
        self.stores_gradients = stores_gradients

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether no gradient has arrived at any use: the kernel is zero."""

    @abstractmethod
    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Take what is needed from a forward pass over these examples."""

    @abstractmethod
    def add(self, output: int, gradients: Sequence[Gradients]) -> None:
        """Take the gradients of one output at each use, for the examples begun with."""

    def add_joint(self, outputs: range, gradients: Sequence[tuple[Tensor, ...]]) -> None:
        """Take the gradients of several outputs at each use, (outputs, n, ...)."""
        for index, output in enumerate(outputs):
            self.add(output, [tuple(part[index] for part in given) for given in gradients])

    @abstractmethod
    def end(self) -> None:
        """Let go of what only the backward passes needed."""

    @abstractmethod
    def release(self) -> None:
        """Let go of everything, after the contraction."""


def _padded(tensor: Tensor, axis: int, length: int) -> Tensor:
    """Zeros appended along one axis up to this length; positions of zero weight change nothing."""
    if tensor.shape[axis] == length:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = length - shape[axis]
    return torch.cat([tensor, tensor.new_zeros(shape)], axis)


def _joined(parts: list[Tensor], axis: int) -> Tensor:
    """Parts side by side; no copy of a single one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


class _Positions(Factors):
    """Output gradients (n, c, C, T) of all uses side by side, whatever the number of positions."""

    output_grads: Tensor | None = None

    @property
    def positions(self) -> int:
        """T, the largest number of positions of an example."""
        return 0 if self.output_grads is None else self.output_grads.shape[3]

    @property
    def is_empty(self) -> bool:
        """Whether no gradient has arrived."""
        return self.output_grads is None

    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Remember the structures, which know how to read gradients."""
        for use in uses:
            use.require_unchanged()
        self._rows, self._uses = rows, uses

    def add(self, output: int, gradients: Sequence[Gradients]) -> None:
        """Copy output gradients into place; the only copy that is made of them."""
        output_grads = self._output_grads(gradients)
        if output_grads is None:
            return
        length = output_grads.shape[2]
        if self.output_grads is None:
            self.output_grads = self.layout.zeros(
                self.layout.outputs, output_grads.shape[1], length
            )
        if length > self.output_grads.shape[3]:
            self.output_grads = _padded(self.output_grads, 3, length)
        self.output_grads[self._rows, output, :, :length].copy_(output_grads)

    def _output_grads(self, gradients: Sequence[Gradients]) -> Tensor | None:
        parts = []
        for use, (gradient,) in zip(self._uses, gradients, strict=True):
            assert isinstance(use.structure, (Outer, Lookup))
            if gradient is None:
                gradient = torch.zeros(
                    use.results[0], dtype=self.layout.dtype, device=self.layout.device
                )
            parts.append(use.structure.output_grads(gradient))
        if all(given[0] is None for given in gradients):
            return None
        return _joined(parts, 2)

    def end(self) -> None:
        """Forget the graph."""
        self._uses = ()

    def release(self) -> None:
        """Forget output gradients and inputs."""
        self.output_grads = None


class LookupFactors(_Positions):
    """Tokens (n, T) and output gradients of a table."""

    tokens: Tensor | None = None

    def __init__(self, group: ParameterGroup, layout: FactorLayout) -> None:
        super().__init__(group, layout, "positions")

    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Keep the tokens; -1 stands for a position that does not exist."""
        super().begin(rows, uses)
        tokens = torch.cat(
            [use.structure.tokens for use in uses if isinstance(use.structure, Lookup)], 1
        )
        if self.tokens is None:
            shape = (self.layout.examples, tokens.shape[1])
            self.tokens = torch.full(shape, -1, dtype=torch.long, device=tokens.device)
        missing = tokens.shape[1] - self.tokens.shape[1]
        if missing > 0:
            filler = self.tokens.new_full((len(self.tokens), missing), -1)
            self.tokens = torch.cat([self.tokens, filler], 1)
        self.tokens[rows, : tokens.shape[1]] = tokens

    def _output_grads(self, gradients: Sequence[Gradients]) -> Tensor | None:
        output_grads, scale = super()._output_grads(gradients), self._uses[0].origin.scale
        return (
            output_grads if output_grads is None or scale in (None, 1.0) else output_grads * scale
        )


class OuterFactors(_Positions):
    """Inputs and output gradients of a matrix, or its gradients where these are stored."""

    def __init__(
        self,
        group: ParameterGroup,
        layout: FactorLayout,
        route: Route,
        stores_gradients: bool = False,
    ) -> None:
        super().__init__(group, layout, route, stores_gradients)
        self.geometry: PatchGeometry | None = None
        self.inputs: Tensor | None = None
        self.gradients: list[Tensor] = []
        self._waiting: Tensor | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no gradient has arrived."""
        return not self.gradients if self.stores_gradients else self.output_grads is None

    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Keep the inputs, as images where patches can be cut from them later."""
        super().begin(rows, uses)
        structures = [use.structure for use in uses if isinstance(use.structure, Outer)]
        single = len(structures) == 1 and structures[0].geometry is not None
        scale = uses[0].origin.scale
        if single:
            self.geometry = structures[0].geometry
            inputs = structures[0].inputs
        else:
            inputs = _joined([structure.rows_of_inputs() for structure in structures], 1)
        inputs = inputs.to(self.layout.dtype)
        self._inputs = inputs if scale in (None, 1.0) else inputs * scale
        if not self.stores_gradients:
            self._store(rows, self._inputs)

    def _store(self, rows: slice, inputs: Tensor) -> None:
        if inputs.shape[0] == self.layout.examples:
            self.inputs = compact(inputs)
            return
        if self.inputs is None:
            self.inputs = self.layout.zeros(*inputs.shape[1:])
        if self.geometry is not None and inputs.shape[1:] != self.inputs.shape[1:]:
            raise ShapeError(
                f"inputs: expected images of one size, got {tuple(self.inputs.shape[2:])} and "
                f"{tuple(inputs.shape[2:])}; resize them or pass one size at a time"
            )
        if self.geometry is None and inputs.shape[1] > self.inputs.shape[1]:
            self.inputs = _padded(self.inputs, 1, inputs.shape[1])
        self.inputs[(rows, slice(0, inputs.shape[1]))] = inputs

    def add(self, output: int, gradients: Sequence[Gradients]) -> None:
        """Keep output gradients, or the gradients that they make with the inputs."""
        if not self.stores_gradients:
            super().add(output, gradients)
            return
        output_grads = self._output_grads(gradients)
        if output_grads is not None:
            self._wait(output, output_grads)
        if self._waiting is not None and output + 1 == self._first + self._waiting.shape[1]:
            self._flush()

    def _wait(self, output: int, output_grads: Tensor) -> None:
        """Keep output gradients of a few outputs, so that patches are cut once for all of them."""
        if self._waiting is None:
            n, C, T = output_grads.shape
            size = n * C * T * self.layout.dtype.itemsize
            count = max(1, min(self.layout.outputs - output, _WAITING_BYTES // size))
            self._first = output
            if count == 1:  # large ones do not wait: no copy is made of them
                self._waiting = self._own(output_grads.unsqueeze(1))
                return
            self._waiting = torch.zeros(
                n, count, C, T, dtype=self.layout.dtype, device=output_grads.device
            )
        self._waiting[:, output - self._first].copy_(output_grads)

    def _flush(self) -> None:
        assert self._waiting is not None
        output_grads, self._waiting = self._waiting, None
        _, count, C, _ = output_grads.shape
        place = (self._rows, slice(self._first, self._first + count))
        number = 0
        for number, columns in enumerate(self._columns()):
            target = self._part(number, C, columns.shape[1])[place]
            self.layout.products.stacks_into(
                target.flatten(1, 2), output_grads.flatten(1, 2), columns
            )
        if self.group.bias is not None:
            self._part(number + 1, C, 1)[place] = output_grads.sum(3, keepdim=True)

    def add_joint(self, outputs: range, gradients: Sequence[tuple[Tensor, ...]]) -> None:
        """The same, in one copy where the matrix has a single use."""
        if len(gradients) > 1:
            super().add_joint(outputs, gradients)
            return
        structure = self._uses[0].structure
        assert isinstance(structure, Outer)
        output_grads = _joint_output_grads(structure, gradients[0][0])  # (n, outputs, C, T)
        if self.stores_gradients:
            self._waiting, self._first = self._own(output_grads), outputs.start
            self._flush()
        elif len(outputs) == self.layout.outputs and len(output_grads) == self.layout.examples:
            self.output_grads = self._own(output_grads)
        else:
            self._place(outputs, output_grads)

    def _own(self, output_grads: Tensor) -> Tensor:
        return output_grads.to(self.layout.dtype).contiguous()

    def _place(self, outputs: range, output_grads: Tensor) -> None:
        if self.output_grads is None:
            self.output_grads = self.layout.zeros(self.layout.outputs, *output_grads.shape[2:])
        length = output_grads.shape[3]
        self.output_grads = _padded(self.output_grads, 3, max(length, self.output_grads.shape[3]))
        self.output_grads[self._rows, outputs.start : outputs.stop, :, :length] = output_grads

    def _part(self, number: int, rows: int, columns: int) -> Tensor:
        if len(self.gradients) == number:
            self.gradients.append(self.layout.zeros(self.layout.outputs, rows, columns))
        return self.gradients[number]

    def _columns(self) -> Iterable[Tensor]:
        if self.geometry is None:
            return [self._inputs.transpose(1, 2)]
        size = self._inputs[0].nbytes * self.geometry.offset_count
        if self.layout.products.cores and size <= _WHOLE_BYTES:
            return [self.geometry.columns(self._inputs).flatten(1, 2)]  # few products, and wide
        return self.geometry.column_parts(self._inputs)

    def end(self) -> None:
        """Forget the graph and the inputs of the last run."""
        if self._waiting is not None:
            self._flush()
        super().end()
        del self._inputs

    def release(self) -> None:
        """Forget output gradients, inputs and gradients."""
        super().release()
        self.inputs = None
        self.gradients = []


def _joint_output_grads(structure: Outer, gradients: Tensor) -> Tensor:
    """Output gradients of several outputs, from (outputs, n, ...) to (n, outputs, C, T).

    Those of the first output are a view in most cases. All others then lie in the same way, each at
    its place, and nothing has to be asked for output by output.
    """
    first = structure.output_grads(gradients[0])
    if first.untyped_storage().data_ptr() != gradients.untyped_storage().data_ptr():
        return torch.stack([first, *(structure.output_grads(part) for part in gradients[1:])], 1)
    shape, steps = (len(gradients), *first.shape), (gradients.stride(0), *first.stride())
    return gradients.as_strided(shape, steps, first.storage_offset()).transpose(0, 1)


def _joint_jacobian(structure: Any, gradients: Tensor) -> Tensor:
    """Gradients of every example, (outputs, n, ...), from those of several outputs."""
    if structure.joint is not None:
        return structure.joint(gradients)
    try:
        return quiet_vmap(structure.jacobian)(gradients)
    except RuntimeError:  # an operation that cannot be vectorised
        return torch.stack([structure.jacobian(part) for part in gradients])


_PULLED_BYTES = 2**26  # gradients that are pulled back at a time


class DenseFactors(Factors):
    """Gradients (n, c, P) as such, pulled back to the parameter where it was transformed."""

    def __init__(
        self, group: ParameterGroup, layout: FactorLayout, parameter: nn.Parameter
    ) -> None:
        super().__init__(group, layout, "gradients", stores_gradients=True)
        self._parameter = parameter
        self.gradients: list[Tensor] = []

    @property
    def is_empty(self) -> bool:
        """Whether no gradient has arrived."""
        return not self.gradients

    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Remember the structures."""
        for use in uses:
            use.require_unchanged()
        self._rows, self._uses = rows, uses

    def add(self, output: int, gradients: Sequence[Gradients]) -> None:
        """Add up the gradients of all uses."""
        for use, given in zip(self._uses, gradients, strict=True):
            if all(gradient is None for gradient in given):
                continue
            rows = self._jacobian(use, given)
            rows = rows.reshape(len(rows), -1)
            if not self.gradients:
                self.gradients.append(self.layout.zeros(self.layout.outputs, rows.shape[1]))
            self.gradients[0][self._rows, output] += rows

    def add_joint(self, outputs: range, gradients: Sequence[tuple[Tensor, ...]]) -> None:
        """Several outputs in one call: normalised inputs are made once, sums are taken together."""
        structures = [use.structure for use in self._uses]
        plain = self.group.direct and all(len(given) == 1 for given in gradients)
        plain &= all(use.by_rule for use in self._uses)
        if not plain or any(not isinstance(s, Dense) or s.own_rows for s in structures):
            super().add_joint(outputs, gradients)
            return
        for use, (given,) in zip(self._uses, gradients, strict=True):
            rows = _joint_jacobian(use.structure, given).flatten(2).transpose(0, 1)
            scale = 1.0 if use.origin.scale is None else use.origin.scale
            if not self.gradients and rows.shape[:2] == (self.layout.examples, self.layout.outputs):
                own = rows.to(self.layout.dtype, copy=True, memory_format=torch.contiguous_format)
                self.gradients.append(own if scale == 1.0 else own.mul_(scale))
                continue
            if not self.gradients:
                self.gradients.append(self.layout.zeros(self.layout.outputs, rows.shape[2]))
            place = self.gradients[0][self._rows, outputs.start : outputs.stop]
            place.add_(rows.to(self.layout.dtype), alpha=scale)

    def put(self, example: int, output: int, gradient: Tensor) -> None:
        """Take the gradient of one output of one example as it is."""
        flat = gradient.flatten()
        if not self.gradients:
            self.gradients.append(self.layout.zeros(self.layout.outputs, len(flat)))
        self.gradients[0][example, output] = flat

    def features(self) -> Tensor:
        """All gradients, (n, c, P); zeros where none arrived."""
        if self.gradients:
            return self.gradients[0]
        entries = self._parameter.numel() * (2 if self._parameter.is_complex() else 1)
        return self.layout.zeros(self.layout.outputs, entries)

    def _jacobian(self, use: Use, given: Gradients) -> Tensor:
        filled = tuple(
            torch.zeros(shape, dtype=use.origin.tensor.dtype, device=self.layout.device)
            if gradient is None
            else gradient
            for gradient, shape in zip(given, use.results, strict=True)
        )
        structure = use.structure
        jacobian: Callable[[Any], Tensor] = structure.jacobian
        rows = jacobian(filled if len(filled) > 1 else filled[0])
        if isinstance(structure, Dense) and structure.own_rows:
            return torch.cat([self._pulled_own(use, structure, rows, k) for k in range(len(rows))])
        rows = rows.reshape(len(rows), *use.origin.tensor.shape)
        if self.group.direct:
            scale = use.origin.scale
            return rows.to(self.layout.dtype) * (1.0 if scale is None else scale)
        return self._pulled(use, rows)

    def _pulled(self, use: Use, rows: Tensor) -> Tensor:
        size = max(1, _PULLED_BYTES // (rows[0].numel() * rows.element_size()))
        parts = [pull_back(use.origin, self._parameter, part) for part in torch.split(rows, size)]
        return torch.cat(parts).to(self.layout.dtype)

    def _pulled_own(self, use: Use, structure: Dense, rows: Tensor, index: int) -> Tensor:
        """One part per example: the gradient of an example is zero in the parts of the others."""
        assert structure.axis is not None
        tensor = use.origin.tensor
        full = rows.new_zeros(tensor.shape)
        split_examples(full, len(rows), structure.axis)[index] = rows[index]
        return pull_back(use.origin, self._parameter, full.unsqueeze(0)).to(self.layout.dtype)

    def end(self) -> None:
        """Forget the graph."""
        self._uses = ()

    def release(self) -> None:
        """Forget the gradients."""
        self.gradients = []


Item = TypeVar("Item")


class MixedFactors(Factors):
    """Factors of the lookups and of the products apart; gradients are never formed as a whole."""

    def __init__(self, group: ParameterGroup, layout: FactorLayout, route: Route) -> None:
        super().__init__(group, layout, route)
        self.outer = OuterFactors(
            ParameterGroup(group.parameter, "outer", group.uses), layout, route
        )
        self.lookup = LookupFactors(ParameterGroup(group.parameter, "lookup", group.uses), layout)
        self._is_outer: list[bool] = []

    @property
    def is_empty(self) -> bool:
        """Whether no gradient has arrived."""
        return self.outer.is_empty and self.lookup.is_empty

    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Hand every use to its kind."""
        self._is_outer = [isinstance(use.structure, Outer) for use in uses]
        self.outer.begin(rows, self._chosen(uses, True))
        self.lookup.begin(rows, self._chosen(uses, False))

    def add(self, output: int, gradients: Sequence[Gradients]) -> None:
        """Hand every gradient to its kind."""
        self.outer.add(output, self._chosen(gradients, True))
        self.lookup.add(output, self._chosen(gradients, False))

    def _chosen(self, items: Sequence[Item], kind: bool) -> list[Item]:
        return [item for item, outer in zip(items, self._is_outer, strict=True) if outer == kind]

    def end(self) -> None:
        """Forget the graph."""
        self.outer.end()
        self.lookup.end()

    def release(self) -> None:
        """Forget everything."""
        self.outer.release()
        self.lookup.release()


def empty_factors(plan: GroupPlan, layout: FactorLayout, parameter: nn.Parameter) -> Factors:
    """Where the gradients of a group, of the planned kind and route, will be collected."""
    group = plan.group
    if group.kind == "lookup":
        return LookupFactors(group, layout)
    if group.kind == "mixed":
        return MixedFactors(group, layout, plan.route)
    if group.kind == "outer":
        return OuterFactors(group, layout, plan.route, plan.stores_gradients)
    return DenseFactors(group, layout, parameter)


def crossed(outer: OuterFactors, lookup: LookupFactors) -> Tensor | None:
    r"""Inner products between gradients of products and of lookups, (nx, c, ny, c).

    .. math:: \sum_{t, s} b^i_t[\mathrm{token}_s]\; (a_t \cdot \beta^j_s)

    for products with inputs a and output gradients b, and lookups of tokens with beta.
    """
    if outer.output_grads is None or lookup.output_grads is None:
        return None
    assert outer.inputs is not None
    assert lookup.tokens is not None
    columns = []
    for tokens, output_grads in zip(lookup.tokens, lookup.output_grads, strict=True):
        c, D, S = output_grads.shape
        picked = outer.output_grads[:, :, tokens.clamp(min=0)].flatten(2)  # (nx, c, S T)
        carried = outer.inputs @ output_grads.transpose(0, 1).reshape(D, c * S)
        carried = carried.view(*carried.shape[:2], c, S).permute(0, 3, 1, 2)  # (nx, S, T, c)
        columns.append(picked @ carried.flatten(1, 2))
    return torch.stack(columns, 2)
