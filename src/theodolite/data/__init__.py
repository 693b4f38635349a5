"""Data sets in memory and from files, and scalings of their inputs."""

from theodolite.data.dataset import Dataset, digits, disjoint_rows, random_labels
from theodolite.data.files import (
    Loader,
    channels_first,
    load_data,
    load_image_folder,
    load_npz,
    npz_tensor,
    opened_npz,
)
from theodolite.data.scaling import (
    SCALINGS,
    Scaling,
    image_standardized,
    pixel_standardizer,
    scaled,
    symmetric_range,
    unit_interval,
    unit_rows,
)

__all__ = [
    "SCALINGS",
    "Dataset",
    "Loader",
    "Scaling",
    "channels_first",
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
    "scaled",
    "symmetric_range",
    "unit_interval",
    "unit_rows",
]
