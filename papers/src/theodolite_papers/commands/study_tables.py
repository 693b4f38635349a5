"""Studies and verdicts as tables and documents."""

from collections.abc import Mapping, Sequence
from typing import Any

from theodolite_papers.ledger import Results, Study, Verdict, verdict_document

__all__ = ["print_studies", "print_verdicts", "study_document", "verdict_document"]

_STYLES = {"holds": "green", "fails": "red", "mixed": "yellow"}


def study_document(study: Study) -> dict[str, Any]:
    """A study as a JSON document."""
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


def print_studies(studies: Sequence[Study]) -> None:
    """Two lines per study: id and title, then what it shows, its sizes and its claims."""
    from typer import echo

    for study in studies:
        shows, sizes, claims = ", ".join(study.shows), ", ".join(study.configs), len(study.claims)
        echo(f" {study.id}  {study.title}")
        echo(f"     {shows}; {sizes}; {claims} claim{'s' if claims > 1 else ''}")
    echo(f"Run one with: theodolite study run {studies[0].id} --size smoke")


def print_verdicts(study: Study, size: str, verdicts: Sequence[Verdict], runs: Results) -> None:
    """The size that was run and its stand-in, then the verdict on each claim, then their legend."""
    from rich.console import Console
    from rich.text import Text

    from theodolite_papers.ledger import (
        SOURCES,
        VERDICTS,
        Sized,
        decider_text,
        origin_of,
        origin_text,
    )

    console = Console()
    sized = Sized.of(study, size, runs, verdicts)
    console.print(Text(sized.description(), style="bold"), soft_wrap=True)
    for verdict in verdicts:
        style = _STYLES.get(verdict.status, "dim")
        said, claim = Text(f"{sized.verdict_text(verdict)}:", style=style), verdict.claim
        whose = Text(f"({origin_text(study, claim.id)})", style="dim")
        console.print(said, Text(claim.text), whose, soft_wrap=True)
        if verdict.decider is not None:
            console.print(Text(f"          {decider_text(verdict.decider)}"), soft_wrap=True)
        for label, one in verdict.outcomes.items():
            numbers = Text(f"          {label}: {_numbers(one.numbers)}", style="dim")
            console.print(numbers, soft_wrap=True)
    origins = [origin_of(study, verdict.claim.id) for verdict in verdicts]
    sources = dict.fromkeys(origin.source for origin in origins if origin is not None)
    legend = {source: SOURCES[source] for source in sources}
    legend |= {verdict.status: VERDICTS[verdict.status] for verdict in verdicts}
    for word, meaning in legend.items():
        console.print(Text(f"({word}: {meaning.rstrip('.')}.)", style="dim"), soft_wrap=True)


def _numbers(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in numbers.items())
