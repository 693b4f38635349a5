"""T2T-ViT: published size, numbers of tokens, and every step against a literal version."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.reference import t2t as reference
from theodolite.engine import features
from theodolite.errors import DomainError
from theodolite_papers.lab.models import T2TViT, t2t_vit_14


@pytest.fixture(scope="module")
def network():
    return t2t_vit_14(generator=torch.Generator().manual_seed(0)).eval()


@pytest.fixture
def slim():
    """Two narrow blocks in float64, with weights large enough to tell mistakes."""
    generator = torch.Generator().manual_seed(1)
    model = T2TViT(5, width=12, depth=2, heads=3, hidden=20, image_size=32).double().eval()
    for tensor in [*model.parameters(), *(a.directions for a in model.tokens.attentions)]:
        scale = 0.3 if tensor.ndim > 1 else 0.1
        tensor.data.normal_(0.0, scale, generator=generator)
    return model


def test_the_published_number_of_parameters(network):
    trained = sum(p.numel() for p in network.parameters())
    assert trained == 21_465_806
    fixed = sum(b.numel() for b in network.buffers())
    assert round((trained + fixed) / 1e6, 1) == 21.5  # in millions, as the paper's table counts
    first = 2 * 147 + 147 * 192 + 192
    second = 2 * 576 + 576 * 192 + 192
    rest = 3 * (64 * 64 + 64) + 2 * 64  # mix, MLP and the second norm of either
    block = 4 * 384 + 384 * 1152 + 384 * 384 + 384 + 2 * 384 * 1152 + 1152 + 384
    ends = (576 * 384 + 384) + 384 + 2 * 384 + (384 * 1000 + 1000)
    assert trained == first + second + 2 * rest + 14 * block + ends


def test_tokens_become_few(network):
    seen = []
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, out: seen.append(tuple(out.shape)))
        for module in (*network.tokens.splits, *network.tokens.attentions, network.blocks[13])
    ]
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 224, 224)).shape == (1, 1000)
    for hook in hooks:
        hook.remove()
    assert seen == [
        (1, 147, 3136), (1, 3136, 64), (1, 576, 784), (1, 784, 64), (1, 576, 196), (1, 197, 384),
    ]  # fmt: skip


def test_every_step_is_the_literal_one(slim, generator):
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        ours = slim(images).numpy()
    literal = np.stack([reference.logits(slim, image.numpy()) for image in images])
    assert np.allclose(ours, literal, rtol=0, atol=1e-10)
    assert np.abs(literal).min() > 1e-3


def test_random_directions_are_orthogonal_and_not_trained(network):
    for attention in network.tokens.attentions:
        gram = attention.directions @ attention.directions.T
        assert torch.allclose(gram, 32 * torch.eye(32), atol=1e-4)
    assert not [name for name, _ in network.named_parameters() if "directions" in name]
    assert "tokens.attentions.0.directions" in network.state_dict()


def test_one_seed_gives_one_network(network):
    again = t2t_vit_14(generator=torch.Generator().manual_seed(0)).state_dict()
    other = t2t_vit_14(generator=torch.Generator().manual_seed(1)).state_dict()
    ours = network.state_dict()
    assert all(torch.equal(ours[name], again[name]) for name in ours)
    drawn = [name for name in ours if not torch.equal(ours[name], other[name])]
    weights = [n for n, m in network.named_modules() if isinstance(m, nn.Linear)]
    assert len(drawn) == len(weights) + 3  # and the class token, and directions twice
    assert abs(float(ours["blocks.3.qkv.weight"].std()) / 0.02 - 1) < 0.01


def test_the_class_token_is_read_layer_by_layer(slim, generator):
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64, generator=generator)
    rows = features(slim, images, ["blocks.0", "blocks.1"], "cls")
    assert rows["blocks.0"].shape == (3, 12)
    with torch.no_grad():
        assert torch.allclose(slim.head(slim.norm(rows["blocks.1"])), slim(images))


def test_images_of_another_size_are_refused(slim):
    with pytest.raises(DomainError, match=r"expected images of 32x32, got \(64, 64\)"):
        slim(torch.zeros(1, 3, 64, 64, dtype=torch.float64))
