"""Rankings that go on in a folder: what is read again, and what is another run."""

import copy
import functools

import pytest
import torch

import theodolite as th
from tests.survey.test_transfer import Informed, good, letters, poor, task, texts_of
from theodolite.records import Record, load_record, save_record
from theodolite.surveys.transfer_sources import identity


def test_other_texts_are_another_run(tmp_path):
    x, y = task(40)

    def run(scale):
        texts = texts_of((scale * x.abs()).round())
        options = {"prepare": letters, "tangent": False, "folder": tmp_path / "run"}
        return th.transfer({"good": good()}, (texts, y), **options)

    seconds = run(1).to_frame()["seconds"][0]
    assert run(1).to_frame()["seconds"][0] == seconds  # read, not measured
    with pytest.warns(UserWarning, match="holds a run already"):
        run(2)


def test_a_run_that_was_broken_off_goes_on(tmp_path):
    built = []

    def first():
        built.append("first")
        return good()

    def second():
        built.append("second")
        return poor()

    th.transfer({"first": first}, task(60), folder=tmp_path / "run", tangent=False)
    (tmp_path / "run" / "record.json").unlink()  # killed before the end
    both = {"first": first, "second": second}
    found = th.transfer(both, task(60), folder=tmp_path / "run", tangent=False)
    assert built == ["first", "second"]
    assert found.names == ["first", "second"]
    again = th.transfer(both, task(60), folder=tmp_path / "run", tangent=False)
    assert built == ["first", "second"]
    assert again.record.contents["models"] == found.record.contents["models"]


def changed_model(found):
    del found["forecast"]


def changed_name(found):
    found["name"] = "another"


def changed_type(found):
    found["features"]["accuracy"] = "high"


@pytest.mark.parametrize("change", [changed_model, changed_name, changed_type])
def test_a_model_whose_record_is_damaged_is_measured_again(tmp_path, change):
    folder = tmp_path / "run"
    found = th.transfer({"good": good()}, task(60), folder=folder, tangent=False)
    (place,) = (folder / "models").iterdir()
    record = load_record(place)
    contents = copy.deepcopy(dict(record.contents))
    change(contents)
    save_record(Record(contents, record.arrays), place)
    again = th.transfer({"good": good()}, task(60), folder=folder, tangent=False)
    assert again.to_frame()["error"].tolist() == found.to_frame()["error"].tolist()
    assert load_record(place).contents["features"] == record.contents["features"]


def test_a_damaged_ranking_in_the_folder_is_another_run(tmp_path):
    th.transfer({"good": good()}, task(60), folder=tmp_path / "run", tangent=False)
    record = load_record(tmp_path / "run")
    save_record(Record({**record.contents, "data": []}, record.arrays), tmp_path / "run")
    with pytest.warns(UserWarning, match="holds a run already"):
        th.transfer({"good": good()}, task(60), folder=tmp_path / "run", tangent=False)


def test_another_run_in_the_folder_is_left_as_it_is(tmp_path):
    th.transfer(good(), task(60), folder=tmp_path / "run", tangent=False)
    before = (tmp_path / "run" / "record.json").read_bytes()
    with pytest.warns(UserWarning, match="holds a run already"):
        th.transfer(good(), task(80), folder=tmp_path / "run", tangent=False)
    assert (tmp_path / "run" / "record.json").read_bytes() == before
    assert (tmp_path / "run-2" / "record.json").exists()


def cropped(inputs, width):
    return torch.nn.functional.pad(inputs[:, :width], (0, 8 - width))


def test_what_has_changed_is_measured_again(tmp_path):
    """Other weights, another file or other arguments under the same name are another model."""
    place, file = tmp_path / "run", tmp_path / "net.py"

    def found(model, width=8):
        prepare = functools.partial(cropped, width=width)
        run = th.transfer({"a": model}, task(60), folder=place, tangent=False, prepare=prepare)
        return run.record.contents["models"][0]

    model = good()
    first = found(model)
    assert found(model)["seconds"] == first["seconds"]  # read, not measured
    with torch.no_grad():
        model.body.weight.copy_(poor().body.weight)
    assert found(model)["error"] > first["error"] + 0.1
    assert found(good(), width=1)["error"] > first["error"] + 0.1
    file.write_text("from tests.survey.test_transfer import good as net\n")
    assert found(f"{file}:net")["error"] == pytest.approx(first["error"])
    file.write_text("from tests.survey.test_transfer import poor as net\n")
    assert found(f"{file}:net")["error"] > first["error"] + 0.1


def test_functions_are_told_apart_by_what_they_do(tmp_path):
    """All lambdas have one name; what they say and what they close over may differ."""

    def seconds(build, prepare=None):
        run = th.transfer(
            {"a": build}, task(60), folder=tmp_path / "run", tangent=False, prepare=prepare
        )
        return run.record.contents["models"][0]["seconds"]

    def built(outputs):
        return lambda: Informed(slice(0, 2), outputs)

    first = seconds(built(5))
    assert seconds(built(5)) == first  # read, not measured
    assert seconds(built(6)) != first
    first = seconds(good, lambda inputs: inputs + 0)
    assert seconds(good, lambda inputs: inputs + 0) == first
    assert seconds(good, lambda inputs: inputs + 1) != first


def test_a_function_that_calls_itself_has_an_identity():
    def build(times=2):
        return build(times - 1) if times else good()

    assert identity(build) == identity(build)
