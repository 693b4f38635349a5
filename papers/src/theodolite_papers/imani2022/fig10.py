"""Figure 10: alignment of a network trained on one peaks function, on it and on other tasks."""

from dataclasses import dataclass, field
from typing import Any

from theodolite_papers.imani2022._networks import Training, curve_array, curve_lines, profile
from theodolite_papers.imani2022._peaks import (
    draw_tasks,
    representations,
    sample,
    train_on_source,
)
from theodolite_papers.ledger import (
    Claim,
    Measured,
    Panel,
    Results,
    Study,
    Trial,
    largest,
    named,
    smallest,
)

__all__ = ["STUDY", "PeaksTransfer"]

_ROLES = ("source", "related", "unrelated")
_NAMES = ("original", "init", "transfer")


@dataclass(frozen=True)
class PeaksTransfer:
    """A network 60-60-1 on a random peaks function.

    Args:
        train: number of examples.
        training: how it is trained.
        bias: whether representations get a constant column.
    """

    train: int = 2000
    training: Training = field(default_factory=lambda: Training(epochs=150))
    bias: bool = True


def measure(config: PeaksTransfer, trial: Trial) -> Measured:
    """Areas and curves of three representations against the labels of three tasks."""
    tasks = draw_tasks(trial)
    examples = sample(config.train, trial.generator())
    network = train_on_source(examples, tasks.source, 1, config.training, trial)
    rows = representations(network, examples.inputs, "act1")
    numbers, arrays = {"final_loss": network.loss}, {}
    for role in _ROLES:
        labels = examples.labels(getattr(tasks, role))
        found = {name: profile(r, labels, bias=config.bias) for name, r in rows.items()}
        plain = {name: profile(r, labels, bias=False) for name, r in rows.items()}
        numbers |= {f"{role}_{name}": one.area for name, one in found.items()}
        numbers |= {f"plain_{role}_{name}": one.area for name, one in plain.items()}
        arrays[role] = curve_array(found)
    return Measured(numbers, arrays, {role: getattr(tasks, role) for role in _ROLES})


def draw(runs: Results) -> list[Panel]:
    """One panel per task."""
    titles = {"source": "(a) source S", "related": "(b) T1", "unrelated": "(c) T2"}
    return [
        Panel(
            f"Figure 10 {titles[role]}",
            curve_lines(runs, role, _NAMES),
            "threshold / root n",
            "share of the label mass",
        )
        for role in _ROLES
    ]


def _claims() -> tuple[Claim, ...]:
    id_ = "imani2022.fig10"
    texts = {
        "source": "on the source the trained layer has a larger",
        "related": "on a related task the trained layer has a larger",
        "unrelated": "on an unrelated task the trained layer has a smaller",
    }

    def claim(name: str, role: str, note: str = "", plain: str = "", **options: Any) -> Claim:
        text = f"{texts[role]} area than the inputs and than the initial layer{note}"
        extreme = smallest if role == "unrelated" else largest
        check = extreme("transfer", named(*_NAMES, prefix=f"{plain}{role}_"))
        return Claim(f"{id_}.{name}", text, check, **options)

    without = ", without the constant column"
    return (
        *(claim(role, role) for role in _ROLES),
        *(claim(f"mean-{role}", role, ", mean over runs", scope="all") for role in _ROLES),
        *(claim(f"{r}-without-bias", r, without, "plain_") for r in ("related", "unrelated")),
    )


STUDY = Study(
    id="imani2022.fig10",
    title="Alignment under transfer between peaks functions",
    shows=("Figure 10",),
    measure=measure,
    configs={
        "smoke": PeaksTransfer(200, Training(epochs=10)),
        "lite": PeaksTransfer(),
        "published": PeaksTransfer(10_000, Training(epochs=300, until_converged=True)),
    },
    claims=_claims(),
    draw=draw,
    seeds={"published": tuple(range(101, 111))},
    stand_in={
        "lite": "2000 examples instead of 10000, 150 epochs",
    },
    remarks={
        "published": "until 10 epochs improve the loss by less than a thousandth, at most 300 "
        "epochs"
    },
)
