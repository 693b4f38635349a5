"""Thin adapters to other people's training loops and trackers.

Nothing here is imported with the library; each adapter imports its package on first use.

- ``theodolite.integrations.lightning.AlignmentCallback`` for a Lightning ``Trainer``
- ``theodolite.integrations.transformers.AlignmentCallback`` for a Hugging Face ``Trainer``
- ``tensorboard.TensorBoardTracker``, ``wandb.WandbTracker``, ``mlflow.MLflowTracker``: scalars per
  layer and family, the report as an artifact; ``tracking.track`` sends them a whole run
"""
