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
    kinds = list(options.only or KINDS)
    found: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    spent = dict.fromkeys(kinds, 0.0)
    records.originals()  # which take longer to make than many cases
    failures, finish = 0, time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        # The next case is of the kind that has had the least time; each has one at least.
        while time.monotonic() < finish or not all(found.values()):
            left = [kind for kind in kinds if found[kind].total() != options.cases]
            if not left:
                break
            kind, began = min(left, key=spent.__getitem__), time.monotonic()
            seed = options.seed + found[kind].total()
            try:
                place = Path(folder) / f"{kind}-{seed}"
                found[kind][KINDS[kind](random.Random(seed), place)] += 1
            except Exception:
                failures += 1
                found[kind]["FAILED"] += 1
                print(f"--- {kind}, seed {seed}\n{traceback.format_exc(limit=-6)}", flush=True)
            spent[kind] += time.monotonic() - began
    for kind, counts in found.items():
        told = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
        print(f"{kind}: {sum(counts.values())} cases from seed {options.seed}: {told or 'none'}")
    print(f"{failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
