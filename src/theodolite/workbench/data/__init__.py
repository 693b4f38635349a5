"""Data for experiments: embedded, generated, read or downloaded; labels, tasks, features."""

from theodolite.workbench.data.ct_position import CT_FILE, load_ct_position
from theodolite.workbench.data.dataset import Dataset
from theodolite.workbench.data.dictionary import learn_dictionary, sparse_codes, sparse_objective
from theodolite.workbench.data.digits import digits
from theodolite.workbench.data.gaussian import (
    covariance_root,
    gaussian,
    gaussian_inputs,
    rotated_covariance,
)
from theodolite.workbench.data.hog import central_differences, hog_features
from theodolite.workbench.data.illustrations import (
    collapsed_classes,
    labels_along,
    singular_vector_labels,
    two_arcs,
    two_processes,
)
from theodolite.workbench.data.image_folder import load_image_folder
from theodolite.workbench.data.image_sets import IMAGE_SETS, ImageSet, data_folder, load_image_set
from theodolite.workbench.data.images import average_pooled, central_crop, grayscale
from theodolite.workbench.data.labels import (
    CorruptedLabels,
    corrupted_labels,
    random_labels,
    shuffled_labels,
)
from theodolite.workbench.data.ladder import (
    LADDER,
    Rung,
    assembled_images,
    gaussian_patches,
    grid_patches,
    image_ladder,
    shuffled_patches,
)
from theodolite.workbench.data.npz import NPZ_KEYS, load_npz, save_npz
from theodolite.workbench.data.peaks import (
    PEAKS_TASKS,
    PEAKS_VARIABLES,
    peaks,
    peaks_covariance,
    peaks_features,
    peaks_inputs,
    peaks_values,
    related_tasks,
    unrelated_tasks,
)
from theodolite.workbench.data.rbf import RBFNetwork, fit_rbf_network, median_distance, rbf_features
from theodolite.workbench.data.scaling import (
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
from theodolite.workbench.data.sift import (
    dense_sift,
    sift_descriptors,
    visual_vocabulary,
    word_histograms,
    word_indices,
)
from theodolite.workbench.data.sources import load_data
from theodolite.workbench.data.subsets import class_subset, probe_rows
from theodolite.workbench.data.tasks import (
    PairTask,
    balanced_rows,
    class_pairs,
    disjoint_rows,
    one_vs_one_tasks,
    pair_task,
)
from theodolite.workbench.data.transfer_sweeps import (
    TRANSFER_SWEEPS,
    TransferGroup,
    TransferRun,
    TransferSweep,
    draw_groups,
)

__all__ = [
    "CIFAR_MEAN",
    "CIFAR_STD",
    "CT_FILE",
    "IMAGE_SETS",
    "LADDER",
    "NPZ_KEYS",
    "PEAKS_TASKS",
    "PEAKS_VARIABLES",
    "SCALINGS",
    "TRANSFER_SWEEPS",
    "CorruptedLabels",
    "Dataset",
    "ImageSet",
    "PairTask",
    "RBFNetwork",
    "Rung",
    "Scaling",
    "TransferGroup",
    "TransferRun",
    "TransferSweep",
    "assembled_images",
    "average_pooled",
    "balanced_rows",
    "central_crop",
    "central_differences",
    "channel_standardized",
    "class_pairs",
    "class_subset",
    "collapsed_classes",
    "corrupted_labels",
    "covariance_root",
    "data_folder",
    "dense_sift",
    "digits",
    "disjoint_rows",
    "draw_groups",
    "fit_rbf_network",
    "gaussian",
    "gaussian_inputs",
    "gaussian_patches",
    "grayscale",
    "grid_patches",
    "hog_features",
    "image_ladder",
    "image_standardized",
    "labels_along",
    "learn_dictionary",
    "load_ct_position",
    "load_data",
    "load_image_folder",
    "load_image_set",
    "load_npz",
    "median_distance",
    "one_vs_one_tasks",
    "pair_task",
    "peaks",
    "peaks_covariance",
    "peaks_features",
    "peaks_inputs",
    "peaks_values",
    "pixel_standardizer",
    "probe_rows",
    "random_labels",
    "rbf_features",
    "related_tasks",
    "rotated_covariance",
    "save_npz",
    "scaled",
    "shuffled_labels",
    "shuffled_patches",
    "sift_descriptors",
    "singular_vector_labels",
    "sparse_codes",
    "sparse_objective",
    "symmetric_range",
    "two_arcs",
    "two_processes",
    "unit_interval",
    "unit_rows",
    "unrelated_tasks",
    "visual_vocabulary",
    "word_histograms",
    "word_indices",
]
