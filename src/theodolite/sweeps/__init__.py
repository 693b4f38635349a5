"""Many runs of one function: spaces of settings, and engines that run their points."""

from theodolite.sweeps.processes import run_in_processes
from theodolite.sweeps.ray_tune import RayResources, run_on_ray
from theodolite.sweeps.space import LogUniform, Point, Space, Uniform, point_name
from theodolite.sweeps.work import Failure, Report

__all__ = [
    "Failure",
    "LogUniform",
    "Point",
    "RayResources",
    "Report",
    "Space",
    "Uniform",
    "point_name",
    "run_in_processes",
    "run_on_ray",
]
