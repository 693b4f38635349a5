"""The guide's code runs, and every measure that it names exists."""

import re
from pathlib import Path

import torch

import theodolite as th

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide.md").read_text()
README = (ROOT / "README.md").read_text()


def test_code_runs():
    names = {}
    torch.manual_seed(0)
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        exec(compile(block, "guide.md", "exec"), names)
    assert names["monitor"].history.steps == [0, 5, 9]


def test_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(block, "README.md", "exec"), names)
    assert names["monitor"].history.steps == [0, 10, 20, 29]
    assert (tmp_path / "a.html").stat().st_size < 3_000_000
    assert set(names["kernels"]) == {"fc1", "fc2"}


def test_measures_and_curves_that_it_names_exist():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    contents = th.survey(model, (x, y), permutations=0, truth=y).record.contents
    known = {row["measure"] for row in contents["rows"]}
    known |= {curve["name"] for curve in contents["curves"]}
    known |= {key for row in contents["rows"] for key in row}
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", GUIDE))
    assert words <= known
    assert {"alignment_area", "relative_misalignment", "cka_target", "omega_contrast"} <= words
