"""Scalings of inputs, each with the numbers of the paper that uses it."""

from dataclasses import replace
from math import sqrt

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.reference.data import standardized_image
from tests.tolerances import assert_close
from theodolite import data as datasets
from theodolite.errors import DomainError


@pytest.fixture
def pixels(generator):
    x = torch.randint(256, (40, 3, 8, 8), generator=generator, dtype=torch.uint8)
    y = torch.arange(40) % 4
    return datasets.Dataset("pixels", x[:30], y[:30], x[30:], y[30:], peak=255)


def test_symmetric_range_of_bytes():
    values = datasets.symmetric_range(torch.arange(256, dtype=torch.uint8).unsqueeze(0))
    assert_close(values[0], np.arange(256) / 127.5 - 1, dtype=torch.float32)
    assert values.min() == -1
    assert values.max() == 1


def test_digits_in_the_unit_interval():
    raw = datasets.digits()
    sets = datasets.scaled(raw, "unit_interval")
    assert sets.x_train.equal(raw.x_train.float() / 16)
    assert sets.scaling == ("unit_interval",)
    rows = datasets.scaled(sets.flat(), "unit_rows")
    assert_close(rows.x_test.norm(dim=1), torch.ones(297), dtype=torch.float32)
    assert rows.scaling == ("unit_interval", "unit_rows")


def test_pixels_have_zero_mean_each_and_one_global_deviation(pixels):
    scaled = datasets.scaled(pixels, "pixels")
    train = scaled.x_train.double()
    assert_close(train.mean(0), torch.zeros(3, 8, 8), dtype=torch.float32)
    assert_close(train.square().mean().sqrt(), 1.0, dtype=torch.float32)
    assert train.std(0).std() > 0.01  # deviations per pixel still differ
    mean = pixels.x_train.double().mean(0)
    std = (pixels.x_train.double() - mean).square().mean().sqrt()
    assert_close(scaled.x_test, (pixels.x_test.double() - mean) / std, dtype=torch.float32)


@pytest.mark.spec("5.P56")
@settings(max_examples=20)
@given(
    images=hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
        elements=st.integers(0, 255).map(float),
    )
)
def test_standardized_images_equal_the_reference(images):
    actual = datasets.image_standardized(torch.from_numpy(images))
    for image, scaled in zip(images, actual, strict=True):
        assert_close(scaled, standardized_image(image), scale=10)


@pytest.mark.spec("5.P56")
def test_standardized_images_of_low_contrast_are_divided_by_the_floor():
    image = torch.zeros(1, 1, 10, 10, dtype=torch.float64)
    image[0, 0, :5] = 0.02  # deviation 0.01, below 1/10
    scaled = datasets.image_standardized(image)
    assert_close(scaled[0, 0, 0, 0], 0.01 * 10)
    assert_close(scaled[0], standardized_image(image[0].numpy()))


@pytest.mark.spec("5.P56")
def test_standardized_images_have_mean_zero_and_norm_root_n(pixels):
    scaled = datasets.scaled(pixels, "images").x_train.flatten(1).double()
    assert_close(scaled.mean(1), torch.zeros(30), dtype=torch.float32)
    assert_close(scaled.norm(dim=1), torch.full((30,), sqrt(192)), scale=14, dtype=torch.float32)


@pytest.mark.spec("5.P56")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64], ids=str)
def test_constant_images_become_zero(dtype):
    images = torch.full((2, 3, 32, 32), 77, dtype=dtype)
    assert datasets.image_standardized(images).count_nonzero() == 0


def test_unit_rows_of_extreme_lengths():
    rows = torch.tensor([[3e30, 4e30], [3e-30, 4e-30], [0.0, 0.0]])
    expected = [[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]
    assert_close(datasets.unit_rows(rows), expected, dtype=torch.float32)


@pytest.mark.parametrize("scaling", ["unit_interval", "symmetric"])
def test_scalings_of_pixels_refuse_what_is_none(pixels, scaling):
    with pytest.raises(DomainError):
        datasets.scaled(datasets.scaled(pixels, "images"), scaling)
    with pytest.raises(DomainError):  # never were pixels
        datasets.scaled(replace(pixels, x_train=pixels.x_train / 255, peak=None), scaling)


def test_scaling_leaves_labels_and_the_original(pixels):
    before = pixels.x_train.clone()
    assert datasets.scaled(pixels, "pixels").y_train is pixels.y_train
    assert pixels.x_train.equal(before)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: datasets.pixel_standardizer(torch.ones(3, 2)), DomainError),
        (lambda: datasets.pixel_standardizer(torch.full((3, 2), float("nan"))), DomainError),
    ],
)
def test_bad_requests_raise(call, error):
    with pytest.raises(error):
        call()
