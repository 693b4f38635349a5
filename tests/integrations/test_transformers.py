"""A real Hugging Face Trainer on a tiny model, with the callback and without."""

import pytest
import torch

from theodolite.integrations.tracking import scalars
from theodolite.records import load_run

pytestmark = pytest.mark.filterwarnings("ignore")  # the Trainer's own


@pytest.fixture(scope="module")
def sentences():
    """Sequences of which the first word decides the class; some are padded."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 20, (24, 6), generator=generator)
    labels = torch.arange(24) % 2
    ids[:, 0] = labels + 1
    mask = torch.ones_like(ids)
    mask[::3, 4:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


def tiny_bert():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=8,
            num_labels=2,
        )
    )


def trained(sentences, folder, callbacks):
    from transformers import Trainer, TrainingArguments

    rows = [dict(zip(sentences, row, strict=True)) for row in zip(*sentences.values(), strict=True)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=3,
        per_device_train_batch_size=8,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
    )
    model = tiny_bert()
    Trainer(model, arguments, train_dataset=rows, callbacks=callbacks).train()
    return model


class Notebook:
    def __init__(self):
        self.steps, self.reports, self.closed, self.settings = {}, [], False, []

    def log_parameters(self, values):
        self.settings.append(values)

    def log(self, values, step):
        self.steps[step] = values

    def log_report(self, path):
        self.reports.append(path)

    def close(self):
        self.closed = True


def test_steps_are_measured_tracked_and_saved(sentences, tmp_path):
    from theodolite.integrations.transformers import AlignmentCallback

    notebook = Notebook()
    callback = AlignmentCallback(
        sentences,
        trackers=[notebook],
        folder=tmp_path / "history",
        every=2,
        families=("kernel", "gradient"),
    )
    watched = trained(sentences, tmp_path, [callback])
    assert callback.history.steps == [0, 2, 3]
    for step in (0, 2, 3):
        assert notebook.steps[step] == scalars(callback.history.survey(step).record)
    assert any(tag.startswith("kernel/cka_target/bert.encoder") for tag in notebook.steps[0])
    assert notebook.reports == [tmp_path / "history" / "report.html"]
    assert [values["config.families"] for values in notebook.settings] == ["kernel, gradient"]
    assert notebook.closed
    assert len(load_run(tmp_path / "history").steps) == 3
    alone = trained(sentences, tmp_path, [])
    for ours, theirs in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_language_models_are_watched_while_they_are_fine_tuned(tmp_path):
    import transformers

    from theodolite.integrations.transformers import AlignmentCallback

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 20, (16, 6))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    domains = ["prose", "code"] * 8
    watch = AlignmentCallback(batch, every=2, groups=domains, folder=tmp_path / "run")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, report_to=[], use_cpu=True, save_strategy="no"
    )
    rows = [{"input_ids": row, "labels": row} for row in ids]
    transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[watch]).train()
    history = watch.history
    assert history.steps == [0, 2, 4]
    last = history.run.steps[-1].contents
    assert last["data"]["task"] == "next-token prediction"
    assert last["data"]["groups"] == ["code", "prose"]
    assert last["skipped"] == {}
    measured = {row["measure"] for row in last["rows"]}
    assert {"cka_target", "in_class_omega", "tangent_alignment", "loss"} <= measured
    assert (tmp_path / "run" / "report.html").exists()
