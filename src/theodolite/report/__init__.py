"""From records to pages, plots and notebook fragments; reports do not use models."""

from theodolite.advice.pairs import LayerPairs, LayerSimilarity
from theodolite.report import pages
from theodolite.report._transfer import transfer_fragment, write_transfer
from theodolite.report._write import notebook_html, plot, plot_pairs, write_html

__all__ = [
    "LayerPairs",
    "LayerSimilarity",
    "notebook_html",
    "pages",
    "plot",
    "plot_pairs",
    "transfer_fragment",
    "write_html",
    "write_transfer",
]
