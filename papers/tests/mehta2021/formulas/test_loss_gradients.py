import math

import numpy as np
import pytest
import torch

from tests.reference import random_features as reference
from tests.tolerances import assert_close
from theodolite.errors import DomainError
from theodolite_papers.mehta2021.formulas import loss_gradients

F64 = torch.float64
SCALES = [0.3, 1.0, 4.0]
GRADIENTS = {
    "softmax": loss_gradients.softmax_logit_gradient,
    "hinge": loss_gradients.hinge_logit_gradient,
    "squared": loss_gradients.squared_logit_gradient,
}
LITERAL = {
    "softmax": reference.softmax_loss,
    "hinge": reference.hinge_loss,
    "squared": lambda z, y, s: reference.squared_loss(z, y, s, "half_sum"),
}
losses = pytest.mark.parametrize("loss", GRADIENTS)


@pytest.fixture
def batch(generator):
    logits = torch.randn(12, 4, dtype=F64, generator=generator)
    return logits, torch.arange(12) % 4


def per_class_omega(vectors, labels):
    return [reference.omega(vectors[labels == c].numpy()) for c in labels.unique()]


@pytest.mark.spec("5.P26")
@pytest.mark.parametrize("parameter", SCALES)
@losses
def test_gradients_equal_finite_differences(loss, parameter, batch):
    logits, labels = batch
    found = GRADIENTS[loss](logits, labels, parameter)
    for i, (z, y) in enumerate(zip(logits.numpy(), labels.tolist(), strict=True)):
        expected = reference.finite_difference(
            lambda v, y=y: LITERAL[loss](v, y, parameter), z.copy()
        )
        np.testing.assert_allclose(found[i].numpy(), expected, atol=1e-8)


@pytest.mark.spec("5.P26")
@pytest.mark.parametrize("temperature", SCALES)
def test_softmax_gradient_equals_autograd(temperature, batch):
    logits, labels = batch
    z = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(z / temperature, labels, reduction="sum").backward()
    assert_close(loss_gradients.softmax_logit_gradient(logits, labels, temperature), z.grad)


@pytest.mark.spec("5.P26")
@pytest.mark.parametrize("margin", SCALES)
def test_hinge_gradient_equals_autograd(margin, batch):
    logits, labels = batch
    z = logits.clone().requires_grad_()
    own = z.gather(1, labels[:, None])
    (torch.relu(margin + z - own).sum() - margin * len(z)).backward()
    assert_close(loss_gradients.hinge_logit_gradient(logits, labels, margin), z.grad)


@pytest.mark.spec("5.P26")
@pytest.mark.parametrize("reduction", ["half_sum", "mean"])
@pytest.mark.parametrize("scale", SCALES)
def test_squared_gradient_equals_autograd(scale, reduction, batch):
    logits, labels = batch
    z = logits.clone().requires_grad_()
    squares = (z - scale * torch.eye(4, dtype=F64)[labels]).square()
    (squares.sum() / 2 if reduction == "half_sum" else squares.mean(1).sum()).backward()
    assert_close(loss_gradients.squared_logit_gradient(logits, labels, scale, reduction), z.grad)
    literal = reference.finite_difference(
        lambda v: reference.squared_loss(v, 0, scale, reduction), logits[0].numpy().copy()
    )
    found = loss_gradients.squared_logit_gradient(logits, labels, scale, reduction)
    np.testing.assert_allclose(found[0].numpy(), literal, atol=1e-8)


@pytest.mark.spec("5.P26")
def test_sigmoid_gradient_equals_finite_differences(generator):
    logits = 3 * torch.randn(6, dtype=F64, generator=generator)
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    found = loss_gradients.sigmoid_logit_gradient(logits, labels)
    for z, t, slope in zip(logits.tolist(), labels.tolist(), found.tolist(), strict=True):
        up, down = reference.sigmoid_loss(z + 1e-6, t), reference.sigmoid_loss(z - 1e-6, t)
        assert slope == pytest.approx((up - down) / 2e-6, abs=1e-8)


@pytest.mark.spec("5.P27")
@pytest.mark.parametrize("parameter", SCALES)
@pytest.mark.parametrize("loss", ["softmax", "hinge"])
def test_gradients_sum_to_zero(loss, parameter, batch):
    found = GRADIENTS[loss](*batch, parameter)
    assert_close(found.sum(1), torch.zeros(12))


@pytest.mark.spec("5.P28")
def test_hinge_is_inactive_at_equality():
    logits, labels = torch.tensor([[1.0, 0.0, 0.5, 2.0]], dtype=F64), torch.tensor([0])
    found = loss_gradients.hinge_logit_gradient(logits, labels, 1.0)
    assert found.tolist() == [[-2.0, 0.0, 1.0, 1.0]]
    assert loss_gradients.hinge_logit_gradient(torch.zeros(1, 3), labels, 0.0).tolist() == [
        [0, 0, 0]
    ]


@pytest.mark.spec("5.P29")
@pytest.mark.parametrize("alpha", [0.125, 8.0])
def test_hinge_is_homogeneous(alpha, batch):
    logits, labels = batch
    for z, y in zip(logits.numpy(), labels.tolist(), strict=True):
        scaled = reference.hinge_loss(alpha * z, y, 1.0)
        assert scaled == pytest.approx(alpha * reference.hinge_loss(z, y, 1.0 / alpha), rel=1e-12)
    wide = loss_gradients.hinge_logit_gradient(alpha * logits, labels, 1.0)
    assert_close(wide, loss_gradients.hinge_logit_gradient(logits, labels, 1.0 / alpha))


@pytest.mark.spec("5.P29")
@pytest.mark.parametrize("alpha", [0.125, 8.0])
@pytest.mark.parametrize(("loss", "exponent"), [("softmax", 1), ("hinge", 0), ("squared", -1)])
def test_parameters_undo_the_scale(loss, exponent, alpha, batch):
    logits, labels = batch
    compensated = GRADIENTS[loss](alpha * logits, labels, alpha)
    assert_close(alpha**exponent * compensated, GRADIENTS[loss](logits, labels, 1.0))


@pytest.mark.spec("5.P30")
@losses
def test_small_scales_make_a_class_agree(loss, batch):
    logits, labels = batch
    limit = loss_gradients.small_scale_gradient(loss, labels, 4)
    assert_close(GRADIENTS[loss](1e-10 * logits, labels), limit)
    assert per_class_omega(limit, labels) == pytest.approx([1.0] * 4)
    assert per_class_omega(GRADIENTS[loss](1e-6 * logits, labels), labels) == pytest.approx(
        [1.0] * 4, abs=1e-5
    )


@pytest.mark.spec("5.P31")
@losses
def test_small_scales_over_all_pairs(loss, batch):
    _, labels = batch
    limit = loss_gradients.small_scale_gradient(loss, labels, 4)
    expected = loss_gradients.small_scale_alignment(loss, num_classes=4, per_class=3)
    assert reference.omega(limit.numpy()) == pytest.approx(expected)
    assert expected == pytest.approx({"squared": 2 / 11}.get(loss, -1 / 11))


@pytest.mark.spec("5.P32")
@pytest.mark.parametrize(("loss", "divisor"), [("softmax", 1.0), ("hinge", 1.0), ("squared", 1e6)])
def test_large_scales_reach_their_limit(loss, divisor, batch):
    logits, labels = batch
    found = GRADIENTS[loss](1e6 * logits, labels) / divisor
    limit = loss_gradients.large_scale_gradient(loss, logits, labels)
    np.testing.assert_allclose(found.numpy(), limit.numpy(), atol=2e-6)
    if loss == "softmax":
        right = logits.argmax(1) == labels
        assert (limit[right] == 0).all()
        assert (limit[~right].square().sum(1) == 2).all()


@pytest.mark.spec("5.P32")
def test_tied_largest_logits_share():
    logits = torch.tensor([[2.0, 2.0, 1.0]], dtype=F64)
    found = loss_gradients.large_scale_gradient("softmax", logits, torch.tensor([2]))
    assert found.tolist() == [[0.5, 0.5, -1.0]]


@pytest.mark.spec("5.P33")
@losses
def test_large_scales_break_the_agreement_within_a_class(loss, generator):
    logits = torch.randn(60, 3, dtype=F64, generator=generator)
    labels = torch.arange(60) % 3
    limit = loss_gradients.large_scale_gradient(loss, logits, labels)
    assert max(per_class_omega(limit, labels)) < 1 - 1e-3


def population(gradients):
    """Squared norm of the mean over the squared mean norm: the alignment of infinitely many."""
    return gradients.mean(0).norm().square() / gradients.norm(dim=1).mean().square()


def sampled_population(gradients):
    """Of all rows, and its standard error from twenty parts of them."""
    parts = torch.stack([population(part) for part in gradients.chunk(20)])
    return population(gradients).item(), parts.std().item() / 20**0.5


@pytest.mark.spec("5.P34")
@pytest.mark.parametrize("k", [3, 10, 100])
def test_softmax_with_uniform_predictions(k):
    """Every prediction once for one class: the population of uniform predictions, exactly."""
    limit = loss_gradients.large_scale_gradient(
        "softmax", torch.eye(k, dtype=F64), torch.zeros(k, dtype=torch.int64)
    )
    assert population(limit).item() == pytest.approx(
        loss_gradients.softmax_large_scale_alignment(k)
    )
    assert loss_gradients.softmax_large_scale_alignment(10) == pytest.approx(0.5556, abs=5e-5)
    assert loss_gradients.softmax_large_scale_alignment(100) == pytest.approx(0.505, abs=1e-3)


@pytest.mark.spec("5.P35")
def test_hinge_at_margin_zero():
    assert loss_gradients.hinge_large_scale_alignment(10) == pytest.approx(0.9290, abs=5e-5)
    printed = loss_gradients.hinge_large_scale_alignment(10, "independent")
    assert printed == pytest.approx(0.9105, abs=5e-5)


@pytest.mark.spec("5.P35")
def test_hinge_of_exchangeable_logits(generator):
    logits = torch.randn(200_000, 5, dtype=F64, generator=generator)
    limit = loss_gradients.large_scale_gradient(
        "hinge", logits, torch.zeros(200_000, dtype=torch.int64)
    )
    found, error = sampled_population(limit)
    assert abs(found - loss_gradients.hinge_large_scale_alignment(5)) <= 5 * error
    assert error < 1e-3


@pytest.mark.spec("5.P35")
def test_hinge_of_independent_comparisons(generator):
    active = torch.randint(0, 2, (200_000, 4), generator=generator).double()
    delta = torch.cat([-active.sum(1, keepdim=True), active], dim=1)
    found, error = sampled_population(delta)
    assert abs(found - loss_gradients.hinge_large_scale_alignment(5, "independent")) <= 5 * error
    assert error < 1e-3


def parallel_omega(lengths):
    """Alignment of parallel vectors of given lengths (property 10 of the measure)."""
    n = len(lengths)
    return n / (n - 1) * (1 - (lengths**2).sum() / lengths.sum() ** 2)


@pytest.mark.spec("5.P36")
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("loss", ["softmax", "hinge"])
def test_two_classes_stay_parallel(loss, scale, generator):
    logits = scale * torch.randn(40, 2, dtype=F64, generator=generator)
    labels = torch.zeros(40, dtype=torch.int64)
    found = GRADIENTS[loss](logits, labels)
    expected = parallel_omega(found.norm(dim=1).numpy())
    assert reference.omega(found.numpy()) == pytest.approx(expected)
    assert (found[:, 0] <= 0).all()


@pytest.mark.spec("5.P36")
@pytest.mark.parametrize("label", [0, 1])
def test_binary_sigmoid_gradients_have_one_sign(label, generator):
    logits = 5 * torch.randn(40, dtype=F64, generator=generator)
    found = loss_gradients.sigmoid_logit_gradient(logits, torch.full((40,), label))
    assert (found.sign() == (1 if label == 0 else -1)).all()
    expected = parallel_omega(found.abs().numpy())
    assert reference.omega(found[:, None].numpy()) == pytest.approx(expected)


def test_sigmoid_gradient_keeps_digits_in_the_tails():
    found = loss_gradients.sigmoid_logit_gradient(
        torch.tensor([50.0], dtype=F64), torch.tensor([1])
    )
    assert found.item() == pytest.approx(-math.exp(-50), rel=1e-12)


def test_numpy_in_numpy_out():
    found = loss_gradients.softmax_logit_gradient(np.zeros((2, 3)), np.array([0, 2]))
    assert isinstance(found, np.ndarray)
    assert found.shape == (2, 3)
    limit = loss_gradients.small_scale_gradient("hinge", np.array([1]), 3)
    assert isinstance(limit, np.ndarray)


Z, Y = torch.zeros(2, 3), torch.tensor([0, 2])


@pytest.mark.parametrize(
    "call",
    [
        lambda: loss_gradients.softmax_logit_gradient(Z, Y, 0.0),
        lambda: loss_gradients.hinge_logit_gradient(Z, Y, -1.0),
        lambda: loss_gradients.squared_logit_gradient(Z, Y, 0.0),
        lambda: loss_gradients.squared_logit_gradient(Z, Y, 1.0, "sum"),
        lambda: loss_gradients.softmax_logit_gradient(Z, Y + 1),
        lambda: loss_gradients.softmax_logit_gradient(Z * math.nan, Y),
        lambda: loss_gradients.small_scale_gradient("huber", Y, 3),
        lambda: loss_gradients.large_scale_gradient("huber", Z, Y),
        lambda: loss_gradients.hinge_large_scale_alignment(1),
        lambda: loss_gradients.compensate("softmax", 0.0),
    ],
    ids=[
        "temperature", "margin", "scale", "reduction", "label", "nan", "small", "large",
        "classes", "compensation",
    ],
)  # fmt: skip
def test_malformed_arguments_are_refused(call):
    with pytest.raises(DomainError):
        call()
