"""Records to pages, plots and fragments for notebooks; a report never sees a model."""

from theodolite.report._plot import plot
from theodolite.report._write import notebook_html, write_html

__all__ = ["notebook_html", "plot", "write_html"]
