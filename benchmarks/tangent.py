"""Tangent kernels per layer: time, peak memory, lower bound, peers and scaling.

    PYTHONPATH=src python -m benchmarks.tangent --device cuda

Kernels are those of the weights of convolutional and linear layers, for all ten outputs, in
float32. The outputs of every tool are compared with ours before anything is timed.
"""

import argparse
import math
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.resnet import ResNet18
from benchmarks.stopwatch import CLOCKS, GIB, attempt, choose_clock, measure, problem_of
from theodolite.engine import tangent_kernels
from theodolite.engine.batches import iterate_batches
from theodolite.engine.contract import KernelBlock
from theodolite.engine.factors import OuterFactors
from theodolite.engine.inputs import BatchList
from theodolite.engine.kernel_engine import prepare
from theodolite.engine.plan import EngineOptions, kernel_shape
from theodolite.engine.state import exact_arithmetic, untouched

VGG19 = (64, 64, "M", 128, 128, "M", 256, 256, 256, 256, "M", 512, 512, 512, 512, "M",
         512, 512, 512, 512, "M")  # fmt: skip


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=False), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def vgg19(divisor: int = 1) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for entry in VGG19:
        if isinstance(entry, str):
            layers.append(nn.MaxPool2d(2))
        else:
            width = entry // divisor
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 10, bias=False))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP 784-1024-1024-10, n=1000": (lambda: mlp(784, 1024, 1024, 10), (1000, 784)),
    "VGG-19, n=100": (vgg19, (100, 3, 32, 32)),
    "ResNet-18, n=256": (ResNet18, (256, 3, 32, 32)),
}
SMALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP 64-128-10, n=60": (lambda: mlp(64, 128, 10), (60, 64)),
    "MLP 10 x 256, n=100": (lambda: mlp(*[256] * 10, 10), (100, 256)),
    "VGG-19 with an eighth of its channels, n=16": (lambda: vgg19(8), (16, 3, 32, 32)),
    "VGG-19 with an eighth of its channels, n=32": (lambda: vgg19(8), (32, 3, 32, 32)),
}


TIMED: tuple[dict[str, Any], ...] = (
    {},
    {"check": False},
    {"outputs": "trace"},
)


def matrices(_name: str, parameter: nn.Parameter) -> bool:
    return parameter.dim() > 1


def build(case: tuple[Callable[[], nn.Module], tuple[int, ...]], device: str) -> Any:
    torch.manual_seed(0)
    model = case[0]().eval().to(device)
    return model, torch.randn(*case[1]).to(device)


def kernels(model: nn.Module, x: Tensor, **options: Any) -> Any:
    return tangent_kernels(model, x, params=matrices, **options)


# ------------------------------------------------------------------------------------------ peers


def by_jacobian(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The contraction of the torch.func tutorial, per parameter."""
    chosen = {k: p.detach() for k, p in model.named_parameters() if p.dim() > 1}
    rest = {k: v.detach() for k, v in model.state_dict().items() if k not in chosen}

    def single(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        return torch.func.functional_call(model, {**rest, **parameters}, one[None])[0]

    jacobian = torch.func.vmap(torch.func.jacrev(single), (None, 0))(chosen, x)
    return {
        name: torch.einsum("xip,yjp->xiyj", J.flatten(2), J.flatten(2))
        for name, J in jacobian.items()
    }


def by_nngeometry(model: nn.Module, x: Tensor) -> Tensor:
    """The total kernel, (n, c, n, c)."""
    from nngeometry.gram import GramMatrix

    data = torch.utils.data.TensorDataset(x, torch.zeros(len(x), device=x.device))
    loader = torch.utils.data.DataLoader(data, batch_size=len(x))
    return GramMatrix(model, loader).to_torch().permute(1, 0, 3, 2)


def by_torchjd(model: nn.Module, x: Tensor) -> Tensor:
    """The total kernel, (n, c, n, c)."""
    from torchjd.autogram import Engine

    model = deepcopy(model)  # the engine leaves hooks behind
    engine = Engine(model, batch_dim=0)
    outputs = model(x)
    gramian = engine.compute_gramian(outputs)
    return gramian.reshape(*outputs.shape, *outputs.shape)  # rows (example, output)


def summed(model: nn.Module, x: Tensor) -> Tensor:
    return torch.stack(list(by_jacobian(model, x).values())).sum(0)


PEERS: dict[str, tuple[Callable[..., Any], Callable[[nn.Module, Tensor], Tensor]]] = {
    "torch.func, every layer": (by_jacobian, summed),
    "nngeometry, total only": (by_nngeometry, by_nngeometry),
    "TorchJD, total only": (by_torchjd, by_torchjd),
}


def agrees(name: str, total: Callable[[nn.Module, Tensor], Tensor], model: Any, x: Tensor) -> bool:
    """Whether a peer is there and gives our kernel for a few examples."""
    ours = kernels(model, x[:20]).total
    try:
        theirs = total(model, x[:20]).detach()
    except Exception as error:  # whatever a foreign tool raises
        print(f"{name:44s} {problem_of(error)}")
        return False
    difference = float((ours - theirs).abs().max() / ours.abs().max())
    print(f"{name:44s} largest relative difference {difference:.1e} on 20 examples")
    return difference < 1e-3


def side_by_side(name: str, device: str) -> None:
    model, x = build(SMALL.get(name) or CASES[name], device)
    mine = attempt("theodolite, every layer", partial(kernels, model, x), device, None)
    unchecked = partial(kernels, model, x, check=False)
    attempt("theodolite, every layer, check=False", unchecked, device, mine)
    with exact_arithmetic(torch.device(device)):
        for peer, (call, total) in PEERS.items():
            if agrees(peer, total, model, x):
                attempt(peer, partial(call, model, x), device, mine)


# ---------------------------------------------------------------------------------------- profile


def synchronized(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def profile(name: str, device: str, both: bool = False) -> None:
    """Passes and products apart: route and time of every layer, by both routes if wanted."""
    model, x = build(CASES[name], device)
    with untouched(model), exact_arithmetic(torch.device(device)):
        data = BatchList([*iterate_batches(x)])
        engine = prepare(model, data, EngineOptions(params=matrices, check=False))
        plan = engine.plan(len(x), None, len(engine.layers))
        block = next(data.blocks(plan.block_size, plan.batch_size))
        collected = timed(lambda: engine.collect(block, plan), device)[1]  # algorithms are chosen
        passes, collected = timed(lambda: engine.collect(block, plan), device)
        planned = plan.predicted_bytes / GIB
        print(
            f"  passes {passes * 1e3:8.2f} ms in runs of {plan.batch_size}, plan {planned:.2f} GiB"
        )
        shape = kernel_shape("full", len(x), len(x), engine.output_count)
        kernel = KernelBlock(torch.empty(shape, device=device))
        total = 0.0
        for layer in engine.layers:
            index = engine.group_indices[layer][0]
            group_plan, factors = plan.group_plans[index], collected.factors[index]
            times = {}
            for route in routes(group_plan, factors, both):
                factors.route = route
                fill = partial(engine.fill, layer, collected, None, kernel, plan)
                times[route] = min(timed(fill, device)[0] for _ in range(3))
            factors.route = group_plan.route
            total += times[group_plan.route]
            listed = "  ".join(f"{key} {value * 1e3:8.2f} ms" for key, value in times.items())
            print(f"  {layer:22s} {describe(factors):36s} plan {group_plan.route:16s} {listed}")
        print(f"  products {total * 1e3:8.2f} ms by the planned routes")


def timed(call: Callable[[], Any], device: str) -> tuple[float, Any]:
    started = synchronized(device)
    result = call()
    return synchronized(device) - started, result


def routes(group_plan: Any, factors: Any, both: bool) -> list[str]:
    """The planned route, and the other one where there is a choice."""
    other = {"gradients": "positions", "positions": "gradients"}
    free = isinstance(factors, OuterFactors) and group_plan.route in other
    return [group_plan.route, other[group_plan.route]] if both and free else [group_plan.route]


def busiest(name: str, device: str) -> None:
    """The kernels in which a whole call spends its time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    model, x = build(CASES[name], device)
    call = partial(kernels, model, x)
    call()
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * device.startswith("cuda")
    with record(activities=kinds) as seen:
        started = synchronized(device)
        call()
        print(f"  profiled call {(synchronized(device) - started) * 1e3:.2f} ms")
    key = "self_device_time_total" if device.startswith("cuda") else "self_cpu_time_total"
    rows = sorted(seen.key_averages(), key=lambda row: -getattr(row, key))
    for row in rows[:22]:
        print(f"  {getattr(row, key) / 1e3:9.2f} ms {row.count:6d} x {row.key[:110]}")


def describe(factors: Any) -> str:
    if getattr(factors, "output_grads", None) is not None:
        C, T = factors.output_grads.shape[2:]
        return f"T={T} C={C} inputs {tuple(factors.inputs.shape[1:])}"
    return " ".join(str(tuple(part.shape[1:])) for part in factors.gradients[:1])


def floor(name: str, device: str) -> float:
    """Ten backward passes to the uses, and the products of the cheapest routes at full speed."""
    model, x = build(CASES[name], device)
    with untouched(model), exact_arithmetic(torch.device(device)):
        data = BatchList([*iterate_batches(x)])
        engine = prepare(model, data, EngineOptions(params=matrices, check=False))
        plan = engine.plan(len(x), None, len(engine.layers))
        runs = [
            engine.recorder.run(batch)
            for block in data.blocks(plan.block_size, plan.batch_size)
            for batch in block.batches[:1]
        ]

        def passes() -> None:
            for _ in runs[0].passes(keep_graph=True):
                pass

        took = measure(passes, device, 3).seconds * len(x) / len(runs[0].outputs)
        products = sum(counted(group_plan, engine, len(x)) for group_plan in plan.group_plans)
    rate = 51e12 if device.startswith("cuda") else 1e11
    least = 2 * products / rate
    shown = f"passes {took * 1e3:.2f} ms and products {least * 1e3:.2f} ms"
    print(f"{'floor':44s} {(took + least) * 1e3:10.2f} ms  ({shown} at {rate / 1e12:g} TFLOP/s)")
    return took + least


def counted(group_plan: Any, engine: Any, n: int) -> float:
    """Multiply-adds of the planned route, half of the pairs, nothing for bytes."""
    structure = engine.single_run.uses[group_plan.group.uses[0]].structure
    c, T, C, D = engine.outputs, structure.positions, structure.rows, structure.columns
    if T == 1:
        return n * n / 2 * (D + c * c * C)
    if group_plan.route == "gradients":
        return n * c * T * C * D + n * n / 2 * c * c * C * D
    keeps = structure.geometry is not None and structure.geometry.keeps_size
    return (
        n
        * n
        / 2
        * (T * T * (structure.inputs.shape[1] if keeps else D) + c * T * T * C + c * c * T * C)
    )


# ---------------------------------------------------------------------------------------- scaling


def slope(sizes: list[int], values: list[float]) -> float:
    x = [math.log(size) for size in sizes]
    y = [math.log(value) for value in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    top = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return top / sum((a - mx) ** 2 for a in x)


def scaling(device: str) -> None:
    """Exponents of time and of kernel memory, measured and predicted, on fully connected nets."""
    big = device.startswith("cuda")
    n, c, w, d = (1000, 10, 1024, 4) if big else (60, 4, 128, 4)
    # Time: products of (n c)^2 pairs over the width; memory: one kernel of (n c)^2 per layer.
    axes: dict[str, tuple[list[int], Callable[[int], tuple[Any, ...]], tuple[int, int]]] = {
        "examples n": ([n, 2 * n, 3 * n], lambda s: (s, c, w, d), (2, 2)),
        "outputs c": ([c, 2 * c, 3 * c], lambda s: (n, s, w, d), (2, 2)),
        "width": ([w, 2 * w, 4 * w], lambda s: (n, c, s, d), (1, 0)),
        "depth": ([d, 2 * d, 4 * d], lambda s: (n, c, w, s), (1, 1)),
    }
    for axis, (sizes, case, (time_law, memory_law)) in axes.items():
        times, memory = [], []
        for size in sizes:
            examples, outputs, width, depth = case(size)
            torch.manual_seed(0)
            model = mlp(*[width] * depth, outputs).eval().to(device)
            x = torch.randn(examples, width, device=device)
            taken = measure(lambda m=model, v=x: kernels(m, v, check=False), device, 3)
            times.append(taken.seconds)
            memory.append(max(taken.gibibytes, 1e-9))
            del taken  # holds the kernels
        shown = " ".join(f"{t * 1e3:.1f}" for t in times)
        print(
            f"  {axis:12s} {sizes}: {shown} ms, exponent {slope(sizes, times):.2f} in time", end=""
        )
        kept = f"{slope(sizes, memory):.2f}" if big else "not measured"
        print(f" (predicted {time_law}), {kept} in memory (predicted {memory_law})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="times,profile,peers,scaling")
    parser.add_argument("--case", default="")
    parser.add_argument("--clock", default="wall", choices=CLOCKS)
    chosen = parser.parse_args()
    choose_clock(chosen.clock)
    wanted, device = chosen.only.split(","), chosen.device
    print(
        f"torch {torch.__version__}, {torch.cuda.get_device_name() if device != 'cpu' else 'CPU'}"
    )
    names = [name for name in CASES if chosen.case.lower() in name.lower()]
    for name in names:
        print(f"\n== {name}, weights of all layers, full kernels of 10 outputs")
        if "times" in wanted:
            model, x = build(CASES[name], device)
            for options in TIMED:
                label = ", ".join(f"{k}={v}" for k, v in options.items()) or "default"
                measured = attempt(
                    f"theodolite, {label}", partial(kernels, model, x, **options), device, None
                )
                seconds = measured.seconds if measured else math.nan
                del measured  # holds the kernels, which the next peak must not include
                if not options:
                    least = floor(name, device)
                    print(f"{'theodolite / floor':44s} {seconds / least:10.2f} x")
            del model, x
        if "profile" in wanted:
            profile(name, device, both="routes" in wanted)
        if "kernels" in wanted:
            busiest(name, device)
    if "peers" in wanted:
        for name in [*SMALL, *(list(CASES)[:2] if device != "cpu" else [])]:
            print(f"\n== side by side: {name}")
            side_by_side(name, device)
    if "scaling" in wanted or "times" in wanted:
        print("\n== scaling")
        scaling(device)


if __name__ == "__main__":
    main()
