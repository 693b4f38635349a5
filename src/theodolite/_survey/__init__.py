"""Model and data to Survey: all five families, in as few passes as possible."""

from theodolite._survey._measure import measure_model, versions
from theodolite._survey._probe import Probe, draw_probe
from theodolite._survey._result import Survey
from theodolite._survey._settings import FAMILIES, SIZES, Labeling, Loss, Pool, Settings
from theodolite._survey._shown import Shown
from theodolite._survey._survey import place_of, survey
from theodolite._survey._tables import HEADLINES, headline_text

__all__ = [
    "FAMILIES",
    "HEADLINES",
    "SIZES",
    "Labeling",
    "Loss",
    "Pool",
    "Probe",
    "Settings",
    "Shown",
    "Survey",
    "draw_probe",
    "headline_text",
    "measure_model",
    "place_of",
    "survey",
    "versions",
]
