"""What the demo points out follows the numbers."""

from theodolite.advice.noticing import contrast_is_higher, last_area_rises, random_labels_are_late
from theodolite.records import Estimate

LAYERS = ["fc1", "fc2"]


def cka(value):
    return Estimate(value, null_mean=0.0, null_sd=0.01)


def test_random_labels_are_late():
    found = random_labels_are_late(LAYERS, cka(-0.001), cka(0.5))
    assert str(found) == (
        "Random labels appear mostly in late layers: CKA to labels 0.00 in fc1, 0.50 in fc2 "
        "(chance 0)."
    )
    assert not random_labels_are_late(LAYERS, cka(0.2), cka(0.5)).holds
    assert not random_labels_are_late(LAYERS, cka(0.001), cka(0.04)).holds  # within 5 deviations


def test_one_layer_is_enough_to_deny_a_higher_contrast():
    assert contrast_is_higher(LAYERS, [0.3, 0.6], [0.1, 0.5]).holds
    denied = contrast_is_higher(LAYERS, [0.3, 0.4], [0.1, 0.5])
    assert str(denied) == (
        "Not in this run: Feature contrast is higher with true labels in every layer: 0.30 in fc1 "
        "(random labels 0.10), 0.40 in fc2 (random labels 0.50)."
    )


def test_label_alignment_rises_most_in_the_last_layer():
    assert last_area_rises(LAYERS, [0.1, 0.1], [0.2, 0.3]).holds
    assert not last_area_rises(LAYERS, [0.1, 0.1], [0.3, 0.2]).holds
    assert not last_area_rises(LAYERS, [0.3, 0.3], [0.1, 0.2]).holds
