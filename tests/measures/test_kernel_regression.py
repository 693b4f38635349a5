"""Regression with the mean of two kernels."""

import numpy as np
import torch

from theodolite.measures import kernel


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
