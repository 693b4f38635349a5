"""The 8x8 handwritten digits that scikit-learn carries: real data without a download."""

import torch

from theodolite.checks import require_count
from theodolite.data.dataset import Dataset, disjoint_rows
from theodolite.errors import DomainError

__all__ = ["digits"]

_COUNT = 1797


def digits(test_size: int = 297, generator: torch.Generator | None = None) -> Dataset:
    """1797 grey 8x8 digits, pixels 0..16, ten classes; raw, to be scaled.

    Args:
        test_size: number of test examples.
        generator: draws the split at random; without one the last rows are the test set, which
            makes a fixed and harder split (other people wrote them).

    Returns:
        Images ``(n, 1, 8, 8)`` of bytes with ``peak = 16``.

    Raises:
        DomainError: If a split would be empty.

    Example:
        >>> data = digits()
        >>> data.x_train.shape, len(data.x_test), data.num_classes
        (torch.Size([1500, 1, 8, 8]), 297, 10)

    References:
        [alpaydin1998], optical recognition of handwritten digits.
    """
    from sklearn.datasets import load_digits

    require_count(1, test_size=test_size)
    if test_size >= _COUNT:
        raise DomainError(f"test_size: expected fewer than all {_COUNT} digits, got {test_size}")
    bunch = load_digits()
    images = torch.from_numpy(bunch.images).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    train, test = torch.split(torch.arange(_COUNT), [_COUNT - test_size, test_size])
    if generator is not None:
        train, test = disjoint_rows(_COUNT, len(train), len(test), generator=generator)
    return Dataset("digits", images[train], labels[train], images[test], labels[test], peak=16)
