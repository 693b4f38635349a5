"""Do similarities of representations show how a network was trained?

Two tests of the ReSi benchmark, rebuilt on MNIST and CIFAR-10. In the first a share of the training
labels is random. In the second a coloured corner of the images gives the label away in a share of
cases. Five shares make five groups of five seeds. A good similarity is higher within a group than
between groups. Representations are those of test images, whose corners have random colours in the
second test.
"""

from collections.abc import Callable, Iterator
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pandas
import torch
from scipy.linalg import svdvals
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from benchmarks.transfer.data import Images, Task, draws, network_input, seeded
from benchmarks.transfer.stacked import Assignment, Stack, accuracies, train
from benchmarks.transfer.table import markdown
from benchmarks.transfer.tuning import precision_on, stored
from benchmarks.transfer.zoo import ARCHITECTURES, Network
from theodolite.engine import tangent_kernels
from theodolite.measures import kernel, representation
from theodolite.measures.kernel import CenteredGrams, centered_cka

RESULTS = Path(__file__).with_name("groups.csv")
SETS = {"mnist": "mnist", "cifar": "cifar10"}
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
SEEDS = range(5)
EXAMPLES, STEPS, BATCH, RATE = 2_000, 1_200, 64, 0.1
PROBE, KERNEL_PROBE = 400, 200
ARCHITECTURE = "residual 16"


def area_of_both(first: Tensor, second: Tensor) -> Tensor:
    """Each representation as features, the other as targets; the mean of the two areas."""
    first, second = first - first.mean(0), second - second.mean(0)
    area = representation.alignment_area
    return (area(first, second) + area(second, first)) / 2


OURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cka": kernel.linear_cka,
    "cka-biased": lambda a, b: kernel.linear_cka(a, b, debiased=False),
    "kta": kernel.linear_kta,
    "alignment-area": area_of_both,
    "probe": lambda a, b: 1 - representation.leave_one_out_probe(a, b).error,
}


def with_random_labels(task: Task, share: float, part: str) -> Task:
    """A share of the labels drawn anew, the same for all seeds; none in the test."""
    generator = draws(40, part)
    drawn = torch.rand(len(task.labels), generator=generator) < share * (part != "test")
    other = torch.randint(10, (len(task.labels),), generator=generator)
    return Task(task.images, torch.where(drawn, other, task.labels), 10)


def with_shortcut(task: Task, share: float, part: str) -> Task:
    """A corner in the colour of the label in a share of cases, else in that of a random one."""
    generator = draws(41, part)
    colours = torch.randint(256, (10, 3), generator=seeded(42)).byte()
    honest = torch.rand(len(task.labels), generator=generator) < share * (part != "test")
    other = torch.randint(10, (len(task.labels),), generator=generator)
    images = task.images.clone()
    images[:, :3, :3] = colours[torch.where(honest, task.labels, other)][:, None, None]
    return Task(images, task.labels, 10)


TESTS: dict[str, Callable[[Task, float, str], Task]] = {
    "random labels": with_random_labels,
    "shortcut": with_shortcut,
}


def train_groups(
    images: Images, device: str, steps_factor: float = 1.0
) -> dict[tuple[str, str], list[list[Network]]]:
    """(set, test) -> networks by group and seed."""
    architecture = ARCHITECTURES[ARCHITECTURE]
    keys = list(product(SETS, TESTS, SHARES))
    tasks = []
    for name, test, share in keys:
        whole = images.part(SETS[name], "source")
        few = Task(whole.images[:EXAMPLES], whole.labels[:EXAMPLES], 10)
        tasks.append(TESTS[test](few, share, "source"))
    pixels, labels, begins = stored(tasks, device)
    networks = []
    for index in range(len(keys) * len(SEEDS)):
        torch.manual_seed(index)
        networks.append(Network(architecture))
    states = [network.state_dict() for network in networks]
    stack = Stack.of(architecture, states, device, precision_on(device))
    rows = torch.tensor(begins).repeat_interleave(len(SEEDS))[:, None] + torch.arange(EXAMPLES)
    classes = torch.full((len(rows),), 10, device=device)
    data = Assignment(pixels, labels, rows.to(device), classes)
    rates = torch.full((len(rows),), RATE, device=device)
    steps = max(1, int(STEPS * steps_factor))
    train(stack, data, steps=steps, batch=BATCH, rates=rates, seed=0, decay=5e-4)
    fitted = accuracies(stack, data).mean(1).view(len(keys), -1).mean(1).tolist()
    for key, value in zip(keys, fitted, strict=True):
        print(*key, f"fits {value:.3f} of its training labels", flush=True)
    answer: dict[tuple[str, str], list[list[Network]]] = {}
    for place, (name, test, _) in enumerate(keys):
        group = []
        for seed in SEEDS:
            network = networks[place * len(SEEDS) + seed]
            network.load_state_dict(stack.state(place * len(SEEDS) + seed))
            group.append(network.eval())
        answer.setdefault((name, test), []).append(group)
    return answer


def procrustes(x: Tensor, y: Tensor) -> float:
    """Cosine of the angle between shapes: the nuclear norm of the product of unit matrices."""
    first, second = ((one - one.mean(0)).double().numpy() for one in (x, y))
    return float(svdvals(first.T @ second).sum() / np.linalg.norm(first) / np.linalg.norm(second))


def rsa(x: Tensor, y: Tensor) -> float:
    """Rank correlation of the correlation distances of all pairs of examples."""
    return float(spearmanr(*(pdist(one.double().numpy(), "correlation") for one in (x, y)))[0])


def cca(x: Tensor, y: Tensor) -> float:
    """Mean canonical correlation of the leading directions that hold 99 % of the variance."""
    bases = []
    for one in (x, y):
        left, values, _ = torch.linalg.svd((one - one.mean(0)).double(), full_matrices=False)
        share = values.square().cumsum(0) / values.square().sum()
        bases.append(left[:, : int((share < 0.99).sum()) + 1])
    return float(torch.linalg.svdvals(bases[0].T @ bases[1]).mean())


def shared_neighbours(x: Tensor, y: Tensor, count: int = 10) -> float:
    """Mean Jaccard index of the nearest neighbours by cosine."""
    found = []
    for one in (x, y):
        fitted = NearestNeighbors(n_neighbors=count, metric="cosine").fit(one.numpy())
        found.append(fitted.kneighbors(return_distance=False))
    common = [len(np.intersect1d(a, b)) for a, b in zip(*found, strict=True)]
    return float(np.mean([both / (2 * count - both) for both in common]))


USUAL: dict[str, Callable[[Tensor, Tensor], float]] = {
    "Procrustes": procrustes,
    "RSA": rsa,
    "SVCCA": cca,
    "Jaccard of neighbours": shared_neighbours,
}


def separation(similarity: np.ndarray) -> tuple[float, float]:
    """AUPRC and conformity of pairs within a group against pairs across, mean over groups.

    Args:
        similarity: (networks, networks), groups one after the other; larger is more alike.
    """
    size = len(SEEDS)
    scores, kept = [], []
    for first in range(0, len(similarity), size):
        own = slice(first, first + size)
        within = similarity[own, own][~np.eye(size, dtype=bool)]
        across = np.delete(similarity[own], np.r_[own], 1).ravel()
        truth = np.r_[np.ones(len(within)), np.zeros(len(across))]
        scores.append(average_precision_score(truth, np.r_[within, across]))
        kept.append((within[:, None] > across).mean())
    return float(np.mean(scores)), float(np.mean(kept))


def compare_groups(
    images: Images, networks: dict[tuple[str, str], list[list[Network]]], device: str
) -> Iterator[pandas.DataFrame]:
    """Every similarity on every test; label alignments compare by the distance of two numbers."""
    for (name, test), groups in networks.items():
        task = TESTS[test](images.part(SETS[name], "test"), 0.0, "test")
        x = network_input(task.images[:PROBE]).permute(0, 3, 1, 2).contiguous()
        labels = task.labels[:PROBE]
        features, grams = [], []
        for network in (network for group in groups for network in group):
            with torch.no_grad():
                features.append(list(network.features(x).values())[-1])
            moved = network.to(device)
            found = tangent_kernels(
                moved, x[:KERNEL_PROBE].to(device), outputs="trace", check=False
            )
            grams.append(found.total.cpu().double())
            network.cpu()
        pairs = {f"ours: {key}": one for key, one in OURS.items()} | USUAL
        tables = {}
        for key, function in pairs.items():
            values = np.eye(len(features))
            for a, b in permutations(range(len(features)), 2):
                known = a > b and key != "ours: probe"
                values[a, b] = values[b, a] if known else function(features[a], features[b])
            tables[key] = values
        centered = CenteredGrams.of(torch.stack(grams))
        own = CenteredGrams.of(kernel.target_gram(labels[:KERNEL_PROBE])[None].double())
        tables["ours: CKA of tangent kernels"] = centered_cka(centered, centered).numpy()
        numbers = {
            "ours: distance of label alignments": [
                float(representation.alignment_area(one - one.mean(0), labels)) for one in features
            ],
            "ours: distance of CKA to labels": [
                float(kernel.target_cka(one, labels)) for one in features
            ],
            "ours: distance of tangent CKA to labels": centered_cka(centered, own)[:, 0].tolist(),
        }
        for key, values in numbers.items():
            tables[key] = -np.abs(np.subtract.outer(values, values))
        rows = [(name, test, key, *separation(table)) for key, table in tables.items()]
        columns = ["set", "test", "similarity", "AUPRC", "conformity"]
        yield pandas.DataFrame(rows, columns=columns)


def print_tables() -> None:
    """AUPRC and conformity of every similarity on the four tests."""
    table = pandas.read_csv(RESULTS)
    for column in ("AUPRC", "conformity"):
        wide = table.pivot(index="similarity", columns=["set", "test"], values=column)
        wide.columns = [f"{name}, {test}" for name, test in wide.columns]
        wide["mean"] = wide.mean(1)
        print(f"\nSimilarities, {column}\n")
        print(markdown(wide.sort_values("mean", ascending=False)))
