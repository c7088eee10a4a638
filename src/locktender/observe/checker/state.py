"""The checker's records: commits, and runs, tasks and workers as the history shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from locktender.base.events import Event
from locktender.base.states import ENDED_RUNS, EXECUTING_RUNS, HOLDING, NEW, RunState, TaskState
from locktender.observe.checker.history import GraphPlan, NodePlan
from locktender.observe.checker.limits_in_force import TagSlot


class Released(NamedTuple):
    """What a task gave back."""

    run: int
    node: int
    executor: str
    pools: dict[str, int]


@dataclass(frozen=True, slots=True)
class HistoryCommit:
    """The rows of one cycle of a leader, or of one verb of a client or a worker."""

    seq: int = 0
    at: int = 0
    term: int = 0
    cycle: int = 0
    actor: str = ""

    @property
    def leader(self) -> bool:
        return self.actor.startswith("leader:")

    def has(self, event: Event) -> bool:
        """A cycle is one commit though each run has a row of its own, with or without its own seq."""
        if event.actor != self.actor:
            return False
        return event.seq == self.seq or (
            event.cycle != 0 and event.cycle == self.cycle and event.term == self.term
        )


def commit_of(event: Event) -> HistoryCommit:
    return HistoryCommit(event.seq, event.at, event.term, event.cycle, event.actor)


NOTHING: Final[frozenset[int]] = frozenset()
"""One for all: an empty set of its own takes 216 bytes."""
OPEN: Final = 0
COMPLETED: Final = 1
FAILED: Final = 2
SKIPPED: Final = 3
CANCELLED: Final = 4

STANDING: Final[dict[str, int]] = {
    TaskState.PENDING.value: OPEN,
    TaskState.REQUESTED.value: OPEN,
    TaskState.SCHEDULED.value: OPEN,
    TaskState.RUNNING.value: OPEN,
    TaskState.ABANDONED.value: OPEN,
    TaskState.HANDED_BACK.value: OPEN,
    TaskState.COMPLETED.value: COMPLETED,
    TaskState.FAILED.value: FAILED,
    TaskState.TIMED_OUT.value: FAILED,
    TaskState.SKIPPED.value: SKIPPED,
    TaskState.CANCELLED.value: CANCELLED,
}
"""Where a task in a state stands towards what waits for it."""

# Plain text: events carry text, and a set of plain text is looked up fastest.
HOLDING_TASKS: Final = frozenset(state.value for state in HOLDING)
RUN_ENDS: Final = frozenset(state.value for state in ENDED_RUNS)
EXECUTING: Final = frozenset(state.value for state in EXECUTING_RUNS)
WAITING: Final = RunState.WAITING.value
_WAITING_TASKS: Final = (TaskState.REQUESTED, TaskState.SCHEDULED)
ACTIVE: Final = EXECUTING | {RunState.QUEUED.value, RunState.HELD.value}


class UseCount:
    """The tasks of one node of one run, counted by standing."""

    __slots__ = (
        "acted_on",
        "counts",
        "in_flight",
        "last",
        "opened_at",
        "pending",
        "unexpanded",
        "unneeded",
    )

    def __init__(self) -> None:
        self.counts: list[int] = [0, 0, 0, 0, 0]
        self.in_flight: int = 0
        self.last: int = -1
        """Of a map: the highest index."""
        self.pending: int = 0
        """Of those that are open: rows that were not decided about yet."""
        self.unexpanded: bool = False
        """A map that was skipped before it had items. `unneeded`: the last try had no use for its rows."""
        self.unneeded: bool = False
        self.acted_on: int = -1
        """The generation in which a successor took its failures for final."""
        self.opened_at: int = 0
        """Of a map in the first try: when it was opened, if not all of its items were asked for then."""

    @property
    def total(self) -> int:
        return sum(self.counts)


class CheckedRun:
    """A run; it begins in the state *new*, which a legal history leaves with its first event."""

    __slots__ = (
        "again",
        "by_executor",
        "data",
        "failed",
        "flow",
        "generation",
        "id",
        "in_flight",
        "keeps",
        "key",
        "kind",
        "lifted",
        "mail",
        "nodes",
        "open",
        "pending",
        "placed",
        "places",
        "plan",
        "priority",
        "queued_at",
        "state",
        "tags",
        "taken",
        "tasks",
        "undone",
        "waits_for",
        "wake_at",
        "was_held",
    )

    def __init__(self, number: int) -> None:
        self.id: int = number
        self.state: str = NEW
        self.flow: str = ""
        self.plan: GraphPlan | None = None
        self.tags: dict[str, str] = {}
        self.keeps: tuple[TagSlot, ...] = ()
        """Limits of tags that count it without a place, as they said when it gave that back: (limit, value)."""
        self.priority: int = 0
        self.key: str | None = None
        self.kind: str = "flow"
        self.generation: int = 0
        self.waits_for: int | None = None
        self.queued_at: int = 0
        self.data: dict[str, Any] = {}
        self.tasks: dict[int, CheckedTask] = {}
        self.placed: bool = True
        """Of an executing run: it has not given its place back."""
        self.lifted: bool = False
        """It is to end, so no pause holds it any more."""
        self.places: dict[tuple[int, int], CheckedTask] = {}
        self.nodes: dict[int, UseCount] = {}
        self.open: int = 0
        self.pending: int = 0
        self.failed: int = 0
        self.in_flight: int = 0
        self.by_executor: dict[str, int] = {}
        self.again: frozenset[int] = NOTHING
        """Of a retried run: nodes that it was told to run again."""
        self.undone: frozenset[int] | None = NOTHING
        """Of a retried run: nodes that a clean-up of an earlier try undid. None: this try has not begun."""
        self.wake_at: int = 0
        """Of a waiting run: it is woken then and not before."""
        self.was_held: bool = False
        """It is held, or ended while it was."""
        self.mail: dict[int, tuple[str, int]] = {}
        """Events in its mailbox, by number: (name, the task whose wait alone takes it; 0: any)."""
        self.taken: frozenset[int] = NOTHING
        """Events that were delivered to it, or refused."""

    def move_instants(self, by_us: int, *, about: bool) -> None:
        """The store's clock was set, and what is to come has moved with it. `about`: a part of it is known."""
        self.queued_at += by_us
        if deadline := self.data.get("deadline_at"):
            self.data = {**self.data, "deadline_at": deadline + by_us}
        for tally in self.nodes.values():
            if tally.opened_at and not about:
                tally.opened_at += by_us
        for task in self.tasks.values():
            task.first_requested_at += by_us
            if task.state in _WAITING_TASKS and not about:
                task.requested_at += by_us
            if task.not_before and not task.sleeps:
                task.not_before += by_us


class CheckedTask:
    """A task; `token`, `worker`, `executor` and `pools` are those of its latest offer."""

    __slots__ = (
        "abandons",
        "acted_on",
        "begun",
        "ended_in",
        "executor",
        "first_requested_at",
        "generation",
        "holds",
        "id",
        "index",
        "mailed",
        "node",
        "not_before",
        "passed",
        "plan",
        "pools",
        "requested_at",
        "retryable",
        "run",
        "state",
        "token",
        "tries",
        "worker",
    )

    def __init__(self, number: int, run: CheckedRun, node: int, index: int) -> None:
        self.id: int = number
        self.run: CheckedRun = run
        self.node: int = node
        self.index: int = index
        plans = run.plan.nodes if run.plan is not None else ()
        self.plan: NodePlan | None = plans[node] if 0 <= node < len(plans) else None
        self.state: str = NEW
        self.holds: bool = False
        self.token: int = 0
        self.worker: str = ""
        self.executor: str = ""
        self.pools: dict[str, int] = {}
        self.requested_at: int = 0
        self.first_requested_at: int = 0
        self.not_before: int = 0
        self.generation: int = -1
        """The run's generation when this task was last requested."""
        self.tries: int = 0
        self.abandons: int = 0
        self.retryable: bool = True
        self.mailed: bool = False
        """An event was delivered to it."""
        self.begun: bool = False
        """An attempt of it has ended."""
        self.passed: bool = False
        """It was skipped because its item is an error, which is its result, too."""
        self.ended_in: int = -1
        """The generation in which it last came to a standing other than open."""
        self.acted_on: int = -1
        """The generation in which a successor took its failure for final."""

    def request(self, event: Event) -> None:
        if event.before != TaskState.SCHEDULED:
            # An offer that was taken back does not cost the task its age.
            self.requested_at = event.at
        self.not_before = event.data.get("not_before") or 0
        if self.generation != self.run.generation:
            # A retried run gives each task its attempts anew.
            self.generation = self.run.generation
            self.first_requested_at = event.at
            self.tries = self.abandons = 0

    @property
    def in_line_since(self) -> int:
        """The age by which it stands in line: an item that is asked for late is as old as its map."""
        tally = self.run.nodes.get(self.node)
        if tally is None or not tally.opened_at or self.begun or self.run.generation:
            return self.requested_at
        return tally.opened_at

    @property
    def standing(self) -> int:
        """Below 0: it has no state yet. An error that was passed on is a result."""
        return COMPLETED if self.passed else STANDING.get(self.state, -1)

    @property
    def sleeps(self) -> bool:
        """It has no body: it is over at `not_before`."""
        return self.plan is not None and self.plan.node.wait is not None

    @property
    def unexpanded(self) -> bool:
        return self.index < 0 and self.plan is not None and self.plan.mapped

    @property
    def name(self) -> str:
        label = self.plan.node.name if self.plan is not None else f"node {self.node}"
        return label if self.index < 0 else f"{label}[{self.index}]"


class SeenRuns:
    """Numbers of runs, one bit each: runs are numbered from 1 without large gaps."""

    _BITS: Final = 1_024
    _ALL: Final = (1 << _BITS) - 1

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}
        self._whole: int = 0
        """All runs of the pages before this one were seen."""

    def add(self, run: int) -> None:
        page, bit = divmod(run - 1, self._BITS)
        bits = self._pages[page] = self._pages.get(page, 0) | 1 << bit
        while bits == self._ALL and page == self._whole:
            del self._pages[page]
            page = self._whole = page + 1
            bits = self._pages.get(page, 0)

    def __contains__(self, run: int) -> bool:
        page, bit = divmod(run - 1, self._BITS)
        return 0 <= page < self._whole or bool(self._pages.get(page, 0) >> bit & 1)


class CheckedWorker:
    """A worker with its permits and what it has in flight."""

    __slots__ = (
        "by_executor",
        "earlier",
        "gone",
        "id",
        "in_flight",
        "labels",
        "leaving",
        "permits",
        "stalled",
        "total",
    )

    def __init__(self, name: str) -> None:
        self.id: str = name
        self.permits: dict[str, int] = {}
        self.total: int = -1
        self.labels: dict[str, str] = {}
        self.in_flight: int = 0
        self.by_executor: dict[str, int] = {}
        self.stalled: bool = False
        self.earlier: tuple[dict[str, int], int] | None = None
        """Permits before a change the leader may not have seen when it decided."""
        self.leaving: bool = False
        """Lost or left since the leader's last commit: an offer may have crossed that."""
        self.gone: bool = False


def add_to(counts: dict[TagSlot, int], slot: TagSlot, step: int) -> None:
    counts[slot] = counts.get(slot, 0) + step
    if not counts[slot]:
        del counts[slot]


def enrol(keys: dict[str, set[int]], key: str, run: int, step: int) -> None:
    if step > 0:
        keys.setdefault(key, set()).add(run)
    elif key in keys:
        keys[key].discard(run)
        if not keys[key]:
            del keys[key]
