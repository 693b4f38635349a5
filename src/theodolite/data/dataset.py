"""A data set in memory, the embedded digits, and labels in random order."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Integer, Num
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_count,
    require_function,
    require_kind,
    require_labels,
    require_nonempty,
    require_positive,
    require_same_length,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import checks_classes, prints_shapes

_MOST_CLASSES = 100_000  # a larger label is a mistake; names of so many classes fill the memory


@prints_shapes
@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs and targets of a training and a test split.

    Integer targets are class labels; floating-point targets are regression targets. Images are
    channels first. Raw pixels stay integers until they are scaled.

    Args:
        name: name of the data set in records.
        x_train: training inputs, one example per row.
        y_train: labels or regression targets of the training inputs.
        x_test: test inputs.
        y_test: labels or regression targets of the test inputs.
        classes: one name per class; empty for regression; by default numbers.
        scaling: the scalings that were applied to the raw inputs, in order.
        peak: largest value of a raw pixel, e.g. 255; None if inputs are not pixels.

    Raises:
        ShapeError: If splits are empty, or rows or shapes do not match.
        DomainError: If a label is negative, 100,000 or more, or has no class name.
        DtypeError: If an argument has a wrong class.

    Examples:
        >>> x, y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 1])
        >>> data = Dataset("toy", x, y, x, y)
        >>> data.num_classes, data.classes, data.scaling
        (2, ('0', '1'), ())
    """

    name: str
    # Lengths are checked here, because users read files without the run-time shape checker.
    x_train: Num[Tensor, "..."]
    y_train: Num[Tensor, "..."]
    x_test: Num[Tensor, "..."]
    y_test: Num[Tensor, "..."]
    classes: tuple[str, ...] = ()
    scaling: tuple[str, ...] = ()
    peak: int | None = None

    def __post_init__(self) -> None:
        require_kind(str, name=self.name)
        for part in ("classes", "scaling"):
            entries = getattr(self, part)
            require_kind((tuple, list), **{part: entries})
            require_kind(str, **{f"{part}[{i}]": entry for i, entry in enumerate(entries)})
        if self.peak is not None:
            require_positive(peak=self.peak)
        require_nonempty(x_train=self.x_train, x_test=self.x_test)
        require_same_length(x_train=self.x_train, y_train=self.y_train)
        require_same_length(x_test=self.x_test, y_test=self.y_test)
        shapes = tuple(self.x_train.shape[1:]), tuple(self.x_test.shape[1:])
        if shapes[0] != shapes[1]:
            raise ShapeError(
                f"expected examples of one shape, but x_train has {shapes[0]} and "
                f"x_test has {shapes[1]}"
            )
        if self.y_train.is_floating_point() != self.y_test.is_floating_point():
            raise DomainError(
                f"expected targets of one kind, but y_train is {self.y_train.dtype} and y_test is "
                f"{self.y_test.dtype}; integers are class labels, floats are regression targets"
            )
        if not self.y_train.is_floating_point():
            object.__setattr__(self, "classes", self._class_names())

    def _class_names(self) -> tuple[str, ...]:
        given = len(self.classes) or None
        count = max(
            require_labels(self.y_train, given, name="y_train"),
            require_labels(self.y_test, given, name="y_test"),
        )
        if count > _MOST_CLASSES:
            raise DomainError(
                f"labels: expected class indices below {_MOST_CLASSES}, got {count - 1}; "
                "relabel to 0, 1, 2, ... or pass floating-point regression targets"
            )
        return self.classes or tuple(str(index) for index in range(count))

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for regression."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.x_train.shape[1:])

    def mapped(self, transform: Callable[[Tensor], Tensor], step: str) -> "Dataset":
        """The data set with both inputs transformed; ``step`` is added to the list of scalings."""
        require_function(transform=transform)
        return replace(
            self,
            x_train=transform(self.x_train),
            x_test=transform(self.x_test),
            scaling=(*self.scaling, step),
        )

    def flat(self) -> "Dataset":
        """The data set with every example as one vector."""
        return replace(self, x_train=self.x_train.flatten(1), x_test=self.x_test.flatten(1))

    def take(self, train: Tensor, test: Tensor | None = None) -> "Dataset":
        """Chosen training rows, and chosen test rows (all of them if not given)."""
        require_kind((Tensor, slice, list), train=train)
        require_kind((Tensor, slice, list, type(None)), test=test)
        rows = torch.arange(len(self.x_test)) if test is None else test
        try:
            return replace(
                self,
                x_train=self.x_train[train],
                y_train=self.y_train[train],
                x_test=self.x_test[rows],
                y_test=self.y_test[rows],
            )
        except (IndexError, TypeError) as error:
            raise DomainError(f"rows: expected indices of examples ({error})") from error

    def with_labels(self, y_train: Tensor) -> "Dataset":
        """Other training labels, e.g. random ones; the test labels stay true."""
        return replace(self, y_train=y_train)

    def to(self, device: torch.device | str) -> "Dataset":
        """The same data on another device."""
        require_kind((torch.device, str), device=device)
        names = ("x_train", "y_train", "x_test", "y_test")
        try:
            return replace(self, **{name: getattr(self, name).to(device) for name in names})
        except RuntimeError as error:
            raise DomainError(f"device: expected one of this machine, got {device!r}") from error


@checks_classes
def disjoint_rows(
    total: int, *sizes: int, generator: torch.Generator | None = None
) -> list[Integer[Tensor, " k"]]:
    """Uniform samples without replacement that share no example, e.g. upstream and downstream.

    Args:
        total: number of examples to choose from.
        sizes: how many rows each sample has.
        generator: source of randomness.

    Returns:
        One tensor of row indices per size, in random order.

    Raises:
        DomainError: If the samples need more examples than there are.

    Examples:
        >>> upstream, downstream = disjoint_rows(10, 4, 6)
        >>> set(upstream.tolist()) & set(downstream.tolist())
        set()

    References:
        [maennel2020], appendix A.1.
    """
    require_count(1, total=total)
    require_count(0, **{f"sizes[{index}]": size for index, size in enumerate(sizes)})
    if sum(sizes) > total:
        wanted = " + ".join(map(str, sizes))
        raise DomainError(
            f"sizes: expected at most {total} examples in all, got {wanted} = {sum(sizes)}; "
            "disjoint samples cannot have more examples than the data"
        )
    order = torch.randperm(total, generator=generator)
    return list(torch.split(order[: sum(sizes)], list(sizes)))


_DIGITS = 1797


@checks_classes
def digits(test_size: int = 297, generator: torch.Generator | None = None) -> Dataset:
    """1797 grey 8x8 digits in ten classes, with raw pixels from 0 to 16.

    Args:
        test_size: number of test examples.
        generator: draws the split at random. Without a generator the last rows are the test set.
            This split is fixed and harder, because other people wrote these digits.

    Returns:
        Images ``(n, 1, 8, 8)`` of bytes with ``peak = 16``.

    Raises:
        DomainError: If a split would be empty.

    Examples:
        >>> data = digits()
        >>> data.x_train.shape, len(data.x_test), data.num_classes
        (torch.Size([1500, 1, 8, 8]), 297, 10)

    References:
        [alpaydin1998], optical recognition of handwritten digits.
    """
    require_count(1, test_size=test_size)
    if test_size >= _DIGITS:
        raise DomainError(f"test_size: expected fewer than all {_DIGITS} digits, got {test_size}")
    table = torch.from_numpy(_digits_table())
    images = table[:, :-1].reshape(-1, 1, 8, 8).to(torch.uint8)
    labels = table[:, -1].long()
    train, test = torch.split(torch.arange(_DIGITS), [_DIGITS - test_size, test_size])
    if generator is not None:
        train, test = disjoint_rows(_DIGITS, len(train), len(test), generator=generator)
    return Dataset("digits", images[train], labels[train], images[test], labels[test], peak=16)


def _digits_table() -> np.ndarray:
    """Pixels and label of every digit, from the file of scikit-learn (its import takes 1 s).

    If the file is elsewhere, scikit-learn loads it.
    """
    spec = find_spec("sklearn")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack([pixels, labels])


@checks_classes
def random_labels(
    labels: Integer[Tensor, " n"], generator: torch.Generator | None = None
) -> Integer[Tensor, " n"]:
    """A uniform random permutation of the labels: every class keeps its count.

    Args:
        labels: one class index per example.
        generator: source of randomness.

    Returns:
        The same labels in random order.

    Examples:
        >>> random_labels(torch.tensor([0, 0, 1, 2])).sort().values
        tensor([0, 0, 1, 2])

    References:
        [imani2022], Figure 2; [mehta2021], Figure 5.
    """
    require_axes(1, labels=labels)
    order = torch.randperm(len(labels), generator=generator)
    return labels[order.to(labels.device)]
