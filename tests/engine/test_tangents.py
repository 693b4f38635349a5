"""Numbered properties of tangent kernels, on small networks in float64."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.reference.tangents import full_kernel, tangent_features
from tests.tolerances import assert_close
from theodolite.engine import (
    backward_kernel,
    forward_backward_kernels,
    forward_kernel,
    tangent_kernels,
)
from theodolite.measures.kernel import cka, kta, target_gram
from theodolite.measures.tangent import tangent_alignment

WIDTHS = (5, 7, 6, 3)


def network(*widths, activation=nn.ReLU, bias=False, seed=0):
    torch.manual_seed(seed)
    layers = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), activation()]
    return nn.Sequential(*layers[:-1]).double()


def examples(count=6, width=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator, dtype=torch.float64)


def linear_layers(model):
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def square(kernel):
    rows = kernel.shape[0] * kernel.shape[1]
    return kernel.reshape(rows, rows)


@pytest.fixture
def model():
    return network(*WIDTHS)


@pytest.fixture
def x():
    return examples()


@pytest.mark.spec("4.P5")
def test_layer_kernels_add_up_to_the_gram_of_the_full_jacobian(model, x):
    features = tangent_features(model, x)
    J = torch.cat(list(features.values()), 2)
    kernels = tangent_kernels(model, x)
    assert_close(kernels.total, full_kernel(J, J), scale=float(kernels.total.abs().max()))
    assert_close(kernels.total, sum(kernels.values()), scale=float(kernels.total.abs().max()))


@pytest.mark.spec("4.P6")
@pytest.mark.spec("3.P46")
def test_kernels_are_symmetric_and_positive_semidefinite(model, x):
    for kernel in tangent_kernels(model, x).values():
        assert torch.equal(kernel, kernel.permute(2, 3, 0, 1))
        values = torch.linalg.eigvalsh(square(kernel))
        assert values[0] >= -1e-12 * values[-1]


@pytest.mark.spec("4.P7")
def test_directional_derivatives_match_central_differences(x):
    model = network(*WIDTHS, activation=nn.Tanh)
    direction = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        u = torch.randn(parameter.shape, generator=direction, dtype=torch.float64)
        features = tangent_features(model, x)[name]
        step = 1e-5
        with torch.no_grad():
            parameter.add_(u, alpha=step)
            above = model(x)
            parameter.sub_(u, alpha=2 * step)
            below = model(x)
            parameter.add_(u, alpha=step)
        assert_close(features @ u.flatten(), (above - below) / (2 * step), scale=1e2)
        kernel = tangent_kernels(model, x, params=[name]).total
        assert_close(kernel, full_kernel(features, features), scale=float(kernel.abs().max()))


@pytest.mark.spec("4.P8")
def test_every_layer_reproduces_the_outputs_of_a_bias_free_relu_net(model, x):
    features = tangent_features(model, x)
    for name, parameter in model.named_parameters():
        assert_close(features[name] @ parameter.detach().flatten(), model(x).detach(), scale=10.0)


@pytest.mark.spec("3.P53")
def test_all_layers_together_reproduce_depth_times_the_outputs(model, x):
    features = tangent_features(model, x)
    theta = [parameter.detach().flatten() for parameter in model.parameters()]
    total = sum(J @ t for J, t in zip(features.values(), theta, strict=True))
    assert_close(total, len(theta) * model(x).detach(), scale=10.0)


class Rotated(nn.Module):
    """A linear layer whose parameters are its weights in another orthogonal basis."""

    def __init__(self, linear, basis):
        super().__init__()
        self.shape = linear.weight.shape
        self.register_buffer("basis", basis)
        self.coordinates = nn.Parameter(basis.T @ linear.weight.detach().flatten())

    def forward(self, x):
        return functional.linear(x, (self.basis @ self.coordinates).view(self.shape))


@pytest.mark.spec("4.P13")
def test_kernels_do_not_see_an_orthogonal_change_of_variables(model, x):
    kernel = tangent_kernels(model, x)["2"]
    matrix = torch.randn(42, 42, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model[2] = Rotated(model[2], torch.linalg.qr(matrix).Q)
    rotated = tangent_kernels(model, x)["2"]
    assert_close(rotated, kernel, scale=float(kernel.abs().max()))


@pytest.mark.spec("4.P14")
def test_moving_a_scale_between_layers(model, x):
    targets = functional.one_hot(torch.arange(6) % 3, 3).double()
    before = tangent_kernels(model, x)
    with torch.no_grad():
        model[0].weight.mul_(3.0)
        model[2].weight.div_(3.0)
    after = tangent_kernels(model, x)
    assert_close(after["0"], before["0"] / 9, scale=float(before["0"].abs().max()))
    assert_close(after["2"], before["2"] * 9, scale=float(before["2"].abs().max()) * 9)
    for layer in before:
        assert_close(
            tangent_alignment(after[layer], targets), tangent_alignment(before[layer], targets)
        )


@pytest.mark.spec("4.P112")
def test_the_scale_of_the_last_layer_changes_no_alignment(model, x):
    targets = functional.one_hot(torch.arange(6) % 3, 3).double()
    before = tangent_kernels(model, x)
    with torch.no_grad():
        model[4].weight.mul_(0.01)
    after = tangent_kernels(model, x)
    for layer in before:
        assert_close(
            tangent_alignment(after[layer], targets), tangent_alignment(before[layer], targets)
        )


@pytest.mark.spec("4.P19")
@pytest.mark.parametrize("layer", ["0", "2", "4"])
def test_one_small_step_of_one_layer_moves_the_outputs_by_its_kernel(layer, x):
    model = network(*WIDTHS, activation=nn.Tanh)
    labels = torch.arange(6) % 3
    kernel = square(tangent_kernels(model, x)[layer])
    before = model(x)
    weight = model.get_submodule(layer).weight
    rate = 1e-6
    (gradient,) = torch.autograd.grad(functional.cross_entropy(before, labels), weight)
    residual = (before.softmax(1) - functional.one_hot(labels, 3)).detach().flatten()
    with torch.no_grad():
        weight.sub_(gradient, alpha=rate)
        moved = (model(x) - before).flatten()
    predicted = -(rate / 6) * kernel @ residual
    assert_close(moved, predicted, scale=1e4 * float(predicted.abs().max()))


@pytest.mark.spec("3.P51")
def test_a_gradient_step_on_all_parameters_against_central_differences(x):
    model = network(*WIDTHS, activation=nn.Tanh)
    targets = examples(6, 3, seed=5)
    kernel = square(tangent_kernels(model, x).total)
    loss = 0.5 * (model(x) - targets).square().sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    step = 1e-5

    def moved(size):
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=size)
            values = model(x)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.add_(gradient, alpha=size)
        return values

    measured = (moved(step) - moved(-step)) / (2 * step)
    predicted = -kernel @ (model(x) - targets).detach().flatten()
    assert_close(measured.flatten(), predicted, scale=1e3 * float(predicted.abs().max()))


def hadamard(model, x, layer, normalize=False):
    forward = forward_kernel(model, x, layer, normalize=normalize)
    backward = backward_kernel(model, x, layer, normalize=normalize)
    return forward, backward, forward[:, None, :, None] * backward


@pytest.mark.spec("4.P24")
@pytest.mark.spec("3.P49")
@pytest.mark.parametrize("layer", ["0", "2", "4"])
def test_the_product_of_forward_and_backward_kernels_is_the_layer_kernel(model, x, layer):
    J = tangent_features(model, x)[f"{layer}.weight"]
    _, _, product = hadamard(model, x, layer)
    assert_close(product, full_kernel(J, J), scale=float(product.abs().max()))
    assert_close(product, tangent_kernels(model, x)[layer], scale=float(product.abs().max()))


@pytest.mark.spec("4.P25")
def test_the_scalar_case_divided_by_the_width_squared(x):
    model = network(8, 8, 8, 1)
    inputs = examples(6, 8)
    forward, backward, product = hadamard(model, inputs, "2", normalize=True)
    kernel = tangent_kernels(model, inputs, outputs=0)["2"]
    assert_close(product[:, 0, :, 0], kernel / 64, scale=float(kernel.max()))
    assert forward.shape == (6, 6)
    assert backward.shape == (6, 1, 6, 1)


@pytest.mark.parametrize("layer", ["0", "2"])
def test_backward_kernels_of_several_layers_are_means_over_equal_outputs(layer):
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4)
    ).double()
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = backward_kernel(model, x, layer)
    expected = [
        [sum(whole[a, i, b, i].item() for i in range(4)) / 4 for b in range(6)] for a in range(6)
    ]
    forward, traced = forward_backward_kernels(model, x, ["0", "2"])[layer]
    torch.testing.assert_close(traced, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(forward, forward_kernel(model, x, layer))


def test_layers_of_several_positions_have_no_forward_and_backward_kernels():
    model = nn.Sequential(nn.Linear(3, 5), nn.Flatten(), nn.Linear(20, 4), nn.Linear(4, 2))
    x = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0))
    found = forward_backward_kernels(model, x, ["0", "2", "3"])
    assert list(found) == ["2", "3"]
    torch.testing.assert_close(found["2"][0], forward_kernel(model, x, "2"))
    assert forward_backward_kernels(model, x, ["0"]) == {}


@pytest.mark.spec("4.P26")
def test_the_backward_kernel_of_the_last_layer_is_one_for_a_single_output():
    model = network(5, 4, 1)
    backward = backward_kernel(model, examples(), "2", normalize=False)
    assert torch.equal(backward, torch.ones_like(backward))


@pytest.mark.spec("4.P27")
def test_the_last_layer_does_not_mix_outputs(model, x):
    forward = forward_kernel(model, x, "4", normalize=False)
    wanted = torch.einsum("xy,ij->xiyj", forward, torch.eye(3, dtype=torch.float64))
    assert_close(tangent_kernels(model, x)["4"], wanted, scale=float(wanted.max()))


@pytest.mark.spec("4.P28")
@pytest.mark.parametrize("layer", ["0", "2", "4"])
def test_a_shift_adds_one_to_the_forward_kernel(x, layer):
    model = network(*WIDTHS, bias=True)
    forward, backward, _ = hadamard(model, x, layer)
    both = tangent_kernels(model, x)[layer]
    wanted = (forward + 1)[:, None, :, None] * backward
    assert_close(both, wanted, scale=float(wanted.abs().max()))
    alone = tangent_kernels(model, x, params=[f"{layer}.bias"]).total
    assert_close(alone, backward, scale=float(backward.abs().max()))


@pytest.mark.spec("4.P29")
@pytest.mark.parametrize("activation", [nn.LeakyReLU, nn.GELU, nn.SiLU], ids=lambda a: a.__name__)
def test_the_product_holds_for_any_activation(x, activation):
    model = network(*WIDTHS, activation=activation)
    _, _, product = hadamard(model, x, "2")
    J = tangent_features(model, x)["2.weight"]
    assert_close(product, full_kernel(J, J), scale=float(product.abs().max()))


CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "padded": {"kernel_size": 3, "padding": 1},
    "same": {"kernel_size": 3, "padding": "same", "dilation": 2},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilated": {"kernel_size": 2, "dilation": 2},
    "even kernel": {"kernel_size": (2, 4), "padding": (1, 2)},
    "uneven same": {"kernel_size": 4, "padding": "same"},
    "grouped": {"kernel_size": 3, "groups": 2},
    "depthwise": {"kernel_size": 3, "groups": 4, "padding": 1},
    "no bias": {"kernel_size": 1, "bias": False},
    "reflected": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
}


@pytest.mark.spec("4.P30")
@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_convolutions(options):
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 4, **options)
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Tanh(), conv, nn.Tanh(), nn.Flatten())
    model = nn.Sequential(model, nn.LazyLinear(2)).double()
    x = torch.randn(3, 1, 6, 5, dtype=torch.float64)
    model(x)
    J = tangent_features(model, x)
    names = ["0.2.weight"] + ["0.2.bias"] * (conv.bias is not None)
    wanted = sum(full_kernel(J[name], J[name]) for name in names)
    kernel = tangent_kernels(model, x)["0.2"]
    assert_close(kernel, wanted, scale=float(wanted.abs().max()))


@pytest.mark.spec("3.P47")
@pytest.mark.parametrize("bias", [False, True])
def test_the_readout_term_and_the_gradient_term(x, bias):
    model = network(5, 6, bias=True)
    model = nn.Sequential(model, nn.ReLU(), nn.Linear(6, 3, bias=bias)).double()
    kernels = tangent_kernels(model, x)
    first, second = kernels["2"], kernels.total - kernels["2"]
    hidden = model[:2](x).detach()
    identity = torch.eye(3, dtype=torch.float64)
    wanted = torch.einsum("xy,ij->xiyj", hidden @ hidden.T + float(bias), identity)
    assert_close(first, wanted, scale=float(wanted.max()))
    W = model[2].weight.detach()
    J = torch.cat(list(tangent_features(model[:2], x).values()), 2)
    below = torch.einsum("ik,xkp,ylp,jl->xiyj", W, J, J, W)
    assert_close(second, below, scale=float(below.abs().max()))


@pytest.mark.spec("3.P48")
def test_the_trace_divided_by_the_outputs(model, x):
    trace = tangent_kernels(model, x, outputs="trace").total / 3
    full = tangent_kernels(model, x).total
    assert_close(trace, full.diagonal(dim1=1, dim2=3).mean(2), scale=float(trace.max()))
    remainder = trace - forward_kernel(model, x, "4", normalize=False)
    values = torch.linalg.eigvalsh(remainder)
    assert values[0] >= -1e-12 * values[-1]


@pytest.mark.spec("3.P50")
def test_centring_hides_the_shift_of_the_readout(x):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    targets = target_gram(examples(6, 3, seed=7))
    with_shift = tangent_kernels(model, x, outputs="trace").total
    without = tangent_kernels(
        model, x, outputs="trace", params=lambda name, _: name != "2.bias"
    ).total
    assert_close(with_shift - without, torch.full((6, 6), 3.0), scale=10.0)
    assert_close(cka(with_shift, targets), cka(without, targets))
    assert abs(float(kta(with_shift, targets) - kta(without, targets))) > 1e-6


@pytest.mark.spec("3.P52")
def test_linear_networks_in_closed_form(x):
    single = network(5, 3)
    eye = torch.eye(3, dtype=torch.float64)
    wanted = torch.einsum("xy,ij->xiyj", x @ x.T, eye)
    assert_close(tangent_kernels(single, x).total, wanted, scale=float(wanted.max()))
    double = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False)).double()
    hidden = double[0](x).detach()
    W = double[1].weight.detach()
    wanted = torch.einsum("xy,ij->xiyj", hidden @ hidden.T, eye)
    wanted = wanted + torch.einsum("xy,ij->xiyj", x @ x.T, W @ W.T)
    assert_close(tangent_kernels(double, x).total, wanted, scale=float(wanted.abs().max()))


@pytest.mark.spec("3.P56")
def test_at_the_target_both_curves_coincide(model, x):
    outputs = model(x).detach()
    ntk = tangent_kernels(model, x, outputs="trace").total
    network_gram, target = target_gram(outputs), target_gram(outputs.clone())
    assert_close(cka(network_gram, target, debiased=False), 1.0)
    assert_close(cka(ntk, target), cka(ntk, network_gram))


class Scaled(nn.Module):
    def __init__(self, body, scale):
        super().__init__()
        self.body, self.scale = body, scale

    def forward(self, x):
        return self.scale * self.body(x)


class NTKLinear(nn.Linear):
    def forward(self, x):
        return functional.linear(x, self.weight) / math.sqrt(self.in_features) + self.bias


@pytest.mark.spec("3.P57")
def test_output_scale_and_ntk_parametrization(model, x):
    plain = tangent_kernels(model, x).total
    scaled = tangent_kernels(Scaled(model, 0.3), x).total
    assert_close(scaled, 0.09 * plain, scale=float(plain.abs().max()))
    torch.manual_seed(0)
    ntk = nn.Sequential(NTKLinear(5, 6), nn.ReLU(), NTKLinear(6, 3)).double()
    standard = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        for index, width in ((0, 5), (2, 6)):
            standard[index].weight.copy_(ntk[index].weight / math.sqrt(width))
            standard[index].bias.copy_(ntk[index].bias)
    for name, width in (("0.weight", 5), ("2.weight", 6), ("0.bias", 1), ("2.bias", 1)):
        first = tangent_kernels(ntk, x, params=[name]).total
        second = tangent_kernels(standard, x, params=[name]).total
        assert_close(first, second / width, scale=float(second.abs().max()))


def test_a_loss_per_example_gives_the_gram_of_its_gradients(model, x):
    labels = torch.arange(6) % 3

    def loss(outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="none")

    found = tangent_kernels(model, (x, labels), outputs=loss).total
    rows = []
    for index in range(6):
        value = functional.cross_entropy(model(x[index, None]), labels[index, None])
        rows.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))])
        )
    J = torch.stack(rows)
    assert_close(found, J @ J.T, scale=float(found.abs().max()))


def test_layers_come_in_order_of_execution_and_containers_add_up(x):
    torch.manual_seed(0)

    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 2)
            self.unused = nn.Linear(3, 3)
            self.body = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4))

        def forward(self, x):
            return self.last(self.body(x))

    model = Backwards().double()
    assert list(tangent_kernels(model, x)) == ["body.0", "body.2", "last", "unused"]
    kernels = tangent_kernels(model, x, layers=["body", "body.*", "last"])
    inside = kernels["body.0"] + kernels["body.2"]
    assert_close(kernels["body"], inside, scale=float(inside.abs().max()))
    assert_close(kernels.total, inside + kernels["last"], scale=float(inside.abs().max()))
    unused = tangent_kernels(model, x, layers="unused")
    assert not unused.total.any()
    assert unused.coverage["unused"][0].contraction == "unused"


def test_the_result_is_in_the_dtype_asked_for(model, x):
    wanted = tangent_kernels(model, x).total
    single = model.float()
    assert tangent_kernels(single, x.float()).total.dtype == torch.float32
    double = tangent_kernels(single, x.float(), dtype=torch.float64).total
    assert double.dtype == torch.float64
    assert_close(double, wanted, scale=float(wanted.abs().max()), dtype=torch.float32)


def test_half_precision_models_answer_in_float32(x):
    model = network(*WIDTHS).bfloat16()
    assert tangent_kernels(model, x.bfloat16(), outputs=0).total.dtype == torch.float32


def test_autocast_is_followed(x):
    model = network(*WIDTHS).float()
    wanted = tangent_kernels(model, x.float()).total
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x.float())  # as in training: autocast keeps its weights for the next calls
        found = tangent_kernels(model, x.float()).total
        assert torch.is_autocast_cache_enabled()
    assert float((found - wanted).norm() / wanted.norm()) < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_rounding_of_an_autocast_is_no_disagreement_where_outputs_are_longer(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(200, 3)
    ).eval()
    inputs = torch.randn(20, 3, 7, 7)

    def readout(output, batch):
        return output.float()

    wanted = tangent_kernels(model, inputs).total
    with torch.autocast("cpu", torch.bfloat16):
        found = tangent_kernels(model, inputs, readout=readout).total
    assert float((found - wanted).norm() / wanted.norm()) < 0.05


def test_batches_of_different_lengths(x):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3), nn.Tanh()).double()
    first, second = torch.randint(0, 9, (3, 4)), torch.randint(0, 9, (2, 6))

    def readout(output, batch):
        return output.sum(1)

    found = tangent_kernels(model, [{"input": first}, {"input": second}], readout=readout).total
    J = [
        torch.cat(list(tangent_features(model, {"input": tokens}, readout).values()), 2)
        for tokens in (first, second)
    ]
    rows = torch.cat(J)
    assert_close(found, full_kernel(rows, rows), scale=float(found.abs().max()))
