"""Small worlds for tests: graphs, rows and workers in one line each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.clock import MILLISECOND
from locktender.base.graph import AnyTemplate, Const, Graph, Item, Node, PoolNeed
from locktender.base.ids import RunId, run_of
from locktender.base.model import RunRow, WorkerRow
from locktender.base.states import TERMINAL_RUNS, RunState, TaskState
from locktender.kernel import lanes
from locktender.kernel.entries import QueuedRun
from locktender.kernel.lifecycle import Defaults
from locktender.kernel.queue_position import QueueGroup, QueuePosition
from locktender.kernel.scheduler import Scheduler
from locktender.simulate.model import Behaviour, SimBody
from locktender.simulate.scenarios import violations
from locktender.simulate.world import SimWorld

Fate = Callable[[TaskRow, Node], TaskState | None]


def step(name: str = "a", **options: Any) -> Node:
    """A plain async step."""
    given: dict[str, Any] = {"name": name, "step": name, "executor": "async"}
    return Node(**(given | options))


def items(name: str = "m", over: AnyTemplate | None = None, **options: Any) -> Node:
    """A mapped async step, by default over the run's first constant."""
    given: dict[str, Any] = {"over": over or Const(0), "args": (Item(),)}
    return step(name, **(given | options))


def needs(**slots: int) -> tuple[PoolNeed, ...]:
    return tuple(PoolNeed(pool, count) for pool, count in slots.items())


def graph(*nodes: Node, flow: str = "flow", **options: Any) -> Graph:
    return Graph(flow, nodes, **options)


def numbers(count: int) -> bytes:
    """Constants of a run whose first is the list 0 … count − 1."""
    return msgspec.json.encode([list(range(count))])


def run_row(seq: int = 1, **changes: Any) -> RunRow:
    row = RunRow(
        seq=seq,
        id=RunId(f"run-{seq}"),
        flow="flow",
        graph="flow",
        params=b"{}",
        consts=b"[]",
        tags={},
        priority=0,
        key=None,
        kind="flow",
        generation=0,
        state=RunState.QUEUED,
        verdict=None,
        lane=0,
        waits_for=None,
        queued_at=seq,
        started_at=0,
        ended_at=0,
        deadline_at=None,
        queue_timeout_us=None,
        dispatch_deadline_us=None,
        output=None,
        error=None,
    )
    return msgspec.structs.replace(row, **changes)


def worker_row(name: str = "w", **changes: Any) -> WorkerRow:
    row = WorkerRow(
        id=name,
        host="host",
        pid=1,
        version="1",
        permits={"async": 100, "thread": 8},
        total=-1,
        claim=-1,
    )
    return msgspec.structs.replace(row, **changes)


def world(
    *,
    seed: int = 1,
    took: int | Callable[[random.Random, Node], int] = 10 * MILLISECOND,
    failure: float = 0.0,
    fate: Fate | None = None,
    output: Callable[[TaskRow, Node], bytes] | None = None,
    local: bool = False,
    workers: int = 1,
    permits: dict[str, int] | None = None,
    rules: dict[tuple[str, str], object] | None = None,
    defaults: Defaults | None = None,
    latency: int = MILLISECOND,
) -> SimWorld:
    """A led world with `workers` workers (the first in the leader's process if `local`)."""
    made = SimWorld(
        seed, Behaviour(_duration(took), failure, latency, output or _one, fate), defaults
    )
    for (kind, name), rule in (rules or {}).items():
        made.set_rule(kind, name, rule)
    for index in range(workers):
        made.add_worker(f"w{index}", permits, local=local and index == 0)
    made.lead()
    return made


def _one(_row: TaskRow, _node: Node) -> bytes:
    return b"1"


def _duration(
    took: int | Callable[[random.Random, Node], int],
) -> Callable[[random.Random, Node], int]:
    if not isinstance(took, int):
        return took

    def always(_random: random.Random, _node: Node) -> int:
        return took

    return always


def settle(world: SimWorld, *, steps: int = 200_000) -> SimWorld:
    """Let everything happen; then every run has ended and the history keeps every promise."""
    world.run(steps=steps)
    open_runs = [run.seq for run in world.model.runs.values() if run.state not in TERMINAL_RUNS]
    found = violations(world)
    assert not open_runs, f"seed {world.seed}: runs {open_runs} have not ended"
    assert not found, f"seed {world.seed}: {'; '.join(map(str, found[:5]))}"
    return world


def line_before(lead: Scheduler, head: QueuedRun) -> QueuePosition:
    """The runs before a queued run, of those the scheduler has, by its own turns."""
    limits, turns = lead.ledger.limits, lead.ledger.run_queue.turns
    groups: list[QueueGroup] = []
    for other in lead.ledger.heads.values():
        counters, value = lanes.read(lanes.signature(limits, other.row.tags))
        older = int((other.rank, other.id) < (head.rank, head.id))
        groups.append(QueueGroup(value, other.rank[0], 1, older, counters))
    own = "" if limits.fair is None else head.row.tags.get(limits.fair.key, "")
    return QueuePosition(turns, own, head.rank[0], groups)


def of(name: str) -> Callable[[SimBody], int]:
    """Counts bodies of one node, for `SimWorld.peak`."""
    return lambda body: int(body.node.name == name)


def slots(pool: str) -> Callable[[SimBody], int]:
    """Counts slots of one pool that bodies hold, for `SimWorld.peak`."""
    return lambda body: body.pools.get(pool, 0)


def runs_at_once(world: SimWorld) -> int:
    """The most runs of which a body ran at one instant, measured from the bodies' own records."""
    moments: list[tuple[int, int, int]] = []
    for body in world.bodies:
        run = run_of(body.task)
        moments += [(body.start, 1, run), (body.end or world.steady, -1, run)]
    busy: dict[int, int] = {}
    peak = 0
    for _, change, run in sorted(moments):
        busy[run] = busy.get(run, 0) + change
        if not busy[run]:
            del busy[run]
        peak = max(peak, len(busy))
    return peak
