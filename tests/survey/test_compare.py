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
from theodolite.surveys import SurveyOptions, model_comparison
from theodolite.surveys.model_comparison import _pairs

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


def test_chance_of_pairs_is_that_of_permuted_examples(compared):
    _, found = compared
    pairs = found.pairs
    assert pairs.cka.chance_mean.shape == found.cka.shape
    assert abs(pairs.cka.chance_mean).max() < 0.1  # debiased: chance is 0
    share = pairs.nearest / (len(blobs()[0]) - 1)
    assert pairs.neighbours.chance_mean.mean() == pytest.approx(share, rel=0.25)
    assert len(pairs.cka.permuted_largest) == 20
    assert pairs.cka.permuted_largest.mean() > pairs.cka.chance_mean.max()
    assert pairs.cka.p_value == pytest.approx(1 / 21)
    assert "largest of 20 permutations" in found.summary()


def test_neighbours_are_counted_one_by_one(compared):
    models, found = compared
    x, _ = blobs()
    sides = [th.features(m, x, [n])[n] for m, n in zip(models, ("0", "2"), strict=True)]
    k, total = found.pairs.nearest, 0
    for i in range(len(x)):
        near = []
        for rows in sides:
            apart = (rows - rows[i]).double().norm(dim=1)
            apart[i] = torch.inf
            near.append(set(apart.argsort()[:k].tolist()))
        total += len(near[0] & near[1])
    assert found.pairs.neighbours.values.loc["0", "2"] == pytest.approx(
        total / len(x) / k, abs=0.01
    )


def test_the_best_of_many_random_pairs_is_not_called_alike():
    """The best of 48 pairs is large by chance: it is compared with the best of permuted ones."""
    made = torch.Generator().manual_seed(4)
    sides = [
        {f"{side}{i}": torch.randn(40, 3, generator=made) for i in range(count)}
        for side, count in (("a", 6), ("b", 8))
    ]
    options = SurveyOptions(permutations=40)
    random = _pairs(*sides, options).cka
    assert random.largest[2] > 2 * random.chance_sd.mean()  # beyond chance, were it the only one
    assert random.p_value > 0.05
    assert random.sentence(("a", "b")).startswith("No pair is more similar than chance")
    sides[1]["b3"] = sides[0]["a2"] + 0.5 * torch.randn(40, 3, generator=made)
    found = _pairs(*sides, options)
    for likeness in (found.cka, found.neighbours):
        assert likeness.largest[:2] == ("a2", "b3")
        assert likeness.p_value == pytest.approx(1 / 41)


def test_cka_is_drawn_as_a_heat_map(compared):
    _, found = compared
    (trace,) = found.plot("cka").data
    assert trace.type == "heatmap"
    np.testing.assert_allclose(np.array(trace.z, float), found.cka.to_numpy(), rtol=1e-5)
    assert found.plot("cka_target").data  # as any comparison


def test_the_page_has_cka_of_every_pair_of_layers(compared, tmp_path):
    _, found = compared
    page = found.to_html(tmp_path / "pairs.html").read_text()
    assert "CKA of every pair of layers" in page
    assert "Mutual nearest neighbours" in page
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
    assert text.startswith("small\n")
    assert (
        0
        < text.index("\n\nup to 60 examples" if "up to 60" in text else "\n\n60 examples")
        < text.index("\n\ndeep\n")
    )
    told = text[text.index("deep minus small") :].splitlines()
    assert [line.split()[0] for line in told[3:6]] == ["input", "0", "2"]
    assert told[3].endswith(" points")
    values = [
        next(
            row["value"]
            for row in run.head.contents["rows"]
            if (row["layer"], row["measure"]) == ("0", "cka_target")
        )
        for run in found.runs
    ]
    assert told[4].split()[-1] == f"{values[1] - values[0]:+.3g}".replace("-", "−")
    assert told[6] == "in deep alone: 4"


def test_saved_surveys_are_compared_in_words(compared, tmp_path):
    models, found = compared
    for name, model in zip(found.names, models, strict=True):
        th.survey(model, blobs(), name=name, **OPTIONS).save(tmp_path / name)
    loaded = th.compare(*[th.load(tmp_path / name) for name in found.names])
    told, _, pairs = found.summary().rpartition("\n\n")
    assert loaded.summary() == told
    assert pairs.startswith("CKA. ")
    assert " are most similar (" in pairs
    assert "chance_mean" not in repr(found.pairs)
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


@pytest.mark.parametrize("families", [["kernel"], ["representation"]])
def test_pairs_use_the_examples_that_the_limit_left_to_the_surveys(monkeypatch, families):
    used = []
    whole = model_comparison.features

    def counted(model, batch, *rest, **options):
        used.append(len(batch))
        return whole(model, batch, *rest, **options)

    monkeypatch.setattr(model_comparison, "features", counted)
    limits = {"memory_limit": 10**6}
    found = th.compare(mlp(), mlp(seed=1), blobs(600), families=families, options=limits)
    sizes = {run.head.contents["config"]["sizes"][families[0]] for run in found.runs}
    assert used == [min(sizes)] * 2
    assert min(sizes) < 600
