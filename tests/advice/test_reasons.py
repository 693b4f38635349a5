"""Reasons in a record are kinds with words, and nothing reads the words."""

import pickle
from dataclasses import replace
from string import Formatter

import pytest
import torch
from torch import nn

import theodolite as th
from theodolite.advice import Interface, reasons, worded_for
from theodolite.advice.reasons import reason
from theodolite.records import Note, Record


@pytest.mark.parametrize("note", Note)
def test_every_kind_has_words(note):
    facts = {name for _, name, _, _ in Formatter().parse(reasons._WORDS[note]) if name}
    why = reasons.reason(note, **dict.fromkeys(facts, 1))
    assert why.note is note
    assert "{" not in why.replace('{"', "")
    kept = pickle.loads(pickle.dumps(why))  # noqa: S301
    assert (kept, kept.note) == (why, note)


def test_a_record_has_the_kind_beside_the_words():
    torch.manual_seed(0)
    x = torch.randn(20, 3)
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    quick = {"permutations": 0, "half_samples": 0, "seconds": None}
    found = th.survey(model, x, families=["tangent", "covariance", "kernel"], options=quick)
    contents = found.record.contents
    assert contents["skipped_notes"]["tangent"] == Note.NO_TARGETS
    assert contents["skipped"]["tangent"] == "the data have no targets to align with"
    few = [entry for entry in contents["warnings"] if entry.get("note") == Note.FEW_FILTERS]
    assert {entry["layer"] for entry in few} == {"0", "2"}
    line = "misalignment / random undefined in 2 of 2 layers (layer 0 and layer 2): filters too few"
    assert found.summary().count("filters too few") == 1
    assert line in found.summary()


def test_layers_with_different_facts_share_one_line_of_the_page(tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(30, 6), torch.arange(30) % 2
    model = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2))  # 3 and 2 filters
    quick = {"permutations": 0, "half_samples": 0, "seconds": None}
    found = th.survey(model, (x, y), families=["covariance", "kernel"], options=quick)
    page = found.to_html(tmp_path / "page.html").read_text()
    line = "in 2 of 2 layers (layer 0 and layer 2): filters too few"
    assert page.count(f"Misalignment / random is undefined {line}") == 1
    assert page.count("misalignment / random in 2 of 2") == 0  # said above
    assert page.count(f"misalignment and random_basis_misalignment {line}") == 1
    assert "undefined in every layer, filters too few or too isotropic to distinguish" in page


def test_notes_in_a_terminal_name_options_of_the_command():
    few = reason(Note.FEWER_FOR_TIME, few=16, wanted=20)
    late = reason(Note.NO_TIME, fewest=8, expected=40.0, left=5.0, total=60)
    blocks = reason(Note.BLOCKS, last="fc")
    quoted = reason(Note.UNEXPECTED, type="ValueError", message="seconds=3 is too short")
    contents = {
        "rows": [],
        "layers": [],
        "data": {"task": "unlabeled"},
        "skipped": {"tangent": str(late), "covariance": str(blocks), "kernel": str(quoted)},
        "skipped_notes": {"tangent": late.note, "covariance": blocks.note, "kernel": quoted.note},
        "warnings": [{"text": str(few), "note": few.note.value, "reason": str(few)}],
    }
    record = Record(contents, {})
    shown = worded_for(record, Interface.COMMAND).contents
    (note,) = shown["warnings"]
    assert note["text"] == note["reason"]
    assert note["text"].endswith("; --option 'sizes={\"tangent\": 20}' uses all")
    assert shown["skipped"]["tangent"].endswith("; --seconds 60 measures them")
    assert "; --layer '**.fc' shows " in shown["skipped"]["covariance"]
    assert shown["skipped"]["kernel"] == str(quoted)
    assert worded_for(record, Interface.PYTHON).contents == contents


def test_a_family_whose_headline_is_in_the_table_is_not_called_missing():
    torch.manual_seed(0)
    data = torch.randn(40, 3), torch.arange(40) % 2
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    found = th.survey(model, data, families="gradient", permutations=0)
    for rows, name in [(found.record.contents["rows"], "gradient contrast"), ([], "gradient")]:
        contents = {**found.record.contents, "rows": rows, "skipped": {"gradient": "too slow"}}
        summary = replace(found, record=Record(contents, {})).summary()
        assert f"\n{name}: not measured, too slow" in summary
