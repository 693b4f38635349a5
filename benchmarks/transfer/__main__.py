"""``python -m benchmarks.transfer pack | sources | pilot | truth | scores | table``."""

import argparse
import time
from pathlib import Path

import pandas
import torch

from benchmarks.transfer import tuning
from benchmarks.transfer.data import Images, network_input, pack
from benchmarks.transfer.zoo import ARCHITECTURES, SOURCES, Network


def pilot(images: Images, folder: Path, device: str, steps_factor: float) -> None:
    """What a fine-tuning and a kernel cost, which rates win, and whether bfloat16 matters."""
    from theodolite.engine import tangent_kernels

    targets = ["cifar A", "coloured mnist", "permuted mnist", "gratings"]
    for budget in tuning.BUDGETS:
        options = {"architecture": "residual 16", "targets": targets, "budget": budget}
        runs = tuning.fine_tune(
            images,
            folder,
            device,
            **options,
            rates=(0.003, 0.01, 0.03, 0.1, 0.3),
            seeds=(0,),
            steps_factor=steps_factor,
        )
        table = pandas.concat(runs, ignore_index=True)
        print(table.groupby(["target", "rate"])["test"].mean().unstack().round(3), flush=True)
        best = table.loc[table.groupby(["target", "source"])["validation"].idxmax()]
        print(best["rate"].value_counts().to_dict(), flush=True)
        print(best.pivot(index="source", columns="target", values="test").round(2))
    options["targets"] = targets[:2]
    few = [source for source in SOURCES if source.architecture == "residual 16"][::3]
    both = [
        pandas.concat(
            tuning.fine_tune(
                images, folder, device, **options, sources=few, precision=dtype, seeds=(0, 1),
                steps_factor=steps_factor,
            ),
            ignore_index=True,
        )
        for dtype in (tuning.precision_on(device), torch.float32)
    ]
    difference = both[0]["test"] - both[1]["test"]
    print(f"bfloat16 - float32: mean {difference.mean():.4f}, sd {difference.std():.4f}")
    seeds = both[1].pivot_table(index=["source", "target", "rate"], columns="seed", values="test")
    print(f"seed 0 - seed 1 in float32: sd {(seeds[0] - seeds[1]).std():.4f}", flush=True)

    for name in ARCHITECTURES:
        state = next(iter(tuning.load_states(folder, name).values()))
        network = Network(ARCHITECTURES[name])
        network.load_state_dict(state)
        network.to(device).eval()
        pixels = images.target("cifar A", "pool").images[:400].to(device)
        x = network_input(pixels).permute(0, 3, 1, 2).contiguous()
        for kind, count in (("trace", 400), ("trace", 400), ("full", 100), ("full", 100)):
            start = time.perf_counter()
            tangent_kernels(network, x[:count], outputs=kind)
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            print(f"{name}: kernel {kind}, {count}: {time.perf_counter() - start:.3f} s", flush=True)
    _grouped(device)


def _grouped(device: str, count: int = 128, batch: int = 64) -> None:
    """One step of stacked networks, by patches and by ``vmap`` of the modules."""
    from benchmarks.transfer.stacked import Stack
    from benchmarks.transfer.zoo import untrained

    architecture = ARCHITECTURES["residual 16"]
    source = next(source for source in SOURCES if source.architecture == architecture.name)
    networks = [untrained(source).eval().to(device) for _ in range(count)]
    x = torch.randn(count, batch, 16, 16, 3, device=device)
    parameters, buffers = torch.func.stack_module_state(networks)
    skeleton = networks[0]

    def grouped() -> None:
        def one(p, b, x):  # noqa: ANN001, ANN202
            with torch.autocast(device.split(":")[0], tuning.precision_on(device)):
                return torch.func.functional_call(skeleton, (p, b), (x,))

        outputs = torch.func.vmap(one)(parameters, buffers, x.permute(0, 1, 4, 2, 3))
        torch.autograd.grad(outputs.float().square().sum(), list(parameters.values()))

    states = [network.state_dict() for network in networks]
    stack = Stack.of(architecture, states, device, tuning.precision_on(device))
    for value in stack.parameters.values():
        value.requires_grad_()

    def patches() -> None:
        outputs = stack.outputs(x, training=False)
        torch.autograd.grad(outputs.square().sum(), list(stack.parameters.values()))

    for name, step in (("patches", patches), ("grouped", grouped)):
        for _ in range(2):
            step()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(3):
            step()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        print(f"{name}: {(time.perf_counter() - start) / 3 * 1e3:.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("pack", "sources", "pilot", "truth", "scores", "table"))
    parser.add_argument("--images", type=Path, default=Path("transfer-images.npz"))
    parser.add_argument("--folder", type=Path, default=Path("transfer-zoo"), help="of the sources")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps-factor", type=float, default=1.0, help="for a quick try")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.command == "pack":
        pack(arguments.images)
        return
    images = Images(arguments.images)
    rest = (arguments.folder, arguments.device, arguments.steps_factor)
    if arguments.command == "sources":
        tuning.train_sources(images, *rest)
    elif arguments.command == "pilot":
        pilot(images, *rest)


if __name__ == "__main__":
    main()
