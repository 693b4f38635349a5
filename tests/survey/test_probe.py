"""The probe: balanced, hashed, the same for the same seed, and drawn in one pass."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import theodolite as th
from tests.survey.subjects import blobs, mlp
from theodolite.surveys import SurveyOptions, draw_probe

OPTIONS = SurveyOptions("kernel", sizes={"kernel": 20})


def imbalanced():
    x, _ = blobs(100)
    labels = torch.cat([torch.zeros(80), torch.ones(15), torch.full((5,), 2)]).long()
    return x, labels


@pytest.mark.parametrize("batch", [None, 7, 64])
def test_classes_take_turns_however_the_data_comes(batch):
    x, y = imbalanced()
    data = (x, y) if batch is None else DataLoader(TensorDataset(x, y), batch_size=batch)
    probe = draw_probe(data, OPTIONS)
    assert probe.given == 100
    assert probe.targets.labels.bincount().tolist() == [8, 7, 5]
    assert probe.take(6)[1].labels.bincount().tolist() == [2, 2, 2]
    assert len({tuple(row.tolist()) for row in probe.batch.args[0]}) == 20


def test_batches_of_a_loader_do_not_change_what_is_drawn():
    x, y = imbalanced()
    digests = {
        draw_probe(DataLoader(TensorDataset(x, y), batch_size=size), OPTIONS).digest
        for size in (5, 41)
    }
    assert digests == {draw_probe((x, y), OPTIONS).digest}


def test_hash_names_the_examples():
    x, y = imbalanced()
    first = draw_probe((x, y), OPTIONS).digest
    assert first == draw_probe((x, y), OPTIONS).digest
    assert first != draw_probe((x, y), SurveyOptions("kernel", sizes={"kernel": 20}, seed=1)).digest
    assert first != draw_probe((x + 1, y), OPTIONS).digest


def test_an_iterator_serves_all_families():
    x, y = blobs(40)
    batches = iter([(x[:20], y[:20]), (x[20:], y[20:])])
    found = th.survey(mlp(), batches, families=["kernel", "covariance"])
    assert found.record.contents["data"]["n"] == 40
    assert found.record.contents["routes"]["covariance"]["n"] == 40


def test_every_family_takes_the_first_examples():
    x, y = blobs(90)
    found = th.survey(mlp(), (x, y), sizes={"representation": 30, "kernel": 60, "tangent": 9})
    sizes = {family: route["n"] for family, route in found.record.contents["routes"].items()}
    assert sizes == {
        "representation": 30,
        "covariance": 90,
        "kernel": 60,
        "tangent": 9,
        "gradient": 90,
    }
    assert found.record.contents["data"]["probe"] == 90
