"""One process exchanges nothing; parts of several cover everything once."""

import pytest
import torch

from theodolite._distributed import ALONE, Processes
from theodolite.errors import DomainError


def test_one_process_gets_back_what_it_gives():
    tensor = torch.arange(3.0)
    assert ALONE.sum(tensor) is tensor
    assert ALONE.collect(tensor, 0)[0] is tensor
    assert ALONE.gather(tensor)[0] is tensor
    assert ALONE.spread(tensor) is tensor
    assert ALONE.part(7) == slice(0, 7)


def test_errors_of_one_process_pass_as_they_are():
    with pytest.raises(KeyError, match="as it is"), ALONE.together():
        raise KeyError("as it is")


@pytest.mark.parametrize("group", ["auto", None])
def test_without_a_process_group_there_is_one_process(group):
    assert not torch.distributed.is_initialized()
    assert Processes.of(group) is ALONE


def test_a_group_by_an_unknown_name_is_refused():
    with pytest.raises(DomainError, match="group: expected"):
        Processes.of("world")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 60])
def test_parts_cover_all_items_once(size, count):
    processes = Processes()
    processes.size = size
    parts = [processes.part(count, rank) for rank in range(size)]
    items = [item for part in parts for item in range(part.start, part.stop)]
    assert items == list(range(count))
    assert {processes.owner(index) for index in range(count)} == set(range(min(size, count)))
