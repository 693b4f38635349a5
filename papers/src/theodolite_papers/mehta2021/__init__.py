"""Experiments of mehta2021: each module holds one as ``STUDY``, or several as ``STUDIES``."""
