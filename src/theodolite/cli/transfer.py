"""``theodolite transfer DATA MODEL...``: which model to start from, with a forecast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from warnings import catch_warnings, simplefilter

import typer

from theodolite.cli.terminal import (
    SCALES,
    CommandError,
    Files,
    print_json,
    progress_bar,
    require_writable,
)
from theodolite.errors import UnwrittenWarning
from theodolite.records import free_folder

_MODELS = (
    "FILE.py:CALLABLE, PACKAGE.MODULE:CALLABLE, timm:NAME or hf:NAME; NAME=MODEL gives a model "
    "another name. Files and packages are executed: name only code that you trust."
)
_DATA = (
    "Labelled examples of the new task: digits, FILE.npz (x_train, y_train), a folder of images "
    "with one sub-folder per class, or a data set of another package."
)

# The marker keeps the line breaks.
EXAMPLES = """\b
theodolite transfer photos/ timm:resnet18 timm:mobilenetv2_100 --image-size 224 --rgb
theodolite transfer digits small=net.py:small large=net.py:large -o runs/digits
theodolite transfer data.npz net.py:Net --no-tangent
"""


@dataclass(frozen=True)
class _Resized:
    """Images in another size; on request grey images get three equal channels."""

    size: int | None
    rgb: bool

    def __call__(self, images: Any) -> Any:
        """One batch."""
        from torch.nn import functional

        if images.ndim != 4:
            raise CommandError(
                "--image-size, --rgb: expected images (n, c, h, w), got inputs of shape "
                f"{tuple(images.shape)}; leave these options out"
            )
        if self.rgb and images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        if self.size is None:
            return images
        sides = (self.size, self.size)
        return functional.interpolate(images, sides, mode="bilinear", antialias=True)


def transfer(  # one parameter per option is how typer reads a command
    data: Annotated[str, typer.Argument(metavar="DATA", help=_DATA, show_default=False)],
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help=_MODELS, show_default=False)],
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    scale: Annotated[
        str,
        typer.Option(help=SCALES),
    ] = "auto",
    flatten: Annotated[bool, typer.Option(help="Pass every example as one vector.")] = False,
    image_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="SIDE", help="Resize images to this number of pixels."),
    ] = None,
    rgb: Annotated[
        bool, typer.Option("--rgb", help="Repeat grey images in three channels.")
    ] = False,
    examples: Annotated[int, typer.Option(min=20, help="Largest number of examples.")] = 2000,
    tangent: Annotated[
        bool, typer.Option(help="Measure tangent kernels; without them only features are compared.")
    ] = True,
    tangent_examples: Annotated[
        int, typer.Option(min=20, help="Largest number of examples for tangent kernels.")
    ] = 400,
    head: Annotated[
        str,
        typer.Option(help="Layer that a new head replaces; none if the model returns features."),
    ] = "auto",
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    seconds: Annotated[
        float | None,
        typer.Option(help="Time limit in seconds for all models, which then use fewer examples."),
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="E.g. 4GB; larger tangent kernels are not measured.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. [default: cuda if there is a GPU]")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the examples and the new head.")
    ] = 0,
    name: Annotated[str, typer.Option(help="Title of the report.")] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder to write; an interrupted run resumes, a finished run is kept. "
            "[default: runs/transfer-DATA]",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that the folder holds.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Rank models for a new task, with a forecast of their accuracy after fine-tuning.

    Nothing is trained. Regression with the model's features and with its tangent kernel predicts
    every example from all the others. Prints the ranking, where to cut each model and the
    accuracy with more labels.
    """
    from torch import nn

    from theodolite.cli.data import DataSource, load_examples, resolve_device
    from theodolite.surveys import transfer as measured

    stem = Path(data).stem or "data"
    folder = output or Path("runs") / f"transfer-{stem}"
    require_writable(folder)
    folder = free_folder(folder, overwrite=overwrite)
    place = resolve_device(device)
    given = load_examples(DataSource(data, split, scale, flatten, False, seed), nn.Identity())
    prepare = _Resized(image_size, rgb) if image_size is not None or rgb else None
    with catch_warnings(), progress_bar(shown=not json_) as show:
        simplefilter("ignore", UnwrittenWarning)  # the command reports this after the ranking
        result = measured(
            _sources(models),
            given.batch,
            prepare=prepare,
            workers=workers,
            folder=folder,
            overwrite=overwrite,
            progress=show,
            examples=examples,
            tangent=tangent,
            tangent_examples=tangent_examples,
            head=None if head == "none" else head,
            seconds=seconds,
            memory_limit=memory_limit,
            device=place,
            seed=seed,
            name=name or given.name,
        )
    files = Files()
    files.problem = result.unwritten or ""
    files.folder = None if result.unwritten else folder
    files.report = files.write(lambda: result.to_html(folder / "report.html"))
    if json_:
        answers = [answer.to_entry() for answer in result.answers]
        document = files.document() | {"answers": answers}
        print_json(document | {"contents": dict(result.record.contents)})
    else:
        counted = "1 model" if len(models) == 1 else f"{len(models)} models"
        typer.secho(f"{counted} on {data} ({split})", bold=True)
        typer.echo(f"{result.summary()}\n\n{files.lines()}")
    files.print_problem()
    files.require_written()


def _sources(words: list[str]) -> dict[str, str]:
    """``NAME=MODEL`` or ``MODEL``, each name once."""
    found: dict[str, str] = {}
    for word in words:
        name, separator, model = word.partition("=")
        if not separator or ":" in name:
            name, model = word, word
        if not name or not model:
            raise CommandError(f"MODEL: expected MODEL or NAME=MODEL, got {word!r}")
        if name in found:
            raise CommandError(
                f"MODEL: expected each name once, got {name!r} twice; give another name with "
                "NAME=MODEL"
            )
        found[name] = model
    return found
