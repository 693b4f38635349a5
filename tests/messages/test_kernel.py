"""What the measures of kernel alignment say about bad input."""

import numpy as np
import pytest
import torch

from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.measures import kernel

K = torch.tensor([[2.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 1.0]])
F = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0], [0.0, 1.0]])
LABELS = torch.tensor([0, 1, 0, 1])
CURVE = torch.tensor([0.0, 0.5, 1.0])
SKEWED = K + torch.triu(torch.ones(3, 3), 1)
NAN = torch.full((4, 2), torch.nan)


@pytest.mark.spec("3.P60")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: kernel.gram(F[0]), ShapeError, r"features: expected 2 axes, got shape \(2,\)"),
        (lambda: kernel.gram(F[:0]), ShapeError, "features: expected at least one entry"),
        (lambda: kernel.gram(NAN), DomainError, r"features: expected finite.*index \(0, 0\)"),
        (
            lambda: kernel.gram(F, F[:, :1]),
            ShapeError,
            "equal numbers of columns, but features has 2 and other has 1; .* same layer",
        ),
        (lambda: kernel.gram(F + 0j), DtypeError, "real numbers, got torch.complex64"),
        (lambda: kernel.gram(F, F.numpy()), DtypeError, "all NumPy arrays or all tensors"),
        (
            lambda: kernel.target_gram(LABELS.float()),
            ShapeError,
            r"targets: expected integer labels .*float vector; pass unsqueeze\(-1\)",
        ),
        (lambda: kernel.target_gram(LABELS - 1), DomainError, "labels? of at least 0, got -1"),
        (lambda: kernel.target_gram(LABELS, 1), DomainError, "below num_classes = 1, got 1"),
        (
            lambda: kernel.participation_ratio(SKEWED),
            DomainError,
            r"gram: .*symmetric.*\(m \+ m.T\) / 2",
        ),
        (lambda: kernel.kta(K, torch.eye(2)), ShapeError, "gram_a is .*3, 3.*gram_b is .*2, 2"),
        (lambda: kernel.kta(SKEWED, K), DomainError, "gram_a: expected a symmetric"),
        (lambda: kernel.cka(K, K / 0), DomainError, "gram_b: expected finite"),
        (lambda: kernel.cka(K, SKEWED), DomainError, "gram_b: expected a symmetric"),
        (lambda: kernel.hsic(K, F), ShapeError, "gram_b: expected a square"),
        (
            lambda: kernel.linear_cka(F, F[:3]),
            ShapeError,
            "features_a has 4, features_b has 3",
        ),
        (lambda: kernel.linear_cka(NAN, F), DomainError, "features_a: expected finite"),
        (lambda: kernel.linear_kta(F, F[:, 0]), ShapeError, "features_b: expected 2 axes"),
        (lambda: kernel.linear_hsic(F, NAN), DomainError, "features_b: expected finite"),
        (lambda: kernel.target_cka(F, LABELS[:3]), ShapeError, "features has 4, labels has 3"),
        (lambda: kernel.target_cka(F, LABELS.float()), DomainError, r"integer.*\.long\(\)"),
        (lambda: kernel.cka_matrix([]), ShapeError, "at least one layer's features, got none"),
        (
            lambda: kernel.cka_matrix([F, F[:3]]),
            ShapeError,
            r"layers\[0\] has 4, layers\[1\] has 3",
        ),
        (lambda: kernel.cka_matrix([F, NAN]), DomainError, r"layers\[1\]: expected finite"),
        (lambda: kernel.cka_matrix([F], LABELS[:2]), ShapeError, "layer has 4, labels has 2"),
        (lambda: kernel.cka_matrix([F], LABELS - 1), DomainError, "at least 0, got -1"),
        (
            lambda: kernel.kernel_spectrum(torch.diag(torch.tensor([1.0, -0.5]))),
            DomainError,
            "gram: expected a positive semi-definite matrix, got an eigenvalue of -0.5 next to 1",
        ),
        (lambda: kernel.kernel_spectrum(SKEWED), DomainError, "gram: expected a symmetric"),
        (lambda: kernel.kernel_spectrum(K, count=0), DomainError, "count: .* at least 1, got 0"),
        (lambda: kernel.linear_spectrum(F[0]), ShapeError, "features: expected 2 axes"),
        (lambda: kernel.linear_spectrum(NAN), DomainError, "features: expected finite"),
        (lambda: kernel.cumulative_power(K, F), ShapeError, "kernel has 3, targets has 4"),
        (lambda: kernel.cumulative_power(K, NAN[:3]), DomainError, "targets: expected finite"),
        (lambda: kernel.cumulative_power(SKEWED, F[:3]), DomainError, "kernel: .* symmetric"),
        (
            lambda: kernel.modes_to_reach(CURVE, 1.2),
            DomainError,
            r"share: expected a number in \[0.0, 1.0\], got 1.2",
        ),
        (lambda: kernel.modes_to_reach(CURVE + 1), DomainError, r"0 first.*cumulative_power\("),
        (lambda: kernel.power_area(CURVE.flip(0)), DomainError, "nondecreasing"),
        (lambda: kernel.participation_ratio(F), ShapeError, "gram: expected a square"),
        (
            lambda: kernel.target_gram(np.array(["a", "b"])),
            DtypeError,
            "targets: expected real numbers",
        ),
        (lambda: kernel.mean_gram([]), ShapeError, "grams: expected at least one, got none"),
    ],
)
def test_bad_input_is_named_with_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernel.cka_matrix([K]), r"layers\[0\]: .*Gram matrix; call cka"),
        (lambda: kernel.cka_matrix({"fc": K}), r"layers\['fc'\]: .*Gram matrix; .*column of zeros"),
        (lambda: kernel.linear_cka(F[:3], K), "features_b: .*Gram matrix; call cka"),
        (lambda: kernel.linear_kta(K, F[:3]), "features_a: .*Gram matrix; call kta"),
        (lambda: kernel.linear_hsic(K, K), "features_a: .*Gram matrix; call hsic"),
        (lambda: kernel.target_cka(K, LABELS[:3]), "features: .*Gram matrix; call cka"),
        (lambda: kernel.cka(F, F), "gram_a: .*if these are features, call linear_cka"),
        (lambda: kernel.cka(K, SKEWED), "gram_b: .*if these are features, call linear_cka"),
        (lambda: kernel.hsic(K, F), "gram_b: .*if these are features, call linear_hsic"),
        (lambda: kernel.kta(F, F), "gram_a: .*if these are features, call linear_kta"),
        (lambda: kernel.kernel_spectrum(F), "if these are features, call linear_spectrum"),
        (lambda: kernel.participation_ratio(F), r"if these are features, pass gram\(features\)"),
    ],
)
def test_features_and_gram_matrices_are_not_mixed_up(call, message):
    with pytest.raises((DomainError, ShapeError), match=message):
        call()
