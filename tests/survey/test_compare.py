"""Two models on the same data: both tables, their differences, and CKA layer by layer."""

import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import theodolite as th
from tests.survey.subjects import blobs, mlp
from theodolite.errors import DomainError
from theodolite.measures import kernel

OPTIONS = {"families": ["representation", "kernel"], "permutations": 2}


@pytest.fixture(scope="module")
def compared():
    models = mlp((6, 16, 3), seed=1), mlp((6, 12, 8, 3), seed=2)
    return models, th.compare(*models, blobs(), names=["small", "deep"], **OPTIONS)


def test_both_models_are_surveyed_on_the_same_examples(compared):
    models, found = compared
    assert isinstance(found, th.Comparison)
    assert found.names == ["small", "deep"]
    expected = th.survey(models[1], blobs(), **OPTIONS)
    assert found.runs[1].head.contents["rows"] == expected.record.contents["rows"]
    hashes = {run.head.contents["data"]["probe_hash"] for run in found.runs}
    assert len(hashes) == 1


def test_cka_of_every_pair_of_layers(compared):
    models, found = compared
    x, _ = blobs()
    assert list(found.cka.index) == ["0", "2"]
    assert list(found.cka.columns) == ["0", "2", "4"]
    sides = [th.features(model, x, names) for model, names in zip(models, ("0", "2"), strict=True)]
    one = kernel.linear_cka(sides[0]["0"], sides[1]["2"])
    assert found.cka.loc["0", "2"] == pytest.approx(float(one), rel=1e-5)  # float32 features


def test_cka_is_drawn_as_a_heat_map(compared):
    _, found = compared
    (trace,) = found.plot("cka").data
    assert trace.type == "heatmap"
    np.testing.assert_allclose(np.array(trace.z, float), found.cka.to_numpy())
    assert found.plot("cka_target").data  # as any comparison


def test_the_page_has_cka_of_every_pair_of_layers(compared, tmp_path):
    _, found = compared
    page = found.to_html(tmp_path / "pairs.html").read_text()
    assert "CKA of every pair of layers" in page
    payload = json.loads(page.split('id="data">')[1].split("</script>")[0])
    (panel,) = payload["figures"]["gall-pairs-cka"]["panels"]
    np.testing.assert_allclose(panel["states"][0][0]["z"], found.cka.to_numpy(), atol=1e-5)
    results = th.compare(*(th.Survey(run.head) for run in found.runs), names=found.names)
    assert "every pair of layers" not in results.to_html(tmp_path / "results.html").read_text()


def test_a_legend_names_every_line_once(compared):
    _, found = compared
    same = th.Survey(found.runs[0].head)
    figure = th.compare(same, same, names=["a", "b"]).plot("predicted_loss")
    named = [trace.name for trace in figure.data if trace.showlegend]
    assert len(named) == len(set(named)) < len(figure.data)


def test_summary_has_both_tables_and_the_differences(compared):
    _, found = compared
    text = found.summary()
    assert text.index("small: 60 of 60") < text.index("deep: 60 of 60")
    told = text[text.index("deep minus small") :].splitlines()
    assert [line.split()[0] for line in told[3:5]] == ["0", "2"]
    values = [
        next(
            row["value"]
            for row in run.head.contents["rows"]
            if (row["layer"], row["measure"]) == ("0", "cka_target")
        )
        for run in found.runs
    ]
    assert told[3].split()[-1] == f"{values[1] - values[0]:+.4g}"
    assert told[5] == "in deep alone: 4"


def test_saved_surveys_are_compared_in_words(compared, tmp_path):
    models, found = compared
    for name, model in zip(found.names, models, strict=True):
        th.survey(model, blobs(), name=name, **OPTIONS).save(tmp_path / name)
    loaded = th.compare(*[th.load(tmp_path / name) for name in found.names])
    assert loaded.summary() == found.summary()
    assert loaded.cka is None
    with pytest.raises(DomainError, match=r"cka: .*compare\(model_a, model_b, data\)"):
        loaded.plot("cka")


def test_models_are_left_as_they_were():
    models = mlp(), mlp()
    models[0][0].eval()
    th.compare(*models, blobs(), families="kernel")
    flags = [[module.training for module in model] for model in models]
    assert flags == [[False, True, True, True, True], [True] * 5]


def test_a_loader_that_shuffles_is_refused():
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(*blobs()), batch_size=20, shuffle=True, generator=order)
    with pytest.raises(DomainError, match="shuffle=False"):
        th.compare(mlp(), mlp(), loader, **OPTIONS)
