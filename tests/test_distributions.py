"""What the two distributions hold: the instrument alone, and the laboratory that builds on it."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LABORATORY = ROOT / "papers"
pytestmark = pytest.mark.skipif(not LABORATORY.is_dir(), reason="a source distribution")


def built(folder, target):
    """Files of a wheel or a source distribution, below its top folder; built as pip would."""
    pytest.importorskip("hatchling")
    if target == "wheel":
        from hatchling.builders.wheel import WheelBuilder as Builder
    else:
        from hatchling.builders.sdist import SdistBuilder as Builder
    return Builder(str(folder)).build


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """(folder, kind) -> names of files."""
    place = tmp_path_factory.mktemp("dist")

    def listed(folder, kind):
        (path,) = built(folder, kind)(directory=str(place), versions=["standard"])
        if kind == "wheel":
            with zipfile.ZipFile(path) as archive:
                return set(archive.namelist())
        with tarfile.open(path) as archive:
            return {name.partition("/")[2] for name in archive.getnames()}

    return {
        (name, kind): listed(folder, kind)
        for name, folder in (("instrument", ROOT), ("laboratory", LABORATORY))
        for kind in ("wheel", "sdist")
    }


def tops(names):
    return {name.partition("/")[0] for name in names if ".dist-info/" not in name}


def test_the_instrument_holds_no_study_zoo_or_record(contents):
    wheel = contents["instrument", "wheel"]
    assert tops(wheel) == {"theodolite"}
    parts = {name.split("/")[1] for name in wheel if name.startswith("theodolite/")}
    packages = {path.name for path in (ROOT / "src/theodolite").iterdir() if path.suffix != ".pyc"}
    assert parts == packages - {"__pycache__"}
    assert not parts & {"studies", "workbench", "lab", "ledger", "papers"}
    assert "theodolite/report/templates/page.html.j2" in wheel
    assert not any(name.endswith((".npz", "record.json")) for name in wheel)


def test_the_source_of_the_instrument_holds_no_laboratory(contents):
    source = contents["instrument", "sdist"]
    assert {"src", "tests", "benchmarks", "docs", "pyproject.toml", "LICENSE"} <= tops(source)
    assert not any("theodolite_papers" in name or name.startswith("papers") for name in source)


def test_the_laboratory_holds_itself_alone(contents):
    wheel, source = contents["laboratory", "wheel"], contents["laboratory", "sdist"]
    assert tops(wheel) == {"theodolite_papers"}
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert tops(source) == {
        "src", "tests", "README.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"
    }  # fmt: skip


def test_the_laboratory_is_built_from_its_own_source(contents, tmp_path):
    """The version stands outside of its folder, and a source distribution must do without."""
    (source,) = built(LABORATORY, "sdist")(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (wheel,) = built(folder, "wheel")(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == contents["laboratory", "wheel"]


@pytest.mark.parametrize("command", ["study", "sweep", "train"])
def test_without_the_laboratory_its_commands_name_the_package(command):
    hidden = (
        "import sys, importlib.metadata as metadata\n"
        "found = metadata.entry_points\n"
        "def entry_points(**chosen):\n"
        "    return [] if chosen.get('group', '').startswith('theodolite.') else found(**chosen)\n"
        "metadata.entry_points = entry_points\n"
        "sys.modules['theodolite_papers'] = None\n"
        "from theodolite.cli import main\n"
        "main()\n"
    )
    words = [sys.executable, "-W", "error", "-c", hidden, command, "run", "--anything"]
    finished = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == (
        f"error: theodolite {command} is part of theodolite-papers: install it with pip install "
        "theodolite-papers\n"
    )
