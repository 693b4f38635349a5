"""Errors of the report say what was expected, what came, and what to do."""

import pytest

from tests.report.made_records import history_run, survey_run
from theodolite.errors import RecordError, UnknownNameError
from theodolite.records import Run
from theodolite.report import notebook_html, plot, write_html


@pytest.mark.parametrize(
    "use", [lambda runs, path: write_html(runs, path / "a.html"),
            lambda runs, _: notebook_html(runs), lambda runs, _: plot(runs, "kernel")],
    ids=["write_html", "notebook_html", "plot"],
)  # fmt: skip
def test_nothing_to_show(use, tmp_path):
    with pytest.raises(RecordError, match="expected at least one run, got none"):
        use([], tmp_path)
    empty = Run("mine", history_run().head, ())
    with pytest.raises(
        RecordError, match=r"at least one step, got 'mine'.*let the monitor measure"
    ):
        use([empty], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_names_list_the_nearest():
    with pytest.raises(UnknownNameError, match="'cka_target'"):
        plot([survey_run()], "cka_targt")
    with pytest.raises(UnknownNameError, match="theme 'sepia'"):
        plot([survey_run()], "kernel", theme="sepia")
