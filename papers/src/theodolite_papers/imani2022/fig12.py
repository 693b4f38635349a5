"""Figure 12: deep layers specialise on the source, not on a related task."""

from dataclasses import dataclass, field
from itertools import pairwise

from theodolite_papers.imani2022._networks import (
    Training,
    curve_array,
    curve_lines,
    hidden_layers,
    layer_names,
    profile,
)
from theodolite_papers.imani2022._peaks import draw_tasks, sample, train_on_source
from theodolite_papers.ledger import (
    Claim,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    above,
    below,
    decided,
    in_order,
    named,
)

__all__ = ["STUDY", "Specialization"]

_DEPTH = 3
_NAMES = ("input", "layer 1", "layer 2", "layer 3")
_KEYS = ("input", "act1", "act2", "act3")


@dataclass(frozen=True)
class Specialization:
    """A network with three hidden layers of 60 units on a random peaks function.

    Args:
        train: number of examples.
        training: how it is trained.
        bias: whether representations get a constant column.
    """

    train: int = 2000
    training: Training = field(default_factory=lambda: Training(epochs=100))
    bias: bool = True


def measure(config: Specialization, trial: Trial) -> Measured:
    """Areas and curves of all layers against the labels of the source and of a related task."""
    tasks = draw_tasks(trial)
    examples = sample(config.train, trial.generator())
    network = train_on_source(examples, tasks.source, _DEPTH, config.training, trial)
    rows = {"input": examples.inputs.float()}
    rows |= hidden_layers(network.trained, rows["input"], layer_names(_DEPTH))
    numbers, arrays = {"final_loss": network.loss}, {}
    for role in ("source", "related"):
        labels = examples.labels(getattr(tasks, role))
        found = {name: profile(r, labels, bias=config.bias) for name, r in rows.items()}
        numbers |= {f"{role}_{name}": one.area for name, one in found.items()}
        arrays[role] = curve_array(found)
    return Measured(numbers, arrays, {"source": tasks.source, "related": tasks.related})


def _is_rising(values: list[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


def _not_monotone(runs: Results) -> Outcome:
    broken = [not _is_rising([run[f"related_{key}"] for key in _KEYS]) for run in runs]
    means = {key: runs.mean(f"related_{key}") for key in _KEYS}
    share = sum(broken) / len(broken)
    return decided(above("share_of_runs_without_rise", share, 0.5), **means)


def _specialized(runs: Results) -> Outcome:
    areas = runs.means(named("source", "related", suffix="_act3"))
    return decided(below("ratio", areas["related"] / areas["source"], 0.5), **areas)


def draw(runs: Results) -> list[Panel]:
    """Left the source, right the related task."""
    titles = {"source": "source S", "related": "related task"}
    return [
        Panel(
            f"Figure 12, {title}",
            curve_lines(runs, role, _NAMES),
            "threshold / root n",
            "share of the label mass",
        )
        for role, title in titles.items()
    ]


STUDY = Study(
    id="imani2022.fig12",
    title="Specialisation with depth",
    shows=("Figure 12",),
    measure=measure,
    configs={
        "smoke": Specialization(200, Training(epochs=10)),
        "lite": Specialization(),
        "published": Specialization(10_000, Training(epochs=300, until_converged=True)),
    },
    claims=(
        Claim(
            "imani2022.fig12.source",
            "on the source, area of layer 3 > layer 2 > layer 1 > input",
            in_order(named(*_KEYS, prefix="source_")),
        ),
        Claim(
            "imani2022.fig12.related",
            "on a related task the areas do not rise from layer to layer in most of the runs",
            _not_monotone,
            scope="all",
        ),
        Claim(
            "imani2022.fig12.specialized",
            "layer 3 has less than half the area on the related task that it has on the source",
            _specialized,
        ),
    ),
    draw=draw,
    seeds={"published": tuple(range(101, 111))},
    stand_in={
        "lite": "2000 examples instead of 10000, 100 epochs; layers of 60 units are ours",
    },
    remarks={"published": "layers of 60 units are ours; at most 300 epochs"},
)
