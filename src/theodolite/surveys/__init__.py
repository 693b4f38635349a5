"""Model and data to Survey, training loop to History, in as few passes as possible."""

from theodolite.surveys._compare import Comparison, compare, load
from theodolite.surveys._history import History
from theodolite.surveys._measure import measure_model, versions
from theodolite.surveys._monitor import MONITOR_SIZES, Monitor
from theodolite.surveys._probe import Probe, draw_probe
from theodolite.surveys._result import Survey
from theodolite.surveys._settings import FAMILIES, SIZES, Labeling, Loss, Pool, Settings
from theodolite.surveys._shown import Shown
from theodolite.surveys._survey import place_of, survey

__all__ = [
    "FAMILIES",
    "MONITOR_SIZES",
    "SIZES",
    "Comparison",
    "History",
    "Labeling",
    "Loss",
    "Monitor",
    "Pool",
    "Probe",
    "Settings",
    "Shown",
    "Survey",
    "compare",
    "draw_probe",
    "load",
    "measure_model",
    "place_of",
    "survey",
    "versions",
]
