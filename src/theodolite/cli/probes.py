"""What DATA on the command line stands for, ready for a model, and whether the model takes it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from theodolite.cli.failures import CommandError
from theodolite.cli.named_inputs import load_named_inputs
from theodolite.data import SCALINGS, Dataset, load_data, load_npz, scaled
from theodolite.engine.batches import MASK_KEY, Batch
from theodolite.engine.readouts import read_outputs, resolve_readout
from theodolite.errors import TheodoliteError

__all__ = [
    "DataSource",
    "Examples",
    "in_precision_of",
    "load_examples",
    "require_fit",
    "resolve_device",
]

_TRIAL = 3  # examples; two could be taken for two classes or two positions


@dataclass(frozen=True)
class DataSource:
    """Which examples to measure on.

    Args:
        word: see :func:`theodolite.data.load_data`.
        split: "train" or "test".
        scale: one of ``theodolite.data.SCALINGS``, "none", or "auto": pixels to [0, 1].
        flat: whether every example becomes one vector.
        as_is: whether the axes of an .npz file stay; else (n, h, w) and (n, h, w, c) are images.
        seed: of generated data and random splits.
    """

    word: str
    split: str = "train"
    scale: str = "auto"
    flat: bool = False
    as_is: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Examples:
    """Inputs and targets of one split, and what is known about them."""

    name: str
    split: str
    batch: Batch
    classes: tuple[str, ...] = ()


def load_examples(source: DataSource, model: nn.Module) -> Examples:
    """Read, scale and flatten one split; inputs by name stay as they are.

    Raises:
        DataError: If the data cannot be read.
        CommandError: If an option is not one of its choices, or does not go with the data.
    """
    if source.split not in ("train", "test"):
        raise CommandError(f"--split: expected train or test, got {source.split!r}")
    named = load_named_inputs(model, source.word, source.split)
    if named is not None:
        _require_as_they_are(source)
        mask = named.inputs.get(MASK_KEY)
        batch = Batch((), named.inputs, named.targets, mask)
        return Examples(Path(source.word).stem, source.split, batch)
    data = _scaled(_loaded(source), source.scale)
    data = data.flat() if source.flat else data
    inputs, targets = (data.x_train, data.y_train)
    if source.split == "test":
        inputs, targets = (data.x_test, data.y_test)
    return Examples(data.name, source.split, Batch((inputs,), targets=targets), data.classes)


def _loaded(source: DataSource) -> Dataset:
    if not source.as_is:
        return load_data(source.word, torch.Generator().manual_seed(source.seed))
    if not source.word.endswith(".npz"):
        raise CommandError(f"--as-is: expected DATA as an .npz file, got {source.word!r}")
    return load_npz(source.word, layout="as_is")


def _require_as_they_are(source: DataSource) -> None:
    option = "--flatten" if source.flat else f"--scale {source.scale}"
    if source.flat or source.scale not in ("auto", "none"):
        raise CommandError(
            f"{option}: expected data with a single input, x_train; {source.word} has inputs by "
            "name, which are passed as they are: change them before np.savez"
        )


def _scaled(data: Dataset, scale: str) -> Dataset:
    choices = ("auto", "none", *SCALINGS)
    if scale not in choices:
        raise CommandError(f"--scale: expected one of {', '.join(choices)}, got {scale!r}")
    if scale == "auto" and data.peak is not None:
        return scaled(data, "unit_interval")
    if scale in ("auto", "none"):
        return data
    return scaled(data, scale)  # type: ignore[arg-type]  # checked above


def resolve_device(name: str | None) -> torch.device:
    """The device of this name; the best that there is without one.

    Raises:
        CommandError: If there is no such device here.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise CommandError(
            f"--device: expected cpu, or cuda where there is a GPU, got {name!r}, which cannot be "
            "used here"
        ) from error
    return device


def in_precision_of(model: nn.Module, examples: Examples) -> Examples:
    """Real inputs in the dtype of the model's weights: NumPy makes float64 of almost everything."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)

    def cast(values: Any) -> Any:
        real = isinstance(values, Tensor) and values.is_floating_point()
        return values.to(dtype) if real and dtype is not None else values

    batch = examples.batch
    args, kwargs = tree_map(cast, (batch.args, dict(batch.kwargs)))
    return replace(examples, batch=replace(batch, args=args, kwargs=kwargs))


def require_fit(model: nn.Module, examples: Examples, readout: str | None) -> None:
    """Run a few examples through the model, so that a misfit is one sentence and comes at once.

    Raises:
        CommandError: If the model refuses the examples, or labels exceed its outputs.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch = examples.batch.take(slice(0, _TRIAL)).to(device)
    try:
        with torch.no_grad():
            output: Any = batch.run(model)
        outputs = read_outputs(output, batch, resolve_readout(readout))
    except TheodoliteError:
        raise
    except Exception as error:  # whatever the user's model raises
        text = " ".join(str(error).split())[:200]
        raise CommandError(
            f"the model does not take this data: {_described(batch)}, and it answers "
            f"{type(error).__name__}: {text}; {_hint(batch)}"
        ) from error
    _require_labels(examples, outputs.shape[1])


def _described(batch: Batch) -> str:
    if batch.args:
        (values,) = batch.args
        return f"examples have shape {tuple(values.shape[1:])} and type {values.dtype}"
    parts = (f"{k} {tuple(v.shape[1:])} of {v.dtype}" for k, v in batch.kwargs.items())
    return f"the inputs of an example are {', '.join(parts)}"


def _hint(batch: Batch) -> str:
    if batch.kwargs:
        return "arrays are passed as they are: save them in the shape and type that MODEL takes"
    axes = batch.args[0].ndim
    if axes == 4 and batch.args[0].shape[1] == 1:
        return "pass --flatten for vectors, or --as-is for sequences in an .npz file"
    return "pass --flatten for vectors" if axes > 2 else "check MODEL's input size"


def _require_labels(examples: Examples, outputs: int) -> None:
    targets = examples.batch.targets
    if targets.is_floating_point() or targets.ndim > 1:
        return
    highest = int(targets.max())
    if highest >= max(outputs, 2):
        raise CommandError(
            f"labels out of range: the model has {outputs} outputs, so labels are 0 to "
            f"{outputs - 1}, but {examples.name} has label {highest}; build the model with "
            f"{highest + 1} outputs (--arg num_classes={highest + 1}) or relabel"
        )
