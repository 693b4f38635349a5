"""Regression with several kernels in equal shares, on all labels: candidates that did not win.

There are three kernels: of the features that the head receives, of the features of all blocks, and
the tangent kernel of the body. Each is centred and scaled to a mean eigenvalue of one. Everything
is computed on the device. Leave-one-out errors come from Cholesky factors, which a GPU computes
faster than eigenvectors.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas
import torch
from scipy.stats import kendalltau
from torch import Tensor
from torch.nn import functional

from benchmarks.transfer.data import Images
from benchmarks.transfer.scores import target_data, with_fresh_head
from benchmarks.transfer.table import DEFAULT, KEYS, Results
from benchmarks.transfer.tuning import BUDGETS, load_states
from benchmarks.transfer.zoo import ARCHITECTURES, SOURCES, Network
from theodolite.engine import tangent_kernels
from theodolite.linalg import RIDGES

RESULTS = Path(__file__).with_name("joint.csv.gz")
ROWS = 16  # of the fresh head
FEW = 400  # examples of the kernels that a user can afford without thinking


def centred(gram: Tensor) -> Tensor:
    """With rows and columns of mean zero, and a mean eigenvalue of one."""
    gram = gram.double()
    gram = gram - gram.mean(0)
    gram = gram - gram.mean(1, keepdim=True)
    return gram / gram.diagonal().mean().clamp_min(1e-30)


def left_out(gram: Tensor, labels: Tensor) -> tuple[float, float]:
    """Leave-one-out error and accuracy at the ridge of least error; as in the library, faster."""
    n, classes = len(gram), functional.one_hot(labels).double()
    y = classes - classes.mean(0)
    eye = torch.eye(n, dtype=gram.dtype, device=gram.device)
    best, guesses = torch.inf, y
    for ridge in RIDGES[:: 1 if n <= FEW else 2]:
        factor, failed = torch.linalg.cholesky_ex(gram + ridge * eye)
        if failed:  # kernels of float32 have eigenvalues below zero, which the library sets to zero
            continue
        inverse = torch.cholesky_inverse(factor)
        missed = ridge * (inverse @ y) / (ridge * inverse.diagonal() - 1 / n)[:, None]
        error = float(missed.square().sum())
        if error < best:
            best, guesses = error, classes - missed
    accuracy = float((guesses.argmax(1) == labels).double().mean())
    return best / float((y * n / (n - 1)).square().sum()), accuracy


def candidates(
    features: dict[str, Tensor], tangents: dict[str, Tensor], labels: Tensor
) -> Iterator[tuple[str, float, float]]:
    """Name, error and accuracy of every candidate with these examples."""
    grams = [centred(rows @ rows.mT) for rows in features.values()]
    head, blocks = grams[-1], centred(sum(grams))
    body = centred(sum(tangents.values()))
    yield "half and half", *left_out((head + body) / 2, labels)
    yield "thirds", *left_out((head + blocks + body) / 3, labels)
    if len(labels) <= FEW:
        layers = centred(sum(centred(gram) for gram in tangents.values()))
        yield "thirds, layers alike", *left_out((head + blocks + layers) / 3, labels)
        yield "features, half and half", *left_out((head + blocks) / 2, labels)


@torch.no_grad()
def block_features(network: Network, x: Tensor) -> dict[str, Tensor]:
    return {name: value.double() for name, value in network.features(x).items()}


def body_kernels(network: Network, x: Tensor) -> dict[str, Tensor]:
    """Block -> tangent kernel of its parameters, summed over the rows of a fresh head."""
    found = tangent_kernels(
        with_fresh_head(network, ROWS), x, outputs="trace", check=False, memory_limit="16GB"
    )
    answer: dict[str, Tensor] = {}
    for layer in found:
        if layer != "head":
            block = layer.split(".")[1] if "." in layer else "stem"
            answer[block] = found[layer].double() + answer.get(block, 0)
    return answer


def score_all(
    images: Images, folder: Path, device: str, architecture: str, targets: Sequence[str]
) -> Iterator[pandas.DataFrame]:
    """One table per source: candidates with as many examples as there are labels, and with few."""
    torch.set_num_threads(1)
    data = {target: target_data(images, target, device)[:2] for target in targets}
    states = load_states(folder, architecture)
    for target, (x, labels) in data.items():
        start, labels, rows = time.perf_counter(), labels.to(x.device), []
        for source in (source for source in SOURCES if source.architecture == architecture):
            network = Network(ARCHITECTURES[architecture])
            network.load_state_dict(states[str(source)])
            network.to(device).eval()
            features, tangents = block_features(network, x), body_kernels(network, x)
            for budget in BUDGETS:
                own = {name: value[:budget] for name, value in features.items()}
                below = {name: value[:budget, :budget] for name, value in tangents.items()}
                found = candidates(own, below, labels[:budget])
                rows += [(str(source), target, budget, *one) for one in found]
        names = ["source", "target", "labels", "method", "error", "accuracy"]
        print(f"{architecture}, {target}: {time.perf_counter() - start:.1f} s", flush=True)
        yield pandas.DataFrame(rows, columns=names)


def print_tables() -> None:
    """Mean tau of the candidates on the targets of the selection that have all sources."""
    results, found = Results.load(), pandas.read_csv(RESULTS)
    scores = -found.pivot_table(index=KEYS, columns="method", values="error")
    known = results.scores.loc[scores.index]
    scores[["best share, 400 examples", DEFAULT]] = known[["tangent, best share: error", DEFAULT]]
    rows: dict[str, dict[str, float]] = {}
    for (target, labels), truth in results.truth["truth"].loc[scores.index].groupby(level=[1, 2]):
        if len(truth) < len(SOURCES):
            continue
        for method in scores:
            tau = kendalltau(scores.loc[truth.index, method], truth).statistic
            rows.setdefault(f"{target}, {labels}", {})[method] = tau
    table = pandas.DataFrame(rows).T
    table["labels"] = [int(name.rpartition(" ")[2]) for name in table.index]
    print("\nCandidates in equal shares, all labels; Kendall's tau\n")
    print(table.groupby("labels").mean().T.round(3).to_string())
