"""What in canatar2022 is not as printed, or was left open."""

from theodolite.studies import Erratum

__all__ = ["ERRATA"]

ERRATA: tuple[Erratum, ...] = ()
