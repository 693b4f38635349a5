import math

import numpy as np
import pytest
import torch

from tests.reference import infinite_width as reference
from theodolite.errors import DomainError, ShapeError
from theodolite.theory import infinite_width as theory_infinite_width
from theodolite_papers.lou2022.formulas import infinite_width

F64 = torch.float64
COSINES = [-1.0, -0.6, 0.0, 0.3, 0.9]
ids = [f"c{c}" for c in COSINES]


def tensor(*values):
    return torch.tensor(values, dtype=F64)


def sphere(n, d, generator):
    x = torch.randn(n, d, dtype=F64, generator=generator)
    return x / x.norm(dim=1, keepdim=True) * d**0.5


@pytest.mark.spec("4.P31")
def test_special_values_of_the_correlation_map():
    found = infinite_width.relu_correlation(tensor(-1, 0, 0.5, 1))
    torch.testing.assert_close(found, tensor(0, 1 / math.pi, 0.6089977810, 1), atol=5e-11, rtol=0)
    sequence = infinite_width.relu_angles(torch.tensor(0.0, dtype=F64), 6).cos()
    golden = tensor(0, 0.3183098862, 0.4937310902, 0.6048257201, 0.6809535334, 0.7359463506)
    torch.testing.assert_close(sequence, golden, atol=6e-11, rtol=0)


@pytest.mark.spec("4.P32")
def test_special_values_of_the_derivative():
    found = infinite_width.relu_correlation_derivative(tensor(-1, 0, 0.5, 1))
    torch.testing.assert_close(found, tensor(0, 0.5, 2 / 3, 1), atol=1e-15, rtol=1e-14)
    assert theory_infinite_width.backward_losses(10, 0.0)[0].item() == pytest.approx(
        0.0407250335, abs=5e-11
    )


@pytest.mark.spec("4.P33")
@pytest.mark.parametrize("cosine", [-0.7, 0.0, 0.5, 0.9])
def test_map_is_the_gaussian_integral(cosine):
    found = infinite_width.relu_correlation(tensor(cosine)).item()
    assert found == pytest.approx(reference.gaussian_product(cosine), abs=2e-5)


@pytest.mark.spec("4.P34")
def test_derivative_is_that_of_the_map():
    c = torch.linspace(-0.99, 0.99, 67, dtype=F64).requires_grad_()
    (slope,) = torch.autograd.grad(infinite_width.relu_correlation(c).sum(), c)
    torch.testing.assert_close(slope, infinite_width.relu_correlation_derivative(c.detach()))


@pytest.mark.spec("4.P35")
def test_map_lies_above_the_diagonal():
    c = torch.linspace(-1, 1, 1001, dtype=F64)[:-1]
    slope = infinite_width.relu_correlation_derivative(c)
    assert (infinite_width.relu_correlation(c) > c).all()
    assert ((slope >= 0) & (slope <= 1) & (slope.diff(prepend=slope[:1]) >= 0)).all()


@pytest.mark.spec("4.P36")
@pytest.mark.parametrize("cosine", COSINES, ids=ids)
def test_angles_follow_the_naive_recursion(cosine):
    found = infinite_width.relu_angles(torch.tensor(cosine, dtype=F64), 30).cos()
    expected = tensor(*reference.correlations(cosine, 30))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("cosine", "layer"), [(-1.0, 40), (0.3, 1000), (0.9999, 10_000)])
def test_deep_angles_keep_all_digits(cosine, layer):
    exact = reference.exact_deficit(cosine, layer)
    angle = infinite_width.relu_angles(torch.tensor(cosine, dtype=F64), layer)[-1].item()
    assert 2 * math.sin(angle / 2) ** 2 == pytest.approx(exact, rel=1e-11)
    scalar = theory_infinite_width.forward_losses(layer, cosine, 2.0)[-1].item()
    assert scalar == pytest.approx(exact, rel=1e-11)


@pytest.mark.spec("4.P37")
def test_expansion_near_one():
    s, b = 2 * math.sqrt(2) / (3 * math.pi), math.sqrt(2) / (30 * math.pi)
    x = np.array([1e-2, 1e-3, 1e-4])
    angles = infinite_width.relu_angles(torch.from_numpy(1 - x), 2)[1].numpy()
    found = 2 * np.sin(angles / 2) ** 2
    first = (x - found) / x**1.5
    assert first == pytest.approx(np.full(3, s), rel=2e-3)
    assert ((first - s) / x)[:2] == pytest.approx([b, b], rel=2e-2)


@pytest.mark.spec("4.P38", "4.P40")
@pytest.mark.parametrize("cosine", [-1.0, 0.5])
def test_forward_constant_is_approached_from_below(cosine):
    layers = np.array([2_000, 20_000, 200_000])
    deficit = theory_infinite_width.forward_losses(200_000, cosine, 2.0).numpy()[layers - 1]
    ratio = layers**2 * deficit / (4.5 * math.pi**2)
    assert (np.diff(ratio) > 0).all()
    assert (ratio < 1).all()
    assert ratio[-1] == pytest.approx(1, abs=2e-3)
    assert infinite_width.asymptotic_forward_loss(200_000, 2.0) == pytest.approx(
        deficit[-1], rel=2e-3
    )


@pytest.mark.spec("4.P39")
def test_remainder_of_the_derivative_is_of_second_order():
    layers = [100, 1_000, 10_000, 100_000]
    angles = infinite_width.relu_angles(torch.tensor(0.0, dtype=F64), 1_000)[:, None]
    deep = theory_infinite_width.forward_losses(100_000, 0.0, 2.0)
    derivative = 1 - 2 * torch.asin((deep / 2).sqrt()) / math.pi
    assert derivative[999].item() == pytest.approx(1 - angles[-1].item() / math.pi, rel=1e-13)
    remainders = [
        (derivative[k - 1].item() - infinite_width.asymptotic_derivative(k)) * k**2 for k in layers
    ]
    assert max(abs(value) for value in remainders) < 20
    without_log = [(derivative[k - 1].item() - 1 + 3 / k) * k**2 for k in layers]
    assert without_log[-1] - without_log[0] == pytest.approx(4.5 * math.log(1000), rel=0.1)


@pytest.mark.spec("4.P41", "4.P42")
@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75])
def test_backward_information_at_a_fraction(fraction):
    depths = [1_000, 10_000, 100_000]
    excess = [
        theory_infinite_width.backward_losses(L, 0.0)[int(fraction * L) - 1].item() - fraction**3
        for L in depths
    ]
    assert min(excess) > 0
    assert excess[-1] < 1e-3
    predicted = [
        infinite_width.asymptotic_backward_information(fraction, L) - fraction**3 for L in depths
    ]
    scaled = [(e - p) * L for e, p, L in zip(excess, predicted, depths, strict=True)]
    assert max(abs(value) for value in scaled) < 10
    # Two depths cancel the O(1/L) part and leave the constant of log L / L.
    constant = (excess[2] * depths[2] - excess[1] * depths[1]) / math.log(10)
    assert constant == pytest.approx(4.5 * fraction**2 * (1 - fraction), rel=0.02)


@pytest.mark.spec("4.P43", "4.P115")
def test_backward_information_of_early_layers_is_cubic():
    depth = 200_000
    backward = theory_infinite_width.backward_losses(depth, 0.5)
    layers = np.array([200, 2_000, 20_000])
    ratio = (depth / layers) ** 3 * backward.numpy()[layers - 1]
    assert (np.abs(np.diff(ratio)) > 0).all()
    assert (ratio > 1).all()
    assert ratio[-1] < ratio[0]
    assert ratio[-1] == pytest.approx(1, abs=2e-2)
    slope = np.polyfit(np.log(layers), np.log(backward.numpy()[layers - 1]), 1)[0]
    assert slope == pytest.approx(3, abs=0.05)


TABLE = {
    (1.0, -1.0): ([4.64, 7.65, 10.24, 12.58, 14.74, 16.75, 18.66, 20.48, 22.22, 23.89], 0.711),
    (1.0, 0.0): ([3.96, 6.92, 9.49, 11.80, 13.94, 15.95, 17.85, 19.66, 21.39, 23.05], 0.762),
    (1.0, 0.3): ([3.35, 6.25, 8.79, 11.08, 13.21, 15.21, 17.09, 18.89, 20.62, 22.28], 0.817),
    (1.0, 0.6): ([1.94, 4.76, 7.24, 9.50, 11.60, 13.57, 15.44, 17.22, 18.93, 20.59], 0.999),
    (2.0, 0.0): ([5.21, 8.71, 11.71, 14.41, 16.90, 19.23, 21.44, 23.53, 25.54, 27.47], 0.721),
}


@pytest.mark.spec("4.P44")
@pytest.mark.parametrize("case", TABLE, ids=str)
def test_exact_balance_of_finite_depth(case):
    q_star, cosine = case
    expected, slope = TABLE[case]
    depths = range(10, 101, 10)
    found = [theory_infinite_width.equilibrium_layer(depth, cosine, q_star) for depth in depths]
    assert found == pytest.approx(expected, abs=6e-3)
    assert np.polyfit(np.log(depths), np.log(found), 1)[0] == pytest.approx(slope, abs=6e-4)


@pytest.mark.spec("4.P44", "4.P45")
def test_balance_tends_to_the_three_fifths_law():
    depths = [3_000, 30_000, 300_000]
    found = [theory_infinite_width.equilibrium_layer(depth, 0.3) for depth in depths]
    slopes = np.diff(np.log(found)) / math.log(10)
    assert slopes == pytest.approx([0.616, 0.605], abs=6e-4)
    ratios = [
        layer / infinite_width.asymptotic_equilibrium_layer(L)
        for layer, L in zip(found, depths, strict=True)
    ]
    assert abs(ratios[2] - 1) < abs(ratios[1] - 1) < abs(ratios[0] - 1)
    assert ratios[2] == pytest.approx(1, abs=0.02)
    assert infinite_width.asymptotic_equilibrium_layer(1) == pytest.approx(1.859, abs=5e-4)


def test_balance_solves_its_equation_between_layers():
    layer = theory_infinite_width.equilibrium_layer(40, 0.2, 1.5)
    low = math.floor(layer)
    forward = theory_infinite_width.forward_losses(40, 0.2, 1.5).log()
    backward = theory_infinite_width.backward_losses(40, 0.2).log()
    gap = (forward - backward)[low - 1 : low + 1]
    assert gap[0] > 0 >= gap[1]
    assert torch.lerp(gap[0], gap[1], layer - low).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("depth", "cosine", "q_star", "expected"),
    [(1, 0.0, 1.0, 1.0), (20, 1.0, 1.0, 1.0), (2, -1.0, 1.0, 2.0), (5, 0.9, 1.0, 1.0)],
)
def test_balance_at_the_edges(depth, cosine, q_star, expected):
    assert theory_infinite_width.equilibrium_layer(depth, cosine, q_star) == expected


def test_balance_beyond_the_last_layer_is_undefined():
    assert math.isnan(theory_infinite_width.equilibrium_layer(1, -1.0, 2.0))


@pytest.mark.spec("4.P46")
def test_variance_is_kept_on_the_sphere(generator):
    x = sphere(5, 7, generator)
    diagonals = torch.stack(
        [infinite_width.nngp_covariance(x, layer).diagonal() for layer in (1, 2, 9)]
    )
    torch.testing.assert_close(diagonals, torch.full((3, 5), 2.0, dtype=F64))


@pytest.mark.spec("4.P47")
def test_backward_information_is_one_at_the_end_and_grows(generator):
    x = torch.randn(6, 4, dtype=F64, generator=generator)
    layers = torch.stack(
        [infinite_width.backward_information(x, layer, 8) for layer in range(1, 9)]
    )
    assert (layers.diagonal(dim1=1, dim2=2) == 1).all()
    assert (layers[-1] == 1).all()
    assert (layers.diff(dim=0) >= 0).all()
    off = ~torch.eye(6, dtype=torch.bool)
    assert (layers.diff(dim=0)[:, off] > 0).all()


@pytest.mark.parametrize("layer", [1, 2, 5])
def test_kernels_follow_the_loops(layer, generator):
    x = torch.randn(5, 4, dtype=F64, generator=generator)
    forward, backward = map(torch.from_numpy, reference.pair_loops(x.numpy(), layer, 5))
    torch.testing.assert_close(infinite_width.forward_information(x, layer), forward)
    torch.testing.assert_close(infinite_width.nngp_covariance(x, layer), 2 * forward)
    torch.testing.assert_close(infinite_width.backward_information(x, layer, 5), backward)
    torch.testing.assert_close(infinite_width.layer_kernel(x, layer, 5), forward * backward)
    start = x @ x.T
    torch.testing.assert_close(
        infinite_width.gradient_covariance(x, layer, start, 5), start * backward
    )


@pytest.mark.parametrize("layer", [1, 3])
def test_first_layer_bias_is_one_more_input(layer, generator):
    x = torch.randn(4, 3, dtype=F64, generator=generator)
    wide = torch.cat([x * (4 / 3) ** 0.5, torch.full((4, 1), (0.7 * 4 / 2) ** 0.5, dtype=F64)], 1)
    found = infinite_width.nngp_covariance(x, layer, bias_variance=0.7)
    torch.testing.assert_close(found, infinite_width.nngp_covariance(wide, layer))
    forward = infinite_width.forward_information(x, layer, bias_variance=0.7)
    torch.testing.assert_close(forward, x @ x.T / 3 if layer == 1 else found / 2)


@pytest.fixture(scope="module")
def networks():
    """Forward and backward products of 60 networks of width 400 and of 4 of width 1500."""
    generator = torch.Generator().manual_seed(1)
    x = sphere(4, 10, generator)
    draws = {
        width: [reference.finite_information(x, 5, width, generator) for _ in range(count)]
        for width, count in ((400, 60), (1500, 4))
    }
    return x, {
        width: tuple(map(torch.stack, zip(*pairs, strict=True))) for width, pairs in draws.items()
    }


@pytest.mark.spec("4.P48", "4.P49")
def test_a_few_wide_networks_are_near_the_limit(networks):
    x, draws = networks
    forward, backward = (values.mean(0) for values in draws[1500])
    for layer in range(1, 6):
        limit = infinite_width.forward_information(x, layer)
        assert (forward[layer - 1] - limit).abs().max() < 0.15
        limit = infinite_width.backward_information(x, layer, 5)
        assert (backward[layer - 1] - limit).abs().max() < 0.15


@pytest.mark.parametrize("layer", [2, 3, 5])
def test_limits_agree_with_monte_carlo(networks, layer):
    x, draws = networks
    forward, backward = (values[:, layer - 1] for values in draws[400])
    for values, limit in (
        (forward, infinite_width.forward_information(x, layer)),
        (backward, infinite_width.backward_information(x, layer, 5)),
        (forward * backward, infinite_width.layer_kernel(x, layer, 5)),
    ):
        error = values.std(0) / len(values) ** 0.5
        # Four standard errors and the O(1/N) bias of the off-diagonal means.
        assert ((values.mean(0) - limit).abs() <= 4 * error + 4 / 400).all()


def test_variance_is_exact_at_any_width(generator):
    # Unnumbered item 8: E[relu(z_{l-1})^2] = |x|^2 / d at every width.
    x = torch.randn(3, 5, dtype=F64, generator=generator)
    draws = [reference.finite_information(x, 4, 8, generator)[0] for _ in range(3000)]
    values = torch.stack(draws).diagonal(dim1=2, dim2=3)  # seeds, layers, examples
    error = values.std(0) / len(values) ** 0.5
    expected = x.square().sum(1) / 5
    assert ((values.mean(0) - expected).abs() <= 4 * error + 1e-12).all()
    assert (error[1:] < 0.06 * expected).all()


@pytest.mark.spec("4.P51", "4.P106")
def test_forward_loss_falls_with_the_square(generator):
    layers = np.unique(np.geomspace(10_000, 200_000, 20).astype(int))
    losses = theory_infinite_width.forward_losses(200_000).numpy()[layers - 1]
    slope = np.polyfit(np.log(layers), np.log(losses), 1)[0]
    assert slope == pytest.approx(-2, abs=5e-3)
    # The supremum over pairs is the one of opposite inputs.
    x = sphere(20, 6, generator)
    limit = infinite_width.forward_information(x, 9).diagonal().mean().item()
    sampled = infinite_width.information_loss(infinite_width.forward_information(x, 9), limit)
    assert sampled <= theory_infinite_width.forward_losses(9, -1.0, 2.0)[-1] + 1e-12


@pytest.mark.spec("4.P52")
@pytest.mark.parametrize("fraction", [0.3, 0.6])
def test_backward_loss_at_a_fraction_has_a_logarithm(fraction):
    depths = [10_000, 100_000, 400_000]
    losses = [infinite_width.backward_fraction_loss(fraction, L, 0.5) for L in depths]
    scaled = [loss * L for loss, L in zip(losses, depths, strict=True)]
    slope = (scaled[2] - scaled[1]) / math.log(4)
    assert slope == pytest.approx(4.5 * fraction**2 * (1 - fraction), rel=0.05)
    brute = max(
        abs(
            theory_infinite_width.backward_losses(1000, c)[int(fraction * 1000) - 1].item()
            - fraction**3
        )
        for c in np.linspace(-1, 0.5, 31)
    )
    assert infinite_width.backward_fraction_loss(fraction, 1000, 0.5) == pytest.approx(
        brute, rel=1e-12
    )


@pytest.mark.spec("4.P107")
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_infinite_alignment_follows_the_definition(outputs, bias, generator):
    x = torch.randn(9, 4, dtype=F64, generator=generator)
    y = torch.randn(9, outputs, dtype=F64, generator=generator)
    found = infinite_width.infinite_alignment(x, y, 7, bias)
    kernels = [infinite_width.layer_kernel(x, layer, 7, bias) for layer in range(1, 8)]
    expected = [reference.stacked_alignment(K.numpy(), y.numpy()) for K in kernels]
    torch.testing.assert_close(found, tensor(*expected), atol=1e-11, rtol=1e-9)
    assert ((found >= 0) & (found <= 1)).all()
    scaled = infinite_width.infinite_alignment(x, 3 * y + 2, 7, bias)
    torch.testing.assert_close(scaled, found)


@pytest.mark.spec("4.P107")
def test_infinite_alignment_is_the_limit_of_wide_networks(generator):
    x = torch.randn(8, 5, dtype=F64, generator=generator)
    y = torch.eye(3, dtype=F64)[torch.arange(8) % 3]
    draws = [reference.finite_alignments(x, y, 4, 600, generator) for _ in range(12)]
    values = torch.tensor(draws, dtype=F64)
    error = values.std(0) / len(values) ** 0.5
    limit = infinite_width.infinite_alignment(x, y, 4)
    # Outputs are coupled at finite width, which adds O(1/N) to the norm of the kernel.
    assert ((values.mean(0) - limit).abs() <= 4 * error + 8 / 600 * limit).all()
    assert (error < 0.05 * limit).all()


def test_infinite_alignment_keeps_its_digits_when_kernels_are_constant(generator):
    # One output: K_l is constant up to 4e-6 here, and only the rest of it is aligned or not.
    x, y = sphere(6, 3, generator), torch.randn(6, 1, dtype=F64, generator=generator)
    depth = 3000
    last = infinite_width.infinite_alignment(x, y, depth)[-1].item()
    unit = x / x.norm(dim=1, keepdim=True)
    cosine = (unit @ unit.T).clamp(-1, 1)
    deficit = [reference.exact_deficit(c, depth, 40) for c in cosine[0, 1:3].tolist()]
    angles = infinite_width.relu_angles(cosine, depth)[-1].fill_diagonal_(0)
    computed = 2 * torch.sin(angles / 2).square()
    torch.testing.assert_close(computed[0, 1:3], tensor(*deficit), rtol=1e-9, atol=0)
    expected = reference.stacked_alignment(-computed.numpy() / computed.max().item(), y.numpy())
    assert last == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [(torch.eye(3), torch.ones(3, 2)), (torch.ones(3, 2), torch.tensor([[1.0], [2.0], [0.0]]))],
    ids=["constant targets", "equal inputs"],
)
def test_infinite_alignment_is_undefined(inputs, targets):
    assert infinite_width.infinite_alignment(inputs, targets, 3).isnan().all()


@pytest.mark.spec("4.P108")
def test_information_loss_of_a_constant_is_zero():
    assert infinite_width.information_loss(torch.full((4, 4), 0.5), 0.5) == 0
    assert infinite_width.information_loss(tensor(0.5, 0.2, 0.9), 0.5).item() == pytest.approx(0.4)


@pytest.mark.spec("4.P116")
def test_membership_of_the_domain_is_strict():
    x = tensor(1, 1, 1, 1).expand(4, 4)
    # cosine 1/2 exactly, opposite, the same, and a pair off the sphere
    y = torch.stack([tensor(1, 1, 1, -1), -x[0], x[0], tensor(2, 0, 0, 0.5)])
    assert infinite_width.is_separated(x, y, 0.5).tolist() == [False, True, False, False]
    assert infinite_width.is_separated(x, y, 0.4999).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    "function", [infinite_width.relu_correlation, infinite_width.relu_correlation_derivative]
)
def test_rounding_past_one_is_clipped(function):
    assert function(tensor(1 + 1e-12)).item() == 1
    with pytest.raises(DomainError, match=r"\[-1, 1\]"):
        function(tensor(0.0, 1.001))


@pytest.mark.parametrize(
    "call",
    [
        lambda: infinite_width.forward_information(torch.zeros(2, 3), 1),
        lambda: infinite_width.forward_information(torch.eye(2), 0),
        lambda: infinite_width.backward_information(torch.eye(2), 4, 3),
        lambda: infinite_width.nngp_covariance(torch.eye(2), 1, -1.0),
        lambda: infinite_width.nngp_covariance(torch.full((2, 2), torch.nan), 1),
        lambda: theory_infinite_width.forward_losses(3, 1.5),
        lambda: theory_infinite_width.forward_losses(3, 0.0, 0.0),
        lambda: theory_infinite_width.equilibrium_layer(0),
        lambda: infinite_width.is_separated(torch.eye(2), torch.eye(2), 1.0),
        lambda: infinite_width.backward_fraction_loss(0.01, 100, 0.5),
        lambda: infinite_width.asymptotic_backward_information(0.0, 3),
        lambda: infinite_width.infinite_alignment(torch.eye(2), torch.full((2, 1), torch.inf), 2),
    ],
)
def test_values_outside_the_domain_raise(call):
    with pytest.raises(DomainError):
        call()


def test_empty_inputs_raise():
    with pytest.raises(ShapeError):
        infinite_width.forward_information(torch.zeros(0, 3), 1)


def test_numpy_in_numpy_out():
    found = infinite_width.layer_kernel(np.eye(2, dtype=np.float32), 2, 3)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
