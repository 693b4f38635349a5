"""The ladder from Gaussian patches to images."""

import numpy as np
import pytest
import torch

from tests.reference import patches as reference
from tests.tolerances import assert_close
from theodolite.errors import DomainError, ShapeError
from theodolite_papers.maennel2020._ladder import (
    LADDER,
    assembled_images,
    gaussian_patches,
    grid_patches,
    image_ladder,
)


@pytest.fixture
def images(generator):
    """Smooth images with a gradient: neighbouring patches are strongly correlated."""
    noise = torch.randn(300, 2, 1, 1, generator=generator, dtype=torch.float64)
    ramp = torch.linspace(0.5, 1.5, 9, dtype=torch.float64)
    detail = 0.3 * torch.randn(300, 2, 9, 6, generator=generator, dtype=torch.float64)
    return 4.0 + noise * ramp.view(1, 1, 9, 1) + detail


@pytest.mark.spec("2.P32")
@pytest.mark.parametrize("kernel", [1, 3])
def test_patches_are_those_of_a_strided_convolution(images, kernel):
    rows = grid_patches(images[:4], kernel)
    expected = reference.patches(images[:4].numpy(), (kernel,) * 2, (kernel,) * 2, (0, 0), (1, 1))
    assert_close(rows, expected.reshape(4, -1, 2 * kernel**2))


@pytest.mark.spec("2.P32")
@pytest.mark.parametrize("kernel", [1, 3])
def test_assembling_patches_is_the_identity(images, kernel):
    patches = grid_patches(images, kernel)
    assert assembled_images(patches, kernel, 9, 6).equal(images)
    assert image_ladder(images, "original", kernel) is images


@pytest.mark.spec("2.P32")
def test_shuffling_keeps_every_position_and_the_covariance(images, generator):
    before = grid_patches(images)
    shuffled = image_ladder(images, "shuffled", generator=generator)
    after = grid_patches(shuffled)
    for position in range(before.shape[1]):
        assert sorted(after[:, position].tolist()) == sorted(before[:, position].tolist())
    pooled = [reference.covariance(rows.flatten(0, 1).numpy()) for rows in (before, after)]
    assert_close(pooled[1], pooled[0])
    assert not after.equal(before)


@pytest.mark.spec("2.P32")
def test_shuffling_removes_correlation_between_patches(images, generator):
    def correlation(patches):
        return abs(np.corrcoef(patches[:, 0].mean(1), patches[:, 3].mean(1))[0, 1])

    before = grid_patches(images)
    after = grid_patches(image_ladder(images, "shuffled", generator=generator))
    assert correlation(before) > 0.8
    assert correlation(after) < 4 / np.sqrt(300)


@pytest.mark.spec("2.P32")
@pytest.mark.parametrize("overlapping", [False, True])
def test_global_gaussian_patches_have_the_pooled_covariance(images, generator, overlapping):
    stride = (1, 1) if overlapping else (3, 3)
    rows = reference.patches(images.numpy(), (3, 3), stride, (0, 0), (1, 1)).reshape(-1, 18)
    expected = np.cov(rows.T, bias=True)
    many = images.repeat(20, 1, 1, 1)
    drawn = image_ladder(many, "gaussian_global", overlapping=overlapping, generator=generator)
    patches = grid_patches(drawn).numpy()
    actual = np.cov(patches.reshape(-1, 18).T, bias=True)
    error = 5 * expected.diagonal().max() * np.sqrt(2 / len(patches) / 6)
    assert np.abs(actual - expected).max() < error
    assert np.abs(patches.mean((0, 1))).max() < error  # the mean of 4 is gone
    assert abs(np.corrcoef(patches[:, 0].mean(1), patches[:, 3].mean(1))[0, 1]) < 0.06


@pytest.mark.spec("2.P32")
def test_gaussian_patches_of_a_position_have_its_own_covariance(images, generator):
    before = grid_patches(images).numpy()
    many = images.repeat(20, 1, 1, 1)
    drawn = image_ladder(many, "gaussian_position", generator=generator)
    after = grid_patches(drawn).numpy()
    for position in range(before.shape[1]):
        expected = np.cov(before[:, position].T, bias=True)
        actual = np.cov(after[:, position].T, bias=True)
        error = 5 * expected.diagonal().max() * np.sqrt(2 / len(after))
        assert np.abs(actual - expected).max() < error
    # The ramp makes positions differ by more than that.
    assert before[:, 5].var() > 1.5 * before[:, 0].var()


@pytest.mark.parametrize("rung", LADDER)
def test_rungs_keep_shape_and_dtype_and_follow_the_seed(images, rung):
    first, again = (
        image_ladder(images.float(), rung, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert first.shape == images.shape
    assert first.dtype == torch.float32
    assert first.equal(again)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: image_ladder(torch.zeros(2, 1, 32, 32), "shuffled"), ShapeError),
        (lambda: image_ladder(torch.zeros(2, 1, 32, 32), "original"), ShapeError),
        (lambda: assembled_images(torch.zeros(2, 4, 9), 3, 9, 9), ShapeError),
        (lambda: assembled_images(torch.zeros(2, 9, 8), 3, 9, 9), ShapeError),
        (lambda: gaussian_patches(torch.full((2, 1, 1), float("inf"))), DomainError),
    ],
)
def test_bad_requests_raise(call, error):
    with pytest.raises(error):
        call()
