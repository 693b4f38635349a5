"""Theodolite measures alignment inside neural networks.

Every name loads on first use, so that ``import theodolite.records`` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from theodolite import measures

__all__ = ["measures"]

__version__ = "0.1.0"

# Public name -> (module, attribute; None for the module itself). The same imports stand under
# TYPE_CHECKING above, for type checkers and editors.
_HOMES: dict[str, tuple[str, str | None]] = {
    "measures": ("theodolite.measures", None),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, attribute = _HOMES[name]
    module = import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
