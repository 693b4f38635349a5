"""Data from the network and the papers: named image sets, CT slices, generated sets."""

import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from theodolite import data as files
from theodolite.errors import DataError, TheodoliteError
from theodolite_papers.lab import data

X = np.arange(5 * 6 * 7 * 3, dtype=np.uint8).reshape(5, 6, 7, 3)
Y = np.array([0, 1, 2, 1, 0])


def write(path, **changes):
    arrays = {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:2]} | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


README = """---
configs:
- config_name: {config}
  data_files:
  - split: train
    path: train.parquet
  - split: test
    path: test.parquet
---
"""


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Repositories as on the hub, where ``datasets`` looks before it asks the network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path / "new"))

    def publish(name):
        known = data.IMAGE_SETS[name]
        repository = tmp_path / known.repository
        repository.mkdir(parents=True)
        (repository / "README.md").write_text(README.format(config=known.config or "default"))
        for split, count in (("train", 7), ("test", 3)):
            _published(known, count).to_parquet(repository / f"{split}.parquet")
        return repository

    return publish


def _published(known, count):
    """A split of images of one color each, encoded as the hub has them."""
    image, label = known.columns
    columns = {image: datasets.Image(), label: datasets.ClassLabel(known.num_classes)}
    pictures = [Image.fromarray(np.full(known.shape, index, np.uint8)) for index in range(count)]
    rows = {image: pictures, label: list(range(count))}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(columns))


@pytest.mark.parametrize("name", sorted(data.IMAGE_SETS))
def test_image_sets_are_downloaded_once_and_kept(hub, tmp_path, name):
    repository = hub(name)
    first = data.download_image_set(name)
    shutil.rmtree(repository)
    again = files.load_data(name)
    known = data.IMAGE_SETS[name]
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"{name}.npz"]
    for sets in (first, again):
        channels = 3 if len(known.shape) == 3 else 1
        assert sets.shape == (channels, *known.shape[:2])
        assert sets.x_train[:, 0, 0, 0].tolist() == list(range(7))
        assert sets.y_test.tolist() == [0, 1, 2]
        assert sets.num_classes == known.num_classes
        assert (sets.name, sets.peak, sets.scaling) == (name, 255, ())


def test_image_sets_name_their_classes(monkeypatch, tmp_path):
    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path))
    for name, shape in (("cifar10", (5, 32, 32, 3)), ("fashion_mnist", (5, 28, 28))):
        x = np.zeros(shape, np.uint8)
        write(tmp_path / f"{name}.npz", x_train=x, x_test=x[:2])
    assert data.load_image_set("cifar10").classes[3] == "cat"
    assert len(data.load_image_set("fashion_mnist").classes) == 10


def test_svhn_calls_class_ten_digit_zero(monkeypatch, tmp_path):
    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path))
    x = np.zeros((4, 32, 32, 3), np.uint8)
    y = np.array([10, 1, 9, 10])
    write(tmp_path / "svhn.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert data.load_image_set("svhn").y_train.tolist() == [0, 1, 9, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"x_train": X.astype(np.float32), "x_test": X[:2].astype(np.float32)},
        {"x_train": X[..., :1], "x_test": X[:2, ..., :1]},
        {"y_train": Y + 10},
        {"y_train": Y / 2, "y_test": Y[:2] / 2},
    ],
    ids=["floats", "channels", "labels", "regression"],
)
def test_image_sets_on_disk_are_checked(monkeypatch, tmp_path, changes):
    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path))
    sound = {"x_train": np.zeros((5, 32, 32, 3), np.uint8)}
    sound["x_test"] = sound["x_train"][:2]
    write(tmp_path / "cifar10.npz", **sound)
    assert data.load_image_set("cifar10").num_classes == 10
    write(tmp_path / "cifar10.npz", **(sound | changes))
    with pytest.raises(DataError):
        data.load_image_set("cifar10")


def test_failed_downloads_leave_nothing_behind(monkeypatch, tmp_path):
    def offline(*_):
        raise ConnectionError("no route to host")

    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path))
    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError):
        data.download_image_set("mnist")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_image_set_is_said_at_once_without_a_download(monkeypatch, tmp_path):
    def never(*_):
        raise AssertionError("loading must not look for a network")

    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path))
    monkeypatch.setattr(datasets, "load_dataset", never)
    with pytest.raises(DataError, match=r"mnist\.npz, which does not exist\. With network access"):
        data.load_image_set("mnist")


def write_ct(path, rows=9, column="reference"):
    names = ["patientId", *(f"value{index}" for index in range(384)), column]
    lines = [",".join(names)]
    lines += [",".join(str(row * 1000 + k) for k in range(386)) for row in range(rows)]
    path.write_text("\n".join(lines))


def test_ct_position_reads_features_and_target(monkeypatch, tmp_path, generator):
    monkeypatch.setenv("THEODOLITE_DATA", str(tmp_path))
    write_ct(tmp_path / data.CT_FILE)
    sets = data.load_ct_position(train=5, test=4, generator=generator)
    x, y = torch.cat([sets.x_train, sets.x_test]), torch.cat([sets.y_train, sets.y_test])
    rows = torch.div(y, 1000, rounding_mode="floor")
    assert sorted(rows.tolist()) == list(range(9))  # disjoint, and all of them
    assert y.equal(rows * 1000 + 385)
    assert x.equal(rows.unsqueeze(1) * 1000 + torch.arange(1, 385).double())
    assert sets.num_classes == 0
    with pytest.raises(TheodoliteError):
        data.load_ct_position(train=5, test=5)


@pytest.mark.parametrize("damage", ["absent", "column", "text", "empty"])
def test_ct_position_refuses(tmp_path, damage):
    path = tmp_path / "table.csv"
    if damage == "column":
        write_ct(path, column="target")
    if damage == "empty":
        write_ct(path, rows=0)
    if damage == "text":
        write_ct(path)
        path.write_text(path.read_text().replace("1001", "many"))
    with pytest.raises(DataError):
        data.load_ct_position(1, 1, path)


def test_sources(generator):
    assert files.load_data("gaussian", generator).shape == (20,)
    assert files.load_data("peaks").name == "peaks-ABC"
    with pytest.raises(TheodoliteError):
        files.load_data("peaks-AAA")


MODULES = sorted(Path(data.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_optional_packages_are_imported_where_they_are_used(path):
    heads = [line.split()[1].split(".")[0] for line in _top_level_imports(path)]
    assert set(heads) & {"sklearn", "datasets", "PIL", "skimage"} == set()
    assert heads


def _top_level_imports(path):
    lines = path.read_text().splitlines()
    return [line for line in lines if line.startswith(("import ", "from "))]
