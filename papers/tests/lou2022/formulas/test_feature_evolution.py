import copy
from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from tests.reference import feature_evolution as reference
from tests.reference.infinite_width import stacked_alignment
from theodolite.errors import DomainError, ShapeError
from theodolite_papers.lou2022.formulas import feature_evolution, feature_updates, homogeneity

F64 = torch.float64


def mlp(widths, seed=0, bias=False, last_scale=1.0, activation=nn.ReLU):
    """A float64 network with He weights."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for fan_in, fan_out in pairwise(widths):
        linear = nn.Linear(fan_in, fan_out, bias=bias, dtype=F64)
        for parameter in linear.parameters():
            parameter.data = torch.randn(parameter.shape, dtype=F64, generator=generator)
            parameter.data *= (2 / fan_in) ** 0.5
        layers += [linear, activation()]
    layers[-2].weight.data *= last_scale
    return nn.Sequential(*layers[:-1])


def batch(n, d, c, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, dtype=F64, generator=generator)
    labels = torch.randint(0, c, (n,), generator=generator)
    return x, torch.eye(c, dtype=F64)[labels]


def loss_gradient(model, x, y):
    with torch.no_grad():
        return (torch.softmax(model(x), 1) - y) / len(x)


def stepped(model, x, w, eta):
    """A copy of the model after one step of gradient descent on <w, f>."""
    after = copy.deepcopy(model)
    (w * after(x)).sum().backward()
    torch.optim.SGD(after.parameters(), lr=eta).step()
    return after


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.fixture(scope="module")
def dense():
    """A small three-layer network with every derivative as a dense tensor."""
    model = mlp([3, 5, 4, 2])
    x, y = batch(5, 3, 2)
    function, theta = reference.flat_function(model, x)
    psi, H = reference.features(function, theta), reference.hessians(function, theta)
    w = loss_gradient(model, x, y)
    H_w = torch.einsum("xi,xipq->pq", w, H)
    return {"model": model, "x": x, "y": y, "theta": theta, "psi": psi, "H": H, "w": w, "H_w": H_w}


# --- Theorem A -----------------------------------------------------------------------------------


def conv_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 3, 2, stride=2, bias=False),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3, 2),
    )


@pytest.mark.spec("4.P68", "4.P69")
@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU])
def test_theorem_a_without_biases(depth, activation):
    model = mlp([3] + [4] * (depth - 1) + [2], activation=activation)
    check = homogeneity.check_homogeneity(model, batch(4, 3, 2)[0])
    assert check.depth == depth
    assert (check.degrees == 1).all()
    assert check.largest_error < 1e-12


@pytest.mark.spec("4.P68", "4.P69")
def test_theorem_a_against_dense_hessians(dense):
    lhs = torch.einsum("xipq,q->xip", dense["H"], dense["theta"])
    torch.testing.assert_close(lhs, 2 * dense["psi"], atol=1e-12, rtol=1e-9)
    euler = torch.einsum("xip,p->xi", dense["psi"], dense["theta"])
    torch.testing.assert_close(euler, 3 * dense["model"](dense["x"]).detach())


@pytest.mark.spec("4.P76")
@pytest.mark.parametrize("case", ["mlp", "conv"])
def test_theorem_a_with_biases(case):
    if case == "mlp":
        model, x = mlp([3, 4, 4, 2], bias=True), batch(4, 3, 2)[0]
    else:
        model, x = conv_net(), torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    check = homogeneity.check_homogeneity(model, x)
    assert check.depth == 3
    assert set(check.degrees.tolist()) == ({1, 2, 3} if case == "mlp" else {1, 3})
    assert check.largest_error < 1e-12
    assert check.hessian_errors.shape == (len(x), 2)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return x + self.second(self.first(x).relu())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.layer(self.layer(x)))


@pytest.mark.spec("4.P68")
@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(2, 2),
        nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)).eval(),
        nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2, elementwise_affine=False), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Softmax(1)),
        Residual(),
        Twice(),
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2)),
    ],
    ids=["one layer", "tanh", "batch norm", "norm", "softmax", "residual", "twice", "dropout"],
)
def test_networks_outside_theorem_a_are_refused(model):
    with pytest.raises(DomainError, match=r"^model: expected"):
        homogeneity.check_homogeneity(model, torch.eye(2))


@pytest.mark.spec("4.P72")
@pytest.mark.parametrize("depth", [2, 4])
def test_gradient_step_from_the_hessian(depth):
    model = mlp([3] + [4] * (depth - 1) + [2])
    x, y = batch(6, 3, 2)
    w = loss_gradient(model, x, y)
    found = homogeneity.homogeneous_step(model, x, w, 0.1)
    torch.testing.assert_close(found, flat(stepped(model, x, w, 0.1)), atol=1e-12, rtol=1e-9)


def test_gradient_step_from_the_hessian_refuses_biases():
    with pytest.raises(DomainError, match="no biases"):
        homogeneity.homogeneous_step(mlp([2, 3, 2], bias=True), torch.eye(2), torch.ones(2, 2), 0.1)


def test_the_model_is_left_as_it_was():
    model = mlp([3, 4, 2], bias=True).float().train()
    before = copy.deepcopy(model.state_dict())
    homogeneity.check_homogeneity(model, torch.eye(3))
    assert model.training
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


# --- First-order change of features ---------------------------------------------------------------


@pytest.mark.spec("4.P82")
def test_first_order_error_is_proportional_to_the_step():
    model = mlp([3, 5, 4, 2])
    x, y = batch(5, 3, 2)
    w = loss_gradient(model, x, y)
    changes = [
        feature_updates.feature_change(model, stepped(model, x, w, eta), x, y)
        for eta in (2e-3, 1e-3, 5e-4)
    ]
    assert [change.flips for change in changes] == [0, 0, 0]
    errors = [change.relative_error.item() for change in changes]
    assert errors[0] / errors[1] == pytest.approx(2, rel=1e-2)
    assert errors[1] / errors[2] == pytest.approx(2, rel=1e-2)


@pytest.mark.spec("4.P83")
def test_first_order_is_exact_for_two_layers():
    model = mlp([3, 6, 2])
    x, y = batch(5, 3, 2)
    after = stepped(model, x, loss_gradient(model, x, y), 0.01)
    change = feature_updates.feature_change(model, after, x, y)
    assert change.flips == 0
    assert change.measured.norm() > 1e-4
    assert change.relative_error < 1e-10


@pytest.mark.spec("4.P113")
def test_first_order_fails_once_units_flip():
    model = mlp([8] + [32] * 5 + [3], seed=4)
    x, y = batch(60, 8, 3)
    w = loss_gradient(model, x, y)
    label = y - y.mean()
    smooth = feature_updates.feature_change(model, stepped(model, x, w, 1e-7), x, label)
    assert smooth.flips == 0
    assert smooth.relative_error < 1e-4
    # The smallest step of a doubling ladder at which some unit changes sign.
    ladder = (stepped(model, x, w, 1e-7 * 2**k) for k in range(30))
    flipped = next(
        change
        for after in ladder
        if (change := feature_updates.feature_change(model, after, x, label)).flips > 0
    )
    assert flipped.flips <= 5
    assert flipped.relative_error > 0.3


def test_flips_are_counted_for_functions_in_place_and_pooling():
    class Net(nn.Module):
        def __init__(self, sign):
            super().__init__()
            self.conv = nn.Conv1d(1, 1, 1, bias=False)
            self.conv.weight.data.fill_(sign)
            self.inplace = nn.ReLU(inplace=True)

        def forward(self, x):
            z = torch.nn.functional.leaky_relu(self.conv(x), 0.5)
            z = self.inplace(z.clone())
            return nn.functional.max_pool2d(z.unsqueeze(1) + x.unsqueeze(1), (1, 2)).flatten(1)

    x = torch.tensor([[[1.0, -2.0, 3.0, 4.0]]])
    change = feature_updates.feature_change(Net(3.0), Net(-3.0), x, torch.ones(1, 2))
    # Four units, seen by both activations, and the first pooling window: (4, -2) or (1, 4).
    assert change.flips == 9
    lowered = feature_updates.feature_change(Net(1.0), Net(1.0), x, torch.ones(1, 2))
    assert lowered.flips == 0
    assert lowered.relative_error.isnan()


@pytest.mark.spec("4.P84")
def test_feature_update_correlation_is_high_for_tiny_logits():
    model = mlp([6, 20, 20, 3], last_scale=1e-4)
    x, y = batch(12, 6, 3)
    after = stepped(model, x, loss_gradient(model, x, y), 1e-6)
    update = feature_updates.feature_update_correlation(model, after, x, y)
    assert update.flips == 0
    assert update.cosine > 0.999
    assert update.pearson > 0.999
    assert update.cosine.item() == pytest.approx(update.flip_free_cosine.item(), abs=1e-4)


def test_feature_update_correlation_follows_its_definition(dense):
    model, x, y = dense["model"], dense["x"], dense["y"]
    after = stepped(model, x, dense["w"], 0.05)
    function, theta = reference.flat_function(after, x)
    label = y - y.mean()
    change = torch.einsum("xip,xi->p", reference.features(function, theta) - dense["psi"], label)
    predicted = -dense["H_w"] @ torch.einsum("xip,xi->p", dense["psi"], label)
    H_y = torch.einsum("xi,xipq->pq", label, dense["H"])
    smooth = H_y @ (theta - dense["theta"])
    update = feature_updates.feature_update_correlation(model, after, x, y)
    cosine = torch.cosine_similarity(change, predicted, dim=0)
    torch.testing.assert_close(update.cosine, cosine)
    pearson = np.corrcoef(change.numpy(), predicted.numpy())[0, 1]
    assert update.pearson.item() == pytest.approx(pearson, abs=1e-9)
    expected = torch.cosine_similarity(smooth, predicted, dim=0)
    torch.testing.assert_close(update.flip_free_cosine, expected)
    scaled = feature_updates.feature_update_correlation(
        model, after, x, y, loss_gradient=3 * dense["w"]
    )
    torch.testing.assert_close(scaled.cosine, cosine)


@pytest.mark.spec("4.P85")
def test_feature_update_correlation_survives_projection(generator):
    model = mlp([6, 16, 16, 3])
    x, y = batch(10, 6, 3)
    after = stepped(model, x, loss_gradient(model, x, y), 0.01)
    exact = feature_updates.feature_update_correlation(model, after, x, y)
    sketch = feature_updates.feature_update_correlation(
        model, after, x, y, projection=1500, generator=generator
    )
    # Standard error of a cosine from r Gaussian rows: (1 - cos²) / sqrt(r).
    assert abs(sketch.cosine - exact.cosine) < 4 * (1 - exact.cosine**2) / 1500**0.5
    assert sketch.cosine != exact.cosine


def test_an_update_without_change_is_undefined():
    model = mlp([2, 3, 2])
    update = feature_updates.feature_update_correlation(model, model, torch.eye(2), torch.eye(2))
    assert update.cosine.isnan()
    assert update.flips == 0


# --- OFE and GOFE ---------------------------------------------------------------------------------


def alignment(kernel, labels):
    m = labels.numel()
    return stacked_alignment(kernel.reshape(m, m).numpy(), labels.reshape(m, 1).numpy())


@pytest.mark.spec("4.P86")
def test_ofe_along_the_labels_raises_alignment_to_one(dense):
    y = dense["y"] - dense["y"].mean()
    psi = dense["psi"][..., :15]
    kernel = torch.einsum("xip,yjp->xiyj", psi, psi)
    strengths = [0.0, 0.1, 1.0, 10.0, 1e3, 1e5]
    found = [alignment(feature_evolution.ofe_step(kernel, -y, 1.0, s), y) for s in strengths]
    assert np.all(np.diff(found) >= 0)
    assert found[-1] == pytest.approx(1, abs=1e-6)
    # Closed form: coordinates along the labels (g), across (b) and elsewhere (r).
    m = y.numel()
    C = torch.eye(m, dtype=F64) - 1 / m
    K = C @ kernel.reshape(m, m) @ C
    unit = y.flatten() / y.norm()
    rest = torch.eye(m, dtype=F64) - torch.outer(unit, unit)
    g, b, r = unit @ K @ unit, (rest @ K @ unit).norm(), (rest @ K @ rest).norm()
    for strength, value in zip(strengths, found, strict=True):
        a = 1 + strength * y.square().sum()
        assert value == pytest.approx((g / (g**2 + 2 * b**2 / a**2 + r**2 / a**4).sqrt()).item())


@pytest.mark.spec("4.P87")
def test_ofe_on_kernels_is_ofe_on_features(dense):
    moved = feature_evolution.ofe_features(dense["psi"], dense["w"], 0.3, 2.0)
    kernel = torch.einsum("xip,yjp->xiyj", dense["psi"], dense["psi"])
    expected = torch.einsum("xip,yjp->xiyj", moved, moved)
    torch.testing.assert_close(feature_evolution.ofe_step(kernel, dense["w"], 0.3, 2.0), expected)
    m = dense["w"].numel()
    w = dense["w"].reshape(m)
    T = torch.eye(m, dtype=F64) + 0.6 * torch.outer(w, w)
    literal = T @ kernel.reshape(m, m) @ T
    torch.testing.assert_close(expected.reshape(m, m), literal)


def combine(psi, weights):
    return torch.einsum("xip,xi->p", psi, weights)


@pytest.mark.spec("4.P88")
def test_gofe_agrees_with_gradient_descent_on_the_loss_gradient(dense):
    psi, w, H_w = dense["psi"], dense["w"], dense["H_w"]
    moved = feature_evolution.gofe_step(psi, w, H_w, 0.1)
    exact = -0.1 * H_w @ combine(psi, w)
    torch.testing.assert_close(combine(moved - psi, w), exact)
    by_function = feature_evolution.gofe_step(psi, w, lambda u: H_w @ u, 0.1)
    torch.testing.assert_close(by_function, moved)
    # Literally V of the paper.
    V = feature_evolution.gofe_velocity(H_w, w)
    literal = psi + 0.1 * torch.einsum("p,xi->xip", V @ combine(psi, w), w)
    torch.testing.assert_close(moved, literal)


@pytest.mark.spec("4.P89")
def test_gofe_increment_has_least_norm(dense):
    psi, w, H_w = dense["psi"], dense["w"], dense["H_w"]
    increment = (feature_evolution.gofe_step(psi, w, H_w, 0.1) - psi).flatten(0, 1)
    m = w.numel()
    # All increments D with D w = b: least norm is b w^+, from lstsq.
    b = -0.1 * H_w @ combine(psi, w)
    least = np.linalg.lstsq(w.reshape(1, m).numpy(), b.reshape(1, -1).numpy(), rcond=None)[0]
    torch.testing.assert_close(increment, torch.from_numpy(least), atol=1e-12, rtol=1e-9)


@pytest.mark.spec("4.P90")
def test_gofe_leaves_orthogonal_directions(dense, generator):
    psi, w = dense["psi"], dense["w"]
    u = torch.randn(w.shape, dtype=F64, generator=generator)
    u = u - (u * w).sum() / w.square().sum() * w
    moved = feature_evolution.gofe_step(psi, w, dense["H_w"], 0.5)
    torch.testing.assert_close(combine(moved, u), combine(psi, u))


@pytest.mark.spec("4.P91")
def test_gofe_follows_the_gradient_of_a_real_step(dense):
    model, x, y, psi, w = (dense[key] for key in ("model", "x", "y", "psi", "w"))
    p = torch.softmax(model(x).detach(), 1)
    S = (torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)) / len(x)
    kernel = torch.einsum("xip,yjp->xiyj", psi, psi)
    errors = []
    for eta in (4e-3, 2e-3, 1e-3):
        after = stepped(model, x, w, eta)
        function, theta = reference.flat_function(after, x)
        real = combine(reference.features(function, theta), loss_gradient(after, x, y))
        predicted = combine(
            feature_evolution.gofe_step(psi, w, dense["H_w"], eta),
            feature_evolution.loss_gradient_step(kernel, w, S, eta),
        )
        start = combine(psi, w)
        errors.append(((predicted - real).norm() / (real - start).norm()).item())
    assert errors[0] < 0.02
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.05)


@pytest.mark.spec("4.P92")
def test_parameters_move_as_in_gradient_descent(dense):
    step = feature_evolution.parameter_step(dense["psi"], dense["w"], 0.2)
    after = stepped(dense["model"], dense["x"], dense["w"], 0.2)
    torch.testing.assert_close(dense["theta"] + step, flat(after))


@pytest.mark.spec("4.P93")
def test_preconditioned_velocity_meets_its_condition(dense):
    psi, w, H_w = dense["psi"], dense["w"], dense["H_w"]
    P = psi.shape[2]
    fisher = torch.einsum("xip,xiq->pq", psi, psi)
    A = torch.linalg.inv(fisher + 0.1 * torch.eye(P, dtype=F64))
    V = feature_evolution.gofe_velocity(H_w, w, A)
    gradient = combine(psi, w)
    residual = (w.square().sum() * V + H_w @ A) @ gradient
    assert residual.norm() < 1e-12 * (H_w @ A @ gradient).norm()
    moved = feature_evolution.gofe_step(psi, w, H_w, 0.1, preconditioner=A)
    literal = psi + 0.1 * torch.einsum("p,xi->xip", V @ gradient, w)
    torch.testing.assert_close(moved, literal)
    step = feature_evolution.parameter_step(psi, w, 0.1, preconditioner=lambda u: A @ u)
    torch.testing.assert_close(combine(moved - psi, w), H_w @ step)


@pytest.mark.spec("4.P114")
def test_mini_batch_version(dense):
    model, x, psi, w, H_w = (dense[key] for key in ("model", "x", "psi", "w", "H_w"))
    mask = torch.tensor([True, False, True, True, False])
    step = feature_evolution.parameter_step(psi, w, 0.1, batch=mask)
    batch_w = torch.softmax(model(x[mask]).detach(), 1) - dense["y"][mask]
    after = stepped(model, x[mask], batch_w / 3, 0.1)
    torch.testing.assert_close(dense["theta"] + step, flat(after))
    moved = feature_evolution.gofe_step(psi, w, H_w, 0.1, batch=mask)
    torch.testing.assert_close(combine(moved - psi, w), H_w @ step)
    whole = feature_evolution.gofe_step(psi, w, H_w, 0.1, batch=torch.ones(5, dtype=torch.bool))
    torch.testing.assert_close(whole, feature_evolution.gofe_step(psi, w, H_w, 0.1))


# --- Predicted alignments -------------------------------------------------------------------------


def stacked(stages):
    return torch.stack(astuple(stages)[1:])


@pytest.mark.spec("4.P94")
def test_stages_against_dense_matrices(dense):
    model, x, y = dense["model"], dense["x"], dense["y"]
    found = feature_evolution.predict_alignments(model, x, y, 0.3)
    assert found.layers == ("0", "2", "4")
    layers = [slice(0, 15), slice(15, 35), slice(35, 43)]
    expected = reference.stages(
        dense["psi"], dense["H"], dense["theta"], dense["w"], y, 0.3, layers
    )
    torch.testing.assert_close(stacked(found), expected, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(found.ratio, found.theta)


@pytest.mark.spec("4.P95")
def test_label_traces_equal_moments_for_tiny_logits():
    model = mlp([3, 6, 6, 2], last_scale=1e-6)
    x, y = batch(6, 3, 2)
    # Steps so large that the corrections matter: the Hessian is tiny as well.
    stages = feature_evolution.predict_alignments(model, x, y, 1.0)
    change = (stages.moments / stages.now - 1).abs()
    assert change.max() > 1e-3
    torch.testing.assert_close(stages.trace_y, stages.moments, rtol=1e-5, atol=0)


def test_traces_by_random_vectors(generator):
    model = mlp([3, 6, 5, 2])
    x, y = batch(6, 3, 2)
    exact = feature_evolution.predict_alignments(model, x, y, 0.5)
    sketch = feature_evolution.predict_alignments(
        model, x, y, 0.5, sketch_vectors=2000, generator=generator
    )
    torch.testing.assert_close(sketch.trace_y, exact.trace_y, rtol=0.05, atol=0)
    torch.testing.assert_close(sketch.moments, exact.moments, rtol=0.05, atol=0)
    torch.testing.assert_close(sketch.ratio, exact.ratio)
    assert not torch.equal(sketch.moments, exact.moments)


@pytest.mark.spec("4.P96")
def test_sign_of_the_predicted_change():
    # Heuristic: with small logits most layers move the way that the stages predict.
    model = mlp([6, 24, 24, 24, 3], seed=3, last_scale=0.05)
    x, y = batch(20, 6, 3)
    eta = 0.05
    stages = feature_evolution.predict_alignments(model, x, y, eta, sketch_vectors=4)
    after = stepped(model, x, loss_gradient(model, x, y), eta)
    later = feature_evolution.predict_alignments(after, x, y, eta, sketch_vectors=4)
    measured = later.now - stages.now
    assert (torch.sign(stages.gofe - stages.now) == torch.sign(measured)).sum() >= 3
    assert (torch.sign(stages.ratio - stages.now) == torch.sign(measured)).sum() >= 3


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: feature_evolution.gofe_step(
            torch.ones(3, 1, 2), torch.zeros(3, 1), torch.eye(2), 0.1
        ),
        lambda: feature_evolution.gofe_velocity(torch.eye(2), torch.zeros(3, 1)),
        lambda: feature_evolution.ofe_features(torch.ones(3, 1, 2), torch.ones(3, 1), -0.1),
        lambda: feature_evolution.parameter_step(
            torch.ones(3, 1, 2), torch.ones(3, 1), 0.1, batch=torch.zeros(3, dtype=torch.bool)
        ),
        lambda: feature_evolution.predict_alignments(
            mlp([2, 3, 2]),
            torch.eye(2, dtype=F64),
            torch.eye(2),
            0.1,
            loss_gradient=torch.zeros(2, 2),
        ),
        lambda: feature_evolution.predict_alignments(nn.ReLU(), torch.eye(2), torch.eye(2), 0.1),
    ],
    ids=["gofe", "velocity", "negative step", "empty batch", "converged", "no parameters"],
)
def test_values_outside_the_domain_raise(call):
    with pytest.raises(DomainError):
        call()


def test_two_different_networks_are_refused():
    with pytest.raises(ShapeError, match="two copies of one network"):
        feature_updates.feature_change(
            mlp([2, 3, 1]), mlp([2, 4, 1]), torch.eye(2), torch.ones(2, 1)
        )


def test_outputs_that_are_not_rows_are_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Flatten(0))
    with pytest.raises(ShapeError, match="one row of logits"):
        feature_evolution.predict_alignments(model, torch.eye(2), torch.eye(2), 0.1)
