"""What fails in one family is its reason; the others are measured."""

import pytest
import torch
from torch import nn
from torch.utils import flop_counter

import theodolite as th
from tests.survey.subjects import blobs, mlp
from theodolite.errors import DomainError
from theodolite.surveys import context
from theodolite.surveys.layers import count_operations

FAILING = {
    "features": ("features", ("representation", "kernel")),
    "covariances": ("input_samples", ("covariance",)),
    "kernels": ("shared_tangent_kernels", ("tangent", "gradient")),
    "gradients": ("gradient_alignment", ("gradient",)),
}


def broken(*_args, **_options):
    raise IndexError("list index out of range")


@pytest.mark.parametrize(("function", "families"), FAILING.values(), ids=FAILING.keys())
def test_a_survey_goes_on(monkeypatch, function, families):
    monkeypatch.setattr(context, function, broken)
    few = {"pairs": 10}  # else sums of gradients follow from the pairs of all examples
    found = th.survey(mlp(), blobs(), permutations=2, sizes=few)
    why = "IndexError: list index out of range"
    assert found.record.contents["skipped"] == dict.fromkeys(families, why)
    measured = set(found.to_frame().family)
    assert measured == set(th.survey(mlp(), blobs()).to_frame().family) - {*families} | {"gradient"}
    (line,) = [line for line in found.summary().splitlines() if why in line]
    names = line.removesuffix(f": not measured, {why}").replace(" and ", ", ").split(", ")
    # The contrast of features is in the table, so only that of gradients is missing.
    missing = ["gradient contrast" if name == "gradient" else name for name in families]
    assert sorted(names[: len(families)]) == sorted(missing)


@pytest.mark.parametrize(("function", "families"), FAILING.values(), ids=FAILING.keys())
def test_a_monitor_goes_on(monkeypatch, function, families):
    options = {"tangent": "exact", "details": True}
    monitor = th.Monitor(mlp(), blobs(), every=1, cadence=1, options=options)
    monitor.step(0)
    monkeypatch.setattr(context, function, broken)
    skipped = monitor.step(1).record.contents["skipped"]
    expected = set(families) - ({"gradient"} if function == "shared_tangent_kernels" else set())
    assert set(skipped) == expected  # a monitor compares no pairs of gradients
    assert monitor.history.steps == [0, 1]


def test_features_that_fail_are_told_beside_the_loss(monkeypatch):
    monkeypatch.setattr(context, "features", broken)
    found = th.survey(mlp(), blobs(), families="gradient", permutations=0)
    texts = {w["measure"]: w["text"] for w in found.record.contents["warnings"]}
    assert texts["feature_omega_contrast"] == "not measured: IndexError: list index out of range"
    assert {"loss", "omega_contrast"} <= set(found.to_frame().measure)


def test_operations_that_cannot_be_counted_are_left_out(monkeypatch):
    def uncountable(*_args, **_options):
        raise AssertionError("sdpa_flop_count")

    registry = dict.fromkeys(flop_counter.flop_registry, uncountable)
    monkeypatch.setattr("theodolite.surveys.layers.flop_registry", registry)
    with count_operations(5) as found:
        mlp()(torch.randn(5, 6))
    assert (found.products, found.total > 0) == (0, True)
    assert th.survey(mlp(), blobs(), families="kernel").record.contents["skipped"] == {}


class Attention(nn.Module):
    """Fewer heads for keys and values than for queries."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.head = nn.Linear(6, 8), nn.Linear(6, 4), nn.Linear(8, 3)

    def forward(self, x):
        q = self.query(x).reshape(len(x), 4, 1, 2)
        k = self.key(x).reshape(len(x), 2, 1, 2)
        mixed = nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        return self.head(mixed.flatten(1))


def test_grouped_queries_are_surveyed():
    found = th.survey(Attention(), blobs(), permutations=0)
    assert found.record.contents["skipped"] == {}


def test_layers_inside_a_transform_leave_their_features_out():
    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x):
            return torch.func.vmap(lambda row: self.head(torch.tanh(self.inner(row))))(x)

    found = th.survey(Mapped(), (torch.randn(12, 4), torch.arange(12) % 3), families=["tangent"])
    rows = found.to_frame()
    assert rows[rows.measure == "tangent_alignment"].value.notna().all()
    assert len(rows[rows.measure == "tangent_alignment"]) > 0


def test_an_example_that_the_model_does_not_take_is_the_reason():
    ids = torch.zeros(20, 4, dtype=torch.long)
    ids[9] = 11  # the table has 11 rows
    model = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(DomainError, match="kernel: IndexError: index out of range"):
        th.survey(model, (ids, torch.arange(20) % 3), families="kernel")


def test_examples_without_a_number_are_planned_for():
    nothing = torch.zeros(2, 0), torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    found = th.survey(nn.Identity(), nothing, layers="", permutations=2)
    assert found.record.contents["data"]["probe"] == 2


def test_gradients_that_vanish_leave_the_tangent_family_out():
    torch.manual_seed(0)
    layers = [part for _ in range(120) for part in (nn.Linear(8, 8), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(8, 3))
    with torch.no_grad():
        for part in layers[::2]:
            part.weight.mul_(0.5)
    found = th.survey(model, (torch.randn(20, 8), torch.arange(20) % 3), progress=False)
    assert "within the range of float32" in found.record.contents["skipped"]["tangent"]
    assert found.answers
