"""``python -m benchmarks.transfer COMMAND``; README.md has the commands in order."""

import argparse
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from shutil import copyfile

import pandas
import torch
from torch import Tensor

from benchmarks.transfer import groups, joint, surgical
from benchmarks.transfer.data import FRESH, TARGETS, Images, network_input, pack
from benchmarks.transfer.scores import forecasts, score_all, score_on_device
from benchmarks.transfer.stacked import Stack
from benchmarks.transfer.table import UNSEEN, collect, print_tables
from benchmarks.transfer.tuning import (
    SEEDS,
    fine_tune,
    load_states,
    precision_on,
    train_sources,
)
from benchmarks.transfer.zoo import ARCHITECTURES, SOURCES, Network, untrained
from theodolite.engine import tangent_kernels


def pilot(given: argparse.Namespace) -> None:
    """Which rates win, whether bfloat16 matters, and what a kernel and a step cost."""
    images, folder, device = Images(given.images), given.folder, given.device
    name, targets = "residual 16", ["cifar A", "gratings"]
    few = [source for source in SOURCES if source.architecture == name][::2]
    common = {"architecture": name, "targets": targets, "budget": 400, "sources": few}
    both = [
        pandas.concat(
            fine_tune(
                images,
                folder,
                device,
                **common,
                precision=dtype,
                seeds=(0, 1),
                steps_factor=given.steps_factor,
            ),
            ignore_index=True,
        )
        for dtype in (precision_on(device), torch.float32)
    ]
    print(both[1].groupby(["target", "rate"])["test"].mean().unstack().round(3))
    difference = both[0]["test"] - both[1]["test"]
    print(f"{precision_on(device)} - float32: {difference.mean():.4f}, sd {difference.std():.4f}")
    seeds = both[1].pivot_table(index=["source", "target", "rate"], columns="seed", values="test")
    print(f"seed 0 - seed 1 in float32: sd {(seeds[0] - seeds[1]).std():.4f}", flush=True)
    for architecture in ARCHITECTURES.values():
        state = next(iter(load_states(folder, architecture.name).values()))
        network = Network(architecture)
        network.load_state_dict(state)
        network.to(device).eval()
        pixels = images.target("cifar A", "pool").images[:400].to(device)
        x = network_input(pixels).permute(0, 3, 1, 2).contiguous()
        for kind, count in (("trace", 400), ("full", 100)):
            step = partial(tangent_kernels, network, x[:count], outputs=kind)
            print(f"{architecture.name}: {kind} kernel, {count} examples: {timed(step, device)}")
    print(*(f"{name}: {timed(step, device)}" for name, step in both_steps(device).items()))


def timed(step: Callable[[], object], device: str) -> str:
    """The best of three calls after one more."""
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        step()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return f"{1e3 * min(seconds[1:]):.1f} ms"


def both_steps(device: str, count: int = 128, batch: int = 64) -> dict[str, Callable[[], object]]:
    """Forward and backward of stacked networks, by patches and by ``vmap`` of the modules."""
    architecture = ARCHITECTURES["residual 16"]
    source = next(source for source in SOURCES if source.architecture == architecture.name)
    networks = [untrained(source).eval().to(device) for _ in range(count)]
    x = torch.randn(count, batch, 16, 16, 3, device=device)
    parameters, buffers = torch.func.stack_module_state(networks)
    states = [network.state_dict() for network in networks]
    stack = Stack.of(architecture, states, device, precision_on(device))
    for value in stack.parameters.values():
        value.requires_grad_()

    alone = networks[0](x[0].permute(0, 3, 1, 2))
    torch.testing.assert_close(stack.outputs(x, training=False)[0], alone, rtol=0, atol=0.02)

    def one(own: dict[str, Tensor], fixed: dict[str, Tensor], images: Tensor) -> Tensor:
        with torch.autocast(device.split(":")[0], precision_on(device)):
            return torch.func.functional_call(networks[0], (own, fixed), (images,))

    def grouped() -> object:
        outputs = torch.func.vmap(one)(parameters, buffers, x.permute(0, 1, 4, 2, 3))
        return torch.autograd.grad(outputs.float().square().sum(), list(parameters.values()))

    def by_patches() -> object:
        outputs = stack.outputs(x, training=False)
        return torch.autograd.grad(outputs.square().sum(), list(stack.parameters.values()))

    return {"by patches": by_patches, "by vmap": grouped}


def append(tables: Iterable[pandas.DataFrame], path: Path) -> None:
    """Write tables to one file as they come, so that a killed run leaves what it has."""
    for table in tables:
        table.to_csv(path, mode="a", header=not path.exists(), index=False, float_format="%.5g")


def pretrain(given: argparse.Namespace) -> None:
    train_sources(Images(given.images), given.folder, given.device, given.steps_factor)


def truth(given: argparse.Namespace) -> None:
    images = Images(given.images)
    for budget, architecture in product(given.budgets, given.architectures):
        runs = fine_tune(
            images,
            given.folder,
            given.device,
            architecture=architecture,
            targets=given.targets,
            budget=budget,
            seeds=given.seeds,
            steps_factor=given.steps_factor,
        )
        append(runs, given.folder / f"truth-{architecture.replace(' ', '_')}.csv")


def scores(given: argparse.Namespace) -> None:
    images = Images(given.images)
    for name in given.architectures:
        if given.on_device:
            tables = score_on_device(images, given.folder, given.device, name, given.targets)
        else:
            tables = score_all(
                images, given.folder, given.device, given.workers, [name], given.targets
            )
        append(tables, given.folder / f"scores-{name.replace(' ', '_')}.csv")


def shown(given: argparse.Namespace) -> None:
    images = Images(given.images)
    for name, count in product(given.architectures, given.budgets):
        tables = forecasts(images, given.folder, name, given.targets, count, given.device)
        append(tables, given.folder / f"shown-{count}.csv")


def joint_scores(given: argparse.Namespace) -> None:
    images = Images(given.images)
    for name in given.architectures:
        tables = joint.score_all(images, given.folder, given.device, name, given.targets)
        append(tables, given.folder / f"joint-{name.replace(' ', '_')}.csv")


def surgical_truth(given: argparse.Namespace) -> None:
    images = Images(given.images)
    tables = surgical.tune(images, given.folder, given.device, given.steps_factor)
    append(tables, given.folder / "surgical-truth.csv")


def surgical_rules(given: argparse.Namespace) -> None:
    images = Images(given.images)
    for name in given.architectures:
        tables = surgical.rules(images, given.folder, given.device, [name])
        append(tables, given.folder / f"surgical-rules-{name.replace(' ', '_')}.csv")


def similarity_groups(given: argparse.Namespace) -> None:
    images = Images(given.images)
    networks = groups.train_groups(images, given.device, given.steps_factor)
    append(groups.compare_groups(images, networks, given.device), given.folder / "groups.csv")


def gather(given: argparse.Namespace) -> None:
    runs, scores = (sorted(given.folder.glob(f"{kind}-*.csv")) for kind in ("truth", "scores"))
    if set(given.targets) <= set(FRESH):
        collect(runs, scores, UNSEEN)
        return
    collect(runs, scores)
    surgical.collect(given.folder)
    copyfile(given.folder / "groups.csv", groups.RESULTS)


def print_all(_given: argparse.Namespace) -> None:
    print_tables()
    joint.print_tables()
    surgical.print_tables()
    groups.print_tables()


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "pack": lambda given: pack(given.images),
    "sources": pretrain,
    "pilot": pilot,
    "truth": truth,
    "scores": scores,
    "shown": shown,
    "joint": joint_scores,
    "surgical": surgical_truth,
    "rules": surgical_rules,
    "groups": similarity_groups,
    "collect": gather,
    "table": print_all,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument("--images", type=Path, default=Path("transfer-images.npz"))
    parser.add_argument("--folder", type=Path, default=Path("transfer-zoo"), help="of the sources")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--architectures", nargs="+", default=list(ARCHITECTURES))
    parser.add_argument("--on-device", action="store_true", help="scores that need no CPU alone")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--budgets", nargs="+", type=int, default=[400, 100, 1_600])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--workers", type=int, default=1, help="processes for scores")
    parser.add_argument("--steps-factor", type=float, default=1.0, help="for a quick try")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    COMMANDS[given.command](given)


if __name__ == "__main__":
    main()
