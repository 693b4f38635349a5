"""Run every benchmark, one after the other, each in a process of its own.

``python -m benchmarks [--device cuda] [--small] [NAME ...]``

On a CPU some cases are left out or smaller (``CPU_SIZES``), so that all benchmarks together take
minutes. ``--small`` only tries that all of them run. A benchmark that is run on its own has the
full sizes.
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
CPU_SIZES = {
    "representation": ("--n", "20000"),
    "kernel": ("--count", "2500"),
    "omega": ("--count", "5000"),
    "features": ("--count", "60"),
    "tangent": ("--only", "peers"),
    "gradients": ("--count", "20"),
    "metrics": ("--rows", "100000"),
    "monitor": ("--steps", "500"),
}
SMALL_SIZES = {
    "representation": ("--n", "2000", "--d", "64"),
    "kernel": ("--count", "500"),
    "omega": ("--count", "500"),
    "features": ("--count", "20"),
    "tangent": ("--only", "peers"),
    "gradients": ("--count", "20"),
    "metrics": ("--rows", "20000"),
    "monitor": ("--steps", "100"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true", help="few examples, to try the scripts")
    arguments = parser.parse_args()
    chosen = CPU_SIZES if arguments.device == "cpu" else {}
    failed = []
    for name in arguments.names:
        print(f"\n=== {name} on {arguments.device}", flush=True)
        sizes = (SMALL_SIZES if arguments.small else chosen).get(name, ())
        command = [sys.executable, "-m", f"benchmarks.{name}", "--device", arguments.device]
        if subprocess.run([*command, *sizes], check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    raise SystemExit(main())
