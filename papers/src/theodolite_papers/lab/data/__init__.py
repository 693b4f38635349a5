"""Data for experiments: embedded, generated, read or downloaded; labels, tasks, features."""

from theodolite_papers.lab.data.ct_position import CT_FILE, load_ct_position
from theodolite_papers.lab.data.dictionary import learn_dictionary, sparse_codes, sparse_objective
from theodolite_papers.lab.data.gaussian import (
    covariance_root,
    gaussian,
    gaussian_inputs,
    rotated_covariance,
)
from theodolite_papers.lab.data.hog import central_differences, hog_features
from theodolite_papers.lab.data.illustrations import (
    collapsed_classes,
    labels_along,
    singular_vector_labels,
    two_arcs,
    two_processes,
)
from theodolite_papers.lab.data.image_sets import IMAGE_SETS, ImageSet, data_folder, load_image_set
from theodolite_papers.lab.data.images import average_pooled, central_crop, grayscale
from theodolite_papers.lab.data.labels import CorruptedLabels, corrupted_labels, random_labels
from theodolite_papers.lab.data.ladder import (
    LADDER,
    Rung,
    assembled_images,
    gaussian_patches,
    grid_patches,
    image_ladder,
    shuffled_patches,
)
from theodolite_papers.lab.data.peaks import (
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
from theodolite_papers.lab.data.rbf import (
    RBFNetwork,
    fit_rbf_network,
    median_distance,
    rbf_features,
)
from theodolite_papers.lab.data.sift import (
    dense_sift,
    sift_descriptors,
    visual_vocabulary,
    word_histograms,
    word_indices,
)
from theodolite_papers.lab.data.sources import LOADERS
from theodolite_papers.lab.data.subsets import class_subset, probe_rows
from theodolite_papers.lab.data.tasks import (
    PairTask,
    balanced_rows,
    class_pairs,
    one_vs_one_tasks,
    pair_task,
)
from theodolite_papers.lab.data.transfer_sweeps import (
    TRANSFER_SWEEPS,
    TransferGroup,
    TransferRun,
    TransferSweep,
    draw_groups,
)

__all__ = [
    "CT_FILE",
    "IMAGE_SETS",
    "LADDER",
    "LOADERS",
    "PEAKS_TASKS",
    "PEAKS_VARIABLES",
    "TRANSFER_SWEEPS",
    "CorruptedLabels",
    "ImageSet",
    "PairTask",
    "RBFNetwork",
    "Rung",
    "TransferGroup",
    "TransferRun",
    "TransferSweep",
    "assembled_images",
    "average_pooled",
    "balanced_rows",
    "central_crop",
    "central_differences",
    "class_pairs",
    "class_subset",
    "collapsed_classes",
    "corrupted_labels",
    "covariance_root",
    "data_folder",
    "dense_sift",
    "draw_groups",
    "fit_rbf_network",
    "gaussian",
    "gaussian_inputs",
    "gaussian_patches",
    "grayscale",
    "grid_patches",
    "hog_features",
    "image_ladder",
    "labels_along",
    "learn_dictionary",
    "load_ct_position",
    "load_image_set",
    "median_distance",
    "one_vs_one_tasks",
    "pair_task",
    "peaks",
    "peaks_covariance",
    "peaks_features",
    "peaks_inputs",
    "peaks_values",
    "probe_rows",
    "random_labels",
    "rbf_features",
    "related_tasks",
    "rotated_covariance",
    "shuffled_patches",
    "sift_descriptors",
    "singular_vector_labels",
    "sparse_codes",
    "sparse_objective",
    "two_arcs",
    "two_processes",
    "unrelated_tasks",
    "visual_vocabulary",
    "word_histograms",
    "word_indices",
]
