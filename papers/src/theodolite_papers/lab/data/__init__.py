"""Data for experiments: generated, read or downloaded; parts of them for a task."""

from collections.abc import Mapping

from theodolite.data import Loader
from theodolite_papers.lab.data.generated import (
    PEAKS_TASKS,
    PEAKS_VARIABLES,
    covariance_root,
    gaussian,
    gaussian_inputs,
    peaks,
    peaks_features,
    peaks_inputs,
    peaks_values,
    related_tasks,
    rotated_covariance,
    unrelated_tasks,
)
from theodolite_papers.lab.data.named import (
    CT_FILE,
    IMAGE_SETS,
    ImageSet,
    average_pooled,
    central_crop,
    data_folder,
    download_image_set,
    load_ct_position,
    load_image_set,
)
from theodolite_papers.lab.data.tasks import (
    CorruptedLabels,
    PairTask,
    balanced_rows,
    class_pairs,
    class_subset,
    corrupted_labels,
    one_vs_one_tasks,
    pair_task,
    random_labels,
)

__all__ = [
    "CT_FILE",
    "IMAGE_SETS",
    "LOADERS",
    "PEAKS_TASKS",
    "PEAKS_VARIABLES",
    "CorruptedLabels",
    "ImageSet",
    "PairTask",
    "average_pooled",
    "balanced_rows",
    "central_crop",
    "class_pairs",
    "class_subset",
    "corrupted_labels",
    "covariance_root",
    "data_folder",
    "download_image_set",
    "gaussian",
    "gaussian_inputs",
    "load_ct_position",
    "load_image_set",
    "one_vs_one_tasks",
    "pair_task",
    "peaks",
    "peaks_features",
    "peaks_inputs",
    "peaks_values",
    "random_labels",
    "related_tasks",
    "rotated_covariance",
    "unrelated_tasks",
]

# What a word on the command line can name once this package is installed:
# ``theodolite.data.load_data`` reads this table through an entry point.
LOADERS: Mapping[str, Loader] = {
    "gaussian": lambda _word, generator: gaussian(generator=generator),
    "peaks": lambda word, generator: peaks(word.partition("-")[2] or "ABC", generator=generator),
    "ct_position": lambda _word, generator: load_ct_position(generator=generator),
    **{name: lambda word, _generator: load_image_set(word) for name in IMAGE_SETS},
}
