"""Studies and verdicts as tables and documents."""

from collections.abc import Mapping, Sequence
from typing import Any

from theodolite_papers.ledger import Results, Study, Verdict

__all__ = ["print_studies", "print_verdicts", "study_document", "verdict_document"]

_STYLES = {"holds": "green", "fails": "red", "mixed": "yellow"}


def study_document(study: Study) -> dict[str, Any]:
    """A study as JSON shows it."""
    from theodolite_papers.ledger import plain_config, settings_of

    return {
        "id": study.id,
        "title": study.title,
        "shows": list(study.shows),
        "sizes": {size: plain_config(config) for size, config in study.configs.items()},
        "seeds": {size: list(study.seeds_at(size)) for size in study.configs},
        "points": {size: len(study.points_at(size)) for size in study.configs},
        "settings": {
            size: [vars(setting) for setting in settings_of(study, size)] for size in study.configs
        },
        "stand_in": dict(study.stand_in),
        "remarks": dict(study.remarks),
        "not_run": dict(study.not_run),
        "claims": [{"id": claim.id, "text": claim.text} for claim in study.claims],
    }


def verdict_document(study: Study, verdict: Verdict, runs: Results) -> dict[str, Any]:
    """A verdict as JSON shows it: what was run beside the paper, and how firm it is.

    ``settings`` are those in which the runs are not as published, with the ratio of numbers;
    ``stand_in`` is null where nothing stands in; ``resampled`` is null for one seed; ``records``
    counts the runs, and those that say which commit, device and claims they were made with.
    """
    from theodolite_papers.ledger import differences, origin_of

    origin = origin_of(study, verdict.claim.id)
    return {
        "claim": verdict.claim.id,
        "text": verdict.claim.text,
        "whose": None if origin is None else vars(origin),
        "size": verdict.size,
        "settings": [
            {"name": one.name, "ours": one.ours, "paper": one.paper, "ratio": one.ratio}
            for one in differences(study, verdict.size, runs)
        ],
        "stand_in": study.stand_in.get(verdict.size),
        "status": verdict.status,
        "seeds": verdict.seeds,
        "resampled": verdict.resampled,
        "records": {
            "runs": len(runs),
            "with_provenance": sum(bool(run.claims) for run in runs),
            "commits": sorted({run.commit for run in runs if run.commit}),
        },
        "published": {name: float(value) for name, value in verdict.claim.published.items()},
        "outcomes": {
            label: {"holds": one.holds, "numbers": dict(one.numbers)}
            for label, one in verdict.outcomes.items()
        },
    }


def print_studies(studies: Sequence[Study]) -> None:
    """One line per study."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    table.add_column("study", no_wrap=True)  # to be copied: never cut
    for title in ("shows", "title", "sizes", "claims"):
        table.add_column(title, overflow="fold")
    for study in studies:
        sizes = " ".join(study.configs)
        shows = ", ".join(study.shows)
        table.add_row(study.id, shows, study.title, sizes, str(len(study.claims)))
    Console().print(table)


def print_verdicts(study: Study, size: str, verdicts: Sequence[Verdict], runs: Results) -> None:
    """What was run and what stood in, then each claim with whose it is; one seed is dim."""
    from rich.console import Console
    from rich.text import Text

    from theodolite_papers.ledger import Sized, origin_text

    console = Console()
    sized = Sized.of(study, size, runs, verdicts)
    console.print(Text(sized.description(), style="bold"), soft_wrap=True)
    for verdict in verdicts:
        style = "dim" if verdict.seeds == 1 else _STYLES.get(verdict.status, "bold")
        said, claim = Text(sized.verdict_text(verdict), style=style), verdict.claim
        whose = Text(f"({origin_text(study, claim.id)})", style="dim")
        console.print(said, Text(claim.text), whose, soft_wrap=True)
        for label, one in verdict.outcomes.items():
            numbers = Text(f"          {label}: {_numbers(one.numbers)}", style="dim")
            console.print(numbers, soft_wrap=True)


def _numbers(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
