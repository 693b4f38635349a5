"""Which part of the library owns which numbered property of the five specifications.

``tests/test_spec_coverage.py`` fails when a part that exists lacks a test marked with a number it
owns. A number with two owners needs a test in each of them.
"""

from collections.abc import Iterator

# Part -> folders whose tests count for it.
FOLDERS = {
    "core": ("tests/linalg", "tests/measures", "tests/conformance", "tests/messages"),
    "engine": ("tests/engine",),
    "theory": ("tests/theory",),
    "metrics": ("tests/metrics",),
    "laboratory": ("papers/tests", "tests/data", "tests/interventions"),
    "studies": ("papers/tests",),
}

# Property ranges by owner, in the specifications' own numbering.
OWNERS = {
    "1.R": {
        "core": "1-26 44 55 58",
        "theory": "27-45 57",
        "metrics": "55 56",
        "laboratory": "46-54",
    },
    "2.P": {
        "core": "1-4 8-30 33 34 44",
        "engine": "31",
        "laboratory": "5-7 32 35-43 45",
        "studies": "46",
    },
    "3.P": {
        "core": "1-31 38-42 55 60 61",
        "theory": "32-37 54",
        "engine": "46-53 56 57",
        "metrics": "41",
        "laboratory": "43 44 58 59",
        "studies": "45",
    },
    "4.P": {
        "core": "1-4 9-12 15-18 20-23 50 53-60 63-67 79-81 105 110 111",
        "engine": "5-8 13 14 19 24-30 61 62 70 71 73-75 77 78 112",
        "theory": "31-49 51 52 68 69 72 76 82-96 106-108 113-116",
        "laboratory": "97-104 109",
    },
    "5.P": {
        "core": "1-25 40 60 62-65",
        "theory": "26-36 44 45 47-53 66",
        "engine": "37-39 41",
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
