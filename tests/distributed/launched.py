"""What ``torchrun`` starts: the worker, without a package that it does not need."""

import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path


def leave_out(name: str) -> None:
    """Put an empty module in the place of a package; whatever is imported from it is there."""

    def anything(wanted: str) -> type:
        if wanted.startswith("__"):  # what the language itself asks
            raise AttributeError(wanted)
        return object

    empty = types.ModuleType(name)
    empty.__spec__ = ModuleSpec(name, None)
    empty.__getattr__ = anything
    sys.modules[name] = empty


if __name__ == "__main__":
    # torchmetrics loads it for metrics of texts, which takes as long as all that is measured here.
    leave_out("transformers")
    from tests.distributed.worker import main

    main(Path(sys.argv[1]))
