"""Training that diverges under a monitor: it is not the monitor that ends it."""

import math

import pytest
import torch

import theodolite as th
from tests.survey.subjects import blobs, mlp
from theodolite.errors import NotFiniteError

WHY = "the features are not finite: the run has diverged"


def diverged(value, when=2, steps=4, **options):
    """A run whose first weights are replaced on the way."""
    model = mlp()
    with th.Monitor(model, blobs(), every=1, **options) as monitor:
        for step in range(steps):
            if step == when:
                with torch.no_grad():
                    model[0].weight.fill_(value)
            monitor.step(step)
    return monitor.history


@pytest.mark.parametrize(
    ("value", "cadence"), [(math.nan, None), (math.inf, 1)], ids=["nan", "inf, everything"]
)
def test_the_run_goes_on_and_says_why(value, cadence, tmp_path):
    history = diverged(value, cadence=cadence, folder=tmp_path / "run")
    assert history.steps == [0, 1, 2, 3]
    last = history.survey(3)
    for family in ("representation", "covariance", "tangent", "gradient"):
        assert "finite" in last.record.contents["skipped"][family]
    assert math.isnan(last.estimate("loss").value)
    rows = {r["measure"]: r for r in last.record.contents["rows"] if r["layer"] == "0"}
    assert rows["cka_target"]["reason"] == rows["feature_omega"]["reason"] == WHY
    assert "at step" in history.summary()
    assert th.load(tmp_path / "run").to_html(tmp_path / "page.html").exists()


@pytest.mark.parametrize("family", ["representation", "covariance", "tangent"])
def test_steps_at_which_nothing_is_finite_are_left_out(family):
    assert diverged(math.nan, families=family).steps == [0, 1]


def test_a_survey_and_the_first_measurement_refuse():
    model = mlp()
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    with pytest.raises(NotFiniteError, match="a diverged run"):
        th.survey(model, blobs())
    with pytest.raises(NotFiniteError, match="a diverged run"):
        th.Monitor(model, blobs()).step(0)
