"""torchvision beside a torch that it was not built for: two operators stand in for its library.

The wheels of torchvision on PyPI belong to CUDA builds of torch. Beside a CPU build their compiled
part does not load, and the import fails on the operators that it would have brought. Models need
none of them, so names without code are enough. This is for the tests alone: whoever uses timm
installs torch and torchvision that match.
"""

import importlib.util

import torch

_OPERATORS = ("nms", "qnms")
_kept: list[torch.library.Library] = []  # operators vanish with the object that defines them


def pytest_configure() -> None:
    """Define what is missing before any test imports timm."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        _define()


def _define() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _OPERATORS:
        library.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
