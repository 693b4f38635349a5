"""Which part of the library owns which numbered property of the five specifications.

``tests/test_spec_coverage.py`` fails when a part that exists lacks a test marked with a number it
owns. A number with two owners needs a test in each of them.
"""

from collections.abc import Iterator

PAPERS = ("imani2022", "maennel2020", "canatar2022", "lou2022", "mehta2021")
# Part -> folders whose tests count for it.
FOLDERS = {
    "core": ("tests/linalg", "tests/measures", "tests/conformance", "tests/messages"),
    "engine": ("tests/engine",),
    "theory": ("tests/theory",),
    "formulas": tuple(f"papers/tests/{paper}/formulas" for paper in PAPERS),
    "metrics": ("tests/metrics",),
    "laboratory": ("papers/tests", "tests/data", "tests/interventions"),
    "studies": ("papers/tests",),
}

# Property ranges by owner, in the specifications' own numbering.
OWNERS = {
    "1.R": {
        "core": "1-17 20 22 24 55 58",
        "theory": "29 30 32",
        "formulas": "18 19 21 23 25-28 31 33-45 56 57",
        "metrics": "55",
        "laboratory": "46-54",
    },
    "2.P": {
        "core": "15-17 19 22-26 28 29",
        "engine": "31",
        "formulas": "1-4 8-14 18 20 21 27 30 33 34 44",
        "laboratory": "5-7 32 35-43 45",
        "studies": "46",
    },
    "3.P": {
        "core": "1 3-26 28-31 38-41 60",
        "engine": "46-53 56 57",
        "theory": "32-34 36 37",
        "formulas": "2 27 35 42 54 55 61",
        "metrics": "41",
        "laboratory": "43 44 58 59",
        "studies": "45",
    },
    "4.P": {
        "core": "1-4 9-12 15-18 54 55 105",
        "engine": "5-8 13 14 19 24-30 112",
        "formulas": "20-23 31-53 56-60 63-69 72 76 79-96 106-108 110 111 113-116",
        "laboratory": "61 62 70 71 73-75 77 78 97-104 109",
    },
    "5.P": {
        "core": "1-17 20-24 40 62-64",
        "engine": "37-39 41",
        "formulas": "18 19 25-36 44 45 47-53 60 65 66",
        "metrics": "63",
        "laboratory": "26 42 43 46 54-59 61",
    },
}


def expand(ranges: str) -> Iterator[int]:
    """``"1-3 7"`` -> 1, 2, 3, 7."""
    for word in ranges.split():
        low, _, high = word.partition("-")
        yield from range(int(low), int(high or low) + 1)


def owned_by(part: str) -> set[str]:
    """All numbers that a part owns, e.g. ``{"1.R1", ...}``."""
    return {
        f"{prefix}{number}"
        for prefix, parts in OWNERS.items()
        for number in expand(parts.get(part, ""))
    }
