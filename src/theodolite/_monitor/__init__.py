"""Training loop to History."""

from theodolite._monitor._history import History
from theodolite._monitor._monitor import MONITOR_SIZES, Monitor

__all__ = ["MONITOR_SIZES", "History", "Monitor"]
