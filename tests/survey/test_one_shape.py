"""Layers are compared in one shape, beside the raw inputs, on held-out examples."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn
from torch.nn import functional

import theodolite as th
from tests.survey.subjects import blobs, cnn, images, mlp

PROBES = {"families": "representation", "permutations": 0, "seconds": None, "half_samples": 0}


def test_maps_become_averages_over_a_grid():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(128, 2))
    x = torch.randn(5, 1, 8, 8)
    found = th.features(model, x, ["0"], pool="grid")["0"]
    wanted = functional.adaptive_avg_pool2d(model[0](x), 4).flatten(1)
    torch.testing.assert_close(found, wanted)


def test_small_maps_stay_as_they_are():
    model = nn.Conv2d(1, 2, 1)
    x = torch.randn(5, 1, 3, 2)
    found = th.features(model, x, pool="grid")[""]
    torch.testing.assert_close(found, model(x).flatten(1))


class Tokens(nn.Module):
    """Embeddings, a layer for every token, and a head for their mean without padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask):
        h = self.mix(self.embed(input_ids)).relu()
        weight = attention_mask.unsqueeze(2).to(h)
        return self.head((h * weight).sum(1) / weight.sum(1))


def texts(count=60):
    torch.manual_seed(1)
    labels = torch.arange(count) % 2
    tokens = torch.randint(1, 10, (count, 6)) + 9 * labels.unsqueeze(1)
    mask = torch.arange(6) < torch.randint(2, 7, (count, 1))
    return {"input_ids": tokens * mask, "attention_mask": mask.long(), "labels": labels}


def test_tokens_are_averaged_without_padding_in_every_layer():
    data, model = texts(), Tokens()
    found = th.survey(model, data, **PROBES)
    assert found.record.contents["config"]["pool"] == "grid"
    assert {la["name"]: la["width"] for la in found.record.contents["layers"]} == {
        "input": None,
        "embed": 8,
        "mix": 8,
        "head": 2,
    }
    changed = dict(data, input_ids=data["input_ids"] + 5 * (data["attention_mask"] == 0))
    again = th.survey(model, changed, **PROBES)
    for layer in ("input", "embed", "mix", "head"):
        own, other = (s.estimate("probe_accuracy", layer) for s in (found, again))
        assert own.value == other.value, layer


class Typed(Tokens):
    """Adds an embedding that is the same for all tokens, whose mean differs by rounding alone."""

    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(2, 8)

    def forward(self, input_ids, attention_mask):
        h = self.mix(self.embed(input_ids) + self.kind(torch.zeros_like(input_ids))).relu()
        weight = attention_mask.unsqueeze(2).to(h)
        return self.head((h * weight).sum(1) / weight.sum(1))


def test_a_layer_that_is_constant_but_for_rounding_is_at_chance():
    found = th.survey(Typed(), texts(), **PROBES)
    estimate = found.estimate("probe_accuracy", "kind")
    assert estimate.value <= estimate.null_mean + 2 * estimate.null_sd


class Named(nn.Module):
    """Two layers of any names; the first one forgets what the inputs say."""

    def __init__(self, *names):
        super().__init__()
        self.names = names
        for name, layer in zip(names, mlp((6, 4, 3))[::2], strict=True):
            self.add_module(name, layer)

    def forward(self, x):
        first, second = (self.get_submodule(name) for name in self.names)
        return second(first(x).relu() - 50)


@pytest.mark.parametrize(
    ("names", "raw"),
    [(("input", "head"), "raw input"), (("raw input", "input"), "raw raw input")],
    ids=["one", "two"],
)
@pytest.mark.parametrize("held_out", [None, blobs(40)], ids=["left out", "held out"])
def test_a_layer_may_be_called_input(tmp_path, names, raw, held_out):
    data = blobs(90)
    found = th.survey(Named(*names), data, held_out=held_out, **PROBES)
    other = th.survey(Named("a", "b"), data, held_out=held_out, **PROBES)
    renamed = {"input": raw} | dict(zip("ab", names, strict=True))
    assert [entry["name"] for entry in found.record.contents["layers"]] == list(renamed.values())
    expected = other.to_frame().replace({"layer": renamed})
    columns = ["layer", "measure", "value"]
    assert found.to_frame()[columns].equals(expected[columns])
    verdicts = [[(a.finding, a.certainty) for a in survey.answers] for survey in (found, other)]
    assert verdicts[0] == verdicts[1]
    found.save(tmp_path)
    assert th.load(tmp_path).to_html(tmp_path / "page.html").is_file()


def test_row_0_is_the_raw_input():
    x, y = images()
    found = th.survey(cnn(), (x, y), **PROBES)
    first = found.record.contents["layers"][0]
    assert (first["name"], first["role"]) == ("input", "input")
    assert found.layers == ["0", "3", "7"]
    wide = x.flatten(1).double()
    wanted = th.measures.kernel.leave_one_out_regression(wide @ wide.mT, y).accuracy
    assert found.estimate("probe_accuracy", "input").value == pytest.approx(float(wanted))


def test_tokens_are_counted_in_row_0():
    found = th.survey(Tokens(), texts(), **PROBES)
    assert (
        found.estimate("probe_accuracy", "input").value > 0.95
    )  # classes have tokens of their own


def scores_of(found):
    kept = found.record.contents["probes"]
    return kept, found.record.arrays[kept["scores"]]


def test_probes_are_judged_on_held_out_examples():
    (x, y), (u, v) = blobs(90), blobs(45, seed=0)
    u = u + 0.01 * torch.randn(u.shape, generator=torch.Generator().manual_seed(3))
    model = mlp()
    found = th.survey(model, (x, y), held_out=(u, v), **PROBES)
    kept, scores = scores_of(found)
    assert (kept["judged_on"], kept["fitted_on"]) == ("held-out", 90)
    assert kept["layers"] == ["input", "0", "2", "4"]
    assert scores.shape == (4, 45)
    for layer, row in zip(kept["layers"], scores, strict=True):
        estimate = found.estimate("probe_accuracy", layer)
        assert estimate.value == pytest.approx(row.mean())
    left_out = th.survey(model, (x, y), **PROBES)
    kept, scores = scores_of(left_out)
    assert (kept["judged_on"], scores.shape) == ("left-out", (4, 90))


def test_held_out_regression_is_ridge_regression():
    torch.manual_seed(0)
    x, u = torch.randn(80, 5).double(), torch.randn(40, 5).double()
    weight = torch.randn(5, 1).double()
    y, v = (part @ weight + 0.5 * torch.randn(len(part), 1).double() for part in (x, u))
    model = nn.Linear(5, 1).double()
    found = th.survey(model, (x, y), held_out=(u, v), **PROBES)
    kept, scores = scores_of(found)
    assert kept["measure"] == "probe_r2"
    grams = (x - x.mean(0)) @ (x - x.mean(0)).mT
    ridge = float(th.measures.kernel.leave_one_out_regression(x @ x.mT, y).ridge)
    fitted = Ridge(alpha=ridge * float(grams.trace()) / 80).fit(x.numpy(), y.numpy())
    missed = ((v.numpy() - fitted.predict(u.numpy()).reshape(-1, 1)) ** 2).sum()
    plain = ((v.numpy() - y.numpy().mean()) ** 2).sum()
    assert scores[0].mean() == pytest.approx(1 - missed / plain, abs=1e-5)


def test_a_monitor_keeps_the_mean_loss_of_every_example():
    x, y = blobs()
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = []
    with th.Monitor(model, (x, y), every=1, families="kernel") as monitor:
        digest_order = monitor._probe.batch
        for step in range(3):
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                outputs = model(digest_order.args[0])
                losses = functional.cross_entropy(outputs, digest_order.targets, reduction="none")
            wanted.append(losses.numpy())
            monitor.step(step)
    found = monitor.history.example_losses
    # The last step is measured again in full when the monitor is closed.
    expected = np.mean([*wanted, wanted[-1]], 0)[: len(found)]
    assert found == pytest.approx(expected, rel=1e-4)
