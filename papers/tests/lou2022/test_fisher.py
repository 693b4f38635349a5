"""Fisher information in output space against plain autograd: spec 4, P61 and P62."""

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from tests.engine.zoo import ZOO, specimen
from theodolite.engine.batches import whole_batch
from theodolite.engine.readouts import read_outputs, resolve_readout
from theodolite.errors import DomainError
from theodolite.linalg import symmetric_eigenvalues
from theodolite_papers.lou2022._curvature import fisher
from theodolite_papers.lou2022.formulas.fisher import fisher_gram


def eigenvalues(layer):
    gram = fisher_gram(layer.kernel, layer.hessian)
    return symmetric_eigenvalues(gram.flatten(2).flatten(0, 1))


def require_spectrum(layer, matrix):
    """The matrix over parameters has the eigenvalues of that over outputs, and zeros."""
    exact, found = torch.linalg.eigvalsh(matrix).flip(0), eigenvalues(layer)
    shared = min(len(exact), len(found))
    scale = float(exact.abs().max())
    torch.testing.assert_close(found[:shared], exact[:shared], rtol=0, atol=1e-8 * scale)


def plain_features(found):
    """Outputs and the Jacobian of each of them, one example and one output at a time."""
    batch = whole_batch(found.inputs)
    parameters = [p for p in found.model.parameters() if p.requires_grad]
    outputs, rows = [], []
    for index in range(len(batch)):
        one = batch.take(slice(index, index + 1))
        values = read_outputs(one.run(found.model), one, resolve_readout(found.readout))[0]
        outputs.append(values.detach())
        for value in values:
            grads = torch.autograd.grad(
                value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            rows.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(outputs), torch.stack(rows).detach()  # (n, c), (n c, p)


def blocks(outputs):
    p = outputs.softmax(1)
    return (torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)) / len(p)


def plain_fisher(found):
    outputs, features = plain_features(found)
    return features.mT @ torch.block_diag(*blocks(outputs)) @ features


def layer_columns(model, layer):
    """Which entries of the flat parameter vector belong to a layer."""
    columns, start = [], 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        stop = start + parameter.numel()
        if layer == "" or name.startswith(layer + "."):
            columns += range(start, stop)
        start = stop
    return columns


@pytest.mark.parametrize("name", ZOO)
def test_spectra_and_traces_equal_plain_autograd(name):
    found = specimen(name)
    matrix = plain_fisher(found)
    named = ["", *dict(found.model.named_children())][:3]
    layers = [layer for layer in named if layer_columns(found.model, layer)]
    scale = matrix.abs().max().item()
    spectra = fisher(found.model, found.inputs, layers, readout=found.readout)
    for layer in layers:
        columns = layer_columns(found.model, layer)
        block = matrix[columns][:, columns]
        exact = torch.linalg.eigvalsh(block).flip(0)
        top = eigenvalues(spectra[layer])
        shared = min(len(exact), len(top))
        torch.testing.assert_close(top[:shared], exact[:shared], rtol=0, atol=1e-9 * scale)
        torch.testing.assert_close(spectra[layer].trace(), block.trace(), rtol=1e-9, atol=1e-12)


@pytest.mark.spec("4.P61")
@pytest.mark.parametrize("name", ["mlp", "lenet", "tied autoencoder"])
def test_expectation_over_predicted_labels(name):
    found = specimen(name)
    outputs, features = plain_features(found)
    count, classes = outputs.shape
    expected = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    jacobians = features.view(count, classes, -1)
    for example in range(count):
        p = outputs[example].softmax(0)
        for label in range(classes):
            slope = functional.one_hot(torch.tensor(label), classes) - p  # of log p(label)
            score = slope @ jacobians[example]
            expected += p[label] * torch.outer(score, score) / count
    require_spectrum(fisher(found.model, found.inputs).total, expected)


@pytest.mark.spec("4.P62")
@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_hessian_of_the_divergence_from_the_model_itself(name):
    found = specimen(name)
    shapes = dict(found.model.named_parameters())
    start = torch.cat([value.detach().flatten() for value in shapes.values()])
    logs = found.model(found.inputs).detach().log_softmax(1)

    def divergence(vector):
        pieces = vector.split([value.numel() for value in shapes.values()])
        values = {
            key: piece.view_as(value)
            for (key, value), piece in zip(shapes.items(), pieces, strict=True)
        }
        moved = functional_call(found.model, values, (found.inputs,)).log_softmax(1)
        return (logs.exp() * (logs - moved)).sum(1).mean()

    expected = torch.autograd.functional.hessian(divergence, start)
    require_spectrum(fisher(found.model, found.inputs).total, expected)


def test_squared_error_weighs_all_outputs_alike():
    found = specimen("mlp")
    outputs, features = plain_features(found)
    expected = 2 / len(outputs) * features.mT @ features
    require_spectrum(fisher(found.model, found.inputs, loss="squared_error").total, expected)


def test_losses_are_a_closed_list():
    found = specimen("mlp")
    with pytest.raises(DomainError, match=r"loss: expected one of 'cross_entropy'"):
        fisher(found.model, found.inputs, loss="hinge")
