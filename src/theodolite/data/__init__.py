"""Data in memory and from files: what the command line, the demo and the laboratory read."""

from theodolite.data.dataset import Dataset, disjoint_rows
from theodolite.data.digits import digits
from theodolite.data.image_folder import load_image_folder
from theodolite.data.labels import (
    CorruptedLabels,
    corrupted_labels,
    random_labels,
    shuffled_labels,
)
from theodolite.data.npz import NPZ_KEYS, channels_first, load_npz, npz_tensor, opened_npz, save_npz
from theodolite.data.scaling import (
    CIFAR_MEAN,
    CIFAR_STD,
    SCALINGS,
    Scaling,
    channel_standardized,
    image_standardized,
    pixel_standardizer,
    scaled,
    symmetric_range,
    unit_interval,
    unit_rows,
)
from theodolite.data.sources import Loader, load_data

__all__ = [
    "CIFAR_MEAN",
    "CIFAR_STD",
    "NPZ_KEYS",
    "SCALINGS",
    "CorruptedLabels",
    "Dataset",
    "Loader",
    "Scaling",
    "channel_standardized",
    "channels_first",
    "corrupted_labels",
    "digits",
    "disjoint_rows",
    "image_standardized",
    "load_data",
    "load_image_folder",
    "load_npz",
    "npz_tensor",
    "opened_npz",
    "pixel_standardizer",
    "random_labels",
    "save_npz",
    "scaled",
    "shuffled_labels",
    "symmetric_range",
    "unit_interval",
    "unit_rows",
]
