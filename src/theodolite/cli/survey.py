"""``theodolite survey MODEL DATA``: measure a model once, write the record and a report."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EXAMPLES", "survey"]

_MODEL = (
    "FILE.py:CALLABLE, PACKAGE.MODULE:CALLABLE (a module, or something that returns one), "
    "timm:NAME or hf:NAME."
)

_DATA = (
    "digits, FILE.npz (x_train, y_train, x_test, y_test), a folder of images, one sub-folder per "
    "class, or a name that a package adds (mnist, cifar10: theodolite-papers). For a model with "
    "several inputs, forward(left, right): FILE.npz with left_train, right_train and y_train, or "
    "the same with _test; the arrays are passed as they are."
)

# The marker keeps the lines as they are.
EXAMPLES = """\b
theodolite survey net.py:Net digits --arg classes=10
theodolite survey net.py:Net data.npz --checkpoint net.pt --split test -o runs/net
theodolite survey net.py:Net shuffled.npz --checkpoint net.pt --truth original.npz
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
    truth: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:KEY]",
            help="True labels, where DATA has others (shuffled, noisy): FILE.npy, FILE.npz "
            "(y_train or y_test), FILE.npz:KEY, or a KEY of DATA. Adds cka_truth beside "
            "cka_target.",
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Scaling of the inputs; auto takes pixels to [0, 1].")
    ] = "auto",
    flatten: Annotated[bool, typer.Option(help="Pass every example as one vector.")] = False,
    as_is: Annotated[
        bool,
        typer.Option(
            "--as-is",
            help="Leave the axes of FILE.npz alone: (n, T, d) holds sequences, not grey images.",
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
            help="Name or pattern of a layer; may be repeated. [default: blocks and layers with "
            "weight matrices]",
        ),
    ] = None,
    readout: Annotated[
        str | None, typer.Option(help="last, mean or cls, for outputs (n, T, c).")
    ] = None,
    image_shape: Annotated[
        str | None,
        typer.Option(
            metavar="HxW", help="Of flat inputs, for pictures of eigenvectors: 8x8 or 3x32x32."
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(min=2, help="Use at most so many examples; some families use fewer."),
    ] = None,
    nulls: Annotated[int, typer.Option(min=0, help="Permutations of the labels.")] = 20,
    bootstrap: Annotated[int, typer.Option(min=0, help="Half-samples for standard errors.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per forward pass.")] = 256,
    memory_limit: Annotated[
        str | None, typer.Option(help="E.g. 4GB; planned runs beyond it are refused.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [default: the best]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, data and permutations.")] = 0,
    name: Annotated[str, typer.Option(help="What the report calls this survey.")] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder. [default: runs/MODEL-DATA]"),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Measure the angles inside a model and write the numbers and a report.

    Prints one row per layer with the headline number of each family.
    """
    from rich.console import Console

    from theodolite.cli.models import ModelSource, model_arguments
    from theodolite.cli.probes import DataSource
    from theodolite.cli.processes import is_first
    from theodolite.cli.surveying import Options, survey_model
    from theodolite.cli.tables import print_headlines, print_json, run_document

    source = ModelSource(model, model_arguments(arg or ()), checkpoint, seed)
    options = Options(
        families=tuple(family or ()),
        layers=tuple(layer or ()),
        readout=readout,
        image_shape=image_shape,
        examples=examples,
        nulls=nulls,
        bootstrap=bootstrap,
        batch_size=batch_size,
        memory_limit=memory_limit,
        device=device,
        name=name,
        truth=truth,
    )
    folder = output or Path("runs") / f"{_word(model)}-{_word(data)}"
    run, report = survey_model(
        source, DataSource(data, split, scale, flatten, as_is, seed), options, folder, not json_
    )
    if not is_first():
        return
    if json_:
        print_json(run_document(run, {"folder": str(folder), "report": str(report)}))
        return
    console = Console()
    print_headlines(console, run.steps[-1], f"{model} on {data} ({split})")
    console.print(f"record {folder}\nreport {report}", soft_wrap=True, highlight=False)


def _word(text: str) -> str:
    """The part of an argument that makes a folder's name."""
    stem = Path(text).stem if ":" not in text else text.rpartition(":")[2]
    kept = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)
    return kept.strip("-.") or "run"
