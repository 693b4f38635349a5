"""The head of a model, and the rows that the body below it gives."""

import pytest
import torch
from torch import nn

import theodolite as th
from tests.survey.test_transfer import good, task
from theodolite.engine import Batch
from theodolite.errors import UnknownNameError
from theodolite.surveys.heads import Body, WithHead, pretrained_body


def net(*layers):
    return nn.Sequential(*layers).eval()


class Dictionary(nn.Module):
    """Returns tokens by name, with a pooled row that is computed last."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.pooler = nn.Linear(4, 4)

    def forward(self, input_ids, attention_mask=None):
        hidden = self.embed(input_ids)
        return {"last_hidden_state": hidden, "pooler_output": self.pooler(hidden[:, 0])}


IMAGES = torch.randn(3, 2, 4, 4)
HEADS = [
    (net(nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 3)), IMAGES, "3", 6),
    (net(nn.Flatten(), nn.Linear(32, 6), nn.Linear(6, 3), nn.Softmax(1)), IMAGES, "2", 6),
    (net(nn.Conv2d(2, 5, 3), nn.Conv2d(5, 3, 1), nn.AdaptiveAvgPool2d(1)), IMAGES, "1", 5),
    (net(nn.Conv2d(2, 5, 3), nn.ReLU()), IMAGES, None, 5),
    (Dictionary().eval(), torch.ones(3, 7, dtype=torch.long), None, 4),
]


@pytest.mark.parametrize(
    ("model", "inputs", "head", "width"),
    HEADS,
    ids=["linear", "softmax", "convolution", "none", "tokens"],
)
def test_the_head_is_found(model, inputs, head, width):
    assert pretrained_body(model, Batch((inputs,))).head == head
    assert Body(model, head)(inputs).shape == (3, width)


def test_masked_tokens_do_not_count():
    model, ids = Dictionary().eval(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    rows = Body(model, None)(input_ids=ids, attention_mask=mask)
    torch.testing.assert_close(rows[0], model.embed(ids[0, :2]).mean(0))


def test_a_head_that_does_not_exist_is_named():
    with pytest.raises(UnknownNameError, match="head"):
        pretrained_body(good(), Batch((torch.ones(2, 8),)), "fcc")


def test_the_kernel_of_the_body_is_that_of_all_below_a_fresh_head():
    """Against autograd, output by output; the old head sends nothing."""
    x, _ = task(6)
    fresh = WithHead(Body(good(), "fc"), 6, 3, 0, x).eval()
    found = th.tangent_kernels(fresh, x, outputs="trace", params=["body.model.body.*"]).total
    own = [p for name, p in fresh.named_parameters() if ".body." in name]
    rows = []
    for example in x:
        for output in fresh(example.unsqueeze(0))[0]:
            grads = torch.autograd.grad(output, own, retain_graph=True)
            rows.append(torch.cat([g.flatten() for g in grads]))
    features = torch.stack(rows).reshape(6, 3, -1)
    torch.testing.assert_close(found, torch.einsum("xip,yip->xy", features, features))


class Rows(nn.Module):
    """A head over single positions: tokens, steps or pixels."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, x):
        return self.head(x)


@pytest.mark.parametrize(
    ("head", "shape", "axes"),
    [
        (nn.Linear(5, 3), (4, 7, 5), 1),
        (nn.Linear(5, 3), (4, 6, 7, 5), (1, 2)),
        (nn.Conv1d(5, 3, 1), (4, 5, 7), 2),
        (nn.Conv2d(5, 3, 1), (4, 5, 6, 7), (2, 3)),
    ],
    ids=["tokens", "pixels, channels last", "steps, channels first", "pixels, channels first"],
)
def test_rows_are_means_over_the_positions_of_the_head(head, shape, axes):
    model, inputs = Rows(head).eval(), torch.randn(shape)
    assert pretrained_body(model, Batch((inputs,))).head == "head"
    torch.testing.assert_close(Body(model, "head")(inputs), inputs.mean(axes))


class Moved(nn.Module):
    """A convolution whose maps are returned with features last."""

    def __init__(self, *after):
        super().__init__()
        self.first, self.after = nn.Conv2d(2, 5, 1), nn.Sequential(*after)

    def forward(self, x):
        return self.after(self.first(x).permute(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("model", "axes"),
    [
        (Moved(nn.LayerNorm(5)), (1, 2)),
        (Moved(nn.Linear(5, 5), nn.Tanh()), (1, 2)),
        (nn.Sequential(nn.Conv2d(2, 5, 1), nn.BatchNorm2d(5), nn.ReLU()), (2, 3)),
        (nn.Sequential(nn.Conv2d(2, 5, 1), nn.Flatten(2), nn.BatchNorm1d(5)), 2),
    ],
    ids=["normalised last", "linear", "channels first", "steps, channels first"],
)
def test_features_without_a_head_are_means_over_positions(model, axes):
    model.eval()
    inputs = torch.randn(3, 2, 4, 6)
    found = pretrained_body(model, Batch((inputs,)), None)
    torch.testing.assert_close(found(inputs), model(inputs).mean(axes))
