"""Which model to start from: rankings, forecasts, and inputs that cannot be used."""

import copy
import gc
import weakref
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import theodolite as th
from theodolite.engine import untouched
from theodolite.errors import DomainError, MemoryLimitError, RecordError, UnknownNameError
from theodolite.measures import kernel, representation
from theodolite.records import Note, Record, load_record, require_transfer, save_record
from theodolite.surveys import transfers
from theodolite.surveys.heads import Body, WithHead
from theodolite.surveys.transfer_regressions import kernel_regressions, predicted_curve
from theodolite.surveys.transfer_results import Transfer


def task(n=120, seed=0):
    """Two classes that the sign of a hidden direction tells apart, among eight inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=generator)
    return x, (x[:, 0] + 0.5 * x[:, 1] > 0).long()


class Informed(nn.Module):
    """A pretrained body that keeps the directions that matter, or throws them away."""

    def __init__(self, keeps: slice, outputs=5):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Linear(8, 6)
            self.fc = nn.Linear(6, outputs)
        with torch.no_grad():
            self.body.weight.zero_()
            self.body.weight[:, keeps] = torch.randn(
                6, len(range(*keeps.indices(8))), generator=torch.Generator().manual_seed(1)
            )

    def forward(self, x):
        return self.fc(self.body(x).relu())


def good():
    return Informed(slice(0, 2))


def poor():
    return Informed(slice(4, 8))


def test_the_model_that_knows_the_task_comes_first():
    found = th.transfer({"poor": poor(), "good": good()}, task())
    assert found.names == ["good", "poor"]
    value, low, high = found.forecast()
    assert value > 0.9
    assert low <= value <= high
    frame = found.to_frame()
    assert frame["model"].tolist() == ["good", "poor"]
    assert (frame["error"].diff().dropna() > 0).all()
    assert found.layers("good")["name"].tolist() == ["body"]  # the old head is none of them


def test_the_forecast_holds_on_new_examples():
    """Ridge regression with the same kernel, trained on the examples at hand."""
    (x, y), (new, truth) = task(150), task(2000, seed=1)
    found = th.transfer(good(), (x, y))
    model = good().eval()
    body = Body(model, "fc")
    fresh = WithHead(body, 6, 10, 0, x).eval()
    both = torch.cat([x, new[:300]])
    total = th.tangent_kernels(fresh, both, outputs="trace", params=["body.model.body.*"]).total
    features = body(both).detach()
    share = 0.5  # half head, half body

    def unit(gram):
        centred = gram[:150, :150] - gram[:150, :150].mean(0)
        return gram / (centred - centred.mean(1, keepdim=True)).diagonal().mean()

    mixed = (1 - share) * unit(features @ features.T) + share * unit(total)
    own = kernel.leave_one_out_regression(mixed[:150, :150].double(), y)
    assert own.accuracy.item() == found.record.contents["models"][0]["tangent"]["accuracy"]
    ridge = own.ridge * 1.0
    mean = torch.nn.functional.one_hot(y).double().mean(0)
    centre = mixed[:150, :150].double()
    rows, whole = centre.mean(0), centre.mean()
    K = centre - rows - rows.unsqueeze(1) + whole
    cross = mixed[150:, :150].double()
    cross = cross - cross.mean(1, keepdim=True) - rows + whole
    weights = torch.linalg.solve(
        K + ridge * K.diagonal().mean() * torch.eye(150), torch.nn.functional.one_hot(y) - mean
    )
    accuracy = ((cross @ weights + mean).argmax(1) == truth[:300]).double().mean().item()
    _, low, high = found.forecast()
    assert low <= accuracy <= high


def test_where_features_are_missing_the_interval_ends_far_above_the_forecast():
    x, y = task()
    value, low, high = th.transfer(good(), (x, y)).forecast()
    assert high - value <= value - low + 1e-9
    unknown = th.transfer(good(), (x, (x[:, 2:7].prod(1) > 0).long()))
    value, low, high = unknown.forecast()
    assert high - value >= 0.4 or high > 0.95
    assert high < 1.0
    assert value - low < 0.2
    assert "may be far too low: more than 70 %" in unknown.summary()


def test_a_model_that_knows_nothing_is_expected_at_chance():
    """The class of an example that is left out is rarer among the others, so it is rarely said."""
    values = []
    for seed in range(4):
        x = torch.randn(200, 8, generator=torch.Generator().manual_seed(seed))
        found = th.transfer(poor(), (x, torch.arange(200) % 10))
        value, *_ = found.forecast()
        assert value > found.record.contents["models"][0]["tangent"]["accuracy"]
        values.append(value)
    # Two standard errors of the mean, 0.021, and what the network may learn beyond its kernel.
    assert abs(np.mean(values) - 0.1) < 0.05


def test_networks_are_expected_above_their_kernel_where_its_error_is_large():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(120, 8, generator=generator), torch.arange(120) % 3
    x[:, 0] += 0.8 * (y == 1)
    trained = th.transfer(good(), (x, y))
    told = trained.record.contents["models"][0]
    wrong = 1 - told["tangent"]["accuracy"]
    assert 0.7 < told["error"] < 1.0
    assert wrong < 0.55
    value, low, high = trained.forecast()
    above = min((2 / 3 - wrong) / 0.2, 1)  # chance
    share = 0.12 * above * (told["error"] - 0.4) / 0.6  # of the wrong answers
    assert low < 1 - wrong < value < high
    assert value == pytest.approx(1 - wrong * (1 - share), abs=0.03)  # shares of classes differ
    curve = trained.curve()
    at_hand = float(np.interp(120, curve.labels, curve.accuracy))
    assert at_hand == pytest.approx(value, abs=0.01)  # half a wrong answer more
    assert (curve.accuracy_interval[0] <= curve.accuracy).all()
    assert (curve.accuracy <= curve.accuracy_interval[1]).all()


def test_layers_have_the_numbers_of_a_survey():
    model, data = good(), task(80)
    layers = th.transfer(model, data, tangent=False).layers().set_index("name")
    found = th.survey(model, data, families="representation")
    for measure, name in (("alignment_area", "alignment_area"), ("probe_accuracy", "accuracy")):
        assert layers.loc["body", name] == pytest.approx(found.estimate(measure, "body").value)


def test_what_the_head_receives_is_a_place_to_cut_where_no_layer_gives_it():
    """Means over positions lose what a head after a flattening has."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    x, y = task(100)
    found = th.transfer(model, (x.unsqueeze(1), y), tangent=False)
    layers = found.layers().set_index("name")
    assert list(layers.index) == ["0", "input of the head"]
    told = found.record.contents["models"][0]
    assert told["best_layer"] == "input of the head"
    assert layers.loc["input of the head", "error"] == pytest.approx(told["features"]["error"])
    assert list(th.transfer(good(), task(60), tangent=False).layers()["name"]) == ["body"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_precision_are_measured(dtype):
    found = th.transfer(good().to(dtype), task(60), tangent=False)
    assert list(found.layers()["name"]) == ["body"]
    assert found.forecast()[0] == pytest.approx(
        th.transfer(good(), task(60), tangent=False).forecast()[0], abs=2.5 / 60
    )


def test_numbers_of_labels_are_checked_first():
    with pytest.raises(DomainError, match=r"^labels\[1\]: expected a number in"):
        th.transfer(good(), task(60), labels=[60, 0])


def test_layers_are_chosen_by_the_names_they_have_in_the_model():
    found = th.transfer(good(), task(), layers=["body"], tangent=False)
    assert list(found.layers()["name"]) == ["body"]
    with pytest.raises(DomainError, match="unknown layer 'bod'; did you mean 'body'"):
        th.transfer(good(), task(), layers=["bod"], tangent=False)


def test_more_labels_than_the_kernel_has_seen():
    """The linear probe of all examples, with what the body gained on those of the kernel."""
    found = th.transfer(good(), task(150), tangent_examples=40)
    model, (value, *_) = found.record.contents["models"][0], found.forecast()
    assert model["tangent"]["n"] == 40
    assert model["features"]["n"] == 150
    assert value >= model["features"]["accuracy"] - 0.5 / 150  # half a wrong answer more
    curve = found.curve()
    at_hand = int((curve.labels - 150).abs().argmin())
    assert curve.accuracy[at_hand].item() == pytest.approx(value, abs=0.02)


def test_one_model_at_a_time_is_in_memory():
    alive = []

    def build():
        gc.collect()
        assert all(reference() is None for reference in alive)
        model = good()
        alive.append(weakref.ref(model))
        return model

    th.transfer({"a": build, "b": build, "c": build}, task(60))
    assert len(alive) == 3


def test_models_are_left_as_found():
    model = good().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    th.transfer(model, task(60))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.fc._forward_pre_hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_models_without_names_are_told_apart():
    found = th.transfer([good(), good(), poor], task(60), tangent=False)
    assert sorted(found.names) == ["Informed", "Informed (2)", "poor"]


def test_a_model_that_does_not_fit_is_named_and_the_others_are_ranked():
    found = th.transfer({"good": good(), "narrow": nn.Linear(3, 2)}, task(60))
    assert found.names == ["good"]
    assert "expected 3 features" in found.problems["narrow"]
    assert found.record.contents["problem_notes"] == {"narrow": Note.REFUSED}
    assert "not measured" in found.summary()
    assert found.to_frame()["problem"].notna().tolist() == [False, True]


def test_no_model_that_fits_is_an_error():
    with pytest.raises(DomainError, match=r"at least one that can be measured.*expected 3"):
        th.transfer(nn.Linear(3, 2), task(60))


def test_inputs_are_prepared_for_each_model():
    x, y = task(60)
    shorter = {"short": lambda inputs: inputs[:, :3]}
    found = th.transfer({"good": good(), "short": nn.Linear(3, 2)}, (x, y), prepare=shorter)
    assert sorted(found.names) == ["good", "short"]
    assert not found.problems


def letters(texts):
    """Counts of eight letters."""
    return torch.tensor([[text.count(letter) for letter in "abcdefgh"] for text in texts]).float()


def texts_of(x):
    return ["".join(c * int(k) for c, k in zip("abcdefgh", row, strict=True)) for row in x]


@pytest.mark.parametrize("apart", [False, True], ids=["pair", "targets"])
def test_texts_become_tensors_model_by_model(apart):
    x, y = task(60)
    x = (3 * x).round().clamp(0, 9)
    texts, prepare = texts_of(x), {"good": letters, "short": lambda t: letters(t)[:, :3]}
    given = (texts, {"targets": y}) if apart else ((texts, y), {})
    models = {"good": good(), "short": nn.Linear(3, 2)}
    found = th.transfer(models, given[0], prepare=prepare, tangent=False, **given[1])
    wanted = th.transfer(models, (x, y), prepare={"short": lambda rows: rows[:, :3]}, tangent=False)
    assert found.names == wanted.names
    assert found.to_frame()["error"].tolist() == pytest.approx(wanted.to_frame()["error"].tolist())


def test_texts_without_prepare_are_refused():
    x, y = task(60)
    with pytest.raises(DomainError, match=r"expected tensors, got texts; pass prepare="):
        th.transfer({"good": good()}, (texts_of(x.abs()), y))


def test_nothing_trainable_below_the_head_is_said():
    frozen = good().requires_grad_(False)
    found = th.transfer(frozen, task(60))
    model = found.record.contents["models"][0]
    assert model["tangent"] is None
    assert model["notes"][0]["note"] == Note.NOTHING_TRAINABLE
    assert model["forecast"]["from"] == "features"
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


@pytest.mark.parametrize("tangent", [True, False])
def test_a_frozen_model_has_no_features_to_learn(tangent):
    """Neither does its interval end far above the forecast, nor do notes promise more."""
    x, y = task(120)
    y = y[torch.randperm(120, generator=torch.Generator().manual_seed(0))]
    found = th.transfer(poor().requires_grad_(False), (x, y), tangent=tangent)
    value, low, high = found.forecast()
    assert found.record.contents["models"][0]["error"] > 0.9
    assert high - value == pytest.approx(value - low)
    assert not any("new features" in note for note in found.notes)
    curve = found.curve()
    assert (curve.accuracy_interval[1] - curve.accuracy < 0.3).all()
    curve = th.transfer(poor(), (x, y), tangent=tangent).curve()
    room = (curve.accuracy_interval[1] - curve.accuracy).minimum(1 - curve.accuracy)
    assert (room > 0.4).all()
    assert room[-1] > room[0] - 0.01  # a tenth of the wrong answers stay at the upper end


@pytest.mark.parametrize("examples", [400, 60])
def test_the_curve_passes_through_the_forecast(examples):
    found = th.transfer(good(), task(120), labels=[60, 120, 480], tangent_examples=examples)
    curve, (value, *_) = found.curve(), found.forecast()
    assert curve.labels.tolist() == [60, 120, 480]
    # Half a wrong answer more: none among these does not mean none ever.
    assert curve.accuracy[1].item() == pytest.approx(value, abs=0.51 / 121)


def test_inputs_that_are_no_numbers_are_refused():
    x, y = task(60)
    x[7, 3] = torch.nan
    told = r"expected finite inputs, got nan in example 7"
    with pytest.raises(DomainError, match=told):
        th.transfer(good(), (x, y))
    with pytest.raises(DomainError, match=told):
        th.transfer(good(), (x, y), prepare=lambda given: 2 * given)
    th.transfer(good(), (x, y), prepare=torch.nan_to_num, tangent=False)


def test_a_model_that_is_a_head_alone_is_a_linear_probe_of_the_inputs():
    found = th.transfer(nn.Linear(8, 2), task(60))
    model = found.record.contents["models"][0]
    assert model["layers"] == []
    assert model["notes"][0]["note"] == Note.NOTHING_TRAINABLE


def test_a_class_with_one_example_is_said():
    x, y = task(60)
    y = y.clone()
    y[7] = 2
    assert "1 of 3 classes have a single example" in th.transfer(good(), (x, y)).notes[0]


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        (torch.zeros(60, dtype=torch.long), "at least two classes"),
        (torch.arange(60), "at least two examples"),
        (None, "one class or number for each example"),
    ],
    ids=["one class", "all different", "none"],
)
def test_targets_that_cannot_be_learned_are_refused(targets, told):
    x, _ = task(60)
    with pytest.raises(DomainError, match=told):
        th.transfer(good(), x if targets is None else (x, targets))


def test_too_few_examples_are_refused():
    with pytest.raises(DomainError, match="at least 20 labelled examples, got 10"):
        th.transfer(good(), task(10))


def test_numbers_are_judged_by_error():
    x, _ = task(100)
    y = x[:, 0] + 0.1 * torch.randn(100, generator=torch.Generator().manual_seed(2))
    found = th.transfer({"poor": poor(), "good": good()}, (x, y))
    told = found.record.contents["models"][0]["forecast"]
    assert found.best == "good"
    assert told["measure"] == "error"
    assert told["value"] < 0.3
    assert "error" in found.summary()
    assert found.curve().accuracy.isnan().all()


def test_processes_measure_the_same():
    models = {"good": good, "poor": poor}
    here = th.transfer(models, task(60), tangent=False)
    apart = th.transfer(models, task(60), tangent=False, workers=2)
    assert apart.names == here.names
    for name in here.names:
        assert apart.forecast(name) == pytest.approx(here.forecast(name))


def test_saved_and_loaded(tmp_path):
    found = th.transfer({"good": good(), "poor": poor()}, task(60), name="signs")
    read = th.load(found.save(tmp_path / "run"))
    assert read.summary() == found.summary()
    assert "signs: 60 labelled examples" in read.summary()
    assert read.summary().startswith(found.answers[0].text)
    assert read.answers == found.answers
    assert repr(read) == repr(found)
    np.testing.assert_array_equal(read.curve("poor").error, found.curve("poor").error)
    with pytest.raises(UnknownNameError, match="goood"):
        read.forecast("goood")


def without_answers(contents):
    return {key: value for key, value in contents.items() if key != "answers"}


DAMAGES = {
    "a model": (lambda c: c | {"models": [{"name": "good"}]}, "models/0/parameters is missing"),
    "versions": (lambda c: c | {"versions": None}, "versions: expected a mapping, got None"),
    "ties": (lambda c: c | {"ties": 3}, "ties: expected a list, got 3"),
    "a tie": (lambda c: without_answers(c) | {"ties": ["x"]}, "ties: expected names of models"),
    "answers": (lambda c: c | {"answers": [{"text": ""}]}, "answers/0/question is missing"),
    "figures": (
        lambda c: c | {"answers": [c["answers"][0] | {"figures": 0.5}]},
        "answers/0/figures: expected a list",
    ),
    "chance": (lambda c: c | {"data": c["data"] | {"chance": None}}, "classes and chance"),
    "measure": (
        lambda c: c | {"models": [c["models"][0] | {"forecast": FORECAST}]},
        "forecast/measure: expected accuracy or error, got 'x'",
    ),
    "tangent": (
        lambda c: c | {"models": [c["models"][0] | {"tangent": {}}]},
        "models/0/tangent/n is missing",
    ),
}
FORECAST = {"measure": "x", "value": 0.5, "low": 0.4, "high": 0.6, "from": "features"}


def test_a_damaged_record_is_refused(tmp_path):
    th.transfer(good(), task(60), tangent=False).save(tmp_path / "run")
    record = load_record(tmp_path / "run")
    for damage, message in DAMAGES.values():
        save_record(Record(damage(record.contents), record.arrays), tmp_path / "run")
        with pytest.raises(RecordError, match=message):
            th.load(tmp_path / "run")
    labels = {"0/curve/labels": np.full_like(record.arrays["0/curve/labels"], np.nan)}
    save_record(Record(record.contents, {**record.arrays, **labels}), tmp_path / "run")
    with pytest.raises(RecordError, match="expected positive numbers of labels"):
        th.load(tmp_path / "run")


def test_the_page_needs_no_script_and_escapes_names(tmp_path):
    found = th.transfer({"<b>good</b>": good(), "poor": poor()}, task(60), tangent=False)
    text = found.to_html(tmp_path / "page.html").read_text()
    assert "<script" not in text
    assert "&lt;b&gt;good&lt;/b&gt;" in text
    assert "<b>good</b>" not in text
    assert text.count("<polyline") >= 4  # a curve and a profile for each model
    assert any(not answer.advice for answer in found.answers)
    assert "(model)" not in text  # the name of a nameless layer, not of missing advice


def test_an_error_while_layers_are_looked_for_is_told(monkeypatch):
    """A model that is a head alone has no layers; that is the only reason for none."""

    def fails(*_args, **_kwargs):
        raise DomainError("layers: something else")

    monkeypatch.setattr("theodolite.surveys.transfers.survey_layers", fails)
    with pytest.raises(DomainError, match="something else"):
        th.transfer(good(), task(40), tangent=False)


def test_a_device_that_is_full_costs_the_tangent_kernel_alone(monkeypatch):
    def full(*_args, **_kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB. And much more.")

    monkeypatch.setattr("theodolite.surveys.transfer_regressions.tangent_kernels", full)
    found = th.transfer(good(), task(40))
    model = found.record.contents["models"][0]
    assert model["tangent"] is None
    (note,) = model["notes"]
    assert (note["note"], note["facts"]) == (Note.FEATURES_ALONE, {"why": Note.DEVICE_MEMORY})
    assert note["text"].endswith(
        "the device has too little free memory; fewer tangent examples may help"
    )


def test_a_kernel_that_fits_in_parts_is_measured():
    """A pass of all examples would take more than is allowed, one of a few does not."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)]
    model = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))
    data = torch.randn(40, 1, 16, 16), torch.arange(40) % 2
    judged = th.transfer(model, data, memory_limit=3_000_000).record.contents["models"][0]
    assert judged["notes"] == []
    assert judged["tangent"]["n"] == 40
    told = th.transfer(model, data, memory_limit=300_000).record.contents["models"][0]["notes"]
    assert told[0]["facts"] == {"why": Note.TANGENT_MEMORY}
    assert told[0]["text"].endswith("fewer tangent examples or a higher memory limit may help")


def test_the_random_state_is_noted_where_the_model_is_measured(monkeypatch):
    """That of another device is known only once the model lies there."""
    order, plain = [], nn.Module.to

    def moves(module, *args, **kwargs):
        order.extend(["moved"] if isinstance(module, Informed) else [])
        return plain(module, *args, **kwargs)

    @contextmanager
    def notes(model):
        order.append("noted")
        with untouched(model):
            yield
        order.append("restored")

    monkeypatch.setattr(nn.Module, "to", moves)
    monkeypatch.setattr("theodolite.surveys.transfers.untouched", notes)
    th.transfer(good(), task(40), tangent=False, device="cpu:0")
    assert order == ["moved", "noted", "restored", "moved"]


def test_a_model_is_brought_back_from_the_device(monkeypatch):
    """Here there is one device alone: what is asked of the model is watched."""
    asked = []
    move = nn.Module.to

    def watched(module, *args, **kwargs):
        if isinstance(module, Informed):
            asked.append(torch.device(args[0]))
        return move(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "to", watched)
    th.transfer(good(), task(40), tangent=False)
    assert asked == []
    th.transfer(good(), task(40), tangent=False, device="cpu:0")
    assert asked == [torch.device("cpu:0"), torch.device("cpu")]
    asked.clear()
    with pytest.raises(DomainError, match="unknown head"):
        th.transfer(good(), task(40), head="nowhere", device="cpu:0")
    assert asked == [torch.device("cpu:0"), torch.device("cpu")]


def test_models_are_left_as_found_after_an_error():
    model, (x, y) = good().train(), task(60)
    state, calls = torch.get_rng_state(), []

    def breaks(inputs):
        calls.append(len(inputs))
        if len(calls) > 4:
            raise RuntimeError("broken")
        torch.rand(1)
        return inputs

    with pytest.raises(DomainError, match="broken"):
        th.transfer(model, (x, y), prepare=breaks)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_by_name_leaves_the_random_state(tmp_path):
    (tmp_path / "net.py").write_text("from torch import nn\ndef net(): return nn.Linear(8, 2)\n")
    state = torch.get_rng_state()
    th.transfer(f"{tmp_path}/net.py:net", task(40), tangent=False)
    assert torch.equal(torch.get_rng_state(), state)


def test_entries_for_models_that_are_not_there_are_said():
    found = th.transfer(
        {"a": good()}, task(40), tangent=False, head={"b": "fc"}, prepare={"c": abs}
    )
    assert [note.split(",")[0] for note in found.notes] == [
        "head= has an entry for 'b'",
        "prepare= has an entry for 'c'",
    ]


def test_no_wrong_answer_among_few_does_not_promise_all():
    """Where nothing is wrong on the few examples of the kernel, or next to nothing."""
    torch.manual_seed(21)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    found = th.transfer(model, task(200, seed=21), tangent_examples=20)
    assert found.record.contents["models"][0]["tangent"]["accuracy"] >= 0.9
    assert found.forecast()[0] < 1.0
    curve = found.curve()
    assert curve.examples == 200
    low, high = curve.accuracy_interval[:, -1].tolist()
    assert low < curve.accuracy[-1] < high < 1.0


@pytest.mark.parametrize("width", [8, 90])
@pytest.mark.parametrize("tangent", [True, False])
def test_no_matrix_of_all_examples_is_decomposed_twice(monkeypatch, width, tangent):
    """Wide features are decomposed once, as a kernel. For narrow ones no kernel is formed."""
    sizes = []
    for name in ("eigh", "svd"):
        whole = getattr(torch.linalg, name)

        def counted(matrix, *rest, whole=whole, name=name, **options):
            sizes.append((name, *matrix.shape))
            return whole(matrix, *rest, **options)

        monkeypatch.setattr(torch.linalg, name, counted)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))
    monkeypatch.setattr(transfers, "PROBED", 30)
    found = th.transfer(model, task(120), tangent=tangent, tangent_examples=60)
    assert found.record.contents["models"][0]["examples"] == 120
    wide, of_all = width == 90, [size for size in sizes if size[1] == 120]
    kinds = [size[0] for size in of_all if size[1:] == (120, 120)]
    assert len(kinds) == wide * (1 + tangent)  # the head's features, and those of all layers
    assert set(kinds) <= {"eigh"}
    assert len(of_all) == 1 + tangent


def test_regressions_from_features_equal_those_from_their_kernels():
    torch.manual_seed(0)
    y = torch.arange(90) % 3
    layers = [torch.randn(90, width).double() + y[:, None] * torch.rand(width) for width in (5, 12)]
    body = torch.randn(40, 70).double()
    body = body @ body.mT
    found = kernel_regressions(layers[1], layers, body, y)
    whole = kernel.mean_gram([rows @ rows.mT for rows in layers])
    expected = kernel.leave_one_out_regression(whole, y)
    torch.testing.assert_close(found.all_layers.every.error, expected.error)
    few = kernel.leave_one_out_regression(whole[:40, :40], y[:40])
    torch.testing.assert_close(found.all_layers.few.error, few.error)
    head = kernel.leave_one_out_regression(layers[1] @ layers[1].mT, y)
    torch.testing.assert_close(found.every_head_features.error, head.error)
    curve = predicted_curve(found, y.float(), [60, 500])
    plain = th.learning_curve(whole, y.float(), [60, 500], kernel=True)
    less = found.head_and_body.error / found.all_layers.few.error
    torch.testing.assert_close(curve.error, plain.error * less)


def test_more_labels_are_ranked_by_all_layers_and_the_gain_of_the_kernel():
    """The error of all layers with all labels, times what the tangent kernel gains on its own."""
    model, (x, y) = good(), task(150)
    found = th.transfer(model, (x, y), tangent_examples=40).record.contents["models"][0]
    rows = model.body(x).relu().detach()
    every = representation.leave_one_out_probe(rows, y).error
    few = representation.leave_one_out_probe(rows[:40], y[:40]).error
    expected = found["tangent"]["error"] * (every / few).item()
    # The unit of the ridge is that of all examples, also among the few.
    assert found["error"] == pytest.approx(expected, rel=0.02)


def test_the_chance_in_the_gain_widens_intervals():
    """The fewer examples the tangent kernel has seen, the less is known of what it adds."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    x, _ = task(400, seed=3)
    y = (x[:, 0] * x[:, 1] > 0).long()
    widths, ends = [], []
    for count in (40, 320):
        found = th.transfer(model, (x, y), tangent_examples=count)
        value, low, _ = found.forecast()
        curve = found.curve()
        widths.append((value - low) / (1 - value))
        reached, least = curve.accuracy[-1].item(), curve.accuracy_interval[0, -1].item()
        ends.append((reached - least) / (1 - reached))
    assert widths[0] > 1.2 * widths[1]
    assert ends[0] > 1.2 * ends[1]


def test_the_page_says_nothing_beyond_the_labels_of_the_curve(tmp_path):
    found = th.transfer(good(), task(60), tangent=False, labels=[30, 60])
    text = found.to_html(tmp_path / "page.html").read_text()
    assert "twice the labels" not in text
    assert "with 60 labels is expected to reach" in text


def test_two_models_that_are_not_distinguished_are_a_tie_in_the_headline():
    x, y = task(60)
    found = th.transfer({"one": good(), "same": good(), "poor": poor()}, (x, y))
    assert found.ties == ["one", "same"]
    head = found.answers[0]
    assert head.text.startswith("Tie: one and same are not distinguished")
    assert (head.certainty, head.finding) == ("undecided", "tie")
    assert found.summary().startswith("Tie: ")
    assert found.to_frame()["tie"].tolist() == [True, True, False]
    assert "Tie: one and same" in found._repr_html_()
    assert repr(found).startswith("Transfer(3 models; one and same tie; forecast accuracy ")
    assert len(found.notes) == len(set(found.notes)) > 0


def test_no_interval_is_100_to_100_and_the_number_that_ranks_comes_first():
    """Two classes far apart: every example is predicted, which does not mean that all ever are."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(50, 8, generator=made) + 8.0 * (torch.arange(50) % 2).unsqueeze(1)
    found = th.transfer({"a": good(), "b": poor()}, (x, torch.arange(50) % 2))
    for name in found.names:
        value, low, high = found.forecast(name)
        assert low < value < 1.0
        assert low < 0.97
        assert value <= high < 1.0
    frame = found.to_frame()
    assert list(frame.columns)[:3] == ["rank", "model", "error"]
    assert frame["error"].is_monotonic_increasing


def test_few_labels_are_said_to_be_few():
    x, y = task(60)
    y = torch.where(torch.arange(60) < 5, 2, y)  # five of a third class
    found = th.transfer(good(), (x, y))
    assert any(
        note.startswith("Few labels: 1 of 3 classes have fewer than 10") for note in found.notes
    )
    assert found.record.contents["data"]["smallest_class"] == 5
    (note,) = found.record.contents["notes"][:1]
    assert note["note"] == Note.FEW_LABELS
    assert note["facts"] == {"few": 1, "classes": 3, "enough": 10, "smallest": 5}
    assert not any("Few labels" in note for note in th.transfer(good(), task(60)).notes)


def test_notes_of_several_models_are_one_line_and_older_notes_are_read(tmp_path):
    models = {name: good().requires_grad_(False) for name in "ab"}
    found = th.transfer(models, task(60))
    line = "a and b: No parameter below the head is trainable: the forecast is that of a linear"
    assert sum(note.startswith(line) for note in found.notes) == 1
    kinds = [note["note"] for note in found.record.contents["notes"]]
    assert kinds.count(Note.ONE_SIZE) == 1
    older = copy.deepcopy(dict(found.record.contents))
    older["notes"] = [note["text"] for note in older["notes"]]
    for model in older["models"]:
        model["notes"] = [note["text"] for note in model["notes"]]
    earlier = Transfer(replace(found.record, contents=older))
    earlier.save(tmp_path / "older")
    loaded = th.load(tmp_path / "older")
    assert loaded.notes == found.notes
    assert loaded.summary().splitlines()[-2:] == found.summary().splitlines()[-2:]
    older["notes"] = [{"note": "few-labels"}]
    with pytest.raises(RecordError, match="notes/0/text is missing"):
        require_transfer(replace(found.record, contents=older), "folder")


def test_features_beyond_the_memory_limit_are_refused_with_numbers():
    wide = nn.Sequential(nn.Linear(3, 20_000), nn.ReLU(), nn.Linear(20_000, 2))
    data = torch.randn(100, 3), torch.arange(100) % 2
    with pytest.raises(DomainError, match=r"at least [\d.]+ MB .*100 examples and their features"):
        th.transfer(wide, data, memory_limit="5MB")


def test_kernels_beyond_the_memory_limit_are_refused_with_numbers():
    x, y = task(1500)
    with pytest.raises(MemoryLimitError, match=r"1500 examples need 126 MB.*examples=\d+"):
        th.transfer(good(), (x, y), memory_limit="40MB")
