"""The main job: a model and data in, a survey out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from theodolite._distributed import Group, Processes
from theodolite.engine.batches import Batch
from theodolite.engine.layers import Layers, unwrap
from theodolite.engine.readouts import Readout
from theodolite.engine.state import untouched
from theodolite.records import Record
from theodolite.surveys._measure import measure_model
from theodolite.surveys._probe import draw_probe, reusable
from theodolite.surveys._progress import Progress
from theodolite.surveys._result import Survey
from theodolite.surveys._settings import FAMILIES, Labeling, Loss, Pool, Settings

__all__ = ["place_of", "survey"]


def survey(
    model: nn.Module,
    data: Any,
    targets: Any = None,
    *,
    truth: Any = None,
    families: str | Sequence[str] = FAMILIES,
    layers: Layers | None = None,
    loss: Loss | None = None,
    readout: str | Readout | None = None,
    pool: Pool | None = None,
    image_shape: tuple[int, ...] | None = None,
    sizes: Mapping[str, int | None] | None = None,
    nulls: int = 20,
    bootstrap: int = 0,
    memory_limit: int | None = None,
    device: torch.device | str | None = None,
    batch_size: int = 256,
    batch_fn: Callable[[Any], Batch] | None = None,
    seed: int = 0,
    generator: torch.Generator | None = None,
    progress: Progress = False,
    tangent: str = "auto",
    name: str = "",
    split: str = "unknown",
    labels: str = "given",
    classes: Sequence[str] | None = None,
    group: Group = "auto",
) -> Survey:
    """Measure the alignment of a model with its task, its data and itself, layer by layer.

    All five families in one go, on a probe that is balanced over classes. The model is measured in
    evaluation mode and left as it was found: training flags, gradients, random state. Families
    that do not apply to the data (regression, several labels, no labels) say why not.

    Under ``torch.distributed`` every process calls this with the same model and settings and its
    own part of the data, of any size, none included; parts follow each other by rank, and data
    that is the same everywhere counts once. The work is shared, and all processes get the numbers
    that one process with all the data would; only the first writes files. If one fails, all raise.

    Args:
        model: any module.
        data: a data loader, (inputs, targets), inputs, a mapping, a data set, or batches of these;
            of a model with several inputs ((first, second), targets), or a mapping by their names.
        targets: of the same examples, where the data holds none.
        truth: true labels of the same examples in the order of the data, where the targets are
            others, such as shuffled ones; gives ``cka_truth`` beside ``cka_target``.
        families: which of ``representation``, ``covariance``, ``kernel``, ``tangent``,
            ``gradient`` to measure.
        layers: names, patterns or a predicate; by default blocks and layers with weight matrices.
        loss: (outputs, targets) -> one number per example, or a loss of torch; by default the
            cross-entropy for classes, squared error for numbers.
        readout: (model output, batch) -> (n, c), or ``"last"``, ``"mean"``, ``"cls"``.
        pool: how a layer's output becomes a vector; by default flattened, for spectra of maps the
            largest value of every channel.
        image_shape: (height, width) or (channels, height, width) of inputs that come flattened,
            for pictures of eigenvectors; by default a square where the size is one.
        sizes: family -> largest number of examples; by default 2,000 for representation and
            kernel, 1,000 for gradient (and for pairs of gradients, 100 in large models), 200 for
            tangent, all the data for covariances.
        nulls: permutations of the labels behind every null; 0 for none.
        bootstrap: half-samples behind every standard error; 0 for none.
        memory_limit: bytes that buffers may take.
        device: where the inputs should lie; None for that of the model.
        batch_size: examples in one pass.
        batch_fn: turns an item of the data into a batch.
        seed: of probe, permutations and random bases.
        generator: the same, as a generator.
        progress: True for a bar, or a function of (fraction done, what is being done).
        tangent: ``"exact"``, ``"sketch"``, or ``"auto"``: exact up to 32 outputs.
        name: what to call the survey in comparisons.
        split: what the data is, such as "train" or "test".
        labels: what the labels are, such as "true" or "trained-on".
        classes: names of the classes.
        group: processes that measure together: ``"auto"`` for all where a process group of
            ``torch.distributed`` is initialised, None for this one alone, or a group.

    Raises:
        DomainError: If labels are out of range, a setting is, or no family applies.
        ShapeError: If there is no example, or inputs, targets and truth differ in number.
        UnknownNameError: If a layer or family does not exist.
        ProcessError: If another process failed, with its message.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> x, y = torch.randn(40, 3), torch.arange(40) % 2
        >>> found = survey(model, (x, y), families=["representation", "kernel"])
        >>> found.layers, found.record.contents["data"]["class_counts"]
        (['0', '2'], [20, 20])
    """
    processes = Processes.of(group)
    with processes.together():
        settings = Settings.of(
            families,
            sizes,
            processes=processes,
            layers=layers,
            loss=loss,
            readout=readout,
            pool=pool,
            image_shape=image_shape,
            nulls=nulls,
            bootstrap=bootstrap,
            memory_limit=memory_limit,
            device=device,
            batch_size=batch_size,
            batch_fn=batch_fn,
            seed=seed,
            generator=generator,
            tangent=tangent,
        )
        labeling = Labeling(name, split, labels, classes)
        record = _measured(model, (data, targets, truth), settings, labeling, progress)
    return Survey(record, writes=processes.rank == 0)


def _measured(
    model: nn.Module,
    data: tuple[Any, Any, Any],
    settings: Settings,
    labeling: Labeling,
    progress: Progress,
) -> Record:
    inner = unwrap(model)
    settings.require_common(call="survey")
    with untouched(inner):
        everything, place = reusable(data[0]), place_of(inner, settings.device)
        probe = draw_probe(everything, settings, data[1], place, truth=data[2])
        return measure_model(inner, everything, probe, settings, labeling, progress=progress)


def place_of(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Where a model's inputs should lie."""
    if device is not None:
        return torch.device(device)
    tensors = [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")
