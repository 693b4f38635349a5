"""The design, the data, the networks and their baselines."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from torch import nn

from theodolite_papers.alignment_zoo.baselines import baselines, gradient_noise
from theodolite_papers.alignment_zoo.data import task_of
from theodolite_papers.alignment_zoo.design import (
    FACTORS,
    HALVES,
    HELD_OUT_DATA,
    Network,
    networks,
)
from theodolite_papers.alignment_zoo.models import blocks_of, build, fresh_head
from theodolite_papers.alignment_zoo.training import (
    Checkpoint,
    TrainedNetwork,
    evaluate,
    moments,
    train,
)


def _network(**factors):
    base = Network(
        half="pilot", group=0, member=0, changed="base", data="cancer", family="mlp", depth=2,
        width=12, activation="relu", normalisation="none", optimiser="adam", rate_level=1, batch=32,
        decay_level=0, noise=0.0, examples=120, scale=1.0, seed=3,
    )  # fmt: skip
    return replace(base, **factors)


@pytest.mark.parametrize("half", HALVES)
def test_members_of_a_group_differ_from_their_base_in_the_factor_that_they_name(half):
    found = networks(half)
    by_group = {}
    for network in found:
        by_group.setdefault(network.group, []).append(network)
    assert len({network.name for network in found}) == len(found)
    for members in by_group.values():
        base, *others = members
        assert base.changed == "base"
        assert sorted(one.changed for one in others) == sorted([*FACTORS, "noise"])
        for one in others:
            field = f"{one.changed}_level" if one.changed in ("rate", "decay") else one.changed
            same = replace(one, **{field: getattr(base, field)}, member=0, changed="base")
            assert same == base
            assert getattr(one, field) != getattr(base, field)


def test_halves_share_no_architecture_and_the_pilot_half_lacks_two_data_sets():
    pilot, judged = (networks(half) for half in HALVES)
    shapes = [{(n.family, n.depth, n.width) for n in half} for half in (pilot, judged)]
    assert not shapes[0] & shapes[1]
    assert {n.data for n in judged} - {n.data for n in pilot} == set(HELD_OUT_DATA)
    assert len(pilot) + len(judged) >= 600


def test_any_first_third_of_the_groups_holds_several_kinds_of_data_and_networks():
    first = [network for network in networks("pilot") if network.group < 10]
    assert len({network.data for network in first}) == 6
    assert len({network.family for network in first}) >= 3


def test_label_noise_is_nested_and_spares_the_true_test_labels():
    clean, some, all_ = (task_of(_network(noise=noise)) for noise in (0.0, 0.5, 1.0))
    changed = some.y != clean.y
    assert 0.1 < changed.double().mean() < 0.4  # half of the redrawn ones of two classes
    assert torch.equal(some.y[changed], all_.y[changed])
    assert torch.equal(clean.x, all_.x)
    assert torch.equal(clean.y_test, all_.y_test)
    assert not torch.equal(clean.y_test, all_.y_test_noisy)


def test_training_validation_and_test_examples_are_disjoint():
    task = task_of(_network(examples=320))
    rows = [
        tuple(row) for part in (task.x, task.x_validation, task.x_test) for row in part.tolist()
    ]
    assert len(set(rows)) == len(rows)
    assert len(task.x_validation) == 32


@pytest.mark.parametrize("family", ["mlp", "cnn", "resnet", "transformer"])
@pytest.mark.parametrize("normalisation", ["none", "batch", "layer"])
def test_networks_have_blocks_and_a_head_that_can_be_replaced(family, normalisation):
    if (family, normalisation) == ("transformer", "batch"):
        normalisation = "layer"  # the design has no such network
    network = _network(family=family, normalisation=normalisation, width=8)
    model = build(network, (1, 14, 14), 10, 14)
    layers = blocks_of(model)
    assert len(layers) == 2 + 1 + (family in ("resnet", "transformer"))
    assert all(isinstance(model.get_submodule(layer), nn.Module) for layer in layers)
    fresh_head(model, 4)
    assert model(torch.zeros(3, 1, 14, 14)).shape == (3, 4)


def test_scale_multiplies_the_weights_of_the_same_draw():
    plain, large = (build(_network(scale=scale), (30,), 2, 10) for scale in (1.0, 2.0))
    assert torch.equal(2 * plain.head.weight, large.head.weight)


def _run(losses):
    return TrainedNetwork(
        nn.Identity(), [Checkpoint(s, {"train_loss": loss}, {}) for s, loss in losses.items()]
    )


def test_steps_to_a_loss_lie_on_a_line_between_looks():
    run = _run({0: 2 * log(2), 10: log(2), 20: 0.5 * log(2), 40: 0.1 * log(2)})
    assert run.steps_to(0.75, 2) == pytest.approx(15)
    assert run.steps_to(0.3, 2) == pytest.approx(30)
    assert np.isnan(run.steps_to(0.05, 2))


def test_moments_are_looks_by_name_and_level_is_missing_where_it_was_not_reached():
    losses = dict(zip((0, 10, 32, 100, 300, 1000), (3.0, 2.0, 1.0, 0.5, 0.3, 0.01), strict=True))
    found = moments(_run(losses), 2)
    assert [point.step for point in found.values()] == [0, 10, 100, 300, 1000, 1000]
    assert "level" not in moments(_run(dict.fromkeys(losses, 1.0)), 2)


def test_training_stops_at_the_target_and_keeps_the_weights_of_every_checkpoint():
    network = _network(rate_level=2)
    task = task_of(network)
    run = train(network, build(network, (30,), 2, 10), task, limit=400)
    assert run.reached
    assert run.checkpoints[-1].values["train_loss"] <= 0.02
    assert run.checkpoints[-1].values["test_accuracy"] > 0.85
    run.model.load_state_dict(run.checkpoints[2].weights)
    assert evaluate(run.model, task.x, task.y)[0] == pytest.approx(
        run.checkpoints[2].values["train_loss"], rel=1e-5
    )


def test_a_run_that_diverges_ends_at_its_last_finite_checkpoint():
    network = _network(optimiser="sgd", rate_level=2, depth=5, scale=30.0)
    run = train(network, build(network, (30,), 2, 10), task_of(network), limit=100)
    assert not run.finite
    assert all(
        abs(value) < float("inf") for look in run.checkpoints for value in look.values.values()
    )


class _Quadratic(nn.Module):
    """Two outputs whose difference is a linear function: the Hessian is known."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 3))

    def forward(self, x):
        margin = x @ self.weight.mT
        return torch.cat([margin, torch.zeros_like(margin)], 1)


def test_sharpness_is_the_largest_eigenvalue_of_the_hessian():
    from theodolite_papers.alignment_zoo import baselines as module

    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 1, 1])
    y = torch.arange(64) % 2
    # At zero weights both chances are a half: the Hessian is x^T x / (4 n).
    wanted = torch.linalg.eigvalsh(x.T @ x / (4 * 64))[-1].item()
    found = module._top_eigenvalue(_Quadratic(), x, y, torch.Generator().manual_seed(1))
    assert found == pytest.approx(wanted, rel=1e-3)


def test_the_path_norm_of_two_linear_layers_is_the_sum_over_paths():
    network = _network(depth=1, width=4)
    task = task_of(network)
    model = build(network, (30,), 2, 10)
    with torch.no_grad():
        model.blocks[0][1].bias.zero_()
        model.head.bias.zero_()
    first, last = (model.blocks[0][1].weight.double(), model.head.weight.double())
    wanted = 0.5 * torch.einsum("hi,oh->", first**2, last**2).log().item()
    found = baselines(network, model.eval(), task, model.state_dict())
    assert found["path_norm"] == pytest.approx(wanted, rel=1e-5)
    assert found["distance_from_init"] == 0
    assert found["weight_norm"] == pytest.approx(
        (first.square().sum() + last.square().sum()).sqrt().item(), rel=1e-5
    )


def test_the_path_norm_with_batch_normalisation_is_that_of_the_folded_network():
    network = _network(depth=1, width=4, normalisation="batch")
    task = task_of(network)
    model = build(network, (30,), 2, 10)
    model(task.x)  # running statistics
    model.eval()
    linear, norm = model.blocks[0][1], model.blocks[0][2]
    plain = build(_network(depth=1, width=4), (30,), 2, 10)
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()
    with torch.no_grad():
        plain.blocks[0][1].weight.copy_(linear.weight * factor[:, None])
        plain.blocks[0][1].bias.copy_(linear.bias * factor)
        plain.head.load_state_dict(model.head.state_dict())
    both = [
        baselines(one, net.eval(), task, net.state_dict())["path_norm"]
        for one, net in ((network, model), (_network(depth=1, width=4), plain))
    ]
    assert both[0] == pytest.approx(both[1], rel=1e-5)


def test_batches_of_one_example_have_no_disparity():
    network = _network()
    task = task_of(network)
    one = replace(task, x=task.x[:1], y=task.y[:1])
    found = gradient_noise(build(network, (30,), 2, 10), one, torch.Generator().manual_seed(0))
    assert found["gradient_disparity"] == pytest.approx(0, abs=1e-6)
    assert found["gradient_noise_scale"] == pytest.approx(0, abs=1e-6)
