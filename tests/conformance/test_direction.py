"""The registry's direction: the number moves that way from random to perfectly aligned inputs."""

import numpy as np
import pytest
import torch

from tests.conformance.inputs import CLASSES, draw
from tests.conformance.laws import ROWS

norm = np.linalg.norm


def centered(gram):
    return gram - gram.mean(0) - gram.mean(1, keepdims=True) + gram.mean()


def one_hot(labels, like):
    """A column per class, of the size of some features."""
    columns = np.eye(CLASSES)[labels]
    return columns * norm(like) / norm(columns)


def features_and_targets(a):
    if a["targets"].dtype.kind == "i":
        return {"features": one_hot(a["targets"], a["features"])}
    first = np.linalg.svd(a["features"])[0][:, 0] * norm(a["targets"])
    decaying = first + 1e-6 * a["targets"].reshape(len(first), -1)[:, 0]
    if a["targets"].ndim == 1:
        return {"targets": decaying}
    return {"targets": np.stack([decaying, 0 * first, 0 * first], 1)}


def kernels(a):
    grams = [centered(a[name]) for name in ("gram_a", "gram_b")]
    return {"gram_b": a["gram_a"] * norm(grams[1]) / norm(grams[0])}


def layers(a):
    sides = [a[name] - a[name].mean(0) for name in ("features_a", "features_b")]
    sizes = [norm(side @ side.T) ** 0.5 for side in sides]
    return {"features_b": a["features_a"] * sizes[1] / sizes[0]}


def tangent_kernel(a):
    labels = (a["targets"] - a["targets"].mean(0)).reshape(-1)
    labels = labels * (norm(a["kernel"]) ** 0.5 / norm(labels))
    return {"kernel": np.outer(labels, labels).reshape(a["kernel"].shape)}


def fisher(a):
    identity = np.broadcast_to(np.eye(CLASSES), a["hessian"].shape)
    return {**tangent_kernel(a), "hessian": identity.copy()}


def gram_and_targets(a):
    labels = a["targets"].dtype.kind == "i"
    columns = np.eye(CLASSES)[a["targets"]] if labels else a["targets"]
    return {"gram": columns @ columns.T}


def equal_rows(a):
    return {"vectors": np.tile(a["vectors"][0], (len(a["vectors"]), 1))}


ALIGNED = {
    ("features", "targets"): features_and_targets,
    ("features", "labels"): lambda a: {"features": one_hot(a["labels"], a["features"])},
    ("features", "other_features"): lambda a: {"features": one_hot(a["labels"], a["features"])},
    ("data_covariance", "weight_covariance"): lambda a: {"weight_covariance": a["data_covariance"]},
    ("basis", "weight_covariance"): lambda a: {
        "weight_covariance": a["basis"] * np.arange(1.0, 6) @ a["basis"].T
    },
    ("matrix", "reference"): lambda a: {"matrix": a["reference"]},
    ("covariance_1", "covariance_2"): lambda a: {"covariance_2": a["covariance_1"]},
    ("gram_a", "gram_b"): kernels,
    ("features_a", "features_b"): layers,
    ("curve",): lambda a: {"curve": np.minimum(np.arange(len(a["curve"])) / 2, 1)},
    ("eigenvalues",): lambda a: {"eigenvalues": np.array([1.0, 1, 1e-3, 1e-3, 1e-3])},
    ("tangent_features", "targets"): lambda a: {
        "tangent_features": (a["targets"] - a["targets"].mean())[:, :, None] * np.arange(1.0, 6)
    },
    ("targets", "loss_gradient"): lambda a: {"loss_gradient": -a["targets"]},
    ("kernel", "hessian"): fisher,
    ("vectors",): equal_rows,
    ("vectors", "labels"): equal_rows,
    ("probabilities", "labels"): lambda a: {"probabilities": np.eye(CLASSES)[a["labels"]]},
    ("gram", "targets"): gram_and_targets,
    ("kernel", "labels"): lambda a: {
        "kernel": np.einsum(
            "xy,ij->xiyj", np.equal.outer(a["labels"], a["labels"]), np.eye(CLASSES)
        )
    },
    ("gram",): lambda a: {"gram": np.full_like(a["gram"], np.abs(a["gram"]).max())},
}


def aligned(row, arguments):
    """The same arguments with one of them replaced by what aligns best with the others."""
    names = tuple(row.inputs)[:2]
    if row.name == "alignment_contrast":  # equal vectors leave nothing for the classes to add
        return {**arguments, "vectors": np.eye(CLASSES)[arguments["labels"]]}
    if row.name in ("transrate", "sfda"):  # both need spread within the classes
        apart = 5 * one_hot(arguments["labels"], arguments["features"])
        features = arguments["features"].copy()
        features[:, :CLASSES] += apart
        return {**arguments, "features": features}
    if names == ("kernel", "targets"):
        if arguments["kernel"].ndim == 4:
            return {**arguments, **tangent_kernel(arguments)}
        return {**arguments, "kernel": arguments["targets"] @ arguments["targets"].T}
    return {**arguments, **ALIGNED[names](arguments)}


def mean_value(row, arguments):
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, np.ndarray)
        else value
        for name, value in arguments.items()
    }
    return row(**tensors).double().nanmean().item()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name)
        for row in ROWS.values()
        if row.larger_is_more_aligned is not None
    ],
)
def test_moves_in_its_direction(row, seed):
    arguments = draw(row.inputs, "random", seed)
    before, after = mean_value(row, arguments), mean_value(row, aligned(row, arguments))
    assert (after > before) if row.larger_is_more_aligned else (after < before)
