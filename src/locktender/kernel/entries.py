"""Entries of the ledger: a queued run, an executing run, a task that waits or runs."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.graph import Graph, Node, starts_in_order
from locktender.base.model import RunRow
from locktender.base.states import HOLDING, TaskState
from locktender.kernel.gates.count import CountGate
from locktender.kernel.gates.protocol import NO_WAIT, Gate, Lane, WaitClock
from locktender.kernel.timers import Defaults


class QueuedRun:
    """A queued run whose turn may come: one of the heads of a lane of the queue."""

    __slots__ = ("again", "id", "in_line", "joined", "lane", "mark", "rank", "row", "waits")

    def __init__(self, row: RunRow, rank: tuple[int, int], again: RunEntry | None = None) -> None:
        self.row: RunRow = row
        self.id: int = row.seq
        self.rank: tuple[int, int] = rank
        self.lane: Lane[QueuedRun] | None = None
        self.again: RunEntry | None = again
        """The executing run that gave its place back and wants one again."""
        self.mark: WaitClock = NO_WAIT
        """Its lane's clock when it joined the lane, at `joined`; `waits`: what it waited before."""
        self.joined: int = 0
        self.waits: dict[str, int] | None = None
        self.in_line: bool = True
        """False: it was taken out of its lane, and starts from nowhere."""


class RunEntry:
    """An executing run: what it is charged for and the gates that are its own."""

    __slots__ = (
        "by_executor",
        "fair",
        "files",
        "gates",
        "graph",
        "in_flight",
        "keeps",
        "lanes",
        "opened",
        "parallel",
        "paused",
        "pending",
        "placed",
        "returning",
        "row",
        "seq",
        "some_in_order",
        "tasks",
        "waiting",
        "windows",
    )

    def __init__(self, row: RunRow, graph: Graph) -> None:
        self.row: RunRow = row
        self.seq: int = row.seq
        self.fair: str | None = None
        self.gates: tuple[Gate, ...] = ()
        self.placed: bool = True
        """It is charged at `gates`; else no worker that lives can go on with it (`kernel/places.py`)."""
        self.keeps: tuple[str, ...] = ()
        """Not placed: the limits of tags at which it keeps its place (`counts_while_waiting`)."""
        self.paused: bool = False
        """Nothing of it starts (`kernel/pauses.py`)."""
        self.in_flight: int = 0
        """Tasks that are scheduled or running."""
        self.returning: QueuedRun | None = None
        """How it stands at `gates` again."""
        self.tasks: dict[int, TaskEntry] = {}
        """Tasks that are not terminal."""
        self.waiting: dict[int, int] = {}
        """Node → how many of its tasks stand in line."""
        self.pending: dict[int, TaskRow] = {}
        """Of a retried run: rows of earlier tries that were neither requested nor skipped again yet."""
        self.opened: dict[int, int] = {}
        """When each map over a list was opened, by node: items that are asked for later stand in line by it.
        Empty for a retried run."""
        self.files: dict[int, list[int]] = {}
        """Of a sequential flow: items of each map that are not terminal, by node, as a heap of their ids."""
        self.lanes: dict[tuple[int, tuple[tuple[str, int], ...]], Lane[TaskEntry]] = {}
        self.take_graph(graph)

    def take_graph(self, graph: Graph) -> None:
        """The graph it goes through, and the gates that it brings."""
        self.graph: Graph = graph
        self.some_in_order: bool = any(starts_in_order(graph, node) for node in graph.nodes)
        self.parallel: Gate | None = (
            None if graph.max_parallel is None else CountGate("run", "parallel", graph.max_parallel)
        )
        self.by_executor: dict[str, Gate] = {
            executor: CountGate("run", f"parallel:{executor}", limit)
            for executor, limit in graph.max_parallel_by.items()
        }
        self.windows: dict[int, Gate] = {
            index: CountGate("window", node.name, node.window)
            for index, node in enumerate(graph.nodes)
            if node.window is not None
        }

    @property
    def own_gates(self) -> bool:
        return self.parallel is not None or bool(self.by_executor)

    def tasks_in_flight(self) -> Iterator[TaskEntry]:
        """Its tasks that are scheduled or running. Of 100,000 that wait few are looked at: these started first."""
        left = self.in_flight
        for task in self.tasks.values() if left else ():
            if task.state in HOLDING:
                left -= 1
                yield task
                if not left:
                    return

    def first_in_file(self, node: int) -> TaskEntry | None:
        """The item of a sequential map whose turn it is: the first that has not ended for good."""
        file = self.files.get(node)
        while file:
            if (task := self.tasks.get(file[0])) is not None:
                return task
            heappop(file)
        return None


class TaskEntry(msgspec.Struct, eq=False):
    """A task that waits or runs. Mirrors its row; `lane` names what it needs and, in flight, what it holds."""

    id: int
    run: RunEntry
    node: int
    idx: int
    spec: Node
    input: bytes | None = None
    """Its call (of an item: the item), until it is started in this process."""
    requested_at: int = 0
    state: str = TaskState.REQUESTED
    attempt: int = 0
    tries: int = 0
    abandons: int = 0
    offers: int = 0
    offered: bool = True
    """Its worker accepts it as an offer; else the leader of the same process starts it."""
    token: int = 0
    worker: str | None = None
    scheduled_at: int = 0
    started_at: int = 0
    not_before: int = 0
    eligible_at: int = 0
    pools: tuple[tuple[str, int], ...] = ()
    rank: tuple[int, int] = (0, 0)
    lane: Lane[TaskEntry] | None = None
    mark: WaitClock = NO_WAIT
    """Its lane's clock when it joined the lane, at `joined`; `waits`: what it waited before."""
    joined: int = 0
    waits: dict[str, int] | None = None
    cancelling: bool = False
    stored: bool = False
    """Its row exists in the store (else it is inserted with this cycle's commit)."""
    cache_key: str | None = None
    """Under which its result is kept."""
    unread: bool = False
    """Its key is to be looked up before it stands at its gates."""

    def queue_timeout(self, defaults: Defaults) -> int | None:
        # Asked for every task: without a loop.
        if (value := self.spec.queue_timeout_us) is not None:
            return value
        if (value := self.run.row.queue_timeout_us) is not None:
            return value
        value = self.run.graph.queue_timeout_us
        return defaults.queue_timeout_us if value is None else value

    def dispatch_deadline(self, defaults: Defaults) -> int:
        if (value := self.spec.dispatch_deadline_us) is not None:
            return value
        if (value := self.run.row.dispatch_deadline_us) is not None:
            return value
        value = self.run.graph.dispatch_deadline_us
        return defaults.dispatch_deadline_us if value is None else value

    @property
    def in_line(self) -> bool:
        """It stands at its gates (and is not in flight, nor waiting for its back-off to end)."""
        return self.lane is not None and self.lane.live.get(self.id) is self

    def is_due(self, now: int) -> bool:
        """It should be queued at its gates and is not. A wait is queued at none, even if its time has come."""
        waits = self.state != TaskState.REQUESTED or self.spec.wait is not None or self.unread
        return not waits and self.not_before <= now and not self.in_line

    @property
    def aside(self) -> bool:
        """It was asked for and has never been at its gates: an earlier item of its sequential map goes first."""
        waits = self.state == TaskState.REQUESTED and not self.unread
        return self.lane is None and waits and self.not_before == 0
