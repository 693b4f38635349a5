"""The vocabulary of invariances, as functions on NumPy arguments."""

from typing import Any

import numpy as np

Arguments = dict[str, Any]


def _orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


def permute_rows(arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator) -> None:
    order = rng.permutation(len(arguments[names[0]]))
    for name in names:
        arguments[name] = arguments[name][order]


def permute_rows_and_columns(
    arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator
) -> None:
    order = rng.permutation(len(arguments[names[0]]))
    for name in names:
        value = arguments[name][order]
        if value.ndim == 4:
            value = value[:, :, order]
        elif value.ndim == 2 and value.shape[0] == value.shape[1]:
            value = value[:, order]
        arguments[name] = value


def rotate_columns(arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator) -> None:
    q = _orthogonal(rng, arguments[names[0]].shape[1])
    for name in names:
        arguments[name] = arguments[name] @ q


def rotate_both(arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator) -> None:
    q = _orthogonal(rng, arguments[names[0]].shape[-1])
    for name in names:
        value = arguments[name]
        square = value.ndim == 2 and value.shape[0] == value.shape[1]
        arguments[name] = q @ value @ q.T if square else value @ q.T
        if square:
            arguments[name] = (arguments[name] + arguments[name].T) / 2


def rotate_rows(arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator) -> None:
    q = _orthogonal(rng, len(arguments[names[0]]))
    for name in names:
        arguments[name] = q @ arguments[name]


def scale(arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator) -> None:
    for name in names:
        arguments[name] = arguments[name] * np.exp(3 * rng.standard_normal())


def negate(arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator) -> None:
    for name in names:
        arguments[name] = -arguments[name]


def shift_rows(arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator) -> None:
    for name in names:
        arguments[name] = arguments[name] + rng.standard_normal(arguments[name].shape[1:])


def shift_entries(arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator) -> None:
    for name in names:
        arguments[name] = arguments[name] + rng.standard_normal()


def append_zero_columns(
    arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator
) -> None:
    for name in names:
        arguments[name] = np.pad(arguments[name], ((0, 0), (0, 3)))


def swap(arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator) -> None:
    first, second = names
    arguments[first], arguments[second] = arguments[second], arguments[first]


def rename_classes(arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator) -> None:
    for name in names:
        names_of_classes = rng.permutation(arguments[name].max() + 1)
        arguments[name] = names_of_classes[arguments[name]]


def invert(arguments: Arguments, names: tuple[str, ...], rng: np.random.Generator) -> None:
    for name in names:
        inverse = np.linalg.inv(arguments[name])
        arguments[name] = (inverse + inverse.T) / 2


TRANSFORMATIONS = {
    function.__name__: function
    for function in (
        permute_rows,
        permute_rows_and_columns,
        rotate_columns,
        rotate_both,
        rotate_rows,
        scale,
        negate,
        shift_rows,
        shift_entries,
        append_zero_columns,
        swap,
        rename_classes,
        invert,
    )
}
