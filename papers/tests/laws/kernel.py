"""Laws of the formulas of kernel alignment."""

import torch

from tests.conformance.laws.kernel import CURVE
from tests.conformance.laws.law import Law


def _lost_by_centering_examples(kernel, targets, **_options):
    """How many times larger kernel and targets are than what centring over examples leaves."""
    rows = kernel - kernel.mean(0, keepdim=True)
    centered = rows - rows.mean(2, keepdim=True)
    kept = torch.linalg.vector_norm(centered) / torch.linalg.vector_norm(kernel)
    left = torch.linalg.vector_norm(targets - targets.mean(0)) / torch.linalg.vector_norm(targets)
    return float(1 / (kept * left))


LAWS = {
    "power_evenness": Law(inputs=CURVE),
    "spectral_gap": Law(
        inputs={"eigenvalues": "eigenvalues"}, invariances=(("scale", "eigenvalues"),)
    ),
    "operator_alignment": Law(
        inputs={"kernel": "tangent_kernel", "targets": "targets"},
        invariances=(
            ("permute_rows_and_columns", "kernel", "targets"),
            ("scale", "kernel", "targets"),
            ("shift_entries", "kernel"),
            ("shift_entries", "targets"),
            ("shift_rows", "targets"),
            ("negate", "targets"),
        ),
        condition=_lost_by_centering_examples,
    ),
    "operator_alignment.uncentered": Law(
        inputs={"kernel": "tangent_kernel", "targets": "targets"},
        invariances=(
            ("permute_rows_and_columns", "kernel", "targets"),
            ("scale", "kernel", "targets"),
            ("negate", "targets"),
        ),
    ),
}
