"""A real Lightning Trainer, with the callback and without."""

import csv
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from theodolite.integrations.tracking import scalars
from theodolite.records import load_run

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on workers and loggers


def module_of(net):
    from lightning.pytorch import LightningModule

    class Classifier(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, batch, _index):
            inputs, labels = batch
            return torch.nn.functional.cross_entropy(self.net(inputs), labels)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Classifier()


def fitted(data, net, folder, callbacks=(), **options):
    from lightning.pytorch import Trainer, seed_everything
    from lightning.pytorch.loggers import CSVLogger

    seed_everything(0)
    trainer = Trainer(
        max_steps=5,
        accelerator="cpu",
        logger=CSVLogger(folder),
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **options,
    )
    trainer.fit(module_of(net), DataLoader(TensorDataset(*data), batch_size=8, shuffle=True))
    return trainer


def logged(trainer):
    with (Path(trainer.logger.log_dir) / "metrics.csv").open() as file:
        return {int(row["step"]): row for row in csv.DictReader(file)}


@pytest.fixture
def callback(small_data, tmp_path):
    from theodolite.integrations.lightning import AlignmentCallback

    families = ("kernel", "gradient")
    folder = tmp_path / "history"
    return AlignmentCallback(small_data, module="net", every=2, families=families, folder=folder)


def test_steps_are_measured_logged_and_saved(small_data, small_net, callback, tmp_path):
    trainer = fitted(small_data, small_net(), tmp_path, [callback])
    assert callback.history.steps == [0, 2, 4, 5]
    assert callback.history.layers == ["0", "2"]
    rows = logged(trainer)
    for step in (0, 2, 4, 5):
        expected = scalars(callback.history.survey(step).record)
        read = {tag: float(rows[step][tag]) for tag in expected}
        assert read == pytest.approx(expected)
    assert [r.contents["step"] for r in load_run(tmp_path / "history").steps] == [0, 2, 4, 5]
    assert (tmp_path / "history" / "report.html").stat().st_size > 10_000


def test_a_logger_that_raises_does_not_end_the_training(
    small_data, small_net, callback, tmp_path, monkeypatch
):
    from lightning.pytorch.loggers import CSVLogger

    monkeypatch.setattr(CSVLogger, "log_metrics", lambda *_, **__: 1 / 0)
    with pytest.warns(UserWarning, match="CSVLogger did not get step 0, step 2, step 4 and step 5"):
        trainer = fitted(small_data, small_net(), tmp_path, [callback])
    assert trainer.global_step == 5
    assert callback.history.steps == [0, 2, 4, 5]


def test_training_is_not_disturbed(small_data, small_net, callback, tmp_path):
    watched, alone = small_net(), small_net()
    fitted(small_data, watched, tmp_path, [callback])
    fitted(small_data, alone, tmp_path)
    for ours, theirs in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_accumulated_batches_count_once(small_data, small_net, callback, tmp_path):
    fitted(small_data, small_net(), tmp_path, [callback], accumulate_grad_batches=2)
    assert callback.history.steps == [0, 2, 4, 5]


def test_the_class_is_a_callback_that_can_be_found_again():
    from lightning.pytorch import Callback

    from theodolite.integrations import lightning

    assert issubclass(lightning.AlignmentCallback, Callback)
    assert lightning.AlignmentCallback is lightning.AlignmentCallback
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        _ = lightning.Missing


def test_there_is_no_history_before_training(callback):
    with pytest.raises(RuntimeError, match="training has not started"):
        _ = callback.history
