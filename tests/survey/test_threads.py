"""Surveys at once in threads of one process give what each gives alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import theodolite as th
from tests.survey.subjects import blobs


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def survey(model, seed):
    found = th.survey(
        model, blobs(), families=["kernel", "gradient"], permutations=2, seed=seed
    ).record
    return found.contents["rows"], found.contents["warnings"], found.contents["skipped"]


@pytest.mark.parametrize("shared", [False, True], ids=["own models", "one model"])
def test_surveys_at_once_are_those_of_one_after_the_other(shared):
    models = [network(0 if shared else seed) for seed in range(2)]
    if shared:
        models = models[:1] * 2
    alone = [survey(model, seed) for seed, model in enumerate(models)]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with ThreadPoolExecutor(2) as pool:
        at_once = list(pool.map(survey, models, range(2)))
    assert repr(at_once) == repr(alone)  # nan is nan
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for model in models for module in model.modules())
