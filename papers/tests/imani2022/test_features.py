"""Features to compare with: RBF, sparse codes, HOG, SIFT, against literal references."""

import numpy as np
import pytest
import torch

from tests.reference import data as reference
from tests.tolerances import assert_close
from theodolite.errors import DomainError, ShapeError
from theodolite_papers.imani2022._fitted_features import (
    fit_rbf_network,
    learn_dictionary,
    median_distance,
    rbf_features,
    sparse_codes,
)
from theodolite_papers.imani2022._image_features import (
    dense_sift,
    hog_features,
    sift_descriptors,
    visual_vocabulary,
    word_histograms,
)


def unit(rows):
    return torch.nn.functional.normalize(rows, dim=-1)


@pytest.fixture
def rows(generator):
    return unit(torch.randn(30, 5, generator=generator, dtype=torch.float64))


@pytest.mark.spec("1.R50")
def test_rbf_features_on_their_own_centers(rows, generator):
    features = rbf_features(rows, rows)
    assert_close(features, features.T)
    assert_close(features.diagonal(), torch.ones(30))
    assert torch.linalg.eigvalsh(features).min() > 0
    labels = torch.randn(30, generator=generator, dtype=torch.float64)
    assert_close(features @ torch.linalg.solve(features, labels), labels, scale=1e3)
    assert_close(features, torch.exp(rows @ rows.T - 1))  # unit rows


@pytest.mark.spec("1.R50")
@pytest.mark.parametrize("bandwidth", [0.3, 1.0, 2.5])
def test_rbf_features_literally(rows, bandwidth):
    actual = rbf_features(rows[:4] + 100, rows[4:9] + 100, bandwidth)
    for i in range(4):
        for j in range(5):
            distance = float(((rows[i] - rows[4 + j]) ** 2).sum())
            assert_close(actual[i, j], np.exp(-distance / (2 * bandwidth**2)))


def test_rbf_features_answer_numpy_in_kind(rows):
    assert isinstance(rbf_features(rows.numpy(), rows.numpy()), np.ndarray)


def test_rbf_network_learns_and_moves_its_centers(generator):
    x = torch.rand(200, 2, generator=generator)
    y = torch.sin(4 * x[:, 0]) * x[:, 1]
    network = fit_rbf_network(x, y, units=40, epochs=30, generator=generator)
    loss = (network(x)[:, 0] - y).square().mean() / y.square().mean()
    assert loss.item() < 0.05
    moved = torch.cdist(network.centers, x).min(1).values
    assert moved.max() > 0.01
    expected = rbf_features(x.double(), network.centers.double(), network.bandwidth)
    assert_close(network.features(x), expected.detach(), dtype=torch.float32)


def test_rbf_network_starts_on_training_rows(generator):
    x = torch.rand(10, 3, generator=generator)
    few = fit_rbf_network(x, x[:, 0], 4, epochs=1, generator=generator)
    many = fit_rbf_network(x, x[:, :2], 25, epochs=1, generator=generator)
    assert few.centers.shape == (4, 3)
    assert many.centers.shape == (25, 3)
    assert len({tuple(row) for row in many.centers.tolist()}) == 25
    # One epoch of one step moves a centre by at most the learning rate per coordinate.
    assert torch.cdist(few.centers, x).min(1).values.max() < 0.02
    assert few.bandwidth == pytest.approx(0.5 * median_distance(x))


def test_rbf_network_follows_the_seed():
    x = torch.linspace(0, 1, 20).unsqueeze(1)
    first, again = (
        fit_rbf_network(x, x[:, 0], 5, 3, generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert first.centers.equal(again.centers)


@pytest.mark.spec("1.R51")
@pytest.mark.parametrize("penalty", [0.05, 0.3])
def test_codes_in_an_orthonormal_dictionary_are_soft_thresholds(rows, generator, penalty):
    basis = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64)).Q
    codes = sparse_codes(rows, basis, penalty)
    projections = rows @ basis.T
    assert_close(codes, projections.sign() * (projections.abs() - penalty).clamp(min=0))


@pytest.mark.spec("1.R51")
def test_codes_equal_coordinate_descent(rows, generator):
    atoms = unit(torch.randn(8, 5, generator=generator, dtype=torch.float64))
    codes = sparse_codes(rows[:5], atoms, 0.1)
    for row, code in zip(rows[:5], codes, strict=True):
        assert_close(code, reference.lasso(row.numpy(), atoms.numpy(), 0.1), scale=10)


@pytest.mark.spec("1.R51")
@pytest.mark.parametrize("kind", ["overcomplete", "repeated"])
def test_codes_meet_the_optimality_conditions(rows, generator, kind):
    atoms = unit(torch.randn(20, 5, generator=generator, dtype=torch.float64))
    if kind == "repeated":
        atoms[10:] = atoms[:10]
    codes, penalty = sparse_codes(rows, atoms, 0.05), 0.05
    slopes = (rows - codes @ atoms) @ atoms.T
    used = codes != 0
    assert used.any(1).all()
    assert_close(slopes[used], penalty * codes[used].sign(), scale=10)
    assert slopes[~used].abs().max() <= penalty + 1e-8


def sparse_objective(x, atoms, penalty=0.05):
    """What dictionary learning minimises, with the best codes: [mairal2009], Eq. 2."""
    codes = sparse_codes(x, atoms, penalty)
    return ((x - codes @ atoms).square().sum(1) / 2 + penalty * codes.abs().sum(1)).mean()


@pytest.mark.spec("1.R51")
def test_dictionary_learning_lowers_the_objective_within_the_ball(generator):
    truth = unit(torch.randn(8, 10, generator=generator, dtype=torch.float64))
    weights = torch.randn(200, 8, generator=generator, dtype=torch.float64)
    weights *= torch.rand(200, 8, generator=generator) < 0.25
    x = unit(weights @ truth + 0.01 * torch.randn(200, 10, generator=generator))
    objectives = []
    for passes in (1, 2, 4):
        seed = torch.Generator().manual_seed(1)
        atoms = learn_dictionary(x, 8, passes=passes, generator=seed)
        assert atoms.norm(dim=1).max() <= 1 + 1e-12
        objectives.append(sparse_objective(x, atoms).item())
    start = sparse_objective(x, x[:8]).item()
    assert start > objectives[0] > objectives[1] > objectives[2]


@pytest.mark.spec("1.R51")
def test_one_batch_is_one_round_of_block_descent(rows):
    learned = learn_dictionary(rows, 6, 0.1, 1, 30, torch.Generator().manual_seed(5))
    # The same start and batch, literally: atoms on rows, a little noise, inside the ball.
    replay = torch.Generator().manual_seed(5)
    order = torch.randperm(30, generator=replay)[:6]
    start = rows[order] + 0.01 * torch.randn(6, 5, generator=replay).double()
    start = (start / start.norm(dim=1, keepdim=True).clamp(min=1)).numpy()
    codes = np.stack([reference.lasso(row, start, 0.1) for row in rows.numpy()])
    expected = reference.descend(start, codes.T @ codes, codes.T @ rows.numpy())
    assert_close(learned, expected, scale=10)


@pytest.mark.spec("1.R51")
def test_atoms_that_no_code_uses_stay(generator):
    x = torch.zeros(20, 4, dtype=torch.float64)
    x[:, 0] = 1
    x[0] = torch.tensor([0.0, 0.01, 0, 0])  # too small for any code
    atoms = learn_dictionary(x, 20, generator=generator)
    assert torch.isfinite(atoms).all()
    assert (atoms.norm(dim=1) < 0.5).sum() == 1


@pytest.mark.spec("1.R52")
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 32, 32), (3, 19, 26)], ids=str)
def test_hog_equals_the_loop(generator, shape):
    images = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
    actual = hog_features(images)
    for image, features in zip(images, actual, strict=True):
        assert_close(features, reference.hog(image.numpy()))


@pytest.mark.spec("1.R52")
def test_hog_of_bytes_has_324_values_in_unit_blocks(generator):
    images = torch.randint(256, (5, 3, 32, 32), generator=generator, dtype=torch.uint8)
    features = hog_features(images)
    assert features.shape == (5, 324)
    assert_close(features.reshape(5, 9, 36).norm(dim=2), torch.ones(5, 9))


@pytest.mark.spec("1.R52")
def test_hog_ignores_a_constant(generator):
    images = torch.randint(200, (2, 3, 32, 32), generator=generator)
    assert hog_features(images + 55).equal(hog_features(images))
    assert hog_features(torch.full((1, 1, 32, 32), 7.0)).count_nonzero() == 0


@pytest.mark.spec("1.R52")
@pytest.mark.parametrize(("sign", "down"), [(1, 0), (-1, 0), (1, 1)], ids=["right", "left", "down"])
def test_hog_of_a_ramp_fills_one_bin(sign, down):
    ramp = sign * torch.arange(32.0).expand(1, 1, 32, 32)
    images = ramp.mT if down else ramp
    features = hog_features(images).reshape(-1, 9)
    filled = features.abs().sum(0).nonzero().flatten().tolist()
    assert filled == ([4] if down else [0])


def test_hog_alternative_reading_has_144_values():
    images = torch.rand(1, 3, 256, 256)
    assert hog_features(images, cell=64, block=4).shape == (1, 144)


@pytest.mark.spec("1.R53")
def test_sift_equals_the_loop(generator):
    patches = torch.rand(3, 16, 16, generator=generator, dtype=torch.float64)
    for patch, descriptor in zip(patches, sift_descriptors(patches), strict=True):
        assert_close(descriptor, reference.sift(patch.numpy()))


@pytest.mark.spec("1.R53")
def test_sift_is_nonnegative_unit_and_invariant(generator):
    patches = torch.rand(20, 16, 16, generator=generator, dtype=torch.float64)
    descriptors = sift_descriptors(patches)
    assert descriptors.shape == (20, 128)
    assert descriptors.min() >= 0
    assert_close(descriptors.norm(dim=1), torch.ones(20))
    assert_close(sift_descriptors(3.7 * patches - 2), descriptors)
    assert not torch.allclose(sift_descriptors(-patches), descriptors)  # orientation is signed
    assert sift_descriptors(torch.full((1, 16, 16), 0.3)).count_nonzero() == 0


@pytest.mark.spec("1.R53")
def test_dense_sift_reads_the_grid_of_gray_patches(generator):
    images = torch.randint(256, (2, 3, 32, 32), generator=generator, dtype=torch.uint8)
    descriptors = dense_sift(images)
    assert descriptors.shape == (2, 25, 128)
    red, green, blue = images[1].double()
    gray = 0.299 * red + 0.587 * green + 0.114 * blue
    third = gray[4 : 4 + 16, 8 : 8 + 16]  # second row, third column
    assert_close(descriptors[1, 5 + 2], reference.sift(third.numpy()))


@pytest.mark.spec("1.R53")
def test_word_histograms_sum_to_one_and_find_the_nearest(generator):
    descriptors = torch.rand(4, 6, 3, generator=generator, dtype=torch.float64)
    words = visual_vocabulary(descriptors, 5, generator)
    histograms = word_histograms(descriptors, words)
    assert_close(histograms.sum(1), torch.ones(4))
    for image, row in zip(descriptors, histograms, strict=True):
        nearest = [int(((words - d) ** 2).sum(1).argmin()) for d in image]
        assert_close(row, [nearest.count(word) / 6 for word in range(5)])
    assert word_histograms(descriptors[:, :0], words).equal(torch.zeros(4, 5).double())


@pytest.mark.spec("1.R53")
def test_vocabulary_finds_clusters_and_follows_the_seed(generator):
    centers = torch.eye(4, dtype=torch.float64) * 10
    points = centers.repeat(20, 1) + torch.randn(80, 4, generator=generator) * 0.01
    first, again = (
        visual_vocabulary(points, 4, torch.Generator().manual_seed(2)) for _ in range(2)
    )
    assert first.equal(again)
    assert torch.cdist(centers, first).min(1).values.max() < 0.02


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: rbf_features(torch.eye(2), torch.eye(2), 0.0), DomainError),
        (lambda: median_distance(torch.ones(5, 2)), DomainError),
        (lambda: sparse_codes(torch.eye(2), torch.eye(2), -1.0), DomainError),
        (lambda: hog_features(torch.rand(1, 1, 15, 32)), ShapeError),
        (lambda: dense_sift(torch.rand(1, 1, 15, 32)), ShapeError),
        (lambda: visual_vocabulary(torch.rand(3, 2), 4), DomainError),
        (lambda: hog_features(torch.full((1, 1, 32, 32), float("nan"))), DomainError),
    ],
)
def test_bad_requests_raise(call, error):
    with pytest.raises(error):
        call()
