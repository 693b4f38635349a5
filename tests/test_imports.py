"""Importing loads little and changes nothing."""

import subprocess
import sys

import pytest

import theodolite

HEAVY = ("torchmetrics", "pandas", "plotly", "jinja2", "sklearn", "typer", "rich", "lightning")
EXTRAS = ("transformers", "datasets", "torchvision", "timm", "skimage", "mlflow", "ray", "wandb")


def run(code: str) -> str:
    """What a fresh interpreter prints; warnings are errors there too."""
    command = [sys.executable, "-W", "error", "-c", code]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_records_load_no_torch():
    assert run("import sys, theodolite.records; print('torch' in sys.modules)") == "False"


def test_touching_every_public_name_loads_no_heavy_dependency():
    code = f"""
import sys, theodolite, importlib
for name in theodolite.__all__:
    if name != "metrics":
        value = getattr(theodolite, name)
        for inner in getattr(value, "__all__", ()):
            getattr(value, inner)
print(sorted(set({HEAVY + EXTRAS!r}) & set(sys.modules)))
"""
    assert run(code) == "[]"


def test_import_changes_nothing_outside():
    code = """
import sys, warnings, random, logging
import numpy, torch
def state():
    return (
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_float32_matmul_precision(),
        torch.initial_seed(), random.getstate(), numpy.random.get_state()[1].tolist(),
        logging.root.level, len(logging.root.handlers), sys.excepthook, sys.path[:],
        torch.nn.Module.__call__, torch.Tensor.__add__, numpy.geterr(),
        torch.backends.cudnn.benchmark,
    )
before = state()
import theodolite
for name in theodolite.__all__:
    if name != "metrics":
        getattr(theodolite, name)
print(state() == before)
"""
    assert run(code) == "True"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'mesure'"):
        _ = theodolite.mesure


def test_dir_lists_what_loads_on_first_use():
    assert set(theodolite.__all__) <= set(dir(theodolite))


def test_the_table_of_homes_is_the_public_surface():
    assert sorted(theodolite.__all__) == list(theodolite.__all__)
    assert set(theodolite._HOMES) == set(theodolite.__all__)
