"""Every network of the table x every function: exact in batches, exact one by one, or refused.

The truth is one example at a time by plain autograd in float64.
"""

import re
import warnings
from functools import cache

import pytest
import torch

import theodolite as th
from tests.engine import hostile, zoo
from tests.engine.networks.applied import APPLIED
from tests.engine.networks.case import FUNCTIONS
from tests.engine.networks.mixing import MIXING
from tests.engine.networks.moving import MOVING
from tests.engine.networks.outside import OUTSIDE
from tests.engine.networks.table import TABLE
from tests.engine.networks.unseen import UNSEEN
from theodolite.engine import gradient_sums, tangent_kernels
from theodolite.engine.batches import whole_batch
from theodolite.engine.readouts import per_example_loss, read_outputs, resolve_readout
from theodolite.errors import TheodoliteError


def singles(case):
    batch = whole_batch(case.inputs, targets=case.labels)
    return [batch.take(slice(k, k + 1)) for k in range(len(batch))]


def real(gradient):
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return (torch.view_as_real(dense) if dense.is_complex() else dense).flatten()


def gradients(scalar, parameters):
    found = torch.autograd.grad(
        scalar, list(parameters.values()), retain_graph=True, allow_unused=True
    )
    pairs = zip(parameters.items(), found, strict=True)
    return {name: real(torch.zeros_like(p) if g is None else g) for (name, p), g in pairs}


def outputs_of(case, one):
    return read_outputs(one.run(case.model), one, resolve_readout(case.readout))


@cache
def jacobians(name):
    """Name of a parameter -> (n, c, p), computed once for all functions."""
    case = truth(TABLE[name])
    parameters = {name: p for name, p in case.model.named_parameters() if p.requires_grad}
    rows = {name: [] for name in parameters}
    for one in singles(case):
        outputs = outputs_of(case, one)[0]
        found = [gradients(value, parameters) for value in outputs]
        for name, row in rows.items():
            row.append(torch.stack([entry[name] for entry in found]))
    return {name: torch.stack(row) for name, row in rows.items()}


@cache
def loss_gradients(name):
    """Name of a parameter -> (n, p), computed once for all ways to check."""
    case = truth(TABLE[name])
    parameters = {name: p for name, p in case.model.named_parameters() if p.requires_grad}
    rows = {name: [] for name in parameters}
    for one in singles(case):
        loss = per_example_loss(case.loss)(outputs_of(case, one), one)
        for name, gradient in gradients(loss.sum(), parameters).items():
            rows[name].append(gradient)
    return {name: torch.stack(row) for name, row in rows.items()}


def below(rows, layer):
    """Parameters of a layer side by side."""
    return torch.cat([v for n, v in rows.items() if not layer or n.startswith(layer + ".")], -1)


def assert_near(found, wanted, tolerance):
    scale = float(wanted.abs().max()) if wanted.numel() else 0.0
    assert found.isfinite().all()
    torch.testing.assert_close(
        found.double(), wanted.double(), rtol=0, atol=tolerance * scale + 1e-30
    )


def truth(network):
    return network.case(torch.float64)


def assert_kernels(found, network, diagonal=False):
    rows = jacobians(network.name)
    for layer, kernel in found.items():
        J = below(rows, layer)
        wanted = torch.einsum("xip,yjp->xiyj", J, J)
        wanted = wanted.diagonal(dim1=1, dim2=3).sum(2) if diagonal else wanted
        assert_near(kernel, wanted, network.tolerance)


def assert_tangent_features(found, network):
    rows = jacobians(network.name)
    for layer, features in found.items():
        assert_near(features, below(rows, layer), network.tolerance)


def assert_gradients(found, network):
    rows = loss_gradients(network.name)
    labels = found.labels
    for layer in found:
        wanted = below(rows, layer)
        assert_near(found[layer].norms, wanted.norm(dim=1), network.tolerance)
        for label in labels.unique().tolist():
            total = wanted[labels == label].sum(0).norm()
            assert_near(
                found[layer].classes.sum_square[label].sqrt(), total, network.tolerance * 12
            )


def row_of(out, case, one):
    """One vector of a layer's output, as ``read="raw"`` has it; padded tokens are zeros."""
    out = out[0] if isinstance(out, tuple) else out
    out = (out.data if hasattr(out, "batch_sizes") else out).detach().clone()
    if one.mask is not None and out.shape[:2] == one.mask.shape:
        out[~one.mask.bool()] = 0.0
    if case.pool == "mean" and out.dim() == 3:
        out = out.mean(1)
    return (torch.view_as_real(out) if out.is_complex() else out).reshape(1, -1)


def assert_features(found, network):
    case = truth(network)
    modules = dict(case.model.named_modules(remove_duplicate=False))
    rows = {layer: [] for layer in found}
    for one in singles(case):
        last = {}
        hooks = [
            modules[layer].register_forward_hook(
                lambda _m, _a, out, to=last, layer=layer, one=one: to.update(
                    {layer: row_of(out, case, one)}
                )
            )
            for layer in found
        ]
        one.run(case.model)
        for hook in hooks:
            hook.remove()
        for layer in found:
            rows[layer].append(last[layer])
    for layer, features in found.items():
        assert_near(features, torch.cat(rows[layer]), network.tolerance)


def options(case):
    return {} if case.batch_size is None else {"batch_size": case.batch_size}


def measure(function, network, **more):
    case = network.case()
    more |= options(case)
    if function == "kernels":
        return tangent_kernels(case.model, case.inputs, readout=case.readout, **more)
    if function == "trace":
        return tangent_kernels(
            case.model, case.inputs, outputs="trace", readout=case.readout, **more
        )
    if function == "tangent features":
        return th.tangent_features(case.model, case.inputs, readout=case.readout, **more)
    if function == "gradients":
        return gradient_sums(
            case.model, case.inputs, case.labels, case.loss, readout=case.readout, **more
        )
    return th.features(case.model, case.inputs, pool=case.pool, read="raw", **more)


ASSERTS = {
    "kernels": assert_kernels,
    "trace": lambda found, network: assert_kernels(found, network, diagonal=True),
    "tangent features": assert_tangent_features,
    "gradients": assert_gradients,
    "features": assert_features,
}


def outcome(function, network, **more):
    """What a function does: an outcome, or the message of a refusal; exact wherever it answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = measure(function, network, **more)
        except TheodoliteError as error:
            return "refused", str(error)
        assert len(found) > 0
        ASSERTS[function](found, network)
    return ("batched" if found.measured == "in batches" else "one by one"), found.measured


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", TABLE)
def test_network(name, function):
    network = TABLE[name]
    expected = network.of(function)
    got, text = outcome(function, network)
    if expected.outcome == "exact":
        assert got != "refused", text
    else:
        assert got == expected.outcome, text
    if got == "refused":
        assert re.search(expected.reason, text, re.DOTALL), text


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "name", [network.name for network in (*MOVING, *MIXING, *OUTSIDE, *APPLIED, *UNSEEN)]
)
def test_every_example_alone_is_a_proof(name, function):
    """No number that ``check="every"`` gives is wrong, and none is refused that is exact."""
    expected = TABLE[name].of(function)
    got, text = outcome(function, TABLE[name], check="every")
    assert (got == "refused") == (expected.outcome == "refused"), text


def test_the_table_is_complete():
    """Every network says what every function must do with it, by a known word."""
    kinds = {"batched", "one by one", "exact", "refused"}
    for network in TABLE.values():
        assert set(network.others) <= set(FUNCTIONS), network.name
        for function in FUNCTIONS:
            expected = network.of(function)
            assert expected.outcome in kinds
            assert bool(expected.reason) == (expected.outcome == "refused"), network.name
    used = {*hostile.EXACT, *hostile.DEPENDENT, *zoo.ZOO}
    assert used <= set(TABLE)
