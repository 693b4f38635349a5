"""Groups of examples with random vectors of their own: the same numbers, smaller errors."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.tolerances import assert_close
from theodolite.engine import sketch, tangent_alignments, tangent_kernels
from theodolite.engine.batches import Batch
from theodolite.engine.inputs import BatchList
from theodolite.engine.kernel_engine import prepare
from theodolite.engine.plan import EngineOptions
from theodolite.engine.sketch import (
    centered_labels,
    jackknife_covariance,
    pair_norms,
    random_signs,
    sketch_grams,
    sketch_plan,
)
from theodolite.errors import MemoryLimitError
from theodolite.linalg import center_all


def model_and_data(examples=24, outputs=5):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).double()
    return model, torch.randn(examples, 4).double(), torch.arange(examples) % outputs


def planned(examples, groups, wanted=9):
    return sketch_plan(wanted, examples, 1, 10**6, groups=groups)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("batch_size", [5, 24])
def test_products_are_those_of_the_centred_kernel(groups, batch_size):
    model, x, y = model_and_data()
    data = BatchList([Batch((x[:17],), targets=y[:17]), Batch((x[17:],), targets=y[17:])])
    plan = planned(24, groups)
    assert [rows.stop - rows.start for rows in plan.groups] == [24 // groups] * groups
    labels = centered_labels(data, 5)
    draws = torch.Generator().manual_seed(3)
    engine = prepare(model, data, EngineOptions())
    found = sketch_grams(
        engine.recorder, data, labels, plan, batch_size=batch_size, generator=draws
    )
    signs = random_signs(plan, labels, torch.Generator().manual_seed(3))
    vectors = [labels]
    for rows in plan.groups:
        for sign in signs:
            wide = torch.zeros_like(labels)
            wide[rows] = sign[rows]
            vectors.append(center_all(wide))
    Z = torch.stack(vectors).flatten(1)
    for layer, kernel in tangent_kernels(model, x).items():
        K = kernel.reshape(120, 120)
        assert_close(found[layer], Z @ K @ Z.T, scale=float(K.norm() * 120))


@pytest.mark.parametrize("length", [1, 4, 12, 23])
def test_long_gradients_are_multiplied_in_parts(length, monkeypatch):
    monkeypatch.setattr(sketch, "_COLUMNS", 4)
    monkeypatch.setattr(sketch, "_COPIED", {"cpu": 3 * 4 * 2})
    rows = torch.randn(3, length, generator=torch.Generator().manual_seed(0))
    assert_close(sketch._gram(rows), rows.double() @ rows.double().T)


def test_norms_without_a_vector_are_those_of_the_others():
    torch.manual_seed(0)
    m, s = 3, 4
    J = torch.randn(2, m * s, 7).double()
    grams = J @ J.mT
    norms, without = pair_norms(grams, m)

    def by_hand(gram, kept):
        total = 0.0
        for g in kept:
            for h in kept:
                pairs = [gram[a, b].square() for a in kept[g] for b in kept[h] if a != b]
                total += sum(pairs) / len(pairs)
        return total.sqrt()

    every = {g: list(range(g * s, g * s + s)) for g in range(m)}
    for layer in range(2):
        assert_close(norms[layer], by_hand(grams[layer], every))
        for g in range(m):
            for a in range(s):
                kept = {**every, g: [v for v in every[g] if v != g * s + a]}
                assert_close(without[layer, g, a], by_hand(grams[layer], kept))


def test_one_group_has_the_jackknife_of_all_vectors():
    torch.manual_seed(0)
    values = torch.rand(3, 6).double()
    centered = values - values.mean(1, keepdim=True)
    assert_close(jackknife_covariance(values[:, None]), 5 / 6 * centered @ centered.T)


@pytest.mark.parametrize("kind", ["dense", "block diagonal"])
def test_groups_are_no_less_accurate_with_half_of_the_passes(kind, monkeypatch):
    """Ten draws each: root mean squares of ten differ by less than a factor of 1.6 by chance."""
    model, x, y = model_and_data(120, 10)
    if kind == "block diagonal":  # inputs at right angles: examples share nothing
        model, x = nn.Linear(120, 10, bias=False).double(), torch.eye(120).double()
    exact = tangent_alignments(model, x, y).curve
    errors, reported = {}, {}
    for groups in (1, 9):
        fixed = partial(planned, 120, groups, 32)
        monkeypatch.setattr(sketch, "sketch_plan", lambda *_, fixed=fixed, **__: fixed())
        draws = [
            tangent_alignments(
                model,
                x,
                y,
                method="sketch",
                sketch_vectors=32,
                generator=torch.Generator().manual_seed(seed),
            )
            for seed in range(10)
        ]
        gaps = torch.stack([(draw.curve - exact) / exact for draw in draws])
        errors[groups] = float(gaps.square().mean().sqrt())
        reported[groups] = float(
            torch.stack([draw.covariance.diagonal().sqrt() / exact for draw in draws]).mean()
        )
        assert draws[0].sketch["groups"] == groups
        assert gaps.mean().abs() < errors[groups]  # the mean of the draws is nearer
    assert draws[0].sketch["vectors"] == 11
    assert errors[9] < 1.6 * errors[1]
    assert errors[9] / 1.6 < reported[9] < 3 * errors[9]
    if kind == "dense":
        assert reported[9] < 0.7 * reported[1]


def test_groups_are_as_many_as_examples_and_memory_allow():
    assert (planned(16, 16).passes, planned(16, 16).vectors) == (10, 9)  # labels and nine vectors
    deep = {"parameters": 10, "products": 10**6, "item": 1}
    many = sketch_plan(32, 200, **deep, limit=10**6)
    assert (len(many.groups), many.vectors, many.passes, many.gradients) == (16, 8, 10, 130)
    assert {rows.stop - rows.start for rows in many.groups} == {12, 13}
    tight = sketch_plan(32, 200, **deep, limit=2 * 10 * 66)  # half of it: two and four times 16
    assert (len(tight.groups), tight.vectors) == (4, 16)
    least = sketch_plan(32, 200, **deep, limit=330)
    assert (len(least.groups), least.vectors) == (1, 32)
    with pytest.raises(MemoryLimitError, match="32 sketch_vectors"):
        sketch_plan(32, 200, **deep, limit=329)


def test_groups_are_few_where_products_of_gradients_take_longer_than_passes():
    """A perceptron multiplies each weight once: 34 passes of 200 examples, or 2 * 33^2 products."""
    shallow, deep = (sketch_plan(32, 200, 1000, 1000 * reuse) for reuse in (1, 200))
    assert (len(shallow.groups), len(deep.groups)) == (2, 16)
    model, x, y = model_and_data(60)
    found = tangent_alignments(model, x, y, method="sketch")
    assert found.sketch == {"groups": 1, "vectors": 32, "precision": "float32"}
