"""Which order of contraction is cheapest for a matrix of parameters.

With n examples, c outputs, T positions, C rows and D columns. The model counts multiply-adds and
bytes moved: on every machine some routes are bound by one and some by the other.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Problem", "Route", "choose_route", "costs", "pairs_at_once", "scatter_cost"]

Route = Literal["positions", "gradients", "hadamard"]

# Multiply-adds that run in the time of moving one byte, in float32: 51 TFLOP/s and 4 TB/s on a
# large GPU, 100 GFLOP/s and 15 GB/s on two CPU cores.
_PRODUCTS_PER_BYTE = 6.0
# A product with few columns runs as if it had this many.
_NARROW = 32
_FEW_ROWS = 64


@dataclass(frozen=True)
class Problem:
    """Sizes of one contraction.

    Args:
        left: Examples on the first side.
        right: Examples on the second side.
        outputs: Outputs that are kept apart on each side (c for the full kernel, else 1).
        rows: Rows C of the matrix, times the outputs that are merged.
        columns: Columns D.
        positions: Positions T.
        pixels: Numbers per position whose Gram matrix gives that of patches by shifts; 0 if none.
        symmetric: Whether both sides are the same, so that half of the products suffice.
        itemsize: Bytes per number.
    """

    left: int
    right: int
    outputs: int
    rows: int
    columns: int
    positions: int
    pixels: int = 0
    symmetric: bool = True
    itemsize: int = 4

    @property
    def pairs(self) -> float:
        """Pairs of examples that are contracted."""
        return self.left * self.right * (0.5 if self.symmetric else 1.0)


def _time(products: float, numbers: float | int, itemsize: int) -> float:
    """Predicted time in multiply-adds."""
    return products + _PRODUCTS_PER_BYTE * numbers * itemsize


def costs(problem: Problem) -> dict[Route, float]:
    """Predicted time of every route that applies, in multiply-adds."""
    p = problem
    c, T, C, D = p.outputs, p.positions, p.rows, p.columns
    examples = p.left if p.symmetric else p.left + p.right
    if T == 1:
        # n^2 D + (n c)^2 C, then a Hadamard product
        return {"hadamard": _time(p.pairs * (D + c * c * C), 3 * p.pairs * c * c, p.itemsize)}
    # G = A A'^T, then B^i G and <B^i G, B'^j>, or <B^i, B'^j> at all positions and its sum with G
    if pairs_at_once(c, T):
        products, numbers = c * c * T * T * C, 3 * c * c * T * T
    else:
        products, numbers = c * T * C * (T + max(c, _NARROW)), 2 * c * C * T
    position_products = p.pairs * (T * T * (p.pixels or D) + products)
    position_numbers = p.pairs * (numbers + T * T * (14 if 0 < p.pixels < D else 2))
    # gradients of all examples, then their Gram matrix
    gradient_products = examples * c * T * C * D + p.pairs * c * c * C * D
    gradient_numbers = examples * (2 * c * C * D + 3 * T * D)
    return {
        "positions": _time(position_products, position_numbers, p.itemsize),
        "gradients": _time(gradient_products, gradient_numbers, p.itemsize),
    }


def pairs_at_once(outputs: int, positions: int) -> bool:
    """Whether products of signals at all pairs of positions cost less than going through G."""
    return outputs == 1 or outputs * positions <= _FEW_ROWS


def scatter_cost(rows: int, columns: int) -> float:
    """Predicted time of products of gradients with each other's columns, in float64.

    In multiply-adds of float32, of which two run in the time of one.
    """
    return _time(2.0 * rows * columns**2, 3 * rows * columns, 8)


def choose_route(problem: Problem) -> Route:
    """The route with the lowest predicted time."""
    predicted = costs(problem)
    return min(predicted, key=lambda route: predicted[route])
