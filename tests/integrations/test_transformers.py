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


def test_the_last_step_is_measured_once(sentences, tmp_path, monkeypatch):
    import theodolite.surveys.monitor as module
    from theodolite.integrations.transformers import AlignmentCallback

    measured, real = [], module.measure_model

    def counted(*args, **options):
        measured.append(options["step"])
        return real(*args, **options)

    monkeypatch.setattr(module, "measure_model", counted)
    callback = AlignmentCallback(sentences, every=1, families="kernel")
    trained(sentences, tmp_path, [callback])
    assert measured == callback.history.steps == [0, 1, 2, 3]


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
    others = torch.randint(0, 20, (10, 6))
    held_out = {"input_ids": others, "attention_mask": torch.ones_like(others), "labels": others}
    watch = AlignmentCallback(
        batch, every=2, groups=domains, held_out=held_out, folder=tmp_path / "run"
    )
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
    assert {answer["question"] for answer in last["answers"]} >= {"task", "groups"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Which layers do data sources disagree on?" in page
    assert "Measure held-out examples next" not in page  # they have been


def test_what_is_gained_on_held_out_sequences_is_measured(tmp_path):
    """The share of the gain that carries over is that of the losses of the model itself."""
    import transformers

    import theodolite as th

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    own, others = torch.randint(0, 20, (2, 12, 6))
    others = others[:9]
    batches = [{"input_ids": ids, "labels": ids} for ids in (own, others)]
    monitor = th.Monitor(model, batches[0], every=1, families="gradient", held_out=batches[1])
    monitor.step(0)
    before = [model(**batch).loss.item() for batch in batches]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(5):
        optimizer.zero_grad()
        model(**batches[0]).loss.backward()
        optimizer.step()
    monitor.step(1)
    after = [model(**batch).loss.item() for batch in batches]
    first, last = (
        {r["measure"]: r for r in step.contents["rows"]} for step in monitor.history.run.steps
    )
    assert "carried_over" not in first
    assert last["held_out_loss"]["value"] == pytest.approx(after[1], rel=1e-5)
    gained, shared = (b - a for b, a in zip(before, after, strict=True))
    assert last["carried_over"]["value"] == pytest.approx(shared / gained, rel=1e-4)
    assert last["carried_over"]["n"] == 9
