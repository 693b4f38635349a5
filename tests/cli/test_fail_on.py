"""``--fail-on``: an exit code for pipelines, from the typed answer and never from its text."""

import pytest
import typer

from theodolite.cli.terminal import CommandError, fail_on, require_conditions
from theodolite.records import Answer


def task(finding, certainty="clear"):
    other = Answer("layer", "Linear probes reach 99 %.", "undecided", finding="memorised")
    return [other, Answer("task", "A sentence.", certainty, finding=finding)]


@pytest.mark.parametrize(
    ("conditions", "answers", "code"),
    [
        (["memorising"], task("memorised"), 3),
        (["memorising"], task("mostly-memorised"), 3),
        (["memorising"], task("learned"), None),
        (["memorising"], task("undecided", "undecided"), None),
        (["undecided"], task("undecided", "undecided"), 3),
        (["undecided"], task("learned", "likely"), None),
        (["undecided"], [], 3),
        (["memorising", "undecided"], task("undecided", "undecided"), 3),
        ([], task("memorised"), None),
    ],
)
def test_the_exit_code_is_that_of_the_answer_about_the_task(conditions, answers, code, capsys):
    if code is None:
        fail_on(conditions, answers)
        assert capsys.readouterr().err == ""
        return
    with pytest.raises(typer.Exit) as raised:
        fail_on(conditions, answers)
    assert raised.value.exit_code == code
    told = capsys.readouterr()
    assert told.out == ""  # standard output is for JSON
    assert told.err.startswith(f"--fail-on {conditions[-1]}: ")


def test_unknown_conditions_are_refused_before_anything_is_measured():
    require_conditions(["memorising", "undecided"])
    with pytest.raises(CommandError, match="expected memorising or undecided, got 'overfit'"):
        require_conditions(["overfit"])
