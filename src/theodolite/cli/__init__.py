"""The ``theodolite`` command: one file per sub-command; each parses, calls a function and prints.

Modules of this package import nothing large at the top, so that ``--help`` answers at once.
"""

from theodolite.cli.app import app, main

__all__ = ["app", "main"]
