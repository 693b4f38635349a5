"""Accuracy with ten times the labels: predicted from a few hundred examples, and measured.

``python -m benchmarks.learning_curve --data FOLDER`` reads mnist.npz, fashion_mnist.npz and
cifar10.npz there. The text set holds docstrings of installed packages, with the package as label.
Features are frozen: random convolutions and pixels of images, and hashed letters of sentences.
``--features FOLDER`` adds those in files NAME.npz (x, y). The truth is a ridge probe with ten times
the labels, judged on 2,000 held-out examples. Leave-one-out error chooses its ridge.

The alternatives are power laws fitted to linear probes of sub-samples, with and without a floor,
and the assumption that nothing changes.
"""

import argparse
import ast
import re
import sys
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import curve_fit

import theodolite as th
from theodolite.measures.representation import leave_one_out_probe

PACKAGES = ("sklearn", "scipy", "numpy", "matplotlib", "pandas", "networkx")
METHODS = ("learning_curve", "power law", "power law + floor", "no growth")
HELD_OUT = 2000


def images(folder, name, count, rng):
    """Pixels and labels, drawn at random."""
    with np.load(folder / f"{name}.npz") as stored:
        x, y = stored["x_train"], stored["y_train"]
    chosen = rng.permutation(len(x))[:count]
    x = torch.from_numpy(x[chosen]).float() / 255
    x = x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2)
    return x, torch.from_numpy(y[chosen].astype(np.int64))


def random_convolutions(x, seed, filters=48):
    """One layer of random filters, rectified and pooled to 4 x 4."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(filters, x.shape[1], 5, 5, generator=generator) / 5
    rows = []
    for part in x.split(500):
        maps = torch.nn.functional.conv2d(part - part.mean((2, 3), keepdim=True), weight).relu()
        rows.append(torch.nn.functional.adaptive_avg_pool2d(maps, 4).flatten(1))
    return torch.cat(rows)


def sentences(count, rng):
    """First sentences of docstrings, with the package that each is from as its class."""
    places = [Path(folder) for folder in sys.path if folder.endswith("site-packages")]
    texts, labels = [], []
    for label, package in enumerate(PACKAGES):
        files = [path for place in places for path in sorted((place / package).rglob("*.py"))]
        found = set()
        for path in files:
            if "test" in path.parts[-1] or "tests" in path.parts:
                continue
            try:
                nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            except (SyntaxError, UnicodeDecodeError):
                continue
            kinds = (ast.FunctionDef, ast.ClassDef, ast.Module)
            for text in (ast.get_docstring(node) for node in nodes if isinstance(node, kinds)):
                plain = re.sub(r"\s+", " ", (text or "").split("\n\n")[0])
                plain = re.sub(package, "it", plain, flags=re.IGNORECASE)
                if 30 < len(plain) < 300:
                    found.add(plain)
        most = sorted(found)
        rng.shuffle(most)
        texts += most[: count // len(PACKAGES)]
        labels += [label] * min(len(most), count // len(PACKAGES))
    order = rng.permutation(len(texts))
    return [texts[i] for i in order], torch.tensor(labels)[torch.from_numpy(order)]


def hashed_letters(texts, width=700):
    """Counts of words and of runs of letters, hashed into few columns."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hasher = HashingVectorizer(n_features=width, analyzer="char_wb", ngram_range=(3, 5))
    return torch.from_numpy(hasher.transform(texts).toarray()).float()


def measured(x, y, count):
    """Accuracy on the last examples of a linear probe of the first ones."""
    a, b = x[:count].double(), torch.nn.functional.one_hot(y[:count]).double()
    middle, mean = a.mean(0), b.mean(0)
    ridge = leave_one_out_probe(a, y[:count]).ridge * (a - middle).square().sum() / count
    gram = (a - middle).T @ (a - middle)
    gram.diagonal().add_(ridge)
    weights = torch.linalg.solve(gram, (a - middle).T @ (b - mean))
    scores = (x[-HELD_OUT:].double() - middle) @ weights + mean
    return (scores.argmax(1) == y[-HELD_OUT:]).double().mean().item()


def power_laws(x, y, wanted, rng):
    """Accuracies from power laws through linear probes of sub-samples: without and with a floor."""
    n = len(x)
    sizes = np.array([n // 8, n // 4, n // 2, 4 * n // 5])
    wrong = []
    for size in sizes:
        shares = []
        for _ in range(3):
            order = torch.from_numpy(rng.permutation(n))
            a, b = x[order[:size]].double(), y[order[:size]]
            rest = order[size:]
            middle = a.mean(0)
            ridge = leave_one_out_probe(a, b).ridge * (a - middle).square().sum() / size
            classes = torch.nn.functional.one_hot(b, int(y.max()) + 1).double()
            gram = (a - middle) @ (a - middle).T
            gram.diagonal().add_(ridge)
            dual = torch.linalg.solve(gram, classes - classes.mean(0))
            scores = (x[rest].double() - middle) @ ((a - middle).T @ dual) + classes.mean(0)
            shares.append((scores.argmax(1) != y[rest]).double().mean().item())
        wrong.append(max(np.mean(shares), 0.5 / n))
    slope, start = np.polyfit(np.log(sizes), np.log(wrong), 1)
    straight = 1 - np.exp(start + slope * np.log(wanted))

    def law(m, a, b, c):
        return a * m**-b + c

    first = [wrong[0] * sizes[0] ** 0.3, 0.3, wrong[-1] / 2]
    try:
        fitted, _ = curve_fit(law, sizes, wrong, first, bounds=([0, 0, 0], [50, 2, 1]))
        floored = 1 - law(wanted, *fitted)
    except RuntimeError:
        floored = 1 - wrong[-1]
    return float(straight), float(floored)


def predictions(x, y, wanted, rng):
    """Every method's accuracy with so many labels, and the interval of ours."""
    curve = th.learning_curve(x, y, [wanted])
    straight, floored = power_laws(x, y, wanted, rng)
    plain = leave_one_out_probe(x, y).accuracy.item()
    predicted = dict(zip(METHODS, (curve.accuracy.item(), straight, floored, plain), strict=True))
    return predicted, [end.item() for end in curve.accuracy_interval[:, 0]]


def sets(arguments, rng):
    """Name, features, labels of every set."""
    count = arguments.examples * arguments.factor + HELD_OUT
    for name in ("mnist", "fashion_mnist", "cifar10"):
        if (arguments.data / f"{name}.npz").exists():
            x, y = images(arguments.data, name, count, rng)
            yield f"{name}, convolutions", random_convolutions(x, arguments.seed), y
            if name != "cifar10":
                yield f"{name}, pixels", x.flatten(1), y
    texts, y = sentences(count, rng)
    yield "docstrings, letters", hashed_letters(texts), y
    for path in sorted(arguments.features.glob("*.npz")) if arguments.features else ():
        with np.load(path) as stored:
            order = rng.permutation(len(stored["x"]))[:count]
            x, y = stored["x"][order], stored["y"][order].astype(np.int64)
        yield path.stem, torch.from_numpy(x).float(), torch.from_numpy(y)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with npz files")
    parser.add_argument("--features", type=Path, help="folder with features of networks, npz")
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--factor", type=int, default=10)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=100)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    wanted = arguments.examples * arguments.factor
    print(f"{'set':32} {'measured':>8}" + "".join(f"{name:>18}" for name in METHODS))
    misses, held = {name: [] for name in METHODS}, []
    for name, x, y in sets(arguments, rng):
        truth = measured(x, y, min(wanted, len(x) - HELD_OUT))
        for _ in range(arguments.draws):
            chosen = torch.from_numpy(rng.permutation(len(x) - HELD_OUT)[: arguments.examples])
            predicted, (low, high) = predictions(x[chosen], y[chosen], wanted, rng)
            for method in METHODS:
                misses[method].append(100 * abs(predicted[method] - truth))
            held.append(low <= truth <= high)
            line = "".join(f"{predicted[method]:18.3f}" for method in METHODS)
            print(f"{name:32} {truth:8.3f}{line}", flush=True)
    for word, summary in (("median", np.median), ("mean", np.mean), ("largest", np.max)):
        line = "".join(f"{summary(misses[method]):18.2f}" for method in METHODS)
        print(f"{word + ' miss, points':41}{line}")
    print(f"95 % intervals that held the measured accuracy: {100 * np.mean(held):.0f} %")


if __name__ == "__main__":
    main()
