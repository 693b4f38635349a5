"""The gallery: every record below a folder, filtered, sorted and compared in a real browser."""

import pytest
import torch

import theodolite as th
from tests.networks import mlp
from tests.report import browser as driver
from tests.report.made_records import survey_run
from theodolite.errors import RecordError
from theodolite.records import Record, save_record, save_run
from theodolite_papers.ledger.gallery import Exhibit, find_exhibits, write_gallery


def study_record(seed, width, accuracy):
    return Record(
        {
            "kind": "study", "study": "imani2022.made", "size": "lite", "seed": seed,
            "point": {"width": width}, "config": {}, "numbers": {"accuracy": accuracy, "loss": 0.5},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("records")
    for k, (width, accuracy) in enumerate([(8, 0.5), (16, 0.9), (32, 0.7)]):
        save_record(study_record(k, width, accuracy), root / "sweep" / f"seed-{k}")
    save_record(study_record(9, 64, float("nan")), root / "sweep" / "seed-9")
    save_run(survey_run(), root / "surveys" / "one")
    save_record(Record({"kind": "transfer", "name": "a ranking"}, {}), root / "ranking")
    (root / "broken").mkdir()
    (root / "broken" / "record.json").write_text("{")
    return root


def test_every_record_is_found_and_a_damaged_one_hides_no_other(folder):
    exhibits = {exhibit.folder: exhibit for exhibit in find_exhibits(folder)}
    assert set(exhibits) == {
        "broken", "surveys/one", "sweep/seed-0", "sweep/seed-1", "sweep/seed-2", "sweep/seed-9"
    }  # fmt: skip
    assert exhibits["broken"].damage
    assert exhibits["sweep/seed-1"].numbers == {"accuracy": 0.9, "loss": 0.5}
    assert exhibits["sweep/seed-1"].settings == {"size": "lite", "seed": "1", "width": "16"}
    assert exhibits["surveys/one"].profiles


def test_headlines_of_a_run_are_those_of_its_last_moment(folder):
    run = survey_run()
    (exhibit,) = [item for item in find_exhibits(folder) if item.folder == "surveys/one"]
    rows = run.steps[-1].contents["rows"]
    values = [row["value"] for row in rows if row["measure"] == "cka_target" and row["layer"]]
    assert list(exhibit.profiles["kernel"]) == values
    assert exhibit.numbers["CKA to labels, last layer"] == values[-1]


def test_a_column_of_the_last_layer_shows_it_or_nothing(folder):
    (exhibit,) = [item for item in find_exhibits(folder) if item.folder == "surveys/one"]
    assert exhibit.profiles["covariance"]  # of the first layer alone
    assert "misalignment / random, last layer" not in exhibit.numbers


def test_a_history_shows_the_last_numbers_of_every_family(tmp_path):
    x, y = torch.randn(40, 6), torch.arange(40) % 3
    monitor = th.Monitor(mlp([6, 5, 3]), (x, y), every=5, folder=tmp_path / "run")
    for step in range(0, 11, 5):
        monitor.step(step)
    (exhibit,) = find_exhibits(tmp_path)
    defined = {"representation", "kernel", "tangent", "gradient"}  # too few filters for covariance
    assert set(exhibit.profiles) == defined
    assert exhibit.numbers["loss"] == monitor.history.survey(10).estimate("loss").value


def test_a_folder_without_records_is_said_so(tmp_path):
    with pytest.raises(RecordError, match="found none"):
        find_exhibits(tmp_path)


@pytest.mark.skipif(driver.missing(), reason=f"needs a browser: {driver.INSTALL}")
def test_filter_sort_and_compare(folder, tmp_path):
    page = write_gallery(find_exhibits(folder), tmp_path / "gallery.html")
    visible = (
        "return [...document.querySelectorAll('#records tbody tr:not(.spacer)')]"
        ".map((r) => r.cells[3].textContent)"
    )
    with driver.running_browser(tmp_path / "profile") as window:
        window.navigate(page)
        assert window.script("return document.documentElement.dataset.ready") == "yes"
        assert len(window.script(visible)) == 6

        def type_filter(text):
            window.script(
                "const f = document.getElementById('filter'); f.value = arguments[0];"
                "f.dispatchEvent(new Event('input'))",
                text,
            )
            return window.script(visible)

        assert type_filter("accuracy>0.6") == ["sweep/seed-1", "sweep/seed-2"]
        assert type_filter("width=8") == ["sweep/seed-0"]
        assert type_filter("imani2022 accuracy<=0.7") == ["sweep/seed-0", "sweep/seed-2"]
        type_filter("surveys/one")
        axes = "return ['across', 'up'].map((id) => document.getElementById(id).value)"
        before = window.script(axes)
        assert len(set(before) - {"accuracy", "seed", "width"}) == 2  # what the survey has
        assert type_filter("imani2022") == [f"sweep/seed-{k}" for k in (0, 1, 2, 9)]
        assert window.script(axes) != before
        assert len(set(window.script(axes)) & {"accuracy", "loss", "seed", "width"}) == 2
        window.script(
            "[...document.querySelectorAll('#records th button')]"
            ".find((b) => b.textContent === 'accuracy').click()"
        )
        assert window.script(visible) == [f"sweep/seed-{k}" for k in (0, 2, 1, 9)]
        window.script(
            "document.querySelectorAll('#records tbody tr input')"
            ".forEach((box, k) => { if (k < 2) box.click() })"
        )
        compared = (
            "return [...document.querySelectorAll('#compared tr')]"
            ".map((r) => [...r.cells].map((c) => c.textContent))"
        )
        table = {row[0]: row[1:] for row in window.script(compared)}
        assert table["accuracy"] == ["0.5", "0.7"]
        assert window.log() == []


@pytest.mark.skipif(driver.missing(), reason=f"needs a browser: {driver.INSTALL}")
def test_of_a_thousand_records_only_rows_in_view_are_drawn(tmp_path):
    def made(k):
        kind = k % 30
        numbers = {f"number {kind}.{j}": (k * j % 97) / 97 for j in range(50)}
        settings = {"seed": str(k), "size": "lite"}
        return Exhibit(f"study.{kind}", "study", f"study/{k:04d}", settings, numbers)

    page = write_gallery([made(k) for k in range(1000)], tmp_path / "gallery.html")
    first = "return document.querySelector('#records tbody tr:not(.spacer)').cells[3].textContent"
    last = (
        "return [...document.querySelectorAll('#records tbody tr:not(.spacer)')]"
        ".at(-1).cells[3].textContent"
    )
    with driver.running_browser(tmp_path / "profile") as window:
        window.navigate(page)
        assert window.script("return document.documentElement.dataset.ready") == "yes"
        assert window.script("return document.getElementsByTagName('td').length") < 3000
        assert window.script(first) == "study/0000"
        window.script("document.getElementById('window').scrollTop = 1e6")
        window.asynchronous("requestAnimationFrame(() => setTimeout(arguments[0], 50))")
        assert window.script(last) == "study/0999"
        window.script(
            "const f = document.getElementById('filter'); f.value = 'study.7';"
            "f.dispatchEvent(new Event('input'))"
        )
        assert window.script("return document.getElementById('count').value") == "34"
        assert window.script(first) == "study/0007"
        heads = window.texts("#records th button")
        assert "number 7.3" in heads
        assert "number 8.3" not in heads
        assert window.log() == []
