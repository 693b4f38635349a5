"""Experiments of maennel2020: each module holds one as ``STUDY``, or several as ``STUDIES``."""
