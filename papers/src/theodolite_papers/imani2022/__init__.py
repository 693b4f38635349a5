"""Experiments of imani2022: each module holds one as ``STUDY``, or several as ``STUDIES``."""
