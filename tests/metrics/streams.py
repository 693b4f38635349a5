"""The metrics under test, each with its one-shot value; shared with the worker processes."""

from dataclasses import dataclass

import numpy as np
import torch

from tests.reference import streams as reference
from theodolite import metrics

CLASSES = 4


@dataclass(frozen=True)
class Data:
    features: torch.Tensor
    other: torch.Tensor
    labels: torch.Tensor

    def part(self, rows):
        return Data(self.features[rows], self.other[rows], self.labels[rows])

    def __len__(self):
        return len(self.labels)


def make_data(dtype=torch.float64, n=120, mean=1e4, seed=0):
    """Features of 12 columns over three decades about a large mean; class 3 is rare."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES - 1, (n,), generator=generator)
    labels[::17] = CLASSES - 1
    # bfloat16 has steps of 64 at 1e4: what is smaller is rounded away in the data themselves.
    spread = 500.0 if dtype == torch.bfloat16 else 1.0
    scales = torch.logspace(0, -1 if dtype == torch.bfloat16 else -2, 12, dtype=torch.float64)
    x = torch.randn(n, 12, dtype=torch.float64, generator=generator)
    x = (x + torch.eye(12, dtype=torch.float64)[labels] * 2) * scales * spread
    other = x[:, :5] + spread * torch.randn(n, 5, dtype=torch.float64, generator=generator)
    return Data((x + mean).to(dtype), (other - mean).to(dtype), labels)


def _wide(tensor):
    return tensor.double().numpy()


def _tiny(data):
    """Gaps of features whose smallest directions lie far below what a Gram matrix resolves."""
    return reference.gaps(_graded(data))


def _graded(data):
    centered = _wide(data.features) - 1e4
    return centered * np.logspace(0, -9, centered.shape[1])


class Case:
    """How to build one metric, feed it, and what it must say in the end."""

    def __init__(self, build, arguments, expected):
        self.build, self.arguments, self.expected = build, arguments, expected

    def feed(self, metric, part):
        metric.update(*self.arguments(part))

    def call(self, metric, part):
        return metric(*self.arguments(part))


def _representation():
    def thresholds(data):
        return reference.gaps(_wide(data.features))

    def build(data, **kwargs):
        levels = torch.from_numpy(thresholds(data))
        return metrics.RepresentationAlignment(CLASSES, levels, rows="none", **kwargs)

    def expected(data):
        x, y, levels = _wide(data.features), data.labels.numpy(), thresholds(data)
        return reference.alignment_curve(x, reference.one_hot(y, CLASSES), levels)

    return Case(build, lambda part: (part.features, part.labels), expected)


def _fine_representation():
    def build(data, **kwargs):
        levels = torch.from_numpy(_tiny(data))
        return metrics.RepresentationAlignment(CLASSES, levels, rows="none", **kwargs)

    def feed(part):
        return torch.from_numpy(_graded(part)), part.labels

    def expected(data):
        targets = reference.one_hot(data.labels.numpy(), CLASSES)
        return reference.alignment_curve(_graded(data), targets, _tiny(data))

    return Case(build, feed, expected)


def _target_cka(debiased):
    return Case(
        lambda data, **kwargs: metrics.TargetCKA(CLASSES, debiased, **kwargs),
        lambda part: (part.features, part.labels),
        lambda data: reference.cka(
            _wide(data.features), reference.one_hot(data.labels.numpy(), CLASSES), debiased
        ),
    )


def _pair_cka(debiased):
    return Case(
        lambda data, **kwargs: metrics.PairCKA(debiased, **kwargs),
        lambda part: (part.features, part.other),
        lambda data: reference.cka(_wide(data.features), _wide(data.other), debiased),
    )


def _vectors(part_of, expected):
    return Case(
        lambda data, **kwargs: metrics.VectorAlignment(CLASSES, part_of, **kwargs),
        lambda part: (part.features, part.labels),
        lambda data: expected(_wide(data.features), data.labels.numpy()),
    )


def _contrast(vectors, labels):
    per_class = reference.class_omega(vectors, labels, CLASSES)
    return np.nanmean(per_class) - reference.omega(vectors)


CASES = {
    "representation": _representation(),
    "representation-fine": _fine_representation(),
    "target-cka": _target_cka(debiased=True),
    "target-cka-biased": _target_cka(debiased=False),
    "pair-cka": _pair_cka(debiased=True),
    "pair-cka-biased": _pair_cka(debiased=False),
    "vectors": _vectors("class", lambda v, y: reference.class_omega(v, y, CLASSES)),
    "vectors-in-class": _vectors(
        "in_class", lambda v, y: np.nanmean(reference.class_omega(v, y, CLASSES))
    ),
    "vectors-overall": _vectors("overall", lambda v, y: reference.omega(v)),
    "vectors-contrast": _vectors("contrast", _contrast),
    "covariance": Case(
        lambda data, **kwargs: metrics.CovarianceState(**kwargs),
        lambda part: (part.features,),
        lambda data: reference.covariance(_wide(data.features)),
    ),
}
