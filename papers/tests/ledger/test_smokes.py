"""Every study runs end to end at its smallest size: measured, stored, judged and drawn."""

import pytest

from theodolite_papers.ledger import SIZES, all_studies, check_study, load_results, run_study
from theodolite_papers.ledger._plotly import plotly_panel

STUDIES = list(all_studies().values())


@pytest.mark.parametrize("study", STUDIES, ids=[study.id for study in STUDIES])
def test_smoke(study, tmp_path):
    results = run_study(study, "smoke", results=tmp_path)
    assert len(results) == len(study.points_at("smoke")) * len(study.seeds_at("smoke"))
    verdicts = check_study(study, "smoke", tmp_path)
    assert len(verdicts) == len(study.claims) > 0
    assert all(verdict.judgments for verdict in verdicts)
    assert all(j.numbers for v in verdicts for j in v.judgments.values())
    panels = study.draw(load_results(tmp_path, study, "smoke"))
    assert [plotly_panel(panel)["data"] for panel in panels]


@pytest.mark.parametrize("study", STUDIES, ids=[study.id for study in STUDIES])
def test_every_size_is_there_or_says_why_not(study):
    missing = [size for size in SIZES if size not in study.configs and size not in study.not_run]
    assert missing == []
    assert all(study.points_at(size) for size in study.configs)
