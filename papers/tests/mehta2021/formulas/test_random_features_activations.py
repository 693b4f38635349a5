import math

import pytest
import torch

from tests.reference import random_features as reference
from tests.tolerances import assert_close
from theodolite.errors import DomainError
from theodolite_papers.mehta2021.formulas import random_features

F64 = torch.float64
LAYERS = {
    "linear": lambda a: a,
    "relu": torch.relu,
    "step": lambda a: (a > 0).to(a) + 0.5 * (a == 0).to(a),
    "sin": torch.sin,
}


@pytest.mark.spec("5.P66")
@pytest.mark.parametrize(
    ("activation", "values"),
    [
        ("relu", [0.0, 1 / math.pi, 1.0]),
        ("step", [0.0, 0.5, 1.0]),
        ("linear", [-1.0, 0.0, 1.0]),
    ],
)
def test_cosines_of_opposite_orthogonal_and_equal_inputs(activation, values):
    found = random_features.wide_cosine(torch.tensor([-1.0, 0.0, 1.0], dtype=F64), activation)
    assert_close(found, values)


@pytest.mark.spec("5.P66")
@pytest.mark.parametrize("activation", LAYERS)
def test_wide_layers_reproduce_the_kernels(activation, generator):
    x = torch.randn(4, 3, dtype=F64, generator=generator)
    x[3] = 0
    weights = 0.8 * torch.randn(40_000, 3, dtype=F64, generator=generator)
    hidden = LAYERS[activation](x @ weights.T)
    products = hidden[:, None] * hidden
    error = products.std(-1) / 200
    kernel = random_features.wide_kernel(x, x, 0.8, activation)
    assert ((products.mean(-1) - kernel).abs() <= 5 * error + 1e-12).all()
    if activation != "sin":
        unit = x[:3] / x[:3].norm(dim=1, keepdim=True)
        scale = torch.diagonal(kernel)[:3].sqrt()
        cosine = random_features.wide_cosine((unit @ unit.T).clamp(-1, 1), activation)
        assert (kernel[:3, :3] / torch.outer(scale, scale) - cosine).abs().max() < 1e-7


@pytest.mark.spec("5.P66")
@pytest.mark.parametrize("activation", ["linear", "relu", "step"])
def test_alignment_of_other_layers_ignores_the_scale(activation, generator):
    x = torch.randn(6, 4, dtype=F64, generator=generator) + 0.3
    values = [
        random_features.expected_alignment(x, sigma, activation).item()
        for sigma in (1e-3, 1.0, 1e3)
    ]
    assert values == pytest.approx([values[0]] * 3, rel=1e-12)
    weights = torch.randn(60_000, 4, dtype=F64, generator=generator)
    simulated, error = reference.layer_omega(LAYERS[activation](x @ weights.T).numpy())
    assert abs(values[0] - simulated) <= 5 * error
    assert error < 0.005


@pytest.mark.spec("5.P66")
def test_only_sin_loses_all_alignment(generator):
    x = torch.randn(8, 4, dtype=F64, generator=generator)
    x = x / x.norm(dim=1, keepdim=True)
    assert abs(random_features.expected_alignment(x, 100.0, "sin").item()) < 1e-12
    assert random_features.expected_alignment(x, 100.0, "relu").item() > 0.25
    assert random_features.expected_alignment(x, 100.0, "step").item() > 0.4


def test_nearly_parallel_inputs_keep_their_angle():
    x = torch.tensor([[1.0, 0.0], [1.0, 1e-9]], dtype=F64)
    kernel = random_features.wide_kernel(x, x, 1.0, "step")
    assert (0.5 - kernel[0, 1]).item() == pytest.approx(1e-9 / (2 * math.pi), rel=1e-6)


def test_features_that_are_all_zero_have_no_alignment():
    assert random_features.expected_alignment(torch.zeros(3, 2, dtype=F64), 1.0, "sin").isnan()


@pytest.mark.parametrize(
    "call",
    [
        lambda: random_features.wide_cosine(torch.tensor(1.1), "relu"),
        lambda: random_features.wide_cosine(torch.tensor(0.1), "sin"),
        lambda: random_features.wide_kernel(torch.eye(2), torch.eye(2), 1.0, "tanh"),
        lambda: random_features.expected_alignment(torch.eye(2), 0.0),
        lambda: random_features.sin_kernel(torch.eye(2) * math.nan, torch.eye(2), 1.0),
        lambda: random_features.sin_bound(torch.eye(2), torch.eye(2), 1.0, "wrong"),
        lambda: random_features.check_sin_theorem(torch.eye(2), 1.0, draws=1),
    ],
    ids=["cosine", "angular", "activation", "sigma", "nan", "form", "draws"],
)
def test_malformed_arguments_are_refused(call):
    with pytest.raises(DomainError):
        call()
