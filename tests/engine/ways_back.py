"""A call with a cheaper way back beside PyTorch's own: the same values, the same gradients."""

import torch

from tests.tolerances import assert_close


def assert_same_gradients(found, wanted, given):
    """Two results of the same inputs are equal, and so are the gradients of these."""
    assert torch.equal(found, wanted)
    seed = torch.randn_like(wanted)
    ours, theirs = (torch.autograd.grad(result, given, seed) for result in (found, wanted))
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, scale=float(other.abs().max()))


def assert_same_joint_gradients(found, wanted, inputs):
    """The same for several gradients that go through together."""
    seeds = torch.randn(3, *wanted.shape, dtype=wanted.dtype)

    def pull(result):
        return torch.func.vmap(
            lambda seed: torch.autograd.grad(result, inputs, seed, retain_graph=True)[0]
        )(seeds)

    assert_close(pull(found), pull(wanted), scale=10.0)
