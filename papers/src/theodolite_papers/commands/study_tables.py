"""Studies and verdicts as tables and documents."""

from collections.abc import Mapping, Sequence
from typing import Any

from theodolite_papers.ledger import Study, Verdict

__all__ = ["print_studies", "print_verdicts", "study_document", "verdict_document"]

_STYLES = {"holds": "green", "fails": "red", "mixed": "yellow"}


def study_document(study: Study) -> dict[str, Any]:
    """A study as JSON shows it."""
    from theodolite_papers.ledger import plain_config

    return {
        "id": study.id,
        "title": study.title,
        "shows": list(study.shows),
        "sizes": {size: plain_config(config) for size, config in study.configs.items()},
        "seeds": {size: list(study.seeds_at(size)) for size in study.configs},
        "points": {size: len(study.points_at(size)) for size in study.configs},
        "stand_in": dict(study.stand_in),
        "not_run": dict(study.not_run),
        "claims": [{"id": claim.id, "text": claim.text} for claim in study.claims],
    }


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON shows it."""
    return {
        "claim": verdict.claim.id,
        "text": verdict.claim.text,
        "size": verdict.size,
        "status": verdict.status,
        "judgments": {
            label: {"holds": judgment.holds, "numbers": dict(judgment.numbers)}
            for label, judgment in verdict.outcomes.items()
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


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Each claim with its verdict and the numbers that decided."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for verdict in verdicts:
        style = _STYLES.get(verdict.status, "bold")
        console.print(
            Text(f"{verdict.status:9s}", style=style), Text(verdict.claim.text), soft_wrap=True
        )
        for label, judgment in verdict.outcomes.items():
            numbers = Text(f"          {label}: {_numbers(judgment.numbers)}", style="dim")
            console.print(numbers, soft_wrap=True)


def _numbers(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
