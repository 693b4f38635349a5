"""Thin adapters to other people's training loops and trackers.

Nothing here is imported with the library; each adapter imports its package on first use.

- ``theodolite.integrations.lightning.AlignmentCallback`` for a Lightning ``Trainer``
- ``theodolite.integrations.transformers.AlignmentCallback`` for a Hugging Face ``Trainer``
- ``tensorboard.TensorBoardTracker``, ``wandb.WandbTracker``, ``mlflow.MLflowTracker``: settings,
  scalars per layer and family, the report as an artifact; ``tracking.track`` sends them a whole run
- ``mlflow.MLflowSweep`` for ``sweep_study`` and ``theodolite sweep --track``: a run for the sweep,
  and below it one for each of its points
"""
