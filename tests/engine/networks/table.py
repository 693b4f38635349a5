"""Networks of every kind, with what each function of the engine must do with them.

``ordinary.py`` holds networks that have one answer per example and leave examples in place,
``moving.py`` those that reorder, pack, route or hide them, ``mixing.py`` those whose answer for an
example depends on other examples, on chance or on earlier passes, and ``numbers.py`` those whose
numbers are not finite or too coarse. ``outside.py``, ``applied.py`` and ``unseen.py`` have some of
all kinds, written by people who had not seen the check. ``TABLE`` is all of them.
"""

from tests.engine.networks.applied import APPLIED
from tests.engine.networks.case import FUNCTIONS, Case, Expected, Network
from tests.engine.networks.mixing import MIXING
from tests.engine.networks.moving import MOVING
from tests.engine.networks.numbers import NUMBERS
from tests.engine.networks.ordinary import ORDINARY
from tests.engine.networks.outside import OUTSIDE
from tests.engine.networks.unseen import UNSEEN

__all__ = [
    "APPLIED",
    "FUNCTIONS",
    "MIXING",
    "MOVING",
    "NUMBERS",
    "ORDINARY",
    "OUTSIDE",
    "TABLE",
    "UNSEEN",
    "Case",
    "Expected",
]

TABLE: dict[str, Network] = {}
for part in (ORDINARY, MOVING, MIXING, NUMBERS, OUTSIDE, APPLIED, UNSEEN):
    for network in part:
        assert network.name not in TABLE, network.name
        TABLE[network.name] = network
