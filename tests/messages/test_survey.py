"""Messages of survey, monitor, load and compare: expected, got, what to do."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import theodolite as th
from theodolite.errors import (
    DomainError,
    DtypeError,
    NotFiniteError,
    RecordError,
    ShapeError,
    UnknownNameError,
)
from theodolite.records import Record, save_record

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


def model():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


SETTINGS = {
    "family": (
        {"families": ["kernels"]},
        UnknownNameError,
        r"unknown family 'kernels'; did you mean 'kernel'",
    ),
    "no family": ({"families": []}, DomainError, "families: expected at least one family"),
    "layer": ({"layers": "fc"}, UnknownNameError, "unknown layer 'fc'"),
    "size": ({"sizes": {"kernel": 1}}, DomainError, r"sizes\['kernel'\]: expected an integer"),
    "size of what": ({"sizes": {"kernal": 9}}, UnknownNameError, "unknown family in sizes"),
    "permutations": (
        {"permutations": -1},
        DomainError,
        "permutations: expected an integer of at least 0, got -1",
    ),
    "tangent": (
        {"options": {"tangent": "fast"}},
        DomainError,
        "tangent: expected one of 'auto', 'exact'",
    ),
    "true labels of another length": (
        {"truth": Y[:5]},
        ShapeError,
        r"truth: expected one label for each of 12 examples, got \(5,\); pass them in the order",
    ),
    "negative true labels": ({"truth": Y - 1}, DomainError, "truth: expected class labels of at l"),
    "true sequences": (
        {"truth": torch.zeros(12, 2, 2)},
        DomainError,
        "truth: expected a label, or a row of numbers, for every example, got whole sequences",
    ),
    "examples": (
        {"examples": 1},
        DomainError,
        "examples: expected an integer of at least 2, got 1",
    ),
    "option": ({"options": {"bootstrap": 3}}, UnknownNameError, "unknown option 'bootstrap'"),
    "read": ({"read": "after"}, DomainError, "read: expected one of 'next', 'raw', got 'after'"),
    "pool": ({"options": {"pool": "sum"}}, DomainError, "pool: expected one of 'flatten'"),
    "reduced loss": (
        {"loss": lambda outputs, targets: outputs.sum(), "families": "gradient"},
        ShapeError,
        "loss: expected one number per example",
    ),
}


@pytest.mark.parametrize(("options", "error", "message"), SETTINGS.values(), ids=SETTINGS.keys())
def test_settings(options, error, message):
    with pytest.raises(error, match=message):
        th.survey(model(), (X, Y), **options)


def test_true_labels_beside_a_loader_that_shuffles():
    pairs = TensorDataset(X, Y)
    loader = DataLoader(pairs, batch_size=4, shuffle=True)
    message = "truth: expected data in the order of the true labels, got a loader that shuffles"
    with pytest.raises(DomainError, match=message):
        th.survey(model(), loader, truth=Y)
    with pytest.raises(DomainError, match=message):
        th.Monitor(model(), loader, truth=Y)
    in_order = DataLoader(pairs, batch_size=4)
    found = th.survey(model(), in_order, truth=Y, families="kernel")
    assert found.estimate("cka_truth", "0") == found.estimate("cka_target", "0")


DATA = {
    "labels beyond the outputs": (
        (X, Y + 1),
        DomainError,
        "targets: expected labels below 3, the number of outputs, got 3; relabel",
    ),
    "negative labels": ((X, Y - 1), DomainError, "expected class labels of at least 0, got -1"),
    "targets of another length": ((X, Y[:5]), ShapeError, "got 12 examples and 5 targets"),
    "columns": (
        (X, torch.randn(12, 2)),
        DomainError,
        "expected 3 numbers per example, one for each output",
    ),
    "nothing": ([], ShapeError, "expected at least one example, got none"),
    "nan": ((X, torch.full((12, 3), torch.nan)), DomainError, "expected finite numbers"),
}


@pytest.mark.parametrize(("data", "error", "message"), DATA.values(), ids=DATA.keys())
def test_data(data, error, message):
    with pytest.raises(error, match=message):
        th.survey(model(), data)


NAN = X.clone()
NAN[7, 2] = torch.nan
INFINITE = X.clone()
INFINITE[5, 0] = torch.inf
INPUTS = {
    "wrong width": (
        (torch.randn(12, 7), Y),
        ShapeError,
        r"data: expected 4 features for layer '0' \(Linear\), got 7 from inputs of shape \(n, 7\); "
        "pass inputs as in training$",
    ),
    "wrong width in float64": (
        (torch.randn(12, 7).double(), Y),
        ShapeError,
        r"data: expected 4 features for layer '0' \(Linear\), got 7 from",
    ),
    "swapped": (
        (Y, X),
        ShapeError,
        r"data: expected \(inputs, targets\), got one whole number and \(4,\) numbers per example, "
        r"which looks like \(targets, inputs\); swap the two$",
    ),
    "complex": (
        (X.to(torch.complex64), Y),
        ShapeError,
        r"data: expected inputs that the model takes, got complex64 of shape \(n, 4\), at which "
        "layer '0' fails with RuntimeError: .*; "
        "pass inputs as in training, or say which column is which: batch_fn=",
    ),
    "other names": (
        {"a": X, "b": X, "labels": Y},
        ShapeError,
        "data: expected inputs that the model takes, got float32 .*TypeError: .*keyword argument",
    ),
    "nan": (
        (NAN, Y),
        NotFiniteError,
        r"data: expected finite inputs, got nan in example 7 \(counted from 0\); leave the example "
        "out, or fill in the missing number$",
    ),
    "infinity": (
        [(INFINITE[:3], Y[:3]), (INFINITE[3:], Y[3:])],
        NotFiniteError,
        "infinity in example 5 ",
    ),
    "one example": (
        (X[:1], Y[:1]),
        ShapeError,
        "data: expected at least two examples, since alignment compares examples with each other, "
        "got one; pass more",
    ),
    "labels from 1 in float": (
        (X, Y + 1.0),
        DomainError,
        "targets: expected labels below 3, the number of outputs, got 3; relabel",
    ),
    "ragged": (
        [{"input": [0.0] * (3 + k), "labels": 1} for k in range(2)],
        ShapeError,
        r"input: expected examples of one shape, got \(3,\) and \(4,\); pad them to one length "
        "first, for tokens with padding='max_length' of the tokenizer$",
    ),
}


STARTS = {
    "survey": lambda data: th.survey(model(), data),
    "monitor": lambda data: th.Monitor(model(), data).measure(0),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
@pytest.mark.parametrize(("data", "error", "message"), INPUTS.values(), ids=INPUTS.keys())
def test_inputs_that_the_model_does_not_take(data, error, message, start):
    with pytest.raises(error, match=message):
        start(data)


def test_channels_and_token_ids():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    message = (
        r"data: expected 3 channels for layer '0' \(Conv2d\), got 1 from .* \(n, 1, 4, 4\); pass"
    )
    with pytest.raises(ShapeError, match=message):
        th.survey(net, (torch.randn(12, 1, 4, 4), Y))
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3))
    message = (
        r"data: expected whole numbers, token ids, for layer '0' \(Embedding\), got float32 of "
        r"shape \(n, 2\); pass ids.long\(\)$"
    )
    with pytest.raises(DtypeError, match=message):
        th.survey(net, (torch.zeros(12, 2), Y))
    with pytest.raises(ShapeError, match=r"got int64 .*'0' fails with IndexError: index out of"):
        th.survey(net, (torch.full((12, 2), 9), Y))


def test_what_the_model_itself_raises_is_left_alone():
    class Unlucky(nn.Linear):
        def forward(self, x):
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match=r"^out of luck$"):
        th.survey(Unlucky(4, 3), (X, Y))


class Net(nn.Linear):
    pass


MODELS = {
    "class": (
        Net,
        DtypeError,
        r"model: expected a module, got the class Net; make an instance first, such as Net\(\)$",
    ),
    "function": (
        len,
        DtypeError,
        "model: expected a torch.nn.Module, got builtin_function_or_meth",
    ),
    "meta": (
        nn.Linear(4, 3, device="meta"),
        DomainError,
        "model: expected weights, got the meta device for 'weight', which holds shapes and no "
        r"numbers; call model.to_empty\(device=...\) and load the weights$",
    ),
}


PARTS = {
    "features": th.features,
    "tangent_kernels": th.tangent_kernels,
    "tangent_features": th.tangent_features,
    "gradient_alignment": th.gradient_alignment,
    "tangent_alignments": th.engine.tangent_alignments,
}
ENTRIES = {"survey": th.survey, "monitor": th.Monitor} | PARTS


@pytest.mark.parametrize("start", ENTRIES.values(), ids=ENTRIES.keys())
@pytest.mark.parametrize(("net", "error", "message"), MODELS.values(), ids=MODELS.keys())
def test_models(net, error, message, start):
    with pytest.raises(error, match=message):
        start(net, (X, Y))


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
@pytest.mark.parametrize("kind", ["wrong width", "swapped", "other names"])
def test_inputs_that_the_model_does_not_take_in_its_parts(part, kind):
    data, error, message = INPUTS[kind]
    with pytest.raises(error, match=message):
        part(model().eval(), data)


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
@pytest.mark.parametrize(
    ("net", "inputs", "dtypes"),
    [
        (torch.float32, X.double(), "float64 were cast to float32"),
        (torch.float32, (10 * X).int(), "int32 were cast to float32"),
        (torch.bfloat16, X, "float32 were cast to bfloat16"),
    ],
    ids=["float64", "integers", "half"],
)
def test_inputs_are_cast_with_a_word(part, net, inputs, dtypes):
    with pytest.warns(UserWarning, match=f"^inputs in {dtypes}, the dtype of the weights$"):
        part(model().to(net).eval(), (inputs, Y))


class Images(nn.Module):
    """Refuses what is no image with an error of its own, as vision transformers do."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(12, 3)

    def forward(self, pixels):
        if pixels.dim() != 4:
            raise ValueError("make sure that the picture is one")
        return self.head(pixels.flatten(1))


@pytest.mark.parametrize("start", ENTRIES.values(), ids=ENTRIES.keys())
def test_swapped_data_of_a_model_that_checks_its_inputs(start):
    images = torch.randn(12, 3, 2, 2)
    with pytest.raises(ShapeError, match=r"which looks like \(targets, inputs\); swap the two"):
        start(Images().eval(), (Y, images))
    with pytest.raises(ValueError, match=r"^make sure that the picture is one$"):
        start(Images().eval(), (X, Y))


class Own(nn.Module):
    """Fails in a way that is told by its type and its place, whatever the message says."""

    def __init__(self, fail):
        super().__init__()
        self.head, self.fail = nn.Linear(4, 3), fail

    def forward(self, inputs):
        return self.head(self.fail(inputs))


def refuses(inputs):
    raise RuntimeError("expected another shape and dtype")


def divides(inputs):
    return inputs.reshape(len(inputs), 5, -1)


def functional(inputs):
    return nn.functional.interpolate(inputs, 3, scale_factor=2)  # a ValueError of torch


def missing(inputs):
    return nn.Module()(inputs)


@pytest.mark.parametrize(
    ("fail", "error", "message"),
    [
        (refuses, RuntimeError, "^expected another shape and dtype$"),
        (missing, NotImplementedError, "forward"),
        (divides, ShapeError, "at which the model fails with RuntimeError: .*batch_fn="),
        (functional, ShapeError, "at which the model fails with ValueError: .*batch_fn="),
    ],
)
def test_errors_that_the_model_raises_itself_pass_unchanged(fail, error, message):
    with pytest.raises(error, match=message):
        th.survey(Own(fail).eval(), (X, Y))


@pytest.mark.parametrize("start", [th.survey, th.Monitor], ids=["survey", "monitor"])
@pytest.mark.parametrize("device", ["cuda:99", "meta", "gpu"])
def test_devices(device, start):
    message = (
        f"device: expected a device of this machine that holds numbers, got '{device}'; leave "
        "device= out to use the model's device, 'cpu'$"
    )
    with pytest.raises(DomainError, match=message):
        start(model(), (X, Y), options={"device": device})


@pytest.mark.parametrize("part", [th.tangent_kernels, th.tangent_features])
def test_devices_of_parts(part):
    with pytest.raises(
        DomainError, match=r"device: expected a device of this machine .*, got 'cuda:99';"
    ):
        part(model().eval(), X, device="cuda:99")


def test_sizes_of_memory():
    for start in (th.survey, th.Monitor):
        start(model(), (X, Y), options={"memory_limit": "4GB", "families": "kernel"})
        with pytest.raises(DomainError, match="memory_limit: expected a size such as '4GB' or"):
            start(model(), (X, Y), options={"memory_limit": "much", "families": "kernel"})


def test_saving_onto_a_file(tmp_path):
    path = tmp_path / "found.json"
    path.write_text("mine")
    found = th.survey(model(), (X, Y), families="kernel")
    for target in (path, path / "inside"):
        with pytest.raises(
            RecordError, match=r"found.json.*(got a file|is a file or lies in one); "
        ):
            found.save(target)
    assert path.read_text() == "mine"


def test_a_model_without_parameters():
    with pytest.raises(DomainError, match="expected layers with parameters, got none"):
        th.survey(nn.ReLU(), (X, Y))


def test_no_family_that_applies():
    with pytest.raises(DomainError, match="got none: tangent: the data have no targets"):
        th.survey(model(), X, families="tangent")


def test_names_that_were_not_measured():
    found = th.survey(model(), (X, Y), families="kernel")
    with pytest.raises(UnknownNameError, match="unknown measure 'cka'; did you mean 'cka_"):
        found.estimate("cka", "0")
    with pytest.raises(UnknownNameError, match="unknown layer 'fc'"):
        found.estimate("cka_target", "fc")
    with pytest.raises(UnknownNameError, match="unknown curve 'spectra'; did you mean 'spec"):
        found.curve("spectra", "0")


def test_monitor():
    with pytest.raises(DomainError, match="every: expected a whole number, steps, a function"):
        th.Monitor(model(), (X, Y), every="sometimes")
    with pytest.raises(DomainError, match=r"every: expected a whole number, .*, got 2\.5"):
        th.Monitor(model(), (X, Y), every=2.5)
    with pytest.raises(DomainError, match=r"cadence: expected an integer of at least 1, got 2\.5"):
        th.Monitor(model(), (X, Y), cadence=2.5)
    with pytest.raises(DomainError, match="every: expected an integer of at least 1, got 0"):
        th.Monitor(model(), (X, Y), every=0)
    with pytest.raises(UnknownNameError, match="unknown part of cadence 'gradients'; did you mean"):
        th.Monitor(model(), (X, Y), cadence={"gradients": 2})
    with pytest.raises(
        DomainError, match=r"cadence\['curves'\]: expected an integer of at least 1"
    ):
        th.Monitor(model(), (X, Y), cadence={"curves": 0})
    monitor = th.Monitor(model(), (X, Y), every=10, families="kernel")
    monitor.step(3)
    with pytest.raises(
        DomainError, match="step: expected more than 3, got 3; pass increasing steps"
    ):
        monitor.step(3)
    with pytest.raises(UnknownNameError, match="unknown step '4'"):
        monitor.history.survey(4)


def test_compare():
    found = th.survey(model(), (X, Y), families="kernel")
    history = th.Monitor(model(), (X, Y), families="kernel").history
    with pytest.raises(DomainError, match=r"expected at least two surveys.* got Survey$"):
        th.compare(found)
    with pytest.raises(DomainError, match="got Survey, History"):
        th.compare(found, history)
    with pytest.raises(DomainError, match="names: expected 2, one per result, got 1"):
        th.compare(found, found, names=["a"])


def damaged(folder, **changes):
    """Change a record of schema 1, which has no digest that would show the change."""
    path = folder / "record.json"
    document = json.loads(path.read_text())
    document["contents"].update(changes)
    document["schema"] = 1
    del document["digest"]
    path.write_text(json.dumps(document))


CURVE = {"family": "kernel", "name": "a", "layer": None, "labels": {}, "arrays": {"x": "gone"}}
NOTE = {"layer": None, "measure": "a", "text": "b"}
DAMAGE = {
    "rows": ({"rows": [{"layer": "0"}]}, "rows/0/family is missing; measure again, or restore"),
    "rows of numbers": ({"rows": [3]}, "rows/0: expected a mapping, got 3"),
    "no layers": ({"layers": None}, "layers: expected a list, got None"),
    "nameless": ({"layers": [{}]}, "layers/0/name is missing"),
    "curves": ({"curves": [CURVE]}, "curve 'a' of layer None: the array 'gone' is missing"),
    "curves of lists": (
        {"curves": [CURVE | {"arrays": {"x": []}}]},
        "curves/0/arrays/x: expected text, got list",
    ),
    "step": ({"step": "x"}, "step: expected a whole number or null, got 'x'"),
    "notes": ({"warnings": [NOTE | {"text": None}]}, "warnings/0/text: expected text, got None"),
    "note": ({"warnings": [3]}, "warnings/0: expected a mapping, got 3"),
    "skipped": ({"skipped": ["kernel"]}, "skipped: expected a mapping, got list"),
    "families": ({"config": {"families": 3}}, "config/families: expected a list, got 3"),
    "data": ({"data": {"n": True}}, "data/n: expected a whole number, got True"),
    "seconds": ({"seconds": [1]}, "seconds: expected a mapping, got list"),
    "kind": ({"kind": "song"}, "a survey, a history or a ranking, got kind 'song'"),
    "list for a kind": ({"kind": []}, r"a survey, a history or a ranking, got kind \[\]"),
    "text for a route": (
        {"routes": {"kernel": "gram"}},
        "damaged: routes/kernel: expected a mapping, got 'gram'",
    ),
    "list for a name": ({"name": []}, r"damaged: name: expected text, got \[\]"),
}


@pytest.mark.parametrize(("changes", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_surveys(tmp_path, changes, message):
    th.survey(model(), (X, Y), families="kernel").save(tmp_path)
    damaged(tmp_path, **changes)
    with pytest.raises(RecordError, match=message):
        th.load(tmp_path)


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_number_that_is_none(tmp_path, number):
    """Python reads integers of any length, and no floating-point number is as large."""
    found = th.survey(model(), (X, Y), families="kernel")
    found.save(tmp_path)
    rows = [dict(row) for row in found.record.contents["rows"]]
    damaged(tmp_path, rows=[rows[0] | {"value": number}])
    with pytest.raises(RecordError, match="rows/0/value: expected a number, got one of 1329 bits"):
        th.load(tmp_path)


def test_damaged_histories(tmp_path):
    monitor = th.Monitor(model(), (X, Y), families="kernel", folder=tmp_path)
    monitor.step(0)
    step = tmp_path / "steps" / "0000000000"
    damaged(step, step=None)
    with pytest.raises(RecordError, match="step: expected a whole number, got None"):
        th.load(tmp_path)
    (step / "record.json").write_text("{")
    with pytest.raises(RecordError, match="damaged, not valid JSON"):
        th.load(tmp_path)
    (step / "record.json").unlink()
    damaged(tmp_path, layers=7)
    with pytest.raises(RecordError, match="layers: expected a list, got 7"):
        th.load(tmp_path)


def test_other_folders(tmp_path):
    with pytest.raises(RecordError, match=r"expected a folder with record.json, found none"):
        th.load(tmp_path)
    save_record(Record({"cka": 1.0}), tmp_path)
    with pytest.raises(RecordError, match="got kind None; read it with load_record"):
        th.load(tmp_path)


def test_a_model_whose_weights_have_no_shape_yet_is_refused():
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    with pytest.raises(DomainError, match=r"'1.weight' is made by the first batch .* call model"):
        th.survey(lazy, (X, Y))


def test_a_model_that_returns_one_number_for_a_batch_says_so():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(X.shape[1], 2)

        def forward(self, x):
            return self.inner(x).mean()

    found = th.survey(Mean(), (X, Y), families="gradient").record.contents["skipped"]
    assert "expected outputs of shape (n, c)" in found["gradient"]


def test_targets_that_make_no_columns_are_refused():
    with pytest.raises(DomainError, match=r"at least one number per example, got none: shape"):
        th.survey(model(), (X, torch.zeros(len(X), 0)))
    with pytest.raises(DomainError, match=r"classes below 1,000,000, got 1,000,000,000,000"):
        th.survey(model(), (X, torch.full((len(X),), 10**12)))


def test_class_labels_may_come_in_a_column():
    net = model()
    both = [th.survey(net, (X, t), families="gradient") for t in (Y, Y.unsqueeze(1))]
    assert both[0].record.contents["rows"] == both[1].record.contents["rows"]


def test_a_loss_that_fails_says_so_before_anything_is_measured():
    def broken(outputs, targets):
        raise KeyError("weight")

    with pytest.raises(ShapeError, match=r"loss: expected one that takes outputs .* KeyError"):
        th.survey(model(), (X, Y), loss=broken)


def test_held_out_examples_that_the_model_refuses_are_named():
    x, y = torch.randn(12, 6), torch.arange(12) % 2
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    with pytest.raises(ShapeError, match=r"^held_out: data: expected 6 features .*, got 2"):
        th.survey(model, (x, y), held_out=(x[:, :2], y))
    with pytest.raises(DomainError, match=r"^held_out: data: expected .* alone; pass"):
        th.survey(model, (x, y), held_out=x)


def test_only_close_names_are_suggested():
    with pytest.raises(UnknownNameError, match=r"'nope'; expected one of 'families', "):
        raise UnknownNameError("option", "nope", ["families", "examples", "seed"])
    with pytest.raises(UnknownNameError, match=r"'sed'; did you mean 'seed'\?$"):
        raise UnknownNameError("option", "sed", ["seconds", "read", "seed"])
    with pytest.raises(UnknownNameError, match=r"did you mean 'cka_input' or 'cka_target'\?$"):
        raise UnknownNameError("measure", "cka", ["cka_input", "omega", "cka_target"])
    with pytest.raises(UnknownNameError, match=r"'a'; there is none to choose from$"):
        raise UnknownNameError("curve", "a", [])
