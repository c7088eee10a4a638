"""Workers of a simulation, the steps they run, and how these behave."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from locktender.base.changes import TaskRow
from locktender.base.clock import MILLISECOND
from locktender.base.graph import Node
from locktender.base.model import Proof, WorkerRow
from locktender.base.states import TaskState


@dataclass(slots=True)
class SimBody:
    """One execution of a step, as the step itself would have recorded it."""

    task: int
    token: int
    worker: str
    node: Node
    pools: dict[str, int]
    start: int
    end: int = 0
    state: str = ""
    offered: bool = True
    """Its worker accepted it; else the leader started it in its own process, and writes its end."""


@dataclass(slots=True)
class SimWorker:
    id: str
    local: bool
    permits: dict[str, int]
    total: int
    alive: bool = True
    deaf: bool = False
    """It lives and beats, but reads no orders."""
    stalled: bool = False
    """It lives and can do nothing: a body has the interpreter's lock."""
    proof: Proof = "none"
    """What the machine knows of its process: `none`, or `held` until it dies."""
    running: dict[int, SimBody] = field(default_factory=dict[int, SimBody])

    def row(self, pid: int, labels: dict[str, str], now: int, lease: int) -> WorkerRow:
        """Its row, as it joins."""
        return WorkerRow(
            id=self.id,
            host="sim",
            pid=pid,
            version="sim",
            permits=self.permits,
            total=self.total,
            claim=-1 if self.local else 50,
            labels=labels,
            since=now,
            lease_until=now + lease,
        )


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How long bodies take, how often they fail, how slow messages are."""

    duration: Callable[[random.Random, Node], int]
    failure: float = 0.0
    latency: int = 1 * MILLISECOND
    output: Callable[[TaskRow, Node], bytes] = lambda _row, _node: b"1"
    fate: Callable[[TaskRow, Node], TaskState | None] | None = None
    """How a body ends where a test wants to say so itself; None: by the rules above."""


def peak_use(bodies: Iterable[SimBody], of: Callable[[SimBody], int], now: int) -> int:
    """The highest sum of `of` over the bodies that ran at one instant."""
    moments: list[tuple[int, int]] = []
    for body in bodies:
        if amount := of(body):
            moments += [(body.start, amount), (body.end or now, -amount)]
    level = peak = 0
    for _, change in sorted(moments):
        level += change
        peak = max(peak, level)
    return peak
