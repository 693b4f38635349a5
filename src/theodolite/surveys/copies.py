"""Examples that occur more than once, and held-out examples that say nothing about the training.

A network knows the labels of the examples that it was trained on. Copies of them among held-out
examples, or beside an example that is left out, are no evidence that it learned.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from theodolite.engine import Batch, tensors_in

_PART = 2**17  # numbers that are converted at a time, with twelve bytes each in the meantime
# Odd constants that mix the bits of a count (splitmix64), as signed numbers.
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def input_keys(batch: Batch) -> Int[Tensor, " n"] | None:
    """One number per example that equal inputs share; None if there are no tensors of inputs.

    Zeros at the end of a row do not count, so that padding makes no difference.
    """
    leaves = [
        leaf.detach()
        for leaf in tensors_in(batch.inputs)
        if not leaf.is_nested
        and leaf.layout == torch.strided
        and leaf.ndim > 0
        and len(leaf) == len(batch)
    ]
    if not leaves:
        return None
    total = torch.zeros(len(batch), dtype=torch.int64, device=leaves[0].device)
    for place, leaf in enumerate(leaves):
        plain = torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf
        values = plain.flatten(1) if plain.ndim > 1 else plain.unsqueeze(1)
        weights = _weights(place, values.shape[1]).to(leaf.device)
        total += torch.cat(
            [
                (_bits(part) * weights).sum(1)
                for part in torch.split(values, max(1, _PART // max(1, values.shape[1])))
            ]
        )
    return total.cpu()


def _bits(values: Tensor) -> Int[Tensor, "n d"]:
    return (values.float() + 0.0).contiguous().view(torch.int32).long()  # -0 becomes 0


def _weights(place: int, count: int) -> Int[Tensor, " d"]:
    """Numbers without a pattern; the first ones do not depend on how many there are."""
    mixed = (torch.arange(1, count + 1) + (place << 40)) * _STEP
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        mixed = (mixed ^ ((mixed >> shift) & ((1 << 64 - shift) - 1))) * factor
    return mixed | 1


def first_copies(keys: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
    """Places of the first example of every key, in order."""
    order = keys.argsort(stable=True)
    ordered = keys[order]
    new = torch.ones(len(keys), dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return order[new].sort().values


def usable_examples(
    keys: Int[Tensor, " n"] | None,
    known: Int[Tensor, " k"] | None,
    labels: Int[Tensor, " n"] | None,
    classes: Int[Tensor, " c"] | None,
) -> tuple[Int[Tensor, " m"], dict[str, int]]:
    """Which held-out examples the training can be judged on.

    Args:
        keys: of the held-out inputs; None where inputs cannot be compared.
        known: keys of the training inputs.
        labels: of the held-out examples; None where there are no classes.
        classes: all classes of the training data; None where they are not all known.

    Returns:
        Their places, and the numbers of the others, without zeros: "copies", whose inputs occur in
        the training data or earlier among these, and "new_classes" without training examples.
    """
    count = len(keys) if keys is not None else 0 if labels is None else len(labels)
    fresh, familiar = (torch.ones(count, dtype=torch.bool) for _ in range(2))
    if keys is not None and known is not None:
        fresh[:] = False
        fresh[first_copies(keys)] = True
        fresh &= ~torch.isin(keys, known)
    if labels is not None and classes is not None:
        familiar = torch.isin(labels, classes)
    others = {"copies": ~fresh, "new_classes": fresh & ~familiar}
    counts = {kind: int(left_out.sum()) for kind, left_out in others.items() if left_out.any()}
    return (fresh & familiar).nonzero().flatten(), counts
