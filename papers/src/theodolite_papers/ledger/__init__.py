"""The papers' experiments as runnable, checked studies, and the ledger of their claims."""

from theodolite_papers.ledger._claims import Claim, Judgment, Verdict, judge
from theodolite_papers.ledger._correlations import pearson, spearman
from theodolite_papers.ledger._ledger import write_ledger
from theodolite_papers.ledger._panels import Bars, Heat, Line, Panel, Points, Tiles, mean_and_error
from theodolite_papers.ledger._papers import PAPERS, Erratum, Paper
from theodolite_papers.ledger._registry import all_studies, find_study
from theodolite_papers.ledger._results import Measured, Result, Results
from theodolite_papers.ledger._run import check_study, run_study
from theodolite_papers.ledger._store import load_results
from theodolite_papers.ledger._study import SIZES, Study, Trial
from theodolite_papers.ledger._sweep import SweepSettings, SweepTracker, sweep_study

__all__ = [
    "PAPERS",
    "SIZES",
    "Bars",
    "Claim",
    "Erratum",
    "Heat",
    "Judgment",
    "Line",
    "Measured",
    "Panel",
    "Paper",
    "Points",
    "Result",
    "Results",
    "Study",
    "SweepSettings",
    "SweepTracker",
    "Tiles",
    "Trial",
    "Verdict",
    "all_studies",
    "check_study",
    "find_study",
    "judge",
    "load_results",
    "mean_and_error",
    "pearson",
    "run_study",
    "spearman",
    "sweep_study",
    "write_ledger",
]
