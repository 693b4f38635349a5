"""Labels per position: next tokens, tags, maps of pixels, against loops and autograd."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from tests.survey.subjects import Reader, rows, value
from theodolite._distributed import ALONE
from theodolite.engine import AtPositions, Batch, PositionLabels
from theodolite.errors import DomainError, ShapeError
from theodolite.measures import gradient, kernel, tangent
from theodolite.surveys.options import SurveyOptions
from theodolite.surveys.probe import draw_probe, fit_inputs


class Pixels(nn.Module):
    """A small U-Net: half the resolution inside, a shortcut around it."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.inside = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.last = nn.Conv2d(10, outputs, 1)

    def forward(self, x):
        wide = self.first(x).relu()
        deep = functional.interpolate(self.inside(wide).relu(), scale_factor=2)
        return self.last(torch.cat([wide, deep], 1))


def sentences(count: int = 12, length: int = 6, vocabulary: int = 12) -> dict[str, torch.Tensor]:
    """Tokens of which some are padding, and some labels do not count."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (count, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[::3, 4:] = 0
    labels = ids.clone()
    labels[1::4, :2] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def next_token_losses(model, batch, count=None):
    """One loss per sequence, by a loop over its positions."""
    losses = []
    for ids, mask, labels in zip(*(batch[k][:count] for k in batch), strict=True):
        logits = model(ids[None], mask[None]).logits[0]
        parts = [
            functional.cross_entropy(logits[t], labels[t + 1])
            for t in range(len(ids) - 1)
            if mask[t + 1] and labels[t + 1] != -100
        ]
        losses.append(torch.stack(parts).mean())
    return losses


def single_gradients(model, losses, layer):
    parameters = list(model.get_submodule(layer).parameters())
    found = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    return torch.stack([torch.cat([part.flatten() for part in parts]) for parts in found])


def test_gradients_are_those_of_the_losses_of_sequences():
    model, batch = Reader().double().eval(), sentences()
    groups = torch.arange(12) % 3
    found = th.survey(model, batch, groups=groups, families="gradient")
    losses = next_token_losses(model, batch)
    assert value(found, "loss") == pytest.approx(
        float(torch.stack(losses).mean().detach()), rel=1e-12
    )
    for layer in ("table", "mix", "head"):
        gradients = single_gradients(model, losses, layer)
        assert value(found, "omega", layer) == pytest.approx(
            float(gradient.vector_alignment(gradients)), rel=1e-9
        )
        assert value(found, "in_class_omega", layer) == pytest.approx(
            float(gradient.in_class_alignment(gradients, groups)), rel=1e-9
        )
        assert value(found, "gradient_confusion", layer) == pytest.approx(
            float(gradient.gradient_confusion(gradients)), rel=1e-6
        )
    data = found.record.contents["data"]
    assert data["task"] == "next-token prediction"
    assert data["groups"] == ["0", "1", "2"]
    text = next(w["text"] for w in found.record.contents["warnings"] if w["measure"] == "positions")
    assert "the output at a position is compared with the next token" in text


@pytest.mark.parametrize("layers", [None, ["mix"]])
def test_sums_of_gradients_of_sequences_follow_from_their_pairs(layers):
    model, groups = Reader().double().eval(), torch.arange(12) % 3
    given = {"groups": groups, "families": "gradient", "layers": layers, "permutations": 0}
    pairs = th.survey(model, sentences(), **given)
    sums = th.survey(model, sentences(), **given, sizes={"pairs": 2})
    methods = [found.record.contents["routes"]["gradient"]["method"] for found in (pairs, sums)]
    whole = "sums over examples" if layers else "all pairs of examples"  # layers lack parameters
    assert methods == [whole, "sums over examples"]
    rows = {(row["layer"], row["measure"]): row["value"] for row in sums.record.contents["rows"]}
    compared = {"omega", "in_class_omega", "omega_contrast", "gradient_diversity", "stiffness"}
    for (layer, measure), expected in rows.items():
        if measure in compared:
            assert value(pairs, measure, layer) == pytest.approx(expected, rel=1e-9)


def test_a_model_that_sees_all_tokens_is_not_shifted():
    batch = {**sentences(), "labels": sentences()["input_ids"]}
    found = th.survey(Reader(causal=False).double(), batch, families="kernel")
    assert found.record.contents["data"]["task"] == "token classification"


def test_features_are_those_of_positions_with_labels():
    model, batch = Reader(outputs=3, causal=False).double().eval(), sentences()
    tags = batch["input_ids"] % 3
    tags[::5, 0] = -100
    batch["labels"] = tags
    chosen = (tags != -100) & batch["attention_mask"].bool()
    found = th.survey(model, batch, read="raw", permutations=0)
    x = model.table(batch["input_ids"])
    weights = batch["attention_mask"][:, None].double().expand(-1, 6, -1)
    mixed = model.mix(weights @ x / weights.sum(2, keepdim=True))
    outputs = model(batch["input_ids"], batch["attention_mask"]).logits
    labels = tags[chosen]
    for layer, values in {"table": x, "mix": mixed, "head": outputs}.items():
        features = values[chosen].detach()
        expected = kernel.target_cka(features, labels, debiased=True)
        assert value(found, "cka_target", layer) == pytest.approx(
            float(expected.detach()), rel=1e-9
        )
        contrast = gradient.alignment_contrast(features, labels)
        assert value(found, "feature_omega_contrast", layer) == pytest.approx(float(contrast))
        assert rows(found, "cka_target", layer)["n"] == int(chosen.sum())
    right = (outputs.argmax(2) == tags)[chosen].double().mean()
    assert value(found, "accuracy") == pytest.approx(float(right))
    assert found.record.contents["data"]["task"] == "token classification"
    assert found.record.contents["skipped"] == {}


def test_tangent_kernels_are_those_of_one_position_of_each_sequence():
    model, batch = Reader().double().eval(), sentences()
    options = SurveyOptions(permutations=0)
    found = th.survey(model, batch, families="tangent", permutations=0)
    drawn = draw_probe(batch, options, ALONE)
    fit = fit_inputs(model, drawn, options)
    probe = fit.probe(drawn, options)
    single, targets = probe.positions.singles(probe.batch, 200)
    assert len(single) == 12
    known = torch.tensor(fit.task.classes)
    assert torch.equal(known[targets.labels], _labels_at(single))
    outputs = []
    for index in range(12):
        one = single.take(slice(index, index + 1))
        logits = model(**one.kwargs).logits[0, int(one.positions[0, 0])]
        outputs += [logits[label] for label in fit.task.classes]
    features = single_gradients(model, outputs, "mix").reshape(12, len(fit.task.classes), -1)
    exact = torch.einsum("icp,jdp->icjd", features, features)
    expected = tangent.tangent_alignment(exact, targets.outputs(len(fit.task.classes)))
    assert value(found, "tangent_alignment", "mix") == pytest.approx(
        float(expected.detach()), rel=1e-9
    )


def _labels_at(single):
    places = single.positions[:, 0] + 1
    return single.targets.gather(1, places[:, None])[:, 0]


def test_sequences_are_aligned_with_their_groups():
    model, batch = Reader().double().eval(), sentences()
    groups = ["prose", "code", "prose", "talk"] * 3
    numbers = torch.tensor([1, 0, 1, 2] * 3)
    found = th.survey(model, batch, groups=groups, unit="sequence", read="raw", permutations=0)
    x = model.table(batch["input_ids"]).detach()
    mask = batch["attention_mask"].double()[:, :, None]
    mask[:, 0] = 0  # first tokens of causal models
    means = (x * mask).sum(1) / mask.sum(1)
    expected = kernel.target_cka(means, numbers, debiased=True)
    assert value(found, "cka_target", "table") == pytest.approx(float(expected.detach()), rel=1e-9)
    gradients = single_gradients(model, next_token_losses(model, batch), "mix")
    spread = torch.einsum("ij,cd->icjd", gradients @ gradients.mT, torch.eye(3).double())
    one_hot = functional.one_hot(numbers).double()
    expected = tangent.tangent_alignment(spread, one_hot)
    assert value(found, "tangent_alignment", "mix") == pytest.approx(
        float(expected.detach()), rel=1e-9
    )
    assert found.record.contents["data"]["classes"] == ["code", "prose", "talk"]
    losses = torch.stack(next_token_losses(model, batch))
    assert value(found, "loss") == pytest.approx(float(losses.mean().detach()), rel=1e-12)


def test_sequences_without_groups_have_no_labels():
    found = th.survey(Reader(), sentences(), unit="sequence")
    assert "pass groups=" in found.record.contents["skipped"]["representation"]
    assert "omega" in set(found.to_frame().measure)


def test_segmentation_reads_smaller_maps_at_the_pixel_that_covers_a_position():
    model = Pixels().double().eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 1, 6, 6, generator=generator).double()
    y = torch.randint(0, 3, (8, 6, 6), generator=generator)
    y[:, 0] = -100
    found = th.survey(model, (x, y), read="raw", permutations=0)
    wide = model.first(x)
    inside = model.inside(wide.relu())
    rows_of = {"first": [], "inside": []}
    labels = []
    for n in range(8):
        for i in range(1, 6):
            for j in range(6):
                rows_of["first"].append(wide[n, :, i, j])
                rows_of["inside"].append(inside[n, :, i // 2, j // 2])
                labels.append(y[n, i, j])
    for layer, parts in rows_of.items():
        expected = kernel.target_cka(
            torch.stack(parts).detach(), torch.stack(labels), debiased=True
        )
        assert value(found, "cka_target", layer) == pytest.approx(
            float(expected.detach()), rel=1e-9
        )
    losses = [functional.cross_entropy(model(x[n : n + 1]), y[n : n + 1]) for n in range(8)]
    assert value(found, "loss") == pytest.approx(
        float(torch.stack(losses).mean().detach()), rel=1e-12
    )
    omega = gradient.vector_alignment(single_gradients(model, losses, "inside"))
    assert value(found, "omega", "inside") == pytest.approx(float(omega), rel=1e-9)
    assert found.record.contents["data"]["task"] == "segmentation"
    assert found.record.contents["skipped"] == {}


@pytest.mark.parametrize("axis", [True, False], ids=["with channel", "without"])
def test_masks_of_one_channel_are_two_classes(axis):
    model = Pixels(outputs=1).double().eval()
    x = torch.randn(8, 1, 6, 6).double()
    y = (x > 0).double() if axis else (x[:, 0] > 0).long()
    found = th.survey(model, (x, y), families=["gradient", "tangent"])
    expected = functional.binary_cross_entropy_with_logits(model(x), (x > 0).double())
    assert value(found, "loss") == pytest.approx(float(expected.detach()), rel=1e-12)
    assert found.record.contents["data"]["num_classes"] == 2
    assert found.record.contents["skipped"] == {}


def test_dense_regression_leaves_missing_numbers_out():
    model = Pixels(outputs=2).double().eval()
    x = torch.randn(8, 1, 6, 6).double()
    y = torch.cat([x, x.square()], 1)
    y[:, :, 2] = torch.nan
    found = th.survey(model, (x, y))
    kept = [row for row in range(6) if row != 2]
    error = (model(x) - y)[:, :, kept].square().sum(1).mean()
    assert value(found, "loss") == pytest.approx(float(error.detach()), rel=1e-12)
    assert found.record.contents["data"]["task"] == "dense regression"
    assert found.record.contents["skipped"] == {}


def test_the_users_loss_is_taken_for_maps():
    model = Pixels().double().eval()
    x, y = torch.randn(8, 1, 6, 6).double(), torch.randint(0, 3, (8, 6, 6))
    weights = torch.tensor([1.0, 2.0, 0.5]).double()
    found = th.survey(model, (x, y), loss=nn.CrossEntropyLoss(weights), families="gradient")
    each = [functional.cross_entropy(model(x)[[n]], y[[n]], weights) for n in range(8)]
    assert value(found, "loss") == pytest.approx(
        float(torch.stack(each).mean().detach()), rel=1e-12
    )
    omega = gradient.vector_alignment(single_gradients(model, each, "inside"))
    assert value(found, "omega", "inside") == pytest.approx(float(omega), rel=1e-9)
    assert any("of the loss given" in w["text"] for w in found.record.contents["warnings"])


def test_classes_can_be_chosen():
    batch = sentences(count=20)
    found = th.survey(Reader(), batch, classes=[3, 5], families="representation")
    assert found.record.contents["data"]["classes"] == ["3", "5"]
    with pytest.raises(DomainError, match=r"classes: expected labels that the examples have.*99"):
        th.survey(Reader(), batch, classes=[3, 99])


def test_many_labels_are_looked_at_by_the_most_frequent():
    model = Reader(vocabulary=90, outputs=90)
    batch = sentences(count=40, vocabulary=90)
    batch["input_ids"][:, 2] = 7
    batch["labels"] = batch["input_ids"]
    found = th.survey(model, batch, families="kernel")
    data = found.record.contents["data"]
    assert data["num_classes"] == 10
    assert "7" in data["classes"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": torch.full((12, 6), -100)}, "expected a label at some position"),
        ({"labels": torch.full((12, 6), 40)}, r"from 0 to 11, .* got 40"),
        ({"labels": torch.full((12, 6), -7)}, "got -7"),
    ],
)
def test_labels_that_cannot_be_are_refused(change, words):
    with pytest.raises(DomainError, match=words):
        th.survey(Reader(), sentences() | change)


def test_groups_are_one_for_each_example():
    with pytest.raises(ShapeError, match="groups: expected one for each of 12 examples, got 3"):
        th.survey(Reader(), sentences(), groups=["a", "b", "c"])


def test_a_unit_needs_labels_per_position():
    with pytest.raises(DomainError, match="unit: expected a label for every position"):
        th.survey(nn.Linear(3, 2), (torch.randn(8, 3), torch.arange(8) % 2), unit="token")


def test_positions_take_turns_and_no_example_gives_most_of_them():
    options = SurveyOptions(families="kernel", sizes={"representation": 40, "kernel": 40})
    batch = sentences(count=30)
    batch["labels"] = batch["input_ids"] % 4
    drawn = draw_probe(batch, options, ALONE)
    model = Reader(outputs=4, causal=False)
    probe = fit_inputs(model, drawn, options).probe(drawn, options)
    assert len(probe.positions) == 40
    assert probe.positions.targets.labels[:8].bincount().tolist() == [2, 2, 2, 2]
    again = fit_inputs(model, drawn, options).probe(drawn, options)
    assert torch.equal(again.batch.positions, probe.batch.positions)


def test_padding_before_a_text_is_no_position_of_it():
    """Its output is held against the first token, as by Hugging Face; it has no features."""
    batch, options = sentences(), SurveyOptions()
    batch["attention_mask"] = torch.ones(12, 6, dtype=torch.long)
    batch["attention_mask"][::2, :3] = 0
    batch["labels"] = batch["input_ids"].where(batch["attention_mask"] == 1, -100)
    drawn = draw_probe(batch, options, ALONE)
    probe = fit_inputs(Reader(), drawn, options).probe(drawn, options)
    places = probe.positions.index
    mask = probe.batch.mask.gather(1, places.clamp(min=0))
    assert (mask[places >= 0] == 1).all()
    assert int((places >= 0).sum()) == 6 * 1 + 6 * 4  # with a token, one before and one after it


class Sinking(Reader):
    """What causal models learn: at the first token features are the same, and very long."""

    def forward(self, input_ids, attention_mask=None):
        x = self.table(input_ids)
        x[:, 0] = 1000.0
        return SimpleNamespace(logits=self.head(self.mix(x)))


def test_first_tokens_of_causal_models_are_left_out():
    """They would be all that an alignment sees; the loss counts them as ever."""
    batch = {"input_ids": sentences()["input_ids"]}
    batch["labels"] = batch["input_ids"]
    model = Sinking().double().eval()
    found = th.survey(model, batch, families=["kernel", "gradient"], read="raw", permutations=0)
    features = model.mix(model.table(batch["input_ids"])).detach()
    labels = batch["input_ids"][:, 2:].flatten()
    expected = kernel.target_cka(features[:, 1:-1].flatten(0, 1), labels, debiased=True)
    assert value(found, "cka_target", "mix") == pytest.approx(float(expected), rel=1e-9)
    logits = model(batch["input_ids"]).logits[:, :-1].flatten(0, 1)
    expected = functional.cross_entropy(logits, batch["input_ids"][:, 1:].flatten())
    assert value(found, "loss") == pytest.approx(float(expected.detach()), rel=1e-12)
    notes = found.record.contents["warnings"]
    assert any("the first token of an example is left out" in note["text"] for note in notes)
    assert not any(note["measure"] == "features" for note in notes)


def test_first_tokens_stay_where_there_is_nothing_else():
    ids = sentences(count=24, length=2)["input_ids"]
    found = th.survey(Reader(), (ids, ids), families="kernel")
    assert rows(found, "cka_target", "mix")["n"] == 24


def test_a_few_long_rows_are_told():
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    x[7] *= 100
    found = th.survey(nn.Linear(3, 2), (x, torch.arange(100) % 2), families="kernel")
    (note,) = [n for n in found.record.contents["warnings"] if n["measure"] == "features"]
    assert note["text"].startswith("1 of 100 rows of features have")


@pytest.mark.parametrize(
    ("shape", "first", "width"),
    [
        ((6, 4), False, 4),
        ((6, 2, 4), False, 8),
        ((4, 3), True, 4),
        ((5, 4), False, None),
        ((4,), False, None),
    ],
)
def test_which_layers_have_the_positions_of_tokens(shape, first, width):
    assert AtPositions((6,)).width(shape, channels_first=first) == width


def test_patches_in_rows_are_read_at_the_patch_that_holds_a_pixel():
    pool = AtPositions((4, 6))
    patches = torch.arange(6.0).reshape(1, 6, 1)  # 2 x 3 patches of 2 x 2 pixels
    assert pool.width((6, 1), channels_first=False) == 1
    places = torch.arange(24).reshape(1, 24)
    found = pool.read(patches, places, channels_first=False).reshape(4, 6)
    expected = torch.arange(6.0).reshape(2, 3).repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert torch.equal(found, expected)


def test_the_mean_of_random_projections_is_the_kernel_of_all_logits():
    model, batch = Reader().double().eval(), sentences()
    draws = torch.randint(0, 2, (12, 200), generator=torch.Generator().manual_seed(0))
    signs = 2.0 * draws.double() - 1

    def last(output, _batch):
        return output.logits[:, -1]

    every = th.tangent_kernels(model, batch, "mix", readout=last, outputs="trace")["mix"]
    found = th.tangent_kernels(model, batch, "mix", readout=lambda *given: last(*given) @ signs)
    drawn = found["mix"].diagonal(dim1=1, dim2=3)
    error = drawn.std(2) / 200**0.5
    assert ((drawn.mean(2) - every).abs() < 5 * error + 1e-12).all()
    assert (error < 0.2 * every.abs().max()).all()


def test_the_engine_takes_labels_per_position_by_name():
    model, batch = Reader().double().eval(), sentences()
    found = th.gradient_alignment(model, batch, readout="loss")
    losses = next_token_losses(model, batch)
    assert torch.allclose(found.sums.losses, torch.stack(losses).detach())
    gradients = single_gradients(model, losses, "mix")
    kernels = th.tangent_kernels(model, batch, "mix", readout="loss", outputs="trace")
    assert torch.allclose(kernels["mix"], gradients @ gradients.mT)
    with pytest.raises(ShapeError, match="readout='loss': expected a label for every position"):
        th.gradient_alignment(model, {**batch, "labels": torch.arange(12) % 3}, readout="loss")


def test_real_numbers_beside_classes_are_no_labels():
    batch = Batch((torch.zeros(2, 3, 4),), targets=torch.randn(2, 3))
    assert PositionLabels.of(torch.zeros(2, 3, 4), batch) is None


def test_the_last_measurement_of_a_monitor_says_whether_groups_pull_apart():
    torch.manual_seed(0)
    groups = ["code", "prose"] * 6
    watched = th.Monitor(Reader().double(), sentences(), groups=groups, families="gradient")
    with watched:
        watched.step(0)
        watched.step(1)
    first, last = (record.contents for record in watched.history.run.steps)
    chance = {row["null_sd"] is None for row in first["rows"] if row["measure"] == "omega_contrast"}
    assert chance == {True}
    rows = [row for row in last["rows"] if row["measure"] == "omega_contrast" and row["layer"]]
    assert rows
    assert all(row["null_sd"] is not None for row in rows)
    (text,) = (answer["text"] for answer in last["answers"] if answer["question"] == "groups")
    assert "chance was not measured" not in text


def test_tangent_kernels_of_long_sequences_are_those_of_a_few_on_a_cpu():
    torch.manual_seed(0)
    ids = torch.randint(0, 3, (20, 256)) + 1
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    given = {"families": "tangent", "permutations": 0}
    few = th.survey(Reader(), data, **given).record.contents
    assert few["routes"]["tangent"]["n"] == 16
    (text,) = (note["text"] for note in few["warnings"] if note["measure"] == "examples")
    assert text.startswith("16 of 20 examples")
    assert text.endswith('sizes={"tangent": 20} uses all')
    every = th.survey(Reader(), data, **given, sizes={"tangent": 20}).record.contents
    assert every["routes"]["tangent"]["n"] == 20
