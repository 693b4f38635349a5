"""Many runs of one function: spaces of settings, and worker processes or Ray for their points."""

from theodolite.sweeps.processes import Failure, Keep, Report, Work, run_in_processes
from theodolite.sweeps.ray_tune import RayResources, run_on_ray
from theodolite.sweeps.space import LogUniform, Point, Space, Uniform, point_name

__all__ = [
    "Failure",
    "Keep",
    "LogUniform",
    "Point",
    "RayResources",
    "Report",
    "Space",
    "Uniform",
    "Work",
    "point_name",
    "run_in_processes",
    "run_on_ray",
]
