"""Run every benchmark, one after the other, each in a process of its own.

``python -m benchmarks [--device cuda] [NAME ...]``
"""

import argparse
import subprocess
import sys

NAMES = (
    "representation",
    "kernel",
    "omega",
    "features",
    "tangent",
    "gradients",
    "metrics",
    "monitor",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    failed = []
    for name in arguments.names:
        print(f"\n=== {name} on {arguments.device}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--device", arguments.device]
        if subprocess.run(command, check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    raise SystemExit(main())
