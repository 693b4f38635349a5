"""Scalings of inputs, as in each paper.

A scaling is fitted on the training inputs and applied to both splits. Statistics are float64,
scaled inputs float32 (float64 inputs stay float64).
"""

from collections.abc import Callable
from math import sqrt
from typing import Literal, get_args

import torch
from jaxtyping import Float, Num
from torch import Tensor

from theodolite.checks import (
    require_choice,
    require_finite,
    require_nonempty,
    require_positive,
    require_tensors,
)
from theodolite.data.dataset import Dataset
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import checks_classes, row_chunks

Scaling = Literal["unit_interval", "symmetric", "pixels", "images", "unit_rows"]
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)


def _require_rows(**inputs: Tensor) -> None:
    for name, tensor in inputs.items():
        if tensor.ndim < 2:
            raise ShapeError(
                f"{name}: expected one example per row, got shape {tuple(tensor.shape)}"
            )


def _floating(inputs: Tensor) -> Tensor:
    return inputs if inputs.dtype in (torch.float32, torch.float64) else inputs.float()


@checks_classes
def unit_interval(pixels: Num[Tensor, "n *shape"], peak: int = 255) -> Float[Tensor, "n *shape"]:
    """Scale pixels ``0..peak`` to [0, 1]; the 8x8 digits have ``peak = 16``.

    Args:
        pixels: raw pixels, one example per row.
        peak: the largest value that a pixel can have.

    Returns:
        The scaled pixels, in the shape of the input.

    Examples:
        >>> unit_interval(torch.tensor([[0, 255]]))
        tensor([[0., 1.]])
    """
    require_positive(peak=peak)
    return _floating(pixels) / peak


@checks_classes
def symmetric_range(pixels: Num[Tensor, "n *shape"], peak: int = 255) -> Float[Tensor, "n *shape"]:
    """Scale pixels ``0..peak`` to [-1, 1]: ``x / 127.5 - 1`` for bytes.

    Args:
        pixels: raw pixels, one example per row.
        peak: the largest value that a pixel can have.

    Returns:
        The scaled pixels, in the shape of the input.

    Examples:
        >>> symmetric_range(torch.tensor([[0, 255]]))
        tensor([[-1.,  1.]])

    References:
        [maennel2020], appendix A.3.
    """
    require_positive(peak=peak)
    return _floating(pixels) / (peak / 2) - 1


@checks_classes
def pixel_standardizer(training: Num[Tensor, "n *shape"]) -> Callable[[Tensor], Tensor]:
    r"""Zero mean at every pixel, one global unit standard deviation, fitted on training inputs.

    .. math:: x \mapsto \frac{x - m}{s}, \qquad m = \tfrac1n \sum_i x_i, \qquad
              s^2 = \frac{1}{nd} \sum_i \|x_i - m\|^2

    Args:
        training: inputs that determine :math:`m` and :math:`s`.

    Returns:
        The map, for training and test inputs.

    Raises:
        DomainError: If all training inputs are equal: there is no scale.

    Examples:
        >>> x = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
        >>> pixel_standardizer(x)(x)
        tensor([[-1.4142,  0.0000],
                [ 1.4142,  0.0000]])

    References:
        [lou2022], section 5.
    """
    _require_rows(training=training)
    require_nonempty(training=training)
    require_finite(training=training)
    chunks = [chunk for (chunk,) in row_chunks(training)]
    mean = torch.stack([chunk.double().sum(0) for chunk in chunks]).sum(0) / len(training)
    squares = sum((chunk.double() - mean).square().sum().item() for chunk in chunks)
    std = sqrt(squares / training.numel())
    if std == 0:
        raise DomainError(
            "training: expected inputs that differ, got equal ones; a scaling cannot be fitted to "
            "them"
        )

    def standardize(inputs: Tensor) -> Tensor:
        require_tensors(inputs=inputs)
        values = _floating(inputs)
        return (values - mean.to(values)) / std

    return standardize


@checks_classes
def image_standardized(images: Num[Tensor, "n *shape"]) -> Float[Tensor, "n *shape"]:
    r"""Zero mean and unit variance within every image.

    .. math:: v \mapsto \frac{v - \bar v}{\max(\operatorname{std}(v),\, 1/\sqrt N)}

    Mean and (population) standard deviation are over all :math:`N` values of an image. Every image
    with a deviation of at least :math:`1/\sqrt N` then has squared norm :math:`N`. A constant image
    becomes 0.

    Args:
        images: one image per row, with any number of axes.

    Returns:
        The scaled images, in the shape of the input.

    Examples:
        >>> image_standardized(torch.tensor([[1.0, 3.0], [7.0, 7.0]]))
        tensor([[-1.,  1.],
                [ 0.,  0.]])

    References:
        [mehta2021], section 2; the lower bound of the deviation is from the authors' program.
    """
    _require_rows(images=images)
    values = _floating(images)
    answer = torch.empty_like(values)
    for chunk, target in row_chunks(values.flatten(1), answer.flatten(1)):
        offset = chunk.double() - chunk.double().mean(1, keepdim=True)
        std = offset.square().mean(1, keepdim=True).sqrt()
        target.copy_(offset / std.clamp(min=1 / sqrt(chunk.shape[1])))
    return answer


@checks_classes
def unit_rows(inputs: Num[Tensor, "n *shape"]) -> Float[Tensor, "n *shape"]:
    """Every example divided by its Euclidean length; zero stays zero.

    Args:
        inputs: one example per row, with any number of axes.

    Returns:
        The scaled inputs, in the shape of the input.

    Examples:
        >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])

    References:
        [imani2022], section 3.
    """
    _require_rows(inputs=inputs)
    values = _floating(inputs)
    peaks = values.flatten(1).abs().amax(1).view(-1, *[1] * (values.ndim - 1))
    level = values / torch.where(peaks > 0, peaks, 1)  # squares neither overflow nor vanish
    norms = torch.linalg.vector_norm(level.flatten(1), dim=1).view_as(peaks)
    return level / torch.where(norms > 0, norms, 1)


@checks_classes
def scaled(dataset: Dataset, scaling: Scaling) -> Dataset:
    """The data set with scaled inputs; statistics come from the training inputs.

    Args:
        dataset: a data set with raw pixels for ``"unit_interval"`` and ``"symmetric"``; any data
            set for ``"pixels"``, ``"images"`` and ``"unit_rows"``.
        scaling: ``"unit_interval"`` and ``"unit_rows"`` (both [imani2022]), ``"symmetric"``
            ([maennel2020]), ``"pixels"`` ([lou2022]) or ``"images"`` ([mehta2021]).

    Returns:
        A new data set. Its ``scaling`` lists all scalings so far.

    Raises:
        DomainError: If a scaling of raw pixels gets inputs that are not raw pixels.

    Examples:
        >>> x, y = torch.tensor([[0, 51], [255, 0]]), torch.tensor([0, 1])
        >>> data = scaled(Dataset("toy", x, y, x, y, peak=255), "unit_interval")
        >>> data.x_train[0], data.scaling
        (tensor([0.0000, 0.2000]), ('unit_interval',))
    """
    require_choice(SCALINGS, scaling=scaling)
    return dataset.mapped(_scaler(dataset, scaling), scaling)


def _scaler(dataset: Dataset, scaling: Scaling) -> Callable[[Tensor], Tensor]:
    if scaling == "pixels":
        return pixel_standardizer(dataset.x_train)
    if scaling == "images":
        return image_standardized
    if scaling == "unit_rows":
        return unit_rows
    if dataset.peak is None or dataset.scaling:
        steps = ", ".join(dataset.scaling) or "values that are not pixels"
        raise DomainError(
            f"scaling: expected raw pixels for {scaling!r}, but {dataset.name} holds {steps}; "
            "load it unscaled, or use 'pixels', 'images' or 'unit_rows'"
        )
    peak = dataset.peak
    if scaling == "symmetric":
        return lambda inputs: symmetric_range(inputs, peak)
    return lambda inputs: unit_interval(inputs, peak)
