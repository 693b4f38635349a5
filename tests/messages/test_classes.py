"""Arguments of a wrong class: the error names the argument, what was expected and what came."""

import numpy as np
import pytest
import torch
from torch import nn

from theodolite import advice, data, integrations, interventions
from theodolite.errors import DomainError, DtypeError, ShapeError, TheodoliteError
from theodolite.linalg import Eigen
from theodolite.measures import covariance, gradient, kernel, representation, tangent
from theodolite.metrics import RepresentationAlignment
from theodolite.theory import convergence, infinite_width, kernel_regression
from theodolite.theory.learning import learning_curve

X = torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 5.0], [4.0, 1.0]])
LABELS = torch.tensor([0, 1, 0, 1])
GRAM = X @ X.T
TANGENT = torch.eye(4).reshape(4, 1, 4, 1)
PAIRS = Eigen(torch.tensor([2.0, 1.0]), torch.eye(2))
GRAMS = kernel.CenteredGrams.of(GRAM.unsqueeze(0))

FLAGS = {
    "cka": lambda: kernel.cka(GRAM, GRAM, "biased"),
    "linear_cka": lambda: kernel.linear_cka(X, X, "biased"),
    "target_cka": lambda: kernel.target_cka(X, LABELS, "biased"),
    "cka_matrix": lambda: kernel.cka_matrix([X, X], LABELS, "biased"),
    "hsic": lambda: kernel.hsic(GRAM, GRAM, debiased=None),
    "centered_cka": lambda: kernel.centered_cka(GRAMS, GRAMS, debiased="biased"),
}


@pytest.mark.parametrize("call", FLAGS.values(), ids=FLAGS)
def test_a_name_is_no_flag(call):
    """Any text counts as true, so "biased" gave the debiased number."""
    with pytest.raises(DtypeError, match=r"debiased: expected True or False, got ('biased'|None)"):
        call()


def test_flags_of_numpy_are_flags():
    assert kernel.cka(GRAM, GRAM, np.bool_(False)) == kernel.cka(GRAM, GRAM, False)


CLASSES = {
    "projections": (
        lambda: representation.area_from_projections(X),
        "projections: expected LabelProjections, got Tensor",
    ),
    "share": (
        lambda: representation.top_share_from_projections(None, 1),
        "projections: expected LabelProjections, got None",
    ),
    "curve": (
        lambda: representation.curve_from_projections([X]),
        "projections: expected LabelProjections, got list",
    ),
    "sums": (
        lambda: gradient.contrast_from_sums(X, X),
        "classes: expected SetSums, got Tensor",
    ),
    "products": (
        lambda: kernel.cka_from_products(GRAM),
        "products: expected KernelProducts, got Tensor",
    ),
    "grams": (
        lambda: kernel.centered_cka(GRAM, GRAMS),
        "first: expected CenteredGrams, got Tensor",
    ),
    "directions": (
        lambda: covariance.compare_misalignment_along(torch.eye(2), X, covariance.random_bases),
        "directions: expected Eigen, got Tensor",
    ),
    "generator": (
        lambda: covariance.random_basis_misalignment(torch.eye(2), generator=0),
        "generator: expected torch.Generator or None, got 0",
    ),
    "bases": (
        lambda: covariance.random_bases(3, 2, 0),
        "generator: expected torch.Generator or None, got 0",
    ),
    "permuted targets": (
        lambda: kernel.permuted_cka(GRAM, None),
        "targets: expected torch.Tensor, got None",
    ),
    "values": (
        lambda: gradient.mean_over_classes([0.5]),
        "values: expected torch.Tensor, got list",
    ),
    "trace": (
        lambda: kernel.participation_from_traces(None, torch.ones(1)),
        "trace: expected torch.Tensor, got None",
    ),
    "norms": (
        lambda: tangent.alignment_from_norms(torch.ones(1), None, 1.0),
        "kernel_norm: expected torch.Tensor, got None",
    ),
    "thresholds": (
        lambda: RepresentationAlignment(2, [0.0, 0.5]),
        "thresholds: expected a tensor, got list; convert it with torch.as_tensor",
    ),
    "ridge": (
        lambda: kernel_regression.linear_probe(X, X, "0.1"),
        "ridge: expected a number, got '0.1'",
    ),
    "rates": (
        lambda: convergence.convert_step_size([0.1], "mean", 3),
        "learning_rate: expected a number, got list",
    ),
    "cosine": (
        lambda: infinite_width.forward_losses(3, None),
        "correlation: expected a number, got None",
    ),
}


@pytest.mark.parametrize(("call", "message"), CLASSES.values(), ids=CLASSES)
def test_says_which_class_was_expected(call, message):
    with pytest.raises(DtypeError) as raised:
        call()
    assert message in str(raised.value)


@pytest.mark.parametrize("count", ["2", 2.0, [2]])
@pytest.mark.parametrize(
    "call",
    [
        lambda count: tangent.centered_labels(LABELS, count),
        lambda count: kernel.target_gram(LABELS, count),
        lambda count: gradient.class_alignment(X, LABELS, count),
    ],
)
def test_a_number_of_classes_is_whole(call, count):
    with pytest.raises(DomainError, match="num_classes: expected an integer of at least 1, got"):
        call(count)


SHAPES = {
    "kernel": (
        lambda: tangent.permuted_alignments(GRAM, X.unsqueeze(0)),
        "kernel: expected 4 axes, got shape (4, 4)",
    ),
    "permutations": (
        lambda: tangent.permuted_alignments(TANGENT, X.unsqueeze(0)),
        "targets: expected shape (permutations, 4, 1)",
    ),
    "targets": (
        lambda: kernel.permuted_cka(GRAMS.grams, X),
        "targets: expected 3 axes, got shape (4, 2)",
    ),
    "centered": (
        lambda: kernel.permuted_cka(GRAMS.grams, X[:3].unsqueeze(0)),
        "centered: expected kernels between the 3 examples of the targets",
    ),
    "other examples": (
        lambda: kernel.centered_cka(GRAMS, GRAMS.take(torch.tensor([0, 1, 2]))),
        "first has 4 examples and second has 3",
    ),
}


@pytest.mark.parametrize(("call", "message"), SHAPES.values(), ids=SHAPES)
def test_shapes_of_permuted_targets(call, message):
    with pytest.raises(ShapeError) as raised:
        call()
    assert message in str(raised.value)


LAST = {
    "bases": (
        lambda: covariance.compare_misalignment_along(PAIRS, X, torch.eye(2)),
        "bases: expected a function, got Tensor",
    ),
    "weights": (
        lambda: covariance.compare_misalignment_along(PAIRS, X / 0, covariance.random_bases),
        "weights: expected finite numbers",
    ),
    "indices": (
        lambda: covariance.subspace_overlap(torch.eye(2), torch.eye(2), ["0"]),
        "indices: expected different ranks from 0 to 1, got ['0']",
    ),
    "no indices": (
        lambda: covariance.subspace_overlap(torch.eye(2), torch.eye(2), 1),
        "indices: expected a list, got 1",
    ),
    "layers": (lambda: kernel.cka_matrix(None), "layers: expected a mapping or a list or"),
    "grams": (lambda: kernel.mean_gram(None), "grams: expected a list or torch.Tensor, got None"),
    "zero": (
        lambda: gradient.SetSums(X, X, X, X).alignment("none"),
        "zero: expected one of 'nan', 'zero', got 'none'",
    ),
}


@pytest.mark.parametrize(("call", "message"), LAST.values(), ids=LAST)
def test_lists_functions_and_choices_are_named(call, message):
    with pytest.raises(TheodoliteError) as raised:
        call()
    assert message in str(raised.value)


def test_eigenpairs_are_accepted():
    assert covariance.compare_misalignment_along(PAIRS, X, covariance.random_bases).subspace == 2


IMAGES = torch.zeros(4, 1, 5, 5)
NET = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
OTHERS = {
    "model": (lambda: interventions.initialize_(nn.Linear), "model: expected a torch.nn.Module"),
    "frozen": (lambda: interventions.freeze_except_("net"), "model: expected a torch.nn.Module"),
    "start": (
        lambda: interventions.covariance_init_(None, IMAGES),
        "model: expected a torch.nn.Module, got None",
    ),
    "layers": (
        lambda: interventions.freeze_except_(NET, [3]),
        "layers: expected names or patterns as text, or a predicate, got 3",
    ),
    "weight": (
        lambda: interventions.init_weight_([1.0], "he"),
        "weight: expected torch.Tensor, got list",
    ),
    "generator": (
        lambda: interventions.init_weight_(torch.ones(2, 2), "he", generator=0),
        "generator: expected torch.Generator or None, got 0",
    ),
    "scale": (
        lambda: interventions.initialize_(nn.Linear(2, 2), scale="2"),
        "scale: expected a number, got '2'",
    ),
    "tau": (
        lambda: interventions.covariance_init_(NET, IMAGES, tau=3),
        "tau: expected 'f1', 'f2', 'f3', a list of numbers or a function, got 3",
    ),
    "covariances": (
        lambda: interventions.covariance_init_(NET, IMAGES, covariances=[X]),
        "covariances: expected a mapping or None, got list",
    ),
    "norms": (
        lambda: interventions.covariance_init_(NET, IMAGES, match_norms="yes"),
        "match_norms: expected True or False, got 'yes'",
    ),
    "pixels": (lambda: data.unit_interval([0, 255]), "pixels: expected torch.Tensor, got list"),
    "peak": (lambda: data.symmetric_range(X, peak="255"), "peak: expected a number, got '255'"),
    "training": (
        lambda: data.pixel_standardizer(X.numpy()),
        "training: expected torch.Tensor, got ndarray",
    ),
    "data set": (lambda: data.scaled(X, "pixels"), "dataset: expected Dataset, got Tensor"),
    "inputs": (
        lambda: data.Dataset("toy", X.numpy(), LABELS, X, LABELS),
        "x_train: expected a tensor, got ndarray; convert it with torch.as_tensor",
    ),
    "shuffled": (lambda: data.random_labels([0, 1]), "labels: expected torch.Tensor, got list"),
    "drawn": (
        lambda: data.disjoint_rows(10, 4, generator=0),
        "generator: expected torch.Generator or None, got 0",
    ),
    "split": (
        lambda: data.digits(generator=0),
        "generator: expected torch.Generator or None, got 0",
    ),
    "source": (lambda: data.load_data(3), "source: expected a path as text or pathlib.Path"),
    "file": (lambda: data.load_npz(None), "path: expected a path as text or pathlib.Path"),
    "images": (lambda: data.load_image_folder(3), "path: expected a path as text or pathlib.Path"),
    "record": (lambda: integrations.scalars(None), "record: expected Record, got NoneType"),
    "run": (lambda: integrations.track(3), "run: expected a survey, a history or the folder"),
    "finding": (lambda: advice.worded(3), "finding: expected one of theodolite.advice"),
    "labels": (
        lambda: learning_curve(torch.ones(30, 2), torch.arange(30), "100"),
        "labels: expected a list with numbers of labelled examples, got '100'",
    ),
    "kernel": (
        lambda: learning_curve(torch.ones(30, 2), torch.arange(30), kernel="yes"),
        "kernel: expected True or False or None, got 'yes'",
    ),
}


@pytest.mark.parametrize(("call", "message"), OTHERS.values(), ids=OTHERS)
def test_other_packages_say_which_class_was_expected(call, message):
    with pytest.raises(DtypeError) as raised:
        call()
    assert message in str(raised.value)


def test_an_empty_weight_has_no_fans():
    with pytest.raises(ShapeError, match="weight: expected at least 2 axes and one entry"):
        interventions.fans(torch.ones(0, 3))
