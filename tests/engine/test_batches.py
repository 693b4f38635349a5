"""Anything a user passes becomes batches."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from theodolite.engine.batches import Batch, iterate_batches, whole_batch
from theodolite.errors import DomainError, DtypeError, ShapeError

X = torch.arange(12.0).reshape(6, 2)
Y = torch.arange(6)

ACCEPTED = {
    "tensor": X,
    "array": X.numpy(),
    "pair": (X, Y),
    "pair of arrays": (X.numpy(), Y.numpy()),
    "mapping": {"input": X, "labels": Y},
    "mapping with label": {"input": X, "label": Y},
    "mapping and targets": ({"input": X}, Y),
    "mapping alone in a tuple": ({"input": X, "labels": Y},),
    "tuple of one input and targets": ((X,), Y),
    "batch": Batch((X,), targets=Y),
    "list of pairs": [(X[:4], Y[:4]), (X[4:], Y[4:])],
    "loader": DataLoader(TensorDataset(X, Y), batch_size=4),
    "data set": TensorDataset(X, Y),
    "list of examples": [{"input": x, "labels": y} for x, y in zip(X, Y, strict=True)],
    "list of plain examples": [
        {"input": x, "labels": y, "text": "a"} for x, y in zip(X.tolist(), Y.tolist(), strict=True)
    ],
    "list of pairs of one example": list(zip(X, Y.tolist(), strict=True)),
    "columns": {"input": X.tolist(), "labels": Y.tolist()},
    "generator": ((X[k : k + 3], Y[k : k + 3]) for k in (0, 3)),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_everything_accepted_holds_the_same_examples(kind):
    batches = list(iterate_batches(ACCEPTED[kind], batch_size=2))
    assert all(len(batch) <= 2 for batch in batches)
    inputs = [batch.args[0] if batch.args else batch.kwargs["input"] for batch in batches]
    assert torch.equal(torch.cat(inputs), X)
    if kind not in ("tensor", "array"):
        assert torch.equal(torch.cat([batch.targets for batch in batches]), Y)
        assert all("label" not in batch.kwargs for batch in batches)


@pytest.mark.parametrize("stream", [False, True], ids=["rows", "stream"])
@pytest.mark.parametrize("kind", ["torch", "numpy", None])
def test_data_sets_of_hugging_face(kind, stream):
    datasets = pytest.importorskip("datasets")
    columns = {"input": X.tolist(), "label": Y.tolist(), "text": ["a"] * 6}
    data = datasets.Dataset.from_dict(columns)
    data = (data.to_iterable_dataset() if stream else data).with_format(kind)
    batches = list(iterate_batches(data, batch_size=4))
    assert [len(batch) for batch in batches] == [3, 3]  # parts of one size
    assert torch.equal(torch.cat([batch.kwargs["input"] for batch in batches]), X)
    assert torch.equal(torch.cat([batch.targets for batch in batches]), Y)
    assert all(set(batch.kwargs) == {"input"} for batch in batches)
    (few,) = iterate_batches(data, examples=4)
    assert torch.equal(few.targets, Y[:4])
    (all_of_them,) = iterate_batches(data, examples=40)
    assert len(all_of_them) == 6


class Read(torch.utils.data.IterableDataset):
    """Counts what is read of it."""

    def __init__(self):
        self.count = 0

    def __iter__(self):
        while True:
            self.count += 1
            yield X[0], 1


@pytest.mark.parametrize("examples", [1, 300])
def test_a_stream_is_read_no_further_than_needed(examples):
    source = Read()
    assert sum(map(len, iterate_batches(source, examples=examples))) == examples
    assert source.count == examples
    source = Read()
    pairs = iter(source)
    assert sum(map(len, iterate_batches(pairs, examples=examples))) == examples
    assert source.count == examples


def test_a_loader_is_read_no_further_than_needed():
    seen = []

    def batches():
        for start in range(0, 6, 2):
            seen.append(start)
            yield X[start : start + 2], Y[start : start + 2]

    found = list(iterate_batches(batches(), examples=3))
    assert seen == [0, 2]
    assert torch.equal(torch.cat([batch.args[0] for batch in found]), X[:3])
    (few,) = iterate_batches((X, Y), examples=2)
    assert torch.equal(few.targets, Y[:2])
    (few,) = iterate_batches(TensorDataset(X, Y), examples=5)
    assert torch.equal(few.targets, Y[:5])


def test_a_batch_is_not_converted_again():
    (batch,) = iterate_batches([Batch((X,))], batch_fn=lambda item: 1 / 0)
    assert torch.equal(batch.args[0], X)


def test_inputs_are_cast_and_nothing_else():
    mask = torch.ones(6, 2)
    batch = Batch((X.double(), Y), {"attention_mask": mask}, Y.double(), mask)
    cast = batch.cast(torch.float16)
    assert [leaf.dtype for leaf in cast.args] == [torch.float16, torch.int64]
    assert (cast.kwargs["attention_mask"].dtype, cast.targets.dtype) == (mask.dtype, torch.float64)
    assert batch.cast(torch.float16, integers=True).args[1].dtype == torch.float16


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"ids": [1, 2], "label": 0}, {"ids": [1], "label": 0}], r"ids: .* one shape, got \(1,\)"),
        ([{"ids": [1], "label": 0}, {"label": 0}], r"entries \['ids', 'label'\], got one with"),
    ],
    ids=["lengths", "entries"],
)
def test_examples_that_do_not_go_together(items, message):
    with pytest.raises(ShapeError, match=message):
        whole_batch(items)


@pytest.mark.parametrize("inputs", [(X, 2 * X, 3 * X), [X, 2 * X, 3 * X]], ids=["tuple", "list"])
@pytest.mark.parametrize("count", [2, 3])
def test_several_inputs_are_all_arguments_of_the_model(inputs, count):
    batches = list(iterate_batches((inputs[:count], Y), batch_size=4))
    answers = [batch.run(lambda *args: torch.stack(args, dim=1)) for batch in batches]
    assert torch.equal(torch.cat(answers), torch.stack(tuple(inputs[:count]), dim=1))
    assert torch.equal(torch.cat([batch.targets for batch in batches]), Y)


def test_a_batch_function_wins():
    def convert(item):
        return Batch((item["a"] + item["b"],), targets=item["c"])

    items = [{"a": X, "b": X, "c": Y}]
    (batch,) = iterate_batches(items, batch_fn=convert)
    assert torch.equal(batch.args[0], 2 * X)
    assert torch.equal(batch.targets, Y)


def test_the_mask_stays_with_its_examples_and_goes_to_the_model():
    mask = torch.tensor([[1, 1], [1, 0], [1, 1]])
    batch = whole_batch({"input_ids": torch.zeros(3, 2, dtype=torch.long), "attention_mask": mask})
    assert batch.mask is mask
    taken = batch.take([2, 1])
    assert torch.equal(taken.mask, mask[[2, 1]])
    assert torch.equal(taken.kwargs["attention_mask"], mask[[2, 1]])


def test_take_leaves_what_has_no_examples():
    batch = Batch((X, torch.ones(3)), {"flag": True, "nested": [X]})
    taken = batch.take(slice(1, 3))
    assert len(taken) == 2
    assert taken.args[1].shape == (3,)
    assert taken.kwargs["flag"] is True
    assert torch.equal(taken.kwargs["nested"][0], X[1:3])


def test_nested_tensors_are_batches():
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    batch = whole_batch(ragged)
    assert len(batch) == 2
    assert batch.take([1]).args[0].unbind()[0].shape == (4, 3)


def test_single_batch_joins_batches():
    joined = whole_batch([(X[:2], Y[:2]), (X[2:], Y[2:])])
    assert torch.equal(joined.args[0], X)
    assert torch.equal(joined.targets, Y)


def test_batches_move_to_a_device():
    batch = Batch((X,), {"k": X}, Y).to("meta")
    assert batch.args[0].device.type == batch.targets.device.type == "meta"
    assert batch.to(None) is batch


REFUSED = {
    "number": (3, DtypeError),
    "text": ([("a", Y)], ShapeError),
    "three tensors": ((X, Y, Y), DtypeError),
    "empty": (X[:0], ShapeError),
    "targets of another length": ((X, Y[:3]), ShapeError),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_a_batch_is_refused(kind):
    data, error = REFUSED[kind]
    with pytest.raises(error):
        list(iterate_batches(data))


def test_different_shapes_are_refused_only_where_all_are_needed_at_once():
    parts = [torch.ones(2, 3), torch.ones(2, 4)]
    assert len(list(iterate_batches(iter(parts)))) == 2
    with pytest.raises(ShapeError, match="pad"):
        whole_batch(iter(parts))
    with pytest.raises(ShapeError, match="empty"):
        whole_batch(iter([]))


class Column:
    """As in a table of pandas."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


@pytest.mark.parametrize(
    "targets",
    [
        list(range(6)),
        tuple(range(6)),
        [np.int64(k) for k in range(6)],
        Column(range(6)),
        np.broadcast_to(np.arange(6), (2, 6))[0],
        np.arange(6).astype(np.dtype(np.int64).newbyteorder()),
    ],
    ids=["list", "tuple", "scalars", "column", "read only", "other byte order"],
)
def test_targets_that_are_plain_numbers_become_tensors(targets):
    for data in ((X, targets), {"x": X, "labels": targets}):
        (batch,) = iterate_batches(data)
        assert torch.equal(batch.targets, Y)
    (batch,) = iterate_batches((X, [[0.5, 1.0]] * 6))
    assert batch.targets.shape == (6, 2)


@pytest.mark.parametrize("targets", [["cat"] * 6, np.array(["cat"] * 6)], ids=["list", "array"])
def test_targets_that_are_words_are_refused(targets):
    with pytest.raises(DtypeError, match=r"expected class indices or numbers, got .*'cat'"):
        whole_batch((X, targets))


def test_targets_of_another_kind_are_left_alone():
    given = {"boxes": torch.ones(6, 4)}
    assert whole_batch((X, given)).targets is given
    ragged = [[0.0], [0.0, 1.0]] * 3
    assert whole_batch((X, ragged)).targets == ragged


def test_numpy_targets_become_tensors():
    (batch,) = iterate_batches(X, targets=np.arange(6))
    assert torch.equal(batch.targets, Y)


@pytest.mark.parametrize("data", [(X, Y), {"x": X, "labels": Y}, Batch((X,), targets=Y)])
def test_targets_beside_targets_are_refused(data):
    with pytest.raises(DomainError, match="hold targets already"):
        whole_batch(data, targets=Y)


def test_a_list_of_inputs_and_targets_is_refused():
    with pytest.raises(ShapeError, match="as a tuple"):
        list(iterate_batches([X, Y], batch_size=2))


@pytest.mark.parametrize("data", [X.to_sparse(), X.to("meta"), (X.to_sparse(), Y)])
def test_inputs_without_rows_of_numbers_are_refused(data):
    with pytest.raises(DtypeError, match=r"sparse_coo|meta device"):
        whole_batch(data)
