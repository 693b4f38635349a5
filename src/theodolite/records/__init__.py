"""Frozen results on disk: strict JSON beside npz files, never pickle, and no torch."""

from theodolite.records._disk import replace_file
from theodolite.records._files import (
    LARGEST_RECORD,
    SCHEMA,
    Estimate,
    Record,
    holds_run,
    load_record,
    save_record,
)
from theodolite.records._layout import require_transfer
from theodolite.records._runs import (
    HistoryWriter,
    Latest,
    Run,
    free_folder,
    latest_numbers,
    load_run,
    save_run,
    save_step,
)
from theodolite.records._tables import (
    differences_text,
    frame_of,
    layer_table,
    summary_text,
    unreadable_layers,
)
from theodolite.records._words import (
    CERTAINTIES,
    FAMILIES,
    MEMORISED,
    PROBES,
    Answer,
    Certainty,
    Family,
    Note,
    listed,
)

__all__ = [
    "CERTAINTIES",
    "FAMILIES",
    "LARGEST_RECORD",
    "MEMORISED",
    "PROBES",
    "SCHEMA",
    "Answer",
    "Certainty",
    "Estimate",
    "Family",
    "HistoryWriter",
    "Latest",
    "Note",
    "Record",
    "Run",
    "differences_text",
    "frame_of",
    "free_folder",
    "holds_run",
    "latest_numbers",
    "layer_table",
    "listed",
    "load_record",
    "load_run",
    "replace_file",
    "require_transfer",
    "save_record",
    "save_run",
    "save_step",
    "summary_text",
    "unreadable_layers",
]
