"""The headline of every family is the public measure's number, on the features of the papers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import theodolite as th
from tests.survey.subjects import blobs, mlp, value
from theodolite import measures
from theodolite.engine import sketch
from theodolite.records import FAMILIES

# Family -> function of theodolite.measures through which its headline goes, and the part of its
# result that is the headline.
FUNCTIONS = {
    "representation": ("area_from_projections", None),
    "covariance": ("compare_misalignment_along", "relative"),
    "kernel": ("centered_cka", None),
    "tangent": ("alignment_decomposition", "alignment"),
    "gradient": ("contrast_from_sums", None),
}


def require_headline_through(monkeypatch, module, name, part, family, **options):
    """A half added to what the function returns is added to the headline."""
    real, calls = getattr(module, name), []

    def patched(*args, **kwargs):
        calls.append(name)
        result = real(*args, **kwargs)
        return result + 0.5 if part is None else replace(result, **{part: vars(result)[part] + 0.5})

    def headline():
        found = th.survey(
            mlp((6, 12, 3)), blobs(), families=family, permutations=0, options=options
        )
        return value(found, FAMILIES[family].headline, "0")

    before = headline()
    monkeypatch.setattr(module, name, patched)
    assert headline() == pytest.approx(before + 0.5)
    assert calls


@pytest.mark.parametrize("family", FAMILIES)
def test_the_headline_follows_the_measure(family, monkeypatch):
    name, part = FUNCTIONS[family]
    require_headline_through(monkeypatch, getattr(measures, family), name, part, family)


def test_the_headline_of_a_sketch_follows_the_same_formula(monkeypatch):
    assert measures.tangent.alignment_from_norms is sketch.alignment_from_norms
    require_headline_through(
        monkeypatch, sketch, "alignment_from_norms", None, "tangent", tangent="sketch"
    )


class Written(nn.Module):
    """The same network as functions: nothing but the linear layers are modules."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        for layer in self.inner[:-1:2]:
            x = torch.relu(layer(x))
        return self.inner[-1](x)


@pytest.mark.parametrize("functional", [False, True], ids=["modules", "functions"])
def test_features_are_those_of_the_papers(functional):
    """Papers 1, 3 and 5 define a layer's representation after its activation."""
    x, y = blobs(48)
    plain = mlp((6, 20, 9, 3)).eval()
    model = Written(plain) if functional else plain
    found = th.survey(model, (x, y), families=["representation", "kernel", "gradient"])
    names = ["inner.0", "inner.2", "inner.4"] if functional else ["0", "2", "4"]
    with torch.no_grad():
        first = torch.relu(plain[0](x))
        second = torch.relu(plain[2](first))
        logits = plain[4](second)
    for name, features in zip(names, (first, second, logits), strict=True):
        _require_definitions(found, name, features.double().numpy(), y.numpy())


def _require_definitions(found, layer, F, y):
    """Every number written out from its paper."""
    n, Y = len(F), np.eye(3)[y]
    # [imani2022]: rows of unit length, sum of sigma (u . y)^2, over sqrt(n) |y|^2
    U, sigma, _ = np.linalg.svd(F / np.linalg.norm(F, axis=1, keepdims=True), full_matrices=False)
    area = (sigma[:, None] * (U.T @ Y) ** 2).sum() / (np.sqrt(n) * (Y**2).sum())
    assert value(found, "alignment_area", layer) == pytest.approx(area, rel=1e-4)
    # [canatar2022]: cumulative power in the eigenbasis of the kernel, not centred
    _, phi = np.linalg.eigh(F @ F.T)
    power = (phi.T @ Y)[::-1] ** 2
    shares = np.cumsum(power.sum(1)) / (Y**2).sum()
    curve = found.curve("cumulative_power", layer)["y"]
    count = np.linalg.matrix_rank(F, rtol=1e-5)  # beyond, modes have no direction of their own
    np.testing.assert_allclose(curve[1 : count + 1], shares[:count], atol=2e-4)
    # CKA with the labels, debiased as in [song2012], Eq. (5)
    K, L = (matrix - np.diag(np.diag(matrix)) for matrix in (F @ F.T, Y @ Y.T))

    def hsic(a, b):
        ones = np.ones(n)
        cross = ones @ a @ ones * (ones @ b @ ones) / ((n - 1) * (n - 2))
        return np.trace(a @ b) + cross - 2 / (n - 2) * (ones @ a @ b @ ones)

    cka = hsic(K, L) / np.sqrt(hsic(K, K) * hsic(L, L))
    assert value(found, "cka_target", layer) == pytest.approx(cka, rel=1e-4, abs=1e-6)
    # [mehta2021], Eqs. (4) to (6)
    omegas = [_omega(F[y == label]) for label in range(3)]
    assert value(found, "feature_omega_in_class", layer) == pytest.approx(np.mean(omegas), rel=1e-5)
    contrast = np.mean(omegas) - _omega(F)
    assert value(found, "feature_omega_contrast", layer) == pytest.approx(contrast, rel=1e-4)


def _omega(V):
    n, norms = len(V), np.linalg.norm(V, axis=1)
    products = V @ V.T
    mean = (products.sum() - np.trace(products)) / (n * (n - 1))
    return mean / norms.mean() ** 2


def test_the_same_number_from_arrays():
    x, y = blobs(48)
    model = mlp((6, 20, 9, 3)).eval()
    found = th.survey(model, (x, y))
    features = th.features(model, x)
    for layer in found.layers:
        rows = features[layer]
        area = measures.representation.alignment_area(rows, y)
        assert value(found, "alignment_area", layer) == pytest.approx(area.item(), rel=1e-4)
        cka = measures.kernel.target_cka(rows, y)
        assert value(found, "cka_target", layer) == pytest.approx(cka.item(), rel=1e-4, abs=1e-6)
        contrast = measures.gradient.alignment_contrast(rows, y)
        wanted = pytest.approx(contrast.item(), rel=1e-4, abs=1e-6)
        assert value(found, "feature_omega_contrast", layer) == wanted
        raw = th.features(model, x, read="raw")[layer]
        own = th.survey(model, (x, y), families="representation", read="raw")
        area = measures.representation.alignment_area(raw, y)
        assert value(own, "alignment_area", layer) == pytest.approx(area.item(), rel=1e-4)
