"""Cropped and pooled images."""

import pytest
import torch

from theodolite.errors import ShapeError
from theodolite_papers.lab import data


@pytest.mark.parametrize(
    "call",
    [
        lambda: data.average_pooled(torch.ones(1, 1, 9, 8), 2),
        lambda: data.central_crop(torch.ones(1, 1, 9, 8), 9),
    ],
    ids=["pooled", "cropped"],
)
def test_bad_requests_raise(call):
    with pytest.raises(ShapeError):
        call()


def test_central_crop_of_the_paper_starts_at_pixel_two():
    images = torch.arange(32 * 32).reshape(1, 1, 32, 32)
    crop = data.central_crop(images, 27)
    assert crop.shape == (1, 1, 27, 27)
    assert crop[0, 0, 0, 0] == images[0, 0, 2, 2]


def test_average_pooling_is_the_mean_of_squares():
    images = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
    assert data.average_pooled(images, 2).flatten().tolist() == [2.5, 4.5, 10.5, 12.5]
