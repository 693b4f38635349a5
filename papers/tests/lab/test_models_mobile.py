"""MobileNetV2 and EfficientNet-Lite0: sizes, padding, and names of the published files."""

import pytest
import torch
from torch import nn

from theodolite.errors import DomainError
from theodolite_papers.lab.models import efficientnet_lite0, mobilenet_v2, pretrained_keys

# Names and shapes of a few entries of the published files.
PUBLISHED = {
    "mobilenet_v2": (
        mobilenet_v2,
        {
            "features.0.0.weight": (32, 3, 3, 3),
            "features.0.1.running_var": (32,),
            "features.1.conv.0.0.weight": (32, 1, 3, 3),
            "features.1.conv.1.weight": (16, 32, 1, 1),
            "features.1.conv.2.bias": (16,),
            "features.17.conv.0.0.weight": (960, 160, 1, 1),
            "features.17.conv.1.0.weight": (960, 1, 3, 3),
            "features.17.conv.3.bias": (320,),
            "features.18.0.weight": (1280, 320, 1, 1),
            "features.18.1.weight": (1280,),
            "classifier.1.weight": (1000, 1280),
        },
    ),
    "efficientnet_lite0": (
        efficientnet_lite0,
        {
            "_conv_stem.weight": (32, 3, 3, 3),
            "_bn0.running_mean": (32,),
            "_blocks.0._depthwise_conv.weight": (32, 1, 3, 3),
            "_blocks.0._project_conv.weight": (16, 32, 1, 1),
            "_blocks.3._depthwise_conv.weight": (144, 1, 5, 5),
            "_blocks.15._bn2.bias": (320,),
            "_conv_head.weight": (1280, 320, 1, 1),
            "_bn1.weight": (1280,),
            "_fc.bias": (1000,),
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_names_have_their_place_and_shape(name):
    build, entries = PUBLISHED[name]
    own = build().state_dict()
    for key, shape in entries.items():
        (translated,) = pretrained_keys({key: torch.zeros(1)})
        assert own[translated].shape == shape, key


@pytest.mark.parametrize(("build", "entries"), [(mobilenet_v2, 314), (efficientnet_lite0, 296)])
def test_as_many_entries_as_the_published_files(build, entries):
    assert len(build().state_dict()) == entries


def test_foreign_names_are_refused():
    with pytest.raises(DomainError, match=r"layer1\.0\.conv1"):
        pretrained_keys({"layer1.0.conv1.weight": torch.zeros(1)})


@pytest.mark.parametrize(("build", "starts_at"), [(mobilenet_v2, 1), (efficientnet_lite0, 2)])
@torch.no_grad()
def test_stem_of_stride_two_pads_as_its_framework_does(build, starts_at):
    """Kernel 3, stride 2: one pixel padded on either side, or one at the end alone."""
    stem = build(generator=torch.Generator().manual_seed(0)).stem.eval()
    nn.init.ones_(stem.conv.weight)
    seen = []
    for pixel in range(8):
        image = torch.zeros(1, 3, 8, 8)
        image[..., pixel, pixel] = 1.0
        out = stem(image)[0, 0]
        assert out.shape == (4, 4)
        if out[1, 1] > 0:
            seen.append(pixel)
    assert seen == [starts_at, starts_at + 1, starts_at + 2]


@pytest.mark.parametrize("build", [mobilenet_v2, efficientnet_lite0])
def test_features_feed_the_head(build):
    model = build(10, generator=torch.Generator().manual_seed(0)).eval()
    seen = []
    model.flatten.register_forward_hook(lambda _m, _x, out: seen.append(out))
    with torch.no_grad():
        logits = model(torch.rand(1, 3, 32, 32))
        torch.testing.assert_close(model.head(seen[0]), logits)
    assert seen[0].shape == (1, 1280)
    assert logits.isfinite().all()
