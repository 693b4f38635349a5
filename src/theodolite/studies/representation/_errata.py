"""What in imani2022 is not as printed, or was left open."""

from theodolite.studies import Erratum

__all__ = ["ERRATA"]

ERRATA = (
    Erratum(
        "E2",
        "Figure 4: singular values 9.58 and 2.84 of 1000 unit vectors",
        "1000 unit vectors force squares that sum to 1000, not 99.8: these are values of 100 "
        "points; with 1000 they are about 30.3 and 9.0",
    ),
)
