"""Which layer to fine-tune after a shift of the data: rules compared with one fixed layer.

A network trained on MNIST or Fashion-MNIST gets 200 labelled examples of the same set, shifted. One
layer is tuned. The other layers and the statistics of batch normalisation stay fixed. The truth of
a layer is the mean test accuracy over seeds, at the best of four learning rates, which other test
examples choose. A rule gets the labelled examples and the network before tuning.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas
import torch
from scipy.stats import kendalltau
from torch import Tensor
from torch.nn import functional

from benchmarks.transfer.data import (
    SIDE,
    Images,
    Task,
    balanced_order,
    coloured,
    draws,
    lying_negative,
    network_input,
    noisy,
    permuted,
    seeded,
)
from benchmarks.transfer.stacked import Assignment, Stack, accuracies, train
from benchmarks.transfer.table import markdown
from benchmarks.transfer.tangent_regression import leave_one_out_tangent_regression
from benchmarks.transfer.tuning import load_states, precision_on, stored
from benchmarks.transfer.zoo import ARCHITECTURES, Network
from theodolite.engine import TangentKernels, tangent_kernels
from theodolite.measures import kernel as kernels
from theodolite.measures import tangent
from theodolite.measures.gradient import relative_norm

RESULTS = Path(__file__).with_name("surgical.csv")
NETWORKS = ("residual 8", "plain 16", "residual 16")
LABELS, STEPS, BATCH = 200, 80, 50
RATES = (0.001, 0.004, 0.016, 0.06)
SEEDS = (0, 1, 2)
KERNEL_EXAMPLES = 100
TEST = 1_000


def blurred(task: Task, _part: str) -> Task:
    images = task.images.permute(0, 3, 1, 2).float()
    for _ in range(2):
        images = functional.avg_pool2d(functional.pad(images, [1] * 4, mode="replicate"), 3, 1)
    return Task(images.permute(0, 2, 3, 1).round().byte(), task.labels, task.classes)


def faint(task: Task, _part: str) -> Task:
    """A quarter of the contrast."""
    return Task((task.images.float() / 4 + 96).byte(), task.labels, task.classes)


def negative(task: Task, _part: str) -> Task:
    return Task(255 - task.images, task.labels, task.classes)


def shifted(task: Task, _part: str) -> Task:
    """Four pixels to the side, around the border."""
    return Task(task.images.roll(4, 2), task.labels, task.classes)


def tilted(task: Task, part: str) -> Task:
    """Rotated by up to 45 degrees either way."""
    angle = (torch.rand(len(task.labels), generator=draws(20, part)) - 0.5) * torch.pi / 2
    zero = torch.zeros_like(angle)
    rows = torch.stack([angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero], 1)
    grid = functional.affine_grid(rows.view(-1, 2, 3), [len(rows), 3, SIDE, SIDE], False)
    images = functional.grid_sample(
        task.images.permute(0, 3, 1, 2).float(), grid, align_corners=False
    )
    return Task(images.permute(0, 2, 3, 1).round().byte(), task.labels, task.classes)


def hidden(task: Task, part: str) -> Task:
    """A grey square of 6 pixels at a random place."""
    images = task.images.clone()
    corners = torch.randint(SIDE - 6, (len(images), 2), generator=draws(21, part)).tolist()
    for image, (top, left) in zip(images, corners, strict=True):
        image[top : top + 6, left : left + 6] = 128
    return Task(images, task.labels, task.classes)


def renamed(task: Task, _part: str) -> Task:
    """Classes in another order."""
    order = torch.randperm(task.classes, generator=seeded(22))
    return Task(task.images, order[task.labels], task.classes)


def merged(task: Task, _part: str) -> Task:
    """Odd classes take the name of the even ones before them."""
    return Task(task.images, task.labels // 2 * 2, task.classes)


SHIFTS: dict[str, Callable[[Task, str], Task]] = {
    "noise": lambda task, part: noisy(task, 0.4, part),
    "blur": blurred,
    "faint": faint,
    "negative": negative,
    "shifted": shifted,
    "tilted": tilted,
    "hidden": hidden,
    "permuted": lambda task, _part: permuted(task),
    "coloured": coloured,
    "lying negative": lambda task, _part: lying_negative(task),
    "renamed": renamed,
    "merged": merged,
}
# Rules are chosen on the first six shifts and reported on the others.
SELECTION = tuple(SHIFTS)[::2]


def layers_of(architecture: str) -> dict[str, str]:
    """Layer -> what the names of its parameters begin with; the stem with its normalisation."""
    blocks = [name for name, *_ in ARCHITECTURES[architecture].layers()]
    return {"stem": "stem norm", **{name: f"blocks.{name}" for name in blocks}, "head": "head"}


def owned(parameter: str, layer: str) -> bool:
    return any(parameter.startswith(prefix + ".") for prefix in layer.split())


def tune(
    images: Images, folder: Path, device: str, steps_factor: float = 1.0
) -> Iterator[pandas.DataFrame]:
    """Test accuracies of every layer tuned alone, of all together, and of none."""
    for architecture in NETWORKS:
        states = load_states(folder, architecture)
        layers = layers_of(architecture) | {"all": "stem norm blocks head", "none": ""}
        tasks = {
            (name, shift): tuple(
                make(images.part(set_of(name), part), part) for part in ("pool", "test")
            )
            for name in ("mnist", "fashion")
            for shift, make in SHIFTS.items()
        }
        pool_images, pool_labels, begins = stored([pair[0] for pair in tasks.values()], device)
        test_images, test_labels, tests = stored([pair[1] for pair in tasks.values()], device)
        runs = [
            (place, layer, seed, rate)
            for place in range(len(tasks))
            for layer in layers
            for seed in SEEDS
            for rate in RATES
        ]
        keys = list(tasks)
        originals = Stack.of(
            ARCHITECTURES[architecture],
            [states[f"{architecture} / {name} / 2000"] for name in ("mnist", "fashion")],
            device,
            precision_on(device),
        )
        for first in range(0, len(runs), 400):
            group = runs[first : first + 400]
            stack = originals.chosen([int(keys[place][0] == "fashion") for place, *_ in group])
            rows = [
                begins[place]
                + balanced_order(tasks[keys[place]][0].labels, draws(30 + seed, "pool"))[:LABELS]
                for place, _, seed, _ in group
            ]
            classes = torch.full((len(group),), 10, device=device)
            data = Assignment(pool_images, pool_labels, torch.stack(rows).to(device), classes)
            tuned = {
                parameter: torch.tensor(
                    [float(owned(parameter, layers[layer])) for _, layer, *_ in group],
                    device=device,
                )
                for parameter in stack.parameters
            }
            rates = torch.tensor([rate for *_, rate in group], device=device)
            count = max(1, int(STEPS * steps_factor))
            train(stack, data, steps=count, batch=BATCH, rates=rates, seed=first, tuned=tuned)
            columns = torch.stack([tests[place] + torch.arange(TEST) for place, *_ in group])
            test = Assignment(test_images, test_labels, columns.to(device), classes)
            both = accuracies(stack, test).double().cpu()
            yield pandas.DataFrame(
                [(architecture, *keys[place], *rest) for place, *rest in group],
                columns=["network", "set", "shift", "layer", "seed", "rate"],
            ).assign(validation=both[:, 0].numpy(), test=both[:, 1].numpy())


def set_of(name: str) -> str:
    return "fashion_mnist" if name == "fashion" else name


def rules(
    images: Images, folder: Path, device: str, networks: Sequence[str] = NETWORKS
) -> Iterator[pandas.DataFrame]:
    """The score of every rule for every layer."""
    for architecture in networks:
        states = load_states(folder, architecture)
        layers = layers_of(architecture)
        for name in ("mnist", "fashion"):
            network = Network(ARCHITECTURES[architecture])
            network.load_state_dict(states[f"{architecture} / {name} / 2000"])
            network.to(device).eval()
            for shift, make in SHIFTS.items():
                task = make(images.part(set_of(name), "pool"), "pool")
                order = balanced_order(task.labels, draws(30, "pool"))[:KERNEL_EXAMPLES]
                x = network_input(task.images[order]).permute(0, 3, 1, 2).contiguous().to(device)
                y = task.labels[order].to(device)
                found = tangent_kernels(network, x, check=False)
                loss = functional.cross_entropy(network(x), y)
                names = [parameter for parameter, _ in network.named_parameters()]
                weights = list(network.parameters())
                gradients = torch.autograd.grad(loss, weights)
                rows = []
                for layer, prefix in layers.items():
                    chosen = [place for place, own in enumerate(names) if owned(own, prefix)]
                    rgn = relative_norm(
                        torch.cat([gradients[place].flatten() for place in chosen]),
                        torch.cat([weights[place].detach().flatten() for place in chosen]),
                    )
                    values = {"relative gradient norm": float(rgn)}
                    values |= said_of(layer_kernel(found, prefix), found.outputs, y)
                    rows += [
                        (architecture, name, shift, layer, rule, value)
                        for rule, value in values.items()
                    ]
                columns = ["network", "set", "shift", "layer", "rule", "score"]
                yield pandas.DataFrame(rows, columns=columns)


def layer_kernel(found: TangentKernels, prefix: str) -> Tensor:
    """The kernel of all parameters of a layer."""
    parts = [found[name] for name in found if owned(name + ".", prefix)]
    return torch.stack(parts).sum(0)


def said_of(kernel: Tensor, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Alignments and leave-one-out errors of one layer's kernel; larger is better."""
    targets = functional.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    gap = targets - outputs.softmax(1)
    traced = torch.einsum("xiyi->xy", kernel)
    same = (labels[:, None] == labels).to(traced.dtype)
    residual = leave_one_out_tangent_regression(kernel, gap)
    return {
        "tangent alignment": float(tangent.tangent_alignment(kernel, targets)),
        "CKA of the traced kernel": float(kernels.cka(traced, same)),
        "alignment with the residual": float(tangent.tangent_alignment(kernel, gap)),
        "traced regression": -float(kernels.leave_one_out_regression(traced, labels).error),
        "regression of labels": -float(leave_one_out_tangent_regression(kernel, targets).error),
        "regression of the residual": -float(residual.error),
    }


def truth_of(runs: pandas.DataFrame) -> pandas.Series:
    """Mean test accuracy of every layer at the learning rate that validates best."""
    keys = ["network", "set", "shift", "layer"]
    mean = runs.groupby([*keys, "rate"], as_index=False)[["validation", "test"]].mean()
    best = mean.loc[mean.groupby(keys)["validation"].idxmax()]
    return best.set_index(keys)["test"]


def compared(truth: pandas.Series, scores: pandas.DataFrame) -> pandas.DataFrame:
    """Tau over layers and points lost by the first choice, by rule and by shift.

    The constant rules always tune the same place.
    """
    rows = []
    for (network, name, shift), own in truth.groupby(level=["network", "set", "shift"]):
        accuracy = own.droplevel(["network", "set", "shift"])
        layers = list(layers_of(network))
        best = accuracy[layers].max()
        said = scores[
            (scores["network"] == network) & (scores["set"] == name) & (scores["shift"] == shift)
        ].pivot(index="layer", columns="rule", values="score")
        for rule in said:
            chosen = said[rule].idxmax()
            tau = kendalltau(said.loc[layers, rule], accuracy[layers]).statistic
            rows.append((network, name, shift, rule, tau, 100 * (best - accuracy[chosen])))
        constants = {
            "the stem": "stem",
            "the first block": layers[1],
            "the last block": layers[-2],
            "the head": "head",
            "all": "all",
            "none": "none",
        }
        rows += [
            (network, name, shift, f"always {words}", np.nan, 100 * (best - accuracy[layer]))
            for words, layer in constants.items()
        ]
    columns = ["network", "set", "shift", "rule", "tau", "lost"]
    return pandas.DataFrame(rows, columns=columns)


def summary(table: pandas.DataFrame, shifts: Sequence[str]) -> pandas.DataFrame:
    """Means over networks, sets and shifts, with standard errors over (set, shift)."""
    part = table[table["shift"].isin(shifts)]
    groups = part.groupby(["rule", "set", "shift"])[["tau", "lost"]].mean()
    mean = groups.groupby(level="rule").mean()
    error = groups.groupby(level="rule").sem()
    return pandas.DataFrame(
        {"tau": mean["tau"], "s.e. tau": error["tau"], "lost": mean["lost"], "s.e.": error["lost"]}
    ).sort_values("lost")


def collect(folder: Path) -> None:
    """Truth and rules in one small file."""
    truth = truth_of(pandas.read_csv(folder / "surgical-truth.csv")).rename("score").reset_index()
    said = [pandas.read_csv(file) for file in sorted(folder.glob("surgical-rules*.csv"))]
    table = pandas.concat([truth.assign(rule="truth"), *said])
    table.to_csv(RESULTS, index=False, float_format="%.4g")


def print_tables() -> None:
    """Rules on the shifts that they were chosen on, and on the others."""
    table = pandas.read_csv(RESULTS)
    is_truth = table["rule"] == "truth"
    truth = table[is_truth].set_index(["network", "set", "shift", "layer"])["score"]
    judged = compared(truth, table[~is_truth])
    others = [shift for shift in SHIFTS if shift not in SELECTION]
    for title, shifts in (("chosen on", SELECTION), ("reported", others)):
        print(f"\nWhich layer to tune, {title}: {', '.join(shifts)}\n")
        print(markdown(summary(judged, shifts)))
