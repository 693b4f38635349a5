"""Numbers of a survey against the public measures on tensors obtained another way."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import theodolite as th
from tests.reference.representation import chance_curve
from tests.survey.subjects import Last, blobs, cnn, images, mlp, rows, value
from theodolite.errors import MemoryLimitError
from theodolite.measures import covariance, gradient, kernel, representation, tangent
from theodolite.surveys import SurveyOptions, draw_probe
from theodolite.surveys.context import SurveyContext
from theodolite.theory import convergence

CLOSE = {"rel": 2e-4, "abs": 2e-5}


@pytest.fixture(scope="module")
def wide():
    """A network with layers narrower and wider than the probe, all its data in the probe."""
    x, y = blobs(30)
    model = mlp((6, 50, 8, 3)).eval()
    return model, th.survey(model, (x, y)), x, y


def layer_outputs(model, x):
    """What the layer after each linear one receives; of the last, what it gives."""
    outputs, last = {}, None
    for name, module in model.named_children():
        x = module(x)
        last = name if isinstance(module, nn.Linear) else last
        outputs[last] = x.detach().flatten(1).double()
    return outputs


@pytest.mark.parametrize("layer", ["0", "2", "4"])
def test_representation(wide, layer):
    model, found, x, y = wide
    features = layer_outputs(model, x)[layer].float()
    prepared = representation.prepare_features(features).features
    area = representation.alignment_area(features, y)
    assert value(found, "alignment_area", layer) == pytest.approx(area.item(), **CLOSE)
    top = representation.top_share(features, y, 3)
    assert value(found, "top_share", layer) == pytest.approx(top.item(), **CLOSE)
    projections = representation.label_projections(prepared, y)
    step_size = 1 / projections.singular_values[0].item() ** 2
    steps = convergence.steps_to_reduce(projections, 15.0, step_size)
    assert value(found, "predicted_steps", layer) == pytest.approx(steps.item(), abs=1)
    curve = found.curve("alignment_curve", layer)
    expected = representation.alignment_curve(features, y, torch.tensor(curve["x"]))
    np.testing.assert_allclose(curve["y"], expected.values, atol=2e-4)
    predicted = found.curve("predicted_loss", layer)
    losses = convergence.gradient_descent_loss(projections, step_size, torch.tensor(predicted["x"]))
    np.testing.assert_allclose(predicted["y"], losses / 30, atol=2e-3)
    power = found.curve("label_power", layer)
    assert power["y"].sum() <= 1 + 1e-5
    assert (np.diff(power["x"]) <= 0).all()


def test_chance_curve_is_that_of_random_labels(wide):
    model, found, x, y = wide
    features = layer_outputs(model, x)["2"].float()
    curve = found.curve("alignment_curve", "2")
    thresholds = torch.tensor(curve["x"])
    expected = chance_curve(features.numpy(), y.numpy(), thresholds.numpy())
    np.testing.assert_allclose(curve["chance"], expected, atol=0.08)


@pytest.mark.parametrize("batch", [None, 7])
def test_true_labels_beside_those_that_were_trained_on(batch):
    x, y = blobs(90)
    own = y[torch.randperm(90, generator=torch.Generator().manual_seed(1))]
    data = (x, own)
    if batch is not None:
        data = DataLoader(TensorDataset(x, own), batch_size=batch)
    sizes = {"kernel": 40}
    options = SurveyOptions("kernel", sizes=sizes)
    picked = draw_probe((x, own), options).batch.args[0]
    places = [int((x == row).all(1).nonzero()) for row in picked]
    model = mlp().eval()
    found = th.survey(model, data, truth=y.tolist(), families="kernel", sizes=sizes)
    for layer, features in layer_outputs(model, x[places]).items():
        if layer in found.layers:
            true = kernel.target_cka(features, y[places])
            given = kernel.target_cka(features, own[places])
            assert value(found, "cka_truth", layer) == pytest.approx(true.item(), **CLOSE)
            assert value(found, "cka_target", layer) == pytest.approx(given.item(), **CLOSE)
            assert found.estimate("cka_truth", layer).null_sd > 0
    plain = th.survey(model, data, families="kernel", sizes=sizes)
    without = [row for row in found.record.contents["rows"] if row["measure"] != "cka_truth"]
    assert plain.record.contents["rows"] == without


@pytest.mark.parametrize("layer", ["0", "2", "4"])
def test_kernel(wide, layer):
    model, found, x, y = wide
    gram = kernel.gram(layer_outputs(model, x)[layer])
    target = kernel.cka(gram, kernel.target_gram(y).double())
    assert value(found, "cka_target", layer) == pytest.approx(target.item(), **CLOSE)
    inputs = kernel.cka(gram, kernel.gram(x.double()))
    assert value(found, "cka_input", layer) == pytest.approx(inputs.item(), **CLOSE)
    ratio = kernel.participation_ratio(gram)
    assert value(found, "participation_ratio", layer) == pytest.approx(ratio.item(), **CLOSE)
    features = layer_outputs(model, x)[layer].float()  # whose rounding is not a direction
    power = kernel.cumulative_power(kernel.linear_spectrum(features), y)
    np.testing.assert_allclose(found.curve("cumulative_power", layer)["y"], power.curve, atol=1e-3)
    area = kernel.power_area(power.curve)
    assert value(found, "power_area", layer) == pytest.approx(area.item(), abs=1e-3)


@pytest.mark.parametrize("pool", [None, "max", "mean", "flatten"])
def test_spectra_and_alignments_are_of_the_same_reduced_maps(pool):
    x, y = images()
    model = cnn().eval()
    found = th.survey(model, (x, y), families="kernel", pool=pool)
    maps = model[:3](x).detach().double()
    reduced = {
        None: th.features(model, x, ["0"], pool="grid")["0"].double(),
        "max": maps.amax((2, 3)),
        "mean": maps.mean((2, 3)),
        "flatten": maps,
    }[pool]
    gram = kernel.gram(reduced.flatten(1))
    ratio = kernel.participation_ratio(gram)
    assert value(found, "participation_ratio", "0") == pytest.approx(ratio.item(), **CLOSE)
    cka = kernel.cka(gram, kernel.target_gram(y))
    assert value(found, "cka_target", "0") == pytest.approx(cka.item(), **CLOSE)


@pytest.mark.parametrize("layer", ["0", "2", "4"])
def test_tangent(wide, layer):
    model, found, x, y = wide
    kernels = th.tangent_kernels(model, x, [layer])[layer].double()
    expected = tangent.alignment_decomposition(kernels, functional.one_hot(y).double())
    assert value(found, "tangent_alignment", layer) == pytest.approx(
        expected.alignment.item(), **CLOSE
    )
    assert value(found, "stable_rank", layer) == pytest.approx(expected.stable_rank.item(), **CLOSE)
    assert value(found, "correlation", layer) == pytest.approx(expected.correlation.item(), **CLOSE)


def test_peak_and_equilibrium_layer(wide):
    _, found, _, _ = wide
    curve = [value(found, "tangent_alignment", layer) for layer in found.layers]
    assert value(found, "peak_layer") == 1 + int(np.argmax(curve))
    assert 1 <= value(found, "equilibrium_layer") <= 3


def gradients(model, x, y, layer):
    """One example at a time, by plain autograd."""
    names = [name for name, _ in model.named_parameters() if name.startswith(layer + ".")]
    parameters = {name: p.detach().double() for name, p in model.named_parameters()}
    rows = []
    for example, label in zip(x.double(), y, strict=True):
        leaves = {name: parameters[name].clone().requires_grad_() for name in names}
        output = functional_call(model.double(), parameters | leaves, example[None])
        loss = functional.cross_entropy(output, label[None])
        rows.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))])
        )
    model.float()
    return torch.stack(rows)


@pytest.mark.parametrize("layer", ["0", "4"])
def test_gradient(wide, layer):
    model, found, x, y = wide
    vectors = gradients(model, x, y, layer)
    expected = {
        "omega": gradient.vector_alignment(vectors),
        "in_class_omega": gradient.in_class_alignment(vectors, y),
        "omega_contrast": gradient.alignment_contrast(vectors, y),
        "gradient_diversity": gradient.gradient_diversity(vectors),
        "stiffness": gradient.cosine_stiffness(vectors),
        "gradient_confusion": gradient.gradient_confusion(vectors),
    }
    for measure, number in expected.items():
        assert value(found, measure, layer) == pytest.approx(number.item(), rel=1e-3, abs=1e-5)
    contrasts = gradient.class_alignment(vectors, y) - expected["omega"]
    np.testing.assert_allclose(found.curve("class_contrast", layer)["y"], contrasts, atol=1e-4)


@pytest.mark.parametrize("layer", ["0", "2"])
def test_feature_omega(wide, layer):
    model, found, x, y = wide
    vectors = layer_outputs(model, x)[layer]
    expected = gradient.alignment_contrast(vectors, y).item()
    assert value(found, "feature_omega_contrast", layer) == pytest.approx(expected, **CLOSE)
    expected = gradient.vector_alignment(vectors).item()
    assert value(found, "feature_omega", layer) == pytest.approx(expected, **CLOSE)


def test_covariance_of_a_convolution():
    x, y = images()
    model = cnn().eval()
    found = th.survey(model, (x, y), families="covariance")
    data = th.engine.patch_covariance(x.double(), 3)
    weights = th.engine.weight_covariance(model[0].weight.detach().double())
    generator = torch.Generator().manual_seed(0)
    expected = covariance.compare_misalignment(data, weights, 12, generator=generator)
    row = rows(found, "relative_misalignment", "0")
    assert row["value"] == pytest.approx(expected.relative.item(), rel=1e-3)
    assert (row["null_mean"], row["n"]) == (1.0, 12)
    assert value(found, "misalignment_floor", "0") == pytest.approx(expected.floor.item())
    assert value(found, "subspace", "0") == expected.subspace == 9
    curve = covariance.transfer_function(data, model[0].weight.detach().flatten(1).double())
    np.testing.assert_allclose(found.curve("transfer", "0")["y"], curve.tau, rtol=1e-4)
    patches = found.curve("patch_eigenvectors", "0")
    assert patches["images"].shape == found.curve("filter_eigenvectors", "0")["images"].shape
    assert patches["images"].shape == (8, 1, 3, 3)
    leading = torch.linalg.eigh(data).eigenvectors[:, -1].numpy()
    assert abs(patches["images"][0].flatten() @ leading) == pytest.approx(1, abs=1e-4)


def test_first_linear_layer_is_drawn_in_the_shape_of_the_images():
    x, y = images()
    model = torch.nn.Sequential(torch.nn.Flatten(), *mlp((36, 12, 3)))
    found = th.survey(model, (x, y), families="covariance")
    assert found.curve("filter_eigenvectors", "1")["images"].shape == (8, 1, 6, 6)


def test_heat_maps_are_in_class_order(wide):
    _, found, x, _ = wide
    maps = found.curve("forward_kernel", "0")
    assert (np.diff(maps["classes"]) >= 0).all()
    assert maps["matrix"].shape == (30, 30)
    products = np.sort(np.diag(maps["matrix"]))
    np.testing.assert_allclose(products, np.sort((x.square().sum(1) / 6).numpy()), rtol=1e-4)
    assert found.curve("backward_kernel", "4")["matrix"].shape == (30, 30)


def test_a_kernel_larger_than_its_map_is_left_out_with_the_reason():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 5, padding=2), nn.Flatten(),
        nn.Linear(72, 3),
    )  # fmt: skip
    found = th.survey(model, images(), families="covariance")
    assert math.isnan(value(found, "relative_misalignment", "1"))
    assert rows(found, "relative_misalignment", "1")["reason"] == (
        "no whole patch fits: kernels span (5, 5), their input is (3, 3)"
    )
    assert not math.isnan(value(found, "misalignment", "0"))


@pytest.mark.parametrize(
    ("size", "shape", "known"),
    [
        (64, (1, 8, 8), "guessed"),
        (192, (3, 8, 8), "guessed"),
        (49, (1, 1, 49), "none"),
        (72, (1, 1, 72), "none"),
    ],
    ids=["square", "color", "small", "oblong"],
)
def test_eigenvectors_of_flat_inputs_as_images(size, shape, known):
    x, y = blobs(90, size=size)
    found = th.survey(mlp((size, 9, 3)), (x, y), families="covariance")
    images_of = found.curve("patch_eigenvectors", "0")["images"]
    assert images_of.shape == (8, *shape)
    _, vectors = np.linalg.eigh(np.cov(x.double().numpy().T, ddof=0))
    cosine = images_of[0].ravel() @ vectors[:, -1]
    np.testing.assert_allclose(abs(cosine), 1.0, rtol=1e-5)
    curves = {c["name"]: c for c in found.record.contents["curves"]}
    assert curves["patch_eigenvectors"]["labels"] == {"shape": known}


def test_inputs_that_are_images_give_their_shape():
    model = nn.Sequential(nn.Flatten(), *mlp((36, 9, 3)))
    x, y = images()
    for inputs in (x, x.squeeze(1)):
        found = th.survey(model, (inputs, y), families="covariance")
        assert found.curve("filter_eigenvectors", "1")["images"].shape == (8, 1, 6, 6)


def test_inputs_in_a_plane_have_no_negative_variances():
    torch.manual_seed(0)
    norm = nn.LayerNorm(24, elementwise_affine=False)
    model = nn.Sequential(nn.Conv2d(1, 24, 3), Last(norm), nn.Conv2d(24, 5, 1), nn.Flatten())
    found = th.survey(model, images(200), families="covariance")
    curve = found.curve("transfer", "2")
    assert len(curve["x"]) == 24
    assert (curve["x"] >= 0).all()
    assert not math.isnan(value(found, "relative_misalignment", "0"))


def test_modes_to_reach_counts_modes_of_the_layer():
    """Three units cannot hold 95 % of labels that are drawn at random: no number of modes does."""
    model, x = mlp((6, 3, 3)).eval(), blobs(200)[0]
    labels = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(0))
    found = th.survey(model, (x, labels), families=["kernel"])
    assert value(found, "modes_to_reach", "0") == math.inf


def test_all_pairs_are_taken_where_their_products_cost_less_than_sums(monkeypatch):
    """Eight passes of a convolution at 36 places are products with gradients of 288 examples."""
    for name, number in (("_CHEAP", 0), ("_FEWER", 20)):
        monkeypatch.setattr(f"theodolite.surveys.gradient.{name}", number)
    conv = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AvgPool2d(6), nn.Flatten())
    x, y = torch.randn(40, 1, 8, 8), torch.arange(40) % 8
    routes = {}
    for name, model, data in (("conv", conv, (x, y)), ("linear", mlp((6, 8, 3)), blobs(40))):
        for pairs in (None, 0):
            found = th.survey(model, data, families="gradient", sizes={"pairs": pairs})
            route = found.record.contents["routes"]["gradient"]
            routes[name, pairs] = route["method"].split()[0], route["pairs"]
            rows = set(found.to_frame().measure)
            assert ("gradient_confusion" in rows) == (pairs is None)
            assert "stiffness" in rows
    assert routes == {
        ("conv", None): ("all", 40),
        ("conv", 0): ("all", 0),
        ("linear", None): ("sums", 20),
        ("linear", 0): ("sums", 0),
    }


def test_sums_follow_where_pairs_of_all_examples_do_not_fit(monkeypatch):
    calls = []

    def refused(self, layers, family, count, of_loss=False):
        calls.append(count)
        raise MemoryLimitError("memory: none")

    whole = th.survey(cnn(), images(), families="gradient")
    monkeypatch.setattr(SurveyContext, "tangent_kernels", refused)
    found = th.survey(cnn(), images(), families="gradient")
    assert found.record.contents["routes"]["gradient"]["method"] == "sums over examples"
    assert len(calls) == 2
    warned = [w for w in found.record.contents["warnings"] if w["measure"] == "gradient_confusion"]
    assert len(warned) == 1
    assert value(found, "omega", "0") == pytest.approx(value(whole, "omega", "0"), rel=1e-4)


def test_sums_of_gradients_are_those_of_all_pairs():
    model, (x, y) = cnn().double(), images()
    x, few = x.double(), {"pairs": 10}
    alone = y.clone()
    alone[0] = 2 + y.max()  # a class of one example, after one of none
    model[7] = nn.Linear(128, 6).double()
    from_pairs, from_sums = (
        th.survey(model, (x, alone), families="gradient", sizes=sizes, permutations=0)
        for sizes in ({}, few)
    )
    methods = [s.record.contents["routes"]["gradient"]["method"] for s in (from_pairs, from_sums)]
    assert methods == ["all pairs of examples", "sums over examples"]
    one, other = (
        s.to_frame().query("measure != 'gradient_confusion'") for s in (from_pairs, from_sums)
    )
    assert list(one.measure) == list(other.measure)
    np.testing.assert_allclose(one.value, other.value, rtol=1e-9)
    for name, values in from_sums.record.arrays.items():
        np.testing.assert_allclose(from_pairs.record.arrays[name], values, rtol=1e-9, atol=1e-12)


def test_gradients_of_all_parameters_stay_those_where_few_layers_are_shown():
    model, data = cnn().double(), (images()[0].double(), images()[1])
    every, first = (
        th.survey(model, data, families="gradient", layers=layers, permutations=0)
        for layers in (None, ["0"])
    )
    wanted = "measure in ('omega', 'in_class_omega') and layer.isna()"
    one, other = (found.to_frame().query(wanted).value for found in (every, first))
    assert len(one) == 2
    np.testing.assert_allclose(one, other, rtol=1e-9)


def test_a_model_runs_once_for_all_that_read_its_outputs(monkeypatch):
    """Layers of 72 features and more are wider than 40 examples: their pass keeps products only."""
    monkeypatch.setattr("theodolite.surveys.context._KEPT", 0)
    passes, forward = [], SurveyContext.forward
    monkeypatch.setattr(
        SurveyContext, "forward", lambda self, batch: passes.append(1) or forward(self, batch)
    )
    x, y = torch.randn(40, 1, 8, 8), torch.arange(40) % 8
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 6), nn.Flatten())
    found = th.survey(model, (x, y), families=("representation", "gradient"), layers=["0"])
    assert {"accuracy", "loss"} <= set(found.to_frame().measure)
    assert len(passes) == 1


def test_a_loss_that_looks_at_other_examples_is_taken_of_single_ones():
    x, y = blobs(30)
    model = mlp((6, 9, 3)).double().eval()

    def loss(outputs, labels):
        losses = functional.cross_entropy(outputs, labels, reduction="none")
        return losses - 0.5 * losses.mean()

    for families in ("gradient", ["tangent", "gradient"]):
        found = th.survey(model, (x.double(), y), families=families, loss=loss)
        single = th.survey(model, (x.double(), y), families=families)
        for survey in (found, single):
            assert "feature_omega" in set(survey.to_frame().measure)
        mixed, plain = (
            {
                r["layer"]: r["value"]
                for r in survey.record.contents["rows"]
                if r["measure"] == "omega"
            }
            for survey in (found, single)
        )
        for layer, own in mixed.items():  # of one example the loss is half of the plain one
            assert own == pytest.approx(plain[layer], rel=1e-6)
