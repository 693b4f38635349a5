"""Watch a network that learns and one that memorises, with two lines in a plain training loop.

Run: ``python docs/examples/watch_memorization.py``. The same network is trained on true and on
random labels. Both fit their training set. Feature contrast of the first layers is higher with
true labels.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import theodolite as th
from theodolite.data import digits, random_labels, scaled


def watched_run(name: str, x: torch.Tensor, y: torch.Tensor, steps: int, every: int) -> th.History:
    """Train with Adam on random batches and measure at some steps."""
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
    model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    options = {"every": every, "cadence": 1, "name": name}
    labels = {"label_source": "trained-on"}
    with th.Monitor(model, (x, y), **options, options=labels) as monitor:
        monitor.step(0)
        for step in range(1, steps + 1):
            rows = torch.randint(len(x), (128,))
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            monitor.step(step)
    return monitor.history


def main(
    folder: Path = Path("runs/memorization"), steps: int = 500, every: int = 50
) -> th.Comparison:
    """Compare the two runs."""
    data = scaled(digits(), "unit_interval")
    random = random_labels(data.y_train, torch.Generator().manual_seed(0))
    learned = watched_run("true labels", data.x_train, data.y_train, steps, every)
    memorized = watched_run("random labels", data.x_train, random, steps, every)

    print("feature contrast by layer (0: features of one class are no more similar than others):")
    for history in (learned, memorized):
        last = history.survey(history.steps[-1])
        contrast = [last.estimate("feature_omega_contrast", layer).value for layer in last.layers]
        print(f"  {history.run.name:16s}", " ".join(f"{value:6.3f}" for value in contrast))
    comparison = th.compare(learned, memorized)
    print(comparison.to_html(folder / "report.html"))
    return comparison


if __name__ == "__main__":
    main()
