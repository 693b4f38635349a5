"""Data from disk: .npz files, image folders, and the words that stand for them."""

import os
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from PIL import Image
from sklearn.datasets import load_digits

from theodolite import data as files
from theodolite.data import dataset
from theodolite.errors import DataError, UnknownNameError

X = np.arange(5 * 6 * 7 * 3, dtype=np.uint8).reshape(5, 6, 7, 3)
Y = np.array([0, 1, 2, 1, 0])


def write(path, **changes):
    arrays = {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:2]} | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def test_npz_images_become_channels_first(tmp_path):
    sets = files.load_npz(write(tmp_path / "toy.npz"))
    assert sets.name == "toy"
    assert sets.x_train.equal(torch.from_numpy(X).permute(0, 3, 1, 2))
    assert sets.y_train.tolist() == Y.tolist()
    assert sets.y_train.dtype == torch.int64
    assert (sets.peak, sets.num_classes, len(sets.x_test)) == (255, 3, 2)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 8, 8), (1, 8, 8)),
        ((5, 8, 8, 1), (1, 8, 8)),
        ((5, 4, 4, 3), (3, 4, 4)),
        ((5, 3, 4, 4), (3, 4, 4)),
        ((5, 1, 8, 8), (1, 8, 8)),
        ((5, 11), (11,)),
        ((5, 2, 9, 9, 9), (2, 9, 9, 9)),
    ],
    ids=str,
)
def test_npz_layouts(tmp_path, shape, expected):
    x = np.zeros(shape, np.float32)
    path = write(tmp_path / "toy.npz", x_train=x, x_test=x[:2])
    assert files.load_npz(path).shape == expected
    assert files.load_npz(path, layout="as_is").shape == shape[1:]
    assert files.load_npz(path).peak is None


@pytest.mark.parametrize("dtype", [">f4", ">i8", "<u4", "f2", "i1", "f8"])
def test_npz_of_any_number_type(tmp_path, dtype):
    x = np.arange(10).reshape(5, 2).astype(dtype)
    sets = files.load_npz(write(tmp_path / "toy.npz", x_train=x, x_test=x[:2]))
    assert sets.x_train.tolist() == x.tolist()


def test_npz_regression_targets(tmp_path):
    y = np.linspace(0, 1, 10).reshape(5, 2)
    sets = files.load_npz(write(tmp_path / "toy.npz", y_train=y, y_test=y[:2]))
    assert sets.num_classes == 0
    assert sets.y_train.shape == (5, 2)


def test_npz_round_trip(tmp_path):
    first = files.digits()
    arrays = {key: getattr(first, key).numpy() for key in ("x_train", "y_train")}
    arrays |= {key: getattr(first, key).numpy() for key in ("x_test", "y_test")}
    np.savez(tmp_path / "digits.npz", **arrays)
    again = files.load_npz(tmp_path / "digits.npz")
    assert again.x_train.equal(first.x_train)
    assert again.y_test.equal(first.y_test)


@pytest.mark.parametrize("found", [True, False], ids=["the file", "scikit-learn"])
def test_digits_are_those_of_scikit_learn(monkeypatch, found):
    if not found:
        monkeypatch.setattr(dataset, "find_spec", lambda _name: None)
    data, expected = files.digits(), load_digits()
    images = torch.cat([data.x_train, data.x_test]).squeeze(1)
    assert np.array_equal(images, expected.images)
    assert np.array_equal(torch.cat([data.y_train, data.y_test]), expected.target)


class Surprise:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return (os.mkdir, (self.folder,))


def test_npz_with_pickles_is_refused_unopened(tmp_path):
    surprise = np.array([Surprise(tmp_path / "surprise")], dtype=object)
    path = write(tmp_path / "toy.npz", x_train=surprise)
    with pytest.raises(DataError):
        files.load_npz(path)
    assert not (tmp_path / "surprise").exists()
    with np.load(path, allow_pickle=True) as archive:
        archive["x_train"]
    assert (tmp_path / "surprise").exists()  # had it been allowed


_SOUND = write(Path(tempfile.mkdtemp()) / "sound.npz").read_bytes()


@st.composite
def damaged(draw):
    """A sound file that was cut and has some bytes changed."""
    content = bytearray(_SOUND[: draw(st.integers(0, len(_SOUND)))])
    for _ in range(draw(st.integers(0, 4)) if content else 0):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content)


def _loads_or_says_why(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.npz"
        path.write_bytes(content)
        try:
            files.load_npz(path)
        except DataError as error:
            message = str(error)
        else:
            return
    assert "fuzz.npz" in message


@given(content=st.binary(max_size=300))
def test_any_bytes_give_our_error(content):
    _loads_or_says_why(content)


@pytest.mark.filterwarnings("ignore")
@given(content=damaged())
def test_damaged_files_load_or_give_our_error(content):
    _loads_or_says_why(content)


_ARRAYS = st.sampled_from(
    [
        None,
        X,
        X[:2],
        X[:0],
        Y,
        Y[:2],
        Y - 1,
        Y + 10**12,
        Y[:, None],
        Y.astype(float),
        Y > 0,
        Y + 1j,
        np.array(3),
        np.array(["a", "b"]),
        np.full((5, 2), np.nan),
        np.array(["2020-01-01"] * 5, dtype="datetime64[D]"),
        np.zeros(5, dtype=[("a", "i4")]),
        np.full(5, 2**64 - 1, dtype=np.uint64),
    ]
)


@given(x_train=_ARRAYS, y_train=_ARRAYS, x_test=_ARRAYS, y_test=_ARRAYS)
def test_any_arrays_load_or_give_our_error(x_train, y_train, x_test, y_test):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "toy.npz"
        write(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
        try:
            sets = files.load_npz(path)
        except DataError:
            return
        assert len(sets.x_train) == len(sets.y_train) > 0
        assert sets.x_train.isfinite().all()


def picture(path, value, height=4, width=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.full((height, width, 3), value, np.uint8))
    image.save(path, quality=100)  # where JPEG keeps one color exactly


@pytest.fixture
def folder(tmp_path):
    for index in range(6):
        picture(tmp_path / "pets" / "dog" / f"{index}.png", 10 + index)
        picture(tmp_path / "pets" / "cat" / "deep" / f"{index}.JPG", 20 + index)
    (tmp_path / "pets" / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / "pets" / ".hidden").mkdir()
    return tmp_path / "pets"


def test_folder_of_classes_is_split(folder, generator):
    sets = files.load_image_folder(folder, generator=generator)
    assert sets.classes == ("cat", "dog")
    assert (len(sets.x_train), len(sets.x_test)) == (10, 2)
    assert sets.shape == (3, 4, 4)
    values = torch.cat([sets.x_train, sets.x_test])[:, 0, 0, 0]
    labels = torch.cat([sets.y_train, sets.y_test])
    assert sorted(values.tolist()) == [*range(10, 16), *range(20, 26)]
    assert labels.equal((values < 20).long())


def test_folder_with_its_own_split(tmp_path):
    for split, count in [("train", 3), ("test", 2)]:
        for index in range(count):
            picture(tmp_path / split / "a" / f"{index}.png", index)
            picture(tmp_path / split / "b" / f"{index}.png", index)
    sets = files.load_image_folder(tmp_path)
    assert (len(sets.x_train), len(sets.x_test), sets.shape) == (6, 4, (3, 4, 4))
    (tmp_path / "test" / "c").mkdir()
    with pytest.raises(DataError):
        files.load_image_folder(tmp_path)


def test_folder_of_many_sizes_is_resized_and_cropped(folder):
    stripes = np.repeat([1, 200, 2], 8).astype(np.uint8)
    Image.fromarray(np.tile(stripes, (8, 1))).save(folder / "dog" / "wide.png")
    with pytest.raises(DataError):
        files.load_image_folder(folder)
    sets = files.load_image_folder(folder, size=8)
    assert sets.shape == (3, 8, 8)
    values = torch.cat([sets.x_train, sets.x_test]).flatten(1)
    assert sorted(values.min(1).values.tolist()) == [*range(10, 16), *range(20, 26), 200]
    assert values.max(1).values.equal(values.min(1).values)  # the middle stripe alone is left
    assert files.load_image_folder(folder, size=4).shape == (3, 4, 4)


def test_deep_pictures_are_scaled_not_cut_off(folder):
    shutil.rmtree(folder / "cat")
    for index in range(6):
        deep = np.full((4, 4), 257 * 40 * index, np.uint16)
        Image.fromarray(deep).save(folder / "dog" / f"{index}.png")
    sets = files.load_image_folder(folder)
    values = torch.cat([sets.x_train, sets.x_test])[:, 0, 0, 0]
    assert sorted(values.tolist()) == [0, 40, 80, 120, 160, 200]
    Image.fromarray(np.ones((4, 4), np.float32)).save(folder / "dog" / "float.tiff")
    with pytest.raises(DataError, match="no known range"):
        files.load_image_folder(folder)


@pytest.mark.parametrize("kind", ["P", "1", "L", "RGBA", "I;16"])
def test_pictures_of_every_kind_become_bytes(folder, kind):
    for index in range(2):
        image = Image.new(kind, (4, 4))
        image.save(folder / "dog" / f"kind-{index}.png")
    sets = files.load_image_folder(folder)
    assert (sets.x_train.dtype, sets.shape) == (torch.uint8, (3, 4, 4))


def test_folder_with_few_images_per_class(folder, tmp_path):
    sets = files.load_image_folder(folder, per_class=2)
    values = torch.cat([sets.x_train, sets.x_test])[:, 0, 0, 0]
    assert sorted(values.tolist()) == [10, 11, 20, 21]
    folder.rename(tmp_path / "train")
    for name in ("cat", "dog"):
        picture(tmp_path / "val" / name / "0.png", 1)
    sets = files.load_image_folder(tmp_path, per_class=3)
    assert (len(sets.x_train), len(sets.x_test)) == (6, 2)


@pytest.mark.parametrize("damage", ["empty", "broken", "absent", "flat"])
def test_folder_refuses(folder, damage):
    if damage == "empty":
        (folder / "owl").mkdir()
    if damage == "broken":
        (folder / "dog" / "3.png").write_bytes(b"no image")
    target = {"absent": folder / "none", "flat": folder / "dog"}.get(damage, folder)
    with pytest.raises(DataError):
        files.load_image_folder(target)


def test_sources(tmp_path, generator, folder):
    assert files.load_data("digits").name == "digits"
    assert files.load_data(write(tmp_path / "toy.npz")).name == "toy"
    assert files.load_data(str(folder)).name == "pets"
    with pytest.raises(UnknownNameError):
        files.load_data("cifra10")
    (tmp_path / "table.csv").write_text("1,2")
    for source in (tmp_path / "table.csv", tmp_path / "none.npz"):
        with pytest.raises(DataError):
            files.load_data(source)


MODULES = sorted(Path(files.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_optional_packages_are_imported_where_they_are_used(path):
    lines = path.read_text().splitlines()
    heads = [
        line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))
    ]
    assert set(heads) & {"sklearn", "datasets", "PIL", "skimage"} == set()
    assert heads
