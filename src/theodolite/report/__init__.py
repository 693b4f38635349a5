"""Records to pages, plots and fragments for notebooks; a report never sees a model."""

from theodolite.report._gallery import Exhibit, find_exhibits, write_gallery
from theodolite.report._plot import plot
from theodolite.report._write import notebook_html, write_html

__all__ = [
    "Exhibit",
    "find_exhibits",
    "notebook_html",
    "plot",
    "write_gallery",
    "write_html",
]
