"""Regression with two kernels in the share that predicts best."""

import numpy as np
import pytest
import torch

from theodolite.measures import kernel


def grams(n: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, n, 3, generator=generator, dtype=torch.float64)
    return x @ x.T, y @ y.T, (x[:, 0] + y[:, 0] > 0).long()


def test_the_share_is_that_of_least_error():
    a, b, labels = grams()
    found = kernel.mixed_regression(a, b, labels)

    def error(share: float) -> float:
        scaled = [
            gram / np.trace(gram - gram.mean(0) - gram.mean(0)[:, None] + gram.mean()) * len(gram)
            for gram in (a.numpy(), b.numpy())
        ]
        mixed = (1 - share) * scaled[0] + share * scaled[1]
        return float(kernel.regression_error(mixed, labels.numpy()))

    errors = {share: error(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)}
    assert found.share == min(errors, key=errors.get)
    assert 0 < found.share < 1
    assert found.best.error.item() == pytest.approx(errors[found.share], rel=1e-9)
    assert found.first.error.item() == pytest.approx(errors[0.0], rel=1e-9)
    assert kernel.regression_error(found.gram, labels).item() == pytest.approx(errors[found.share])


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_sizes_of_the_kernels_do_not_matter(scale: float):
    a, b, labels = grams()
    plain, scaled = (
        kernel.mixed_regression(a, b, labels),
        kernel.mixed_regression(a, scale * b, labels),
    )
    assert plain.share == scaled.share
    torch.testing.assert_close(plain.best.error, scaled.best.error)


def test_only_the_shares_given_compete():
    a, b, labels = grams()
    assert kernel.mixed_regression(a, b, labels, (1.0,)).share == 1.0


def test_arrays_give_arrays():
    a, b, labels = (one.numpy() for one in grams())
    found = kernel.mixed_regression(a, b, labels)
    assert isinstance(found.gram, np.ndarray)
    assert isinstance(found.best.predictions, np.ndarray)


def test_the_mean_kernel_is_that_of_features_side_by_side():
    """Each set of features divided by the root of its variance."""
    generator = torch.Generator().manual_seed(4)
    a, b = torch.randn(30, 4, generator=generator), 7 * torch.randn(30, 9, generator=generator)
    y = (a[:, 0] + b[:, 1] > 0).long()
    both = torch.cat([x / (x - x.mean(0)).norm() for x in (a, b)], 1)
    found = kernel.leave_one_out_regression(kernel.mean_gram([a @ a.T, b @ b.T]), y)
    plain = kernel.leave_one_out_regression(both @ both.T, y)
    torch.testing.assert_close(found.error, plain.error, rtol=1e-5, atol=0)  # float32 features
    np.testing.assert_allclose(
        kernel.mean_gram([(a @ a.T).numpy(), (b @ b.T).numpy()]),
        kernel.mean_gram([a @ a.T, b @ b.T]),
    )
