"""Initialisation from data, layer by layer: sampled from a covariance, or its eigenvectors."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import require_choice, require_flag, require_function, require_kind
from theodolite.engine import input_moments
from theodolite.engine.batches import iterate_batches
from theodolite.engine.layers import CONVOLUTIONS, Layers, unwrap
from theodolite.engine.state import evaluating
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite.interventions.filters import Tau, sample_filters, tau_values
from theodolite.interventions.matrix_layers import (
    filter_rows,
    matrix_layers,
    running_order,
    set_filters_,
)
from theodolite.linalg import top_eigen


def covariance_init_(
    model: nn.Module,
    images: Any = None,
    layers: Layers | None = None,
    *,
    filters: Literal["auto", "sampled", "eigenvectors"] = "auto",
    tau: Tau = "f2",
    covariances: Mapping[str, Float[Tensor, "d d"]] | None = None,
    match_norms: bool = True,
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Give the filters of a network the covariance of its data, layer by layer.

    Let :math:`e_k` be the leading eigenvectors of the covariance of a layer's inputs (patches for a
    convolution), as many as the layer has filters. Its filters are either :math:`\pm\tau_k e_k`,
    one for each eigenvector, or samples of

    .. math:: w \sim N\Big(0, \sum_k \tau_k^2\, e_k e_k^\top\Big).

    Networks with eigenvectors fit the training set faster than with He's initialisation, networks
    with samples and ``tau="f2"`` more slowly. Neither improves the test accuracy
    (benchmarks/README.md). Each layer gets the data through the layers that are already set. Biases
    of the chosen layers become zero.

    Args:
        model: any network; changed in place. It runs in evaluation mode, so that batch norm uses
            its running statistics.
        images: examples as :func:`theodolite.survey` takes them; a few thousand are enough.
        layers: the layers to fill; by default the convolutions or, in a network without them, all
            linear layers except the last.
        filters: ``"eigenvectors"``, ``"sampled"`` or ``"auto"``. ``"auto"`` uses eigenvectors in
            every layer with no more filters than directions. It samples in other layers and for
            given covariances.
        tau: strengths of the directions: ``"f1"``, ``"f2"``, ``"f3"``, a list of numbers, or a
            function. With fewer numbers than directions the others are left out. A function gets
            the data's standard deviations along all directions; it may be a measured transfer
            function.
        covariances: layer -> covariance of weights to draw from instead, for instance of learned
            weights (:func:`theodolite.engine.weight_covariance`). Without ``layers`` only these
            layers are filled.
        match_norms: give each new weight the Frobenius norm of the one that it replaces.
        generator: source of randomness.

    Returns:
        The model.

    Raises:
        DomainError: If a layer is not linear or convolutional, or does not run. Or if a matrix is
            no covariance, or weights have norm zero.
        ShapeError: If a covariance does not fit its layer, or there are too few eigenvectors.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
        >>> before = net[0].weight.norm()
        >>> _ = covariance_init_(net, torch.randn(50, 1, 5, 5))
        >>> torch.allclose(net[0].weight.norm(), before)
        True

    References:
        [maennel2020], sections 2.4 and 2.5, tables 1 and 4. Differs from paper: we match norms and
        draw random signs; the paper mentions neither. Without matched norms three such layers do
        not train.
    """
    require_choice(("auto", "sampled", "eigenvectors"), filters=filters)
    require_kind((Mapping, type(None)), covariances=covariances)
    require_kind((torch.Generator, type(None)), generator=generator)
    require_flag(match_norms=match_norms)
    if callable(tau):
        require_function(tau=tau)
    given = dict(covariances or {})
    chosen = list(given) if layers is None and given else layers

    def make(name: str, covariance: Tensor, count: int) -> Tensor:
        enough = name not in given and count <= len(covariance)
        if filters == "eigenvectors" or (filters == "auto" and enough):
            return _eigenvectors(name, covariance, count, tau, generator)
        if name not in given:
            covariance = _weight_covariance(covariance, count, tau)
        return sample_filters(covariance, count, generator=generator)

    return initialize_layers_(model, images, chosen, given, make, match_norms)


def _eigenvectors(
    name: str, covariance: Tensor, count: int, tau: Tau, generator: torch.Generator | None
) -> Tensor:
    """Leading eigenvectors as filters, with the strengths tau and random signs."""
    if count > len(covariance):
        raise ShapeError(
            f"layer {name!r}: expected at least {count} dimensions, one eigenvector per filter, "
            f"got {len(covariance)}; pass filters='auto' or 'sampled'"
        )
    values, vectors = top_eigen(covariance, count)
    return (vectors * tau_values(tau, values) * random_signs(vectors, generator)).mT


def random_signs(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """One sign for each column, drawn on the device of the generator."""
    device = "cpu" if generator is None else generator.device
    coins = torch.randint(2, like.shape[1:], generator=generator, device=device)
    return (2 * coins - 1).to(like)


def _weight_covariance(covariance: Tensor, count: int, tau: Tau) -> Tensor:
    """The sum of tau^2 e e^T; if tau is a function, it chooses the directions."""
    free = callable(tau) and not isinstance(tau, str)
    size = len(covariance)
    values, vectors = top_eigen(covariance, size if free else min(count, size))
    scaled = vectors * tau_values(tau, values, exact=False)
    return scaled @ scaled.mT


# (name of the layer, covariance, number of filters) -> filters, one per row
_MakeFilters = Callable[[str, Tensor, int], Tensor]


def initialize_layers_(
    model: nn.Module,
    images: Any,
    layers: Layers | None,
    given: dict[str, Tensor],
    make: _MakeFilters,
    match_norms: bool,
) -> nn.Module:
    """Replace the filters of the chosen layers, one after the other, and zero their biases.

    Args:
        model: the network; changed in place.
        images: examples; None if all covariances are given.
        layers: the layers to fill; None for the convolutions, or all linear layers except the last.
        given: covariances that need not be measured.
        make: function that makes the filters of a layer.
        match_norms: give new weights the Frobenius norm of the replaced ones.
    """
    plain = unwrap(model)
    # Several passes are needed; an iterator allows one.
    data = list(iterate_batches(images)) if isinstance(images, Iterator) else images
    for name, padding in _plan(plain, data, layers, given):
        module = plain.get_submodule(name)
        old = filter_rows(module)
        if name in given:
            covariance = given[name].to(old.device, torch.float64)
        else:
            with evaluating(plain):
                moments = input_moments(plain, data, [name], padding=padding)
            measured = moments[name].covariance()
            covariance = (measured + measured.mT) / 2  # float32 products are symmetric to rounding
        _require_fit(name, covariance, old)
        new = make(name, covariance, len(old))
        set_filters_(module, _matched(name, new, old) if match_norms else new)
    return model


def _plan(
    model: nn.Module, data: Any, layers: Layers | None, given: dict[str, Tensor]
) -> list[tuple[str, str]]:
    """Layers in the order in which they run, and how their patches are padded."""
    known = matrix_layers(model)
    for name in given:
        if name not in known:
            raise UnknownNameError("layer", name, known)
    wanted = list(matrix_layers(model, layers))
    if set(wanted) <= set(given):
        return [(name, "none") for name in wanted]
    if data is None:
        raise DomainError(
            "images: expected examples, got None; only layers with given covariances need none"
        )
    shapes = running_order(model, data, list(known))
    if layers is None:
        wanted = _default_layers({name: known[name] for name in shapes})
    silent = [name for name in wanted if name not in shapes]
    if silent:
        raise DomainError(
            f"layers: expected layers that are called in the forward pass, but {silent} are not "
            "(attention uses the weights of its projections directly); leave them out"
        )
    return [(name, _padding(known[name], shapes[name])) for name in shapes if name in wanted]


def _default_layers(run: dict[str, nn.Module]) -> list[str]:
    """Convolutions, as in the paper. Without convolutions, all layers that run except the head."""
    convolutions = [name for name, module in run.items() if isinstance(module, CONVOLUTIONS)]
    hidden = convolutions or list(run)[:-1]
    if not hidden:
        raise DomainError(
            "model: expected a hidden layer or a convolution, got only the last layer; to "
            "initialise it, name it in layers="
        )
    return hidden


def _padding(module: nn.Module, shapes: list[tuple[int, ...]]) -> str:
    """Full patches only, unless the maps are smaller than the kernel."""
    if not isinstance(module, CONVOLUTIONS):
        return "none"
    reach = [(k - 1) * d + 1 for k, d in zip(module.kernel_size, module.dilation, strict=True)]
    sizes = [size for shape in shapes for size in zip(shape[-len(reach) :], reach, strict=True)]
    return "layer" if any(have < need for have, need in sizes) else "none"


def _require_fit(name: str, covariance: Tensor, rows: Tensor) -> None:
    d = rows.shape[1]
    if covariance.shape != (d, d):
        raise ShapeError(
            f"covariances: expected a {d} x {d} matrix for layer {name!r}, got shape "
            f"{tuple(covariance.shape)}; use weight_covariance of layers of the same shape"
        )


def _matched(name: str, new: Tensor, old: Tensor) -> Tensor:
    """The new rows with the Frobenius norm of the old ones."""
    norm, target = torch.linalg.matrix_norm(new), torch.linalg.matrix_norm(old.double())
    if norm == 0 or target == 0:
        which = "new" if norm == 0 else "replaced"
        raise DomainError(
            f"layer {name!r}: expected weights of positive norm, but the {which} ones are all "
            "zero; "
            + (
                "pass data that vary"
                if norm == 0
                else "initialise first, or pass match_norms=False"
            )
        )
    return new * (target / norm)
