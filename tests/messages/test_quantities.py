"""Bad input to features, covariances and gradient sums: one sentence that helps."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from theodolite.engine import (
    feature_grams,
    features,
    gradient_alignment,
    gradient_sums,
    input_moments,
    patch_covariance,
    weight_covariance,
)
from theodolite.errors import (
    CaptureError,
    DomainError,
    DtypeError,
    MemoryLimitError,
    ShapeError,
    UnknownNameError,
)

IMAGES = torch.randn(4, 1, 4, 4)
LABELS = torch.tensor([0, 1, 0, 1])


def network(*middle):
    return nn.Sequential(nn.Conv2d(1, 2, 3), *middle, nn.Flatten(), nn.Linear(8, 2)).eval()


def measured(model):
    """Every way in, by name."""
    return {
        "features": lambda: features(model, IMAGES),
        "grams": lambda: feature_grams(model, IMAGES),
        "inputs": lambda: input_moments(model, IMAGES),
        "gradients": lambda: gradient_sums(model, IMAGES, LABELS),
        "alignment": lambda: gradient_alignment(model, IMAGES, LABELS),
    }


WAYS = list(measured(network()))
ways = pytest.mark.parametrize("way", WAYS)


@ways
def test_batch_norm_in_training_mode(way):
    model = network(nn.BatchNorm2d(2)).train()
    with pytest.raises(DomainError, match=r"'1' normalise over the batch.*call model.eval\(\)"):
        measured(model)[way]()
    assert model[1].num_batches_tracked == 0


@ways
def test_batch_norm_without_running_statistics(way):
    model = network(nn.BatchNorm2d(2, track_running_stats=False))
    with pytest.raises(DomainError, match=r"no running statistics.*track_running_stats=True"):
        measured(model)[way]()


@ways
def test_dropout_left_on(way):
    model = network(nn.Dropout(0.5))
    model[1].train()
    with pytest.raises(DomainError, match=r"'1' drop out units at random: call model.eval\(\)"):
        measured(model)[way]()


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("features", "grams", "inputs")])
def test_models_without_parameters(way):
    model = nn.Sequential(nn.Flatten(), nn.Softmax(1))
    with pytest.raises(DomainError, match=r"parameters, got none"):
        measured(model)[way]()


def test_features_need_no_parameters():
    model = nn.Sequential(nn.Flatten(), nn.Softmax(1))
    assert features(model, IMAGES)["1"].shape == (4, 16)


@pytest.mark.parametrize("way", ["gradients", "alignment"])
def test_outputs_that_no_readout_maps_to_rows(way):
    model = nn.Sequential(nn.Conv2d(1, 2, 3)).eval()
    with pytest.raises(ShapeError, match=r"readout: expected outputs of shape \(n, c\).*pass"):
        measured(model)[way]()


@pytest.mark.parametrize("way", ["gradients", "alignment"])
def test_nan_in_weights(way):
    model = network()
    model[0].weight.data[0, 0, 0, 0] = torch.nan
    with pytest.raises(DomainError, match=r"expected finite .*(run|upstream) is the usual cause"):
        measured(model)[way]()


@pytest.mark.parametrize("function", [gradient_sums, gradient_alignment])
@pytest.mark.parametrize(
    "loss",
    [functional.cross_entropy, lambda outputs, _targets: outputs],
    ids=["reduced", "per output"],
)
def test_losses_without_a_number_per_example(function, loss):
    with pytest.raises(ShapeError, match=r"loss: expected one .*\(\d,\), got .*reduction='none'"):
        function(network(), IMAGES, LABELS, loss)


def test_loss_without_targets():
    with pytest.raises(DomainError, match="targets: expected"):
        gradient_sums(network(), IMAGES)


@pytest.mark.parametrize("way", WAYS)
def test_unknown_layers(way):
    model = network()
    calls = {
        "features": lambda: features(model, IMAGES, "3.weigt"),
        "grams": lambda: feature_grams(model, IMAGES, "conv9"),
        "inputs": lambda: input_moments(model, IMAGES, "conv9"),
        "gradients": lambda: gradient_sums(model, IMAGES, LABELS, layers="conv9"),
        "alignment": lambda: gradient_alignment(model, IMAGES, LABELS, layers="conv9"),
    }
    with pytest.raises(UnknownNameError, match=r"unknown layer .*(did you mean|expected one of)"):
        calls[way]()


def test_layers_that_do_not_run():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    for call in (features, input_moments):
        with pytest.raises(DomainError, match=r"run|called.*unused"):
            call(Lazy(), torch.ones(3, 2), ["used", "unused"])


def test_pooling_that_does_not_exist_or_fit():
    with pytest.raises(DomainError, match=r"pool: expected one of 'flatten'.*got 'average'"):
        features(network(), IMAGES, pool="average")
    with pytest.raises(ShapeError, match=r"pool='cls': expected tokens"):
        features(network(), IMAGES, "0", pool="cls")


def test_features_without_a_row_per_example():
    with pytest.raises(
        ShapeError, match=r"features of '0': expected one row per example, 4, got 1"
    ):
        features(network(), IMAGES, "0", pool=lambda output: output.mean(0, keepdim=True))


def test_features_of_several_lengths():
    model = nn.Conv1d(1, 2, 1)
    batches = [torch.ones(2, 1, 3), torch.ones(2, 1, 5)]
    with pytest.raises(ShapeError, match=r'one length in all batches, got \[6, 10\].*pool="mean"'):
        features(model, iter(batches), "")
    with pytest.raises(ShapeError, match=r'expected 6 as in the first batch.*pool="mean"'):
        feature_grams(model, iter(batches), "")


def test_empty_data():
    for call in (features, feature_grams):
        with pytest.raises(ShapeError, match="at least one batch, got none"):
            call(network(), [])


def test_memory_limits_below_one_batch():
    message = r"memory_limit: expected at least .* for one example\), got 10 bytes; pass fewer"
    with pytest.raises(MemoryLimitError, match=message):
        feature_grams(network(), IMAGES, memory_limit=10)


def test_outputs_that_are_no_tensors():
    class Text(nn.Module):
        def forward(self, x):
            return "text"

    model = nn.Sequential(nn.Linear(2, 2), Text())
    with pytest.raises(ShapeError, match=r"output of layer '1': expected a tensor.*got str"):
        features(model, torch.ones(3, 2), "1")


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (LABELS + 1, DomainError, r"targets: expected classes from 0 to 1, .* got 1 to 2"),
        (torch.randn(4), ShapeError, r"class indices \(n,\) .* got float32 of shape \(4,\)"),
        (torch.rand(4, 3), ShapeError, r"probabilities \(n, 2\) .* got float32 of shape \(4, 3\)"),
    ],
    ids=["classes", "numbers", "probabilities"],
)
def test_targets_that_do_not_fit_the_outputs(targets, error, message):
    with pytest.raises(error, match=message):
        gradient_sums(network(), IMAGES, targets)


def test_examples_that_see_each_other():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 2)

        def forward(self, x):
            return self.inner(x.flatten(1)).softmax(0)

    with pytest.raises(CaptureError, match="examples depend on each other"):
        gradient_sums(Mixing(), IMAGES, LABELS)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((IMAGES, 5), ShapeError, r"kernel_size: expected at most the padded image \(4, 4\)"),
        ((IMAGES, 0), DomainError, r"kernel_size: expected numbers of at least 1"),
        ((IMAGES, 3, 0), DomainError, r"stride: expected numbers of at least 1"),
        ((IMAGES, 3, 1, -1), DomainError, r"padding: expected numbers of at least 0"),
        ((IMAGES, (3, 3, 3)), ShapeError, r"kernel_size: expected one number or 2"),
        ((torch.ones(3, 2), 1), ShapeError, r"images: expected \(N, channels, \*sizes\)"),
        ((torch.full((2, 1, 2, 2), torch.nan), 1), DomainError, r"images: expected finite"),
        ((IMAGES.to(torch.complex64), 1), DtypeError, r"images: expected real numbers"),
        (([], 1), DomainError, r"images: expected at least one batch"),
    ],
    ids=["large", "zero", "stride", "padding", "axes", "flat", "nan", "complex", "empty"],
)
def test_patch_covariance(arguments, error, message):
    with pytest.raises(error, match=message):
        patch_covariance(*arguments)


def test_batches_of_other_images():
    with pytest.raises(ShapeError, match=r"expected 1 channels as in the first batch, got 2"):
        patch_covariance([IMAGES, torch.ones(1, 2, 4, 4)], 2)
    with pytest.raises(ShapeError, match=r"expected size \(4, 4\) as in the first batch"):
        patch_covariance([IMAGES, torch.ones(1, 1, 5, 5)], 2, per_position=True)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (nn.ConvTranspose2d(2, 3, 2), ShapeError, r"got ConvTranspose2d; pass the weight itself"),
        (nn.ReLU(), ShapeError, r"got ReLU"),
        (torch.ones(3), ShapeError, r"expected one row per neuron"),
        ([torch.ones(2, 3), torch.ones(2, 4)], ShapeError, r"rows of one length"),
        (torch.full((2, 2), torch.inf), DomainError, r"weights: expected finite"),
    ],
    ids=["transposed", "no weight", "vector", "lengths", "infinite"],
)
def test_weight_covariance(weights, error, message):
    with pytest.raises(error, match=message):
        weight_covariance(weights)


def test_degrees_of_freedom():
    with pytest.raises(DomainError, match=r"ddof: expected at least 0 and below the 2 samples"):
        weight_covariance(torch.ones(2, 3), ddof=2)


def test_layers_without_weights():
    with pytest.raises(
        DomainError, match=r"convolutional layers with real weights, got '1', a ReLU;"
    ):
        input_moments(network(nn.ReLU()), IMAGES, ["0", "1"])
