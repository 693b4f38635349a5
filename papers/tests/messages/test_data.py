"""What data loaders and generators say about bad input."""

import sys

import numpy as np
import pytest
import torch

from theodolite import data as datasets
from theodolite.errors import DataError, DomainError, DtypeError, ShapeError, UnknownNameError
from theodolite_papers import alignment_zoo
from theodolite_papers.imani2022._fitted_features import rbf_features, sparse_codes
from theodolite_papers.imani2022._image_features import (
    hog_features,
    sift_descriptors,
    visual_vocabulary,
)
from theodolite_papers.lab import data
from theodolite_papers.maennel2020._ladder import image_ladder

LABELS = torch.tensor([0, 0, 1, 1, 2])
X, Y = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: data.balanced_rows(LABELS, 3, [0, 1]),
            DomainError,
            "size: expected a multiple of the 2 classes, got 3; the next is 4",
        ),
        (
            lambda: data.balanced_rows(LABELS, 4, [0, 2]),
            DomainError,
            "labels: expected at least 2 examples of class 2, got 1; ask for a smaller size",
        ),
        (
            lambda: datasets.disjoint_rows(10, 4, 7),
            DomainError,
            r"sizes: expected at most 10 examples in all, got 4 \+ 7 = 11",
        ),
        (
            lambda: datasets.disjoint_rows(10, -4),
            DomainError,
            r"sizes\[0\]: expected an integer of at least 0, got -4",
        ),
        (
            lambda: data.balanced_rows(LABELS, 3, []),
            DomainError,
            "classes: expected at least one class, got none",
        ),
        (
            lambda: data.peaks_values(torch.rand(2, 6), None),
            DtypeError,
            "task: expected text, got None",
        ),
        (
            lambda: data.gaussian(None, train="5"),
            DomainError,
            "train: expected an integer of at least 1, got '5'",
        ),
        (
            lambda: data.peaks("ABC", generator=0),
            DtypeError,
            "generator: expected torch.Generator or None, got 0",
        ),
        (
            lambda: data.class_subset(None, [0]),
            DtypeError,
            "dataset: expected Dataset, got None",
        ),
        (
            lambda: data.class_pairs(None),
            DtypeError,
            "classes: expected int or a list, got None",
        ),
        (
            lambda: alignment_zoo.load(3),
            DtypeError,
            "folder: expected a path as text or pathlib.Path, got int",
        ),
        (
            lambda: data.pair_task(LABELS, (1, 1)),
            DomainError,
            r"pair: expected two distinct classes, got \(1, 1\)",
        ),
        (
            lambda: data.corrupted_labels(LABELS, 1.5),
            DomainError,
            r"fraction: expected a number in \[0.0, 1.0\], got 1.5",
        ),
        (
            lambda: data.peaks_values(torch.rand(2, 6), "AAB"),
            DomainError,
            "task: expected three distinct letters of ABCDEF, e.g. 'ABC', got 'AAB'",
        ),
        (
            lambda: data.peaks_features(torch.rand(2, 5)),
            ShapeError,
            r"variables: expected 6 columns, A to F, got shape \(2, 5\)",
        ),
        (
            lambda: data.gaussian_inputs(3, torch.diag(torch.tensor([1.0, -2.0]))),
            DomainError,
            "covariance: expected no negative eigenvalue, got -2",
        ),
        (
            lambda: datasets.scaled(data.peaks(train=2, test=2), "symmetric"),
            DomainError,
            "expected raw pixels for 'symmetric', but peaks-ABC holds unit_rows; load it unscaled",
        ),
        (
            lambda: datasets.scaled(datasets.digits(), "zscore"),
            DomainError,
            "scaling: expected one of 'unit_interval'.*got 'zscore'",
        ),
        (
            lambda: image_ladder(torch.rand(2, 3, 32, 32), "shuffled"),
            ShapeError,
            r"expected sides that 3 divides, got 32 x 32; crop .*central_crop\(images, 30\)",
        ),
        (
            lambda: image_ladder(torch.rand(2, 3, 9, 9), "blurred"),
            DomainError,
            "rung: expected one of 'gaussian_global'.*got 'blurred'",
        ),
        (
            lambda: hog_features(torch.rand(1, 3, 8, 32)),
            ShapeError,
            r"images: expected at least 16 x 16 pixels \(one block\), got 8 x 32",
        ),
        (
            lambda: sift_descriptors(torch.rand(1, 8, 8)),
            ShapeError,
            r"patches: expected 16 x 16 pixels, got shape \(1, 8, 8\)",
        ),
        (
            lambda: visual_vocabulary(torch.rand(3, 2), 4),
            DomainError,
            r"words: expected at most one word per descriptor \(3\), got 4",
        ),
        (
            lambda: rbf_features(torch.rand(3, 2), torch.rand(3, 4)),
            ShapeError,
            "expected inputs and centers of one width, got 2 and 4",
        ),
        (
            lambda: sparse_codes(torch.rand(3, 2), torch.rand(3, 4)),
            ShapeError,
            "dictionary: expected atoms of the inputs' width 2, got 4",
        ),
        (
            lambda: data.class_subset(datasets.digits(), ["eleven"]),
            UnknownNameError,
            "unknown class of digits 'eleven'",
        ),
        (
            lambda: data.load_ct_position(path="no/such.csv"),
            DataError,
            "expected no/such.csv, which does not exist; download .*UCI.*206.*THEODOLITE_DATA",
        ),
        (
            lambda: datasets.load_data("cifra10"),
            UnknownNameError,
            "unknown data set 'cifra10'.*cifar10",
        ),
        (
            lambda: data.load_image_set("mnits"),
            UnknownNameError,
            "unknown image set 'mnits'.*'mnist'",
        ),
        (
            lambda: datasets.Dataset("d", torch.rand(2, 3), LABELS, torch.rand(5, 3), LABELS),
            ShapeError,
            "x_train has 2, y_train has 5",
        ),
        (
            lambda: datasets.Dataset("d", torch.rand(5, 3), LABELS, torch.rand(5, 4), LABELS),
            ShapeError,
            r"examples of one shape, but x_train has \(3,\) and x_test has \(4,\)",
        ),
        (
            lambda: datasets.Dataset("d", torch.rand(5, 3), LABELS, torch.rand(5, 3), LABELS / 2),
            DomainError,
            "targets of one kind, but y_train is torch.int64 and y_test is torch.float32",
        ),
        (
            lambda: datasets.Dataset(
                "d", torch.rand(5, 3), LABELS + 10**7, torch.rand(5, 3), LABELS
            ),
            DomainError,
            "y_train: expected classes numbered from 0, got a label of 10000002 among 5 examples; "
            "relabel",
        ),
        (
            lambda: datasets.Dataset(
                "d", torch.rand(5, 3), LABELS + 110_000, torch.rand(5, 3), LABELS
            ),
            DomainError,
            "labels: expected class indices below 100000, got 110002; relabel",
        ),
    ],
)
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "x_train, y_train, x_test, y_test, but y_test is missing; found x_tr"),
        ({"y_test": None, "x_test": None}, "but x_test, y_test are missing; found x_train, y_tr"),
        ({"x_train": np.array(3)}, r"x_train: expected at least 2 axes.*got shape \(\)"),
        ({"x_train": np.array(["a"])}, r"x_train: expected numbers .*, got text"),
        ({"y_train": Y > 0}, r"y_train: expected numbers .*, got bool"),
        ({"y_train": Y[:3]}, "x_train has 4, y_train has 3"),
        ({"y_train": Y - 1}, "y_train: expected labels of at least 0, got -1"),
        ({"y_train": Y[:, None]}, r"y_train: expected 1 axes, got shape \(4, 1\); reshape"),
        ({"x_test": X[:, :4]}, r"one shape, but x_train has \(1, 8, 8\) and x_test has \(1, 4, 8"),
        ({"x_train": X / np.nan}, r"x_train: expected finite numbers, got nan at index"),
        ({"x_train": np.array([{}])}, "without pickled objects, but it cannot be read .*np.savez"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_npz_messages_name_the_file(tmp_path, changes, message):
    arrays = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y} | changes
    path = tmp_path / "toy.npz"
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(DataError, match=rf"toy\.npz: .*{message}"):
        datasets.load_npz(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected an .npz file with the arrays x_train.*, found no such file"),
        (b"", "cannot be read"),
        (b"PK\x03\x04 nothing more", "cannot be read"),
        (b"x,y\n1,2\n", "cannot be read"),
    ],
    ids=["absent", "empty", "truncated", "text"],
)
def test_damaged_files(tmp_path, content, message):
    path = tmp_path / "toy.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"toy\.npz: .*{message}"):
        datasets.load_npz(path)


def test_a_single_array_is_not_a_data_set(tmp_path):
    np.save(tmp_path / "toy.npy", X)
    with pytest.raises(DataError, match=r"got a single array; use np\.savez"):
        datasets.load_npz(tmp_path / "toy.npy")


def test_missing_sets_say_what_to_put_where(monkeypatch, tmp_path):
    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path))
    with pytest.raises(DataError) as caught:
        data.load_image_set("cifar100")
    message = str(caught.value)
    for part in (
        str(tmp_path / "cifar100.npz"),
        "THEODOLITE_DATA",
        "x_train (50000, 32, 32, 3)",
        "x_test (10000, 32, 32, 3) of uint8",
        "y_train (50000,)",
        "integers 0..99",
        "download_image_set",
    ):
        assert part in message
    assert "\n" not in message


def test_offline_downloads_say_why(monkeypatch, tmp_path):
    class Offline:
        @staticmethod
        def load_dataset(*_):
            raise ConnectionError("no route\nto host")

    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", Offline)
    with pytest.raises(
        DataError, match=r"download failed \(ConnectionError: no route\)\. With network access"
    ):
        data.download_image_set("mnist")


def test_folders_without_pillow_say_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(
        DataError, match="need Pillow, which is not installed; run 'pip install pil"
    ):
        datasets.load_image_folder(tmp_path)
