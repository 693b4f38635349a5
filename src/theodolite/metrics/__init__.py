"""Some measures batch by batch, as ``torchmetrics.Metric``: states of fixed size, exact results.

The formulas and all other measures are in ``theodolite.measures``, for arrays of all examples.

The value is that of the whole stream at once, whatever the batches, their order and the number of
processes. States are float64 sums about the mean of each process's first batch (or triangles of a
QR decomposition); merging rebases them, so that large means cost no digits.
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
