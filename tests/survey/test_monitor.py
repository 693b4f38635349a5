"""The monitor: training is not disturbed, the schedule holds, histories survive."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import theodolite as th
from tests.survey.subjects import blobs, cnn, images, mlp
from theodolite.errors import DomainError, RecordError
from theodolite.surveys import Budget
from theodolite.surveys import monitor as monitor_module
from theodolite.surveys.monitor import one_thread_beside_gpu


def train(model, data, steps, after=lambda step: None):
    """Plain SGD with momentum in which dropout and shuffling draw random numbers."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(TensorDataset(*data), batch_size=16, shuffle=True)
    model.train()
    step = 0
    while step < steps:
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            after(step)
            step += 1
    return model


def test_training_is_bitwise_the_same_with_the_monitor():
    data = images()
    plain = train(cnn(), data, 8)
    watched = cnn()
    watched[1].eval()  # modules keep flags of their own
    flags = [module.training for module in watched.modules()]
    loader = DataLoader(TensorDataset(*data), batch_size=7, shuffle=True)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with th.Monitor(
        watched, loader, loss=nn.CrossEntropyLoss(), every=3, permutations=2
    ) as monitor:
        monitor.measure(0)
        assert [module.training for module in watched.modules()] == flags
        assert torch.equal(torch.get_rng_state(), state)
        assert all(parameter.grad is None for parameter in watched.parameters())
        train(watched, data, 8, lambda step: monitor.step(step + 1))
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, watched.state_dict()[name]), name
    assert not any(module._forward_hooks for module in watched.modules())


def test_gradients_are_kept_during_accumulation():
    model, (x, y) = mlp(), blobs()
    functional.cross_entropy(model(x), y).backward()
    before = [parameter.grad for parameter in model.parameters()]
    copies = [grad.clone() for grad in before]
    th.Monitor(model, (x, y), every=1).step(0)
    for parameter, grad, copy in zip(model.parameters(), before, copies, strict=True):
        assert parameter.grad is grad
        assert torch.equal(grad, copy)


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (4, [0, 4, 8, 11]),
        ([1, 7], [1, 7, 11]),
        (lambda step: step == 2, [2, 11]),
        ("log", [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11]),
    ],
    ids=["number", "list", "function", "log"],
)
def test_schedules(every, expected):
    with th.Monitor(nn.Linear(6, 3), blobs(), every=every, families="kernel") as monitor:
        for step in range(12):
            monitor.step(step)
    assert monitor.history.steps == expected


class Clock:
    """Seconds that pass when a test says so, and two while the model is measured."""

    def __init__(self, monkeypatch):
        self.now, measure = 0.0, monitor_module.measure_model

        def slowly(*given, **named):
            self.now += 2
            return measure(*given, **named)

        monkeypatch.setattr(monitor_module, "measure_model", slowly)

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(None, list(range(0, 60, 3))), (0.2, [0, 30, 42, 51, 59]), (0.1, [0, 59]), (0.02, [0, 59])],
)
def test_a_budget_passes_over_steps_that_are_due(budget, expected, monkeypatch):
    """A step takes a second, a measurement two: with 0.2 the second waits for six seconds' room."""
    clock, model = Clock(monkeypatch), mlp()
    chosen = Budget(budget, clock=clock)
    with th.Monitor(model, blobs(), every=3, families="kernel", budget=chosen) as monitor:
        for step in range(60):
            monitor.step(step)
            clock.now += 1
        assert monitor.overhead == pytest.approx(2 * len(monitor.history.steps) / 60)
    assert monitor.history.steps == ([*expected, 59] if budget is None else expected)
    config = monitor.history.run.head.contents["config"]
    assert config.get("budget") == budget
    assert monitor.overhead == pytest.approx(2 * len(monitor.history.steps) / 60)
    if budget is not None and budget * 60 >= 4:  # the first and the last fit into it
        assert monitor.overhead <= budget


@pytest.mark.parametrize("share", [0.0, -0.1, float("nan")])
def test_a_budget_is_positive(share):
    with pytest.raises(DomainError, match="budget: expected a positive share"):
        th.Monitor(mlp(), blobs(), budget=share)


def test_the_last_step_is_measured_in_full_and_once():
    with th.Monitor(mlp(), blobs(), every=1, options={"tangent": "exact"}) as monitor:
        for step in range(4):
            monitor.step(step)
    history = monitor.history
    assert history.steps == [0, 1, 2, 3]
    cheap, full = history.survey(1), history.survey(3)
    assert np.isnan(cheap.estimate("cka_target", "0").z_score)
    assert full.estimate("cka_target", "0").null_sd > 0
    assert "stiffness" in set(full.to_frame().measure) - set(cheap.to_frame().measure)
    assert full.curve("forward_kernel", "0")


def test_no_last_measurement_after_an_error():
    monitor = th.Monitor(nn.Linear(6, 3), blobs(), every=5, families="kernel")
    monitor.step(0)
    monitor.step(1)
    with pytest.raises(RuntimeError, match="diverged"), monitor:
        raise RuntimeError("diverged")
    assert monitor.history.steps == [0]


def test_curves_at_no_more_than_a_dozen_steps(tmp_path):
    model = nn.Linear(6, 3)
    with th.Monitor(model, blobs(), every=1, families="kernel", folder=tmp_path) as monitor:
        for step in range(40):
            monitor.step(step)
    history = th.load(tmp_path)
    drawn = [r.contents["step"] for r in history.run.steps if r.contents["curves"]]
    assert drawn == [0, 1, 2, 4, 8, 16, 32, 39]
    assert history.steps == list(range(40))
    assert all(record.contents["rows"] for record in history.run.steps)


def test_a_history_comes_back_as_it_was(tmp_path):
    with th.Monitor(
        mlp(),
        blobs(),
        every=2,
        name="a/b<c>",
        options={"label_source": "true", "split": "train"},
    ) as monitor:
        for step in range(4):
            monitor.step(step)
    monitor.history.save(tmp_path / "run")
    loaded = th.load(tmp_path / "run")
    assert isinstance(loaded, th.History)
    assert loaded.to_frame().equals(monitor.history.to_frame())
    assert loaded.run.name == "a/b<c>"
    head = loaded.run.head.contents
    assert (head["data"]["label_source"], head["data"]["split"]) == ("true", "train")
    assert head["config"]["every"] == 2
    assert loaded.layers == ["0", "2", "4"]
    assert "step 3, the last of 3 measured steps" in loaded.summary()
    for step in loaded.steps:
        first, second = monitor.history.survey(step), loaded.survey(step)
        assert first.record.arrays.keys() == second.record.arrays.keys()


def written(steps, folder, **more):
    options = {"every": 1, "families": "kernel", "folder": folder, **more}
    with th.Monitor(nn.Linear(6, 3), blobs(), **options) as monitor:
        for step in range(steps):
            monitor.step(step)
    return monitor


def test_a_new_run_leaves_the_old_one_alone(tmp_path):
    written(5, tmp_path / "run")
    with pytest.warns(UserWarning, match="run holds a run already: this one is written to .*run-2"):
        second = written(2, tmp_path / "run")
    assert second.folder == tmp_path / "run-2"
    assert th.load(tmp_path / "run").steps == [0, 1, 2, 3, 4]
    assert th.load(tmp_path / "run-2").steps == [0, 1]


def test_a_new_run_over_the_old_one_does_not_mix_with_it(tmp_path):
    written(5, tmp_path)
    written(2, tmp_path, overwrite=True)
    assert th.load(tmp_path).steps == [0, 1]


def test_saving_leaves_what_is_there(tmp_path):
    found = th.survey(nn.Linear(6, 3), blobs(), families="kernel")
    assert found.save(tmp_path / "a") == tmp_path / "a"
    with pytest.warns(UserWarning, match="a-2"):
        assert found.save(tmp_path / "a") == tmp_path / "a-2"
    assert found.save(tmp_path / "a", overwrite=True) == tmp_path / "a"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RecordError, match=r"expected a folder to save in, got .* which is a file"):
        found.save(tmp_path / "file")


def test_a_history_without_its_last_commit_loads(tmp_path):
    monitor = th.Monitor(nn.Linear(6, 3), blobs(), every=1, families="kernel", folder=tmp_path)
    monitor.step(0)
    (tmp_path / "steps" / "0000000001").mkdir()  # what a kill in the middle of a step leaves
    assert th.load(tmp_path).steps == [0]


def test_the_probe_is_the_same_at_every_step():
    monitor = th.Monitor(mlp(), blobs(90), every=1, sizes={"kernel": 30, "covariance": 30})
    for step in range(2):
        monitor.step(step)
    hashes = {r.contents["data"]["probe_hash"] for r in monitor.history.run.steps}
    assert len(hashes) == 1
    assert monitor.history.run.head.contents["data"]["probe_hash"] in hashes


def test_the_record_says_how_the_tangent_family_was_measured():
    monitor = th.Monitor(mlp(), blobs(), every=1)
    route = monitor.step(0).record.contents["routes"]["tangent"]
    assert (route["method"], route["n"]) == ("exact", 16)
    few = th.Monitor(mlp(), blobs(), every=1, options={"tangent": "sketch"})
    route = few.step(0).record.contents["routes"]["tangent"]
    assert (route["method"], route["n"], route["sketch_vectors"]) == ("sketch", 16, 16)


def test_true_labels_of_the_probe_are_watched_and_saved(tmp_path):
    x, y = blobs()
    own = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    for name, truth in (("with", y), ("without", None)):
        folder = tmp_path / name
        with th.Monitor(mlp(), (x, own), truth=truth, families="kernel", folder=folder) as monitor:
            monitor.step(0)
    told, untold = (th.load(tmp_path / name).survey(0) for name in ("with", "without"))
    wanted = th.survey(mlp(), (x, y), families="kernel", sizes={"kernel": 100})
    for layer in told.layers:
        true = wanted.estimate("cka_target", layer).value
        assert told.estimate("cka_truth", layer).value == pytest.approx(true)
        given = untold.estimate("cka_target", layer).value
        assert told.estimate("cka_target", layer).value == given != true
    assert "cka_truth" not in {row["measure"] for row in untold.record.contents["rows"]}


def measured_at(history, measure):
    """Steps at which a measure has rows."""
    return [
        record.contents["step"]
        for record in history.run.steps
        if any(row["measure"] == measure for row in record.contents["rows"])
    ]


def watched(steps, **options):
    with th.Monitor(mlp(), blobs(), **options) as monitor:
        for step in range(steps):
            monitor.step(step)
    return monitor.history


def test_what_takes_time_is_measured_at_one_step_in_eight():
    history = watched(20, every=1)
    for measure in ("cka_target", "misalignment", "feature_omega_contrast", "loss"):
        assert measured_at(history, measure) == list(range(20))
    for measure in ("alignment_area", "tangent_alignment", "omega_contrast"):
        assert measured_at(history, measure) == [0, 8, 16, 19]
    assert [r.contents["step"] for r in history.run.steps if r.contents["curves"]] == [0, 16, 19]
    light, full = (history.survey(step).record.contents for step in (9, 16))
    reason = "due once in 8 measurements, and at the last one"
    assert light["skipped"] == dict.fromkeys(("representation", "tangent", "gradient"), reason)
    assert full["skipped"] == {}
    cadence = {"representation": 8, "tangent": 8, "gradient": 8, "curves": 16}
    assert history.run.head.contents["config"]["cadence"] == cadence


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every": 1, "cadence": 1}, [0, 1, 2, 3, 4, 5]),
        ({"every": 1, "cadence": {"tangent": 3}}, [0, 3, 5]),
        ({"every": 2, "cadence": {"tangent": 2}}, [0, 4, 5]),
        ({"every": 1, "cadence": {"curves": 3}}, [0, 1, 2, 3, 4, 5]),
        ({"every": 1, "families": ["kernel", "tangent"]}, [0, 1, 2, 3, 4, 5]),
        ({"every": [1, 2, 3]}, [1, 2, 3, 5]),
        ({"every": "log"}, [0, 1, 2, 3, 4, 5]),
    ],
    ids=["number", "family", "of the measured", "curves", "named families", "named steps", "log"],
)
def test_cadences(options, expected):
    assert measured_at(watched(6, **options), "tangent_alignment") == expected


def test_a_step_at_which_nothing_is_due_is_left_out():
    history = watched(7, every=1, families="tangent", cadence={"tangent": 3})
    assert history.steps == [0, 3, 6]
    features = watched(3, every=1, families="gradient", cadence={"gradient": 5})
    assert features.steps == measured_at(features, "feature_omega") == [0, 1, 2]
    assert measured_at(features, "omega") == [0, 2]


class Scaled(nn.Module):
    """No matrix whose inputs have a covariance."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x * self.scale


def test_a_step_at_which_only_what_does_not_apply_is_due_is_left_out(tmp_path):
    options = {"families": ["representation", "covariance"], "cadence": {"representation": 2}}
    with th.Monitor(Scaled(), blobs(), every=1, folder=tmp_path, **options) as monitor:
        found = [monitor.step(step) for step in range(4)]
    assert [survey is None for survey in found] == [False, True, False, True]
    assert monitor.history.steps == th.load(tmp_path).steps == [0, 2, 3]
    assert measured_at(monitor.history, "alignment_area") == [0, 2, 3]


def test_families_at_rest_read_no_features():
    history = watched(3, every=1, families=["kernel", "covariance"], cadence={"kernel": 2})
    assert ["features" in r.contents["seconds"] for r in history.run.steps] == [True, False, True]
    assert measured_at(history, "misalignment") == [0, 1, 2]


def test_measuring_by_hand_is_complete():
    monitor = th.Monitor(mlp(), blobs(), every=1)
    monitor.step(0)
    assert "tangent" in monitor.step(1).record.contents["skipped"]
    assert monitor.measure(2).record.contents["skipped"] == {}


def test_numbers_do_not_depend_on_the_cadence():
    sparse, dense = watched(10, every=1), watched(10, every=1, cadence=1)
    pairs = zip(sparse.run.steps, dense.run.steps, strict=True)
    for first, second in pairs:
        known = {(r["family"], r["measure"], r["layer"]): r for r in second.contents["rows"]}
        for row in first.contents["rows"]:
            assert row == pytest.approx(
                known[row["family"], row["measure"], row["layer"]], nan_ok=True
            )


class Shifted(nn.Module):
    """Adds a number that is learned, or none, before the first matrix; may write to its input."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.shift = kind, nn.Parameter(torch.ones(6))
        self.matrix = nn.Linear(6, 12)

    def forward(self, x):
        if self.kind == "written to":
            x = x.clone().mul_(self.shift)
        elif self.kind == "learned":
            x = x * self.shift
        return self.matrix(x)


@pytest.mark.parametrize("kind", ["data", "learned", "written to"])
def test_inputs_of_the_first_layer_are_kept_only_where_weights_cannot_change_them(kind):
    x, y = blobs()
    model = Shifted(kind)
    monitor = th.Monitor(model, (x, y), every=1, families="covariance")
    before = monitor.step(0).estimate("relative_misalignment", "matrix").value
    with torch.no_grad():
        model.shift.copy_(torch.tensor([5.0, 0.1, 1.0, 1.0, 3.0, 0.2]))
    after = monitor.step(1).estimate("relative_misalignment", "matrix").value
    fresh = th.Monitor(model, (x, y), every=1, families="covariance").step(0)
    assert after == pytest.approx(fresh.estimate("relative_misalignment", "matrix").value)
    assert (after == before) == (kind == "data")


@pytest.mark.parametrize("fails", [False, True], ids=["plain", "with an error"])
def test_beside_a_gpu_a_measurement_takes_one_thread(monkeypatch, fails):
    monkeypatch.setattr(nn.Parameter, "is_cuda", property(lambda self: True), raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(KeyError) if fails else nullcontext(), one_thread_beside_gpu(mlp()):
            assert torch.get_num_threads() == 1
            if fails:
                raise KeyError
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_model_on_the_cpu_keeps_its_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread_beside_gpu(mlp()):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_last_step_may_be_told_at_the_end():
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    monitor = th.Monitor(nn.Linear(3, 2), (x, y), every=2, families="kernel")
    for step in range(4):
        monitor.step(step)
    monitor.close(4)
    assert monitor.history.steps == [0, 2, 4]
    with pytest.raises(DomainError, match="pass increasing steps"):
        monitor.close(3)


def test_answers_of_earlier_steps_name_their_step():
    """Light steps in between have no accuracies, and held-out examples that were given stay so."""
    torch.manual_seed(0)
    model, (x, y) = mlp(), blobs(60)
    monitor = th.Monitor(model, (x, y), every=1, held_out=blobs(40, seed=1))
    for step in range(3):
        monitor.step(step)
    answers = {answer.question: answer for answer in monitor.history.answers}
    assert "measured at step 0; fitted on" in answers["layer"].evidence
    assert "measured at step" not in answers["task"].evidence
    assert "Pass `held_out=`" not in answers["task"].advice
    monitor.close()
    assert not any("measured at step" in answer.evidence for answer in monitor.history.answers)
