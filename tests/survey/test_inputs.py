"""What people have: streams, tables, other dtypes, other targets."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from tests.survey.subjects import blobs, cnn, images, mlp
from theodolite.errors import DomainError, DtypeError, ShapeError

ALL = {"representation", "covariance", "kernel", "tangent", "gradient"}
QUICK = {"families": ["representation", "covariance", "kernel"], "permutations": 0}


def measured(found):
    return set(found.to_frame().family) - set(found.record.contents["skipped"])


def notes(found, part="inputs"):
    warnings = found.record.contents["warnings"]
    return [w["text"] for w in warnings if w["measure"] == part and w["layer"] is None]


def numbers(found):
    return {(row["layer"], row["measure"]): row["value"] for row in found.record.contents["rows"]}


def about(wanted, rel=1e-9):
    return pytest.approx(numbers(wanted), rel=rel, nan_ok=True)


def test_an_endless_stream_is_read_as_far_as_asked_for():
    x, y = blobs(60)
    read = []

    def stream():
        while True:
            read.append(len(read))
            yield x[:20], y[:20]

    found = th.survey(mlp(), stream(), examples=50, **QUICK)
    assert len(read) == 3
    assert found.record.contents["data"]["n"] == 50
    assert found.record.contents["config"]["examples"] == 50
    assert found.record.contents["routes"]["covariance"]["n"] == 50


def test_the_first_examples_are_those_of_a_shorter_data_set():
    x, y = blobs(60)
    few = th.survey(mlp(), (x, y), examples=30, truth=y, **QUICK)
    assert numbers(few) == about(th.survey(mlp(), (x[:30], y[:30]), truth=y[:30], **QUICK))
    beside = th.survey(mlp(), x, y, examples=30, truth=y, **QUICK)
    assert numbers(beside) == about(few)


def test_a_monitor_reads_as_far_as_asked_for():
    x, y = blobs(20)
    stream = ((x, y) for _ in iter(int, 1))
    options = {"examples": 40, "families": "kernel"}
    monitor = th.Monitor(mlp(), stream, options=options)
    assert monitor.measure(0).record.contents["data"]["n"] == 40


def test_held_out_streams_are_bounded_too():
    x, y = blobs(30)
    endless = ((x, y) for _ in iter(int, 1))
    found = th.survey(mlp(), (x, y), held_out=endless, examples=30, families="representation")
    assert found.record.contents["data"]["n"] == 30


@pytest.mark.parametrize("kind", ["torch", None])
def test_a_data_set_of_hugging_face(kind):
    datasets = pytest.importorskip("datasets")
    x, y = blobs(30)
    table = {"features": x.tolist(), "label": y.tolist(), "text": ["a"] * 30}
    found = th.survey(mlp(), datasets.Dataset.from_dict(table).with_format(kind), **QUICK)
    assert numbers(found) == about(th.survey(mlp(), (x, y), **QUICK), rel=1e-5)
    assert notes(found, "columns") == ["the column 'features' is the first input of the model"]


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(9, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids):
        return self.head(self.embedding(input_ids).mean(1))


def test_a_list_of_examples_and_what_the_model_does_not_take():
    ids = torch.randint(0, 9, (24, 5), generator=torch.Generator().manual_seed(0))
    y = torch.arange(24) % 3
    rows = [
        {"input_ids": row, "labels": label, "idx": k}
        for k, (row, label) in enumerate(zip(ids.tolist(), y.tolist(), strict=True))
    ]
    found = th.survey(Tokens(), rows, **QUICK)
    assert numbers(found) == about(th.survey(Tokens(), {"input_ids": ids, "labels": y}, **QUICK))
    assert notes(found, "columns") == [
        "left out, since the model takes no input of that name: 'idx'"
    ]
    assert notes(found) == []


CASTS = {
    "double": (torch.float64, "inputs in float64 were cast to float32, the dtype of the weights"),
    "half": (torch.float16, "inputs in float16 were cast to float32, the dtype of the weights"),
    "brain": (torch.bfloat16, "inputs in bfloat16 were cast to float32, the dtype of the weights"),
}


@pytest.mark.parametrize("kind", CASTS)
def test_inputs_are_cast_to_what_the_model_takes(kind):
    dtype, note = CASTS[kind]
    x, y = blobs()
    x = x.to(dtype)
    found = th.survey(mlp(), (x, y), permutations=0)
    assert notes(found) == [note]
    assert found.record.contents["skipped"] == {}
    assert numbers(found) == about(th.survey(mlp(), (x.float(), y), permutations=0))


def test_pixels_are_cast():
    x, y = images()
    pixels = (255 * x.sigmoid()).to(torch.uint8)
    found = th.survey(cnn(), (pixels, y), held_out=(pixels, y), permutations=0)
    assert notes(found) == ["inputs in uint8 were cast to float32, the dtype of the weights"]
    wanted = th.survey(cnn(), (pixels.float(), y), held_out=(pixels.float(), y), permutations=0)
    assert numbers(found) == about(wanted)


def test_a_model_that_takes_pixels_gets_them():
    x, y = images()
    pixels = (255 * x.sigmoid()).to(torch.uint8)

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = cnn()

        def forward(self, x):
            assert x.dtype == torch.uint8
            return self.inner(x / 255)

    assert notes(th.survey(Scaled(), (pixels, y), **QUICK)) == []


def test_a_model_in_bfloat16():
    x, y = blobs()
    found = th.survey(mlp().bfloat16(), (x, y), permutations=0)
    assert notes(found) == ["inputs in float32 were cast to bfloat16, the dtype of the weights"]
    assert found.record.contents["skipped"] == {}
    assert measured(found) == ALL


def test_a_monitor_casts_too():
    x, y = blobs()
    monitor = th.Monitor(mlp(), (x.double(), y), families="kernel", held_out=(x.double(), y))
    assert "cast to float32" in notes(monitor.measure(0))[0]


def test_whole_numbers_beside_several_outputs_are_classes():
    x, y = blobs()
    found = th.survey(mlp(), (x, y.double()), permutations=0)
    assert found.record.contents["data"]["task"] == "classification"
    assert found.record.contents["data"]["class_counts"] == [20, 20, 20]
    assert measured(found) == ALL
    assert notes(found, "targets") == [
        "whole numbers in float64, and the model has 3 outputs: used as class labels"
    ]


def test_whole_numbers_beside_one_output_are_numbers():
    x, y = blobs()
    found = th.survey(mlp((6, 8, 1)), (x, y.float()), **QUICK)
    assert found.record.contents["data"]["task"] == "regression"


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp((6, 8, 1))

    def forward(self, x):
        return self.inner(x).squeeze(1)


@pytest.mark.parametrize(
    ("model", "dtype", "column"),
    [
        (mlp((6, 8, 1)), torch.int64, False),
        (mlp((6, 8, 1)), torch.bool, True),
        (Flat(), torch.float32, False),
        (Flat(), torch.int64, True),
    ],
    ids=["(n, 1), integers", "(n, 1), a column", "(n,), floats", "(n,), a column"],
)
def test_a_single_logit(model, dtype, column):
    x, y = blobs(classes=2)
    given = y.to(dtype).unsqueeze(1) if column else y.to(dtype)
    found = th.survey(model, (x, given), permutations=0)
    assert found.record.contents["skipped"] == {}
    assert measured(found) == ALL
    logits = mlp((6, 8, 1))(x).squeeze(1)
    loss = functional.binary_cross_entropy_with_logits(logits, y.float()).item()
    assert found.estimate("loss").value == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_several_labels(dtype):
    x, _ = blobs()
    y = (x[:, :3] > 0).to(dtype)
    found = th.survey(mlp(), (x, y), permutations=0)
    assert found.record.contents["data"]["task"] == "multi-label"
    assert found.record.contents["skipped"] == {}
    assert measured(found) == ALL
    losses = functional.binary_cross_entropy_with_logits(mlp()(x), y.float(), reduction="none")
    assert found.estimate("loss").value == pytest.approx(losses.sum(1).mean().item(), rel=1e-5)


@pytest.mark.parametrize(("dtype", "columns"), [(torch.float64, 1), (torch.float16, 2)])
def test_numbers_as_targets(dtype, columns):
    x, _ = blobs()
    model = mlp((6, 16, columns))
    found = th.survey(model, (x, x[:, :columns].to(dtype)), permutations=0)
    assert found.record.contents["data"]["task"] == "regression"
    assert found.record.contents["skipped"] == {}
    assert measured(found) == ALL
    assert math.isfinite(found.estimate("loss").value)


def test_a_model_that_copes_with_missing_numbers():
    x, y = blobs()
    x[3, 1] = torch.nan

    class Filled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, x):
            return self.inner(x.nan_to_num())

    found = th.survey(Filled(), (x, y), families="representation")
    assert {"alignment_area", "loss"} <= set(found.to_frame().measure)


def test_two_models_on_a_stream_of_another_dtype():
    x, y = blobs(30)
    stream = ((x.double(), y) for _ in iter(int, 1))
    found = th.compare(mlp(), mlp(seed=1), stream, examples=30, **QUICK)
    wanted = th.compare(mlp(), mlp(seed=1), (x, y), **QUICK)
    assert found.cka.to_numpy() == pytest.approx(wanted.cka.to_numpy())


class TakesBatch(nn.Module):
    """A model that is called with the whole batch."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, batch):
        return self.net(batch["pixels"])


def rows_of(*names):
    """Examples as mappings with these entries."""
    x, y = blobs(60)
    known = {"pixels": x, "target": y, "y": y, "kind": y}
    return [
        {name: f"row {row}" if name == "name" else known[name][row] for name in names}
        for row in range(len(x))
    ]


def loader(*names, batch_size=32):
    """The last batch is shorter than the others."""
    return torch.utils.data.DataLoader(rows_of(*names), batch_size=batch_size)


def test_a_model_that_takes_a_batch_as_one_mapping():
    model = TakesBatch()
    found = th.survey(model, loader("pixels", "target"), **QUICK)
    assert notes(found, "columns") == [
        "the columns are passed as one mapping, as forward takes them"
    ]
    wanted = th.survey(model.net, blobs(60), **QUICK)
    values = [r["value"] for r in found.record.contents["rows"] if r["measure"] == "cka_target"]
    expected = [r["value"] for r in wanted.record.contents["rows"] if r["measure"] == "cka_target"]
    assert values == pytest.approx(expected)


@pytest.mark.parametrize(
    "names", [("pixels", "target"), ("pixels", "target", "name"), ("pixels", "y")]
)
def test_columns_of_text_are_left_out_also_behind_a_short_last_batch(names):
    model = mlp()
    found = th.survey(model, loader(*names), **QUICK)
    assert numbers(found) == about(th.survey(model, blobs(60), **QUICK))


def test_batch_fn_is_a_keyword_and_may_return_a_pair():
    model = mlp()
    found = th.survey(
        model, loader("pixels", "kind"), batch_fn=lambda b: (b["pixels"], b["kind"]), **QUICK
    )
    assert numbers(found) == about(th.survey(model, blobs(60), **QUICK))


@pytest.mark.parametrize("names", [("pixels", "kind"), ("pixels", "target", "kind")])
def test_an_unknown_column_is_a_sentence_with_a_call_that_works(names):
    with pytest.raises(ShapeError, match=r"batch_fn=lambda b: \(b\['pixels'\], b\['kind'\]\)"):
        th.survey(mlp(), loader(*names), **QUICK)


def test_three_parts_of_a_batch_are_a_sentence_with_a_call_that_works():
    x, y = blobs(60)
    parts = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y, torch.arange(60)), batch_size=20
    )
    with pytest.raises(DtypeError, match=r"batch_fn=lambda b: \(b\[0\], b\[1\]\)"):
        th.survey(mlp(), parts, **QUICK)
    found = th.survey(mlp(), parts, batch_fn=lambda b: (b[0], b[1]), **QUICK)
    assert found.record.contents["data"]["n"] == 60


def test_examples_that_torch_cannot_collate_reach_batch_fn_as_a_list():
    class Objects(torch.utils.data.Dataset):
        def __len__(self):
            return 60

        def __getitem__(self, index):
            return {"pixels": blobs(60)[0][index], "label": {index % 3}}

    def convert(items):
        labels = torch.tensor([next(iter(item["label"])) for item in items])
        return torch.stack([item["pixels"] for item in items]), labels

    found = th.survey(mlp(), Objects(), batch_fn=convert, **QUICK)
    assert found.record.contents["data"]["class_counts"] == [20, 20, 20]


def test_text_as_targets_is_a_sentence_with_a_call_that_works():
    x, y = blobs(60)
    names = ["cat", "dog", "owl"]
    with pytest.raises(DtypeError, match="return_inverse=True"):
        th.survey(mlp(), (x, [names[k] for k in y.tolist()]), **QUICK)


@pytest.mark.parametrize("families", ["kernel", "gradient"])
def test_whole_numbers_for_one_output_ask_for_real_ones(families):
    x, _ = blobs(60)
    years = torch.arange(60) + 1960
    model = nn.Linear(x.shape[1], 1)
    with pytest.raises(DomainError, match=r"one output.*for regression pass float targets"):
        th.survey(model, (x, years), families=families)
    found = th.survey(model, (x, years.float()), families="kernel", permutations=0)
    assert found.record.contents["data"]["task"] == "regression"
