"""The estimate of a survey's progress, on a clock that advances with the work that is done."""

import re

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import theodolite as th
from tests.survey.subjects import blobs, images, mlp
from theodolite.surveys import progress
from theodolite.surveys.layers import count_operations

FACTORS = {"_linalg_eigh": 15.0, "_linalg_svd": 30.0, "linalg_qr": 2.0}  # as measured
NETWORKS = {
    "dense": lambda: mlp((6, 300, 300, 3)),
    "convolutional": lambda: nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 48, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(768, 3),
    ),
}  # fmt: skip


class Decompositions(TorchDispatchMode):
    """Counts what the counter of products does not: cubes of sizes, times usual factors."""

    def __init__(self):
        super().__init__()
        self.products = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        factor = FACTORS.get(func._overloadpacket.__name__)
        if factor is not None:
            *stack, rows, columns = args[0].shape
            short = min(rows, columns)
            self.products += factor * torch.Size(stack).numel() * rows * columns * short
        return func(*args, **(kwargs or {}))


def watched_survey(name, monkeypatch):
    """(time, seconds left as told, fraction) of all steps, and the time of the whole survey."""
    torch.manual_seed(0)
    data = blobs(120) if name == "dense" else images(120)
    told = []
    with count_operations(1) as spent, Decompositions() as decomposed:

        def clock():
            return (spent.products + decomposed.products) / 1e6

        monkeypatch.setattr(progress, "perf_counter", clock)

        def show(done, text):
            found = re.search(r"\((\d+) (s|min) left\)", text)
            left = None if found is None else int(found[1]) * {"s": 1, "min": 60}[found[2]]
            told.append((clock(), left, done))

        th.survey(NETWORKS[name](), data, progress=show, permutations=2, seconds=None)
        total = clock()
    return told, total


@pytest.mark.parametrize("name", ["convolutional"])
def test_after_a_third_of_the_work_the_rest_is_known_within_a_factor_of_two(name, monkeypatch):
    told, total = watched_survey(name, monkeypatch)
    now, left, _ = next(entry for entry in told if entry[0] >= total / 3)
    assert now < 0.95 * total, "a step is told in between"
    assert left is not None
    assert (total - now) / 2 <= left <= 2 * (total - now)


def test_the_fraction_never_falls_and_reaches_the_end(monkeypatch):
    told, _ = watched_survey("dense", monkeypatch)
    fractions = [done for _, _, done in told]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0.0
    assert 0.8 < fractions[-1] <= 1.0


def test_families_that_do_not_run_do_not_count(monkeypatch):
    monkeypatch.setattr(progress, "perf_counter", iter([0.0, 1.0, 2.0, 2.5, 3.0]).__next__)
    told = []
    costs = {"kernel": ((), 1.0), "covariance": ((9.0,), 9.0), "tangent": ((2.0,), 4.0)}
    shown = progress.Progress(lambda done, text: told.append((done, text)), costs)
    shown.begin("kernel", "a")
    shown.skip("covariance")
    shown.begin("tangent")
    shown.within(0.5)
    shown.begin("tangent", "a")
    assert [text for _, text in told] == [
        "kernel, a",
        "tangent (12 s left)",
        "tangent (6 s left)",
        "tangent, a (4 s left)",
    ]
    assert [done for done, _ in told] == pytest.approx([0.0, 1 / 7, 2 / 7, 3 / 7])


def test_long_steps_tell_how_far_they_are(monkeypatch):
    told = []
    options = {"families": ["tangent", "gradient"]}
    limits = {"memory_limit": 10**7, "batch_size": 10}
    show = lambda done, text: told.append((text.split()[0], done))  # noqa: E731
    th.survey(mlp(), blobs(60), progress=show, options=limits, **options)
    for family in ("tangent", "gradient"):
        fractions = [done for name, done in told if name == family]
        assert fractions == sorted(fractions)
        assert len(set(fractions[:4])) > 2, "more than one before the first layer"


class Log:
    """A stream without isatty()."""

    def write(self, text):
        pass

    def flush(self):
        pass


class FullDisk(Log):
    def write(self, text):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("log", [None, Log(), FullDisk()], ids=["none", "other", "full"])
def test_a_survey_without_a_log_to_write_to(monkeypatch, log):
    monkeypatch.setattr("sys.stderr", log)
    survey = th.survey(mlp(), blobs(30), families="kernel", progress=True)
    monkeypatch.undo()
    assert survey.record.contents["rows"]
