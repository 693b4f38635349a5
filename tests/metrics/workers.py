"""What each of three gloo processes does: feed its shard, then compute together in groups."""

import warnings

import torch
import torch.distributed as dist

from tests.metrics.streams import CASES, make_data

WORLD = 3
DTYPES = (torch.float32, torch.bfloat16)
# Rows per rank in a group of one or two, and in the default group: unequal, and empty in the last.
SHARES = {1: [(120,)], 2: [(35, 85), (120, 0)], 3: [(70, 1, 49), (0, 45, 75)]}


def run(rank: int, folder: str) -> None:
    """Compute every case with every sharding; each rank saves the values it got."""
    warnings.filterwarnings("ignore", message="The ``compute`` method")  # ranks without data
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD
    )
    groups = {size: dist.new_group(list(range(size))) for size in SHARES if size < WORLD}
    values = {
        (name, dtype, size, shares): _value(name, dtype, shares, rank, groups.get(size))
        for name in CASES
        for dtype in DTYPES
        for size in SHARES
        for shares in SHARES[size]
        if rank < size
    }
    torch.save(values, f"{folder}/values-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _value(name, dtype, shares, rank, group):
    case, data = CASES[name], make_data(dtype)
    # Sorted by class: every rank's first batch has another mean.
    order = torch.argsort(data.labels, stable=True)
    rows = torch.split(order, list(shares))[rank]
    metric = case.build(data, process_group=group).to("cpu")  # as users do, to their device
    for chunk in torch.split(rows, 32) if len(rows) else ():
        case.feed(metric, data.part(chunk))
    value = metric.compute()
    assert isinstance(metric.blocks, list)  # the local state is back, not the gathered one
    return value
