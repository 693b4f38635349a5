"""Every score on the same features and kernels of a (source, target) pair.

A score gets what a user has: the labelled examples, the features of each block, and the tangent
kernel below a new head. Only the held-out probe gets test labels.
"""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas
import torch
from torch import Tensor, nn

from benchmarks.learning_curve import power_laws
from benchmarks.transfer import peers
from benchmarks.transfer.data import TARGETS, Images, network_input
from benchmarks.transfer.tangent_regression import leave_one_out_tangent_regression
from benchmarks.transfer.tuning import BUDGETS, labelled_rows, load_states
from benchmarks.transfer.zoo import ARCHITECTURES, SOURCES, Network
from theodolite.engine import tangent_kernels
from theodolite.measures import kernel, representation
from theodolite.surveys.transfer_regressions import forecast, kernel_regressions, predicted_curve
from theodolite.theory.learning import learning_curve

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the body's kernel beside the head's
KERNEL_EXAMPLES = 400  # with more labels, the tangent kernel is that of the first 400
FULL_EXAMPLES = 100  # of the kernel between pairs of example and output
# Variance of the fresh head's weights times the number of features: 1/3 is that of nn.Linear.
HEAD_VARIANCES = (1 / 3, 3.0)


@dataclass
class Pair:
    """Features and labels of one source on one target with so many labels.

    Args:
        parameters: their number in the source, without its head.
        labels: (n,).
        features: block -> (n, d), means over positions.
        held_out: features of the last block and labels of test examples.
        head: tangent kernel of the head, the trace over outputs divided by their number.
        body: that of all other parameters, for a head of variance 1 / d.
        full: kernel between pairs of example and output, for ``nn.Linear``'s variance; or none.
        given: whether batch normalisation has the source's statistics; else the target's.
    """

    parameters: int
    labels: Tensor
    features: dict[str, Tensor]
    held_out: tuple[Tensor, Tensor]
    head: Tensor
    body: Tensor
    full: Tensor | None
    given: bool

    @property
    def last(self) -> Tensor:
        """Features that the head receives."""
        return list(self.features.values())[-1]

    @property
    def kernel_labels(self) -> Tensor:
        """Labels of the examples of the kernels."""
        return self.labels[: len(self.head)]

    @cached_property
    def centred(self) -> Tensor:
        """Features that the head receives, minus their mean."""
        return self.last - self.last.mean(0)

    @cached_property
    def all_blocks(self) -> Tensor:
        """Features of all blocks side by side, each of the same total variance."""
        centred = [block - block.mean(0) for block in self.features.values()]
        return torch.cat([block / block.norm().clamp_min(1e-30) for block in centred], 1)


def best_block(pair: Pair) -> representation.LeaveOneOut:
    """The linear probe of least error among all blocks."""
    found = [
        representation.leave_one_out_probe(block, pair.labels) for block in pair.features.values()
    ]
    return min(found, key=lambda one: float(one.error))


def tangent_regression(pair: Pair, variance: float) -> representation.LeaveOneOut:
    """With the kernel of head and body, for a head of that variance."""
    return kernel.leave_one_out_regression(pair.head + variance * pair.body, pair.kernel_labels)


def mixed(pair: Pair, *shares: float) -> representation.LeaveOneOut:
    """With the kernels of head and body in the share of least error."""
    grams = mixtures(pair.head, pair.body, *(shares or SHARES))
    found = [kernel.leave_one_out_regression(gram, pair.kernel_labels) for gram in grams]
    return min(found, key=lambda one: float(one.error))


def mixtures(first: Tensor, second: Tensor, *shares: float) -> list[Tensor]:
    """Two kernels, each with a mean eigenvalue of one after centring, in shares of the second."""
    a, b = kernel.mean_gram([first]), kernel.mean_gram([second])
    return [(1 - share) * a + share * b for share in shares]


def blocks_and_body(pair: Pair) -> representation.LeaveOneOut:
    """With the features of all blocks and the tangent kernel of the body, in equal shares."""
    rows = pair.all_blocks[: len(pair.body)].double()
    both = kernel.mean_gram([rows @ rows.T, pair.body])
    return kernel.leave_one_out_regression(both, pair.kernel_labels)


def probe(pair: Pair) -> float:
    """Accuracy on test examples of a ridge probe that was trained on the labels."""
    ridge = float(representation.leave_one_out_probe(pair.last, pair.labels).ridge)
    x, y = pair.centred.double(), nn.functional.one_hot(pair.labels).double()
    gram = x.T @ x
    shrunk = gram + ridge * gram.trace() / len(x) * torch.eye(
        len(gram), dtype=gram.dtype, device=gram.device
    )
    weights = torch.linalg.solve(shrunk, x.T @ (y - y.mean(0)))
    features, labels = pair.held_out
    guesses = (features - pair.last.mean(0)).double() @ weights + y.mean(0)
    return float((guesses.argmax(1) == labels).double().mean())


# Larger is better. The accuracies among them are forecasts too.
PEERS: dict[str, Callable[[Pair], Tensor | float]] = {
    "list by size": lambda pair: float(pair.parameters),
    "held-out probe": probe,
    "LogME": lambda pair: peers.logme(pair.last, pair.labels),
    "H-score": lambda pair: peers.h_score(pair.last, pair.labels),
    "regularised H-score": lambda pair: peers.h_score(pair.last, pair.labels, shrinkage=True),
    "N-LEEP": lambda pair: peers.n_leep(pair.last, pair.labels),
    "TransRate": lambda pair: peers.transrate(pair.last, pair.labels),
    "GBC": lambda pair: peers.gbc(pair.last, pair.labels),
    "SFDA": lambda pair: peers.sfda(pair.last, pair.labels),
    "kNN": lambda pair: representation.neighbour_accuracy(pair.last, pair.labels),
}
FORECASTS = ("held-out probe", "kNN")
ALIGNMENTS: dict[str, Callable[[Pair], Tensor | float]] = {
    "CKA to labels": lambda pair: kernel.target_cka(pair.last, pair.labels),
    "alignment area": lambda pair: representation.alignment_area(pair.centred, pair.labels),
    "tangent alignment": lambda pair: kernel.cka(
        pair.head + pair.body / 3, (pair.kernel_labels[:, None] == pair.kernel_labels).float()
    ),
}
# Each ranks by its error and by its accuracy, and forecasts its accuracy.
REGRESSIONS: dict[str, Callable[[Pair], representation.LeaveOneOut]] = {
    "linear probe, last block": lambda pair: representation.leave_one_out_probe(
        pair.last, pair.labels
    ),
    "linear probe, best block": best_block,
    "linear probe, all blocks": lambda pair: representation.leave_one_out_probe(
        pair.all_blocks, pair.labels
    ),
    **{
        f"tangent, head {variance:.2g}": partial(tangent_regression, variance=variance)
        for variance in HEAD_VARIANCES
    },
    "tangent, half and half": lambda pair: mixed(pair, 0.5),
    "tangent, body alone": lambda pair: kernel.leave_one_out_regression(
        pair.body, pair.kernel_labels
    ),
    "tangent, best share": mixed,
    "tangent and all blocks": blocks_and_body,
    "tangent, all outputs": lambda pair: leave_one_out_tangent_regression(
        pair.full, pair.kernel_labels
    ),
}


@dataclass(frozen=True)
class Job:
    """A pair as it travels to a worker; the examples are those of the largest budget."""

    source: str
    target: str
    pairs: dict[int, Pair]


# Those that take no CPU to speak of, for a machine whose cores are busy.
ON_DEVICE = (
    "list by size",
    "held-out probe",
    "LogME",
    "regularised H-score",
    "TransRate",
    "GBC",
    "kNN",
    "linear probe, last block",
    "linear probe, all blocks",
    "tangent, half and half",
    "tangent, best share",
)


def scored(pickled: bytes) -> pandas.DataFrame:
    """All scores of one job, with the time each took."""
    torch.set_num_threads(1)
    # Bytes, because tensors would travel as open files; they come from the parent process.
    return score_job(pickle.loads(pickled))  # noqa: S301


def score_job(job: Job, methods: Sequence[str] | None = None) -> pandas.DataFrame:
    """Scores of one job, all or some, with the time each took."""
    rows: list[dict[str, object]] = []
    for budget, pair in sorted(job.pairs.items()):
        more = budget > KERNEL_EXAMPLES  # the kernel and its scores are those of fewer labels
        rows += [
            row | {"labels": budget}
            for row in rows
            if more
            and row["labels"] == KERNEL_EXAMPLES
            and str(row["method"]).startswith("tangent")
        ]
        for name, function in {**PEERS, **ALIGNMENTS, **REGRESSIONS}.items():
            if (name == "tangent, all outputs" and pair.full is None) or (
                more and name.startswith("tangent")
            ):
                continue
            if methods is not None and name not in methods:
                continue
            start = time.perf_counter()
            try:
                found = function(pair)
            except Exception as error:  # a score that fails is a result
                print(f"{name} on {job.source}, {job.target}, {budget}: {error}", flush=True)
                found = float("nan")
            milliseconds = 1e3 * (time.perf_counter() - start)
            scores = {name: (found, found if name in FORECASTS else float("nan"))}
            if isinstance(found, representation.LeaveOneOut):
                accuracy = found.accuracy
                scores = {f"{name}: error": (-found.error, accuracy)}
                scores[f"{name}: accuracy"] = (accuracy, accuracy)
            rows += [
                {
                    "source": job.source,
                    "target": job.target,
                    "labels": budget,
                    "statistics": "source" if pair.given else "target",
                    "method": method,
                    "score": float(score),
                    "forecast": float(forecast),
                    "milliseconds": milliseconds,
                }
                for method, (score, forecast) in scores.items()
            ]
    return pandas.DataFrame(rows)


@torch.no_grad()
def renormalised(network: Network, x: Tensor) -> Network:
    """A copy whose batch normalisation has the statistics of these examples."""
    copy = deepcopy(network).train()
    for module in copy.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    copy(x)
    return copy.eval()


def pairs_of(
    network: Network,
    x: Tensor,
    labels: Tensor,
    test: tuple[Tensor, Tensor],
    *,
    given: bool,
    place: str = "cpu",
) -> dict[int, Pair]:
    """Features and kernels of one network on one target, for all budgets, on a device."""
    labels, test = labels.to(place), (test[0], test[1].to(place))
    classes = int(labels.max()) + 1
    parameters = sum(value.numel() for value in network.parameters())
    parameters -= sum(value.numel() for value in network.head.parameters())
    few = x[:KERNEL_EXAMPLES]
    used = with_fresh_head(network if given else renormalised(network, few), classes)
    # The kernel of fewer examples is a part of that of more.
    traced = tangent_kernels(used, few, outputs="trace", check=False)
    head, body = (one.to(place) / classes for one in traced.split("head"))
    body = 3 * body  # nn.Linear draws weights of variance 1 / (3 d)
    full = None
    if given and place == "cpu":
        full = tangent_kernels(used, x[:FULL_EXAMPLES], outputs="full", check=False).total.cpu()
    answer = {}
    for budget in BUDGETS:
        used = network if given else renormalised(network, x[:budget])
        with torch.no_grad():
            features = {name: value.to(place) for name, value in used.features(x[:budget]).items()}
            held_out = list(used.features(test[0]).values())[-1].to(place)
        answer[budget] = Pair(
            parameters,
            labels[:budget],
            features,
            (held_out, test[1]),
            head[:budget, :budget],
            body[:budget, :budget],
            full if budget == FULL_EXAMPLES else None,
            given,
        )
    return answer


def with_fresh_head(network: Network, classes: int) -> Network:
    """A copy with a head for so many classes, as ``nn.Linear`` draws it."""
    copy = deepcopy(network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        copy.head = nn.Linear(network.head.in_features, classes)
    return copy.to(network.stem.weight.device).eval()


def target_data(
    images: Images, target: str, device: str
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Labelled images as networks take them and their labels; the same of the test."""
    pool, test = images.target(target, "pool"), images.target(target, "test")
    rows = labelled_rows(pool, seed=0)[: max(BUDGETS)]
    channels_first = [
        network_input(pixels).permute(0, 3, 1, 2).contiguous().to(device)
        for pixels in (pool.images[rows], test.images)
    ]
    return channels_first[0], pool.labels[rows], (channels_first[1], test.labels)


def score_all(
    images: Images,
    folder: Path,
    device: str,
    workers: int,
    architectures: Sequence[str] = tuple(ARCHITECTURES),
    targets: Sequence[str] = tuple(TARGETS),
) -> Iterator[pandas.DataFrame]:
    """Scores of all pairs: networks on the device, scores on worker processes."""
    data = {target: target_data(images, target, device) for target in targets}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as executor:
        running: set[Future[pandas.DataFrame]] = set()
        for name in architectures:
            start = time.perf_counter()
            states = load_states(folder, name)
            for source in (source for source in SOURCES if source.architecture == name):
                network = Network(ARCHITECTURES[name])
                network.load_state_dict(states[str(source)])
                network.to(device).eval()
                for target, (x, labels, test) in data.items():
                    for given in (True, False):
                        pairs = pairs_of(network, x, labels, test, given=given)
                        running.add(
                            executor.submit(scored, pickle.dumps(Job(str(source), target, pairs)))
                        )
                done = {future for future in running if future.done()}
                running -= done
                yield from (future.result() for future in done)
            print(
                f"{name}: features and kernels in {time.perf_counter() - start:.1f} s", flush=True
            )
        yield from (future.result() for future in as_completed(running))


def forecasts(
    images: Images, folder: Path, architecture: str, targets: Sequence[str], count: int, device: str
) -> Iterator[pandas.DataFrame]:
    """What ``th.transfer`` forecasts with so many labels and with more, source by source.

    The scores above have plain leave-one-out accuracies. These are at the shares of classes among
    all examples, and of fine-tuned networks. Beside them are power laws through linear probes of
    sub-samples.
    """
    data = {target: target_data(images, target, device)[:2] for target in targets}
    states = load_states(folder, architecture)
    for source in (source for source in SOURCES if source.architecture == architecture):
        network = Network(ARCHITECTURES[architecture])
        network.load_state_dict(states[str(source)])
        network.to(device).eval()
        rows = []
        for target, (x, y) in data.items():
            x, y = x[:count], y[:count]
            used = with_fresh_head(network, int(y.max()) + 1)
            _, body = tangent_kernels(used, x, outputs="trace", check=False).split("head")
            with torch.no_grad():
                last = list(network.features(x).values())[-1].cpu()
            found = kernel_regressions(last, [], body.cpu(), y)
            shown = forecast(found, y)
            row = {"source": str(source), "target": target, "labels": count, "error": found.error}
            row |= {key: shown[key] for key in ("value", "low", "high")}
            more = [budget for budget in sorted(BUDGETS) if budget > count]
            curve = predicted_curve(found, y, more)
            for place, budget in enumerate(more):
                row[f"with {budget}"] = float(curve.accuracy[place])
                for end, values in zip(("low", "high"), curve.accuracy_interval, strict=True):
                    row[f"with {budget}, {end}"] = float(values[place])
                laws = power_laws(last, y, budget, np.random.default_rng(0))
                row[f"power law {budget}"], row[f"power law and floor {budget}"] = laws
            rows.append(row)
        yield pandas.DataFrame(rows)


def curves(job: Job) -> pandas.DataFrame:
    """Accuracies with more labels than those of the kernel, with both ends of the interval."""
    rows = []
    for count in (budget for budget in BUDGETS if budget <= KERNEL_EXAMPLES):
        pair = job.pairs[count]
        grams = mixtures(pair.head, pair.body, *SHARES)
        judged_by = [kernel.leave_one_out_regression(gram, pair.labels).error for gram in grams]
        gram = grams[int(torch.stack(judged_by).argmin())]
        counts = [budget for budget in BUDGETS if budget >= count]
        found = learning_curve(gram.cpu(), pair.labels.cpu(), counts, kernel=True)
        shown = [found.accuracy, *found.accuracy_interval]
        for name, values in zip(("", ", low", ", high"), shown, strict=True):
            rows += [
                {
                    "source": job.source,
                    "target": job.target,
                    "labels": labels,
                    "statistics": "source",
                    "method": f"curve from {count}{name}",
                    "score": float("nan"),
                    "forecast": value,
                    "milliseconds": float("nan"),
                }
                for labels, value in zip(counts, values.tolist(), strict=True)
            ]
    return pandas.DataFrame(rows)


def score_on_device(
    images: Images, folder: Path, device: str, architecture: str, targets: Sequence[str]
) -> Iterator[pandas.DataFrame]:
    """The scores of ``ON_DEVICE``, target by target."""
    states = load_states(folder, architecture)
    for target in targets:
        start = time.perf_counter()
        x, labels, test = target_data(images, target, device)
        tables = []
        for source in (source for source in SOURCES if source.architecture == architecture):
            network = Network(ARCHITECTURES[architecture])
            network.load_state_dict(states[str(source)])
            network.to(device).eval()
            pairs = pairs_of(network, x, labels, test, given=True, place=device)
            tables.append(score_job(Job(str(source), target, pairs), ON_DEVICE))
            tables.append(curves(Job(str(source), target, pairs)))
        print(f"{architecture}, {target}: {time.perf_counter() - start:.1f} s", flush=True)
        yield pandas.concat(tables)
