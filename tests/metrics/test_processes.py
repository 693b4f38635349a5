import multiprocessing

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

from tests.metrics import workers
from tests.metrics.streams import CASES, make_data


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """Values of all cases from three gloo processes, started once: (rank) -> case -> value."""
    folder = str(tmp_path_factory.mktemp("gloo"))
    # Modules are imported once, not by every process.
    multiprocessing.set_forkserver_preload([workers.__name__])
    mp.start_processes(workers.run, args=(folder,), nprocs=workers.WORLD, start_method="forkserver")
    return [
        torch.load(f"{folder}/values-{rank}.pt", weights_only=False)
        for rank in range(workers.WORLD)
    ]


@pytest.mark.spec("1.R55", "5.P63")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", workers.DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shares", [s for all_of in workers.SHARES.values() for s in all_of], ids=str
)
def test_processes_agree_with_the_one_shot_value(values, name, dtype, shares):
    expected = CASES[name].expected(make_data(dtype))
    for rank in range(len(shares)):
        found = values[rank][name, dtype, len(shares), shares]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-9)
