"""The memory limit of a survey: planned from counts, and kept, as a process of its own shows."""

import math
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import theodolite as th
from tests.survey.subjects import blobs, images, mlp, value
from theodolite.engine.state import free_host_bytes
from theodolite.errors import MemoryLimitError
from theodolite.surveys import SurveyOptions, tangent
from theodolite.surveys.layers import Footprint, Layout, count_operations
from theodolite.surveys.plan import SurveyPlan

MIB = 2**20


def limited(size):
    return {"memory_limit": size}


SCRIPT = """
import sys, torch, theodolite as th
from torch import nn
def net(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, stride=2),
        nn.BatchNorm2d(2 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(8 * width, 4)).eval()
def data(count):
    labels = torch.arange(count) % 4
    return torch.randn(count, 3, 24, 24) + labels.view(-1, 1, 1, 1), labels
def size(name):
    return int(next(l for l in open("/proc/self/status") if l.startswith(name)).split()[1]) * 1024
torch.manual_seed(0)
model, pairs, limit = net(24), data(300), int(sys.argv[1])
th.survey(net(2), data(24), options={"memory_limit": 10**9})  # loads libraries, starts threads
open("/proc/self/clear_refs", "w").write("5")
before = size("VmRSS")
found = th.survey(model, pairs, seconds=None, options={"memory_limit": limit or None})
print(size("VmHWM") - before, *found.record.contents["skipped"])
"""


def peak(limit):
    """Bytes that a survey added at most, and the families that it left out."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(limit)], capture_output=True, text=True, check=True
    )
    number, *skipped = done.stdout.split()
    return int(number), skipped


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_the_peak_stays_within_the_limit():
    limit = 20 * MIB
    free, _ = peak(0)
    kept, skipped = peak(limit)
    assert free > 2 * limit, "without a limit this survey takes more: the test can fail"
    assert kept <= 1.2 * limit
    assert skipped == []


def test_a_pass_is_counted_operation_by_operation():
    model = nn.Sequential(nn.Linear(6, 10, bias=False), nn.ReLU(inplace=True), nn.Linear(10, 3))
    inputs = torch.randn(5, 6)
    with torch.no_grad(), count_operations(5) as found:
        model(inputs)
    assert found.largest == 5 * 10 * 4
    assert found.total == 5 * (10 + 3) * 4  # neither views nor what happens in place
    assert found.products == 5 * (6 * 10 + 10 * 3)


def test_fewer_examples_are_said():
    found = th.survey(
        mlp(), blobs(600), families=["representation", "kernel"], options=limited(10**6)
    )
    contents = found.record.contents
    used = contents["routes"]["kernel"]["n"]
    assert used < 600
    assert contents["config"]["sizes"]["kernel"] == used
    texts = {w["family"]: w["text"] for w in contents["warnings"] if w["measure"] == "examples"}
    assert texts["kernel"] == f"{used} of 600 examples, to stay within the memory limit"
    assert f"note: representation and kernel: {texts['kernel']}" in found.summary()
    exact = th.survey(mlp(), blobs(600), families="kernel", sizes={"kernel": used})
    for layer in found.layers:
        assert math.isclose(
            value(found, "cka_target", layer), value(exact, "cka_target", layer), rel_tol=1e-12
        )


def test_many_classes_permute_fewer_examples():
    x, y = blobs(600, classes=60)
    found = th.survey(mlp((6, 8, 60)), (x, y), families="kernel", options=limited(10**7))
    assert found.record.contents["routes"]["kernel"]["n"] < 600


def test_batches_shrink_with_the_limit():
    wide = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.Flatten(), nn.Linear(2304, 3))
    found = th.survey(wide, images(60), families="kernel", options=limited(3 * 10**6))
    assert found.record.contents["config"]["batch_size"] < 60
    free = th.survey(wide, images(60), families="kernel")
    assert free.record.contents["config"]["batch_size"] == 256


def test_deep_networks_go_in_batches_that_leave_room_for_kernels():
    deep = [part for _ in range(6) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(1, 8, 1), *deep, nn.Flatten(), nn.Linear(288, 3))
    found = th.survey(
        model,
        images(60),
        families="gradient",
        permutations=2,
        seconds=None,
        options=limited(1_800_000),
    )
    route = found.record.contents["routes"]["gradient"]
    assert route["pairs"] == route["n"] == 60
    assert {warning["measure"] for warning in found.record.contents["warnings"]} <= {"examples"}


def test_few_inputs_of_a_wide_layer_need_no_covariance_of_their_entries():
    model = nn.Sequential(nn.Linear(4000, 40), nn.ReLU(), nn.Linear(40, 3))
    x, y = torch.randn(30, 4000, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    limit = limited(3 * 10**7)  # 4000 x 4000 numbers take 128 MB
    found = th.survey(model, (x, y), families="covariance", options=limit)
    assert math.isfinite(value(found, "relative_misalignment", "0"))
    assert value(found, "subspace", "0") == 10


class Tokens(nn.Module):
    """A layer of tokens, their mean, and a head of many outputs."""

    def __init__(self, outputs):
        super().__init__()
        self.embed, self.head = nn.Linear(4, 16), nn.Linear(16, outputs)

    def forward(self, x):
        return self.head(self.embed(x).relu().mean(1))


def test_a_hundred_outputs_are_sketched_where_their_kernels_do_not_fit():
    torch.manual_seed(0)
    model, x, y = Tokens(100).eval(), torch.randn(30, 5, 4), torch.arange(30)
    limit = limited(2 * 10**7)  # a kernel of 3000 x 3000 numbers takes 36 MB
    found = th.survey(model, (x, y), families="tangent", options=limit)
    assert found.record.contents["routes"]["tangent"]["method"] == "sketch"
    exact = th.engine.tangent_alignments(model, x, y)
    for layer in found.layers:
        estimate = found.estimate("tangent_alignment", layer)
        assert 0 < estimate.error < 0.5 * estimate.value
        distance = abs(estimate.value - float(exact[layer].alignment))
        assert distance < 4 * estimate.error
    maps = {c["layer"] for c in found.record.contents["curves"] if c["name"] == "forward_kernel"}
    assert maps == {"head"}  # a layer of tokens has no such kernel


def test_sums_of_gradients_that_do_not_fit_say_so():
    model, limit = mlp((6, 900, 900, 3)), limited(2 * 10**7)
    found = th.survey(model, blobs(), families="gradient", options=limit)
    assert found.record.contents["skipped"] == {}  # pairs of all examples need no sums
    few = {"families": ["kernel", "gradient"], "sizes": {"pairs": 10}, "options": limit}
    contents = th.survey(model, blobs(), **few).record.contents
    assert contents["routes"]["gradient"]["method"] == "all pairs of examples"
    contents = th.survey(model, blobs(), layers=["0"], **few).record.contents  # lacks parameters
    assert "sums of the size of the parameters take" in contents["skipped"]["gradient"]


def test_a_limit_below_a_single_example_is_an_error():
    with pytest.raises(MemoryLimitError, match="memory_limit: expected at least"):
        th.survey(mlp(), blobs(), options=limited(1000))


@pytest.mark.parametrize(("fitting", "most"), [(1000, 40), (10, 10), (1, 0)], ids=str)
def test_heat_maps_of_many_outputs_have_as_many_examples_as_fit(monkeypatch, fitting, most):
    outputs = 100
    free = SurveyPlan().free_bytes
    monkeypatch.setattr(tangent, "_GRADIENTS", free // (4 * outputs**2 * fitting))
    sizes = {"tangent": 60}
    monkeypatch.setattr(
        SurveyPlan, "fitted", lambda plan, *_: replace(plan, sizes={**plan.sizes, **sizes})
    )
    options = {"options": {"tangent": "sketch"}, "sizes": sizes, "permutations": 0}
    found = th.survey(mlp((6, 8, outputs)), blobs(60), families="tangent", **options)
    curves = [c for c in found.record.contents["curves"] if c["name"] == "backward_kernel"]
    shapes = {found.record.arrays[c["arrays"]["matrix"]].shape for c in curves}
    assert shapes == ({(most, most)} if most else set())
    told = {warning["text"] for warning in found.record.contents["warnings"]}
    assert any("not drawn" in text for text in told) == (most == 0)


def test_passes_of_a_single_output_on_a_gpu_are_as_large_as_memory_allows():
    """A quarter of the free bytes for activations and their gradients, 200 bytes an example."""
    plan = SurveyPlan(batch_size=1000, free_bytes=8 * 10**4)
    layout = Layout((), 10, footprint=Footprint(examples=2, largest=10, total=200))
    options = SurveyOptions()
    assert plan.kernel_options(options, layout, 1, launched=True) == {"batch_size": 100}
    assert plan.kernel_options(options, layout, 10, launched=True) == {}
    assert plan.kernel_options(options, layout, 1) == {}
    few = replace(plan, batch_size=30).kernel_options(options, layout, 1, launched=True)
    assert few == {"batch_size": 30}


def test_a_limit_beyond_what_is_free_is_a_warning_beforehand(monkeypatch):
    monkeypatch.setattr("theodolite.surveys.plan.available_bytes", lambda device: 10**9)
    with pytest.warns(UserWarning, match=r"4\.0 GB may be used, 1\.0 GB are free.*'500MB'"):
        th.survey(mlp(), blobs(), families="kernel", options=limited(4 * 10**9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # without a limit the plan takes half of what is free
        th.survey(mlp(), blobs(), families="kernel", permutations=0)


def test_kernels_of_a_ranking_beyond_what_is_free_are_a_warning_beforehand(monkeypatch):
    monkeypatch.setattr("theodolite.surveys.transfers.available_bytes", lambda device: 10**5)
    with pytest.warns(UserWarning, match="the system may end this process"):
        th.transfer(mlp(), blobs(60), tangent=False)


def test_free_memory_is_that_of_the_container(tmp_path):
    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert free_host_bytes(tmp_path) == 8 * 2**30  # nothing is said
    write("proc/meminfo", "MemFree: 1 kB\nMemAvailable:   9000 kB\n")
    assert free_host_bytes(tmp_path) == 9000 * 1024
    group = "sys/fs/cgroup/memory"
    write(f"{group}.max", "max\n")
    assert free_host_bytes(tmp_path) == 9000 * 1024
    write(f"{group}.max", "5000\n")
    write(f"{group}.current", "3000\n")
    write(f"{group}.stat", "anon 2000\ninactive_file 1000\n")
    assert free_host_bytes(tmp_path) == 3000
    write("proc/self/cgroup", "2:cpu:/other\n0::/jobs/17\n")  # as a batch system starts jobs
    write("sys/fs/cgroup/jobs/memory.max", "2500\n")
    write("sys/fs/cgroup/jobs/17/memory.max", "max\n")
    assert free_host_bytes(tmp_path) == 2500
    write(f"{group}/memory.limit_in_bytes", "1000\n")  # cgroups of the first version
    write(f"{group}/memory.usage_in_bytes", "400\n")
    assert free_host_bytes(tmp_path) == 600
    write("proc/self/cgroup", "4:cpu,memory:/jobs\n")
    write(f"{group}/jobs/memory.limit_in_bytes", "1000\n")
    write(f"{group}/jobs/memory.usage_in_bytes", "1200\n")
    assert free_host_bytes(tmp_path) == 0
