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
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from tests.report.made_records import (
    NASTY,
    history_run,
    sparse_run,
    survey_record,
    survey_run,
)
from tests.report.paths import numbers_at
from theodolite.advice.reasons import reason
from theodolite.errors import WriteError
from theodolite.records import Note, Record, Run, groups_of, load_run, save_run, shown
from theodolite.report import notebook_html, write_html
from theodolite.report._catalog import headline_charts
from theodolite.report._overview import notes_of, table_of
from theodolite.report._page import page_html


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
        if tag == "b" and "data-source" in attributes:
            self.numbers.append((json.loads(attributes["data-source"]), data))
        if tag == "b" and attributes.get("data-where"):
            run, step, row = map(int, attributes["data-where"].split(","))
            source = {"run": run, "step": step, "path": ["rows", row, "value"]}
            self.numbers.append((source, data))


def payload_of(found):
    (data,) = [data for a, data in found.scripts if a.get("type") == "application/json"]
    return json.loads(data)


@pytest.fixture(scope="module")
def runs():
    return [history_run(name="true"), history_run(name="shuffled", growth=0.3, seed=7)]


@pytest.fixture(scope="module")
def parsed(runs):
    return Parsed(page_html(runs, "A & B"))


def test_scripts_are_allowed_by_their_hashes_alone(parsed):
    (policy,) = [a["content"] for tag, a in parsed.elements if a.get("http-equiv")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    kept = {"", "text/plain"}  # Plotly runs when a figure is first drawn
    executed = [data for a, data in parsed.scripts if a.get("type", "") in kept]
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
    headlines, whole = 4 * 3, 2 + 5
    assert len(parsed.numbers) == 2 * (headlines + whole)
    for source, text in parsed.numbers:
        assert text == shown(numbers_at(runs, source))


def points(text):
    """Of every line of the charts: where its numbers are, its limits, height and heights."""
    for svg in re.findall(r'<svg class="depth".*?</g></g></svg>', text, re.DOTALL):
        limits = json.loads(html.unescape(re.search(r'data-limits="(.*?)"', svg)[1]))
        tall = float(re.search(r' height="(\d+)"', svg)[1])
        for where, drawn in re.findall(r'data-where="(.*?)">(.*?)</g>', svg, re.DOTALL):
            found = [float(y) for y in re.findall(r'<circle[^>]* cy="(.*?)"', drawn)]
            yield json.loads(html.unescape(where)), limits, tall, found


def stray(text, runs):
    """Heights in charts that are not those of the record."""
    found = []
    for (run, step, rows), (low, high), tall, heights in points(text):
        record = runs[run].steps[step].contents["rows"]
        values = [record[i]["value"] for i in rows if i is not None]
        wanted = [6 + (1 - (v - low) / (high - low)) * (tall - 12) for v in values]
        found += [(a, b) for a, b in zip(heights, wanted, strict=True) if abs(a - b) > 0.011]
    return found


@pytest.mark.parametrize("make", [survey_run, history_run], ids=["survey", "history"])
def test_charts_show_the_record_without_scripts(make):
    run = make()
    text = notebook_html([run])
    assert len(list(points(text))) == (4 if make is survey_run else 8)  # with the first step
    assert stray(text, [run]) == []
    changed = copy.deepcopy(run)
    for step in changed.steps:
        for row in step.contents["rows"]:
            row["value"] *= 1.03
    assert len(stray(text, [changed])) > 10


def test_every_chart_has_a_text_for_those_who_do_not_see_it(parsed):
    labels = [a["aria-label"] for tag, a in parsed.elements if a.get("class") == "depth"]
    assert len(labels) >= 15
    assert all(len(label) > 15 for label in labels)
    plots = [a for _, a in parsed.elements if a.get("class") == "plot"]
    assert plots
    assert all(a["role"] == "img" and len(a["aria-label"]) > 10 for a in plots)


def test_pages_of_deep_networks_stay_small(tmp_path):
    names = [f"stage{i // 50}.{i % 50 // 2}.conv{i % 2}" for i in range(200)]
    path = write_html([survey_run(names)], tmp_path / "deep.html")
    assert path.stat().st_size < 3_000_000
    group = groups_of([history_run(names[:100], steps=tuple(range(50)))], 60, 3000)[0]
    assert len(group.steps) <= 32  # fewer steps of deep networks, both ends among them
    assert (group.steps[0], group.steps[-1]) == (0, 49)


def test_a_page_is_whole_or_the_old_one(tmp_path, full_disk):
    path = write_html([survey_run()], tmp_path / "page.html")
    old = path.read_text()
    told = r"page\.html: cannot be written .* free some space"
    with pytest.raises(WriteError, match=told), full_disk(1000):
        write_html([survey_run(seed=5)], path)
    with pytest.raises(WriteError, match="cannot be written"), full_disk(1000):
        write_html([survey_run(seed=5)], tmp_path / "other.html")
    assert path.read_text() == old
    assert list(tmp_path.iterdir()) == [path]


def test_names_cannot_leave_their_place():
    text = page_html([history_run(NASTY, name="</script><script>alert(2)</script>")])
    found = Parsed(text)
    assert len(found.scripts) == 3
    assert "alert(1)" not in "".join(data for a, data in found.scripts if "type" not in a)
    assert "<script>alert" not in text
    (looks,) = {
        tuple(look["name"] for look in panel["looks"])
        for panel in payload_of(found)["figures"]["g0-kernel-spectrum"]["panels"]
    }
    assert looks[0] == "fc&lt;b&gt;1&lt;/b&gt;"


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
    payload = payload_of(Parsed(page_html([run])))
    shown_steps = payload["steps"][0]
    assert len(shown_steps) <= 62
    assert (shown_steps[0], shown_steps[-1]) == (0, 89)


def test_runs_that_fit_lose_no_step():
    run = history_run(("a", "b"), steps=tuple(range(60)))
    assert any(record.contents["curves"] for record in run.steps)
    payload = payload_of(Parsed(page_html([run])))
    assert payload["steps"][0] == list(range(60))


def test_long_runs_keep_steps_at_which_a_family_was_taken():
    run = sparse_run(8, ("a", "b"), steps=tuple(range(200)))
    payload = payload_of(Parsed(page_html([run])))
    shown_steps = payload["steps"][0]
    assert len(shown_steps) <= 62
    assert set(shown_steps) >= {*range(0, 200, 8), 199}


def test_a_run_that_was_not_closed_shows_the_latest_numbers_of_every_family():
    run = sparse_run(4, last=False, steps=(0, 1, 2, 3, 4, 5))
    group = groups_of([run], 60)[0]
    charts = headline_charts(group)
    row = next(r for r in run.steps[4].contents["rows"] if r["measure"] == "tangent_alignment")
    column = [chart.family for chart in charts].index("tangent")
    cell = table_of(group, charts)["rows"][0]["cells"][column][0]
    assert cell["text"] == shown(row["value"])
    assert cell["where"].split(",")[1] == "4"
    text = page_html([run])
    assert text.count("Numbers are those of step 4.") >= 1


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
    missing = "Representation, Tangent and Gradient: not shown, the data have no labels."
    assert text.count(missing) == 1
    for title in ("Representation", "Tangent", "Gradient"):
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
    chart = payload_of(Parsed(text))["charts"]["g0-kernel-cka-target"]
    assert [y is None for y in chart["states"][0]["traces"][0]["y"]] == [False, True, False]
    assert text.count("constant features") < 20  # once for each measure, and in the lists below


def test_everything_that_a_step_changes_is_carried(parsed, runs):
    """Header, sentences and numbers of charts and table at every step, as the record has them."""
    payload = payload_of(parsed)
    (texts,), (steps,) = payload["texts"], payload["steps"]
    assert {"lead", "answer-task", "answer-layer", "answer-next", "says-kernel"} <= set(texts)
    assert all(len(entry["frames"]) == len(steps) for entry in texts.values())
    checked = 0
    for key in ("kernel-cka-target", "tangent-tangent-alignment"):
        chart = payload["charts"][f"g0-{key}"]
        for place, frame in enumerate(chart["frames"]):
            for trace in chart["states"][frame]["traces"]:
                run, step, rows = trace["where"]
                assert step == place
                for text, row in zip(trace["text"], rows, strict=True):
                    source = {"run": run, "step": step, "path": ["rows", row, "value"]}
                    assert text == shown(numbers_at(runs, source))
                    checked += 1
    assert checked == 2 * 2 * 3 * len(steps)


def test_numbers_within_chance_are_grey_and_have_their_level_beside_them():
    run = survey_run()
    rows = {(r["layer"], r["measure"]): r for r in run.steps[0].contents["rows"]}
    rows["fc1", "cka_target"] |= {"value": 0.05, "null_mean": 0.03, "null_sd": 0.02}
    rows["fc2", "cka_target"] |= {"value": 0.08, "null_mean": 0.03, "null_sd": 0.02}
    group = groups_of([run], 60)[0]
    charts = headline_charts(group)
    column = [chart.key for chart in charts].index("kernel-cka-target")
    cells = [row["cells"][column][0] for row in table_of(group, charts)["rows"]]
    assert [cell["within"] for cell in cells] == [True, False, False]
    assert all(cell["chance"] == "0.030" for cell in cells)
    assert notebook_html([run]).count('class="reading within') == 1


def test_a_cell_of_several_numbers_says_which_run_is_which():
    """The legend of the charts does not hold for the table."""
    alone, other = (replace(survey_run(seed=n), name=f"net {n}") for n in (0, 5))
    text = page_html([alone, other])
    assert "Lines of a cell, from the top: net 0 and net 5." in text
    assert "Lines of a cell" not in page_html([alone])


def test_a_note_of_many_layers_is_one_line_with_a_count():
    run = survey_run([f"l{i}" for i in range(12)])
    for row in run.steps[0].contents["rows"]:
        if row["measure"] == "cka_target" and int(row["layer"][1:]) > 4:
            row |= {"value": math.nan, "reason": "constant features"}
    notes = notes_of(groups_of([run], 60)[0])
    assert [note for note in notes if "constant" in note] == [
        "CKA to labels is undefined in 7 of 12 layers (l5, l6, l7 and 4 more): constant features."
    ]


def test_covariance_shows_nothing_where_its_floor_forbids_a_reading():
    run = survey_run()
    rows = {r["measure"]: r for r in run.steps[0].contents["rows"] if r["family"] == "covariance"}
    group = groups_of([run], 60)[0]
    assert group.measured("covariance", "relative_misalignment") == ["fc1"]
    rows["misalignment_floor"]["value"] = rows["random_basis_misalignment"]["value"]
    group = groups_of([run], 60)[0]
    assert group.measured("covariance", "relative_misalignment") == []
    assert notes_of(group)[0].startswith("Covariance: not shown, ")


def test_sections_are_folded_sentences_and_charts_are_not(parsed):
    folds = [a for tag, a in parsed.elements if tag == "details"]
    assert len(folds) > 6
    assert not any("open" in attributes for attributes in folds)
    order = [a.get("class", "") for _, a in parsed.elements]
    places = [order.index(name) for name in ("answers", "card strips", "family all")]
    assert places == sorted(places)
    ids = {a["id"] for _, a in parsed.elements if "id" in a}
    links = [a["href"][1:] for tag, a in parsed.elements if tag == "a"]
    assert len(links) >= 3
    assert set(links) <= ids


def test_records_and_reports_are_read_without_torch(tmp_path):
    save_run(survey_run(), tmp_path / "run")
    code = (
        "import sys; from theodolite.records import load_run; "
        "from theodolite.advice.comparing import group_answers as answers; "
        "from theodolite.records import groups_of; "
        "from theodolite.report import write_html; "
        f"run = load_run({str(tmp_path / 'run')!r}); "
        f"write_html([run], {str(tmp_path / 'page.html')!r}); "
        "print(*answers(*groups_of([run], 200))); "
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


def test_arguments_in_advice_are_code():
    """On the page, in a notebook, and in a name that only looks like it."""
    run = survey_run()
    entry = {"question": "layer", "text": "The `a` layer.", "certainty": "clear", "evidence": ""}
    advice = "Pass `held_out=<x>` to decide."
    changed = {**run.head.contents, "answers": [entry | {"advice": advice}]}
    record = replace(run.head, contents=changed)
    run = Run("", record, (record,))
    for text in (page_html([run]), notebook_html([run])):
        assert "Pass <code>held_out=&lt;x&gt;</code> to decide." in text
        assert "The `a` layer." in text


def test_a_file_without_a_digest_says_so():
    run = survey_run(name="old")
    assert "digest" not in page_html([run]).partition('<script type="application/json"')[0]
    old = replace(run.head, file=Path("record.json"))
    note = "No digest: a version before 0.3 wrote this file, so changes in it cannot be detected."
    for text in (page_html([Run("old", old, (old,))]), notebook_html([Run("old", old, (old,))])):
        assert note in text
    both = page_html([Run("old", old, (old,)), survey_run(name="new")])
    assert f"old: {note[0].lower()}{note[1:]}" in both


@pytest.mark.parametrize("typed", [True, False], ids=["note", "text of an old record"])
def test_what_the_time_limit_cut_is_on_the_page(typed):
    run = survey_run(name="net")
    why = reason(Note.CUT, limit=30.0, parts={"gradient": [32, 600], "kernel": [64, 600]})
    cut = (
        "To end within 30 s, the survey used 32 of 600 examples for gradient, 64 of 600 examples "
        "for kernel. Pass seconds=None (in a terminal --seconds 0) to use all"
    )
    record = replace(
        run.head, contents={**run.head.contents, "cut": why.to_entry() if typed else cut}
    )
    assert f"<li>{cut}.</li>" in page_html([Run("net", record, (record,))])
    assert f"net: {cut}." in page_html([Run("net", record, (record,)), survey_run(name="b")])


@pytest.mark.parametrize("typed", [True, False], ids=["note", "text of an old record"])
def test_what_a_sketch_lacks_is_on_the_page(typed):
    run, why = survey_run(name="net"), reason(Note.NOT_IN_SKETCHES)
    routes = {"tangent": {"method": "sketch", "missing": why.to_entry() if typed else str(why)}}
    record = replace(run.head, contents={**run.head.contents, "routes": routes})
    assert f"missing {why}".replace("_", " ") in page_html([Run("net", record, (record,))])


def with_values(run, measure, value):
    rows = [
        {**row, "value": value} if row["measure"] == measure else row
        for row in run.head.contents["rows"]
    ]
    record = replace(run.head, contents={**run.head.contents, "rows": rows})
    return Run(run.name, record, (record,))


def test_long_numbers_fit_beside_an_axis():
    page = page_html([with_values(survey_run(name="net"), "predicted_steps", 6902300.0)])
    axes = re.findall(r'<div class="axis" aria-hidden="true"><span>([^<]*)<', page)
    assert any(end.endswith("M") for end in axes)
    assert max(map(len, axes)) <= 8


def test_of_many_lines_the_last_numbers_are_those_of_the_first_measure():
    page = page_html([survey_run(name=name) for name in ("one", "two", "three")])
    charts = re.findall(r'data-chart="g0-([\w-]+)".*?<div class="last">(.*?)</div>', page, re.S)
    shown = {key: re.findall(r'data-trace="(\d+)"', last) for key, last in charts}
    assert shown["kernel-participation-ratio"] == ["0", "2", "4"]  # two lines of each run
    assert shown["kernel-cka-target"] == ["0", "1", "2"]


def test_the_raw_input_is_no_layer():
    run = survey_run(("input", "fc1", "fc2"))
    named = [{**layer, "role": "input" if layer["name"] == "input" else ""}
             for layer in run.head.contents["layers"]]  # fmt: skip
    record = replace(run.head, contents={**run.head.contents, "layers": named})
    assert '<p class="lead" data-text="lead">2 layers' in page_html([Run("", record, (record,))])
