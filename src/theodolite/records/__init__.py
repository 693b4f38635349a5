"""Frozen results on disk: strict JSON beside npz files, never pickle, and no torch."""

from theodolite.records._files import SCHEMA, Estimate, Record, load_record, save_record
from theodolite.records._layout import require_transfer
from theodolite.records._runs import (
    Latest,
    Run,
    free_folder,
    holds_run,
    latest_numbers,
    load_run,
    save_run,
    save_step,
)
from theodolite.records._tables import (
    differences_text,
    frame_of,
    summary_text,
    unreadable_layers,
)
from theodolite.records._words import FAMILIES, READOUTS, Answer, Family, listed

__all__ = [
    "FAMILIES",
    "READOUTS",
    "SCHEMA",
    "Answer",
    "Estimate",
    "Family",
    "Latest",
    "Record",
    "Run",
    "differences_text",
    "frame_of",
    "free_folder",
    "holds_run",
    "latest_numbers",
    "listed",
    "load_record",
    "load_run",
    "require_transfer",
    "save_record",
    "save_run",
    "save_step",
    "summary_text",
    "unreadable_layers",
]
