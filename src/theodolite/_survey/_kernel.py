"""Kernel: alignment of each layer's kernel with target and input, its spectrum and power."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite._survey._bench import Bench
from theodolite._survey._layers import Layer
from theodolite._survey._sheet import Sheet, spread
from theodolite._survey._views import View, input_view
from theodolite.capture.batches import Batch
from theodolite.linalg import (
    centered_products,
    debiased_product,
    double_center,
    ratio_or_nan,
    safe_sqrt,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.measures.kernel import (
    cumulative_power,
    kernel_spectrum,
    linear_spectrum,
    modes_to_reach,
    power_area,
)
from theodolite.records import Estimate

__all__ = ["measure_kernel", "permuted_cka"]

_FAMILY = "kernel"
_SHOWN = 200  # modes of spectra that are kept
_FEW = 50  # examples, below which chance alone moves CKA visibly


@dataclass(frozen=True)
class Centered:
    """A Gram matrix centred once, for all that it is compared with."""

    gram: Float[Tensor, "n n"]
    defined: Tensor
    eps: float

    @classmethod
    def of(cls, gram: Float[Tensor, "n n"], eps: float) -> "Centered":
        """Centre, in float64, and see whether anything but rounding is left."""
        scaled = unit_peak(gram)
        centered = double_center(scaled)
        return cls(centered, ~vanishes_when_centered(centered, scaled, eps), eps)

    def take(self, indices: Tensor) -> "Centered":
        """Some of the examples, centred anew."""
        return Centered.of(self.gram[indices][:, indices], self.eps)

    def cka(self, other: "Centered") -> Float[Tensor, ""]:
        """Debiased CKA, the number of :func:`theodolite.measures.kernel.cka`."""
        products = centered_products(self.gram, other.gram)
        defined = self.defined & other.defined
        return products.cka(debiased=True, eps=max(self.eps, other.eps), defined=defined)[0, 1]


def measure_kernel(bench: Bench, sheet: Sheet) -> None:
    """Rows and curves of all layers."""
    batch, task = bench.examples(_FAMILY)
    columns = bench.probe.label_columns(bench.count(_FAMILY))
    references: dict[str, Centered] = {}
    for layer, view in bench.views(_FAMILY):
        with bench.step(sheet, _FAMILY, layer):
            references = references or _references(batch, columns, view.gram.device)
            _alignments(bench, sheet, layer, (view, references))
    sheet.section()
    for layer, view in bench.spectrum_views() if bench.settings.curves else ():
        with bench.step(sheet, _FAMILY, layer):
            _spectrum(sheet, layer, view, task.columns)
    config = bench.settings.describe()
    sheet.routes[_FAMILY] = {
        "method": "debiased",
        "n": len(batch),
        "pool": config["pool"],
        "spectrum_pool": config["spectrum_pool"],
        "spectrum_centered": False,
    }


def _references(
    batch: Batch, columns: Mapping[str, Tensor], device: torch.device
) -> dict[str, Centered]:
    """What every layer is compared with."""
    found: dict[str, Centered] = {}
    for name, targets in columns.items():
        Y = targets.to(device)
        found[f"cka_{name}"] = Centered.of(Y @ Y.mT, torch.finfo(torch.float64).eps)
    inputs = input_view(batch)
    if inputs is not None:
        found["cka_input"] = Centered.of(inputs.gram.to(device), inputs.eps)
    return found


def _alignments(
    bench: Bench, sheet: Sheet, layer: Layer, parts: tuple[View, dict[str, Centered]]
) -> None:
    view, references = parts
    n = len(view)
    if n < _FEW:
        text = f"{n} examples: chance alone moves this number, read it beside its null"
        sheet.warn(layer, (_FAMILY, "cka_target"), text)
    kernel = Centered.of(view.gram, view.eps)
    why = "the features are constant" if n >= 4 else "fewer than four examples"
    columns = bench.probe.label_columns(bench.count(_FAMILY))
    for measure, reference in references.items():
        null: Tensor | None = None
        targets = columns.get(measure.removeprefix("cka_"))
        if targets is not None:
            shuffled = bench.draws.shuffled(targets.to(kernel.gram.device))
            null = permuted_cka(kernel.gram, shuffled)
        error = _error(bench, kernel, reference)
        method = "exact" if error is None else "half-sampling"
        estimate = Estimate(float(kernel.cka(reference)), error, *spread(null), method)
        sheet.row(layer, (_FAMILY, measure), estimate, n, why)


def _error(bench: Bench, kernel: Centered, reference: Centered) -> float | None:
    halves = bench.draws.halves(len(kernel.gram)).to(kernel.gram.device)
    if len(halves) < 2:
        return None
    draws = [kernel.take(half).cka(reference.take(half)) for half in halves]
    return float(torch.stack(draws).std())


def permuted_cka(
    centered: Float[Tensor, "n n"], shuffled: Float[Tensor, "b n c"]
) -> Float[Tensor, " values"]:
    """Debiased CKA of a centred kernel with every permutation of the targets, in one product.

    No values at all below four examples, for which it is undefined.
    """
    count, n, c = shuffled.shape
    if count == 0 or n < 4:
        return centered.new_empty(0)
    K, d = centered, centered.diagonal()
    Y = shuffled - shuffled.mean(1, keepdim=True)
    flat = Y.permute(1, 0, 2).reshape(n, count * c)
    products = (flat * (K @ flat)).reshape(n, count, c).sum((0, 2))
    squares = Y.square().sum(2)  # diagonals of the permuted target kernels
    total = K.new_tensor(float(n))
    crossed = debiased_product(products, squares @ d, squares.sum(1) * d.sum(), total)
    own = debiased_product(K.square().sum(), d.square().sum(), d.sum().square(), total)
    size = (Y[0].mT @ Y[0]).square().sum()
    target = debiased_product(size, squares[0].square().sum(), squares[0].sum().square(), total)
    return ratio_or_nan(crossed, safe_sqrt((own * target).clamp(min=0.0)))


def _spectrum(sheet: Sheet, layer: Layer, view: View, columns: Tensor | None) -> None:
    n = len(view)
    if view.rows is not None and view.width <= n:
        spectrum = linear_spectrum(view.rows)
    else:
        spectrum = kernel_spectrum(view.gram)
    values = spectrum.eigenvalues
    ratio = float(ratio_or_nan(values.sum().square(), values.square().sum()))
    why = "all features are zero"
    sheet.row(layer, (_FAMILY, "participation_ratio"), Estimate(ratio), n, why)
    shares = {
        "x": torch.arange(1, len(values[:_SHOWN]) + 1),
        "y": values[:_SHOWN] / values.sum().clamp(min=torch.finfo(torch.float64).tiny),
    }
    sheet.curve(layer, (_FAMILY, "spectrum"), shares, x="mode", y="share of the trace")
    if columns is None:
        return
    power = cumulative_power(spectrum, columns.to(values.device)).curve
    modes, area = float(modes_to_reach(power)), float(power_area(power))
    sheet.row(layer, (_FAMILY, "modes_to_reach"), Estimate(modes), n, why)
    sheet.row(layer, (_FAMILY, "power_area"), Estimate(area), n, why)
    shown = {"x": torch.arange(len(power[: _SHOWN + 1])), "y": power[: _SHOWN + 1]}
    sheet.curve(layer, (_FAMILY, "cumulative_power"), shown, x="modes", y="share of the target")
