"""``theodolite survey MODEL DATA``: measure a model once, write the record and a report."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theodolite.cli.terminal import (
    SCALES,
    CommandError,
    Files,
    fail_on,
    for_command,
    keyword_arguments,
    print_json,
    require_conditions,
    require_writable,
    run_document,
)
from theodolite.records import free_folder

if TYPE_CHECKING:
    import torch


_MODEL = (
    "FILE.py:CALLABLE, PACKAGE.MODULE:CALLABLE (an nn.Module, or a function that returns one), "
    "timm:NAME or hf:NAME. The file or package is executed: name only code that you trust."
)

_DATA = (
    "digits, FILE.npz (x_train, y_train, x_test, y_test), a folder of images with one sub-folder "
    "per class, or a data set of another package (mnist, cifar10 of theodolite-papers). If the "
    "model has several inputs, such as forward(left, right), FILE.npz holds left_train, "
    "right_train and y_train, or the same with _test. These arrays are not scaled or reshaped."
)

# The marker keeps the line breaks.
EXAMPLES = """\b
theodolite survey net.py:Net digits --arg classes=10
theodolite survey net.py:Net data.npz --checkpoint net.pt --held-out -o runs/net
theodolite survey net.py:Net noisy.npz --checkpoint net.pt --truth original.npz
theodolite survey net.py:Net data.npz --held-out --json --fail-on memorising > survey.json
theodolite survey net.py:Net data.npz --option half_samples=20 --option 'sizes={"tangent": 100}'
"""


def survey(  # one parameter per option is how typer reads a command
    model: Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)],
    data: Annotated[str, typer.Argument(metavar="DATA", help=_DATA, show_default=False)],
    checkpoint: Annotated[
        Path | None, typer.Option(help="Weights to load; only tensors are read from the file.")
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Argument of CALLABLE, e.g. num_classes=10."),
    ] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="Also measure the test split: how much of the fit (accuracy above chance) "
            "carries over to it.",
        ),
    ] = False,
    truth: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:KEY]",
            help="True labels, if those of DATA are random or noisy: FILE.npy, FILE.npz "
            "(y_train or y_test), FILE.npz:KEY, or a KEY of DATA. "
            "Adds a column: CKA to truth.",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(help=SCALES),
    ] = "auto",
    flatten: Annotated[bool, typer.Option(help="Pass every example as one vector.")] = False,
    as_is: Annotated[
        bool,
        typer.Option(
            "--as-is",
            help="Keep the axes of FILE.npz: (n, T, d) holds sequences, not grey images.",
        ),
    ] = False,
    family: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="representation, covariance, kernel, tangent or gradient; may be repeated. "
            "[default: all]",
        ),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name or pattern of a layer; may be repeated. [default: layers with parameters]",
        ),
    ] = None,
    readout: Annotated[
        str | None,
        typer.Option(
            help="Output to use if the model has outputs at several positions: last, mean (of"
            " all), cls (the first) or loss (the mean loss over positions with labels)."
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(min=2, help="Largest number of examples; some families use fewer."),
    ] = None,
    permutations: Annotated[
        int, typer.Option(min=0, help="Number of label permutations for chance levels.")
    ] = 20,
    seconds: Annotated[
        float,
        typer.Option(
            min=0, help="Time limit in seconds; families then use fewer examples. 0: no limit."
        ),
    ] = 30.0,
    memory_limit: Annotated[
        str | None, typer.Option(help="E.g. 4GB; larger surveys are refused before they start.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. [default: cuda if there is a GPU]")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of weights, data and permutations.")
    ] = 0,
    name: Annotated[str, typer.Option(help="Title of the report. [default: MODEL on DATA]")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Any other field of theodolite.surveys.SurveyOptions; VALUE is JSON or text. May"
            " be repeated.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder to write; a number is added to the name if it holds a run. "
            "[default: runs/MODEL-DATA]",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that the folder holds.")
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print answers and numbers as JSON.")
    ] = False,
    fail_on_: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            metavar="memorising|undecided",
            help="Exit with code 3 if the first answer says this; may be repeated. "
            'memorising: the answer is "memorised" or "mostly memorised".',
        ),
    ] = None,
) -> None:
    """Measure alignment inside a model and write the numbers and a report.

    Prints answers (did it learn or memorise, which layer predicts the labels best), then a table:
    one row per layer, chance levels in brackets.
    """
    from theodolite import surveys
    from theodolite.cli.data import (
        DataSource,
        in_precision_of,
        load_examples,
        load_truth,
        require_fit,
        resolve_device,
    )
    from theodolite.surveys.named_models import ModelSource, build_model

    require_conditions(fail_on_ or ())
    source = ModelSource(model, keyword_arguments("--arg", arg or ()), checkpoint, seed)
    options: dict[str, Any] = {
        "families": family or None,
        "layers": layer or None,
        "readout": readout,
        "sizes": None if examples is None else _sizes(examples, surveys.SIZES),
        "permutations": permutations,
        "memory_limit": memory_limit,
        "seed": seed,
        **keyword_arguments("--option", option or ()),
    }
    folder = output or Path("runs") / f"{_folder_name(model)}-{_folder_name(data)}"
    require_writable(folder)
    folder = free_folder(folder, overwrite=overwrite)
    origin = DataSource(data, split, scale, flatten, as_is, seed)
    if held_out and split != "train":
        raise CommandError("--held-out: the test split is held out; do not pass --split")
    if truth is not None and family and "kernel" not in family:
        raise CommandError("--truth: only the kernel family uses true labels; add --family kernel")
    with _process_group(resolve_device(device)) as place:
        network = build_model(source).to(place)
        given = in_precision_of(network, load_examples(origin, network))
        labels = None if truth is None else load_truth(truth, origin, given)
        others = None
        if held_out:
            other = load_examples(replace(origin, split="test"), network)
            others = in_precision_of(network, other).batch
        require_fit(network, given, readout)  # unlike the survey's error, this one names options
        options |= {
            "device": place,
            "name": name or f"{_folder_name(model)} on {given.name}",
            "split": given.split,
        }
        options |= {"classes": given.classes or None}
        result = surveys.survey(
            network,
            given.batch,
            held_out=others,
            truth=labels,
            seconds=seconds or None,
            progress=False if json_ else "auto",
            options={key: value for key, value in options.items() if value is not None},
        )
    files = Files()
    files.folder = files.write(lambda: result.save(folder, overwrite=overwrite))
    shown = for_command(result)
    files.report = files.write(lambda: shown.to_html((files.folder or folder) / "report.html"))
    if not _is_first():
        return
    if json_:
        print_json(run_document(shown.run, files.document()))
    else:
        typer.echo(f"{shown.summary()}\n\n{files.lines()}")
    files.print_problem()
    fail_on(fail_on_ or (), result.answers)
    files.require_written()


def _sizes(limit: int, usual: Any) -> dict[str, int]:
    """Limit the examples of all families; smaller defaults stay."""
    return {
        family: limit
        if size is None or family in ("representation", "kernel")
        else min(size, limit)
        for family, size in usual.items()
    }


def _folder_name(text: str) -> str:
    """The part of an argument that becomes the name of a folder."""
    stem = Path(text).stem if ":" not in text else text.rpartition(":")[2]
    kept = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)
    return kept.strip("-.") or "run"


def _is_first() -> bool:
    """Whether this process prints and writes: the first one of those that a launcher started."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def _process_group(device: "torch.device") -> "Iterator[torch.device]":
    """Join all processes of a launcher to one group; yield the device of this one."""
    import torch

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    own = device
    if device.type == "cuda" and device.index is None:
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(own)
    # A later import would keep the group alive in default arguments, and abort the process at exit.
    importlib.import_module("torch.distributed.nn.functional")
    torch.distributed.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        yield own
    finally:
        torch.distributed.destroy_process_group()
