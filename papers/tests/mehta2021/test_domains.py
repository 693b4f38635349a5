"""Steps on domains of texts: what is predicted, and what happens."""

import numpy as np
import pytest
import torch

from theodolite.errors import DataError, UnknownNameError
from theodolite_papers.lab.data import DOMAINS, domain_text, token_windows
from theodolite_papers.lab.models import language_model
from theodolite_papers.mehta2021.domains import (
    STEPS,
    alignment_scores,
    block_grams,
    effect_of,
    gradient_scores,
    gradients_of,
    ranks,
    signs,
)

pytest.importorskip("transformers")
NAMES = ("prose", "code", "tables")


@pytest.fixture(scope="module")
def reader():
    return language_model("letters", torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def parts(reader):
    generator = torch.Generator().manual_seed(1)
    return [token_windows(reader.tokens(domain_text(name)), 4, 16, generator) for name in NAMES]


@pytest.fixture(scope="module")
def gradients(reader, parts):
    parameters = list(reader.model.parameters())
    return [torch.autograd.grad(reader.loss(part), parameters) for part in parts]


@pytest.mark.parametrize("name", DOMAINS)
def test_domains_have_texts(name):
    text = domain_text(name)
    assert len(text) > 10_000
    assert sum(map(str.isprintable, text)) > 0.9 * len(text)


def test_texts_that_are_unknown_or_short():
    with pytest.raises(UnknownNameError, match="domain of texts"):
        domain_text("poems")
    with pytest.raises(DataError, match="at least 12"):
        token_windows(torch.arange(11), 3, 4, torch.Generator())


def test_scores_are_those_of_plain_gradients(reader, parts, gradients):
    labels = torch.arange(3).repeat_interleave(4)
    found = alignment_scores(block_grams(reader, torch.cat(parts)), labels)
    rows = torch.stack([torch.cat([g.flatten() for g in parts_]) for parts_ in gradients]).double()
    np.testing.assert_allclose(found["product"], rows @ rows.T, rtol=1e-4, atol=1e-4)
    cosine = torch.nn.functional.normalize(rows)
    np.testing.assert_allclose(found["cosine"], cosine @ cosine.T, rtol=1e-4, atol=1e-4)
    assert len(found["by_block"]) == 5  # the embedding, three blocks, the last norm
    single = [torch.autograd.grad(reader.loss(row[None]), list(reader.model.parameters()))
              for part in parts for row in part]  # fmt: skip
    norms = torch.tensor([sum(g.square().sum() for g in one).sqrt() for one in single])
    between = rows[0] @ rows[1] / (norms[:4].mean() * norms[4:8].mean())
    assert found["alignment"][0, 1] == pytest.approx(float(between), rel=1e-3)


def test_small_steps_do_what_theory_says(reader, parts, gradients):
    """Losses are rounded to 1e-7 of their size: steps are small, yet not that small."""
    before = [p.detach().clone() for p in reader.model.parameters()]
    steps = {"sgd": ("sgd", 1e-4), "adam": ("adam", 1e-5)}
    held = gradients_of(reader, parts)
    found_effects = [effect_of(reader, part, parts, held, steps) for part in parts]
    effect = np.stack([one.change for one in found_effects], 1)
    expected = np.stack([one.expected["sgd"] for one in found_effects])
    rows = torch.stack([torch.cat([g.flatten() for g in parts_]) for parts_ in gradients]).double()
    found = gradient_scores(gradients, 64, torch.Generator().manual_seed(0))
    largest = float((rows @ rows.T).max())
    np.testing.assert_allclose(effect[0] / 1e-4, rows @ rows.T, atol=0.03 * largest)
    np.testing.assert_allclose(expected, rows @ rows.T, atol=0.01 * largest)  # eight bits
    np.testing.assert_allclose(found["signed"], rows.sign() @ rows.T, rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(effect[1] / 1e-5, found["signed"], atol=0.05 * found["signed"].max())
    for own, start in zip(reader.model.parameters(), before, strict=True):
        assert torch.equal(own, start)


def test_projections_keep_angles(gradients):
    rows = torch.stack([torch.cat([g.flatten() for g in parts]) for parts in gradients])
    few = [
        gradient_scores(gradients, 256, torch.Generator().manual_seed(seed))["projected"]
        for seed in range(20)
    ]
    units = torch.nn.functional.normalize(rows)
    # 20 projections to 256 numbers: a standard error of 1 / sqrt(20 * 256) = 0.014.
    np.testing.assert_allclose(np.mean(few, 0), units @ units.T, atol=0.05)


def test_the_first_step_is_that_of_the_optimizer():
    weight, gradient = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, -1e-4, 0.0])
    for kind, make in {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}.items():
        parameter = torch.nn.Parameter(weight.clone())
        parameter.grad = gradient.clone()
        make([parameter], lr=0.01).step()
        ours = weight - 0.01 * STEPS[kind](gradient)
        torch.testing.assert_close(ours, parameter.detach())


def test_ranks_and_signs_leave_out_a_domain_with_itself():
    effect = np.array([[9.0, 1.0, -2.0], [3.0, 9.0, 4.0], [-1.0, 2.0, 9.0]])
    assert ranks(effect, effect) == pytest.approx(1)
    assert ranks(-effect, effect) == pytest.approx(-1)
    assert signs(np.ones((3, 3)), effect) == pytest.approx(4 / 6)
