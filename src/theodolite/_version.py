"""The version, in one place: package metadata, records and ``theodolite.__version__`` read it."""

__version__ = "0.3.0"
