"""Memory, time and traffic of every family: predicted by formulas, measured, and at large sizes.

``python -m benchmarks.scale [--device cpu]``

It measures a survey of each family at two sizes in one process: peak of the resident memory, and
seconds of the processor. It then measures two gloo processes: bytes that the second sends. It
prints the ratio of predicted to measured numbers. Then it prints the predictions for a large model
and for many examples.
"""

import argparse
import ctypes
import gc
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import theodolite
from theodolite.engine import tangent_alignments
from theodolite.surveys import SurveyOptions

GIB, TERA = 2**30, 1e12
SIZES = ((800, 400), (1600, 800))  # examples and width
CLASSES, HIDDEN, NULLS, PROBES = 10, 2, 20, 32
# Seconds of a core that do not grow with the sizes: passes of few examples, checks, small calls.
START = {"representation": 0.06, "covariance": 0.12, "kernel": 0.11, "tangent": 0.08}
START |= {"sketch": 0.05, "gradient": 0.15}


@dataclass(frozen=True)
class Job:
    """The options of a survey.

    Args:
        examples: n.
        width: d, features of a layer.
        layers: L.
        outputs: c.
        parameters: p, of all layers.
        processes: W.
        positions: T, tokens or pixels of an example.
        item: bytes of a number of the model.
    """

    examples: int
    width: int
    layers: int
    outputs: int
    parameters: int
    processes: int = 1
    positions: int = 1
    item: int = 8

    def sent(self, size: float) -> float:
        """Bytes that a process sends to the first one if each makes an equal part of them."""
        return size / self.processes if self.processes > 1 else 0.0

    @property
    def forward(self) -> float:
        """Operations of a forward pass of all examples."""
        return 2.0 * self.parameters * self.positions * self.examples


@dataclass(frozen=True)
class Cost:
    """Memory and floating-point operations of the first process; bytes that another one sends."""

    memory: float
    work: float
    sent: float


def representation(job: Job) -> Cost:
    """Features of all layers; a thin decomposition of each, and nulls in its basis."""
    n, d, rank = job.examples, job.width, min(job.examples, job.width)
    features = job.layers * n * d * job.item
    decomposition = 6.0 * n * d * rank + 28.0 * rank**3 + 2.0 * n * n * d
    work = job.layers * (decomposition + 2.0 * n * rank * job.outputs * NULLS)
    beside = 8 * (4 * n * n + 4 * n * rank + 2 * n * job.outputs * NULLS)
    return Cost(features + beside, work + job.forward / job.processes, job.sent(features))


def covariance(job: Job) -> Cost:
    """Sums of d x d; random bases and decompositions of each layer."""
    n, d = job.examples * job.positions, job.width
    sums = job.layers * 2.0 * n * d * d
    work = (sums + job.forward) / job.processes + job.layers * 30.0 * d**3
    memory = 8 * (job.layers + 10) * d * d + 3 * job.item * min(n, 2000) * d + 10 * 2**20
    sent = job.layers * 8 * (d * d + d + 1) if job.processes > 1 else 0
    return Cost(memory, work, sent)


def kernel(job: Job) -> Cost:
    """Products of n x n; CKA, nulls and a spectrum of each layer."""
    n, d, small = job.examples, job.width, min(job.examples, job.width)
    features = job.layers * n * d * job.item
    spectrum = 6.0 * n * d * small + 36.0 * small**3
    work = job.layers * (2.0 * n * n * d + 2.0 * n * n * job.outputs * NULLS + spectrum)
    memory = features + 12 * 8 * n * n
    return Cost(memory, work + job.forward / job.processes, job.sent(features))


def tangent(job: Job) -> Cost:
    """Exact: kernels of (n c) x (n c). Every process passes all examples for its own layers."""
    rows = job.examples * job.outputs
    kernels = job.layers * rows**2 * job.item
    factors = job.layers * rows * job.width * job.item
    products = job.layers * rows**2 * 2.0 * job.width / job.processes
    memory = kernels + factors / job.processes + 5 * 8 * rows**2
    return Cost(memory, 3 * job.outputs * job.forward + products, job.sent(kernels))


def sketch(job: Job) -> Cost:
    """Gradients along s random vectors and the labels, of the size of the parameters, added up."""
    vectors = (PROBES + 1) * job.parameters
    work = (job.forward + 2 * (PROBES + 1) * job.forward) / job.processes
    work += 2.0 * (PROBES + 1) * vectors + 450.0 * vectors  # moving memory, as operations
    sent = vectors * job.item if job.processes > 1 else 0
    return Cost(vectors * job.item, work, sent)


def gradient(job: Job) -> Cost:
    """Products of features and of gradients; often five float64 sums of the size of the parameters.

    Pairs of the gradients of all examples need no sums, but every process then passes all examples.
    """
    n, d = job.examples, job.width
    cheap = n * job.parameters <= 5e8 or n <= 8 * job.positions
    few = n if cheap else min(n, 100)  # examples whose gradients are paired
    sums = 0 if few == n else 5 * 8 * job.parameters
    pairs, features = job.layers * few**2 * job.item, job.layers * n * d * job.item
    passes = 3 * job.forward
    if sums:
        passes = (passes + 8.0 * n * job.parameters) / job.processes
    nulls = 2.0 * job.outputs * NULLS
    work = n**2 * (2.0 * d + nulls) + few**2 * (4.0 * d / job.processes + nulls)
    memory = sums + pairs + features + 8 * (6 * n**2 + 4 * few**2)
    sent = job.sent(pairs + features) + (sums if job.processes > 1 else 0)
    return Cost(memory, passes + job.layers * work, sent)


FAMILIES = {
    "representation": representation,
    "covariance": covariance,
    "kernel": kernel,
    "tangent": tangent,
    "sketch": sketch,
    "gradient": gradient,
}


def job_of(name: str, n: int, d: int, processes: int = 1) -> Job:
    count = min(n // 5, 60) if name in ("tangent", "sketch") else n
    parameters = HIDDEN * (d * d + d) + CLASSES * (d + 1)
    wide = (
        HIDDEN if name in ("representation", "kernel") else HIDDEN + 1
    )  # the last gives c numbers
    return Job(count, d, wide, CLASSES, parameters, processes)


def setting(name: str, n: int, d: int) -> tuple[nn.Module, tuple, dict]:
    """A model of equal layers, data, and the families to measure."""
    torch.manual_seed(0)
    layers = [m for _ in range(HIDDEN) for m in (nn.Linear(d, d), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(d, CLASSES)).double()
    x, y = torch.randn(n, d, dtype=torch.float64), torch.arange(n) % CLASSES
    count = job_of(name, n, d).examples
    family = "tangent" if name == "sketch" else name
    options = {"families": family, "sizes": {family: count}, "permutations": NULLS}
    if name in ("tangent", "sketch"):
        options["options"] = {"tangent": "exact" if name == "tangent" else "sketch"}
    return model, (x, y), options


def resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def measured(name: str, n: int, d: int) -> tuple[float, float]:
    """Bytes above those before, and seconds of the processor, of one survey."""
    model, data, options = setting(name, n, d)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or the survey would reuse what was freed before
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    started = time.process_time()
    theodolite.survey(model, data, seconds=None, **options)
    return resident("VmHWM") - before, time.process_time() - started


def speed() -> float:
    """Operations a second of a product of matrices."""
    a = torch.randn(800, 800, dtype=torch.float64)
    _ = a @ a
    started = time.process_time()
    for _ in range(5):
        _ = a @ a
    return 5 * 2 * 800**3 / (time.process_time() - started)


def traffic() -> None:
    """In two processes: count the bytes that leave the second, family by family."""
    dist.init_process_group("gloo")
    sent = 0

    def counted(function, position):
        def call(*args, **options):
            nonlocal sent
            sent += args[position].nbytes
            return function(*args, **options)

        return call

    dist.all_reduce, dist.reduce = counted(dist.all_reduce, 0), counted(dist.reduce, 0)
    gather = dist.gather

    def counted_gather(tensor, received, place, **options):
        nonlocal sent
        sent += 0 if place == dist.get_rank() else tensor.nbytes
        return gather(tensor, received, place, **options)

    dist.gather = counted_gather
    rank = dist.get_rank()
    for name in FAMILIES:
        for n, d in SIZES:
            model, (x, y), options = setting(name, n, d)
            sent = 0
            theodolite.survey(model, (x[rank::2], y[rank::2]), seconds=None, **options)
            if rank == 1:
                predicted = FAMILIES[name](job_of(name, n, d, 2)).sent
                ratio = predicted / sent
                print(f"{name:15s} {n:5d} {d:5d} sent {sent / 1e6:9.3f} MB  ratio {ratio:5.2f}")
    dist.destroy_process_group()


def sketch_errors() -> None:
    """Root mean square of the relative error of the sketched alignment, over ten draws."""
    model, (x, y), _ = setting("sketch", 300, 128)
    exact = tangent_alignments(model.eval(), x[:60], y[:60]).curve
    for vectors in (8, 32, 128):
        draws = [
            tangent_alignments(
                model,
                x[:60],
                y[:60],
                method="sketch",
                sketch_vectors=vectors,
                generator=torch.Generator().manual_seed(seed),
            ).curve
            for seed in range(10)
        ]
        error = ((torch.stack(draws) - exact) / exact).square().mean().sqrt()
        print(f"sketch of {vectors:3d} random vectors: relative error {float(error):.3f}")


def answers() -> None:
    """Predictions for a large model, for many examples, and for eight times more."""
    large = {"width": 8192, "layers": 80, "outputs": 1, "parameters": 70 * 10**9, "item": 4}
    small = {"width": 2048, "layers": 50, "outputs": 10, "parameters": 25 * 10**6, "item": 4}
    table = [
        ("70e9 parameters, 2,000 texts of 512", 2000, large | {"positions": 512}),
        ("25e6 parameters, 1e6 images", 10**6, small | {"positions": 80}),
        ("25e6 parameters, 2,000 images", 2000, small | {"positions": 80}),
    ]
    for title, n, sizes in table:
        for processes in (1, 64):
            print(f"\n{title}, {processes} processes: costs of the first, bytes of another")
            for name, formula in FAMILIES.items():
                cost = formula(Job(n, processes=processes, **sizes))
                text = f"{cost.memory / GIB:14,.1f} GiB {cost.work / TERA:16,.1f} Tflop"
                print(f"  {name:15s}{text} {cost.sent / GIB:12,.2f} GiB sent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu"])
    parser.add_argument("--traffic", action="store_true", help="what the two processes run")
    if parser.parse_args().traffic:
        traffic()
        return
    torch.set_num_threads(1)
    rate = speed()
    print(f"one core: {rate / 1e9:.1f} Gflop/s of float64 products")
    caps = {name: size or "all" for name, size in SurveyOptions().sizes.items()}
    del caps["pairs"]
    print("examples of a survey by default:", ", ".join(f"{k} {v}" for k, v in caps.items()))
    for name in FAMILIES:  # imports and first calls
        measured(name, 60, 32)
    for name, formula in FAMILIES.items():
        for n, d in SIZES:
            peak, seconds = measured(name, n, d)
            cost = formula(job_of(name, n, d))
            expected = START[name] + cost.work / rate
            print(
                f"{name:15s} {n:5d} {d:5d} memory {peak / 2**20:8.1f} MiB "
                f"ratio {cost.memory / max(peak, 1):5.2f}   "
                f"time {seconds:7.2f} s ratio {expected / seconds:5.2f}",
                flush=True,
            )
    sketch_errors()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run([*command, "--nproc-per-node", "2", "-m", "benchmarks.scale", "--traffic"])
    answers()


if __name__ == "__main__":
    main()
