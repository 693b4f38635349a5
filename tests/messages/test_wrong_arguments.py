"""Arguments that once raised an error of Python or torch from inside, or were accepted."""

from dataclasses import replace
from os import devnull

import numpy as np
import pytest
import torch
from torch import nn

import theodolite as th
from theodolite import advice, data, engine, interventions, metrics
from theodolite._distributed import Processes
from theodolite.errors import TheodoliteError
from theodolite.integrations import TensorBoardTracker, mlflow, track
from theodolite.integrations.tracking import parameters
from theodolite.linalg import Eigen, KernelProducts
from theodolite.measures import covariance, gradient, kernel, tangent
from theodolite.records import Record
from theodolite.surveys import TransferOptions

X = torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 5.0], [4.0, 1.0]])
Y = torch.tensor([0, 1, 0, 1])
NET = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
IMAGES = torch.arange(18.0).reshape(2, 1, 3, 3)
DATA = data.Dataset("toy", X, Y, X, Y)
FOUND = advice.Measured("accuracy", 1.0, 0.5, 100)
EMPTY = {"rows": [], "layers": [], "data": {"task": "unlabeled"}}


def found():
    return th.survey_features({"layer": X}, Y, families="kernel")


def ignore(*_arguments):
    return None


ENGINE = {
    "dtype": (lambda: engine.tangent_kernels(NET, X, dtype=3), "dtype: expected torch.dtype"),
    "dtype of Gram matrices": (
        lambda: engine.feature_grams(NET, X, dtype="float"),
        "dtype: expected torch.dtype or None, got 'float'",
    ),
    "center": (lambda: engine.feature_grams(NET, X, center=None), "center: expected True or False"),
    "batch size 0": (
        lambda: engine.feature_grams(NET, X, batch_size=0),
        "batch_size: expected an integer of at least 1, got 0",
    ),
    "pool": (
        lambda: engine.features(NET, X, pool=nn.AvgPool1d),
        "pool: expected a function, got the class AvgPool1d; make an instance first",
    ),
    "check": (
        lambda: engine.features(NET, X, check=np.ones(2)),
        "check: expected True, False or 'every'",
    ),
    "layer of a result": (lambda: engine.features(NET, X)[["0"]], "unknown layer ['0']"),
    "readout of gradients": (
        lambda: engine.gradient_sums(NET, X, Y, readout=np.ones(2)),
        "readout: expected one of",
    ),
    "Gram matrix": (
        lambda: engine.LayerSums.of_gram(None, X),
        "gram: expected torch.Tensor, got None",
    ),
    "batch of labels": (
        lambda: engine.PositionLabels.of(X, None),
        "batch: expected Batch, got None",
    ),
    "ddof of moments": (
        lambda: engine.feature_moments(NET, X)["0"].covariance(ddof=None),
        "ddof: expected an integer of at least 0, got None",
    ),
    "read": (lambda: engine.features(NET, X, read=0.5), "read: expected text or a mapping, got"),
    "outputs": (lambda: engine.features(NET, X, outputs=3), "outputs: expected a function, got 3"),
    "mapping of layers": (
        lambda: engine.tangent_kernels(NET, X, {"0": 4}),
        "layers: expected names or patterns as text, or a predicate, got 4",
    ),
    "params": (
        lambda: engine.tangent_kernels(NET, X, params=nn.Linear),
        "params: expected names or patterns as text, or a predicate, got Linear",
    ),
    "readout": (
        lambda: engine.tangent_kernels(NET, X, readout=nn.Identity),
        "readout: expected a function, got the class Identity; make an instance first",
    ),
    "progress": (
        lambda: engine.tangent_kernels(NET, X, progress=True),
        "progress: expected a function, got True",
    ),
    "progress of gradients": (
        lambda: engine.gradient_sums(NET, X, Y, progress="bar"),
        "progress: expected a function, got 'bar'",
    ),
    "loss": (
        lambda: engine.gradient_sums(NET, X, Y, nn.CrossEntropyLoss),
        "loss: expected a function, got the class CrossEntropyLoss; make an instance first",
    ),
    "targets of the default loss": (
        lambda: engine.gradient_sums(NET, engine.Batch((X,), targets="cat")),
        "targets: expected a tensor, got str",
    ),
    "stiffness": (
        lambda: engine.gradient_sums(NET, X, Y, stiffness="no"),
        "stiffness: expected True or False, got 'no'",
    ),
    "labels": (
        lambda: engine.gradient_alignment(NET, X, Y, labels=[0, 1, 0, 1]),
        "labels: expected torch.Tensor or None, got list",
    ),
    "processes": (
        lambda: engine.gradient_alignment(NET, X, Y, processes=None),
        "processes: expected Processes, got None",
    ),
    "generator": (
        lambda: engine.tangent_alignments(NET, X, Y, generator=0),
        "generator: expected torch.Generator or None, got 0",
    ),
    "targets of one number": (
        lambda: engine.tangent_alignments(NET, engine.Batch((X,), targets=torch.tensor(1.0))),
        "targets: expected one row per example, got a single number",
    ),
    "normalize": (
        lambda: engine.forward_kernel(NET, X, "0", normalize="no"),
        "normalize: expected True or False, got 'no'",
    ),
    "no inputs": (
        lambda: engine.backward_kernel(NET, [], "0"),
        "inputs: expected at least one batch, got none",
    ),
    "no layers": (
        lambda: engine.forward_backward_kernels(NET, X, None),
        "layers: expected a list, got None",
    ),
    "captured model": (
        lambda: engine.capture_outputs(None, ["0"]).__enter__(),
        "model: expected a torch.nn.Module, got None",
    ),
    "captured layers": (
        lambda: engine.capture_outputs(NET, 3).__enter__(),
        "layers: expected a list, got 3",
    ),
    "reduce": (
        lambda: engine.capture_outputs(NET, ["0"], 3).__enter__(),
        "reduce: expected a function, got 3",
    ),
    "images": (
        lambda: engine.patch_covariance(None, 2),
        "images: expected torch.Tensor or a list, got None",
    ),
    "kernel size": (
        lambda: engine.patch_covariance(IMAGES, None),
        "kernel_size: expected one whole number or 2, one per axis, got None",
    ),
    "padding": (
        lambda: engine.patch_covariance(IMAGES, 2, padding=0.5),
        "padding: expected one whole number or 2, one per axis, got 0.5",
    ),
    "ddof": (
        lambda: engine.patch_covariance(IMAGES, 2, ddof="1"),
        "ddof: expected an integer of at least 0, got '1'",
    ),
    "weight": (lambda: engine.weight_covariance(3), "module_or_weight: expected a torch.nn.Module"),
    "one of several weights": (
        lambda: engine.weight_covariance([X, "0"]),
        "weights[1]: expected a torch.nn.Module or torch.Tensor, got '0'",
    ),
}

MEASURES = {
    "centered": (
        lambda: covariance.misalignment_floor(9, 2, centered="no"),
        "centered: expected True or False, got 'no'",
    ),
    "weights": (
        lambda: covariance.compare_misalignment_along(
            Eigen(torch.ones(2), torch.eye(2)), torch.ones(2), covariance.random_bases
        ),
        "weights: expected 2 axes, got shape (2,)",
    ),
    "errors": (
        lambda: tangent.peak_layer(torch.tensor([0.1, 0.2]), errors="2"),
        "errors: expected a number, got '2'",
    ),
    "vectors": (
        lambda: gradient.VectorMoments.of(None),
        "vectors: expected torch.Tensor, got None",
    ),
    "unit length": (
        lambda: gradient.VectorMoments.of(X, unit_length="no"),
        "unit_length: expected True or False, got 'no'",
    ),
    "complex vectors": (
        lambda: gradient.VectorMoments.of(X.to(torch.complex64)),
        "vectors: expected floating-point numbers, got torch.complex64",
    ),
    "grams": (lambda: kernel.mean_gram([None]), "grams[0]: expected a tensor, got NoneType"),
    "stack": (lambda: kernel.CenteredGrams.of(X), "grams: expected 3 axes, got shape (4, 2)"),
    "diagonals": (
        lambda: KernelProducts.of(X @ X.T, torch.ones(4)),
        "diagonals: expected 2 axes, got shape (4,)",
    ),
    "eps": (
        lambda: kernel.cka_from_products(KernelProducts.of(X @ X.T, X), eps=None),
        "eps: expected a number, got None",
    ),
    "eps of permutations": (
        lambda: kernel.permuted_cka(X @ X.T, X.unsqueeze(0), eps=[None]),
        "eps: expected a number, got None",
    ),
    "random bases": (
        lambda: covariance.compare_misalignment_along(
            Eigen(torch.ones(2), torch.eye(2)), X, lambda count: None
        ),
        "bases: expected a tensor, got NoneType",
    ),
    "debiased": (lambda: metrics.PairCKA("no"), "debiased: expected True or False, got 'no'"),
    "centered state": (
        lambda: metrics.CovarianceState(centered=None),
        "centered: expected True or False, got None",
    ),
    "thresholds": (
        lambda: metrics.RepresentationAlignment(2, torch.ones(1, dtype=torch.complex64)),
        "thresholds: expected real numbers, got torch.complex64",
    ),
    "tau": (
        lambda: interventions.covariance_init_(NET, X, tau=nn.Identity),
        "tau: expected a function, got the class Identity",
    ),
    "weight of integers": (
        lambda: interventions.init_weight_(torch.ones(2, 2, dtype=torch.long), "he"),
        "weight: expected floating-point numbers, got torch.int64",
    ),
}

DATA_SETS = {
    "name": (lambda: replace(DATA, name=3), "name: expected text, got 3"),
    "classes": (lambda: replace(DATA, classes=3), "classes: expected tuple or list, got 3"),
    "a class": (lambda: replace(DATA, classes=(0, 1)), "classes[0]: expected text, got 0"),
    "classes as text": (lambda: replace(DATA, classes="ab"), "classes: expected tuple or list"),
    "scaling": (lambda: replace(DATA, scaling=None), "scaling: expected tuple or list, got None"),
    "peak": (lambda: replace(DATA, peak="255"), "peak: expected a number, got '255'"),
    "transform": (lambda: DATA.mapped(None, "step"), "transform: expected a function, got None"),
    "rows": (lambda: DATA.take("all"), "train: expected torch.Tensor or slice or list, got 'all'"),
    "rows that are missing": (lambda: DATA.take(torch.tensor([9])), "rows: expected indices of ex"),
    "unknown device": (
        lambda: DATA.to("nonsense"),
        "device: expected one of this machine, got 'nonsense'",
    ),
    "device": (lambda: DATA.to(0.5), "device: expected torch.device or text, got 0.5"),
    "labels": (
        lambda: data.random_labels(torch.tensor([0.5, 1.0])),
        "labels: expected integers, got torch.float32",
    ),
    "image": (
        lambda: data.image_standardized(torch.ones(3)),
        "images: expected one example per row, got shape (3,)",
    ),
    "inputs": (
        lambda: data.unit_rows(torch.tensor(1.0)),
        "inputs: expected one example per row, got shape ()",
    ),
    "training": (
        lambda: data.pixel_standardizer(torch.tensor(1.0)),
        "training: expected one example per row, got shape ()",
    ),
    "standardized": (
        lambda: data.pixel_standardizer(X)(None),
        "inputs: expected a tensor, got NoneType",
    ),
    "file": (lambda: data.opened_npz(None).__enter__(), "file: expected a path as text"),
    "key": (lambda: data.npz_tensor("toy.npz", 3, np.ones(2)), "key: expected text, got 3"),
}

RESULTS = {
    "train": (lambda: advice.carry_over(None, FOUND), "train: expected Measured, got NoneType"),
    "left out": (
        lambda: advice.carry_over(FOUND, FOUND, left_out=None),
        "left_out: expected a whole number, got NoneType",
    ),
    "scores": (
        lambda: advice.compare_layers({"a": None}, shares=True),
        "scores['a']: expected ndarray, got NoneType",
    ),
    "no scores": (
        lambda: advice.compare_layers({}, shares=True),
        "scores: expected at least one layer, got none",
    ),
    "evidence": (
        lambda: advice.judge_inputs(FOUND),
        "evidence: expected FitEvidence, got Measured",
    ),
    "contents": (lambda: advice.findings_of(None), "contents: expected a mapping, got NoneType"),
    "rows of contents": (
        lambda: advice.answers_of({}),
        "contents['rows']: expected a list, got NoneType",
    ),
    "interface": (
        lambda: advice.worded(advice.Unlabelled(), "python"),
        "interface: expected Interface, got str",
    ),
    "interface of answers": (
        lambda: advice.answers_of(EMPTY, interface="python"),
        "interface: expected Interface, got str",
    ),
    "record": (
        lambda: advice.worded_for(EMPTY, advice.Interface.PYTHON),
        "record: expected Record, got dict",
    ),
    "parameters": (lambda: parameters(EMPTY), "record: expected Record, got dict"),
    "tracker": (lambda: track(found(), None), "trackers[0]: expected Tracker, got NoneType"),
    "report": (lambda: track(found(), report=3), "report: expected a path as text"),
    "folder of MLflow": (lambda: mlflow.default_tracking_uri(3), "folder: expected a path as text"),
    "address": (lambda: mlflow.without_password(None), "text: expected text, got NoneType"),
    "experiment": (
        lambda: mlflow.MLflowTracker(experiment=3),
        "experiment: expected text, got int",
    ),
    "log directory": (lambda: TensorBoardTracker(None), "folder: expected a path as text"),
    "overwrite": (
        lambda: found().save(f"{devnull}/run", overwrite="no"),
        "overwrite: expected True or False, got str",
    ),
    "names": (lambda: th.compare(found(), found(), names=3), "names: expected a list of texts"),
    "plot": (lambda: found().plot(""), "unknown family, measure or curve ''"),
    "step": (lambda: found().plot("kernel", step="1"), "step: expected a whole number, got str"),
    "theme": (lambda: found().plot("kernel", theme=[]), "unknown theme []"),
    "groups": (
        lambda: th.survey(NET, X, Y, groups=[None, "a", "a", "b"]),
        "groups: expected a number or a name for each example, and one kind, got None",
    ),
    "mixed groups": (
        lambda: th.survey(NET, X, Y, groups=[1, "a", "a", "b"]),
        "groups: expected a number or a name for each example, and one kind, got numbers and names",
    ),
    "process group": (
        lambda: th.survey(NET, X, Y, options={"group": 3}),
        'group: expected "auto", None or a process group of torch.distributed, got 3',
    ),
    "group of processes": (lambda: Processes.of(True), "group: expected"),
    "schedule": (
        lambda: th.Monitor(NET, (X, Y), every=nn.Identity),
        "every: expected a function, got the class Identity",
    ),
    "monitor": (
        lambda: th.Monitor(NET, (X, Y), overwrite="no"),
        "overwrite: expected True or False, got 'no'",
    ),
    "transfer": (
        lambda: th.transfer(NET, (X, Y), overwrite=None),
        "overwrite: expected True or False, got None",
    ),
    "tangent": (lambda: TransferOptions(tangent="no"), "tangent: expected True or False, got 'no'"),
    "head": (lambda: TransferOptions(head=3), "head: expected text or a mapping or None, got 3"),
    "label counts": (
        lambda: TransferOptions(labels="many"),
        "labels[0]: expected a number, got 'm'",
    ),
    "seed": (lambda: TransferOptions(seed=0.5), "seed: expected a whole number, got 0.5"),
}

CALLS = {
    f"{part}: {name}": call
    for part, calls in {
        "engine": ENGINE,
        "measures": MEASURES,
        "data": DATA_SETS,
        "results": RESULTS,
    }.items()
    for name, call in calls.items()
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS)
def test_a_wrong_argument_is_named(call, message):
    with pytest.raises(TheodoliteError) as raised:
        call()
    assert message in str(raised.value)


def test_an_array_of_names_is_a_list_of_names():
    names = np.array(["0", "2"])
    assert list(engine.features(NET, X, names)) == ["0", "2"]
    assert list(engine.tangent_kernels(NET, X, names)) == ["0", "2"]
    assert list(engine.input_moments(NET, X, names)) == ["0", "2"]


def test_numbers_of_numpy_stay_whole_numbers():
    steps = np.int64(1)
    assert engine.patch_covariance(IMAGES, np.int64(2), steps).shape == (4, 4)
    assert parameters(Record({"config": {"seed": 1}})) == {"config.seed": "1"}
