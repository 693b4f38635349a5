"""Numbers and reports beside TensorBoard's event files."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from theodolite.integrations.tracking import require_package

__all__ = ["TensorBoardTracker"]


class TensorBoardTracker:
    """Writes scalars to an event file; settings, and where the report was copied, to the text tab.

    Args:
        folder: the log directory.

    Example::

        track(history.run, TensorBoardTracker("runs/a"), report=Path("runs/a.html"))
    """

    def __init__(self, folder: str | Path) -> None:
        require_package("tensorboard", "track")
        from torch.utils.tensorboard.writer import SummaryWriter

        self.folder = Path(folder)
        self._writer = SummaryWriter(str(folder))

    def log_parameters(self, values: Mapping[str, str]) -> None:
        """Keep the settings in the text tab."""
        lines = [f"{name} = {value}" for name, value in values.items()]
        # Indented by four: a block that the tab shows as it is.
        self._writer.add_text("theodolite/parameters", "\n".join(f"    {line}" for line in lines))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the numbers of one step."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)

    def log_report(self, path: Path) -> None:
        """Copy the file into the log directory."""
        target = self.folder / path.name
        if target.resolve() != path.resolve():
            shutil.copyfile(path, target)
        self._writer.add_text("theodolite/report", target.resolve().as_uri())

    def close(self) -> None:
        """Flush the event file."""
        self._writer.flush()
