"""The page as text: self-contained, safe, small; its static pictures by their numbers."""

import base64
import copy
import hashlib
import html
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources

import pytest

from tests.report.made_records import (
    NASTY,
    history_run,
    sparse_run,
    survey_record,
    survey_run,
)
from tests.report.paths import numbers_at
from theodolite.records import Record, Run, load_run, save_run
from theodolite.report import notebook_html, write_html
from theodolite.report._overview import overview_of
from theodolite.report._page import page_html
from theodolite.report._reading import groups_of
from theodolite.report.pages import shown


class Parsed(HTMLParser):
    """Elements with their attributes, and the text of scripts and of marked numbers."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.numbers, self._open = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open = (tag, dict(attrs))

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        if self._open is None:
            return
        tag, attributes = self._open
        if tag == "script":
            self.scripts.append((attributes, data))
        if tag in {"b", "span"} and "data-source" in attributes:
            self.numbers.append((json.loads(attributes["data-source"]), data))


@pytest.fixture(scope="module")
def runs():
    return [history_run(name="true"), history_run(name="shuffled", growth=0.3, seed=7)]


@pytest.fixture(scope="module")
def parsed(runs):
    return Parsed(page_html(runs, "A & B"))


def test_scripts_are_allowed_by_their_hashes_alone(parsed):
    (policy,) = [a["content"] for tag, a in parsed.elements if a.get("http-equiv")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    executed = [data for attributes, data in parsed.scripts if "type" not in attributes]
    digests = [
        base64.b64encode(hashlib.sha256(data.encode()).digest()).decode() for data in executed
    ]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]
    assert len(executed) == 2
    assert rules["default-src"] == "'none'"


def test_nothing_points_outside(parsed):
    for tag, attributes in parsed.elements:
        assert tag not in {"link", "iframe", "img", "object", "embed", "base"}
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)


def test_headline_numbers_are_those_of_the_record(parsed, runs):
    headlines, whole = 4 * 3 + 1, 2 + 5
    assert len(parsed.numbers) == 2 * (headlines + whole)
    for source, text in parsed.numbers:
        assert text == shown(numbers_at(runs, source))


def strokes(text):
    """Every line and bar of the small pictures: limits, source and positions."""
    for svg in re.findall(r'<svg class="spark".*?</svg>', text, re.DOTALL):
        limits = json.loads(html.unescape(re.search(r'data-limits="(.*?)"', svg)[1]))
        for source, points in re.findall(r'<polyline [^>]*data-source="(.*?)" points="(.*?)"', svg):
            places = [tuple(map(float, pair.split(","))) for pair in points.split()]
            yield limits, json.loads(html.unescape(source)), [y for _, y in places]
        for source, path in re.findall(r'<path class="run[^>]*data-source="(.*?)" d="(.*?)"', svg):
            tops = [float(y) for y in re.findall(r"V([\d.-]+)H", path)]
            yield limits, json.loads(html.unescape(source)), tops


def stray(text, runs):
    """Positions in small pictures that are not those of the record."""
    found = []
    for limits, source, heights in strokes(text):
        values = numbers_at(runs, source["y"])
        assert len(values) == len(heights)
        bottom, top = limits[2:]
        wanted = [34 - 3 - (value - bottom) / (top - bottom) * 28 for value in values]
        found += [(a, b) for a, b in zip(heights, wanted, strict=True) if abs(a - b) > 0.011]
    return found


def test_covariance_curves_of_layers_have_scales_of_their_own():
    run = survey_run()
    contents, arrays = run.steps[0].contents, run.steps[0].arrays
    first, other = ({r: f"covariance/{i}/transfer/{r}" for r in ("x", "y")} for i in (0, 1))
    arrays |= {other["x"]: 1e4 * arrays[first["x"]], other["y"]: 50 * arrays[first["y"]]}
    curve = {"layer": "fc2", "family": "covariance", "name": "transfer", "labels": {}}
    contents["curves"].append(curve | {"arrays": other})
    rows = [row for row in contents["rows"] if row["measure"] == "relative_misalignment"]
    contents["rows"].append(rows[0] | {"layer": "fc2"})
    text = notebook_html([run])
    drawn = {str(source["y"]["path"][1]): (box, ys) for box, source, ys in strokes(text)}
    (small, upper), (large, lower) = drawn[first["y"]], drawn[other["y"]]
    assert large[3] == pytest.approx(50 * small[3], rel=1e-5)
    assert upper == pytest.approx(lower, abs=0.02)  # each fills the height of its picture
    assert "one scale a column (covariance: its own)" in text
    assert "covariance: its own" not in notebook_html([history_run()])
    assert stray(text, [run]) == []


@pytest.mark.parametrize("make", [survey_run, history_run], ids=["survey", "history"])
def test_small_pictures_show_the_record(make):
    run = make()
    text = notebook_html([run])
    assert len(list(strokes(text))) >= 10
    assert stray(text, [run]) == []
    changed = copy.deepcopy(run)
    for step in changed.steps:
        for row in step.contents["rows"]:
            row["value"] *= 1.03
    for name, array in changed.steps[0].arrays.items():
        if name.endswith("/y"):
            array *= 1.03
    assert len(stray(text, [changed])) > 10


def test_names_cannot_leave_their_place():
    text = page_html([history_run(NASTY, name="</script><script>alert(2)</script>")])
    found = Parsed(text)
    assert len([1 for attributes, _ in found.scripts]) == 3
    assert "alert(1)" not in "".join(data for a, data in found.scripts if "type" not in a)
    assert "<script>alert" not in text
    (data,) = [data for attributes, data in found.scripts if "type" in attributes]
    payload = json.loads(data)
    ticks = payload["figures"]["g0-kernel-cka-target"]["panels"][0]["layout"]["xaxis"]["ticktext"]
    assert ticks[0] == "fc&lt;b&gt;1&lt;/b&gt;"


def test_the_bundle_is_that_of_the_python_package():
    from plotly.offline import get_plotlyjs_version

    folder = resources.files("theodolite.report").joinpath("static")
    head = folder.joinpath("plotly-cartesian.min.js").read_text()[:200]
    assert f"(cartesian - minified) v{get_plotlyjs_version()}" in head
    assert folder.joinpath("plotly-cartesian.LICENSE").read_text().startswith("MIT License")


def test_size_of_a_demo(tmp_path):
    """Two MLPs and a CNN, a dozen steps with curves: at most 3 MB."""
    steps = tuple(range(0, 1200, 100))
    runs = [
        history_run(("a", "b", "c", "d"), name=f"MLP {i}", steps=steps, seed=i) for i in range(2)
    ]
    runs.append(history_run(("conv1", "conv2", "head"), name="CNN", steps=steps, shape=(3, 5, 5)))
    path = write_html(runs, tmp_path / "new" / "demo.html")
    assert path.stat().st_size < 3_000_000


def test_from_disk_the_same_page(tmp_path, runs):
    loaded = []
    for i, run in enumerate(runs):
        save_run(run, tmp_path / str(i))
        loaded.append(load_run(tmp_path / str(i)))
    assert page_html(loaded) == page_html(runs)


def test_long_runs_are_thinned_and_keep_both_ends():
    steps = tuple(range(90))
    run = history_run(("a", "b"), steps=steps)
    (data,) = [d for a, d in Parsed(page_html([run])).scripts if "type" in a]
    shown_steps = json.loads(data)["steps"][0]
    assert len(shown_steps) <= 62
    assert (shown_steps[0], shown_steps[-1]) == (0, 89)


def test_runs_that_fit_lose_no_step():
    run = history_run(("a", "b"), steps=tuple(range(60)))
    assert any(record.contents["curves"] for record in run.steps)
    (data,) = [d for a, d in Parsed(page_html([run])).scripts if "type" in a]
    assert json.loads(data)["steps"][0] == list(range(60))


def test_long_runs_keep_steps_at_which_a_family_was_taken():
    run = sparse_run(8, ("a", "b"), steps=tuple(range(200)))
    (data,) = [d for a, d in Parsed(page_html([run])).scripts if "type" in a]
    shown_steps = json.loads(data)["steps"][0]
    assert len(shown_steps) <= 62
    assert set(shown_steps) >= {*range(0, 200, 8), 199}


def test_a_run_that_was_not_closed_shows_the_latest_numbers_of_every_family():
    run = sparse_run(4, last=False, steps=(0, 1, 2, 3, 4, 5))
    overview = overview_of(groups_of([run], 60)[0])
    columns = {column.family.key: column for column in overview.columns}
    row = next(r for r in run.steps[4].contents["rows"] if r["measure"] == "tangent_alignment")
    (reading,) = columns["tangent"].cells[0].readings
    assert reading.number == shown(row["value"])
    assert json.loads(reading.source)["step"] == 4
    assert columns["tangent"].sentence.endswith("; numbers of step 4.")
    assert "numbers of" not in columns["kernel"].sentence


def test_a_step_has_one_place_in_the_small_pictures_of_all_runs_and_families():
    runs = [sparse_run(4, last=False, name=f"r{k}", steps=tuple(range(k))) for k in (6, 11)]
    columns = {c.family.key: c for c in overview_of(groups_of(runs, 60)[0]).columns}
    places = {}
    for key in ("kernel", "tangent"):
        for tag in re.findall(r"<polyline[^>]*>", columns[key].cells[0].picture):
            source = json.loads(html.unescape(re.search(r'data-source="([^"]*)"', tag)[1]))["y"]
            points = re.search(r' points="([^"]*)"', tag)[1].split()
            places[key, source["run"]] = dict(zip(source["step"], points, strict=True))
    across = {
        name: {step: point.split(",")[0] for step, point in found.items()}
        for name, found in places.items()
    }
    assert len(across) == 4
    assert all(found[4] == across["kernel", 1][4] for found in across.values())
    assert set(across["tangent", 1]) == {0, 4, 8}
    assert float(across["tangent", 1][8]) < float(across["kernel", 1][10])


def without(record, *families):
    contents = dict(record.contents)
    contents["rows"] = [row for row in contents["rows"] if row["family"] not in families]
    contents["curves"] = [c for c in contents["curves"] if c["family"] not in families]
    contents["skipped"] = dict.fromkeys(families, "the data have no labels")
    return Record(contents, record.arrays)


def run_of(record):
    return Run("", record, (record,))


def test_families_that_did_not_run_say_why():
    record = without(survey_record(), "representation", "tangent", "gradient")
    text = page_html([run_of(record)])
    for title in ("Representation", "Tangent", "Gradient"):
        assert text.count(f"{title}: not shown, the data have no labels.") == 1
        assert f'id="g0-section-{title.lower()}"' not in text  # no section without content
    assert "g0-kernel-cka-target" in text


def test_an_empty_record_still_makes_a_page():
    record = without(
        survey_record(), "representation", "covariance", "kernel", "tangent", "gradient"
    )
    assert "the data have no labels" in page_html([run_of(record)])
    assert "the data have no labels" in notebook_html([run_of(record)])


def test_undefined_and_infinite_numbers():
    record = survey_record()
    for row in record.contents["rows"]:
        if row["layer"] == "fc2":
            row["value"] = math.inf if row["measure"] == "predicted_steps" else math.nan
            row["reason"] = "constant features" if row["measure"] != "predicted_steps" else None
    text = page_html([run_of(record)])
    assert "constant features" in text
    assert "NaN" not in Parsed(text).scripts[0][1]
    (data,) = [data for attributes, data in Parsed(text).scripts if "type" in attributes]
    panel = json.loads(data)["figures"]["g0-kernel-cka-target"]["panels"][0]
    names = [look["name"] for look in panel["looks"]]
    assert panel["states"][0][names.index("CKA to labels")]["y"][1] is None


def test_everything_that_a_step_changes_is_carried(parsed, runs):
    """Header, sentences and numbers of the table at every step, as the record has them."""
    (data,) = [data for attributes, data in parsed.scripts if "type" in attributes]
    payload = json.loads(data)
    (texts,), (steps,) = payload["texts"], payload["steps"]
    assert {"lead", "answer-task", "answer-layer", "answer-next", "says-kernel"} <= set(texts)
    checked = 0
    for key, entry in texts.items():
        assert len(entry["frames"]) == len(steps)
        if not key.startswith("cell-"):
            continue
        for place, frame in enumerate(entry["frames"]):
            number, _, _, _, (run, step, index) = entry["states"][frame]
            source = {"run": run, "step": step, "path": ["rows", index, "value"]}
            assert step == place
            assert number == shown(numbers_at(runs, source))
            checked += 1
    assert checked == 2 * (4 * 3 + 1) * len(steps)


def test_numbers_within_chance_are_grey_and_have_their_level_beside_them():
    run = survey_run()
    rows = {(r["layer"], r["measure"]): r for r in run.steps[0].contents["rows"]}
    rows["fc1", "cka_target"] |= {"value": 0.05, "null_mean": 0.03, "null_sd": 0.02}
    rows["fc2", "cka_target"] |= {"value": 0.08, "null_mean": 0.03, "null_sd": 0.02}
    columns = {c.family.key: c for c in overview_of(groups_of([run], 60)[0]).columns}
    readings = [cell.readings[0] for cell in columns["kernel"].cells]
    assert [reading.within for reading in readings] == [True, False, False]
    assert all(reading.chance == "chance 0.030" for reading in readings)
    assert [reading.top for reading in readings] == [False, False, True]
    assert notebook_html([run]).count('class="reading run0 within') == 1


def test_runs_have_equal_weight():
    runs = [survey_run(name="before"), survey_run(name="after", seed=2)]
    text = notebook_html(runs)
    for order in (0, 1):
        pattern = rf'class="reading run{order}[^"]*">.*?<b data-part="number"'
        assert len(re.findall(pattern, text)) == 4 * 3 + 1


def test_covariance_shows_nothing_where_its_floor_forbids_a_reading():
    run = survey_run()
    rows = {r["measure"]: r for r in run.steps[0].contents["rows"] if r["family"] == "covariance"}
    group = groups_of([run], 60)[0]
    assert group.measured("covariance", "relative_misalignment") == ["fc1"]
    rows["misalignment_floor"]["value"] = rows["random_basis_misalignment"]["value"]
    group = groups_of([run], 60)[0]
    assert group.measured("covariance", "relative_misalignment") == []
    overview = overview_of(group)
    assert "covariance" not in {column.family.key for column in overview.columns}
    assert overview.absent[0].startswith("Covariance: not shown, cannot be read")
    assert "fc1, covariance: cannot be read" in page_html([run])


def test_a_misalignment_below_its_floor_has_a_word():
    run = survey_run()
    rows = {r["measure"]: r for r in run.steps[0].contents["rows"] if r["family"] == "covariance"}
    rows["misalignment"]["value"] = 1.0
    rows["misalignment_floor"]["value"] = 2.0
    rows["random_basis_misalignment"]["value"] = 6.0
    columns = {c.family.key: c for c in overview_of(groups_of([run], 60)[0]).columns}
    assert columns["covariance"].cells[0].readings[0].chance.endswith("at its floor: fully aligned")


def test_every_section_is_folded_and_evidence_has_a_figure(parsed):
    folds = [a for tag, a in parsed.elements if tag == "details"]
    assert len(folds) > 6
    assert not any("open" in attributes for attributes in folds)
    ids = {a["id"] for _, a in parsed.elements if "id" in a}
    links = [a["href"][1:] for tag, a in parsed.elements if tag == "a"]
    assert len(links) >= 3
    assert set(links) <= ids


def test_records_and_reports_are_read_without_torch(tmp_path):
    save_run(survey_run(), tmp_path / "run")
    code = (
        "import sys; from theodolite.records import load_run; "
        "from theodolite.report import answers, find_exhibits, write_gallery, write_html; "
        f"run = load_run({str(tmp_path / 'run')!r}); "
        f"write_html([run], {str(tmp_path / 'page.html')!r}); print(*answers([run])); "
        f"write_gallery(find_exhibits({str(tmp_path)!r}), {str(tmp_path / 'all.html')!r}); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "page.html").exists()


def test_fragment_has_no_scripts_and_no_foreign_styles():
    text = notebook_html([survey_run(NASTY)])
    found = Parsed(text)
    assert found.scripts == []
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    for rule in re.findall(r"(?:^|\})\s*([^{}@]+)\{", style):
        assert all(part.strip().startswith(".theodolite") for part in rule.split(",")), rule
