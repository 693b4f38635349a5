"""Scores of others: what their published code gives, and LogME as the evidence it stands for."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch

from benchmarks.transfer.peers import gbc, h_score, leep, logme, n_leep, sfda, transrate
from tests.benchmarks import peers_by_hand
from tests.conformance.inputs import CASES, draw
from tests.tolerances import assert_close


def example(n, d, rng):
    """Three classes of Gaussian features of unequal variances with shifted means."""
    labels = np.arange(n) % 3
    features = rng.standard_normal((n, d)) * np.linspace(0.2, 1, d)
    return features + np.eye(3)[labels] @ rng.standard_normal((3, d)) * 0.4, labels


# Computed once with the authors' algorithms: LogME of thuml/LogME, both H-scores and TransRate of
# the Transfer Learning Library, GBC of google-research.
PUBLISHED = [
    ("h_score", h_score, {}, 1.4534650063156578, 2.0),
    ("regularised", h_score, {"shrinkage": True}, 0.965242559508481, 1.6226063124620964),
    ("transrate", transrate, {}, 1.0659393970428859, 72.46298024158764),
    ("gbc", gbc, {}, -2.6668447234783796, -0.05139422881210456),
    ("diagonal", gbc, {"shape": "diagonal"}, -0.8458705146184338, -0.00014943984544130322),
]


@pytest.mark.parametrize(
    ("score", "options", "narrow", "wide"),
    [row[1:] for row in PUBLISHED],
    ids=[row[0] for row in PUBLISHED],
)
def test_the_published_code_gives_this_number(score, options, narrow, wide):
    rng = np.random.default_rng(0)
    for (n, d), published in (((60, 8), narrow), ((30, 50), wide)):
        assert score(*example(n, d, rng), **options) == pytest.approx(published, rel=1e-9)


def test_logme_of_features_of_full_rank_is_that_of_the_published_code():
    features, labels = example(60, 8, np.random.default_rng(0))
    assert logme(features, labels) == pytest.approx(-0.4788747711663552, rel=1e-9)


def evidence(features, column):
    """Largest log-density per example of a zero-mean Gaussian with covariance I/b + F F^T/a."""
    values, vectors = np.linalg.eigh(features @ features.T)
    values, weights = values.clip(0), (vectors.T @ column) ** 2

    def negative(logarithms):
        variances = np.exp(logarithms[0]) * values + np.exp(logarithms[1])
        return (np.log(2 * np.pi * variances) + weights / variances).sum() / 2 / len(column)

    return -scipy.optimize.minimize(negative, (0.0, 0.0), method="Nelder-Mead").fun


@pytest.mark.parametrize("kind", ["full rank", "copied columns", "dead units", "wide"])
def test_logme_is_the_maximised_evidence(kind):
    features, labels = example(100, 20, np.random.default_rng(1))
    if kind == "copied columns":
        features = np.hstack([features, features])
    elif kind == "dead units":
        features = np.hstack([features, np.zeros((100, 50))])
    elif kind == "wide":
        features, labels = example(30, 50, np.random.default_rng(1))
    expected = np.mean([evidence(features, column) for column in np.eye(3)[labels].T])
    # The fixed point stops at a change of 0.1 % and adds 1e-5 to what it divides by.
    assert logme(features, labels) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("n", [200, 40])
def test_columns_that_add_nothing_leave_logme_alone(n):
    features, labels = example(n, 20, np.random.default_rng(2))
    alone = logme(features, labels)
    assert logme(np.hstack([features, np.zeros((n, 100))]), labels) == pytest.approx(alone)
    copied = np.hstack([features, features]) / 2**0.5  # the same kernel
    assert logme(copied, labels) == pytest.approx(alone)


def test_dead_units_do_not_lift_a_worse_model():
    features, labels = example(400, 20, np.random.default_rng(3))
    noise = 0.5 * np.random.default_rng(4).standard_normal(features.shape)
    worse = np.hstack([features + noise, np.zeros((400, 100))])
    assert logme(worse, labels) < logme(features, labels)


SCORES = [
    ("logme", logme, "targets", {}),
    ("h_score", h_score, "labels", {}),
    ("h_score", h_score, "labels", {"shrinkage": True}),
    ("n_leep", n_leep, "labels", {}),
    ("transrate", transrate, "labels", {}),
    ("gbc", gbc, "labels", {}),
    ("gbc", gbc, "labels", {"shape": "diagonal"}),
    ("sfda", sfda, "labels", {}),
]


@pytest.mark.parametrize("case", [case for case in CASES if case != "tiny"])
@pytest.mark.parametrize(
    ("name", "score", "targets", "options"),
    SCORES,
    ids=[row[0] + "-".join(map(str, row[3].values())) for row in SCORES],
)
def test_agrees_with_the_slow_form(name, score, targets, options, case):
    arguments = draw({"features": "features", targets: "labels"}, case)
    expected = getattr(peers_by_hand, name)(*arguments.values(), **options)
    assert score(*arguments.values(), **options) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_leep_agrees_with_the_slow_form():
    arguments = draw({"probabilities": "probabilities", "labels": "labels"}, "random")
    assert_close(leep(**arguments), peers_by_hand.leep(**arguments))


@pytest.mark.parametrize("score", [logme, h_score, n_leep, transrate, gbc, sfda])
def test_one_class_is_undefined(score, generator):
    x = torch.randn(12, 3, generator=generator)
    assert score(x, torch.zeros(12, dtype=torch.long)).isnan()


@pytest.mark.parametrize("score", [logme, h_score, n_leep, sfda])
def test_constant_features_are_undefined(score):
    assert score(torch.zeros(12, 3), torch.arange(12) % 2).isnan()
