"""Measured peak of memory beside `memory_limit=`, of every call that takes a limit.

Run: ``python -m benchmarks.memory [--calls survey ...] [--networks mlp ...] [--limits 20 50 ...]``.

Every case runs in a process of its own. It first makes the same call for a tiny network, which
loads libraries and starts threads. Then freed memory is returned to the system. The peak is the
largest resident size during the call (``VmHWM`` of Linux) minus the size before it. The model and
the data are in memory before. Limit 0 means no limit. ``--where`` prints the stack of the main
thread at the largest resident size.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import theodolite as th
from theodolite.engine import feature_grams, tangent_alignments
from theodolite.errors import TheodoliteError

MB = 10**6
LIMITS = (0, 20, 50, 100, 300)
ALLOWED = 1.2  # measured peak over the limit


class Encoder(nn.Module):
    """A small transformer: two blocks, the mean over tokens, ten classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        found: Tensor = self.head(self.blocks(self.embed(tokens)).mean(1))
        return found


def mlp(tiny: bool) -> tuple[nn.Module, Tensor]:
    width, inputs, count = (8, 8, 40) if tiny else (512, 784, 2000)
    layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)), torch.randn(count, inputs)


def cnn(tiny: bool) -> tuple[nn.Module, Tensor]:
    width, pixels, count = (4, 8, 40) if tiny else (32, 32, 500)
    layers = [
        *(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU()),
        *(nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
    ]
    head = nn.Linear(32 * width, 10)
    return nn.Sequential(*layers, nn.Flatten(), head), torch.randn(count, 3, pixels, pixels)


def transformer(tiny: bool) -> tuple[nn.Module, Tensor]:
    width, length, count = (8, 4, 40) if tiny else (64, 32, 400)
    return Encoder(width), torch.randint(0, 100, (count, length))


NETWORKS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def setting(network: str, tiny: bool) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model, x = NETWORKS[network](tiny)
    return model.eval(), x, torch.arange(len(x)) % 10


def kernels(model: nn.Module, x: Tensor, y: Tensor, limit: int | None) -> None:
    th.tangent_kernels(model, x[: len(x) // 4], outputs="trace", memory_limit=limit)


def alignments(model: nn.Module, x: Tensor, y: Tensor, limit: int | None) -> None:
    few = len(x) // 4
    tangent_alignments(model, x[:few], y[:few], memory_limit=limit)


def grams(model: nn.Module, x: Tensor, y: Tensor, limit: int | None) -> None:
    feature_grams(model, x[: len(x) // 2], memory_limit=limit)


def survey(model: nn.Module, x: Tensor, y: Tensor, limit: int | None) -> dict[str, Any]:
    options = {"memory_limit": limit}
    found = th.survey(model, (x, y), seconds=None, progress=False, options=options)
    return dict(found.record.contents["skipped"])


def monitor(model: nn.Module, x: Tensor, y: Tensor, limit: int | None) -> dict[str, Any]:
    watch = th.Monitor(model, (x, y), options={"memory_limit": limit})
    watch.step(0)
    watch.close()
    return dict(watch.history.run.steps[-1].contents["skipped"])


def transfer(model: nn.Module, x: Tensor, y: Tensor, limit: int | None) -> list[str]:
    found = th.transfer(model, (x, y), memory_limit=limit)
    return list(found.record.contents["models"][0]["notes"])


CALLS: dict[str, Callable[[nn.Module, Tensor, Tensor, int | None], Any]] = {
    "tangent_kernels": kernels,
    "tangent_alignments": alignments,
    "feature_grams": grams,
    "survey": survey,
    "Monitor": monitor,
    "transfer": transfer,
}


def resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


class Watch(threading.Thread):
    """Keeps the stack of the main thread at the largest resident size."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.stack, self.running = 0, "", True
        self._main = threading.main_thread().ident

    def run(self) -> None:
        """Look twice a millisecond."""
        while self.running:
            now = resident("VmRSS")
            if now > self.most and self._main is not None:
                frame = sys._current_frames()[self._main]
                self.most, self.stack = now, "".join(traceback.format_stack(frame)[-14:])
            time.sleep(0.0005)


def measured(call: str, network: str, limit: int, where: bool) -> dict[str, Any]:
    """Peak in bytes above the memory before the call, and its notes or its error."""
    CALLS[call](*setting(network, tiny=True), 200 * MB)
    model, x, y = setting(network, tiny=False)
    x[0], _ = x[0].clone(), gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or the call would reuse what was freed before
    watch = Watch() if where else None
    if watch is not None:
        watch.start()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    found: dict[str, Any] = {}
    begun = time.process_time()
    try:
        found["left out"] = CALLS[call](model, x, y, limit * MB or None)
    except TheodoliteError as error:
        found["refused"] = str(error)
    found["seconds"] = time.process_time() - begun
    found["peak"] = resident("VmHWM") - before
    if watch is not None:
        watch.running = False
        print(watch.stack, file=sys.stderr)
    return found


def cell(found: dict[str, Any], limit: int) -> str:
    mark = " **too much**" if limit and found["peak"] > ALLOWED * limit * MB else ""
    if "refused" in found:
        return f"refused, {found['peak'] / MB:.0f}{mark}"
    left = found["left out"]
    note = f" (without {', '.join(left)})" if isinstance(left, dict) and left else ""
    return f"{found['peak'] / MB:.0f}{mark}{note}"


def of_process(command: list[str], limit: int, patience: float) -> str:
    """The cell of one case, in a process of its own."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=False, timeout=patience
        )
    except subprocess.TimeoutExpired:
        return f"not finished in {patience:g} s"
    lines = done.stdout.splitlines()
    return cell(json.loads(lines[-1]), limit) if done.returncode == 0 else "failed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", nargs="+", default=list(CALLS), choices=CALLS)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--limits", nargs="+", type=int, default=list(LIMITS), help="MB; 0: none")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds of a case")
    parser.add_argument("--where", action="store_true")
    parser.add_argument("--one", action="store_true", help="one case, in this process, as JSON")
    options = parser.parse_args()
    if options.one:
        (call,), (network,), (limit,) = options.calls, options.networks, options.limits
        print(json.dumps(measured(call, network, limit, options.where)))
        return
    heads = ("no limit" if limit == 0 else f"{limit} MB" for limit in options.limits)
    print(f"| | | {' | '.join(heads)} |\n|---|---|{'---|' * len(options.limits)}", flush=True)
    for call in options.calls:
        for network in options.networks:
            print(f"| `{call}` | {network} |", end="", flush=True)
            for limit in options.limits:
                case = ("--calls", call, "--networks", network, "--limits", str(limit), "--one")
                command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", *case]
                command += ["--where"] if options.where else []
                text = of_process(command, limit, options.patience)
                print(f" {text} |", end="", flush=True)
            print(flush=True)


if __name__ == "__main__":
    main()
