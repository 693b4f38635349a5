"""Draw the picture of each family page from the records of the demo.

    theodolite demo -o runs/demo
    python docs/images/draw_families.py runs/demo        (needs kaleido and a Chrome or Chromium)

Each picture has the layers of the MLP along the x-axis: before training, after training on true
labels, after training on random labels. The chance level is grey.
"""

import sys
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

import theodolite as th

FAMILIES = {
    "representation": ("alignment_area", "label alignment"),
    "covariance": ("relative_misalignment", "misalignment / random"),
    "kernel": ("cka_target", "CKA to labels"),
    "tangent": ("tangent_alignment", "tangent alignment"),
    "gradient": ("feature_omega_contrast", "feature contrast"),
}
LINES = (
    ("before training", "true-labels", 0, "#8a8f98", "dot"),
    ("true labels", "true-labels", -1, "#2a6fbb", "solid"),
    ("random labels", "random-labels", -1, "#c4572f", "solid"),
)
HERE = Path(__file__).parent / "families"


def drawn(folder: Path, measure: str, title: str) -> go.Figure:
    """One line per moment and run, over the layers."""
    figure = go.Figure()
    for name, run, step, colour, dash in LINES:
        history = th.load(folder / run)
        survey = history.survey(history.steps[step])
        found = [survey.estimate(measure, layer) for layer in survey.layers]
        values = [one.value for one in found]
        if step == -1 and run == "true-labels" and found[0].null_sd is not None:
            low = [one.null_mean - 2 * one.null_sd for one in found]
            high = [one.null_mean + 2 * one.null_sd for one in found]
            figure.add_scatter(
                x=[*survey.layers, *survey.layers[::-1]],
                y=[*high, *low[::-1]],
                fill="toself",
                mode="lines",
                fillcolor="rgba(128,128,128,0.25)",
                line={"width": 0},
                name="chance",
                hoverinfo="skip",
            )
        if np.isfinite(np.array(values, dtype=float)).any():
            figure.add_scatter(
                x=survey.layers,
                y=values,
                name=name,
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2.5},
                marker={"size": 8},
            )
    figure.update_layout(
        template="simple_white",
        width=640,
        height=300,
        margin={"l": 60, "r": 10, "t": 10, "b": 40},
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": 1.12},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    figure.update_xaxes(title="layer", type="category")
    figure.update_yaxes(title=title)
    return figure


def main() -> None:
    """Write one SVG per family."""
    HERE.mkdir(exist_ok=True)
    for family, (measure, title) in FAMILIES.items():
        drawn(Path(sys.argv[1]), measure, title).write_image(HERE / f"{family}.svg")


if __name__ == "__main__":
    main()
