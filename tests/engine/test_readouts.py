"""From model outputs to (n, c)."""

from types import SimpleNamespace

import pytest
import torch

from theodolite.engine.batches import Batch
from theodolite.engine.readouts import read_outputs, resolve_readout
from theodolite.errors import DomainError, DtypeError, ShapeError

VALUES = torch.arange(12.0).reshape(2, 3, 2)
FLAT = VALUES[:, 0]
BATCH = Batch((torch.zeros(2, 3),))
MASKED = Batch((torch.zeros(2, 3),), mask=torch.tensor([[1, 1, 0], [1, 1, 1]]))


@pytest.mark.parametrize(
    "output",
    [FLAT, (FLAT, "more"), [FLAT], {"logits": FLAT}, SimpleNamespace(logits=FLAT)],
    ids=["tensor", "tuple", "list", "logits key", "logits attribute"],
)
def test_the_main_tensor_is_found(output):
    assert torch.equal(read_outputs(output, BATCH, resolve_readout(None)), FLAT)


def test_one_number_per_example_is_one_output():
    assert read_outputs(FLAT[:, 0], BATCH, resolve_readout(None)).shape == (2, 1)


def test_positions_respect_the_mask():
    def read(name, batch):
        return read_outputs(VALUES, batch, resolve_readout(name))

    assert torch.equal(read("cls", MASKED), VALUES[:, 0])
    assert torch.equal(read("last", BATCH), VALUES[:, 2])
    assert torch.equal(read("last", MASKED), torch.stack([VALUES[0, 1], VALUES[1, 2]]))
    assert torch.equal(read("mean", BATCH), VALUES.mean(1))
    assert torch.equal(read("mean", MASKED)[0], VALUES[0, :2].mean(0))


def test_a_function_of_output_and_batch():
    assert torch.equal(
        read_outputs(VALUES, BATCH, resolve_readout(lambda o, b: o[:, 1])), VALUES[:, 1]
    )


def test_what_is_not_one_row_per_example_is_refused():
    with pytest.raises(ShapeError, match="readout="):
        read_outputs(VALUES, BATCH, resolve_readout(None))
    with pytest.raises(ShapeError):
        read_outputs(FLAT[:1], BATCH, resolve_readout(None))
    with pytest.raises(ShapeError, match="leave readout out"):
        read_outputs(FLAT, BATCH, resolve_readout("mean"))
    with pytest.raises(DtypeError):
        read_outputs(FLAT.long(), BATCH, resolve_readout(None))
    with pytest.raises(DtypeError):
        read_outputs("text", BATCH, resolve_readout(None))
    with pytest.raises(DomainError):
        resolve_readout("first")
