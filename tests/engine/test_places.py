"""Models that move examples along the batch by any means: every example is looked for, not a few.

The first and the last eight examples stay in place, and so do sixteen that are spread over the
batch: whoever looks at some of them only sees nothing. The truth is one example at a time.
"""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from tests.engine.single_gradients import cross_entropy
from tests.reference.example_gradients import example_gradients
from tests.reference.tangents import tangent_features
from theodolite.engine import forward_kernel, gradient_sums, tangent_alignments, tangent_kernels
from theodolite.errors import ShapeError

EXAMPLES, WIDTH, CLASSES = 40, 4, 3


def one_hot(order, like):
    return functional.one_hot(order, len(order)).to(like)


def grid_sample(h, order):
    rows = (2 * order + 1).to(h) / len(h) - 1
    grid = torch.stack([torch.zeros_like(rows), rows], -1)[None, :, None]
    maps = h.T[None, :, :, None]
    return functional.grid_sample(maps, grid, mode="nearest", align_corners=False)[0, :, :, 0].T


MEANS = {
    "embedding": lambda h, order: functional.embedding(order, h),
    "linear": lambda h, order: functional.linear(h.T, one_hot(order, h)).T,
    "tensordot": lambda h, order: torch.tensordot(one_hot(order, h), h, 1),
    "ellipsis": lambda h, order: torch.einsum("ij,j...->i...", one_hot(order, h), h),
    "sum": lambda h, order: (one_hot(order, h)[:, :, None] * h).sum(1),
    "convolution": lambda h, order: functional.conv1d(h[None], one_hot(order, h)[..., None])[0],
    "solve": lambda h, order: torch.linalg.solve(one_hot(order, h).T, h),
    "grid_sample": grid_sample,
    "vmap": lambda h, order: torch.func.vmap(lambda k: h.index_select(0, k[None])[0])(order),
    "operator": lambda h, order: torch.ops.aten.index_select.default(h, 0, order),
    "numbers": lambda h, order: h[order[:, None], torch.arange(h.shape[1])],
    "one row of numbers": lambda h, order: h[order[None]][0],
    "expand": lambda h, order: h.expand(len(h), -1, -1)[torch.arange(len(h)), order],
}


class Moves(nn.Module):
    """One layer sees the examples in order of their first number, by some means, or interleaved."""

    def __init__(self, means, *, interleaves=False):
        super().__init__()
        self.means, self.interleaves = means, interleaves
        self.first, self.inner = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.double()

    def order(self, x):
        if not self.interleaves:
            return x[:, 0].argsort()
        places = torch.arange(len(x))
        return places if len(x) % 2 else places.view(2, -1).T.reshape(-1)

    def forward(self, x):
        order = self.order(x)
        hidden = self.means(torch.tanh(self.first(x)), order)
        return self.head(self.means(torch.tanh(self.inner(hidden)), order.argsort()))


def examples():
    """Sorted by their first number, but for a few in the middle."""
    torch.manual_seed(0)
    x = torch.randn(EXAMPLES, WIDTH, dtype=torch.float64)
    seen = {*range(8), *range(EXAMPLES - 8, EXAMPLES)}
    seen |= set(torch.linspace(0, EXAMPLES - 1, 16).round().long().tolist())
    moved = torch.tensor([place for place in range(EXAMPLES) if place not in seen])
    keys = torch.linspace(-2, 2, EXAMPLES, dtype=torch.float64)
    keys[moved] = keys[moved.roll(1)]
    x[:, 0] = keys
    return x, torch.arange(EXAMPLES) * CLASSES // EXAMPLES


def assert_norms(model, x, labels, sums):
    rows, _ = example_gradients(model, (x, labels), cross_entropy)
    for layer in sums:
        wanted = torch.cat([rows[f"{layer}.{name}"].flatten(1) for name in ("weight", "bias")], 1)
        torch.testing.assert_close(sums[layer].norms, wanted.norm(dim=1), rtol=0, atol=1e-9)


def assert_trace(model, x, kernels):
    covered = {entry.parameter for parts in kernels.coverage.values() for entry in parts}
    features = tangent_features(model, x)
    rows = torch.cat([part for name, part in features.items() if name in covered], 2)
    wanted = torch.einsum("icp,jcp->ij", rows, rows)
    torch.testing.assert_close(kernels.total, wanted, rtol=1e-9, atol=0)


@pytest.mark.parametrize("means", MEANS)
def test_examples_that_a_model_moves_are_found(means):
    x, labels = examples()
    model = Moves(MEANS[means])
    sums = gradient_sums(model, x, labels)
    assert not sums.checked.batched
    assert_norms(model, x, labels, sums)
    assert_trace(model, x, tangent_kernels(model, x, outputs="trace"))


class MovesSome(Moves):
    """Only batches with an example whose second number is large are put in order."""

    def order(self, x):
        return torch.where((x[:, 1] > 10).any(), x[:, 0].argsort(), torch.arange(len(x)))


@pytest.mark.parametrize("flagged", [None, 5, 25])
def test_a_batch_that_moves_its_examples_is_found_among_others(flagged):
    x, model = torch.randn(30, WIDTH).double(), MovesSome(MEANS["embedding"])
    if flagged is not None:
        x[flagged, 1] = 20.0
    kernels = tangent_kernels(model, x, outputs="trace", batch_size=10)
    assert kernels.checked.batched == (flagged is None)
    assert "any" in kernels.checked.suspect_calls
    assert_trace(model, x, kernels)


@pytest.mark.parametrize("means", ["index", "sum"])
def test_examples_that_are_always_moved_in_one_way_are_found(means):
    x, labels = examples()
    move = MEANS.get(means, lambda h, order: h[order])
    model = Moves(move, interleaves=True)
    assert_norms(model, x, labels, gradient_sums(model, x, labels))
    assert_trace(model, x, tangent_kernels(model, x, outputs="trace"))
    inner = torch.tanh(model.first(x)).detach()
    with pytest.raises(th.errors.CaptureError, match=r"receives other|in its rows"):
        forward_kernel(model, x, "inner", normalize=False)
    torch.testing.assert_close(forward_kernel(model, x, "first", normalize=False), x @ x.T)
    found = th.features(model, x, ["first", "inner"], read="raw")
    torch.testing.assert_close(found["inner"], model.inner(inner).detach())


class Rare(nn.Module):
    """Examples with a large first number take another layer, at a place of their own."""

    def __init__(self):
        super().__init__()
        self.inner, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.double()

    def forward(self, x):
        chosen = x[:, 0] > 5
        place = (chosen.cumsum(0) - 1).clamp(min=0)
        slots = one_hot(place, x) * chosen[:, None]  # (n, slots)
        taken = torch.tensordot(slots.T, x, 1)
        other = torch.tensordot(slots, torch.tanh(self.other(taken)), 1)
        return self.head(torch.tanh(self.inner(x)) + other)


def test_experts_that_only_examples_in_the_middle_reach():
    x, labels = examples()
    x[[19, 22], 0] = 6.0
    model = Rare()
    assert_norms(model, x, labels, gradient_sums(model, x, labels))
    assert_trace(model, x, tangent_kernels(model, x, outputs="trace"))


class Groups(nn.Module):
    """Examples that are almost the same see each other; all others do not."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.double()

    def forward(self, x):
        hidden = torch.tanh(self.inner(x))
        near = (torch.cdist(x.detach(), x.detach()) < 1e-3).to(x)
        return self.head(near @ hidden)


def test_a_few_in_the_middle_that_see_each_other_are_refused():
    x, labels = examples()
    x[[22, 25]] = x[19] + 1e-5  # of three, two are in other halves
    model = Groups()
    for measure in (
        lambda: gradient_sums(model, x, labels),
        lambda: tangent_kernels(model, x, outputs="trace"),
    ):
        with pytest.raises(th.errors.CaptureError, match="depend on each other"):
            measure()


def test_a_hook_on_a_parameter_is_named():
    x, labels = examples()
    model = nn.Linear(WIDTH, CLASSES).double()
    model.weight.register_hook(lambda gradient: 3 * gradient)
    for measure in (lambda: gradient_sums(model, x, labels), lambda: tangent_kernels(model, x)):
        with pytest.raises(th.errors.CaptureError, match="hooks change the gradient of 'weight'"):
            measure()


class Clipped(nn.Module):
    """A hook clips the gradients of each example, which stays in its row."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.inner(x).tanh()
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        return self.head(h)


def test_a_hook_in_the_model_is_named():
    sums = gradient_sums(Clipped(), torch.randn(16, 4), torch.arange(16) % 3)
    assert "or a hook" in sums.measured


class OutOfSight(nn.Module):
    """What the layer receives was made by NumPy, or lies in a buffer that was written."""

    def __init__(self, *, buffer):
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.register_buffer("held", torch.zeros(EXAMPLES, WIDTH) if buffer else None)
        self.double()

    def forward(self, x):
        if self.held is None:
            return self.head(torch.tanh(self.inner(torch.from_numpy(2.0 * x.numpy()))))
        self.held[: len(x)] = x
        return self.head(torch.tanh(self.inner(self.held[: len(x)].clone())))


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("count", [1, EXAMPLES])
def test_inputs_that_come_from_out_of_sight(buffer, count):
    x, labels = (part[:count] for part in examples())
    model = OutOfSight(buffer=buffer)
    assert_norms(model, x, labels, gradient_sums(model, x, labels))
    assert_trace(model, x, tangent_kernels(model, x, outputs="trace"))


class Optional(nn.Module):
    """A layer that gets no row at all from some examples."""

    def __init__(self):
        super().__init__()
        self.inner, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.double()

    def forward(self, x):
        rows = (x[:, 0] > 0).nonzero()[:, 0]
        return self.head(torch.tanh(self.inner(x).index_add(0, rows, self.other(x[rows]))))


def test_a_single_example_that_a_layer_gets_nothing_of():
    x, labels = (part[:1] for part in examples())
    model = Optional()
    assert_norms(model, x, labels, gradient_sums(model, x, labels))
    assert_trace(model, x, tangent_kernels(model, x, outputs="trace"))


def test_features_inside_transforms_and_of_single_vectors_are_refused_with_the_reason():
    class Inside(nn.Module):
        def __init__(self, run):
            super().__init__()
            self.inner, self.run = nn.Linear(WIDTH, CLASSES), run

        def forward(self, x):
            return self.run(self.inner, x)

    x = torch.randn(6, WIDTH)
    mapped = Inside(lambda layer, x: torch.func.vmap(layer)(x))
    with pytest.raises(th.errors.CaptureError, match=r"'inner'.*torch\.func"):
        th.features(mapped, x)
    looped = Inside(lambda layer, x: torch.stack([layer(row) for row in x]))
    with pytest.raises(th.errors.ShapeError, match=r"'inner': expected one row per example"):
        th.features(looped, x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_layers_that_take_no_hooks_are_left_out():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    model = nn.Sequential(scripted, nn.Linear(WIDTH, CLASSES))
    assert list(th.features(model, torch.randn(6, WIDTH))) == ["1"]


class FirstDecides(nn.Module):
    """The first example of a batch decides for all which layer they take."""

    def __init__(self):
        super().__init__()
        self.inner, self.other = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return (self.inner if x[0, 0] > 0 else self.other)(x)


@pytest.mark.parametrize("seed", range(5))
def test_features_where_one_example_decides_for_all_are_refused(seed):
    torch.manual_seed(seed)
    x = torch.randn(6, WIDTH)
    x[:2, 0] = torch.tensor([1.0, -1.0])
    with pytest.raises(th.errors.CaptureError, match="depend on each other"):
        th.features(FirstDecides(), x)


class Passes(nn.Module):
    """Counts the examples that its passes have seen."""

    def __init__(self, model):
        super().__init__()
        self.model, self.seen = model, 0

    def forward(self, ids):
        self.seen += len(ids)
        return self.model(ids)


def test_a_plain_model_runs_one_example_alone_and_a_part_again():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(5 * WIDTH, CLASSES))
    ids, labels = torch.randint(0, 9, (200, WIDTH)), torch.arange(200) % CLASSES
    read, followed = Passes(layers.double()), Passes(layers)
    th.features(read, ids)
    sums = gradient_sums(followed, ids, labels, cross_entropy)
    # All; those that show what the model takes and where to read it; a part, and one alone.
    assert read.seen == 200 + 2 + 3 + 32 + 1
    # The example that runs alone shows where examples lie, and has its gradients compared.
    assert followed.seen == 200 + 32 + 1
    assert (
        sums.checked.checked_batches,
        sums.checked.single_examples,
        sums.checked.in_other_batches,
    ) == (1, 1, 32)


class Shifted(nn.Module):
    """Parameters of every kind: a table of places, norms, matrices, one that is computed."""

    def __init__(self):
        super().__init__()
        self.places, self.shift = nn.Embedding(WIDTH, 6), nn.Parameter(torch.randn(1, 1, 6))
        self.lift, self.norm = nn.Conv1d(1, 6, 1), nn.BatchNorm1d(6).eval()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.double()
        self.seen = 0

    def forward(self, x):
        self.seen += len(x)
        h = self.norm(self.lift(x[:, None])).transpose(1, 2)  # (n, places, channels)
        h = h + self.places(torch.arange(WIDTH)[None]) + self.shift
        h = functional.linear(torch.tanh(h), 2.0 * self.inner.weight.T, self.inner.bias)
        return self.head(functional.layer_norm(h, (6,)).mean(1))


@pytest.mark.parametrize("params", [None, "head.*", "lift.*", ["inner.bias", "shift"]])
def test_parameters_that_are_not_followed_move_no_examples(params):
    torch.manual_seed(0)
    model, x = Shifted(), torch.randn(EXAMPLES, WIDTH, dtype=torch.float64)
    kernels = tangent_kernels(model, x, outputs="trace", params=params)
    # All; and once, for all outputs together, a part of the batch and a single example.
    assert model.seen == EXAMPLES + 10 + 1
    assert_trace(model, x, kernels)


@pytest.mark.parametrize("means", MEANS)
def test_examples_that_move_between_layers_that_are_not_followed(means):
    x, _ = examples()
    model = Moves(MEANS[means])
    assert_trace(model, x, tangent_kernels(model, x, "inner", outputs="trace"))


def test_a_table_with_a_row_for_every_place_of_a_batch_is_noticed():
    class Places(Passes):
        def forward(self, ids):
            places = torch.arange(len(ids))[:, None] % 2
            return torch.where(places > 0, 2.0, 1.0) * self.model(ids)

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(5 * WIDTH, CLASSES))
    ids = torch.randint(0, 9, (EXAMPLES, WIDTH))
    with pytest.raises(th.errors.CaptureError, match="depend on each other"):
        gradient_sums(Places(layers), ids, torch.arange(EXAMPLES) % CLASSES, cross_entropy)


def test_a_count_of_all_examples_that_enters_the_numbers_is_noticed():
    class Counts(Passes):
        def forward(self, ids):
            return self.model(ids) * ids.sum()

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(5 * WIDTH, CLASSES))
    ids = torch.randint(0, 9, (EXAMPLES, WIDTH))
    with pytest.raises(th.errors.CaptureError, match="depend on each other"):
        gradient_sums(Counts(layers), ids, torch.arange(EXAMPLES) % CLASSES, cross_entropy)


class Padded(nn.Module):
    """Layers see batches of eight only."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        padded = functional.pad(x, (0, 0, 0, -len(x) % 8))
        return self.head(self.inner(padded).tanh())[: len(x)]


@pytest.mark.parametrize("check", [True, "every"])
def test_layers_without_a_row_for_every_example_are_said_to_have_none(check):
    with pytest.raises(ShapeError, match="features of 'inner': expected one row per example"):
        th.features(Padded(), torch.randn(16, 4), check=check)


class TakesBatch(nn.Module):
    """The whole batch is one mapping."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, batch):
        return self.net(batch["image"])


@pytest.mark.parametrize(
    "measure", [tangent_kernels, th.tangent_features, gradient_sums, tangent_alignments]
)
def test_a_model_that_takes_a_batch_of_one_column_as_one_mapping(measure):
    model, x, y = TakesBatch(), torch.randn(6, 4), torch.arange(6) % 3
    data = {"image": x, "labels": y}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = measure(model, data)
    assert "passed as one mapping" in str(said[-1].message)
    wanted = measure(model.net, (x, y))

    def numbers(result):
        if measure is gradient_sums:
            return result.total.norms
        return result.curve if measure is tangent_alignments else next(iter(result.values()))

    torch.testing.assert_close(numbers(found), numbers(wanted))
