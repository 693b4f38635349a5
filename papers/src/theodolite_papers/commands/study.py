"""``theodolite study list | run | check | gallery | ledger``: the papers' experiments."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from theodolite_papers.ledger import Results as Runs
    from theodolite_papers.ledger import Study

__all__ = [
    "Json",
    "Results",
    "Size",
    "StudyName",
    "require_folder",
    "resumable",
    "seeds_from",
    "show_verdicts",
    "study_app",
    "study_at",
]

study_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Results = Annotated[Path, typer.Option(help="Folder of the records, one per run.")]
Size = Annotated[
    str | None,
    typer.Option(
        help="smoke (seconds), lite (minutes), reduced, or published (as in the paper). "
        "[default: lite, or the next larger that the study has]",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
StudyName = Annotated[
    str, typer.Argument(metavar="STUDY", help="Id, such as imani2022.fig7.", show_default=False)
]
_FOLDER = Path("study-results")


@study_app.command("list")
def list_studies(json_: Json = False) -> None:
    """List every study: its paper, figures, sizes and claims."""
    from theodolite.cli.terminal import print_json
    from theodolite_papers.commands.study_tables import print_studies, study_document
    from theodolite_papers.ledger import all_studies

    studies = list(all_studies().values())
    if json_:
        print_json([study_document(study) for study in studies])
    else:
        print_studies(studies)


@study_app.command("run")
def run(
    study: StudyName,
    size: Size = None,
    results: Results = _FOLDER,
    seeds: Annotated[
        str, typer.Option(help="Seeds, such as 1,2,7 or 1-5. [default: those of the study]")
    ] = "",
    workers: Annotated[int, typer.Option(min=1, help="Number of processes, one thread each.")] = 1,
    device: Annotated[str, typer.Option(help="Device to train on: cpu or cuda.")] = "cpu",
    json_: Json = False,
) -> None:
    """Run a study and judge its claims. Seeds with a record are skipped."""
    from theodolite.cli.data import resolve_device
    from theodolite.cli.terminal import progress_bar
    from theodolite_papers.ledger import run_study

    resolve_device(device)
    found, size = study_at(study, size)
    with resumable(), progress_bar(shown=not json_) as report:
        runs = run_study(
            found, size, results=results, seeds=seeds_from(seeds), workers=workers, device=device,
            report=report,
        )  # fmt: skip
    show_verdicts(found, size, runs, json_, made=results)


@study_app.command("check")
def check(
    study: StudyName, size: Size = None, results: Results = _FOLDER, json_: Json = False
) -> None:
    """Judge the claims of a study again from its records."""
    from theodolite_papers.ledger import load_results

    require_folder(results)
    found, size = study_at(study, size)
    show_verdicts(found, size, load_results(results, found, size), json_)


@study_app.command("withdraw")
def withdraw(
    study: StudyName,
    reason: Annotated[str, typer.Option(help="The reason that the ledger prints.")],
    size: Size = None,
    results: Results = _FOLDER,
) -> None:
    """Withdraw the records of a study before its claims change.

    The ledger keeps their verdicts.
    """
    from theodolite_papers.ledger import withdraw_study

    require_folder(results)
    found, size = study_at(study, size)
    typer.echo(f"withdrawn {withdraw_study(found, size, reason, results)}")


@study_app.command("gallery")
def gallery(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of records.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="HTML file to write. [default: gallery.html in DIR]"),
    ] = None,
    browse: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Write a page with a table of all records in a folder.

    It lists runs of studies, surveys and histories, also those in sub-folders.
    """
    from theodolite.advice.reasons import count_of
    from theodolite.cli.terminal import open_page
    from theodolite_papers.ledger.gallery import find_exhibits, write_gallery

    exhibits = find_exhibits(folder)
    page = write_gallery(exhibits, output or folder / "gallery.html")
    damaged = sum(bool(exhibit.damage) for exhibit in exhibits)
    note = f", {damaged} of them damaged" if damaged else ""
    typer.echo(f"gallery of {count_of(len(exhibits), 'record')}{note}: {page}")
    if browse:
        open_page(page)


@study_app.command("ledger")
def ledger(
    results: Annotated[Path, typer.Option(help="Folder of the records, one per run.")] = Path(
        "papers/records"
    ),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write the table to.")
    ] = Path("papers/records"),
    site: Annotated[
        Path | None,
        typer.Option(help="Write the pages of the documentation site to this folder instead."),
    ] = None,
) -> None:
    """Write the ledger: every claim with its numbers and verdict."""
    from theodolite_papers import alignment_zoo
    from theodolite_papers.alignment_zoo.explorer import write_explorer
    from theodolite_papers.ledger import write_ledger, write_site

    require_folder(results)
    if site is None:
        typer.echo(f"ledger {write_ledger(results, output)}")
    else:
        pages = [
            *write_site(results, site),
            write_explorer(alignment_zoo.load(), site / "zoo.html"),
        ]
        typer.echo(f"{len(pages)} pages in {site}")


def study_at(name: str, size: str | None) -> tuple["Study", str]:
    """A study and the size to run; prints one line if the default size is not lite."""
    from theodolite_papers.ledger import find_study

    study = find_study(name)
    if size is None and study.default_size != "lite":
        typer.echo(f"{name} has no size lite: this is {study.default_size}", err=True)
    return study, size or study.default_size


def show_verdicts(
    study: "Study", size: str, runs: "Runs", json_: bool, made: Path | None = None
) -> None:
    """Print the verdicts on the claims, and where the records are that were made."""
    from theodolite.cli.terminal import print_json
    from theodolite_papers.commands.study_tables import print_verdicts, verdict_document
    from theodolite_papers.ledger import judge_study, own_results

    verdicts = judge_study(study, size, runs)
    own = own_results(study, size, runs)
    if json_:
        print_json([verdict_document(study, verdict, own) for verdict in verdicts])
    else:
        print_verdicts(study, size, verdicts, own)
        if made is not None:
            typer.echo(f"records {made / study.id / size}")


def seeds_from(text: str) -> list[int] | None:
    """``"1,4-6"`` as [1, 4, 5, 6]; None for the study's own."""
    from theodolite.cli.terminal import CommandError

    seeds: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise CommandError(f"--seeds: expected numbers such as 1,2,7 or 1-5, got {text!r}")
        seeds += range(int(first), int(last or first) + 1)
    if text and not seeds:
        raise CommandError(f"--seeds: expected at least one, got {text!r}; ranges go upwards: 1-5")
    return seeds or None


def require_folder(results: Path) -> None:
    """Refuse a missing folder, because a typing error would look like 'nothing was run'."""
    from theodolite.cli.terminal import CommandError

    if not results.is_dir():
        raise CommandError(
            f"--results: expected a folder of records, {str(results)!r} does not exist; "
            "'theodolite study run STUDY --results FOLDER' makes one"
        )


@contextmanager
def resumable() -> Iterator[None]:
    """Say after Ctrl-C that finished runs are kept."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted; runs that were done are kept: the same command goes on", err=True)
        raise
