"""Memory that one call has freed serves the next."""

import platform
import subprocess
import sys

import pytest

PROCESS = """
import resource
import torch
from theodolite.engine.state import raise_trim_threshold

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.zeros(2**20) for _ in range(5)]
    del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

raise_trim_threshold()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_freed_memory_is_found_again():
    # In a process of its own: here other tests have freed larger blocks already.
    ran = subprocess.run(
        [sys.executable, "-c", PROCESS], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 2000  # of 5120 pages
