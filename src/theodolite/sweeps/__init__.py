"""Many runs of one function, in worker processes or with Ray."""

from theodolite.sweeps.processes import Failure, Keep, Report, Work, run_in_processes
from theodolite.sweeps.ray_tune import RayResources, run_on_ray

__all__ = [
    "Failure",
    "Keep",
    "RayResources",
    "Report",
    "Work",
    "run_in_processes",
    "run_on_ray",
]
