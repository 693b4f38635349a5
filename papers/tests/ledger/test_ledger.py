"""The ledger: what it says is what the records hold."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import typer

from papers.tests.ledger.made_studies import SWEPT, Config, above, made_study
from tests.report import browser as driver
from theodolite import __version__
from theodolite.cli.app import app
from theodolite_papers.alignment_zoo.design import HALVES
from theodolite_papers.ledger import (
    LARGE,
    PAPERS,
    Bars,
    Claim,
    Heat,
    Line,
    Panel,
    Paper,
    Points,
    Result,
    Results,
    Tiles,
    _book,
    _pages,
    _published,
    _runs,
    _site,
    all_studies,
    judge_claim,
    load_results,
    origin_of,
    run_study,
    settings_of,
    size_text,
    write_ledger,
    write_site,
)
from theodolite_papers.ledger._pages import ledger_markdown
from theodolite_papers.ledger._panels import plotly_panel
from theodolite_papers.ledger._published import (
    Headline,
    headlines_of,
    is_as_published,
    lesson_of,
    printed_panels,
    unstudied_of,
)
from theodolite_papers.ledger._runs import plain_config

RECORDS = Path(__file__).parents[2] / "records"
FIGURES = {"imani2022": 21, "maennel2020": 24, "canatar2022": 8, "lou2022": 23, "mehta2021": 27}
TABLES = {"imani2022": 1, "maennel2020": 7, "canatar2022": 1, "lou2022": 4, "mehta2021": 0}
STUDIES = list(all_studies().values())


@pytest.fixture
def made_ledger(tmp_path, monkeypatch):
    study = made_study()
    monkeypatch.setattr(_book, "all_studies", lambda: {study.id: study})
    monkeypatch.setattr(_runs, "find_study", lambda _: study)
    run_study(study, results=tmp_path / "records")
    return write_ledger(tmp_path / "records", tmp_path / "ledger")


def test_the_table_has_a_row_for_each_study(made_ledger):
    text = made_ledger.read_text()
    (row,) = [line for line in text.splitlines() if "`imani2022.made`" in line]
    assert row.startswith("| Figure 0 | `imani2022.made` | lite. Stand-in: made up | 5 seeds")
    assert row.endswith("|  | 1 undecided |")
    assert "Ours: 1 undecided." in text
    assert "had another verdict" not in text


def test_the_data_hold_claim_decider_and_verdict(made_ledger):
    (line,) = json.loads((made_ledger.parent / "ledger.json").read_text())
    assert line["text"] == "the value is above 102"
    assert line["verdict"] == "undecided (3 of 5 seeds, pass rate 15 to 95 %)"
    assert line["decider"]["name"] == "value"
    assert line["decider"]["value"] == 103
    assert line["decider"]["low"] < 102 < line["decider"]["high"]
    assert line["outcomes"]["seed 101"] == {"holds": False, "numbers": {"value": 101}}


def test_withdrawn_verdicts_are_one_line_per_reason():
    one = {"text": "t", "size": "lite", "verdict": "holds (1 seed)", "reason": "why"}
    kept = [{"claim": f"a.fig{k % 2}.{k}", "date": "2026-01-01", **one} for k in range(24)]
    (group,) = _pages.withdrawn_groups(kept)
    assert group.text == "24 verdicts (24 hold) of fig0, fig1: why (2026-01-01)"
    assert len(group.members) == 24


def test_a_verdict_that_depends_on_the_size_is_counted_and_said(tmp_path, monkeypatch):
    configs = {"lite": Config(), "reduced": Config(scale=2.0)}
    study = made_study(configs=configs, not_run={})
    monkeypatch.setattr(_book, "all_studies", lambda: {study.id: study})
    monkeypatch.setattr(_runs, "find_study", lambda _: study)
    for size in configs:
        run_study(study, size, results=tmp_path, seeds=[101, 102])
    (chapter,) = [chapter for chapter in _book.chapters(tmp_path) if chapter.entries]
    assert chapter.counts() == {"ours": {"holds": 1}}
    assert chapter.differing() == 1
    text = ledger_markdown([chapter])
    assert "1 had another verdict at a smaller size." in text
    assert "Ours: 1 holds." in text


@pytest.mark.parametrize(
    ("unit", "tally"), [("", "1 holds (1 on a stand-in)"), ("calculation", "1 holds")]
)
def test_verdicts_on_a_stand_in_are_counted_beside_their_status(tmp_path, monkeypatch, unit, tally):
    """What is calculated does not depend on the data."""
    claim = Claim("imani2022.made.above", "the value is above 102", above, unit=unit)
    study = made_study(claims=(claim,))
    monkeypatch.setattr(_book, "all_studies", lambda: {study.id: study})
    monkeypatch.setattr(_runs, "find_study", lambda _: study)
    run_study(study, results=tmp_path, seeds=[105, 106, 107])
    (chapter,) = [chapter for chapter in _book.chapters(tmp_path) if chapter.entries]
    assert f"Ours: {tally}." in _pages.tally_of(chapter)


def test_a_size_below_one_that_was_run_is_not_open(tmp_path, monkeypatch):
    configs = {size: Config() for size in ("smoke", "reduced", "published")}
    study = made_study(configs=configs, not_run={})
    monkeypatch.setattr(_book, "all_studies", lambda: {study.id: study})
    monkeypatch.setattr(_runs, "find_study", lambda _: study)
    monkeypatch.setattr(_site, "listed_open", lambda _: [])
    run_study(study, "reduced", results=tmp_path, seeds=[101])
    sizes = [(one.size, one.missing) for one in _site.open_runs(_book.chapters(tmp_path))]
    assert sorted(sizes) == [("published", 5), ("reduced", 4)]
    run_study(study, "published", results=tmp_path, seeds=[101])
    sizes = [(one.size, one.missing) for one in _site.open_runs(_book.chapters(tmp_path))]
    assert sizes == [("published", 4)]


def test_settings_are_those_that_were_run(tmp_path, monkeypatch):
    """Not those that are planned: one of five seeds, one of two values of a swept setting."""
    study = made_study(spaces=SWEPT)
    entries = {
        "scale": {"paper": [1.0, 2.0], "ours": "scale"},
        "seeds": {"paper": 5, "ours": "seeds"},
    }
    monkeypatch.setattr(_published, "_table", lambda _: {"settings": entries})
    monkeypatch.setattr(_runs, "find_study", lambda _: study)
    runs = run_study(study, "lite", results=tmp_path, seeds=[101])
    assert size_text(study, "lite") == "lite"
    assert size_text(study, "lite", runs) == "lite: seeds 1 (paper: 5, ratio 0.2)"
    first = size_text(study, "lite", runs.where(scale=1.0))
    assert first == "lite: scale 1 (paper: 1, 2); seeds 1 (paper: 5, ratio 0.2)"
    assert size_text(study, "lite", Results(())) == "lite"


def test_asking_for_the_commit_writes_nothing_into_the_checkout(tmp_path, monkeypatch):
    """Git would refresh its index, under a lock that other commands of the user run into."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    file = tmp_path / "file.py"
    file.write_text("")
    for words in (["init", "-q"], ["add", "file.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    os.utime(file, (1, 1))
    index = (tmp_path / ".git" / "index").read_bytes()
    monkeypatch.setattr(_runs, "__file__", str(file))
    monkeypatch.delenv("THEODOLITE_COMMIT", raising=False)
    assert re.fullmatch("[0-9a-f]{12}", _runs.commit.__wrapped__())
    assert (tmp_path / ".git" / "index").read_bytes() == index
    file.write_text("changed")
    (tmp_path / "new").write_text("of no concern")
    assert re.fullmatch("[0-9a-f]{12}-dirty", _runs.commit.__wrapped__())


def test_a_size_says_what_its_records_say_of_their_making(made_ledger, monkeypatch, tmp_path):
    entry = _book.chapters(tmp_path / "records")[0].entries[0]
    line = entry.sizes[0].provenance(entry.study)
    commit = _runs.commit() or "an unknown commit"
    assert f"commit {commit}; cpu (" in line
    assert line.endswith("; claims unchanged since")
    changed = made_study(claims=(Claim("imani2022.made.above", "another sentence", above),))
    monkeypatch.setattr(_book, "all_studies", lambda: {changed.id: changed})
    entry = _book.chapters(tmp_path / "records")[0].entries[0]
    assert entry.sizes[0].provenance(changed).endswith("a claim has changed since")
    old = dataclasses.replace(entry.sizes[0], results=Results((Result({"value": 1.0}),)))
    assert old.provenance(changed).startswith("Records from before version 0.2.0")


def test_studies_of_our_own_have_pages_without_a_paper(tmp_path, monkeypatch):
    claim = Claim("zoo.made.above", "the value is above 102", above)
    size = {"smoke": Config(), "reduced": Config()}
    changes = {"id": "zoo.made", "claims": (claim,), "configs": size, "repeat": "group"}
    study = made_study(shows=("Which value is high?",), stand_in={}, **changes)
    for module in (_book, _published):
        monkeypatch.setattr(module, "PAPERS", {"zoo": Paper("zoo", "", "The zoo", own=True)})
    monkeypatch.setattr(_book, "all_studies", lambda: {study.id: study})
    monkeypatch.setattr(_runs, "find_study", lambda _: study)
    written = {
        "headlines": {"made.above": {"says": "Values are high", "numbers": {}}},
        "lesson": "They are.",
    }
    monkeypatch.setattr(_published, "_tables", lambda _: written)
    run_study(study, "reduced", results=tmp_path / "records", seeds=[1030, 1031])
    pages = {page.name: page for page in write_site(tmp_path / "records", tmp_path / "site")}
    assert set(pages) == {"index.md", "zoo.md"}
    summary, page = pages["index.md"].read_text(), pages["zoo.md"].read_text()
    assert (
        "<b>reduced</b> 2 of 2 groups, pass rate at least 22 %; 2 of the 5 runs that are planned<"
        in summary
    )
    assert "a study of our own</small>" in summary
    assert "there is no paper, and every claim is ours" in page
    assert "(2 of 2 groups, pass rate at least 22 %)" in page
    assert "<p>Shows Which value is high?</p>" in page
    assert "the paper" not in page.replace("there is no paper", "").split("Shows")[1]


def test_a_published_number_stands_beside_ours():
    study = made_study()
    claim = study.claims[0]
    with_value = type(claim)(claim.id, claim.text, claim.check, published={"value": 100.0})
    verdict = judge_claim(with_value, "lite", Results((Result({"value": 104.0}),)))
    (spread,) = _book.spread_of(verdict)
    assert (spread.middle, spread.published, spread.difference) == (104.0, 100.0, 4.0)
    sized = _book.Sized("lite", "lite", "made up", "", Results(()), 5, (verdict,))
    assert sized.spreads(verdict)[0].published is None
    assert dataclasses.replace(sized, stand_in="").spreads(verdict) == [spread]


@pytest.fixture
def made_site(tmp_path, monkeypatch):
    study = made_study(configs={size: Config() for size in ("smoke", "lite", "reduced")})
    monkeypatch.setattr(_book, "all_studies", lambda: {study.id: study})
    monkeypatch.setattr(_runs, "find_study", lambda _: study)
    headline = Headline("Values are high", {"value": "the value"})
    sentences = {"imani2022": {"imani2022.made.above": headline}}
    monkeypatch.setattr(_site, "headlines_of", lambda paper: sentences.get(paper, {}))
    run_study(study, results=tmp_path / "records")
    run_study(study, "reduced", results=tmp_path / "records", seeds=[103])
    return {page.name: page for page in write_site(tmp_path / "records", tmp_path / "site")}


def test_the_summary_links_a_sentence_to_its_claim_with_size_and_seeds(made_site):
    text = made_site["index.md"].read_text()
    assert set(made_site) == {"index.md", *(f"{key}.md" for key in PAPERS)}
    assert "1 claims of the five papers" in text
    assert "Ours: 1 one seed." in text
    (row,) = [line for line in text.splitlines() if "Values are high" in line]
    assert 'href="imani2022.html#imani2022.made.above"' in row
    assert "<b>reduced</b> 1 seed; 1 of the 5 runs that are planned<" in row
    assert "the value 103 (needed: above 102)" in row
    assert '<span class="verdict weak" data-status="one seed">one seed: holds<' in row
    assert "on a stand-in" not in row  # the lite size has one, the judged size does not
    assert 'id="imani2022.made.above"' in made_site["imani2022.md"].read_text()


@pytest.mark.parametrize(
    ("hours", "text"), [(0.0153, "0.015"), (143.2, "140"), (2.55e5, "260,000")]
)
def test_hours_have_two_digits(hours, text):
    assert _site._hours(hours) == text


def test_missing_runs_are_listed_with_their_cost_and_command(made_site):
    text = made_site["index.md"].read_text()
    (row,) = [line for line in text.splitlines() if "of imani2022.made<" in line]
    assert "<td>4 of imani2022.made</td><td>reduced</td>" in row
    assert "not known" not in row  # on a GPU: estimated, the run was made on the processor
    assert "1 of 5 runs made" in row
    assert "study run imani2022.made --size reduced --device cuda" in row


@pytest.mark.skipif(driver.missing(), reason=f"needs a browser: {driver.INSTALL}")
def test_a_page_draws_filters_and_reports_no_errors(made_site, tmp_path):
    page = made_site["imani2022.md"].with_suffix(".html")
    page.write_text(f"<!DOCTYPE html><body>{made_site['imani2022.md'].read_text()}</body>")
    with driver.running_browser(tmp_path / "profile") as window:
        window.navigate(page)
        wait = """const done = arguments[arguments.length - 1], end = Date.now() + 20000;
            const lines = '.scatterlayer path.js-line';
            const look = () => { const n = document.querySelectorAll(lines).length;
            n === 1 || Date.now() > end ? done(n) : setTimeout(look, 50) }; look()"""
        assert window.asynchronous(wait) == 1
        assert window.texts(".claims .verdict") == ["undecided", "one seed: holds"]
        choose = (
            "const f = document.getElementById('filter'); f.value = arguments[0];"
            "f.dispatchEvent(new Event('change'));"
            "return [...document.querySelectorAll('.study')].filter((x) => x.offsetParent).length"
        )
        assert [window.script(choose, status) for status in ("fails", "one seed", "")] == [0, 1, 1]
        assert window.log() == []


@pytest.mark.parametrize("paper", PAPERS)
def test_headlines_lessons_and_printed_numbers_belong_to_studies(paper):
    studies = [study for study in STUDIES if study.paper == paper]
    claims = {claim.id for study in studies for claim in study.claims}
    assert 8 <= len(headlines_of(paper)) <= 12
    assert set(headlines_of(paper)) <= claims
    assert len(lesson_of(paper).split()) > 60
    names = {study.id.split(".", 1)[1] for study in studies}
    found = _published._tables(paper).items()
    tables = {name for name, one in found if isinstance(one, dict) and "printed" in one}
    assert tables <= names
    panels = [panel for study in studies for panel in printed_panels(study)]
    assert all(panel.printed and plotly_panel(panel)["data"] for panel in panels)
    unprinted = paper == "mehta2021" or PAPERS[paper].own  # without numbers in the text
    assert len(panels) >= (0 if unprinted else 1)


def test_the_citation_names_this_release():
    text = (Path(__file__).parents[3] / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in text


class TestPanels:
    def test_long_titles_of_axes_are_folded(self):
        words = "in-class alignment of the gradients, <hidden> layers"
        layout = plotly_panel(Panel("t", [], "", words))["layout"]
        lines = layout["yaxis"]["title"]["text"].split("<br>")
        assert lines == ["in-class alignment of the", "gradients, &lt;hidden&gt; layers"]
        assert layout["xaxis"]["title"]["text"] == ""

    def test_panels_grow_with_their_legends(self):
        def height(*names):
            marks = [Line(name, [0, 1], [0, 1]) for name in names]
            return plotly_panel(Panel("t", marks))["layout"]["height"]

        assert height("one") == height("a", "b")
        assert height(*(["a long name of a curve"] * 6)) == height("one") + 5 * 19

    def test_eleven_curves_have_eleven_colors(self):
        marks = [Line(str(k), [0, 1], [0, 1]) for k in range(11)]
        traces = plotly_panel(Panel("t", marks))["data"]
        assert len({trace["line"]["color"] for trace in traces}) == 11

    def test_bars_stand_at_their_labels(self):
        panel = plotly_panel(Panel("t", [Bars("a", ["0.001", "0.01"], [1.0, 2.0])]))
        assert panel["layout"]["xaxis"]["type"] == "category"

    def test_cells_of_a_map_are_equally_large(self):
        layout = plotly_panel(Panel("t", [Heat(np.ones((2, 2)), ["32", "2048"])]))["layout"]
        assert layout["yaxis"]["type"] == "category"
        assert "type" not in layout["xaxis"]

    def test_a_line_has_its_band(self):
        band, line = plotly_panel(Panel("t", [Line("a", [0, 1], [1, 2], [0.5, 0.5])]))["data"]
        assert line["y"] == [1, 2]
        assert band["y"] == [1.5, 2.5, 1.5, 0.5]

    def test_undefined_numbers_leave_a_gap(self):
        (line,) = plotly_panel(Panel("t", [Line("a", [0, 1], [1, float("nan")])]))["data"]
        assert line["y"] == [1, None]

    def test_zero_is_the_same_gray_in_every_tile(self):
        images = np.zeros((1, 2, 2, 2))
        images[0, 0, 0, 0], images[0, 1, 0, 0] = 5, -0.1
        panel = plotly_panel(Panel("t", [Tiles(images, ["filters"])]))
        mosaic = np.array(panel["data"][0]["z"])
        assert mosaic.shape == (3, 6, 3)
        assert mosaic[0, 0].tolist() == [255] * 3
        assert mosaic[0, 3].tolist() == [1] * 3
        assert mosaic[1, 1].tolist() == mosaic[1, 4].tolist() == [128] * 3

    def test_names_are_escaped(self):
        panel = Panel("t", [Points("<b>", [1], [1]), Bars("<i>", ["<u>"], [1]),
                            Heat(np.ones((1, 1)), ["<s>"])], "<x>")  # fmt: skip
        assert "<" not in str(plotly_panel(panel)).replace("<class", "")


@pytest.fixture(scope="module")
def book():
    """Every chapter, judged once."""
    return _book.chapters(RECORDS)


class TestCommitted:
    def test_numbers_of_headlines_have_phrases(self, book):
        """The one that decided too, and a phrase without a number would end the summary."""
        for chapter in book:
            for entry, place, headline in _site._headlines(chapter):
                decider = entry.judged(place)[-1].decider
                names = {name.replace("_", " ") for name in headline.numbers}
                assert decider is None or decider.name.replace("_", " ") in names
                assert _site._headline(chapter, entry, place, headline)["measured"]

    @pytest.mark.parametrize("paper", FIGURES)
    def test_every_figure_and_table_has_exactly_one_study(self, paper):
        shown = [item for study in STUDIES if study.paper == paper for item in study.shows]
        shown += [item for one in unstudied_of(paper) for item in one["shows"]]
        wanted = [f"Figure {k}" for k in range(1, FIGURES[paper] + 1)]
        wanted += [f"Table {k}" for k in range(1, TABLES[paper] + 1)]
        assert sorted(item for item in shown if re.match(r"(Figure|Table) ", item)) == sorted(
            wanted
        )

    def test_every_record_belongs_to_a_study_and_is_small(self):
        folders = [path.parent for path in RECORDS.glob("*/*/*/record.json")]
        assert {folder.parts[-3] for folder in folders} <= set(all_studies())
        large = [f for f in folders if sum(p.stat().st_size for p in f.iterdir()) > 40_000]
        assert large == []

    @pytest.mark.parametrize("study", STUDIES, ids=[study.id for study in STUDIES])
    def test_records_are_those_of_the_present_config(self, study):
        for size in study.configs:
            for run in load_results(RECORDS, study, size):
                assert run.config == plain_config(study.config_at(size, run.point))

    @pytest.mark.parametrize("study", STUDIES, ids=[study.id for study in STUDIES])
    def test_lite_was_run_on_fresh_seeds(self, study):
        if "lite" not in study.configs:
            assert study.not_run["lite"]
            return
        runs = load_results(RECORDS, study, "lite")
        assert set(runs.by_seed()) == set(study.seeds_at("lite"))
        assert min(study.seeds_at("lite")) > 100

    @pytest.mark.parametrize("study", STUDIES, ids=[study.id for study in STUDIES])
    def test_the_name_of_a_size_follows_from_the_settings(self, study):
        """Published is what meets every setting that the paper prints, and nothing else."""
        large = [size for size in study.configs if size in LARGE]
        assert {s: s == "published" for s in large} == {s: is_as_published(study, s) for s in large}
        names = [one.name for one in settings_of(study, "smoke")]
        assert len(names) > 1
        assert sum(name in ("seeds", f"{study.repeat}s") for name in names) == 1

    @pytest.mark.parametrize("study", STUDIES, ids=[study.id for study in STUDIES])
    def test_every_claim_says_whose_it_is(self, study):
        origins = [origin_of(study, claim.id) for claim in study.claims]
        assert None not in origins
        assert {origin.source for origin in origins} <= {"paper", "weakened", "ours"}
        assert all(origin.section for origin in origins if origin.source != "ours")

    def test_the_committed_table_is_what_the_records_say(self, book):
        assert (RECORDS / "README.md").read_text() == ledger_markdown(book)

    def test_commands_of_open_runs_are_commands(self, book):
        """Each is parsed as it stands, and names a study and a size that there is."""
        command = typer.main.get_command(app)
        for one in _site.open_runs(book):
            name, *words = shlex.split(one.command)
            assert name == "theodolite"
            found, context = command, typer.Context(command)
            while isinstance(found, typer.core.TyperGroup):
                _, found, words = found.resolve_command(context, words)
            parameters = found.make_context("", words).params
            if "study" in parameters:
                assert parameters["size"] in all_studies()[parameters["study"]].configs
            else:  # the networks of the zoo
                assert parameters["half"] in HALVES

    def test_commits_of_records_are_in_the_history(self):
        """A commit that was rewritten shows nothing about when claims were fixed."""
        commits = {
            run.commit
            for study in STUDIES
            for size in study.configs
            for run in load_results(RECORDS, study, size)
            if run.commit
        }
        git = ["git", "-C", str(RECORDS)]
        shallow = subprocess.run(
            [*git, "rev-parse", "--is-shallow-repository"], capture_output=True
        )
        if shallow.returncode or shallow.stdout.strip() != b"false":
            pytest.skip("needs the history of a checkout")
        for commit in commits:
            assert "dirty" not in commit
            asked = [*git, "merge-base", "--is-ancestor", commit, "HEAD"]
            assert subprocess.run(asked, check=False).returncode == 0, commit

    @pytest.mark.parametrize("paper", PAPERS)
    def test_errata_are_told(self, paper):
        errata = _book.errata_of(PAPERS[paper])
        assert bool(errata) != PAPERS[paper].own
        assert len({erratum.id for erratum in errata}) == len(errata)
