"""Writes histories by hand, for tests of the checker.

Each call adds one event as a correct engine would write it; a test that plants
a fault passes its own `before`, `actor`, `token` or `data`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from locktender.base import ids
from locktender.base.events import Event, Subject
from locktender.base.graph import Graph
from locktender.base.states import NEW
from locktender.observe.checker import check
from locktender.observe.checker.history import Ceiling, History, Rejection


@dataclass(slots=True)
class _Row:
    run: int
    node: int
    state: str = NEW
    token: int = 0


class HistoryWriter:
    """A history in the making, with leader `a` and worker `w` unless told otherwise."""

    def __init__(self, **graphs: Graph) -> None:
        self.graphs: Mapping[str, Graph] = graphs
        self.events: list[Event] = []
        self.at = 1_000_000
        self.term: int = 0
        self.owner: str = "a"
        self._cycle = 0
        self._seq = 0
        self._in_cycle = False
        self._tokens = 0
        self._runs: dict[int, tuple[str, str]] = {}
        self._tasks: dict[int, _Row] = {}
        self._ordinals: dict[int, int] = {}

    def history(
        self,
        *,
        complete: bool = False,
        rejections: tuple[Rejection, ...] = (),
        max_active: tuple[Ceiling, ...] = (),
        slack_us: int = 0,
        unheard_us: int = 0,
    ) -> History:
        return History(
            self.events, self.graphs, rejections, max_active, complete, slack_us, unheard_us
        )

    @property
    def seq(self) -> int:
        return self._seq

    # commits

    @contextmanager
    def cycle(self) -> Generator[None]:
        """Everything inside is one commit of the leader."""
        self._next_commit(leader=True)
        self._in_cycle = True
        try:
            yield
        finally:
            self._in_cycle = False

    def _next_commit(self, *, leader: bool) -> None:
        if not self._in_cycle:
            self._seq += 1
            self._cycle += leader

    def event(
        self,
        subject: Subject,
        before: str,
        after: str,
        *,
        run: int = 0,
        task: int = 0,
        actor: str | None = None,
        token: int = 0,
        data: dict[str, Any] | None = None,
    ) -> None:
        actor = actor or f"leader:{self.owner}"
        self._next_commit(leader=actor.startswith("leader:"))
        if self._in_cycle and not actor.startswith("leader:"):
            data, actor = {**(data or {}), "by": actor}, f"leader:{self.owner}"
        leads = actor.startswith("leader:")
        self.events.append(
            Event(
                seq=self._seq,
                at=self.at,
                term=self.term if leads else 0,
                cycle=self._cycle if leads else 0,
                actor=actor,
                run=run,
                subject=subject,
                task=task,
                before=before,
                after=after,
                token=token,
                data=data or {},
            )
        )

    # leaders, limits, workers

    def lead(self, owner: str = "a", term: int | None = None) -> None:
        self.term = self.term + 1 if term is None else term
        self.owner, self._cycle, self._tokens = owner, 0, 0
        self.event("leader", "", owner)

    def limit(self, kind: str, name: str = "", rule: dict[str, Any] | None = None) -> None:
        self.event("limit", "", "in_force", data={"kind": kind, "name": name, "rule": rule})

    def pool(self, name: str, limit: int = -1, **rule: Any) -> None:
        self.limit("pool", name, {"limit": limit, **rule})

    def worker(self, name: str = "w", after: str = "joined", **data: Any) -> None:
        permits = {"async": -1, "thread": -1, "process": -1}
        data = {"worker": name, "permits": permits, "total": -1, "labels": {}, **data}
        self.event("worker", "", after, actor=f"worker:{name}", data=data)

    # runs

    def submit(self, run: int, graph: str = "g", **data: Any) -> None:
        flow = self.graphs[graph].flow if graph in self.graphs else graph
        facts: dict[str, Any] = {
            "flow": flow,
            "graph": graph,
            "tags": {},
            "priority": 0,
            "generation": 0,
            **data,
        }
        self._runs[run] = NEW, graph
        self.run(run, "queued", actor="client", **facts)

    def run(
        self,
        run: int,
        after: str,
        *,
        before: str | None = None,
        actor: str | None = None,
        **data: Any,
    ) -> None:
        state, graph = self._runs.get(run, (NEW, ""))
        self.event("run", before or state, after, run=run, actor=actor, data=data)
        self._runs[run] = after, graph

    def begin(self, run: int, graph: str = "g", **data: Any) -> None:
        """Submitted and started."""
        self.submit(run, graph, **data)
        self.run(run, "running")

    # tasks

    def request(self, run: int, node: int = 0, index: int = -1, **data: Any) -> int:
        """A new task, requested; its id."""
        task = self.new_task(run, node)
        self.task(task, "requested", node=node, index=index, attempt=0, **data)
        return task

    def new_task(self, run: int, node: int = 0) -> int:
        ordinal = self._ordinals[run] = self._ordinals.get(run, -1) + 1
        task = ids.task_id(run, ordinal)
        self._tasks[task] = _Row(run, node)
        return task

    def task(
        self,
        task: int,
        after: str,
        *,
        before: str | None = None,
        actor: str | None = None,
        token: int | None = None,
        **data: Any,
    ) -> None:
        row = self._tasks[task]
        self.event(
            "task",
            before or row.state,
            after,
            run=row.run,
            task=task,
            actor=actor,
            token=row.token if token is None else token,
            data=data,
        )
        row.state = after

    def grant(self, task: int, worker: str = "w", token: int | None = None, **data: Any) -> None:
        """Scheduled, with what its step needs."""
        row = self._tasks[task]
        node = self.graphs[self._runs[row.run][1]].nodes[row.node]
        pools = {need.name: need.slots for need in node.pools}
        self._tokens += 1
        row.token = ids.token(self.term, self._tokens) if token is None else token
        offer: dict[str, Any] = {
            "worker": worker,
            "pools": pools,
            "executor": node.executor,
            **data,
        }
        self.task(task, "scheduled", **offer)

    def accept(self, task: int, worker: str = "w") -> None:
        self.task(task, "running", actor=f"worker:{worker}")

    def finish(self, task: int, after: str = "completed", worker: str = "w", **data: Any) -> None:
        self.task(task, after, actor=f"worker:{worker}", **data)

    def perform(self, task: int, after: str = "completed", worker: str = "w", **data: Any) -> None:
        """Scheduled, accepted and finished."""
        self.grant(task, worker)
        self.accept(task, worker)
        self.finish(task, after, worker, **data)

    def wait(self, task: int, gate: str, used: int = 0, limit: int = 0, need: int = 1) -> None:
        data = {"gate": gate, "used": used, "limit": limit, "need": need, "behind": 0}
        self.event("wait", "", "", run=self._tasks[task].run, task=task, data=data)


def tell(graph: Graph, *, begin: bool = True, **worker: object) -> HistoryWriter:
    """A story with a leader, a worker and, with `begin`, run 1 of `graph` running."""
    story = HistoryWriter(g=graph)
    story.lead()
    story.worker(**worker)  # type: ignore[arg-type]
    if begin:
        story.begin(1)
    return story


def found(story: HistoryWriter, **history: object) -> list[str]:
    """The rules that the checker finds broken."""
    return sorted({each.rule for each in check(story.history(**history))})  # type: ignore[arg-type]


def grants(story: HistoryWriter, count: int, run: int = 1) -> list[int]:
    """The first `count` items of node 0, requested and granted."""
    tasks = [story.request(run, 0, index) for index in range(count)]
    for task in tasks:
        story.grant(task)
    return tasks
