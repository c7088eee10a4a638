"""Gates: one module per kind. A gate bounds something that runs or tasks need before they start.

To add a kind: CONTRIBUTING.md, *Add a gate*. `tools/check_gates.py` names what is missing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from locktender.base.changes import Bucket
from locktender.base.graph import Graph, Node
from locktender.base.limits import PauseRule, PoolRule, Rate, TagRule
from locktender.base.model import LimitRow, WorkerRow
from locktender.kernel.gates.count import CountGate
from locktender.kernel.gates.pool import PoolGate
from locktender.kernel.gates.protocol import Gate, SlotGate
from locktender.kernel.gates.rate import RateGate
from locktender.kernel.gates.worker import WorkerGate


class GateKind(NamedTuple):
    """One kind of gate: its class, and the rows it is read from and stored in."""

    gate: type[Gate]
    rule: type
    """The row or rule that sets its limit."""
    state: type | None = None
    """The row that stores what it has granted; None where the tasks' own rows tell it."""


KINDS: Final[dict[str, GateKind]] = {
    "runs": GateKind(CountGate, LimitRow),
    "tag": GateKind(CountGate, TagRule),
    "run": GateKind(CountGate, Graph),
    "window": GateKind(CountGate, Node),
    "pool": GateKind(PoolGate, PoolRule),
    "rate": GateKind(RateGate, Rate, Bucket),
    "worker": GateKind(WorkerGate, WorkerRow),
    "pause": GateKind(CountGate, PauseRule),
}

SLOT_GATES: Final[tuple[type[SlotGate], ...]] = (PoolGate, RateGate)
"""The gates that a pool's rule may ask for, in the order in which they are asked."""
