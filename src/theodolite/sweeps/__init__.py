"""Many runs of one function: spaces of settings, and engines that run their points."""

from theodolite.sweeps.processes import run_in_processes
from theodolite.sweeps.space import Point, Space, point_name

__all__ = ["Point", "Space", "point_name", "run_in_processes"]
