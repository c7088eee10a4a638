"""Runs, tasks and workers as the checker believes them to be at one prefix of the history."""

from __future__ import annotations

from typing import Any, Final

from locktender.base.states import EXECUTING_RUNS, HOLDING, NEW, TERMINAL_RUNS, RunState, TaskState
from locktender.observe.checker.plan import GraphPlan, NodePlan

OPEN: Final = 0
COMPLETED: Final = 1
FAILED: Final = 2
SKIPPED: Final = 3
CANCELLED: Final = 4

STANDING: Final[dict[str, int]] = {
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
RUN_ENDS: Final = frozenset(state.value for state in TERMINAL_RUNS)
EXECUTING: Final = frozenset(state.value for state in EXECUTING_RUNS)
ACTIVE: Final = EXECUTING | {RunState.QUEUED.value}


class Tally:
    """The tasks of one node of one run, counted by standing."""

    __slots__ = ("acted_on", "counts", "in_flight", "unexpanded")

    def __init__(self) -> None:
        self.counts: list[int] = [0, 0, 0, 0, 0]
        self.in_flight: int = 0
        self.unexpanded: bool = False
        """A map that was skipped before it had items."""
        self.acted_on: int = -1
        """The generation in which a successor took its failures for final."""

    @property
    def total(self) -> int:
        return sum(self.counts)


class Run:
    """A run; it begins in the state *new*, which a legal history leaves with its first event."""

    __slots__ = (
        "by_executor",
        "data",
        "failed",
        "flow",
        "generation",
        "id",
        "in_flight",
        "key",
        "kind",
        "nodes",
        "open",
        "places",
        "plan",
        "priority",
        "queued_at",
        "state",
        "tags",
        "tasks",
        "waits_for",
    )

    def __init__(self, number: int) -> None:
        self.id: int = number
        self.state: str = NEW
        self.flow: str = ""
        self.plan: GraphPlan | None = None
        self.tags: dict[str, str] = {}
        self.priority: int = 0
        self.key: str | None = None
        self.kind: str = "flow"
        self.generation: int = 0
        self.waits_for: int | None = None
        self.queued_at: int = 0
        self.data: dict[str, Any] = {}
        self.tasks: dict[int, Task] = {}
        self.places: dict[tuple[int, int], Task] = {}
        self.nodes: dict[int, Tally] = {}
        self.open: int = 0
        self.failed: int = 0
        self.in_flight: int = 0
        self.by_executor: dict[str, int] = {}

    def forget_tasks(self) -> None:
        """A succeeded run is never retried: that it ended is all that is needed of it."""
        self.tasks, self.places, self.nodes = {}, {}, {}


class Task:
    """A task; `token`, `worker`, `executor` and `pools` are those of its latest offer."""

    __slots__ = (
        "abandons",
        "acted_on",
        "ended_in",
        "executor",
        "first_requested_at",
        "generation",
        "holds",
        "id",
        "index",
        "node",
        "not_before",
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

    def __init__(self, number: int, run: Run, node: int, index: int) -> None:
        self.id: int = number
        self.run: Run = run
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
        self.ended_in: int = -1
        """The generation in which it last came to a standing other than open."""
        self.acted_on: int = -1
        """The generation in which a successor took its failure for final."""

    @property
    def unexpanded(self) -> bool:
        return self.index < 0 and self.plan is not None and self.plan.mapped

    @property
    def name(self) -> str:
        label = self.plan.node.name if self.plan is not None else f"node {self.node}"
        return label if self.index < 0 else f"{label}[{self.index}]"


class Worker:
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
        "total",
    )

    def __init__(self, name: str) -> None:
        self.id: str = name
        self.permits: dict[str, int] = {}
        self.total: int = -1
        self.labels: dict[str, str] = {}
        self.in_flight: int = 0
        self.by_executor: dict[str, int] = {}
        self.earlier: tuple[dict[str, int], int] | None = None
        """Permits before a change the leader may not have seen when it decided."""
        self.leaving: bool = False
        """Lost or left since the leader's last commit: an offer may have crossed that."""
        self.gone: bool = False
