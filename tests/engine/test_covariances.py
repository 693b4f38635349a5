import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.reference import patches as reference
from theodolite.engine import input_moments, input_samples, patch_covariance, weight_covariance
from theodolite.engine.covariances import _prefers_shifts
from theodolite.engine.patches import PatchGeometry
from theodolite.errors import DomainError, DtypeError
from theodolite.linalg import Moments, RowSample

# kernel, stride, padding, dilation
GEOMETRIES = {
    "plain": ((3, 3), (1, 1), (0, 0), (1, 1)),
    "not square": ((3, 2), (1, 1), (1, 0), (1, 1)),
    "padded": ((5, 5), (1, 1), (2, 2), (1, 1)),
    "dilated": ((3, 3), (1, 1), (1, 1), (2, 2)),
    "strided": ((3, 3), (2, 1), (1, 2), (1, 1)),
    "one pixel": ((1, 1), (1, 1), (0, 0), (1, 1)),
    "all": ((2, 4), (2, 1), (0, 3), (1, 2)),
}
geometries = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)


def images_of(generator, channels, count=2):
    shape = (count, channels, 9, 10)
    return torch.randn(shape, generator=generator, dtype=torch.float64) + 3


@pytest.mark.spec("2.P31")
@geometries
def test_patches_equal_the_loop_and_unfold(geometry, generator):
    images = images_of(generator, 2)
    kernel, stride, padding, dilation = geometry
    grid = PatchGeometry.of(2, *geometry)
    rows = grid.patch_rows(grid.pad(images))
    expected = reference.patches(images.numpy(), *geometry)
    unfolded = functional.unfold(images, kernel, dilation, padding, stride)
    np.testing.assert_array_equal(rows, expected.reshape(rows.shape))
    torch.testing.assert_close(rows, unfolded.mT, rtol=0, atol=0)


@pytest.mark.spec("2.P31")
@geometries
def test_filter_times_patch_is_the_convolution(geometry, generator):
    images = images_of(generator, 2)
    kernel, stride, padding, dilation = geometry
    layer = nn.Conv2d(2, 3, kernel, stride, padding, dilation).double()
    grid = PatchGeometry.of(2, *geometry)
    rows = grid.patch_rows(grid.pad(images))
    output = rows @ layer.weight.flatten(1).mT + layer.bias
    torch.testing.assert_close(output.mT.reshape(layer(images).shape), layer(images))


@geometries
@pytest.mark.parametrize("channels", [2, 16], ids=["few channels", "many channels"])
@pytest.mark.parametrize("centered", [True, False], ids=["centred", "raw"])
def test_patch_covariance_equals_the_loop(geometry, channels, centered, generator):
    images = images_of(generator, channels, count=1)
    rows = reference.patches(images.numpy(), *geometry)
    expected = reference.covariance(rows.reshape(-1, rows.shape[-1]), centered, ddof=1)
    kernel, stride, padding, dilation = geometry
    found = patch_covariance(
        images, kernel, stride, padding, dilation=dilation, centered=centered, ddof=1
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 * np.abs(expected).max())


def test_shifted_products_are_taken_where_they_pay(generator):
    wide, narrow = images_of(generator, 16), images_of(generator, 3)
    assert _prefers_shifts(wide, PatchGeometry.of(2, 3))
    assert not _prefers_shifts(narrow, PatchGeometry.of(2, 3))
    assert not _prefers_shifts(wide, PatchGeometry.of(2, 3, stride=2))
    assert not _prefers_shifts(wide, PatchGeometry.of(2, 6))  # maps no wider than the border


@pytest.mark.spec("2.P31")
def test_one_pixel_and_whole_image_kernels(generator):
    images = images_of(generator, 3, count=5)
    pixels = images.permute(0, 2, 3, 1).reshape(-1, 3)
    flat = images.flatten(1)
    torch.testing.assert_close(patch_covariance(images, 1), torch.cov(pixels.T, correction=0))
    torch.testing.assert_close(patch_covariance(images, (9, 10)), torch.cov(flat.T, correction=0))


@pytest.mark.spec("2.P31")
@pytest.mark.parametrize(("kernel", "side"), [(3, 30), (5, 28)])
def test_positions_of_small_images(kernel, side):
    assert PatchGeometry.of(2, kernel).output_size((32, 32)) == (side, side)


@pytest.mark.spec("2.P31")
@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("batch", [1, 3, 7])
def test_streaming_equals_one_shot(channels, batch, generator):
    images = images_of(generator, channels, count=7)
    loader = [(part, None) for part in images.split(batch)]
    streamed = patch_covariance(loader, 3, padding=1)
    torch.testing.assert_close(streamed, patch_covariance(images, 3, padding=1), rtol=0, atol=1e-10)


def test_streaming_takes_images_of_several_sizes(generator):
    large, small = images_of(generator, 3), images_of(generator, 3)[:, :, :6, :5]
    rows = [PatchGeometry.of(2, 3).patch_rows(part).flatten(0, 1) for part in (large, small)]
    expected = torch.cov(torch.cat(rows).T, correction=0)
    torch.testing.assert_close(patch_covariance([large, small], 3), expected)


@pytest.mark.parametrize("centered", [True, False], ids=["centred", "raw"])
def test_covariance_per_position(centered, generator):
    images = images_of(generator, 2, count=6)
    rows = reference.patches(images.numpy(), (3, 2), (2, 1), (1, 0), (1, 1))
    batches = images.split(4)
    found = patch_covariance(batches, (3, 2), (2, 1), (1, 0), centered=centered, per_position=True)
    assert found.count == 6
    assert found.covariance.shape == (*rows.shape[1:3], 12, 12)
    np.testing.assert_allclose(found.mean, rows.mean(0), atol=1e-12)
    expected = reference.covariance(rows[:, 2, 4], centered)
    np.testing.assert_allclose(found.covariance[2, 4], expected, atol=1e-12)


@pytest.mark.parametrize("axes", [1, 3])
def test_one_and_three_spatial_axes(axes, generator):
    images = torch.randn((4, 2, *[5] * axes), generator=generator, dtype=torch.float64)
    convolution = (nn.Conv1d if axes == 1 else nn.Conv3d)(2, 2 * 2**axes, 2, bias=False).double()
    weight = convolution.weight.data
    weight.copy_(torch.eye(2 * 2**axes).view_as(weight))  # each filter picks one entry
    rows = convolution(images).detach().transpose(0, 1).flatten(1)
    torch.testing.assert_close(patch_covariance(images, 2), torch.cov(rows, correction=0))


def test_float32_and_numpy_come_back_in_kind(generator):
    images = images_of(generator, 3).float()
    found = patch_covariance(images.numpy(), 3)
    assert found.dtype == np.float32
    expected = patch_covariance(images.double(), 3)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert patch_covariance(images, 3).dtype == torch.float32


def test_a_large_mean_costs_no_digits(generator):
    images = images_of(generator, 3)
    moved = patch_covariance(images + 1e6, 3, padding=0)
    torch.testing.assert_close(moved, patch_covariance(images, 3), rtol=0, atol=1e-8)


@pytest.mark.parametrize("centered", [True, False], ids=["centred", "raw"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_weight_covariance_equals_the_loop(centered, ddof, generator):
    weight = torch.randn(6, 2, 3, 2, generator=generator, dtype=torch.float64) + 1
    expected = reference.covariance(weight.flatten(1).numpy(), centered, ddof)
    found = weight_covariance(weight, centered=centered, ddof=ddof)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    "layer", [nn.Linear(3, 5), nn.Conv1d(3, 4, 2), nn.Conv2d(4, 6, (2, 3), groups=2)], ids=repr
)
def test_weight_covariance_of_a_layer(layer):
    rows = layer.weight.detach().double().flatten(1)
    torch.testing.assert_close(weight_covariance(layer).double(), torch.cov(rows.T, correction=0))


def test_gpt2_layers_keep_neurons_in_columns():
    from transformers.pytorch_utils import Conv1D

    layer = Conv1D(5, 3)
    assert weight_covariance(layer).shape == (3, 3)


def test_weights_of_several_runs_are_pooled(generator):
    runs = [torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (4, 5)]
    torch.testing.assert_close(weight_covariance(runs), weight_covariance(torch.cat(runs)))


def convolutional(groups=1, mode="zeros"):
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, (2, 3), (1, 2), (1, 2), groups=groups, padding_mode=mode),
        nn.Flatten(),
        nn.Linear(6 * 10 * 6, 3),
    ).double()


@pytest.mark.parametrize("batch_size", [1, 3, 5])
@pytest.mark.parametrize("padding", ["none", "layer"])
def test_inputs_of_deeper_layers(batch_size, padding, generator):
    model, images = convolutional(), images_of(generator, 2, count=5)
    found = input_moments(model, images, padding=padding, batch_size=batch_size)
    assert list(found) == ["0", "2", "4"]
    hidden = model[1](model[0](images)).detach()
    edge = (1, 2) if padding == "layer" else (0, 0)
    expected = patch_covariance(hidden, (2, 3), (1, 2), edge)
    torch.testing.assert_close(found["2"].covariance(), expected)
    rows = model[:4](images).detach()
    torch.testing.assert_close(found["4"].covariance(), torch.cov(rows.T, correction=0))


def test_patches_match_the_weights_they_meet(generator):
    model, images = convolutional(groups=2, mode="circular"), images_of(generator, 2, count=5)
    found = input_moments(model, images, "2", padding="layer")["2"].covariance()
    assert found.shape == weight_covariance(model[2]).shape
    hidden = model[1](model[0](images)).detach()
    padded = functional.pad(hidden, (2, 2, 1, 1), mode="circular")
    parts = torch.cat(padded.chunk(2, dim=1))  # groups are pooled
    torch.testing.assert_close(found, patch_covariance(parts, (2, 3), (1, 2)))


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("padding", ["same", "valid", (1, 2)], ids=str)
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_borders_are_those_of_the_layer(padding, mode, generator):
    layer = nn.Conv2d(2, 3, (4, 3), padding=padding, padding_mode=mode, dilation=(1, 2)).double()
    images = images_of(generator, 2)
    moments = input_moments(layer, images, padding="layer")[""]
    # The mean output of a linear map is the map of the mean patch.
    expected = layer(images).detach().mean((0, 2, 3))
    found = layer.weight.detach().flatten(1) @ moments.mean + layer.bias.detach()
    torch.testing.assert_close(found, expected)


def test_padded_tokens_are_left_out(generator):
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mix = nn.Embedding(5, 3), nn.Linear(3, 2)

        def forward(self, input_ids, attention_mask):
            return self.mix(self.embed(input_ids))

    model = Tokens().double()
    ids = torch.randint(5, (4, 6), generator=generator)
    mask = (torch.arange(6) < torch.tensor([6, 2, 3, 1])[:, None]).long()
    found = input_moments(model, {"input_ids": ids, "attention_mask": mask}, batch_size=3)
    rows = model.embed(ids).detach()[mask.bool()]
    assert found["mix"].count == 12
    torch.testing.assert_close(found["mix"].covariance(), torch.cov(rows.T, correction=0))


def test_float32_patches_give_an_exactly_symmetric_covariance(generator):
    images = torch.rand(20, 3, 9, 9, generator=generator)
    covariance = patch_covariance(images, 3)
    assert torch.equal(covariance, covariance.T)


def test_inputs_are_kept_while_they_are_few_and_folded_when_they_are_not(generator):
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 5), nn.Flatten())
    model.append(nn.Linear(2, 4)).double()
    x = torch.randn(20, 2, 7, 7, generator=generator, dtype=torch.float64)
    found = input_samples(model, x, batch_size=3)
    kinds = {name: type(part) for name, part in found.items()}
    assert kinds == {"0": Moments, "2": RowSample, "4": Moments}  # 500 of 18, 20 of 75, 20 of 2
    for name, expected in input_moments(model, x).items():
        part = found[name].moments() if isinstance(found[name], RowSample) else found[name]
        torch.testing.assert_close(part.covariance(), expected.covariance())
        torch.testing.assert_close(part.mean, expected.mean)


class Heads(nn.Module):
    """Three layers that receive one tensor, of which the last changes it in place before."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 2) for _ in range(3))

    def forward(self, x):
        x = x.clone()
        both = self.first(x) + self.second(x)
        return both + self.third(x.mul_(2))


def test_inputs_are_those_of_the_call_also_if_they_change_in_place_afterwards(generator):
    x = torch.randn(30, 4, generator=generator)
    found = input_samples(Heads(), x, batch_size=8)
    torch.testing.assert_close(found["second"].covariance(), found["first"].covariance())
    torch.testing.assert_close(found["third"].covariance(), 4 * found["first"].covariance())


def test_complex_layers_are_left_out_or_refused():
    class Waves(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3, dtype=torch.complex128)
            self.head = nn.Linear(3, 2).double()

        def forward(self, x):
            return self.head(self.inner(torch.fft.fft(x)).abs())

    model, x = Waves(), torch.randn(6, 4, dtype=torch.float64)
    assert list(input_moments(model, x)) == ["head"]
    with pytest.raises(DomainError, match=r"got 'inner', a Linear with .* in complex128;"):
        input_moments(model, x, "inner")
    with pytest.raises(DtypeError, match="expected real numbers, got complex128"):
        weight_covariance(model.inner)
