"""Recipes from plain mappings, as TOML and JSON give them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from theodolite.errors import DomainError, UnknownNameError
from theodolite_papers.lab.training.augmentation import Augmentation
from theodolite_papers.lab.training.losses import Hinge, Logistic, Softmax, Squared
from theodolite_papers.lab.training.recipe import Recipe
from theodolite_papers.lab.training.stopping import Stop

__all__ = ["LOSSES", "recipe_from_mapping"]

LOSSES: dict[str, type] = {
    "softmax": Softmax,
    "hinge": Hinge,
    "squared": Squared,
    "logistic": Logistic,
}


def recipe_from_mapping(settings: Mapping[str, Any]) -> Recipe:
    """A recipe from plain values: the loss by name or ``{name = ..., option = ...}``.

    Raises:
        UnknownNameError: If a setting or a loss does not exist; lists the nearest.
        DomainError: If a value is out of range or of the wrong type.

    Example:
        >>> recipe = recipe_from_mapping({"loss": {"name": "hinge", "margin": 2.0}, "epochs": 3})
        >>> recipe.loss, recipe.epochs
        (Hinge(margin=2.0), 3)
    """
    plain = dict(settings)
    if "loss" in plain:
        plain["loss"] = _loss(plain["loss"])
    if "stop" in plain:
        plain["stop"] = _build(Stop, "stopping rule", plain["stop"])
    if "augmentation" in plain:
        plain["augmentation"] = _build(Augmentation, "augmentation", plain["augmentation"])
    return _build(Recipe, "setting", plain)


def _loss(value: Any) -> Any:
    options = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = str(options.pop("name", ""))
    if name not in LOSSES:
        raise UnknownNameError("loss", name, LOSSES)
    return _build(LOSSES[name], f"option of {name}", options)


def _build(kind: type, what: str, values: Any) -> Any:
    if not isinstance(values, Mapping):
        raise DomainError(f"{what}: expected a table of names and values, got {values!r}")
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise UnknownNameError(what, name, known)
    try:
        return kind(**values)
    except (TypeError, AttributeError) as error:
        raise DomainError(f"{what}: a value has the wrong type ({error})") from error
