"""Results on disk: strict JSON and npz files, without pickle and without torch."""

from theodolite.records._disk import made_folder, replace_file
from theodolite.records._estimates import NORMAL, Estimate, wilson
from theodolite.records._files import (
    LARGEST_RECORD,
    SCHEMA,
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
)
from theodolite.records._tables import (
    differences_text,
    frame_of,
    layer_table,
    table_of,
    unreadable_layers,
)
from theodolite.records._views import Chance, Group, Moment, RunView, groups_of, spaced
from theodolite.records._words import (
    CERTAINTIES,
    FAMILIES,
    MEMORISED,
    PROBES,
    Answer,
    Certainty,
    Family,
    Note,
    finite,
    listed,
    plain,
    shown,
)

__all__ = [
    "CERTAINTIES",
    "FAMILIES",
    "LARGEST_RECORD",
    "MEMORISED",
    "NORMAL",
    "PROBES",
    "SCHEMA",
    "Answer",
    "Certainty",
    "Chance",
    "Estimate",
    "Family",
    "Group",
    "HistoryWriter",
    "Latest",
    "Moment",
    "Note",
    "Record",
    "Run",
    "RunView",
    "differences_text",
    "finite",
    "frame_of",
    "free_folder",
    "groups_of",
    "holds_run",
    "latest_numbers",
    "layer_table",
    "listed",
    "load_record",
    "load_run",
    "made_folder",
    "plain",
    "replace_file",
    "require_transfer",
    "save_record",
    "save_run",
    "shown",
    "spaced",
    "table_of",
    "unreadable_layers",
    "wilson",
]
