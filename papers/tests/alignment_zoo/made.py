"""A zoo of made-up numbers with the columns of the real one, small and quick."""

import numpy as np
import pandas as pd

from theodolite_papers.alignment_zoo.design import FACTORS, MOMENTS
from theodolite_papers.alignment_zoo.judging import FAMILIES
from theodolite_papers.alignment_zoo.tables import Zoo

RULES = ("cka_target", "feature_omega_contrast")


def made_zoo(groups=4, seed=0):
    """Pilot and judged groups; cka_target falls with noise and gap, margin with noise alone."""
    rng = np.random.default_rng(seed)
    networks, measurements, curves, transfers = [], [], [], []
    for network in _designed(groups, rng):
        measured = network | _outcomes(network, rng)
        networks.append({key: measured[key] for key in measured if key != "needed"})
        measurements += _measurements(measured, rng)
        curves.append(_curve(measured, rng))
        transfers += _transfers(measured, rng)
    return Zoo(
        pd.DataFrame(networks),
        pd.DataFrame(measurements),
        pd.concat(curves, ignore_index=True),
        pd.DataFrame(transfers),
    )


def _designed(groups, rng):
    """Factors of every network: a base, and others that differ from it in one of them."""
    for half in ("pilot", "judged"):
        sets = ("digits", "mnist", "cifar10") + (("text",) if half == "judged" else ())
        for group in range(groups):
            base = {name: int(rng.integers(0, 3)) for name in FACTORS}
            base["noise"] = int(rng.integers(0, 2))
            for member, changed in enumerate(("base", *FACTORS, "noise")):
                mine = dict(base)
                if changed != "base":
                    mine[changed] = (base[changed] + (2 if member == 12 else 1)) % 3
                yield {
                    **mine, "network": f"{half}-{group:02d}-{member:02d}", "half": half,
                    "group": group, "changed": changed, "data": sets[group % len(sets)],
                    "kind": "image", "classes": 10, "family": FAMILIES[group % 4],
                    "noise": (0.0, 0.5, 1.0)[mine["noise"]], "rate_level": mine["rate"],
                    "decay_level": mine["decay"], "seed": group, "parameters": 1000,
                }  # fmt: skip


def _outcomes(network, rng):
    noise = network["noise"]
    gap = 0.1 + 0.7 * noise + 0.05 * network["width"] + 0.02 * rng.normal()
    carried = max(0.0, 0.9 - noise + 0.05 * rng.normal())
    needed = 50 * (1 + network["depth"]) + rng.integers(0, 30)
    return {
        "needed": needed, "reached": rng.random() > 0.1, "gap": gap, "carried_over": carried,
        "outcome": "learned" if carried > 0.5 else "memorised" if carried < 0.2 else "between",
        "test_accuracy": 1 - gap, "train_accuracy": 1.0, "steps": 1000,
        "steps_to_50": float(needed) if rng.random() > 0.05 else np.nan,
        "fit_accuracy": 1.0, "chance": 0.1, "fit_examples": 500, "input_size": 64,
        "input_neighbours": 0.1 + 0.85 * (1 - noise), "input_probe": 0.1 + 0.8 * (1 - noise),
        "first_layer_neighbours": 0.12,
    }  # fmt: skip


def _measurements(network, rng):
    for m, moment in enumerate(MOMENTS):
        found = []
        for layer in range(3):
            cka = 0.9 - network["gap"] + 0.05 * rng.normal()
            speed = 1 / network["needed"] + 1e-4 * rng.normal()
            found += [
                (layer, "kernel", "cka_target", cka * (m + 1) / 6),
                (layer, "tangent", "tangent_alignment", speed),
                (layer, "representation", "probe_accuracy", 1 - 0.3 * network["noise"]),
            ]
        found.append((-1, "baseline", "margin", rng.normal() - network["noise"]))
        for layer, family, measure, value in found:
            yield {
                "network": network["network"], "moment": moment, "step": 10 * m, "probe": "train",
                "layer": layer, "family": family, "measure": measure, "value": value,
            }  # fmt: skip


def _curve(network, rng):
    noise, looks = network["noise"], np.arange(20)
    rise = 1 - np.exp(-looks / 3)
    test = (1 - 0.1 * noise) * rise - noise * 0.02 * np.maximum(looks - 8, 0)
    return pd.DataFrame({
        "network": network["network"], "step": 2**looks // 8, "test_accuracy": test,
        "validation_accuracy": test + 0.01 * rng.normal(size=20),
        "validation_loss": 1 - test, "train_loss": np.exp(-looks / 4),
        "train_accuracy": rise, "prediction_changes": rng.random(20),
        "gradient_disparity": looks / 20, "gradient_noise_scale": rng.random(20),
        **{f"{r}_first": test + 0.02 * rng.normal(size=20) for r in RULES},
        **{f"{r}_last": rise for r in RULES},
    })  # fmt: skip


def _transfers(network, rng):
    for target in ("mnist", "fashion_mnist"):
        truth = 0.9 - 0.3 * network["noise"] + 0.02 * rng.normal()
        yield {
            "network": network["network"], "target": target, "fine_tuned_accuracy": truth,
            "scratch_accuracy": 0.5, "frozen_accuracy": truth - 0.05, "best_layer": "fc1",
            "tangent_accuracy": truth + 0.05 * rng.normal(), "noise_score": rng.normal(),
        }  # fmt: skip
