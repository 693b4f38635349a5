"""Figure 7: alignment from the input to the last hidden layer, before and after training."""

from dataclasses import dataclass, field

from theodolite_papers.imani2022._networks import (
    Profile,
    Training,
    area_numbers,
    build,
    curve_array,
    curve_lines,
    layer_profiles,
    load_problem,
    profile,
    recipe_for,
    train_on,
)
from theodolite_papers.ledger import (
    LARGE,
    Claim,
    Measured,
    Panel,
    Results,
    Space,
    Study,
    Trial,
    in_order,
)

__all__ = ["STUDY", "LayerByLayer"]

_DEPTH = 3
_BEFORE = ("input", "layer 1, initial", "layer 2, initial", "layer 3, initial")
_AFTER = ("layer 1", "layer 2", "layer 3")
# Colors: one for each layer, before and after training; another one for the input.
_COLORS = {name: k % len(_AFTER) for k, name in enumerate((*_BEFORE[1:], *_AFTER))} | {"input": 3}


@dataclass(frozen=True)
class LayerByLayer:
    """A network of three hidden layers on one task.

    Args:
        task: what the network learns.
        train: number of training examples.
        width: of each hidden layer.
        training: how it is trained.
        bias: whether representations get a constant column.
    """

    task: str = "digits-parity"
    train: int = 1000
    width: int = 128
    training: Training = field(default_factory=Training)
    bias: bool = True


def measure(config: LayerByLayer, trial: Trial) -> Measured:
    """Areas and curves of the input and of all layers, before and after training."""
    task = load_problem(config.task, config.train, 2, trial.generator())
    model = build(task.width, _DEPTH, config.width, trial)
    inputs = task.x_train.to(trial.device)
    first = {bias: profile(inputs, task.y_train, bias=bias) for bias in {config.bias, False}}

    def read(bias: bool) -> dict[str, Profile]:
        return {"input": first[bias], **layer_profiles(model, task, _DEPTH, bias=bias)}

    before, plain_before = read(config.bias), read(False)
    recipe = recipe_for(config.training, trial.seed, regression=task.regression)
    numbers = {"final_loss": train_on(model, task.x_train, task.y_train, recipe)}
    after, plain_after = read(config.bias), read(False)
    numbers |= area_numbers(before, "initial") | area_numbers(after, "trained")
    numbers |= area_numbers(plain_before, "plain_initial")
    numbers |= area_numbers(plain_after, "plain_trained")
    curves = {**before, **{f"trained {k}": v for k, v in after.items() if k != "input"}}
    return Measured(numbers, {"curves": curve_array(curves)}, {"task": config.task})


def _layers(state: str) -> dict[str, str]:
    """Areas from the input on, by the names that claims show."""
    return {"input": f"{state}_input"} | {f"layer_{k}": f"{state}_act{k}" for k in (1, 2, 3)}


def draw(runs: Results) -> list[Panel]:
    """One panel per task: dashed before training, solid after."""
    panels = []
    for task in dict.fromkeys(run.notes["task"] for run in runs):
        part = runs.chosen(lambda run, task=task: run.notes["task"] == task)  # type: ignore[misc]
        lines = curve_lines(part, "curves", (*_BEFORE, *_AFTER), _BEFORE[1:], _COLORS)
        panels.append(
            Panel(f"Figure 7, {task}", lines, "threshold / root n", "share of the label mass")
        )
    return panels


STUDY = Study(
    id="imani2022.fig7",
    title="Alignment by layer, before and after training",
    shows=("Figure 7",),
    measure=measure,
    configs={
        "smoke": LayerByLayer(train=100, training=Training(epochs=10)),
        "lite": LayerByLayer(training=Training(epochs=60)),
    }
    | dict.fromkeys(
        LARGE,
        LayerByLayer("mnist-pair", 10_000, training=Training(epochs=300, until_converged=True)),
    ),
    spaces={
        "smoke": Space({"task": ["digits-parity"]}),
        "lite": Space({"task": ["digits-parity", "digits-value"]}),
        "reduced": Space({"task": ["mnist-pair", "mnist-parity", "cifar10-pair"]}),
        "published": Space({"task": ["mnist-pair", "ct_position"]}),
    },
    claims=(
        Claim(
            "imani2022.fig7.trained",
            "after training, area of layer 3 > layer 2 > layer 1 > input",
            in_order(_layers("trained")),
        ),
        Claim(
            "imani2022.fig7.initial",
            "before training, area of input > layer 1 > layer 2 > layer 3",
            in_order(_layers("initial"), falling=True),
        ),
        Claim(
            "imani2022.fig7.trained-without-bias",
            "the order after training without the constant column",
            in_order(_layers("plain_trained")),
        ),
        Claim(
            "imani2022.fig7.initial-without-bias",
            "the order before training without the constant column",
            in_order(_layers("plain_initial"), falling=True),
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits, even against odd and the digit as a number, for MNIST and CT position",
        "reduced": "CIFAR-10's first two classes for CT position, which we do not have",
    },
    remarks={
        "reduced": "MNIST 0 against 1 and even against odd: the paper does not say which task; at "
        "most 300 epochs",
    },
    not_run={"published": "it needs the CT position table of UCI, which we do not have"},
)
