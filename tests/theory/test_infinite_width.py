"""The layer where forward and backward losses balance."""

import math

import pytest

from theodolite.errors import DomainError
from theodolite.theory.infinite_width import backward_losses, equilibrium_layer, forward_losses


@pytest.mark.parametrize("depth", [10, 50])
def test_both_losses_are_equal_at_the_balance(depth):
    layer = equilibrium_layer(depth)
    below, share = math.floor(layer), layer - math.floor(layer)
    gaps = (forward_losses(depth, 0.0).log() - backward_losses(depth, 0.0).log()).tolist()
    assert (1 - share) * gaps[below - 1] + share * gaps[below] == pytest.approx(0, abs=1e-9)


def test_equal_inputs_balance_in_layer_one_and_a_large_scale_nowhere():
    assert equilibrium_layer(10, correlation=1.0) == 1.0
    assert math.isnan(equilibrium_layer(2, q_star=1e6))


def test_refuses_a_depth_of_zero():
    with pytest.raises(DomainError, match="depth"):
        equilibrium_layer(0)
