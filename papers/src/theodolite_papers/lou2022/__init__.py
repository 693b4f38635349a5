"""Experiments of lou2022: each module holds one as ``STUDY``, or several as ``STUDIES``."""
