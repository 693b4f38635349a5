"""study and sweep: what is listed, judged and said."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from theodolite.cli import app
from theodolite_papers.ledger import _runs, all_studies, load_results

FIG4 = "imani2022.fig4"


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output + result.stderr
    return result


def test_the_list_cuts_no_name_in_a_narrow_window(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = call("study", "list").stdout
    assert "…" not in printed
    assert re.findall(r"^ (\w+\.\S+)", printed, flags=re.MULTILINE) == list(all_studies())


def test_a_line_of_numbers_is_not_broken(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = call("study", "run", FIG4, "--size", "smoke", "--results", tmp_path).stdout
    size, *lines, paper, weakened, legend, written = printed.splitlines()
    assert written == f"records {tmp_path / FIG4 / 'smoke'}"
    assert paper == "(paper: the paper's own statement.)"
    assert weakened.startswith("(weakened: the paper's statement with a margin")
    assert legend == "(reported: numbers without a verdict at this size.)"
    assert size == "smoke: points 100 (paper: 1,000, ratio 0.1). 1 seed, 1 run"
    assert len(lines) == 3 * len(all_studies()[FIG4].claims)
    assert all("(needed: " in line for line in lines[1::3])
    assert all(line.startswith("          seed 0: ") for line in lines[2::3])


def test_a_verdict_says_what_was_run_what_stood_in_and_whose_claim_it_is():
    """What the pages say at a verdict, and in the same words."""
    records = Path(__file__).parents[2] / "records"
    words = ("check", "imani2022.fig7", "--size", "reduced", "--results", records)
    size, first, decider, *_ = call("study", *words).stdout.splitlines()
    assert "ct_position). 5 seeds, 15 runs. Stand-in: CIFAR-10's first two" in size
    assert "on a stand-in: after training" in first
    assert "(95 % interval " in decider
    assert "(weakened, Figure 7" in first


def test_a_verdict_in_json_says_what_was_run(tmp_path):
    words = ("--size", "smoke", "--results", tmp_path, "--json")
    first, *_ = verdicts = json.loads(call("study", "run", FIG4, *words).stdout)
    assert json.loads(call("study", "check", FIG4, *words).stdout) == verdicts
    assert first["settings"] == [{"name": "points", "ours": 100, "paper": 1000, "ratio": 0.1}]
    whose = {"source": "paper", "section": "Figure 4", "note": "", "own_bound": False}
    whose |= {"printed_number": False, "in_a_proof": False}
    assert first["whose"] == whose
    assert (first["unit"], first["units"], first["passed"]) == ("seed", 1, 1)
    assert (first["status"], first["stand_in"]) == ("reported", None)
    assert first["decider"]["bounds"] == "above 0"
    ratio = next(one for one in verdicts if one["published"])
    assert ratio["published"] == {"sigma_1": 9.58, "sigma_2": 2.84}


def test_a_study_without_lite_takes_the_next_size_and_says_so(tmp_path):
    assert all_studies()[FIG4].default_size == "published"
    said = call("study", "check", FIG4, "--results", tmp_path)
    assert said.stderr == f"{FIG4} has no size lite: this is published\n"
    assert said.stdout.startswith("published")
    named = call("study", "check", FIG4, "--size", "published", "--results", tmp_path)
    assert (named.stdout, named.stderr) == (said.stdout, "")
    assert "smoke" not in {study.default_size for study in all_studies().values()}


def test_other_settings_are_kept_but_not_judged(tmp_path):
    words = ("--size", "smoke", "--results", tmp_path)
    own = call("study", "run", FIG4, *words).stdout
    swept = call("sweep", FIG4, *words, "--set", "points=20,30", "--engine", "processes",
                 "--workers", 1)  # fmt: skip
    assert swept.stdout == own
    assert f"theodolite study gallery {tmp_path}" in swept.stderr
    said = call("study", "gallery", tmp_path, "--no-open").stdout
    assert said == f"gallery of 3 records: {tmp_path / 'gallery.html'}\n"
    assert (tmp_path / "gallery.html").exists()
    assert len(load_results(tmp_path, all_studies()[FIG4], "smoke")) == 3


@pytest.mark.parametrize("command", ["study", "sweep"])
def test_an_interruption_says_that_nothing_is_lost(tmp_path, monkeypatch, command):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_runs.RunFolder, "save", interrupted)
    words = ("study", "run") if command == "study" else ("sweep", "--engine", "processes",
                                                         "--workers", "1")  # fmt: skip
    words += (FIG4, "--size", "smoke", "--results", str(tmp_path))
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code != 0
    assert "interrupted; runs that were done are kept" in result.stderr
