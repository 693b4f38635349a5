"""What results print of themselves is at most a screen, however large the model is."""

import pytest
import torch
from torch import nn

import theodolite
from theodolite import engine
from theodolite.measures import kernel, representation

LAYERS = [f"encoder_blocks_{index:02d}_attention_projection" for index in range(60)]


@pytest.fixture(scope="module")
def results():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential()
    for name in LAYERS:
        model.add_module(name, nn.Linear(3, 3))
    x, y = torch.randn(12, 3, generator=generator), torch.arange(12) % 3
    wide = torch.randn(500, 64, generator=generator)
    options = {"families": "kernel", "layers": LAYERS, "permutations": 0}
    survey = theodolite.survey(model, (x, y), **options, name="n" * 60)
    with theodolite.Monitor(model, (x, y), every=1, options=options) as monitor:
        monitor.step(0)
    found = [
        survey,
        survey.run,
        survey.record,
        monitor.history,
        theodolite.compare(*[survey] * 60),
        theodolite.features(model, x),
        engine.feature_grams(model, x),
        theodolite.tangent_kernels(model, x),
        theodolite.tangent_features(model, x),
        theodolite.gradient_alignment(model, x, y),
        theodolite.gradient_alignment(model, x, y).sums,
        engine.tangent_alignments(model, x, y),
        theodolite.learning_curve(torch.randn(40, 3, generator=generator), torch.arange(40) % 3),
        theodolite.transfer(
            {f"{index}_{'m' * 60}": nn.Linear(3, 3) for index in range(2)},
            (x.repeat(2, 1), y.repeat(2)),
        ),
        engine.PositionLabels.of(
            torch.zeros(1, 3, 10), engine.Batch((y[None, :3],), targets=y[None, :3])
        ),
        kernel.leave_one_out_regression(x @ x.T, y),
        representation.alignment_curve(wide, torch.arange(500) % 3),
        representation.label_projections(wide, torch.ones(500)),
        kernel.kernel_spectrum(torch.eye(500)),
    ]
    return {type(entry).__name__: entry for entry in found}


@pytest.mark.parametrize(
    "name",
    [
        *("Survey", "Run", "Record", "History", "Comparison", "Features", "FeatureGrams"),
        *("TangentKernels", "GradientAlignment", "GradientSums", "TangentAlignments"),
        *("TangentFeatures", "LearningCurve", "Transfer", "PositionLabels", "LeaveOneOut"),
        *("AlignmentCurve", "LabelProjections", "KernelSpectrum"),
    ],
)
def test_what_a_result_prints_is_at_most_a_screen(results, name):
    text = repr(results[name])
    assert text.startswith(f"{name}(")
    assert len(text) < 600  # eight lines of a terminal
    assert "\n" not in text
