"""The page in a real browser: what is drawn, clicked, printed and seen on a phone."""

import base64
import copy
import csv
import json
import time
from itertools import pairwise

import numpy as np
import pytest

from tests.report import browser as driver
from tests.report.drawn import mismatches
from tests.report.made_records import NASTY, history_run, survey_run
from tests.report.paths import numbers_at
from theodolite.records import Record, Run, shown
from theodolite.report import notebook_html, write_html
from theodolite.report.pages import DARK, LIGHT

pytestmark = pytest.mark.skipif(driver.missing(), reason=f"needs a browser: {driver.INSTALL}")

LAYERS = ("fc1", "fc2", "fc3")
STEPS = (0, 10, 1000)
DESKTOP, PHONE = (1280, 900), (390, 844)
OPEN = "return [...document.querySelectorAll('.family')].filter((f) => f.open).length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with driver.running_browser(tmp_path_factory.mktemp("profile")) as window:
        yield window


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def runs():
    return [
        history_run(LAYERS, name="MLP true", steps=STEPS),
        history_run(LAYERS, name="MLP shuffled", growth=0.4, seed=9, steps=STEPS),
        history_run(("conv1", "head"), name="CNN", seed=4, steps=STEPS, shape=(3, 5, 5)),
    ]


@pytest.fixture(scope="module")
def page(folder, runs):
    return write_html(runs, folder / "compare.html", title="Digits")


@pytest.fixture(scope="module")
def small(folder):
    """Two networks of two layers."""
    runs = [survey_run(("fc1", "fc2"), name="MLP"), survey_run(("conv1", "head"), name="CNN")]
    return write_html(runs, folder / "small.html")


@pytest.fixture(scope="module")
def survey(folder):
    return write_html([survey_run(name="one survey")], folder / "survey.html")


def fresh(browser, path, size=DESKTOP, *, unfold=True):
    """Load a page; sections are folded, so that figures are drawn only when they are opened."""
    browser.log()
    browser.size(*size)
    browser.open(path)
    if unfold:
        browser.script("document.querySelectorAll('.family').forEach((f) => { f.open = true; })")
        browser._next_frame()


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def assert_quiet(browser):
    assert [entry for entry in browser.log() if entry["level"] != "INFO"] == []


def test_drawn_equals_record_in_every_group_and_step(browser, page, runs):
    fresh(browser, page)
    assert mismatches(browser, runs) == []
    for _ in range(2):
        browser.keys(".slider.current input", driver.LEFT)
    assert browser.script("return document.querySelector('.slider.current output').value") == "0"
    assert mismatches(browser, runs) == []
    browser.click(".tabs button[data-group='1']")
    assert mismatches(browser, runs) == []
    assert_quiet(browser)


def with_changed_rows(run, change):
    """The run with its rows changed, step by step; the original stays as it is."""
    steps = tuple(
        Record(change(copy.deepcopy(dict(step.contents))), step.arrays) for step in run.steps
    )
    return Run(run.name, run.head, steps)


def one_percent_more(contents):
    for row in contents["rows"]:
        row["value"] *= 1.01
    return contents


def two_layers_swapped(contents):
    names = {"fc1": "fc2", "fc2": "fc1"}
    for row in contents["rows"]:
        row["layer"] = names.get(row["layer"], row["layer"])
    return contents


def values_of_two_layers_swapped(contents):
    rows = {(row["layer"], row["measure"]): row for row in contents["rows"]}
    for (layer, measure), row in rows.items():
        if layer == "fc1" and ("fc2", measure) in rows:
            other = rows["fc2", measure]
            row["value"], other["value"] = other["value"], row["value"]
    return contents


def arrays_changed(run, change):
    steps = tuple(
        Record(s.contents, {k: change(k, v) for k, v in s.arrays.items()}) for s in run.steps
    )
    return Run(run.name, run.head, steps)


@pytest.mark.parametrize(
    "tamper",
    [
        lambda run: with_changed_rows(run, one_percent_more),
        lambda run: with_changed_rows(run, two_layers_swapped),
        lambda run: with_changed_rows(run, values_of_two_layers_swapped),
        lambda run: arrays_changed(run, lambda k, v: v * 1.01 if k.endswith("/y") else v),
        lambda run: arrays_changed(run, lambda k, v: v[::-1] if k.endswith("/y") else v),
    ],
    ids=["rows-1-percent", "names-swapped", "rows-swapped", "curves-1-percent", "curves-reversed"],
)  # fmt: skip
def test_the_check_sees_small_errors(browser, folder, tamper):
    honest = history_run(("fc1", "fc2", "fc3"))
    path = write_html([tamper(honest)], folder / "tampered.html")
    fresh(browser, path)
    found = mismatches(browser, [honest])
    assert len({text.split(":")[0] for text in found}) >= 3
    assert any("cell" in text or "row of" in text for text in found)
    assert any("marker" in text or "vertex" in text for text in found)


def test_the_check_sees_a_drawing_that_leaves_its_data(browser, folder):
    """Positions are read from the SVG: data that are right do not excuse a wrong drawing."""
    run = survey_run()
    fresh(browser, write_html([run], folder / "moved.html"))
    assert mismatches(browser, [run]) == []
    browser.script(
        "const mark = document.querySelector('#g0-representation-label-power-0 .points path');"
        "const [x, y] = mark.getAttribute('transform').match(/\\d[\\d.]*/g).map(Number);"
        "mark.setAttribute('transform', `translate(${x},${y + 0.1})`);"
    )
    assert len(mismatches(browser, [run])) == 1
    browser.script(
        "const mark = document.querySelector('#g0-kernel-cka-target circle');"
        "mark.setAttribute('cy', Number(mark.getAttribute('cy')) + 0.1);"
    )
    assert len(mismatches(browser, [run])) == 2


def test_pixels_of_maps_without_texts(browser, survey):
    """Kernels: the color at the middle of each cell is the one its number has on the scale."""
    run = survey_run(name="one survey")
    fresh(browser, survey)
    colors = browser.asynchronous(PIXELS, "g0-tangent-forward-kernel-1")
    matrix = run.steps[0].arrays["tangent/1/forward_kernel/matrix"]
    shades = np.array(colors, dtype=float).reshape(*matrix.shape, 4)
    assert matrix.min() < 0
    assert np.abs(shades - expected_colors(matrix)).max() <= 6
    assert np.abs(shades - expected_colors(matrix[::-1])).max() > 40


def expected_colors(matrix):
    """Both signs on one scale: grey below zero, the family's pale color above."""
    high = np.abs(matrix).max()
    stops = [(-high, LIGHT["null"]), (0.0, LIGHT["surface"]), (high, LIGHT["tangent-pale"])]
    heights = [height for height, _ in stops]
    channels = [[int(color[i : i + 2], 16) for _, color in stops] for i in (1, 3, 5)]
    rgb = [np.interp(matrix, heights, channel) for channel in channels]
    return np.stack([*rgb, np.full(matrix.shape, 255.0)], axis=-1)


PIXELS = """
const [id, done] = arguments;
const source = document.querySelector(`#${id} .heatmaplayer image`);
const rows = document.getElementById(id).data[0].z.length;
const picture = new Image();
picture.onload = () => {
  const canvas = document.createElement("canvas");
  canvas.width = picture.naturalWidth; canvas.height = picture.naturalHeight;
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0);
  const at = (i, length) => Math.floor((i + 0.5) / rows * length);
  const colors = [];
  for (let i = 0; i < rows; i++) for (let j = 0; j < rows; j++) {
    colors.push(...context.getImageData(at(j, canvas.width), at(i, canvas.height), 1, 1).data);
  }
  done(colors);
};
picture.src = source.getAttribute("href") || source.getAttribute("xlink:href");
"""


def test_sections_fold_and_links_lead_to_them(browser, survey):
    fresh(browser, survey, unfold=False)
    assert browser.script(OPEN) == 0
    links = browser.script(
        "return [...document.querySelectorAll('.answer .links a')].map((a) => a.hash.slice(1))"
    )
    assert len(links) >= 4
    for i, target in enumerate(links):
        browser.script("document.querySelectorAll('.family').forEach((f) => { f.open = false; })")
        browser.script("scrollTo(0, 0)")
        browser._next_frame()
        browser.script(f"document.querySelectorAll('.answer .links a')[{i}].click()")
        browser._next_frame()
        place = f"document.getElementById('{target}')"
        assert browser.script(f"return {place}.closest('details')?.open ?? true")
        assert browser.script(f"return {place}.querySelector('.plot, .canvas').offsetWidth") > 0
        top = browser.script(f"return {place}.getBoundingClientRect().top")
        assert 0 <= top < DESKTOP[1]
    for section in ("representation", "covariance", "kernel", "tangent", "gradient"):
        place = f"#g0-section-{section}"
        is_open = f"return document.querySelector('{place}').open"
        before = browser.script(is_open)
        browser.script("scrollTo(0, 0)")
        browser.click(f"{place} > summary")
        assert browser.script(is_open) != before
    browser.click("#section-about > summary")
    assert "n <= d" in browser.script("return document.querySelector('#section-about').innerText")
    assert_quiet(browser)


def test_networks_of_different_depth_are_compared_over_depth(browser, page):
    fresh(browser, page, unfold=False)
    names = browser.texts("#section-comparison .legend span")
    assert [name.strip() for name in names] == ["MLP true", "MLP shuffled", "CNN"]
    lines = "return document.querySelectorAll('#gall-depth-cka-target .line').length"
    assert browser.script(lines) == 3


def test_two_runs_have_their_difference_over_depth(browser, page, runs):
    fresh(browser, page, unfold=False)
    shown_there = browser.script(
        "return [...document.querySelectorAll('#g0-difference-cka-target circle')]"
        ".map((c) => Number(c.getAttribute('cy')))"
    )
    values = [
        [r["value"] for r in run.steps[-1].contents["rows"] if r["measure"] == "cka_target"]
        for run in runs[:2]
    ]
    gaps = np.subtract(*values[::-1])
    order = np.argsort(shown_there)
    assert list(order) == list(np.argsort(-gaps))  # upwards is more


def test_pointing_at_a_chart_names_the_layer_and_its_number(browser, survey):
    run = survey_run(name="one survey")
    fresh(browser, survey, unfold=False)
    box = browser.script(
        "const b = document.querySelector('#g0-kernel-cka-target .canvas').getBoundingClientRect();"
        "return [b.left, b.top, b.width, b.height]"
    )
    rows = [r for r in run.steps[0].contents["rows"] if r["measure"] == "cka_target"]
    for place, row in enumerate(rows):
        x = box[0] + box[2] * (place + 0.5) / len(rows)
        browser.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=box[1] + box[3] / 2)
        (tip,) = browser.texts(".tip")
        assert tip.startswith(row["layer"])
        assert shown(row["value"]) in tip
        assert "chance" in tip
    strips = "return document.querySelectorAll('.strips .cursor').length"
    assert browser.script(strips) == 4  # one in every chart of the card
    browser.command("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    assert browser.script("return document.querySelector('.tip').hidden")
    browser.keys("#g0-kernel-cka-target .canvas", "\ue014\ue014")  # the right arrow, twice
    assert browser.texts(".tip")[0].startswith(rows[-1]["layer"])
    browser.click("#g0-kernel-cka-target .canvas")
    assert browser.script("return document.querySelector('#g0-all').open")
    assert_quiet(browser)


def test_the_table_is_sorted_searched_and_copied(browser, folder):
    names = [f"stage{i // 10}.{i % 10}.conv" for i in range(30)]
    run = survey_run(names, name="deep")
    fresh(browser, write_html([run], folder / "deep.html"), unfold=False)
    browser.click("#g0-all > summary")
    assert browser.texts("#g0-numbers tbody th") == names
    heads = browser.texts("#g0-numbers thead button")
    column = heads.index("CKA to labels")
    rows = [r for r in run.steps[0].contents["rows"] if r["measure"] == "cka_target"]
    by_value = [r["layer"] for r in sorted(rows, key=lambda r: -r["value"])]
    button = f"#g0-numbers thead th:nth-child({column + 1}) button"
    browser.click(button)
    assert browser.texts("#g0-numbers tbody th") == by_value
    browser.click(button)
    assert browser.texts("#g0-numbers tbody th") == by_value[::-1]
    browser.keys("#g0-all input", "stage1 conv")
    seen = browser.texts("#g0-numbers tbody tr:not([hidden]) th")
    assert sorted(seen) == sorted(n for n in names if n.startswith("stage1"))
    browser.click("#g0-all .copy")
    copied = wait_for(
        lambda: browser.script("return document.querySelector('#g0-all').dataset.copied")
    )
    lines = list(csv.DictReader(copied.splitlines()))
    assert [line["layer"] for line in lines] == seen
    values = {r["layer"]: r["value"] for r in rows}
    for line in lines:
        assert float(line["CKA to labels"]) == pytest.approx(values[line["layer"]], rel=1e-5)
    assert_quiet(browser)


def test_blocks_are_named_above_the_charts(browser, folder):
    names = ["stem", *(f"stage{s}.{i}.conv" for s in (1, 2, 3) for i in range(16)), "head"]
    path = write_html([survey_run(names)], folder / "blocks.html")
    fresh(browser, path, unfold=False)
    seen = "return [...document.querySelectorAll('.blocks span')].filter((e) => e.offsetWidth > 0)"
    texts = browser.script(f"{seen}.map((e) => e.textContent)")
    assert texts == ["stem", "stage1", "stage2", "stage3", "head"]
    shaded = "return document.querySelectorAll('#g0-kernel-cka-target .block').length"
    assert browser.script(shaded) == 3  # every other one of five


@pytest.mark.parametrize(("size", "least"), [(DESKTOP, 13), (PHONE, 8)], ids=["desktop", "phone"])
def test_layers_are_named_in_equal_steps_where_not_every_name_fits(browser, folder, size, least):
    names = [str(3 * i + 1) for i in range(26)]
    path = write_html([survey_run(names)], folder / "many-layers.html")
    fresh(browser, path, size, unfold=False)
    labels = browser.script(
        "return [...document.querySelectorAll('.blocks span')].filter((e) => e.offsetWidth > 0)"
        ".map((e) => [e.textContent, e.getBoundingClientRect().left, e.offsetWidth,"
        " e.scrollWidth])"
    )
    texts = [text for text, *_ in labels]
    assert len(texts) >= least
    assert texts[0] == names[0]
    assert texts[-1] == names[-1]
    steps = [names.index(b) - names.index(a) for a, b in pairwise(texts)]
    assert len(set(steps[:-1])) == 1
    assert all(inside <= box + 1 for _, _, box, inside in labels)  # no name is cut
    for (_, left, box, _), (_, after, _, _) in pairwise(labels):
        assert left + box <= after + 1


def test_phone_shows_the_whole_evidence(browser, page):
    fresh(browser, page, PHONE, unfold=False)
    cut = (
        "return [...document.querySelectorAll('.group.current .lead, .answer [data-part=why]')]"
        ".filter((e) => e.scrollHeight > e.clientHeight + 1 && e.clientHeight > 0).length"
    )
    assert browser.script(cut) == 0


def test_the_slider_moves_header_sentences_overview_and_figures(browser, page, runs):
    fresh(browser, page)
    places = {
        "header": ".group.current .lead",
        "sentence": ".group.current .answer .text",
        "number": ".group.current .numbers b",
        "last": "#g0-kernel-cka-target .last b",
        "section": "#g0-section-kernel > summary .says",
        "finding": "#g0-kernel-spectrum .finding",
        "whole": "#g0-section-gradient .whole b",
    }

    def seen():
        texts = {name: browser.texts(selector) for name, selector in places.items()}
        sources = browser.script(
            "return [...document.querySelectorAll('.group.current b[data-where]')]"
            ".filter((e) => e.dataset.where).map((e) => [e.dataset.where, e.textContent])"
        )
        line = "return document.querySelector('#g0-kernel-cka-target .line').getAttribute('d')"
        return texts | {"line": browser.script(line)}, sources

    latest, _ = seen()
    browser.keys(".slider.current input", driver.LEFT)
    browser.keys(".slider.current input", driver.LEFT)
    first, sources = seen()
    assert all(first[name] != latest[name] for name in first), first
    assert len(sources) == 2 * 4 * 3
    for source, text in sources:
        run, step, row = map(int, source.split(","))
        assert step == 0
        place = {"run": run, "step": step, "path": ["rows", row, "value"]}
        assert text == shown(numbers_at(runs, place))
    assert mismatches(browser, runs) == []
    assert_quiet(browser)


def test_theme_switch_recolors_page_and_figures(browser, survey):
    fresh(browser, survey)
    colors = (
        "const line = document.querySelector('#g0-kernel-cka-target .line');"
        "return [getComputedStyle(document.body).backgroundColor, getComputedStyle(line).stroke]"
    )
    assert browser.script(colors) == [rgb(LIGHT["page"]), rgb(LIGHT["kernel"])]
    browser.click("#theme")
    assert browser.script(colors) == [rgb(DARK["page"]), rgb(DARK["kernel"])]
    curve = "document.querySelector('#g0-kernel-spectrum-0 .js-line')"
    assert browser.script(f"return getComputedStyle({curve}).stroke") == rgb(DARK["kernel"])
    browser.click("#theme")
    assert browser.script(colors) == [rgb(LIGHT["page"]), rgb(LIGHT["kernel"])]
    assert_quiet(browser)


def rgb(color):
    return f"rgb({int(color[1:3], 16)}, {int(color[3:5], 16)}, {int(color[5:7], 16)})"


def test_data_can_be_downloaded_and_read_as_text(browser, survey, tmp_path):
    fresh(browser, survey)
    browser.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.click("#g0-kernel-cka-input .as-text summary")
    browser.click("#g0-kernel-cka-input .download")
    path = tmp_path / "g0-kernel-cka-input.csv"
    wait_for(path.exists)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    mine = [row for row in rows if row["series"] == "CKA to the input"]
    record = survey_run(name="one survey").steps[0].contents["rows"]
    wanted = [row["value"] for row in record if row["measure"] == "cka_input"]
    assert [row["row"] for row in mine] == list(LAYERS)
    assert [float(row["value"]) for row in mine] == pytest.approx(wanted, rel=1e-5)
    text = "return document.querySelector('#g0-kernel-cka-input textarea').value"
    assert wait_for(lambda: browser.script(text)).splitlines() == path.read_text().splitlines()


def test_nasty_names_are_shown_letter_by_letter(browser, folder):
    run = history_run(NASTY, name="<b>x</b> & =1+1")
    fresh(browser, write_html([run], folder / "nasty.html"))
    shown = browser.texts(".numbers tbody th")
    assert shown == list(NASTY)
    assert browser.texts("#g0-representation-alignment-curve h4")[0] == NASTY[0]
    assert (
        browser.script("return document.querySelectorAll('.plot a, .numbers a, .plot b').length")
        == 0
    )
    assert mismatches(browser, [run]) == []
    assert_quiet(browser)


def test_nothing_is_loaded_from_elsewhere(browser, page):
    fresh(browser, page)
    loaded = browser.script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith(("data:", "blob:"))] == []
    # A script that was not there when the page was written does not run.
    browser.script(
        "const s = document.createElement('script'); s.textContent = 'window.foreign = 1';"
        "document.body.append(s);"
    )
    assert browser.script("return window.foreign ?? null") is None
    assert any("Content Security Policy" in entry["message"] for entry in browser.log())


def test_numbers_in_the_cells_of_a_map_stay_apart_on_a_phone(browser, folder):
    runs = [history_run(steps=tuple(range(10)), growth=-0.3)]  # near zero: the longest texts
    path = write_html(runs, folder / "many-steps.html")
    fresh(browser, path, PHONE)
    browser.script("document.querySelectorAll('.family').forEach((fold) => { fold.open = true; })")
    browser.script("document.getElementById('g0-steps-kernel-cka-target').scrollIntoView()")
    browser._next_frame()
    boxes = browser.script(
        "return [...document.querySelectorAll('#g0-steps-kernel-cka-target .heatmap-label text')]"
        ".map((text) => text.getBoundingClientRect()).map((box) => [box.top, box.left, box.right])"
    )
    assert len(boxes) == 30
    ordered = sorted((round(top), left, right) for top, left, right in boxes)
    for (top, _, right), (below, left, _) in pairwise(ordered):
        assert below > top or left >= right


def test_phone_folds_families_and_never_scrolls_sideways(browser, page):
    fresh(browser, page, PHONE, unfold=False)
    wide = "return document.documentElement.scrollWidth - innerWidth"
    assert browser.script(OPEN) == 0
    assert browser.script(wide) <= 0
    browser.click("#g0-section-gradient > summary")
    assert (
        browser.script("return document.querySelectorAll('#g0-section-gradient .main-svg').length")
        > 0
    )
    assert browser.script(wide) <= 0
    assert_quiet(browser)


@pytest.mark.parametrize(("size", "least"), [(DESKTOP, 85), (PHONE, 55)], ids=["desktop", "phone"])
def test_pictures_of_eigenvectors_are_large_enough_to_see(browser, folder, size, least):
    path = write_html([survey_run(LAYERS, name="one")], folder / "pictures.html")
    fresh(browser, path, size)
    browser.script("document.querySelector('#g0-section-covariance').open = true")
    browser._next_frame()
    box = browser.script(
        "const all = document.querySelectorAll('#g0-covariance-eigenvectors .plot');"
        "const rect = (e) => e.getBoundingClientRect();"
        "const [image, plot] = [rect(all[0].querySelector('.heatmaplayer image')), rect(all[0])];"
        "return [image.width, image.height, plot.height, all.length]"
    )
    width, height, room, count = box
    down, across = 2 * (2 * 5 + 1) + 1 + 5 // 3, 4 * (5 + 1) - 1  # pixels of the record
    assert count == 1
    assert 5 * width / across >= least
    assert height / down == pytest.approx(width / across, rel=0.02)  # pixels are squares
    assert room < height + 30  # and no empty space around them
    assert_quiet(browser)


def test_paper_has_every_figure(browser, small):
    fresh(browser, small, PHONE, unfold=False)
    undrawn = "return document.querySelectorAll('.plot:not(:has(.main-svg))').length"
    assert browser.script(undrawn) > 0
    pdf = base64.b64decode(browser.command("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 100_000
    assert browser.script(undrawn) == 0
    browser.settle()
    assert browser.script(OPEN) == 0


def test_overview_without_scripts(browser, page):
    browser.size(*DESKTOP)
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.navigate(page)
        seen = browser.command(
            "Runtime.evaluate",
            expression="const wide = (name) => [...document.querySelectorAll(name)]"
            ".filter(e => e.getBoundingClientRect().width > 40).length;"
            "JSON.stringify([wide('.main-svg'), wide('.strips svg.depth'), wide('.figure .plot')])",
        )
        compared, own, differences = 4, 4 + 4, 4
        assert json.loads(seen["result"]["value"]) == [0, compared + own + differences, 0]
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


def test_notebook_fragment_shows_without_a_page(browser, folder):
    path = folder / "notebook.html"
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8>{notebook_html([survey_run()])}", "utf-8")
    browser.size(*DESKTOP)
    browser.log()
    browser.navigate(path)
    assert browser.script("return document.querySelectorAll('.depth .line').length") == 4
    assert_quiet(browser)
