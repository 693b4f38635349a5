"""Figure 11: linear models on few examples, with features learned on a peaks function."""

from dataclasses import dataclass, field

import numpy as np
import torch

from theodolite_papers.imani2022._linear_models import Split, best_probe
from theodolite_papers.imani2022._networks import Training
from theodolite_papers.imani2022._peaks import (
    draw_tasks,
    representations,
    sample,
    train_on_source,
)
from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    above,
    decided,
    mean_and_error,
)

__all__ = ["STUDY", "FewShot"]

_ROLES = ("related", "unrelated")
_NAMES = ("original", "init", "transfer")
_REDUCTIONS = (0.3, 0.5, 0.7)
_CURVE = tuple(np.unique(np.geomspace(1, 1000, 30).astype(int)).tolist())
_JUDGED = (10, 100, 1000)
_SHARES = tuple(np.linspace(0.05, 0.95, 19).round(2).tolist())


@dataclass(frozen=True)
class FewShot:
    """Linear models on few examples; the features are learned from many.

    Args:
        train: number of examples that the network is trained on.
        few: how many of them the linear models see.
        test: number of new examples.
        rates: learning rates on the mean squared error, the best of which is kept.
        training: of the network.
        bias: whether representations get a constant column.
    """

    train: int = 2000
    few: int = 100
    test: int = 1000
    rates: tuple[float, ...] = (0.01, 0.1, 1.0)
    training: Training = field(default_factory=lambda: Training(epochs=150))
    bias: bool = True


def measure(config: FewShot, trial: Trial) -> Measured:
    """Errors over steps and weight norms over reductions, for both tasks."""
    tasks = draw_tasks(trial)
    examples = sample(config.train, trial.generator())
    fresh = sample(config.test, trial.generator(5))
    network = train_on_source(examples, tasks.source, 1, config.training, trial)
    few = examples.take(torch.randperm(config.train, generator=trial.generator(6))[: config.few])
    rows, new = (representations(network, part.inputs, "act1") for part in (few, fresh))
    numbers: dict[str, float] = {"final_loss": network.loss}
    arrays: dict[str, np.ndarray] = {}
    for role in _ROLES:
        task = getattr(tasks, role)
        mean = examples.mean(task)  # of all training labels, as the recipe of the data has it
        labels = few.labels(task, mean), fresh.labels(task, mean)
        curves = []
        for name in _NAMES:
            split = Split(rows[name], labels[0], new[name], labels[1])
            found, curve = _probe(split.prepared(bias=config.bias), config)
            plain, _ = _probe(split.prepared(bias=False), config)
            numbers |= {f"{role}_{name}_{key}": value for key, value in found.items()}
            numbers |= {f"plain_{role}_{name}_{key}": value for key, value in plain.items()}
            curves.append(curve)
        for index, kind in enumerate(("train", "test", "norm")):
            arrays[f"{role}_{kind}"] = np.stack([c[index] for c in curves]).astype(np.float16)
    return Measured(numbers, arrays, {role: getattr(tasks, role) for role in ("source", *_ROLES)})


def _probe(split: Split, config: FewShot) -> tuple[dict[str, float], list[np.ndarray]]:
    run = best_probe(split, config.rates, _JUDGED[-1])
    device = run.test_basis.device
    judged = torch.tensor(_JUDGED, device=device)
    steps = torch.tensor(_CURVE, device=device)
    norms = run.norms_after(_REDUCTIONS).tolist()
    numbers = {"rate": run.rate}
    numbers |= {f"norm_{s:g}": v for s, v in zip(_REDUCTIONS, norms, strict=True)}
    for kind, errors in (("train", run.train_errors(judged)), ("test", run.test_errors(judged))):
        numbers |= {f"{kind}_{t}": v for t, v in zip(_JUDGED, errors.tolist(), strict=True)}
    curves = (run.train_errors(steps), run.test_errors(steps), run.norms_after(_SHARES))
    return numbers, [curve.cpu().numpy() for curve in curves]


def _compared(runs: Results, role: str, keys: tuple[str, ...], *, best: bool) -> Outcome:
    """Whether transfer has the smallest (best) or largest mean of every quantity."""
    numbers: dict[str, float] = {}
    leads = []
    for key in keys:
        values = {name: runs[f"{role}_{name}_{key}"] for name in _NAMES}
        for other in ("original", "init"):
            lead = float((values[other] - values["transfer"]).mean())
            leads.append(above(f"lead_on_{other}_{key}", lead if best else -lead))
        numbers |= {f"{name}_{key}": value.mean() for name, value in values.items()}
    return decided(*leads, **numbers)


def draw(runs: Results) -> list[Panel]:
    """Errors over steps (dashed on training data) and norms over reductions."""
    panels = []
    for role, letters, task in (("related", "ac", "T1"), ("unrelated", "bd", "T2")):
        lines = _lines(runs, f"{role}_test", _CURVE) + _lines(
            runs, f"{role}_train", _CURVE, dashed=True
        )
        panels.append(
            Panel(f"Figure 11 ({letters[0]}), {task}", lines, "step", "relative error", log="x")
        )
        norms = _lines(runs, f"{role}_norm", _SHARES)
        panels.append(
            Panel(f"Figure 11 ({letters[1]}), {task}", norms, "reduction of the training loss",
                  "norm of the weights")
        )  # fmt: skip
    return panels


def _lines(
    runs: Results, array: str, x: tuple[float | int, ...], *, dashed: bool = False
) -> list[Line]:
    stacked = runs.array(array).astype(np.float64)
    lines = []
    for index, name in enumerate(_NAMES):
        mean, error = mean_and_error(stacked[:, index])
        label = f"{name}, train" if dashed else name
        lines.append(Line(label, x, mean, error, dashed=dashed, color=index))
    return lines


def _claims() -> tuple[Claim, ...]:
    id_ = "imani2022.fig11"
    cases = (
        ("related-train", "related", ("train_100", "train_1000"), True,
         "T1: the transferred representation has the lowest training error at 100 and 1000 steps"),
        ("related-test", "related", ("test_100", "test_1000"), True,
         "T1: it has the lowest test error at 100 and 1000 steps"),
        ("related-norm", "related", ("norm_0.3", "norm_0.5", "norm_0.7"), True,
         "T1: it needs the smallest weights for a reduction by 30, 50 and 70 %"),
        ("unrelated-train", "unrelated", ("train_10", "train_100", "train_1000"), False,
         "T2: it has the highest training error at 10, 100 and 1000 steps"),
        ("unrelated-test", "unrelated", ("test_10", "test_100"), False,
         "T2: it has the highest test error at 10 and 100 steps"),
        ("unrelated-norm", "unrelated", ("norm_0.3", "norm_0.5"), False,
         "T2: it needs the largest weights for a reduction by 30 and 50 %"),
    )  # fmt: skip
    columns = (("", "", ""), ("plain_", "-without-bias", ", without the constant column"))
    return tuple(
        Claim(
            f"{id_}.{name}{suffix}",
            f"{text} (means over runs, by two standard errors{note})",
            lambda runs, r=f"{prefix}{role}", k=keys, b=best: _compared(runs, r, k, best=b),  # type: ignore[misc]
            scope="all",
        )
        for prefix, suffix, note in columns
        for name, role, keys, best, text in cases
    )


STUDY = Study(
    id="imani2022.fig11",
    title="Few-shot linear models on transferred representations",
    shows=("Figure 11",),
    measure=measure,
    configs={
        "smoke": FewShot(train=200, test=100, training=Training(epochs=10)),
        "lite": FewShot(),
        "published": FewShot(train=10_000, training=Training(epochs=300, until_converged=True)),
    },
    claims=_claims(),
    draw=draw,
    seeds={"published": tuple(range(101, 111))},
    stand_in={
        "lite": "network trained on 2000 examples instead of 10000, 150 epochs; step sizes ours",
    },
    remarks={
        "published": "the three step sizes (0.01, 0.1, 1 on the mean) are ours; at most 300 epochs"
    },
)
