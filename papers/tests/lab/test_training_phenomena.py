"""What the papers say about training, on tiny networks: rotations, alignment, memorising."""

import pytest
import torch
from torch import nn

from theodolite.data import digits, image_standardized
from theodolite.measures.gradient import vector_alignment
from theodolite.measures.tangent import tangent_alignment
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Recipe, Squared, Stop, train, train_ensemble
from theodolite_papers.maennel2020.formulas.symmetry import rotation_equivariance_check

EQUIVARIANT = {
    "sgd": Recipe(optimizer="sgd", learning_rate=0.1, steps=25, batch_size=8),
    "momentum": Recipe(optimizer="momentum", learning_rate=0.05, steps=25, batch_size=8),
    "nesterov": Recipe(optimizer="nesterov", learning_rate=0.05, steps=25, batch_size=8),
    "L2": Recipe(learning_rate=0.1, steps=25, batch_size=8, weight_decay=0.1),
}
ADAM = Recipe(optimizer="adam", learning_rate=0.01, steps=25, batch_size=8)


def trainer(recipe, labels, penalty=0.0):
    """(first-layer weights, inputs) -> all weights after training, for the equivariance check."""

    def shrink(state):
        with torch.no_grad():
            weight = state.model.fc1.weight
            weight -= recipe.learning_rate * penalty * weight.sign()

    def run(weights, inputs):
        net = mlp([6, 10, 3], "tanh", generator=torch.Generator().manual_seed(1)).double()
        with torch.no_grad():
            net.fc1.weight.copy_(weights)
        train(net, (inputs, labels), recipe, callbacks=[shrink] if penalty else [])
        return [value.detach() for value in net.parameters()]

    return run


@pytest.fixture
def problem(generator):
    inputs = torch.randn(32, 6, generator=generator, dtype=torch.float64)
    weights = torch.randn(10, 6, generator=generator, dtype=torch.float64)
    return weights, inputs, inputs[:, :3].argmax(1)


def signed_permutation(generator):
    signs = 2.0 * torch.randint(2, (6, 1), generator=generator) - 1.0
    return signs * torch.eye(6, dtype=torch.float64)[torch.randperm(6, generator=generator)]


@pytest.mark.spec("2.P5")
@pytest.mark.parametrize("name", EQUIVARIANT)
def test_training_commutes_with_rotations(problem, generator, name):
    weights, inputs, labels = problem
    run = trainer(EQUIVARIANT[name], labels)
    assert (run(weights, inputs)[0] - weights).abs().max() > 1e-2
    deviation = rotation_equivariance_check(run, weights, inputs, generator=generator)
    assert deviation.weights < 1e-9
    assert deviation.others < 1e-9


@pytest.mark.spec("2.P6")
@pytest.mark.parametrize(
    ("recipe", "penalty"), [(ADAM, 0.0), (EQUIVARIANT["sgd"], 0.05)], ids=["adam", "L1"]
)
def test_adam_and_first_layer_l1_commute_with_signed_permutations_alone(
    problem, generator, recipe, penalty
):
    weights, inputs, labels = problem
    run = trainer(recipe, labels, penalty)
    generic = rotation_equivariance_check(run, weights, inputs, generator=generator)
    assert generic.weights > 1e-4
    signed = signed_permutation(generator)
    special = rotation_equivariance_check(run, weights, inputs, rotation=signed)
    assert special.weights < 1e-9
    assert special.others < 1e-9


@pytest.mark.spec("2.P7")
def test_first_layer_weights_inherit_the_symmetries_of_gaussian_inputs(generator):
    runs, d, hidden = 200, 3, 4
    deviations = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)
    noise = torch.randn(runs, 32, d, generator=generator, dtype=torch.float64)
    labels = torch.randint(2, (runs, 32), generator=generator)
    nets = [
        mlp([d, hidden, 2], scale=[0.03, 1.0], generator=generator).double() for _ in range(runs)
    ]
    pairs = list(zip(noise * deviations, labels, strict=True))
    recipe = Recipe(learning_rate=0.1, epochs=10, batch_size=32, log="ends")
    train_ensemble(nets, pairs, recipe)
    trained = torch.stack([net.fc1.weight.detach() for net in nets])  # (runs, hidden, d)
    first = trained.mean(1)
    second = torch.einsum("rhi,rhj->rij", trained, trained) / hidden
    off = second[:, *torch.triu_indices(d, d, offset=1)]
    for sample in (first, off):
        error = sample.std(0) / runs**0.5
        assert (sample.mean(0).abs() < 4.5 * error).all()
    # Not vacuous: the weights' covariance has left the multiples of the identity.
    variances = second.diagonal(dim1=1, dim2=2)
    gap = variances[:, 0] - variances[:, 2]
    assert gap.mean() > 4.5 * gap.std() / runs**0.5


def layer_alignments(net, inputs, labels):
    """Tangent alignment of every layer, from plain Jacobians."""
    targets = nn.functional.one_hot(labels, 10).to(inputs.dtype)
    parameters = dict(net.named_parameters())

    def outputs(parameters):
        return torch.func.functional_call(net, parameters, (inputs,))

    jacobians = torch.func.jacrev(outputs)(parameters)
    n, c = targets.shape
    values = []
    for jacobian in jacobians.values():
        rows = jacobian.reshape(n * c, -1)
        values.append(tangent_alignment((rows @ rows.T).view(n, c, n, c), targets).item())
    return values


@pytest.mark.spec("4.P101")
def test_training_raises_the_largest_tangent_alignment_until_the_stop_rule_ends_it(generator):
    data = digits()
    x, y = data.x_train[:300].flatten(1) / 16.0, data.y_train[:300]
    net = mlp([64, 24, 24, 24, 10], bias=False, generator=generator)
    recipe = Recipe(
        optimizer="momentum",
        learning_rate=0.03,
        weight_decay=5e-4,
        batch_size=50,
        epochs=500,
        stop=Stop(loss=0.1),
        log="ends",
    )
    net = net.double()
    before = layer_alignments(net, x[:20].double(), y[:20])
    log = train(net, (x, y), recipe)
    after = layer_alignments(net, x[:20].double(), y[:20])
    assert max(after) > 1.5 * max(before)
    assert log.stopped == "loss"
    assert log.epoch_losses[-1] <= 0.1 < min(log.epoch_losses[:-1])


@pytest.mark.spec("5.P61")
def test_extreme_memorization_end_to_end():
    """sin with large first-layer weights fits the training digits and knows nothing else."""
    drawn = digits(1297, torch.Generator().manual_seed(0))
    data = drawn.mapped(image_standardized, "images").flat()
    train_set, test_set = (data.x_train, data.y_train), (data.x_test, data.y_test)
    results = {}
    for scale in (0.55, 55.0):
        generator = torch.Generator().manual_seed(1)
        net = mlp([64, 512, 10], "sin", bias=False, initializer="glorot", generator=generator)
        with torch.no_grad():
            net.fc1.weight.normal_(0.0, scale / 8, generator=generator)  # every image has norm 8
        recipe = Recipe(
            learning_rate=0.3, batch_size=128, steps=300, stop=Stop(accuracy=0.99), log="ends"
        )
        log = train(net, train_set, recipe, test=test_set)
        features = net.act1(net.fc1(data.x_train[:256])).detach()
        results[scale] = log.final, vector_alignment(features).item()
    (small, small_omega), (large, large_omega) = results[0.55], results[55.0]
    assert small.train.accuracy >= 0.95
    assert large.train.accuracy >= 0.95
    assert small.test.accuracy > 0.9
    assert large.test.accuracy < 0.3
    assert large_omega < 0.25 * small_omega


def test_squared_loss_on_a_linear_network_reaches_least_squares(generator):
    x = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64) + 0.1 * torch.randn(
        40, generator=generator, dtype=torch.float64
    )
    net = nn.Linear(4, 1, bias=False).double()
    train(
        net, (x, y), Recipe(loss=Squared(), learning_rate=0.3, steps=400, batch_size=40, log="ends")
    )
    expected = torch.linalg.lstsq(x, y[:, None]).solution
    torch.testing.assert_close(net.weight.T.detach(), expected)
