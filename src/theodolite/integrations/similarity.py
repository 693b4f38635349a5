"""Measures of Theodolite in the form that ReSi and similarity-repository expect.

ReSi calls ``measure(R, Rp, shape) -> float``, similarity-repository ``measure(X, Y) -> float``. A
:class:`Similarity` accepts both. Rows are the same examples in both representations. Tangent
features (:func:`theodolite.tangent_features`) may be used as a representation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from theodolite.checks import require_choice, require_same_length
from theodolite.errors import ShapeError
from theodolite.measures import kernel, representation

__all__ = ["SIMILARITIES", "Similarity", "register"]

Shape = Literal["nd", "ntd", "nchw"]


@dataclass(frozen=True)
class Similarity:
    """A similarity of two representations of the same examples; larger is more similar.

    The attributes have the names that ReSi requires.

    Args:
        name: name in the registry.
        function: function of features (n, d) and (n, e).
        is_symmetric: whether the order of the two matters.

    Examples:
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> round(SIMILARITIES["cka"](x, 3 * x), 4)
        1.0
        >>> maps = x.reshape(50, 1, 2, 2)
        >>> round(SIMILARITIES["cka"](maps, x.reshape(50, 4, 1, 1), "nchw"), 4)
        1.0
    """

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    is_symmetric: bool = True
    larger_is_more_similar: bool = True

    def __call__(
        self,
        R: Shaped[Tensor, "n ..."] | Shaped[np.ndarray, "n ..."],
        Rp: Shaped[Tensor, "n ..."] | Shaped[np.ndarray, "n ..."],
        shape: Shape = "nd",
    ) -> float:
        """The similarity, as a number.

        Args:
            R: one representation.
            Rp: another representation of the same examples.
            shape: axes of both: ``"nd"``; ``"ntd"`` for tokens, each of which counts as an example;
                ``"nchw"`` for maps, which are flattened.

        Raises:
            ShapeError: If the axes are not those of ``shape``, or the examples differ in number.
            DomainError: If a value is not finite, or ``shape`` is unknown.
        """
        require_choice(("nd", "ntd", "nchw"), shape=shape)
        first, second = (_rows(torch.as_tensor(one), shape) for one in (R, Rp))
        require_same_length(R=first, Rp=second)
        return float(self.function(first, second))


def register(registry: Any = None) -> None:
    """Add all of them to similarity-repository, as ``theodolite/NAME``.

    Args:
        registry: object with ``register(id, function)``; by default the package ``similarity``.

    Raises:
        ImportError: If that package is not installed.

    Examples:
        >>> class Registry(dict):
        ...     register = dict.__setitem__
        >>> registry = Registry()
        >>> register(registry)
        >>> sorted(registry)[:2]
        ['theodolite/alignment-area', 'theodolite/cka']
    """
    target = import_module("similarity") if registry is None else registry
    for name, function in SIMILARITIES.items():
        target.register(f"theodolite/{name}", function)


def _rows(values: Tensor, shape: Shape) -> Tensor:
    if values.ndim != len(shape):
        raise ShapeError(
            f"representation: expected axes {shape!r}, got shape {tuple(values.shape)}; give "
            "shape='ntd' for tokens and shape='nchw' for maps"
        )
    return values.flatten(0, 1) if shape == "ntd" else values.flatten(1)


def _area_of_both(first: Tensor, second: Tensor) -> Tensor:
    """Each representation as features, the other as targets; the mean of the two areas."""
    first, second = first - first.mean(0), second - second.mean(0)
    area = representation.alignment_area
    return (area(first, second) + area(second, first)) / 2


SIMILARITIES: Mapping[str, Similarity] = {
    one.name: one
    for one in (
        Similarity("cka", kernel.linear_cka),
        Similarity("cka-biased", lambda a, b: kernel.linear_cka(a, b, debiased=False)),
        Similarity("kta", kernel.linear_kta),
        Similarity("alignment-area", _area_of_both),
        Similarity(
            "probe",
            lambda a, b: 1 - representation.probe_error(a, b),
            is_symmetric=False,
        ),
    )
}
