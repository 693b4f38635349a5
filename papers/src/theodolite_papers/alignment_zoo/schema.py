"""The meaning of every column of the tables, as in ``schema.json``."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["SCHEMA", "write_schema"]

_SHARES = {
    "train_loss": "mean cross-entropy of the training examples, labels as given",
    "train_accuracy": "on the training examples, labels as given",
    "validation_loss": "of a tenth as many further examples, labels as given",
    "validation_accuracy": "on these, labels as given",
    "test_loss": "of test examples, true labels",
    "test_accuracy": "on test examples, true labels",
    "test_accuracy_as_given": "on test examples whose labels have the same share of noise",
}
_CHEAP = {
    "cka_target": "CKA to the labels as given",
    "feature_omega_contrast": "feature contrast",
    "omega_contrast": "gradient contrast",
    "neighbour_accuracy": "accuracy of the nearest neighbours, one example left out",
    "probe_accuracy": "accuracy of a linear probe, one example left out",
    "alignment_area": "label alignment",
}

SCHEMA: Mapping[str, Mapping[str, str]] = {
    "networks": {
        "network": "name: half, group, member; the key of the other tables",
        "half": "pilot (hypotheses were chosen on it) or judged",
        "group": "networks of a group differ from their base in one factor each",
        "changed": "that factor, or base",
        "data": "digits, mnist, fashion_mnist, cifar10, cancer, parity, addition or text",
        "family": "mlp, cnn, resnet or transformer",
        "depth": "hidden layers, convolutions or blocks",
        "width": "units or channels",
        "activation": "relu, tanh or gelu",
        "normalisation": "none, batch or layer",
        "optimiser": "adam (decoupled decay) or sgd (momentum 0.9)",
        "batch": "examples per step",
        "noise": "share of the training labels that were redrawn at random",
        "examples": "in training",
        "scale": "factor of all initial weight matrices",
        "seed": "of data, labels, weights and batches; one for a group",
        "rate": "learning rate",
        "rate_level": "0 to 2 within the optimiser's rates",
        "decay": "weight decay",
        "decay_level": "0 to 2 within the optimiser's decays",
        "kind": "image, tabular, text or synthetic",
        "classes": "number of classes",
        "parameters": "number of parameters",
        "steps": "taken in training",
        "reached": "whether the training loss came down to 0.02 within 1,000 steps",
        "finite": "whether the loss stayed finite; otherwise all values are of the last "
        "checkpoint with a finite loss",
        **_SHARES,
        "test_loss_as_given": "of test examples whose labels have the same share of noise",
        "gap": "train_accuracy - test_accuracy_as_given",
        "gap_loss": "test_loss_as_given - train_loss",
        "chance": "share of the largest class among the training labels",
        "carried_over": "(test_accuracy_as_given - chance) / (train_accuracy - chance)",
        "outcome": "learned (carried over > 0.5), memorised (< 0.2), between, not fitted, diverged",
        "best_test_accuracy": "over all checkpoints",
        "best_step": "at which it was",
        "steps_to_75": "steps until the training loss was 75 % of log(classes); nan if never",
        "steps_to_50": "the same of 50 %",
        "steps_to_25": "the same of 25 %",
        "steps_to_10": "the same of 10 %",
        "fit_accuracy": "evidence of judge_inputs at the end: training accuracy",
        "fit_examples": "evidence of judge_inputs: training examples",
        "input_size": "evidence of judge_inputs: numbers in an input",
        "input_neighbours": "evidence of judge_inputs: neighbour_accuracy of the inputs",
        "input_probe": "evidence of judge_inputs: probe_accuracy of the inputs",
        "first_layer_neighbours": "evidence of judge_inputs: neighbour_accuracy of the first block",
        "seconds_training": "processor seconds",
        "seconds_measuring": "processor seconds of all moments and checkpoints",
        "seconds_transfer": "processor seconds of forecasts and fine-tuning",
    },
    "measurements": {
        "network": "name of the network",
        "moment": "init; early: 1 % of 1,000 steps; tenth, third: 10 and 30 % of the steps taken; "
        "level: first checkpoint with a training loss of at most 25 % of log(classes); final",
        "step": "of the checkpoint; about 20 checkpoints are evenly spaced on a logarithmic "
        "scale, and the nearest is taken",
        "probe": "train: 128 training examples, labels as given; held_out: of test, true labels",
        "layer": "number of the block, the head last; -1 for the whole network",
        "depth": "layer / (number of layers - 1); nan for the whole network",
        "family": "of alignment; baseline for what a user has anyway",
        "measure": "name, as in a survey",
        "value": "nan where undefined, inf where a limit is not reached",
        "null_mean": "mean over 20 permutations of the labels; nan where there is no chance level",
        "null_sd": "their standard deviation",
    },
    "curves": {
        "network": "name of the network",
        "step": "of the checkpoint",
        **_SHARES,
        "prediction_changes": "share of training predictions that changed since the last "
        "checkpoint",
        "gradient_disparity": "mean distance between gradients of 8 batches of 16",
        "gradient_noise_scale": "trace of their covariance / squared mean gradient; inf if below 0",
        **{
            f"{name}_{end}": f"{text}; {end} hidden block, 96 training examples, labels as given"
            for name, text in _CHEAP.items()
            for end in ("first", "last")
        },
    },
    "transfers": {
        "network": "the source",
        "target": "image set it is carried over to, 200 labelled examples",
        "forecast": "th.transfer: forecast of the accuracy after fine-tuning",
        "low": "th.transfer: lower end of its interval",
        "high": "th.transfer: upper end of its interval",
        "features_error": "th.transfer: leave-one-out error of a linear probe of the features",
        "features_accuracy": "th.transfer: its accuracy",
        "tangent_error": "th.transfer: leave-one-out error of regression with the tangent kernel",
        "tangent_accuracy": "th.transfer: its accuracy",
        "tangent_share": "th.transfer: share of the body in the kernel of least error",
        "best_layer": "th.transfer: layer whose linear probe has the least error",
        "best_layer_accuracy": "th.transfer: its accuracy",
        "neighbour_accuracy": "neighbours in the features, one left out (nan in the first runs)",
        "frozen_accuracy": "test accuracy of a linear probe of frozen features (or nan)",
        "fine_tuned_accuracy": "test accuracy after 120 steps of fine-tuning: the truth",
        "scratch_accuracy": "the same from the source's own initialisation",
    },
}


def write_schema(folder: str | os.PathLike[str]) -> Path:
    """Write ``schema.json`` to a folder: table -> column -> what it holds."""
    path = Path(folder) / "schema.json"
    path.write_text(json.dumps(SCHEMA, indent=1) + "\n")
    return path
