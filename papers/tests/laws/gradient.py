"""Laws of the formulas of gradient alignment."""

from tests.conformance.laws.gradient import CLASSES, LABELED, RENAMED
from tests.conformance.laws.law import Law

LAWS = {
    "class_alignment_matrix": Law(inputs=CLASSES, invariances=LABELED),
    "stiffness_matrix": Law(inputs=CLASSES, invariances=LABELED),
    "within_class_stiffness": Law(inputs=CLASSES, invariances=RENAMED),
    "between_class_stiffness": Law(inputs=CLASSES, invariances=RENAMED),
}
