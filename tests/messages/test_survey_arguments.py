"""Arguments of surveys, monitors, comparisons and rankings of a wrong kind: no raw errors."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import theodolite as th
from theodolite.errors import DomainError, DtypeError, ShapeError, TheodoliteError

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 2


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def survey(data=(X, Y), **keywords):
    keywords = {"families": "representation", "progress": False, **keywords}
    return th.survey(network(), data, **keywords)


OPTIONS = {
    "families": (3, "families: expected text or a list, got 3"),
    "layers": (1, "layers: expected names or patterns as text, or a predicate, got 1"),
    "params": (3, "params: expected names or patterns as text, or a predicate, got 3"),
    "loss": ("ce", "loss: expected a function, got 'ce'"),
    "batch_fn": (3, "batch_fn: expected a function, got 3"),
    "progress": ("yes", "progress: expected"),
    "seconds": ("30", "seconds: expected a positive number, or None for no limit, got '30'"),
    "sizes": (100, "sizes: expected a mapping, got 100"),
    "seed": (1.5, "seed: expected a whole number, got 1.5"),
    "name": (3, "name: expected text, got 3"),
    "split": (3, "split: expected text, got 3"),
    "details": ("no", "details: expected True or False, got 'no'"),
    "classes": (2, "classes: expected a list, got 2"),
    "memory_limit": ([1], "memory_limit: expected a size such as '4GB' or '512MiB', got [1]"),
    "device": (object(), "device: expected a device of this machine that holds numbers"),
    "options": ("fast", "options: expected SurveyOptions or a mapping or None, got 'fast'"),
    "truth": ("true", "truth: expected class numbers or real numbers, got str"),
    "groups": ("domain", "groups: expected a list with a number or a name for each example"),
    "held_out": (5, "held_out: data: expected tensors, (inputs, targets), a mapping"),
}


@pytest.mark.parametrize(("name", "value", "message"), [(k, *v) for k, v in OPTIONS.items()])
def test_says_what_an_option_may_be(name, value, message):
    families = "gradient" if name in {"params", "groups"} else "representation"
    with pytest.raises(TheodoliteError) as raised:
        survey(**{"families": families, name: value})
    assert message in str(raised.value)


def test_a_seed_is_of_limited_size():
    with pytest.raises(DomainError, match="seed: expected at most 4,503,599,627,370,496, got 1000"):
        survey(seed=10**20)


def test_whole_numbers_of_numpy_are_seeds():
    assert survey(seed=np.int64(3)).layers == survey(seed=3).layers


def test_a_loss_is_no_class():
    with pytest.raises(DtypeError, match="loss: expected a function, got the class CrossEntropy"):
        survey(loss=nn.CrossEntropyLoss)


def test_a_class_is_no_predicate():
    with pytest.raises(DtypeError, match=r"layers: expected names or patterns .* got Linear"):
        survey(layers=nn.Linear)


def test_names_of_classes_are_complete():
    """One name for two classes was recorded as it was."""
    with pytest.raises(DomainError, match="classes: expected a name for each of 2 classes, got 1"):
        survey(classes=["cat"])
    assert survey(classes=["cat", "dog", "bird"]).record.contents["data"]["num_classes"] == 2


def test_complex_numbers_are_refused():
    """Their imaginary part was dropped."""
    with pytest.raises(DtypeError, match=r"targets: .* got complex numbers; pass \.real"):
        survey((X, Y + 0j))
    with pytest.raises(DtypeError, match=r"features\['a'\]: .* got complex numbers"):
        th.survey_features({"a": X + 1j}, Y)


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.array([None, 2], dtype=object)])
def test_inputs_are_numbers(array):
    with pytest.raises(DtypeError, match="data: expected numbers, got an array of"):
        survey((array, np.array([0, 1])))


def test_a_data_frame_is_named():
    with pytest.raises(DtypeError, match=r"got DataFrame; pass data\.to_numpy\(\)"):
        th.survey(network(), pd.DataFrame(X.numpy()), Y, progress=False)


@pytest.mark.parametrize("pool", [lambda rows: rows.sum(), lambda rows: 3])
def test_a_pool_keeps_the_examples(pool):
    with pytest.raises(DomainError, match="pool: expected a tensor with one row per example"):
        survey(pool=pool)


def test_a_pool_may_give_one_number():
    assert survey(pool=lambda rows: rows.flatten(1).sum(1)).layers == ["0", "2"]


def monitor(**keywords):
    return th.Monitor(network(), (X, Y), **{"families": "kernel", **keywords})


@pytest.mark.parametrize("every", [[-1], ["1"], [1.5]])
def test_steps_are_whole_numbers(every):
    """A monitor with these steps never measured."""
    with pytest.raises(DomainError, match="every: expected steps as integers of at least 0, got"):
        monitor(every=every)


def test_steps_of_numpy_are_steps():
    assert monitor(every=np.arange(0, 9, 3)).step(3) is not None


@pytest.mark.parametrize("step", ["a", None, 1.5, -1])
def test_a_measured_step_is_a_whole_number(step):
    with pytest.raises(DomainError, match="step: expected an integer of at least 0, got"):
        monitor().measure(step)


def test_a_budget_is_a_share():
    with pytest.raises(DomainError, match=r"budget: expected a positive share .* got '5%'"):
        monitor(budget="5%")
    with pytest.raises(DtypeError, match=r"folder: expected a path as text .*, got int"):
        monitor(folder=3)


@pytest.fixture(scope="module")
def result():
    return survey()


CALLS = {
    "number": (lambda s: s.estimate("alignment_area"), "layer: expected a name, since every layer"),
    "layer": (lambda s: s.estimate("alignment_area", 0), "unknown layer 0; did you mean '0'?"),
    "curve": (
        lambda s: s.curve("alignment_curve"),
        "has its own curve 'alignment_curve'",
    ),
    "curves": (lambda s: s.curve("alignment"), "did you mean 'alignment_curve'?"),
    "no name": (lambda s: s.estimate(None), "unknown measure None; expected one of"),
    "plot": (lambda s: s.plot(None), "name: expected text, got None"),
    "page": (lambda s: s.to_html(None), "path: expected a path as text or pathlib.Path"),
    "save": (lambda s: s.save(3), "folder: expected a path as text or pathlib.Path, got int"),
    "load": (lambda s: th.load(None), "folder: expected a path as text or pathlib.Path"),
    "limit": (lambda s: th.load("a", max_bytes="1GB"), "max_bytes: expected an integer of at"),
    "names": (lambda s: th.compare(s, s, names="ab"), "names: expected a list of texts"),
    "entries": (lambda s: th.compare(s, s, names=[1, 2]), "names: expected a list of texts"),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS)
def test_results_say_what_they_expect(result, call, message):
    with pytest.raises(TheodoliteError) as raised:
        call(result)
    assert message in str(raised.value)


TRANSFERS = {
    "option": ({"sed": 1}, "unknown option 'sed'; did you mean 'seed'?"),
    "options": ({"options": {"seed": 1}}, "options: expected TransferOptions, got dict; pass its"),
    "prepare": ({"prepare": 3}, "prepare: expected a function, got 3"),
    "prepares": ({"prepare": {"a": 3}}, "prepare['a']: expected a function, got 3"),
    "progress": ({"progress": "auto"}, "progress: expected a function, got 'auto'"),
    "ray": ({"ray": True}, "ray: expected RayResources or None, got True"),
    "folder": ({"folder": 3}, "folder: expected a path as text or pathlib.Path, got int"),
}


@pytest.mark.parametrize(("keywords", "message"), TRANSFERS.values(), ids=TRANSFERS)
def test_a_ranking_checks_its_arguments_first(keywords, message):
    with pytest.raises(TheodoliteError) as raised:
        th.transfer(network(), (X, Y), **keywords)
    assert message in str(raised.value)


def test_held_out_examples_are_named():
    with pytest.raises(ShapeError, match=r"^held_out: expected at least one example"):
        survey(held_out=(X[:0], Y[:0]))
