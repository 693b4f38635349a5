"""From uses of parameters, and gradients at their results, to gradients of examples."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from theodolite.engine._atoms import Atom, group_atoms
from theodolite.engine._dense_factors import DenseFactors
from theodolite.engine._example_gradients import (
    DenseGradients,
    ExampleGradients,
    LookupGradients,
    OuterGradients,
)
from theodolite.engine._factors import Frame
from theodolite.engine._tied_gradients import TiedGradients, is_tied_table
from theodolite.engine.forms import Dense, Lookup, Outer
from theodolite.engine.layers import Ownership
from theodolite.engine.uses import Use

__all__ = ["example_gradients"]


def example_gradients(
    uses: Sequence[Use], arrived: Sequence[Tensor | None], owned: Ownership, examples: int
) -> Iterator[tuple[str, ExampleGradients]]:
    """Parameter -> gradients of the examples, for every parameter that receives any.

    Args:
        uses: all uses of one run.
        arrived: gradients at the results of all uses, one after the other; None where zero.
        owned: the parameters.
        examples: number of examples.
    """
    grouped = _by_use(uses, arrived)
    for atom in group_atoms(list(uses), owned):
        chosen = [
            (uses[index], grouped[index])
            for index in atom.uses
            if any(gradient is not None for gradient in grouped[index])
        ]
        if not chosen:
            continue
        for use, _ in chosen:
            use.require_unchanged()
        yield from _of_atom(atom, chosen, owned, examples)


def _by_use(
    uses: Sequence[Use], arrived: Sequence[Tensor | None]
) -> list[tuple[Tensor | None, ...]]:
    position, grouped = 0, []
    for use in uses:
        grouped.append(tuple(arrived[position : position + len(use.edges)]))
        position += len(use.edges)
    return grouped


def _of_atom(
    atom: Atom,
    chosen: list[tuple[Use, tuple[Tensor | None, ...]]],
    owned: Ownership,
    examples: int,
) -> Iterator[tuple[str, ExampleGradients]]:
    forms = [use.form for use, _ in chosen]
    gradients = [given[0] for _, given in chosen if given[0] is not None]
    scale = chosen[0][0].origin.scale or 1.0
    if atom.kind == "outer":
        outer = [form for form in forms if isinstance(form, Outer)]
        yield atom.parameter, OuterGradients(outer, gradients, scale)
        if atom.shift is not None:
            pairs = zip(outer, gradients, strict=True)
            shifts = [form.signals(gradient).sum(2) for form, gradient in pairs]
            yield atom.shift, DenseGradients(torch.stack(shifts).sum(0))
    elif atom.kind == "lookup":
        lookups = [form for form in forms if isinstance(form, Lookup)]
        yield atom.parameter, LookupGradients(lookups, gradients, scale)
    elif atom.direct and is_tied_table(forms):
        yield atom.parameter, TiedGradients(forms, gradients, scale)
    else:
        yield atom.parameter, _dense(atom, chosen, owned, examples)


def _dense(
    atom: Atom,
    chosen: list[tuple[Use, tuple[Tensor | None, ...]]],
    owned: Ownership,
    examples: int,
) -> ExampleGradients:
    """Gradients as such; added up over uses and pulled back where the tensor was transformed."""
    use, given = chosen[0]
    form = use.form
    plain = atom.direct and len(chosen) == 1 and len(given) == 1 and use.origin.scale == 1.0
    if plain and given[0] is not None and isinstance(form, Dense) and not form.own_rows:
        return DenseGradients(form.jacobian(given[0]))
    parameter = owned.parameters[atom.parameter]
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    factors = DenseFactors(atom, Frame(examples, 1, dtype, parameter.device), parameter)
    factors.begin(slice(0, examples), [use for use, _ in chosen])
    factors.add(0, [given for _, given in chosen])
    factors.end()
    return DenseGradients(factors.gradients[0].squeeze(1))
