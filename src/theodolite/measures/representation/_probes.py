"""Linear probes that leave out one example at a time, so that no held-out data are needed."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Integer, Shaped
from torch import Tensor
from torch.nn import functional

from theodolite.checks import (
    require_count,
    require_labels,
    require_symmetric,
)
from theodolite.linalg import (
    LeaveOneOut,
    array_function,
    centred_eigen,
    double,
    double_center,
    leave_one_out,
)
from theodolite.measures.representation.projections import require_rows

_ENTRIES = 2**22  # distances that are in memory at one time: 32 MiB


@array_function
def neighbour_accuracy(
    features: Float[Tensor, "n d"], labels: Integer[Tensor, " n"], neighbours: int = 5
) -> Float[Tensor, ""]:
    r"""Leave-one-out accuracy of nearest neighbours.

    .. math:: \frac1n \sum_i \bigl[\operatorname{mode}\{y_j : j \in N_k(i)\} = y_i\bigr],
              \qquad i \notin N_k(i)

    An example is not its own neighbour, so no held-out data are needed. For random labels the
    accuracy is that of guessing. Distances are Euclidean. If several classes have equally many
    neighbours, the class of the nearest one wins, then the class with the lowest number.

    Range: [0, 1].
    Invariant to: rotations, shifts and a common scale of the features; renaming of classes that
    keeps their order.
    Undefined (``nan``): only one class.
    Cost: O(n^2 d) time, 32 MiB beside the features.

    Args:
        features: one row per example.
        labels: class of each example.
        neighbours: number of neighbours that vote; all of them if there are fewer examples.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If lengths differ or there are fewer than two examples.
        DomainError: If features are not finite.

    Examples:
        >>> x = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
        >>> neighbour_accuracy(x, torch.tensor([0, 0, 0, 1, 1, 1]), neighbours=2).item()
        1.0

    References:
        [cover1967nearest].
    """
    require_rows(features=features, labels=labels)
    require_count(2, examples=len(features))
    require_labels(labels)
    rows = _centred(features)

    def products(own: Tensor) -> Tensor:
        return rows[own] @ rows.mT

    return _share_of_neighbours(products, rows.square().sum(1), labels, neighbours)


@array_function
def neighbour_accuracy_of_gram(
    gram: Float[Tensor, "n n"], labels: Integer[Tensor, " n"], neighbours: int = 5
) -> Float[Tensor, ""]:
    """:func:`neighbour_accuracy` from the inner products of all pairs of examples.

    Args:
        gram: inner products of features.
        labels: class of each example.
        neighbours: number of neighbours that vote.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Examples:
        >>> x = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
        >>> neighbour_accuracy_of_gram(x @ x.T, torch.tensor([0, 0, 0, 1, 1, 1]), 2).item()
        1.0

    References:
        [cover1967nearest].
    """
    require_symmetric(gram=gram)
    require_rows(gram=gram, labels=labels)
    require_count(2, examples=len(gram))
    require_labels(labels)
    inner = double_center(double(gram))
    return _share_of_neighbours(lambda own: inner[own], inner.diagonal(), labels, neighbours)


def _share_of_neighbours(
    products: Callable[[Tensor], Tensor], squares: Tensor, labels: Tensor, neighbours: int
) -> Tensor:
    """The accuracy. Squared distances come from inner products, some rows at a time."""
    require_count(1, neighbours=neighbours)
    names, classes = torch.unique(labels, return_inverse=True)
    if len(names) < 2:
        return squares.new_tensor(torch.nan)
    n, right = len(labels), 0
    for own in torch.split(torch.arange(n, device=labels.device), max(1, _ENTRIES // n)):
        distances = squares[own].unsqueeze(1) + squares - 2 * products(own)
        distances[torch.arange(len(own), device=own.device), own] = torch.inf
        nearest = classes[distances.topk(min(neighbours, n - 1), largest=False).indices]
        votes = functional.one_hot(nearest, len(names)).sum(1).double()
        votes += 0.5 * functional.one_hot(nearest[:, 0], len(names))
        right += int((votes.argmax(1) == classes[own]).sum())
    return squares.new_tensor(right / n)


@array_function
def probe_accuracy(
    features: Float[Tensor, "n d"], labels: Integer[Tensor, " n"]
) -> Float[Tensor, ""]:
    r"""Leave-one-out accuracy of a linear probe.

    .. math:: \frac1n \sum_i \Bigl[\arg\max_c \Bigl(y_i - \frac{y_i - \hat y_i}{1 - h_i}
              - \bar y_{-i} + \bar y\Bigr)_c = c_i\Bigr]

    The probe is a ridge regression of one-hot labels on centred features. One fit :math:`\hat y`
    and the leverages :math:`h` give the prediction for every left-out example. Leaving out an
    example lowers the share of its class in the mean :math:`\bar y_{-i}` of the other labels. This
    difference is subtracted, so that random labels reach chance. The ridge has the smallest
    leave-one-out error of 15 values between 1e-5 and 100 mean eigenvalues of the kernel.

    Range: [0, 1].
    Invariant to: rotations, shifts and a common scale of the features.
    Undefined (``nan``): only one class.
    Cost: one singular value decomposition, O(n d min(n, d)).

    Args:
        features: one row per example.
        labels: class of each example.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If lengths differ or there are fewer than two examples.
        DomainError: If features are not finite.

    Examples:
        >>> x = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
        >>> probe_accuracy(x, torch.tensor([0, 0, 0, 1, 1, 1])).item()
        1.0

    References:
        [allen1974prediction], the PRESS statistic.
    """
    require_labels(labels)
    return leave_one_out_probe(features, labels).accuracy


@array_function
def leave_one_out_probe(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
) -> LeaveOneOut:
    r"""Leave-one-out predictions of a linear probe, with their error and accuracy.

    .. math:: \text{error} = \frac{\sum_i \|y_i - \hat y_{-i}\|^2}{\sum_i \|y_i - \bar y_{-i}\|^2}

    The probe is a ridge regression with intercept, in closed form. Its error ranks models: it
    separates them better than accuracy, and also works for regression.

    Range: error [0, inf), 1 is no better than the mean; accuracy [0, 1].
    Invariant to: rotations, shifts and a common scale of the features; shifts and scale of targets.
    Undefined (``nan``): error: all targets are equal; accuracy: only one class, or a regression.
    Cost: one singular value decomposition, O(n d min(n, d)); each ridge takes O(n min(n, d) c).

    Args:
        features: one row per example.
        targets: integer class labels, or numbers to regress, one column for each output.

    Returns:
        Predictions, error and accuracy with intervals, and the chosen ridge.

    Raises:
        ShapeError: If lengths differ or there are fewer than two examples.
        DomainError: If features or targets are not finite.

    Examples:
        >>> x = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
        >>> found = leave_one_out_probe(x, torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> found.accuracy.item(), [round(end, 2) for end in found.accuracy_interval.tolist()]
        (1.0, [0.61, 1.0])

    References:
        [allen1974prediction], the PRESS statistic.
    """
    require_rows(features=features, targets=targets)
    require_count(2, examples=len(features))
    values, vectors = centred_eigen(features.detach(), kernel=False)
    return leave_one_out(vectors, values, targets.detach())


def _centred(features: Tensor) -> Tensor:
    """Centred rows scaled to order one, so that squares neither overflow nor vanish."""
    peak = double(features).abs().max()
    rows = double(features) / torch.where(peak > 0, peak, 1.0)
    return rows - rows.mean(0)
