"""Survey a ResNet-18: all five families, a row per block, and a report.

Run: ``python docs/examples/survey_resnet.py``. Any ``nn.Module`` will do in place of this one, also
one of torchvision: nothing has to be registered, wrapped or renamed.
"""

from pathlib import Path

import torch

import theodolite as th
from theodolite.data import digits, scaled
from theodolite_papers.lab.models import resnet18


def main(folder: Path = Path("runs/resnet"), examples: int = 256, tangent: int = 64) -> th.Survey:
    """Measure an untrained ResNet-18 on the embedded digits."""
    data = scaled(digits(), "unit_interval")
    torch.manual_seed(0)
    model = resnet18(num_classes=10, in_channels=1)

    report = th.survey(
        model,
        (data.x_test, data.y_test),
        layers=["stem", "stages.*.*", "head"],
        sizes={"representation": examples, "kernel": examples, "gradient": examples}
        | {"pairs": tangent, "tangent": tangent, "covariance": examples},
        name="ResNet-18, untrained",
        options={"split": "test", "label_source": "true"},
        progress=True,
    )
    print(report.summary())
    report.save(folder)
    print(report.to_html(folder / "report.html"))
    return report


if __name__ == "__main__":
    main()
