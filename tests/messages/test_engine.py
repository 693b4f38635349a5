"""What the engine refuses: one sentence that says what was expected, what came, and what to do."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from theodolite.engine import (
    features,
    gradient_sums,
    input_moments,
    tangent_alignments,
    tangent_kernels,
)
from theodolite.errors import CaptureError, DomainError, DtypeError, MemoryLimitError, ShapeError


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 40)

    def forward(self, x):
        return functional.dropout(self.linear(x), 0.5, training=True)


class Centered(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        hidden = self.linear(x)
        return hidden - hidden.mean(0)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x[:, None].expand(-1, 4, -1))


def with_nan():
    model = nn.Linear(3, 2)
    model.weight.data[0, 0] = torch.nan
    return model


def detached():
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x).detach()

    return Detached()


REFUSED = {
    "train-mode batch norm": (
        lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), DomainError, "model.eval()",
    ),
    "batch norm without statistics": (
        lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False)).eval(),
        DomainError, "track_running_stats=True",
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(3, 2), nn.Dropout()), DomainError, "model.eval()",
    ),
    "functional dropout": (FunctionalDropout, CaptureError, "dropout(training=True)"),
    "examples that see each other": (Centered, CaptureError, "batch statistics"),
    "no parameters": (nn.ReLU, DomainError, "gradients with respect to parameters"),
    "nothing trainable": (
        lambda: nn.Linear(3, 2).requires_grad_(False), DomainError, "requires_grad_(True)",
    ),
    "positions without a readout": (Tokens, ShapeError, "readout='last'"),
    "nan in weights": (with_nan, DomainError, "finite weights, got NaN or infinity in 'weight'"),
    "detached outputs": (detached, CaptureError, "no_grad"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_have_no_tangent_kernel(kind):
    torch.manual_seed(0)
    make, error, words = REFUSED[kind]
    with pytest.raises(error) as caught:
        tangent_kernels(make(), torch.randn(5, 3))
    assert words in str(caught.value)
    assert "expected" in str(caught.value)


def test_losses_need_one_value_per_example_and_targets():
    model, x, y = nn.Linear(3, 2), torch.randn(5, 3), torch.zeros(5, dtype=torch.long)
    with pytest.raises(ShapeError, match="reduction='none'"):
        tangent_kernels(model, (x, y), outputs=nn.CrossEntropyLoss())
    with pytest.raises(ShapeError, match="one number per example"):
        tangent_kernels(model, (x, torch.randn(5, 2)), outputs=nn.MSELoss(reduction="none"))
    with pytest.raises(DomainError, match="targets"):
        tangent_kernels(model, x, outputs=nn.CrossEntropyLoss(reduction="none"))


def test_an_error_of_a_loss_says_which_call_it_was():
    def loss(outputs, targets):
        raise KeyError("weights")

    model, x, y = nn.Linear(3, 2), torch.randn(5, 3), torch.arange(5) % 2
    call = "raised by loss(outputs, targets) for 5 examples, with outputs of shape (5, 2) and"
    with pytest.raises(KeyError, match="weights") as caught:
        gradient_sums(model, x, y, loss)
    (note,) = caught.value.__notes__
    assert note.startswith(call)
    with pytest.raises(KeyError, match="weights") as caught:
        tangent_kernels(model, (x, y), outputs=loss)
    assert len(caught.value.__notes__) == 1


def test_layers_whose_weights_have_no_numbers_have_no_inputs():
    with warnings.catch_warnings():  # torch has nothing to initialise
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.Linear(5, 0), nn.Linear(0, 3))
    with pytest.raises(DomainError, match="expected a linear or convolutional layer, got none"):
        input_moments(model, torch.randn(6, 5))
    with pytest.raises(DomainError, match=r"got '1', a Linear with weights of shape \(3, 0\)"):
        input_moments(model, torch.randn(6, 5), ["1"])
    found = th.survey(model, (torch.randn(6, 5), torch.arange(6) % 3)).record.contents
    assert "no linear or convolutional layer" in found["skipped"]["covariance"]


def test_outputs_that_do_not_exist():
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    with pytest.raises(DomainError, match="'full', 'trace'"):
        tangent_kernels(model, x, outputs="all")
    with pytest.raises(DomainError, match="below the number of outputs 2, got 5"):
        tangent_kernels(model, x, outputs=5)
    with pytest.raises(DomainError, match="one value per example"):
        tangent_kernels(model, x, outputs=1.5)


def test_a_kernel_that_does_not_fit_comes_with_numbers():
    model, x = nn.Linear(3, 2), torch.randn(500, 3)
    with pytest.raises(MemoryLimitError, match=r"\(500, 2, 500, 2\).*outputs='trace'"):
        tangent_kernels(model, x, memory_limit=2**20)


def test_alignments_need_targets_that_match():
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    with pytest.raises(DomainError, match="targets="):
        tangent_alignments(model, x)
    with pytest.raises(ShapeError, match=r"shape \(n, 2\)"):
        tangent_alignments(model, x, torch.randn(5, 3))
    with pytest.raises(DomainError, match="below num_classes = 2"):
        tangent_alignments(model, x, torch.tensor([0, 1, 2, 0, 1]))
    with pytest.raises(DomainError, match="'exact', 'sketch'"):
        tangent_alignments(model, x, torch.randn(5, 2), method="guess")
    with pytest.raises(DomainError, match="at least 3"):
        tangent_alignments(model, x, torch.randn(5, 2), method="sketch", sketch_vectors=2)


@pytest.mark.parametrize("call", [gradient_sums, tangent_kernels, features])
def test_checks_are_of_three_kinds(call):
    with pytest.raises(DomainError, match="check: expected True, False or 'every', got 'all'"):
        call(nn.Linear(2, 2), torch.randn(4, 2), check="all")


@pytest.mark.parametrize("size", [0, -1, 1.5, "8"])
@pytest.mark.parametrize("call", [th.features, th.tangent_kernels, th.tangent_features])
def test_batch_sizes_are_whole_numbers(call, size):
    """A negative size was called an empty data set."""
    with pytest.raises(DomainError, match="batch_size: expected an integer of at least 1, got"):
        call(nn.Linear(3, 2), torch.ones(4, 3), batch_size=size)


@pytest.mark.parametrize("call", [th.features, th.tangent_kernels, th.tangent_features])
def test_batch_functions_are_functions(call):
    with pytest.raises(DtypeError, match="batch_fn: expected a function, got 'tuple'"):
        call(nn.Linear(3, 2), torch.ones(4, 3), batch_fn="tuple")


@pytest.mark.parametrize("call", [th.tangent_kernels, th.tangent_features])
def test_no_batch_is_named(call):
    with pytest.raises(ShapeError, match="inputs: expected at least one batch, got none"):
        call(nn.Linear(3, 2), [])
