import pytest
import torch

from theodolite.errors import DomainError, ShapeError
from theodolite.theory import infinite_width as theory_infinite_width
from theodolite_papers.lou2022.formulas import infinite_width


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: infinite_width.relu_correlation(torch.tensor(1.5)),
            r"\[-1, 1\], got one of magnitude 1.5",
        ),
        (lambda: infinite_width.nngp_covariance(torch.zeros(2, 2), 1), "no zero row"),
        (
            lambda: infinite_width.backward_information(torch.eye(2), 4, 3),
            r"layer: expected .* 3.0\], got 4",
        ),
        (
            lambda: theory_infinite_width.equilibrium_layer(2.5),
            "depth: expected an integer of at least 1, got 2.5",
        ),
    ],
    ids=["correlation", "zero input", "layer", "depth"],
)
def test_values_outside_the_domain(call, message):
    with pytest.raises(DomainError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: infinite_width.forward_information(torch.ones(3), 1),
        lambda: infinite_width.infinite_alignment(torch.eye(2), torch.ones(3, 1), 2),
        lambda: infinite_width.is_separated(torch.eye(2), torch.eye(3), 0.5),
        lambda: infinite_width.gradient_covariance(torch.eye(2), 1, torch.eye(3), 2),
    ],
    ids=["axes", "lengths", "shapes", "covariance"],
)
def test_shapes_that_do_not_match(call):
    with pytest.raises(ShapeError, match="expected"):
        call()
