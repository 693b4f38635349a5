"""Sums and alignments of gradients on every kind of network, against single gradients."""

import pytest
import torch

from tests.engine.single_gradients import (
    COUNT,
    assert_sums,
    cross_entropy,
    in_layer,
    owners,
    rows_of,
    specimen,
    squared,
)
from tests.engine.zoo import ZOO
from tests.reference import gradient as reference
from tests.reference.example_gradients import example_gradients
from theodolite.engine import class_sums, factors, gradient_alignment, gradient_sums
from theodolite.measures import gradient as measures

zoo = pytest.mark.parametrize("name", ZOO)


@zoo
@pytest.mark.parametrize("batch_size", [3, COUNT])
def test_sums_equal_those_of_single_gradients(name, batch_size):
    zoo_item = specimen(name)
    gradients, slopes = example_gradients(
        zoo_item.model, zoo_item.data, cross_entropy, zoo_item.readout
    )
    sums = gradient_sums(
        zoo_item.model, zoo_item.data, readout=zoo_item.readout, batch_size=batch_size
    )
    assert set(sums) == set(owners(gradients))
    for layer in sums:
        own = {key: rows for key, rows in gradients.items() if in_layer(key, layer)}
        assert_sums(sums[layer], rows_of(own, ""), sums.labels)
    assert_sums(sums.total, rows_of(gradients, ""), sums.labels)
    assert_sums(sums.logits, slopes, sums.labels)


@zoo
def test_alignment_equals_the_measure_on_single_gradients(name):
    zoo_item = specimen(name)
    gradients, slopes = example_gradients(zoo_item.model, zoo_item.data, squared, zoo_item.readout)
    found = gradient_alignment(
        zoo_item.model, zoo_item.data, loss=squared, readout=zoo_item.readout,
        stiffness=True, batch_size=2, layers=["", *owners(gradients)],
    )  # fmt: skip
    labels = found.sums.labels
    for layer, value in [*found.items(), ("all logits", found.logits)]:
        rows = slopes if layer == "all logits" else rows_of(gradients, layer)
        if rows.norm() < 1e-8:  # a gradient that vanishes has no direction
            continue
        assert_alignment(value, rows, labels)
    assert_alignment(found.total, rows_of(gradients, ""), labels)


def stiffness(kind, rows, labels):
    """Mean cosine of gradients within or between classes, by loops."""
    peaks = rows.abs().amax(1, keepdim=True)  # squares of tiny gradients would vanish
    rows = rows / torch.where(peaks > 0, peaks, 1.0)
    function = getattr(reference, f"{kind}_class_stiffness")
    return torch.tensor(function(rows.numpy(), labels.numpy()), dtype=torch.float64)


def assert_alignment(value, rows, labels):
    pairs = {
        "omega": measures.vector_alignment(rows),
        "in_class": measures.in_class_alignment(rows, labels),
        "contrast": measures.alignment_contrast(rows, labels),
        "classes": measures.class_alignment(rows, labels),
        "weighted": measures.weighted_alignment(rows),
        "stiffness": measures.cosine_stiffness(rows),
        "within_class_stiffness": stiffness("within", rows, labels),
        "between_class_stiffness": stiffness("between", rows, labels),
    }
    for name, expected in pairs.items():
        torch.testing.assert_close(
            getattr(value, name), expected, rtol=0, atol=1e-9, equal_nan=True, msg=name
        )
    expected = measures.gradient_diversity(rows)
    torch.testing.assert_close(value.diversity, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("budget", [1, 600])
@pytest.mark.parametrize("products", [0, 10**9], ids=["gradients", "factors"])
@pytest.mark.parametrize("name", ["lenet", "vit", "reused module", "gpt2", "lstm"])
def test_chunks_and_routes_do_not_change_the_sums(name, products, budget, monkeypatch):
    monkeypatch.setitem(factors._PRODUCTS_PER_ENTRY, "cpu", products)
    monkeypatch.setattr(class_sums, "_CHUNK_BYTES", {"cpu": budget})
    zoo_item = specimen(name)
    gradients, _ = example_gradients(zoo_item.model, zoo_item.data, cross_entropy, zoo_item.readout)
    sums = gradient_sums(
        zoo_item.model, zoo_item.data, readout=zoo_item.readout, batch_size=5, stiffness=True
    )
    rows = rows_of(gradients, "")
    assert_sums(sums.total, rows, sums.labels)
    expected = stiffness("within", rows, sums.labels)
    torch.testing.assert_close(sums.total.units.within_class(), expected, rtol=0, atol=1e-9)
