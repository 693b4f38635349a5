"""Networks that reorder, pack, route and cast: the true number or a refusal with the true reason.

The truth is one example at a time by plain autograd in float64. ``test_networks.py`` has the same
networks in one batch; here are another seed, small batches, and networks that are generated.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import theodolite as th
from tests.engine import hostile
from tests.engine.hostile import DEPENDENT, EXACT, Autocast, specimen
from tests.engine.single_gradients import cross_entropy, in_layer
from tests.reference.example_gradients import example_gradients
from tests.reference.tangents import tangent_features
from theodolite.engine import (
    feature_chunks,
    feature_grams,
    gradient_sums,
    tangent_alignments,
    tangent_kernels,
)
from theodolite.errors import CaptureError, DomainError, DtypeError, ShapeError
from theodolite.measures.gradient import in_class_alignment

EXAMPLES = hostile.EXAMPLES
# Sums of a few hundred products in float64, of numbers of order one.
EXACTLY = 1e-9


def real(rows):
    """Gradients as real vectors, one per row; a complex one is two numbers."""
    rows = torch.view_as_real(rows) if rows.is_complex() else rows
    return rows.reshape(len(rows), -1)


def gradients_of(made):
    found, _ = example_gradients(
        made.model, (made.inputs, made.labels), cross_entropy, made.readout
    )
    return {name: real(rows) for name, rows in found.items()}


def below(rows, layer):
    return torch.cat([part for name, part in rows.items() if in_layer(name, layer)], 1)


def assert_gradients(made, sums):
    rows = gradients_of(made)
    for layer in sums:
        wanted = below(rows, layer)
        scale = float(wanted.norm(dim=1).max()) + 1e-12
        torch.testing.assert_close(
            sums[layer].norms, wanted.norm(dim=1), rtol=0, atol=EXACTLY * scale
        )
        for label in made.labels.unique().tolist():
            inside = wanted[made.labels == label].sum(0).square().sum()
            found = sums[layer].classes.sum_square[label]
            torch.testing.assert_close(found, inside, rtol=0, atol=EXACTLY * scale**2 * EXAMPLES**2)
    total = torch.cat(list(rows.values()), 1)
    torch.testing.assert_close(sums.total.norms, total.norm(dim=1), rtol=EXACTLY, atol=1e-12)


def kernels_by_definition(made):
    found = tangent_features(made.model, made.inputs, made.readout)
    return {name: real(rows.flatten(0, 1)) for name, rows in found.items()}


def assert_kernels(made, kernels):
    rows = kernels_by_definition(made)
    for layer, kernel in kernels.items():
        J = below(rows, layer)
        wanted = (J @ J.T).view(kernel.shape)
        scale = float(wanted.abs().max()) + 1e-12
        torch.testing.assert_close(kernel, wanted, rtol=0, atol=EXACTLY * scale)


every_exact = pytest.mark.parametrize("name", EXACT)
some = pytest.mark.parametrize(
    "name", ["experts, top-2", "sorts", "flips", "LSTMCell", "scalar parameters", "complex weights"]
)


@every_exact
def test_gradient_sums_are_those_of_single_examples(name):
    made = specimen(name, seed=1)
    sums = gradient_sums(made.model, made.inputs, made.labels, readout=made.readout, batch_size=3)
    assert_gradients(made, sums)


@some
def test_unit_sums_are_those_of_single_examples(name):
    made = specimen(name)
    found = th.gradient_alignment(
        made.model, made.inputs, made.labels, readout=made.readout, stiffness=True
    )
    rows = torch.cat(list(gradients_of(made).values()), 1)
    cosines = torch.nn.functional.normalize(rows, dim=1)
    pairs = cosines @ cosines.T
    wanted = (pairs.sum() - pairs.trace()) / (EXAMPLES * (EXAMPLES - 1))
    torch.testing.assert_close(found.total.stiffness, wanted, rtol=0, atol=EXACTLY)
    omega = in_class_alignment(rows, made.labels)
    torch.testing.assert_close(found.total.in_class, omega, rtol=0, atol=EXACTLY)


@every_exact
def test_tangent_kernels_are_those_of_single_examples(name):
    made = specimen(name, seed=1)
    kernels = tangent_kernels(made.model, made.inputs, readout=made.readout, batch_size=3)
    assert_kernels(made, kernels)


@some
@pytest.mark.parametrize("outputs", ["trace", 1])
def test_parts_of_tangent_kernels(name, outputs):
    made = specimen(name)
    found = tangent_kernels(made.model, made.inputs, outputs=outputs, readout=made.readout)
    rows = torch.cat(list(kernels_by_definition(made).values()), 1)
    blocks = (rows @ rows.T).view(EXAMPLES, -1, EXAMPLES, rows.shape[0] // EXAMPLES)
    diagonal = blocks.diagonal(dim1=1, dim2=3).permute(2, 0, 1)
    wanted = {"trace": diagonal.sum(0), 1: diagonal[1]}[outputs]
    scale = float(wanted.abs().max())
    torch.testing.assert_close(found.total, wanted, rtol=0, atol=EXACTLY * scale)


@some
def test_kernels_between_two_sets(name):
    made = specimen(name)
    other = specimen(name, seed=5).inputs
    found = tangent_kernels(made.model, made.inputs, other=other, readout=made.readout)
    left = torch.cat(list(kernels_by_definition(made).values()), 1)
    second = hostile.Specimen(made.model, other, made.labels, made.readout)
    right = torch.cat(list(kernels_by_definition(second).values()), 1)
    wanted = (left @ right.T).view(found.total.shape)
    scale = float(wanted.abs().max())
    torch.testing.assert_close(found.total, wanted, rtol=0, atol=EXACTLY * scale)


@every_exact
def test_tangent_alignments_are_those_of_single_examples(name):
    made = specimen(name)
    found = tangent_alignments(made.model, made.inputs, made.labels, readout=made.readout)
    rows = kernels_by_definition(made)
    count = len(next(iter(rows.values()))) // EXAMPLES
    y = torch.nn.functional.one_hot(made.labels, count).double()
    y = (y - y.mean()).flatten()
    for layer, entry in found.items():
        J = below(rows, layer)
        centered = J - J.mean(0)
        if centered.norm() < 1e-9:
            continue
        energy, norm = (J.T @ y).square().sum(), (centered @ centered.T).norm()
        wanted = energy / (norm * y.square().sum())
        torch.testing.assert_close(entry.alignment, wanted, rtol=0, atol=1e-8)


def features_one_by_one(made, layers, pool):
    rows = {layer: [] for layer in layers}
    batch = th.engine.batches.whole_batch(made.inputs)
    for index in range(EXAMPLES):
        single = batch.take(slice(index, index + 1))
        one = th.features(made.model, single, layers, pool, read="raw")
        for layer in layers:
            rows[layer].append(one[layer])
    return {layer: torch.cat(parts) for layer, parts in rows.items()}


@every_exact
def test_features_are_those_of_single_examples(name):
    made = specimen(name, seed=1)
    pool = "mean" if name in ("packs", "drops padding", "experts, top-1") else "flatten"
    options = {"pool": pool, "read": "raw", "batch_size": 4}
    if name == "experts, top-1":  # an expert that sees some examples alone
        with pytest.raises(ShapeError, match="one row per example"):
            th.features(made.model, made.inputs, **options)
        return
    found = th.features(made.model, made.inputs, **options)
    for layer, wanted in features_one_by_one(made, list(found), pool).items():
        torch.testing.assert_close(found[layer], wanted, rtol=0, atol=EXACTLY)


@pytest.mark.parametrize("name", ["sorts", "sorts, first stays", "flips", "gather and scatter"])
def test_chunks_and_grams_of_features_follow_the_examples(name):
    made = specimen(name, 1)
    layers = ["head"] if name == "gather and scatter" else ["inner", "head"]
    wanted = features_one_by_one(made, layers, "flatten")
    options = {"read": "raw", "batch_size": 4}
    chunks = list(feature_chunks(made.model, made.inputs, layers, **options))
    grams = feature_grams(made.model, made.inputs, layers, **options)
    for layer in layers:
        rows = torch.cat([chunk.layers[layer] for chunk in chunks])
        torch.testing.assert_close(rows, wanted[layer], rtol=0, atol=EXACTLY)
        gram = wanted[layer] @ wanted[layer].T
        torch.testing.assert_close(grams[layer], gram, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", DEPENDENT)
def test_examples_that_see_each_other_are_refused_with_the_reason(name):
    made = specimen(name, seed=1)
    reason = r"chance|RReLU|random" if name == "random slopes" else "depend"
    for measure in (
        lambda: gradient_sums(made.model, made.inputs, made.labels),
        lambda: tangent_kernels(made.model, made.inputs),
        lambda: tangent_alignments(made.model, made.inputs, made.labels),
        lambda: th.features(made.model, made.inputs),
    ):
        with pytest.raises((CaptureError, DomainError), match=reason) as caught:
            measure()
        if name != "random slopes":
            assert "model.eval()" not in str(caught.value)
            assert "report" not in str(caught.value)


def test_the_answer_says_that_examples_were_measured_one_by_one():
    made = specimen("sorts")
    sums = gradient_sums(made.model, made.inputs, made.labels)
    assert not sums.checked.batched
    kernels = tangent_kernels(made.model, made.inputs)
    routes = {entry.contraction for layer in kernels.coverage.values() for entry in layer}
    assert routes == {"one example at a time"}
    plain = specimen("scalar parameters")
    assert gradient_sums(plain.model, plain.inputs, plain.labels).checked.batched


@pytest.mark.parametrize("seed", range(2))
def test_autocast_inside_the_model_is_measured_in_batches(seed):
    torch.manual_seed(seed)
    model, x = Autocast(), torch.randn(40, hostile.WIDTH)
    labels = torch.arange(40) % hostile.CLASSES
    sums = gradient_sums(model, x, labels)
    assert sums.checked.batched
    rows, _ = example_gradients(model, (x, labels), cross_entropy)
    wanted = torch.cat([part.flatten(1) for part in rows.values()], 1).norm(dim=1).double()
    # Three layers round to eight bits, twice: on the way there and on the way back.
    torch.testing.assert_close(sums.total.norms, wanted, rtol=0.05, atol=0)
    kernels = tangent_kernels(model, x)
    assert {e.contraction for layer in kernels.coverage.values() for e in layer} != {
        "one example at a time"
    }


def test_a_mapping_without_logits_is_an_error_that_lists_its_keys():
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 2)

        def forward(self, x):
            return {"scores": self.inner(x), "hidden": x}

    with pytest.raises(DtypeError, match=r"'scores', 'hidden'.*readout="):
        tangent_kernels(Named(), torch.randn(4, 3))


def test_unknown_dtypes_are_refused():
    class Coarse(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 2)

        def forward(self, x):
            rounded = self.inner(x).to(torch.float8_e4m3fn).float()
            return self.inner(x) + (rounded - self.inner(x)).detach()

    with pytest.raises(DtypeError, match="float8_e4m3fn"):
        gradient_sums(Coarse(), torch.randn(4, 3), torch.arange(4) % 2)
    with pytest.raises(DtypeError, match="float8_e4m3fn"):
        tangent_kernels(Coarse(), torch.randn(4, 3))


# Generated networks -----------------------------------------------------------------------------


class Generated(torch.nn.Module):
    """Stages in any order, each of which moves examples or tokens about."""

    def __init__(self, stages, seed):
        super().__init__()
        torch.manual_seed(seed)
        width = hostile.WIDTH
        self.stages = stages
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in stages)
        self.others = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in stages)
        self.routers = torch.nn.ModuleList(torch.nn.Linear(width, 2) for _ in stages)
        self.head = torch.nn.Linear(width, hostile.CLASSES)
        self.double()

    def forward(self, x):
        for index, stage in enumerate(self.stages):
            x = x + torch.tanh(getattr(self, f"_{stage}")(x, index))
        return self.head(x.mean(1))

    def _plain(self, x, k):
        return self.layers[k](x)

    def _sort(self, x, k):
        order = x.sum((1, 2)).argsort(stable=True)
        return self.layers[k](x[order])[order.argsort()]

    def _flip(self, x, k):
        return self.layers[k](x.flip(0)).roll(1, 0).roll(-1, 0).flip(0)

    def _drop(self, x, k):
        mask = x[..., 0] > -0.5
        out = torch.zeros_like(x)
        out[mask] = self.layers[k](x[mask])
        return out

    def _pack(self, x, k):
        lengths = (x[..., 1] > 0).sum(1).clamp(min=1)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, True, False)
        done = packed._replace(data=self.layers[k](packed.data))
        return torch.nn.utils.rnn.pad_packed_sequence(done, True, total_length=x.shape[1])[0]

    def _top1(self, x, k):
        gates = self.routers[k](x).softmax(-1)
        chosen, out = gates.argmax(-1), torch.zeros_like(x)
        for index, layer in enumerate((self.layers[k], self.others[k])):
            mask = chosen == index
            out[mask] = layer(x[mask]) * gates[mask][:, index, None]
        return out

    def _top2(self, x, k):
        flat = x.flatten(0, 1)
        weights, chosen = self.routers[k](flat).softmax(-1).topk(2)
        out = torch.zeros_like(flat)
        for index, layer in enumerate((self.layers[k], self.others[k])):
            rows, slot = (chosen == index).nonzero(as_tuple=True)
            out = out.index_add(0, rows, layer(flat[rows]) * weights[rows, slot, None])
        return out.view(x.shape)

    def _capacity(self, x, k):
        flat = x.flatten(0, 1)
        chosen = self.routers[k](flat).argmax(-1)
        room = (3 * len(flat) + 3) // 4
        out = torch.zeros_like(flat)
        for index, layer in enumerate((self.layers[k], self.others[k])):
            rows = (chosen == index).nonzero()[:room, 0]
            out = out.index_copy(0, rows, layer(flat[rows]))
        return out.view(x.shape)

    def _gather(self, x, k):
        place = x[..., 2].argsort(1)[..., None].expand_as(x)
        return torch.zeros_like(x).scatter(1, place, self.layers[k](x.gather(1, place)))

    def _custom(self, x, k):
        large = x[:, 0, 0] > 0
        y = self.layers[k](x)
        if bool(large.any()):
            scale = self.others[k].bias
            y = torch.where(large[:, None, None], Scaled.apply(y, scale), y)
        return y


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return gradient * scale, (gradient * x).sum((0, 1))


STAGES = [
    "plain", "sort", "flip", "drop", "pack", "top1", "top2", "capacity", "gather", "custom",
]  # fmt: skip

networks = st.tuples(
    st.lists(st.sampled_from(STAGES), min_size=1, max_size=3),
    st.integers(0, 10**6),
    st.sampled_from([None, 2, 4]),
)


def generated(network):
    stages, seed, batch_size = network
    model = Generated(stages, seed)
    x = torch.randn(EXAMPLES, 3, hostile.WIDTH, dtype=torch.float64)
    labels = torch.arange(EXAMPLES) % hostile.CLASSES
    return hostile.Specimen(model, x, labels), batch_size


def allowed(made, error):
    """A refusal is right only where an example's result depends on the others."""
    assert "depend" in str(error)
    with torch.no_grad():
        together = made.model(made.inputs)
        alone = torch.cat([made.model(row[None]) for row in made.inputs])
    assert not torch.allclose(together, alone, rtol=0, atol=1e-9)


@settings(max_examples=15)
@given(networks)
def test_generated_networks_never_give_a_wrong_gradient(network):
    made, batch_size = generated(network)
    try:
        sums = gradient_sums(made.model, made.inputs, made.labels, batch_size=batch_size)
    except CaptureError as error:
        allowed(made, error)
        return
    assert_gradients(made, sums)


@settings(max_examples=15)
@given(networks)
def test_generated_networks_never_give_a_wrong_kernel(network):
    made, batch_size = generated(network)
    try:
        kernels = tangent_kernels(made.model, made.inputs, batch_size=batch_size)
    except CaptureError as error:
        allowed(made, error)
        return
    assert_kernels(made, kernels)


@settings(max_examples=10)
@given(networks)
def test_generated_networks_never_give_wrong_features(network):
    made, batch_size = generated(network)
    try:
        options = {"read": "raw", "batch_size": batch_size or 256}
        found = th.features(made.model, made.inputs, pool="mean", **options)
    except CaptureError as error:
        allowed(made, error)
        return
    assert "head" in found
    for layer, wanted in features_one_by_one(made, list(found), "mean").items():
        torch.testing.assert_close(found[layer], wanted, rtol=0, atol=EXACTLY)
