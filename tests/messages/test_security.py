"""What is executed is said where it is named."""

import re

import pytest
from typer.testing import CliRunner

from theodolite.cli import app


@pytest.mark.parametrize("command", ["survey", "transfer"])
def test_help_says_that_the_file_is_executed(command):
    found = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert re.search(r"executed:\s+name\s+only\s+code\s+that\s+you\s+trust", found.output)
