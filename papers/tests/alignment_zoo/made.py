"""A zoo of made-up numbers with the columns of the real one, small and quick."""

import numpy as np
import pandas as pd

from theodolite_papers.alignment_zoo.tables import Zoo

FACTORS = (
    "depth", "width", "activation", "normalisation", "optimiser", "rate", "batch", "decay", "noise",
    "scale", "examples",
)  # fmt: skip
MOMENTS = ("init", "early", "tenth", "third", "level", "final")
RULES = ("cka_target", "feature_omega_contrast")


def made_zoo(groups=4, seed=0):
    """Pilot and judged groups; cka_target falls with noise and gap, margin with noise alone."""
    rng = np.random.default_rng(seed)
    networks, measurements, curves, transfers = [], [], [], []
    for half in ("pilot", "judged"):
        names = ("digits", "mnist", "cifar10") + (("text",) if half == "judged" else ())
        for group in range(groups):
            levels = {name: int(rng.integers(0, 3)) for name in FACTORS}
            levels["noise"] = int(rng.integers(0, 2))
            data = names[group % len(names)]
            family = ("mlp", "cnn", "resnet", "transformer")[group % 4]
            for member, changed in enumerate(("base", *FACTORS, "noise")):
                mine = dict(levels)
                if changed != "base":
                    mine[changed] = (levels[changed] + (2 if member == 12 else 1)) % 3
                noise = (0.0, 0.5, 1.0)[mine["noise"]]
                gap = 0.1 + 0.7 * noise + 0.05 * mine["width"] + 0.02 * rng.normal()
                name = f"{half}-{group:02d}-{member:02d}"
                carried = max(0.0, 0.9 - noise + 0.05 * rng.normal())
                steps = 50 * (1 + mine["depth"]) + rng.integers(0, 30)
                networks.append({
                    **mine, "network": name, "half": half, "group": group, "changed": changed,
                    "data": data, "kind": "image", "classes": 10, "family": family, "noise": noise,
                    "rate_level": mine["rate"], "decay_level": mine["decay"], "seed": group,
                    "reached": rng.random() > 0.1, "gap": gap, "carried_over": carried,
                    "outcome": "learned" if carried > 0.5 else
                    ("memorised" if carried < 0.2 else "between"),
                    "test_accuracy": 1 - gap, "train_accuracy": 1.0, "parameters": 1000,
                    "steps_to_50": float(steps) if rng.random() > 0.05 else np.nan,
                    "fit_accuracy": 1.0, "chance": 0.1, "fit_examples": 500, "input_size": 64,
                    "input_neighbours": 0.1 + 0.85 * (1 - noise), "steps": 1000,
                    "input_readout": 0.1 + 0.8 * (1 - noise), "first_layer_neighbours": 0.12,
                })  # fmt: skip
                for m, moment in enumerate(MOMENTS):
                    for layer in range(3):
                        cka = 0.9 - gap + 0.05 * rng.normal()
                        for measure, family_, value in (
                            ("cka_target", "kernel", cka * (m + 1) / 6),
                            ("tangent_alignment", "tangent", 1 / steps + 1e-4 * rng.normal()),
                            ("readout_accuracy", "representation", 1 - 0.3 * noise),
                        ):
                            measurements.append(
                                (name, moment, 10 * m, "train", layer, family_, measure, value)
                            )
                    measurements.append(
                        (
                            name,
                            moment,
                            10 * m,
                            "train",
                            -1,
                            "baseline",
                            "margin",
                            rng.normal() - noise,
                        )
                    )
                looks = np.arange(20)
                rise = 1 - np.exp(-looks / 3)
                test = (1 - 0.1 * noise) * rise - noise * 0.02 * np.maximum(looks - 8, 0)
                curves.append(pd.DataFrame({
                    "network": name, "step": 2**looks // 8, "test_accuracy": test,
                    "validation_accuracy": test + 0.01 * rng.normal(size=20),
                    "validation_loss": 1 - test, "train_loss": np.exp(-looks / 4),
                    "train_accuracy": rise, "prediction_changes": rng.random(20),
                    "gradient_disparity": looks / 20, "gradient_noise_scale": rng.random(20),
                    **{f"{r}_first": test + 0.02 * rng.normal(size=20) for r in RULES},
                    **{f"{r}_last": rise for r in RULES},
                }))  # fmt: skip
                for target in ("mnist", "fashion_mnist"):
                    truth = 0.9 - 0.3 * noise + 0.02 * rng.normal()
                    transfers.append({
                        "network": name, "target": target, "fine_tuned_accuracy": truth,
                        "scratch_accuracy": 0.5, "frozen_accuracy": truth - 0.05,
                        "best_layer": "fc1",
                        "tangent_accuracy": truth + 0.05 * rng.normal(),
                        "noise_score": rng.normal(),
                    })  # fmt: skip
    names = ["network", "moment", "step", "probe", "layer", "family", "measure", "value"]
    return Zoo(
        pd.DataFrame(networks),
        pd.DataFrame(measurements, columns=names),
        pd.concat(curves, ignore_index=True),
        pd.DataFrame(transfers),
    )
