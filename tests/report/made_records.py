"""Records in the layout of docs/records.md, made by hand: no model, no torch."""

import numpy as np

from theodolite.records import Record, Run

# Names that HTML or Plotly's pseudo-HTML would read as something else.
NASTY = ("fc<b>1</b>", 'a&lt;"x"</script><script>alert(1)</script>', "<a href='javascript:1'>l</a>")
MEASURES = {
    "representation": ("alignment_area", "top_share", "predicted_steps"),
    "covariance": (
        "relative_misalignment",
        "misalignment",
        "random_basis_misalignment",
        "misalignment_floor",
        "subspace",
    ),
    "kernel": (
        "cka_target",
        "cka_input",
        "participation_ratio",
        "modes_to_reach",
        "power_area",
    ),
    "tangent": ("tangent_alignment", "stable_rank", "correlation"),
    "gradient": (
        "feature_omega_contrast",
        "omega_contrast",
        "omega",
        "in_class_omega",
        "gradient_diversity",
        "stiffness",
        "gradient_confusion",
        "feature_omega",
        "feature_omega_in_class",
    ),
}
LARGE = {"predicted_steps": 900.0, "participation_ratio": 20.0, "modes_to_reach": 40.0}
LARGE |= {"stable_rank": 6.0, "gradient_diversity": 3.0, "subspace": 16.0, "misalignment": 5.0}
LARGE |= {"random_basis_misalignment": 6.0, "misalignment_floor": 2.0, "relative_misalignment": 1.6}
HEADLINES = {measures[0] for measures in MEASURES.values()}
WHOLE = {
    "tangent": ("peak_layer", "equilibrium_layer"),
    "gradient": ("omega", "in_class_omega", "omega_contrast", "logit_omega_contrast", "loss"),
}


def row(layer, family, measure, value, **more):
    return {
        "layer": layer,
        "family": family,
        "measure": measure,
        "value": float(value),
        "error": None,
        "null_mean": None,
        "null_sd": None,
        "method": "exact",
        "n": 300,
        "reason": None,
    } | more


def rows_of(layers, rng, growth):
    rows = []
    for family, measures in MEASURES.items():
        for i, layer in enumerate(layers[:1] if family == "covariance" else layers):
            for measure in measures:
                value = LARGE.get(measure, 1.0) * (0.1 + 0.5 * growth * (i + 1) / len(layers))
                value += 0.05 * rng.standard_normal() * LARGE.get(measure, 1.0)
                more = {}
                if measure in HEADLINES:
                    mean = 1.0 if family == "covariance" else 0.03
                    more = {"null_mean": mean, "null_sd": 0.02, "error": 0.02 * (1 + rng.random())}
                rows.append(row(layer, family, measure, value, **more))
    for family, measures in WHOLE.items():
        rows += [row(None, family, measure, 1.4 + rng.random()) for measure in measures]
    return rows


def curves_of(layers, rng, growth, image_shape=(1, 5, 5)):
    curves, arrays = [], {}

    def add(family, layer, name, **roles):
        index = layers.index(layer)
        keys = {role: f"{family}/{index}/{name}/{role}" for role in roles}
        arrays.update({keys[role]: np.asarray(value) for role, value in roles.items()})
        curves.append(
            {"layer": layer, "family": family, "name": name, "arrays": keys, "labels": {}}
        )

    for i, layer in enumerate(layers):
        strength = growth * (i + 1) / len(layers)
        t = np.linspace(0, 0.6, 40)
        add(
            "representation", layer, "alignment_curve", x=t,
            y=np.exp(-t * (9 - 6 * strength)), chance=np.exp(-t * 25),
        )  # fmt: skip
        s = np.sort(rng.random(30))[::-1]
        p = rng.random(30) * s**2
        add("representation", layer, "label_power", x=s, y=p / p.sum())
        steps = np.unique(np.geomspace(1, 1e5, 50).astype(int)).astype(float)
        y = 1 / (1 + steps * (0.01 + 0.1 * strength))
        add("representation", layer, "predicted_loss", x=steps, y=y)
        modes = np.arange(1, 41.0)
        spectrum = modes ** -(1 + strength)
        add("kernel", layer, "spectrum", x=modes, y=spectrum / spectrum.sum())
        power = 1 - np.exp(-np.arange(41.0) * (0.05 + strength / 4))
        add("kernel", layer, "cumulative_power", x=np.arange(41.0), y=power)
        classes = np.repeat(np.arange(3), 8)
        same = (classes[:, None] == classes) * strength
        for name in ("forward_kernel", "backward_kernel"):
            noise = rng.standard_normal((24, 24)) * 0.05
            add("tangent", layer, name, matrix=same + noise + noise.T, classes=classes)
        for name in ("class_omega", "class_contrast", "feature_class_contrast"):
            y = strength + 0.1 * rng.standard_normal(3)
            add("gradient", layer, name, x=np.arange(3), y=y)
    sigma = np.sort(np.exp(rng.standard_normal(25)))[::-1]
    add("covariance", layers[0], "transfer", x=sigma, y=0.2 + 0.3 * rng.random(25))
    for name in ("patch_eigenvectors", "filter_eigenvectors"):
        images = rng.standard_normal((6, *image_shape))
        add("covariance", layers[0], name, images=images, values=np.arange(6, 0, -1.0))
    return curves, arrays


def answers_of(layers, rows):
    """Three sentences with numbers of the record, in the layout that a survey writes."""
    value = next(r["value"] for r in rows if r["measure"] == "cka_target")
    told = {
        "task": (f"It does the task: {value:.4f}.", "clear", ["kernel-cka-target"]),
        "layer": (
            f"Layer {layers[-1]} carries it: {value:.4f}.",
            "likely",
            ["kernel-cka-target", "representation-alignment-area"],
        ),
        "next": ("Train on.", "undecided", ["tangent-tangent-alignment", "steps-loss"]),
    }
    return [
        {
            "question": question,
            "text": text,
            "certainty": sure,
            "evidence": "made up",
            "figures": where,
        }
        for question, (text, sure, where) in told.items()
    ]


def layer_entries(layers):
    return [
        {
            "index": i,
            "name": name,
            "type": "Linear",
            "role": "layer",
            "parent": None,
            "parameters": 100,
            "output_shape": [32],
            "width": 32,
        }
        for i, name in enumerate(layers)
    ]


def survey_record(
    layers=("fc1", "fc2", "fc3"), *, name="", step=None, growth=1.0, seed=0, curves=True,
    shape=(1, 5, 5),
):  # fmt: skip
    layers = list(layers)
    rng = np.random.default_rng(seed)
    rows = rows_of(layers, rng, growth)
    listed, arrays = curves_of(layers, rng, growth, shape) if curves else ([], {})
    contents = {
        "kind": "survey",
        "name": name,
        "step": step,
        "config": {"families": list(MEASURES), "permutations": 40, "seed": 1, "pool": "flatten"},
        "data": {
            "n": 300,
            "task": "classification",
            "num_classes": 3,
            "classes": ["cat", "dog<i>", "owl"],
            "class_counts": [100, 100, 100],
            "split": "train",
            "label_source": "true",
            "probe": 300,
            "probe_hash": "ab" * 32,
            "input_shape": [1, 8, 8],
            "outputs": 3,
        },
        "layers": layer_entries(layers),
        "rows": rows,
        "answers": answers_of(layers, rows),
        "curves": listed,
        "skipped": {},
        "warnings": [
            {"layer": layers[0], "family": "kernel", "measure": "cka_target",
             "text": "300 examples, 500 features: n <= d", "count": 1}
        ],
        "routes": {"kernel": {"method": "exact", "n": 300}},
        "seconds": {"total": 1.5},
        "versions": {"theodolite": "0.1", "torch": "2.13", "numpy": "2", "python": "3.11"},
    }  # fmt: skip
    return Record(contents, arrays)


def with_truth(run):
    """The same run with CKA to the true labels, in other places among the rows every step."""
    steps = []
    for place, record in enumerate(run.steps):
        contents = dict(record.contents)
        names = [layer["name"] for layer in contents["layers"]]
        values = [(1 + place) / (20 + i) for i in range(len(names))]
        added = [
            row(name, "kernel", "cka_truth", value)
            for name, value in zip(names, values, strict=True)
        ]
        contents["rows"] = added[:place] + contents["rows"] + added[place:]
        steps.append(Record(contents, record.arrays))
    return Run(run.name, run.head, tuple(steps))


def survey_run(layers=("fc1", "fc2", "fc3"), **options):
    record = survey_record(layers, **options)
    return Run(record.contents["name"], record, (record,))


def history_run(
    layers=("fc1", "fc2", "fc3"), *, name="true labels", growth=1.0, seed=0,
    steps=(0, 10, 100, 1000), shape=(1, 5, 5),
):  # fmt: skip
    records = tuple(
        survey_record(
            layers, name=name, step=step, seed=seed + i, curves=i in {0, len(steps) - 1},
            growth=growth * (i + 1) / len(steps), shape=shape,
        )
        for i, step in enumerate(steps)
    )  # fmt: skip
    kept = ("name", "config", "data", "layers", "versions")
    head = {"kind": "history"} | {key: records[0].contents[key] for key in kept}
    return Run(name, Record(head), records)


def sparse_run(distance=4, layers=("fc1", "fc2", "fc3"), *, last=True, **options):
    """A history whose tangent family, and gradients of weights, are taken at some steps only."""
    run = history_run(layers, **options)
    steps = []
    for place, record in enumerate(run.steps):
        contents = dict(record.contents)
        if place % distance and not (last and place == len(run.steps) - 1):
            contents["rows"] = [
                item for item in contents["rows"]
                if item["family"] != "tangent"
                and (item["family"] != "gradient" or item["measure"].startswith("feature"))
            ]  # fmt: skip
            contents["curves"] = []
            contents["skipped"] = dict.fromkeys(("tangent", "gradient"), "taken at some steps")
        steps.append(Record(contents, record.arrays if contents["curves"] else {}))
    return Run(run.name, run.head, tuple(steps))
