"""Scores of others: the numbers that their published code gives, and what they cannot see."""

import numpy as np
import pytest
import torch

from theodolite.measures.representation import gbc, h_score, logme, n_leep, sfda, transrate


def example(n, d, rng):
    """Three classes of Gaussian features of unequal variances with shifted means."""
    labels = np.arange(n) % 3
    features = rng.standard_normal((n, d)) * np.linspace(0.2, 1, d)
    return features + np.eye(3)[labels] @ rng.standard_normal((3, d)) * 0.4, labels


# Computed once with the authors' algorithms: LogME of thuml/LogME, both H-scores and TransRate of
# the Transfer Learning Library, GBC of google-research.
PUBLISHED = [
    ("logme", logme, {}, -0.4788747711663552, 1.189872966286378),
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


def test_the_terms_that_published_logme_leaves_out_favour_wide_features():
    features, labels = example(30, 50, np.random.default_rng(1))
    padded = np.hstack([features, np.zeros((30, 50))])  # nothing is known that was not before
    assert logme(padded, labels, complete=True) == pytest.approx(
        logme(features, labels, complete=True)
    )
    assert abs(logme(padded, labels) - logme(features, labels)) > 0.5


@pytest.mark.parametrize("score", [logme, h_score, n_leep, transrate, gbc, sfda])
def test_one_class_is_undefined(score, generator):
    x = torch.randn(12, 3, generator=generator)
    assert score(x, torch.zeros(12, dtype=torch.long)).isnan()


@pytest.mark.parametrize("score", [logme, h_score, n_leep, sfda])
def test_constant_features_are_undefined_or_worthless(score):
    labels = torch.arange(12) % 2
    value = score(torch.zeros(12, 3), labels)
    assert value.isnan()
