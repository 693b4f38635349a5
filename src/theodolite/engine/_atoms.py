"""Group the uses of parameters into atoms: parts of a model whose kernel is one contraction.

A parameter with one kind of use is one atom; the shift of an affine map joins its matrix. Kernels
of atoms add up to kernels of layers.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from theodolite.engine.forms import Dense, Lookup, Outer
from theodolite.engine.layers import Ownership
from theodolite.engine.uses import Use

__all__ = ["Atom", "group_atoms"]

Kind = Literal["outer", "lookup", "mixed", "dense"]


@dataclass(frozen=True)
class Atom:
    """Parameters whose gradients are contracted together.

    Args:
        parameter: Name of the matrix, table or other tensor.
        kind: How its gradient is kept.
        uses: Positions of its uses in the list of all uses.
        shift: Name of the shift that is contracted with it, or None.
        direct: Whether all uses see the same tensor, so that no gradient must be pulled back.
    """

    parameter: str
    kind: Kind
    uses: tuple[int, ...]
    shift: str | None = None
    direct: bool = True

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameters of the atom."""
        return (self.parameter,) if self.shift is None else (self.parameter, self.shift)


def group_atoms(uses: list[Use], ownership: Ownership) -> list[Atom]:
    """Atoms in order of first use."""
    found: dict[str, list[int]] = defaultdict(list)
    for index, use in enumerate(uses):
        for root in use.origin.roots:
            found[root].append(index)
    atoms = {name: _atom(name, tuple(indices), uses) for name, indices in found.items()}
    return _merge_shifts(atoms, uses, ownership)


def _atom(name: str, indices: tuple[int, ...], uses: list[Use]) -> Atom:
    chosen = [uses[index] for index in indices]
    same = len({id(use.origin.tensor) for use in chosen}) == 1
    if not same or chosen[0].origin.scale is None:
        return Atom(name, "dense", indices, direct=False)
    return Atom(name, _kind(chosen), indices)


def _kind(uses: list[Use]) -> Kind:
    forms = [use.form for use in uses]
    outer = [form for form in forms if isinstance(form, Outer)]
    if len(outer) == len(forms) and len({(form.rows, form.transposed) for form in outer}) == 1:
        return "outer"
    if all(isinstance(form, Lookup) for form in forms):
        return "lookup"
    plain = all(not form.transposed and form.geometry is None for form in outer)
    tables = [form for form in forms if isinstance(form, Lookup)]
    return "mixed" if outer and plain and len(outer) + len(tables) == len(forms) else "dense"


def _merge_shifts(atoms: dict[str, Atom], uses: list[Use], ownership: Ownership) -> list[Atom]:
    """Join shifts with the matrices of the same calls, where every layer has both or neither."""
    by_calls = {_calls(atom, uses): name for name, atom in atoms.items() if atom.kind == "outer"}
    merged = dict(atoms)
    for name, atom in atoms.items():
        if not _is_shift(atom, uses):
            continue
        matrix = by_calls.get(_calls(atom, uses))
        if matrix is None or merged[matrix].shift or not _same_layers(matrix, name, ownership):
            continue
        base = merged[matrix]
        merged[matrix] = Atom(matrix, "outer", base.uses, name)
        del merged[name]
    return list(merged.values())


def _calls(atom: Atom, uses: list[Use]) -> tuple[int, ...]:
    return tuple(uses[index].call for index in atom.uses)


def _is_shift(atom: Atom, uses: list[Use]) -> bool:
    if atom.kind != "dense" or not atom.direct:
        return False
    chosen = [uses[index] for index in atom.uses]
    return all(
        isinstance(use.form, Dense) and use.form.signals is not None and use.origin.scale == 1.0
        for use in chosen
    )


def _same_layers(first: str, second: str, ownership: Ownership) -> bool:
    return all((first in names) == (second in names) for names in ownership.layers.values())
