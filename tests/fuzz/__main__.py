"""Run cases of all three kinds in turn until the time is over."""

import argparse
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from tests.fuzz import commands, records, shapes

KINDS = {"records": records.try_one, "commands": commands.try_one, "shapes": shapes.try_one}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first case of every kind")
    parser.add_argument("--cases", type=int, default=None, help="of every kind, at most")
    parser.add_argument("--only", choices=KINDS, action="append")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, Counter[str]] = {}
    failures = 0
    finish, kinds = time.monotonic() + options.seconds, list(options.only or KINDS)
    with tempfile.TemporaryDirectory() as folder:
        for index, kind in enumerate(kinds):
            # A kind gets an equal share of the time that is left.
            found[kind] = Counter()
            ends = time.monotonic() + (finish - time.monotonic()) / (len(kinds) - index)
            seed = options.seed
            while time.monotonic() < ends and sum(found[kind].values()) != options.cases:
                place = Path(folder) / f"{kind}-{seed}"
                try:
                    found[kind][KINDS[kind](random.Random(seed), place)] += 1
                except Exception:
                    failures += 1
                    found[kind]["FAILED"] += 1
                    print(f"--- {kind}, seed {seed}\n{traceback.format_exc(limit=-6)}", flush=True)
                seed += 1
    for kind, counts in found.items():
        told = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
        print(f"{kind}: {sum(counts.values())} cases from seed {options.seed}: {told or 'none'}")
    print(f"{failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
