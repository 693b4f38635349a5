"""Some measures as ``torchmetrics.Metric``, batch by batch: states of fixed size, exact results.

``theodolite.measures`` has the formulas and all other measures, for arrays of all examples.

A metric gives the value of the whole stream, for any batches, any order and any number of
processes. States are float64 sums about the mean of each process's first batch, or triangles of a
QR decomposition. Merging moves them to one mean, so that large means cost no digits.
"""

from theodolite.metrics._cka import PairCKA, TargetCKA
from theodolite.metrics._representation import RepresentationAlignment
from theodolite.metrics._vectors import CovarianceState, VectorAlignment

__all__ = [
    "CovarianceState",
    "PairCKA",
    "RepresentationAlignment",
    "TargetCKA",
    "VectorAlignment",
]
