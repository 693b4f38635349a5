"""The look at a tangent kernel against its definition, and the claims made of it."""

import numpy as np
import pytest
import torch

from theodolite_papers.canatar2022.fig7_8 import look_at
from theodolite_papers.canatar2022.s1 import STUDY as S1
from theodolite_papers.lab.models import mlp
from theodolite_papers.ledger import Result, Results, find_study

STUDY = find_study("canatar2022.fig7-8")
NAMES = (
    "ntk_target",
    "ntk_target_debiased",
    "ntk_target_null",
    "ntk_network",
    "network_target",
    "readout_target",
    "gradient_target",
    "power",
    "gap",
    "participation",
    "norm_share",
    "trace_share",
)


def centered_cosine(a, b):
    h = np.eye(len(a)) - 1 / len(a)
    a, b = h @ a @ h, h @ b @ h
    return (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())


def traced_terms(model, inputs):
    """Both terms of Eq. (7), traced and divided by the classes, from every gradient."""
    readout, below = [], []
    for x in inputs:
        outputs = model(x[None])[0]
        rows = [torch.autograd.grad(o, model.parameters(), retain_graph=True) for o in outputs]
        readout.append([torch.cat([g.flatten() for g in row[-2:]]) for row in rows])
        below.append([torch.cat([g.flatten() for g in row[:-2]]) for row in rows])
    terms = []
    for part in (readout, below):
        stack = torch.stack([torch.stack(row) for row in part])  # examples, classes, parameters
        terms.append(torch.einsum("icp,jcp->ij", stack, stack).numpy() / stack.shape[1])
    return terms


def test_look_is_the_traced_kernel_of_the_definition():
    generator = torch.Generator().manual_seed(0)
    model = mlp([5, 6, 6, 3], generator=generator).double()
    x = torch.randn(14, 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(14) % 3
    look = look_at(model, x, labels, modes=14, permutations=2, generator=generator)
    first, second = traced_terms(model, x)
    whole = first + second
    target = (labels[:, None] == labels).double().numpy()
    outputs = model(x).detach().numpy()
    values = np.linalg.eigvalsh(whole)[::-1] / 14
    expected = {
        "ntk_target": centered_cosine(whole, target),
        "ntk_network": centered_cosine(whole, outputs @ outputs.T),
        "network_target": centered_cosine(outputs @ outputs.T, target),
        "readout_target": centered_cosine(first, target),
        "gradient_target": centered_cosine(second, target),
        "trace_share": np.trace(first) / np.trace(whole),
        "gap": values[2] / values[3],
    }
    for name, value in expected.items():
        assert look.numbers[name] == pytest.approx(value, rel=1e-8), name
    np.testing.assert_allclose(look.eigenvalues, values[look.modes - 1], rtol=1e-5, atol=1e-9)
    assert look.power[-1] == pytest.approx(1, abs=1e-6)


def made_run(setting, **changes):
    """A run in which every claim holds; ``changes`` replaces numbers."""
    start = dict.fromkeys(NAMES, 0.4) | {"ntk_network": 0.6, "gap": 1.0, "participation": 30.0}
    end = dict.fromkeys(NAMES, 0.97) | {"gap": 5.0, "participation": 12.0}
    start |= {"norm_share": 0.1, "power": 0.5}
    numbers = {"test_accuracy": 0.95 - 0.85 * (setting == "literal"), "train_accuracy": 1.0}
    for name in ("train", "test"):
        numbers |= {f"{key}_{name}_start": value for key, value in start.items()}
        numbers |= {f"{key}_{name}_end": value for key, value in end.items()}
    return Result(numbers | changes, {}, {}, {"setting": setting}, 101, "lite")


def made_runs(**changes):
    return Results(
        tuple(made_run(setting, **changes) for setting in ("ntk", "standard", "literal"))
    )


BROKEN = {
    "fig7-accuracy": {"test_accuracy": 0.89},
    "fig7-rise": {"ntk_target_test_end": 0.59},
    "fig7-fit": {"network_target_train_end": 0.94},
    "fig7-meet": {"ntk_network_train_end": 0.91},
    "fig7-start": {"ntk_network_train_start": 0.3},
    "fig8-power": {"power_train_start": 0.7},
    "fig8-gap": {"gap_train_end": 1.9},
    "fig8-rank": {"participation_train_end": 31.0},
    "fig8-share": {"norm_share_train_end": 0.19},
    "fig8-dominates": {"trace_share_train_end": 0.49},
    "fig7-literal": {"test_accuracy": 0.9},
}


@pytest.mark.parametrize("claim", STUDY.claims, ids=lambda claim: claim.id.rsplit(".", 1)[1])
def test_claim_holds_and_fails(claim):
    assert claim.check(made_runs()).holds is True
    assert claim.check(made_runs(**BROKEN[claim.id.rsplit(".", 1)[1]])).holds is False
    assert claim.check(Results((made_run("literal"),))).holds is None


def drawn_run(setting, value):
    """A run at the published size whose curves all have this value."""
    curves = {f"{key}_{name}": np.full(3, value) for key in NAMES for name in ("train", "test")}
    for name in ("train", "test"):
        curves |= {f"{key}_{name}": np.full((3, 2), value) for key in ("eigenvalues", "power")}
        curves[f"accuracy_{name}"] = np.full(3, value)
    curves |= {"epochs": np.arange(3), "accuracy_epochs": np.arange(3), "modes": np.array([1, 2])}
    return Result({}, curves, {}, {"setting": setting}, 101, "published")


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        (("ntk", "standard", "literal"), "ntk"),
        (("standard", "literal"), "standard"),
        (("literal",), "literal"),
    ],
)
def test_alignments_of_one_setting_are_drawn(settings, shown):
    values = {"ntk": 0.3, "standard": 0.5, "literal": np.nan}
    runs = Results(tuple(drawn_run(setting, values[setting]) for setting in settings))
    panels = [panel for panel in STUDY.draw(runs) if panel.title.startswith("Figure 7, right")]
    for panel in panels:
        for mark in panel.marks:
            np.testing.assert_array_equal(mark.y, values[shown])


@pytest.mark.parametrize("claim", S1.claims, ids=lambda claim: claim.id.rsplit(".", 1)[1])
def test_claims_of_s1_hold_and_fail(claim):
    good = {"theory": 0.48, "measured": 0.485, "shortcut": 0.5}
    numbers = {f"{name}_{k}": value for name, value in good.items() for k in (1, 2)}
    assert claim.check(Results((Result(numbers),))).holds is True
    assert claim.check(Results((Result(numbers | {"measured_2": 0.57}),))).holds is False
