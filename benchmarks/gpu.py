"""The table for a GPU: surveys, kernels, gradients and a monitor, beside a plain pass and peers.

``python -m benchmarks.gpu [--device cuda] [--only WORDS;...] [--write] [--profile]``, or
``make bench-gpu``. One run gives every row. ``--write`` puts the table into benchmarks/README.md
with the machine and the commit. A row is the best of a few calls after a warm-up, with
``torch.backends.cudnn.benchmark = True``. A survey and a monitor are timed once, with PyTorch's
defaults. ``--small`` runs every row with few examples and channels, to try the script without a
GPU.
"""

import argparse
import cProfile
import gc
import os
import pstats
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import theodolite as th
from benchmarks import resnet
from benchmarks.gradients import losses, no_tf32, plain_pass, with_opacus, with_torch_func
from benchmarks.monitor import training
from benchmarks.resnet import ResNet18, group_norm
from benchmarks.stopwatch import measure
from benchmarks.tangent import by_jacobian, by_nngeometry, matrices, mlp, vgg19
from theodolite.engine import gradient_alignment, tangent_kernels

Call = Callable[[], Any]
_LONG = 2.0  # seconds
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- bench-gpu -->", "<!-- end of bench-gpu -->"


@dataclass(frozen=True)
class Case:
    """The calls that are timed in one row.

    Args:
        ours: the call.
        plain: one forward and backward pass over the same examples.
        peers: name -> the same numbers by another tool.
        once: whether the first call counts, without a warm-up.
        detail: of what the call returned.
        before: calls before those that are timed, of which the first and the best are reported.
    """

    ours: Call
    plain: Call | None = None
    peers: dict[str, Call] = field(default_factory=dict)
    once: bool = False
    detail: Callable[[Any], str] = lambda _found: ""
    before: int = 0


@dataclass(frozen=True)
class Row:
    """A row of the table: its name, the goal in seconds, and a function that makes its case."""

    name: str
    goal: float
    case: Callable[[str, bool], Case]


def images(count: int, size: int, device: str, classes: int = 10) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 3, size, size, generator=draws)
    return inputs.to(device), (torch.arange(count) % classes).to(device)


def chunked(model: nn.Module, data: tuple[Tensor, Tensor], size: int = 250) -> None:
    for low in range(0, len(data[0]), size):
        plain_pass(model, (data[0][low : low + size], data[1][low : low + size]))


def part_seconds(record: Any, digits: int = 1) -> str:
    named = sorted(record.contents["seconds"].items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {seconds:.{digits}f}" for name, seconds in named if name != "total")


def by_part(found: Any) -> str:
    text = part_seconds(found.record)
    skipped = found.record.contents["skipped"]
    missing = "; ".join(f"no {family}: {why}" for family, why in skipped.items())
    route = found.record.contents["routes"].get("tangent", {}).get("method", "-")
    return f"{text}; tangent {route}" + (f"; {missing}" if missing else "")


def survey(build: Call, count: int, size: int, classes: int, device: str, small: bool) -> Case:
    torch.manual_seed(0)
    model = build(small=small).to(device).eval()
    data = images(20 if small else count, 32 if small else size, device, classes)
    ours = partial(th.survey, model, data)
    return Case(ours, partial(chunked, model, data), once=True, detail=by_part)


def cifar_resnet18(small: bool) -> nn.Module:
    """Small channels are set for all rows."""
    return ResNet18()


def vit(small: bool) -> nn.Module:
    """ViT-B/16, or two of its blocks with 64 channels."""
    models = torchvision_models()
    if small:
        return models.VisionTransformer(32, 16, 2, 4, 64, 128)
    return models.vit_b_16()


def resnet50(small: bool) -> nn.Module:
    """ResNet-50, or one block of each stage with an eighth of the channels."""
    models = torchvision_models()
    if small:
        return models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], width_per_group=8)
    return models.resnet50()


_operators: list[Any] = []  # they vanish with the object that defines them


def torchvision_models() -> Any:
    """Torchvision's models; beside a CPU build of torch two of its operators are missing."""
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
        _operators.append(library)
        import torchvision
    return torchvision.models


def kernels(build: Call, shape: tuple[int, ...], weights: bool, device: str, small: bool) -> Case:
    torch.manual_seed(0)
    build = partial(vgg19, 16) if small and build is vgg19 else build
    model = build().to(device).eval()
    x = torch.randn(8 if small else shape[0], *shape[1:]).to(device)
    y = torch.arange(len(x), device=device) % 10
    options = {"params": matrices} if weights else {}
    peers = {
        "torch.func": partial(by_jacobian, model, x),
        "nngeometry": partial(by_nngeometry, model, x),
    }
    fits = x.ndim == 2 or len(x) <= 100  # Jacobians of 256 images take 114 GB for ResNet-18
    return Case(
        partial(tangent_kernels, model, x, **options),
        partial(plain_pass, model, (x, y)),
        peers if weights and fits else {},
        before=0 if device == "cpu" else 3,
    )


def gradients(check: bool, device: str, small: bool) -> Case:
    torch.manual_seed(0)
    model = ResNet18(group_norm).to(device).eval()
    data = images(40 if small else 1000, 32, device)
    ours = partial(gradient_alignment, model, *data, losses, check=check)
    peers = {
        "torch.func": lambda: with_torch_func(model, data, 64),
        "Opacus": lambda: with_opacus(model, data),
    }
    return Case(ours, partial(plain_pass, model, data), peers if check else {})


def monitor(last: bool, device: str, small: bool) -> Case:
    """The first measurement, or the last in full, after training has warmed up the device."""
    torch.manual_seed(0)
    model = ResNet18().to(device)
    data = images(64 if small else 2048, 32, device)
    step, probe = training(model, *data), tuple(part[:256] for part in data)
    for _ in range(1 if small else 50):
        step()
    watch = th.Monitor(model, probe, loss=nn.CrossEntropyLoss(), every=1)

    def detail(_found: Any) -> str:
        return part_seconds(watch.history.run.steps[-1], 3)

    if not last:
        return Case(lambda: watch.step(0), step, once=True, detail=detail)
    for index in range(2):
        watch.step(index)
        step()
    return Case(watch.close, step, once=True, detail=detail)


def monitored_run(steps: int, budget: float | None, device: str, small: bool) -> Case:
    """Steps with a measurement every 100, the first and the last in full included."""
    torch.manual_seed(0)
    model = ResNet18().to(device)
    data = images(64 if small else 2048, 32, device)
    step, probe = training(model, *data), tuple(part[:256] for part in data)
    steps, every = (4, 1) if small else (steps, 100)

    def bare() -> None:
        for _ in range(steps):
            step()

    def watched() -> th.Monitor:
        loss = nn.CrossEntropyLoss()
        watch = th.Monitor(model, probe, loss=loss, every=every, budget=budget)
        for index in range(steps):
            watch.step(index)
            step()
        watch.close()
        return watch

    def detail(watch: th.Monitor) -> str:
        taken = [record.contents["seconds"]["total"] for record in watch.history.run.steps]
        each = ", ".join(f"{seconds:.2f}" for seconds in taken)
        return f"{len(taken)} measurements of {each} s: {watch.overhead:.1%} of the rest"

    return Case(watched, bare if budget is None else None, once=True, detail=detail)


ROWS = (
    Row("gradient alignment, ResNet-18 (GroupNorm), n=1000", 0.176, partial(gradients, True)),
    Row("gradient alignment without the check", 0.163, partial(gradients, False)),
    Row("kernels, weights of the MLP, n=1000", 7.5e-3,
        partial(kernels, lambda: mlp(784, 1024, 1024, 10), (1000, 784), True)),
    Row("kernels, weights of VGG-19, n=100", 75e-3,
        partial(kernels, vgg19, (100, 3, 32, 32), True)),
    Row("kernels, all parameters of VGG-19, n=100", 115e-3,
        partial(kernels, vgg19, (100, 3, 32, 32), False)),
    Row("kernels, weights of ResNet-18, n=256", 380e-3,
        partial(kernels, ResNet18, (256, 3, 32, 32), True)),
    Row("kernels, weights of ResNet-18, n=64", 60e-3,
        partial(kernels, ResNet18, (64, 3, 32, 32), True)),
    Row("kernels, all parameters of ResNet-18, n=64", 60e-3,
        partial(kernels, ResNet18, (64, 3, 32, 32), False)),
    Row("survey, CIFAR ResNet-18, n=2000", 5.0, partial(survey, cifar_resnet18, 2000, 32, 10)),
    Row("survey, ViT-B/16 at 224, n=256", 8.0,
        partial(survey, vit, 256, 224, 1000)),
    Row("survey, ResNet-50 at 224, n=500", 12.0,
        partial(survey, resnet50, 500, 224, 1000)),
    Row("monitor, ResNet-18, first measurement", 0.5, partial(monitor, False)),
    Row("monitor, ResNet-18, last measurement", 0.3, partial(monitor, True)),
    Row("training of 400 steps with a monitor", 0.0, partial(monitored_run, 400, None)),
    Row("training of 1200 steps with budget=0.06", 0.0, partial(monitored_run, 1200, 0.06)),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Seconds of one row; a peer that is absent or fails has a reason instead."""

    row: Row
    ours: float
    plain: float | None
    peers: dict[str, float | str]
    detail: str

    def line(self) -> str:
        """One line of the table in Markdown."""
        plain = (
            "-" if self.plain is None else f"{shown(self.plain)} ({self.ours / self.plain:.1f}x)"
        )
        goal = "-" if not self.row.goal else shown(self.row.goal)
        if self.row.goal and self.ours <= self.row.goal:
            goal += ", **met**"
        others = ", ".join(
            f"{name} {value if isinstance(value, str) else shown(value)}"
            for name, value in self.peers.items()
        )
        return f"| {self.row.name} | {shown(self.ours)} | {goal} | {plain} | {others or '-'} |"


def shown(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def timed(call: Call, device: str) -> tuple[float, Any]:
    if device != "cpu":
        torch.cuda.synchronize()
    started = time.perf_counter()
    found = call()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started, found


def released(device: str) -> None:
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def result(row: Row, device: str, small: bool, profile: bool, beside: bool) -> Result:
    released(device)
    torch.backends.cudnn.benchmark = False
    case = row.case(device, small)
    torch.backends.cudnn.benchmark = not case.once
    if case.once:
        call = partial(timed, case.ours, device)
        seconds, found = profiled(call) if profile else call()
        detail = case.detail(found)
        del found
    else:
        detail = calls_before(case, device)
        seconds = measure(case.ours, device, 3).seconds
        if profile:
            profiled(partial(timed, case.ours, device))
            launches(case.ours, device)
    plain = None if case.plain is None else seconds_of(case.plain, device)
    return Result(row, seconds, plain, dict(peers(case, device)) if beside else {}, detail)


def seconds_of(call: Call, device: str) -> float:
    """The best of two calls after a warm-up; of what takes longer than two seconds a single one.

    The warm-up never counts: cuDNN times its algorithms in it, for six seconds in some rows.
    """
    call()
    seconds, _ = timed(call, device)
    return seconds if seconds > _LONG else min(seconds, measure(call, device, 2).seconds)


def calls_before(case: Case, device: str) -> str:
    """How long the first calls took."""
    if not case.before:
        return ""
    first, *others = (timed(case.ours, device)[0] for _ in range(case.before))
    return f"first call {shown(first)}, then {shown(min(others))}"


def peers(case: Case, device: str) -> Iterator[tuple[str, float | str]]:
    """Whatever a foreign tool raises, the table goes on."""
    for name, call in case.peers.items():
        released(device)
        try:
            yield name, seconds_of(call, device)
        except ImportError:
            yield name, "not installed"
        except torch.OutOfMemoryError:
            yield name, "out of memory"
        except Exception as error:
            yield name, f"failed ({type(error).__name__})"


def profiled(call: Call) -> Any:
    """Where the host's time goes, by function."""
    profile = cProfile.Profile()
    found = profile.runcall(call)
    for order in ("tottime", "cumtime"):
        pstats.Stats(profile).sort_stats(order).print_stats(30 if order == "tottime" else 70)
    return found


def launches(call: Call, device: str) -> None:
    """How long the device works, in how many kernels, and in which."""
    if device == "cpu":
        return
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as seen:
        timed(call, device)
    every = [entry for entry in seen.key_averages() if entry.self_device_time_total > 0]
    rows = sorted(every, key=lambda entry: -entry.self_device_time_total)  # not the host's calls
    busy = sum(entry.self_device_time_total for entry in rows) / 1e3
    print(f"  the device is busy for {busy:.1f} ms in {sum(entry.count for entry in rows)} kernels")
    for entry in rows[:12]:
        print(
            f"  {entry.self_device_time_total / 1e3:9.2f} ms {entry.count:6d} x {entry.key[:100]}"
        )


def machine(device: str) -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    commit = os.environ.get("COMMIT") or asked.stdout.strip()
    name = torch.cuda.get_device_name() if device != "cpu" else "CPU"
    return f"{name}, torch {torch.__version__}, commit {commit or 'unknown'}"


def table(results: list[Result], where: str) -> str:
    """The table in Markdown, with the machine above and the parts of surveys below."""
    head = "| | theodolite | goal | plain pass (ours over it) | peers |\n|---|---|---|---|---|"
    lines = "\n".join(result.line() for result in results)
    parts = "\n".join(f"- {found.row.name}: {found.detail}" for found in results if found.detail)
    return f"{where}:\n\n{head}\n{lines}\n" + (f"\nIn detail:\n\n{parts}\n" if parts else "")


def write(text: str) -> None:
    """Put the table between its marks in the README."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="parts of rows' names, by semicolons")
    parser.add_argument("--small", action="store_true", help="few examples, to try the script")
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    parser.add_argument("--no-peers", action="store_true", help="leave other tools out")
    parser.add_argument("--write", action="store_true", help="put the table into the README")
    parser.add_argument("--table", type=Path, help="also write the table there, row by row")
    chosen = parser.parse_args()
    no_tf32(chosen.device)
    if chosen.small:
        resnet.WIDTHS = (4, 8, 8, 8)
    where = machine(chosen.device)
    words = [word.strip().lower() for word in chosen.only.split(";")]
    results = []
    for row in ROWS:
        if not any(word in row.name.lower() for word in words):
            continue
        try:
            found = result(row, chosen.device, chosen.small, chosen.profile, not chosen.no_peers)
        except ImportError as error:
            print(f"{row.name}: {error.name} is not installed", flush=True)
            continue
        results.append(found)
        print(found.line(), found.detail, flush=True)
        if chosen.table is not None:
            chosen.table.write_text(table(results, where))
    text = table(results, where)
    print(f"\n{text}")
    if chosen.write:
        write(text)


if __name__ == "__main__":
    main()
