"""Every study runs end to end at its smallest size: measured, stored, judged and drawn."""

import pytest

from theodolite_papers.ledger import SIZES, all_studies, judge_study, run_study
from theodolite_papers.ledger._panels import plotly_panel

STUDIES = list(all_studies().values())


@pytest.mark.parametrize("study", STUDIES, ids=[study.id for study in STUDIES])
def test_smoke(study, tmp_path):
    results = run_study(study, "smoke", results=tmp_path)
    assert len(results) == len(study.points_at("smoke")) * len(study.seeds_at("smoke"))
    verdicts = judge_study(study, "smoke", results)
    assert len(verdicts) == len(study.claims) > 0
    assert all(verdict.outcomes for verdict in verdicts)
    assert all(j.numbers for v in verdicts for j in v.outcomes.values())
    panels = study.draw(results)
    assert [plotly_panel(panel)["data"] for panel in panels]


@pytest.mark.parametrize("study", STUDIES, ids=[study.id for study in STUDIES])
def test_every_size_is_there_or_says_why_not(study):
    wanted = ("smoke", "lite", "published")
    assert [s for s in wanted if s not in study.configs and s not in study.not_run] == []
    assert set(study.configs) <= set(SIZES)
    assert all(study.points_at(size) for size in study.configs)
