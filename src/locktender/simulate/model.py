"""What a simulation is made of: workers, their steps, and a store of dictionaries with the same rules."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from locktender.base import ids
from locktender.base.changes import Bucket, CachedResult, Linger, Order, TaskRow
from locktender.base.clock import MILLISECOND
from locktender.base.commits import CacheClear, Commit, EventWait, RunEvents, Silence
from locktender.base.events import NO_RUN, Change, Event
from locktender.base.graph import Graph, Node, read_graph
from locktender.base.ids import RunId
from locktender.base.limits import Limits
from locktender.base.model import DeadWorker, Failure, LimitRow, Proof, RunRow, WorkerRow
from locktender.base.states import HOLDING, TERMINAL_RUNS, RunState, TaskState
from locktender.kernel import claim, lanes
from locktender.store import worker_changes
from locktender.store.limit_rows import compose
from locktender.store.protocol import Lost

_dump = msgspec.json.Encoder().encode


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
            claim=-1 if self.local else claim.UNANSWERED,
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

    def result(
        self, row: TaskRow, node: Node, state: TaskState
    ) -> tuple[bytes | None, bytes | None]:
        """The output and the error of a body that ends in this state."""
        if state is TaskState.COMPLETED:
            return self.output(row, node), None
        names = {TaskState.FAILED: "Boom", TaskState.TIMED_OUT: "TimeoutError"}
        return None, _dump(Failure(names[state], "as planned")) if state in names else None


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


def queued_run(run_id: RunId, graph: Graph, **fields: Any) -> RunRow:
    """A run as it is submitted; `fields`: those that a client sets."""
    return RunRow(
        seq=0,
        id=run_id,
        flow=graph.flow,
        graph=graph.flow,
        kind="flow",
        generation=0,
        state=RunState.QUEUED,
        verdict=None,
        lane=0,
        waits_for=None,
        queued_at=0,
        started_at=0,
        ended_at=0,
        output=None,
        error=None,
        **fields,
    )


@dataclass(frozen=True, slots=True)
class SimMail:
    """An event that was sent: to a run, to the wait of one `task` of it, or to a topic (run 0)."""

    n: int
    run: int
    name: str
    payload: bytes
    match: dict[str, Any]
    at: int
    task: int


@dataclass
class Model:
    """What is durable. Everything else in a simulation may vanish at any instant."""

    graphs: dict[str, Graph] = field(default_factory=dict[str, Graph])
    runs: dict[int, RunRow] = field(default_factory=dict[int, RunRow])
    tasks: dict[int, TaskRow] = field(default_factory=dict[int, TaskRow])
    workers: dict[str, WorkerRow] = field(default_factory=dict[str, WorkerRow])
    buckets: dict[str, int] = field(default_factory=dict[str, int])
    orders: dict[tuple[str, int], Order] = field(default_factory=dict[tuple[str, int], Order])
    rules: dict[tuple[str, str], LimitRow] = field(default_factory=dict[tuple[str, str], LimitRow])
    unplaced: dict[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """Runs without a place → the limits at which they keep it."""
    lingers: list[Linger] = field(default_factory=list[Linger])
    keys: dict[str, int] = field(default_factory=dict[str, int])
    events: list[Event] = field(default_factory=list[Event])
    waiting: dict[int, int] = field(default_factory=dict[int, int])
    """Waiting run → when it is to be woken."""
    mail: list[SimMail] = field(default_factory=list["SimMail"])
    mail_taken: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """(run, number) of each event that was delivered."""
    event_waits: dict[int, EventWait] = field(default_factory=dict[int, EventWait])
    cached: dict[str, CachedResult] = field(default_factory=dict[str, CachedResult])
    clears: list[CacheClear] = field(default_factory=list[CacheClear])
    term: int = 0
    seq: int = 0
    stale: int = 0
    cancels: list[int] = field(default_factory=list[int])

    @property
    def limits(self) -> Limits:
        return compose(list(self.rules.values()))

    def log(
        self, at: int, actor: str, changes: list[RunEvents], term: int = 0, cycle: int = 0
    ) -> None:
        for run, of_run in changes:
            self.seq += 1
            for change in of_run:
                self.events.append(
                    Event(
                        self.seq,
                        at,
                        term,
                        cycle,
                        actor,
                        run,
                        change.subject,
                        change.task,
                        str(change.before),
                        str(change.after),
                        change.token,
                        # Through JSON, as the store does: nothing may depend on live objects.
                        msgspec.json.decode(_dump(change.data or {})),
                    )
                )

    # -- clients -----------------------------------------------------------------------------------

    def active(self) -> int:
        return sum(
            run.state not in TERMINAL_RUNS
            for run in self.runs.values()
            if run.kind == "flow" and run.seq not in self.waiting
        )

    def submit(
        self,
        row: RunRow,
        now: int,
        scheduled: tuple[str, int] | None = None,
        delay: int = 0,
    ) -> RunRow | None:
        """None: the ceiling is reached. An active run with the same key is returned instead of a new one."""
        held = self.keys.get(row.key) if row.key is not None else None
        if held is not None:
            return self.runs[held]
        limit = self.limits.max_active
        if 0 <= limit <= self.active() and not delay:
            return None
        row = msgspec.structs.replace(row, seq=len(self.runs) + 1, queued_at=now)
        self.runs[row.seq] = row
        if row.key is not None:
            self.keys[row.key] = row.seq
        data: dict[str, object] = {
            "flow": row.flow,
            "graph": row.graph,
            "tags": row.tags,
            "priority": row.priority,
            "key": row.key,
            "generation": row.generation,
            "kind": row.kind,
        }
        if scheduled is not None:
            data["schedule"], data["tick"] = scheduled
        if delay:
            self.waiting[row.seq] = data["wake_at"] = now + delay
            row = self.runs[row.seq] = msgspec.structs.replace(row, state=RunState.WAITING)
        change = Change("run", 0, "new", row.state, 0, data)
        self.log(now, "client", [RunEvents(row.seq, [change])])
        return row

    def set_rule(self, kind: str, name: str, rule: object) -> None:
        value = None if rule is None else _dump(rule)
        self.rules[kind, name] = LimitRow(kind, name, None, value)

    def queued(self) -> list[RunRow]:
        waiting = [run for run in self.runs.values() if run.state == RunState.QUEUED]
        limits = self.limits
        return sorted(
            waiting, key=lambda run: (*lanes.rank(limits, run.priority, run.queued_at), run.seq)
        )

    # -- the leader --------------------------------------------------------------------------------

    def executing(self) -> tuple[list[RunRow], list[TaskRow]]:
        """The rows that a new leader rebuilds its ledger from."""
        runs = [run for run in self.runs.values() if run.state in ("running", "cancelling")]
        seqs = {run.seq for run in runs}
        return runs, [row for row in self.tasks.values() if ids.run_of(row.id) in seqs]

    def commit(self, commit: Commit) -> bool:
        if commit.term != self.term:
            return False
        for start in commit.runs_started:
            self._run(start.run, state=RunState.RUNNING, started_at=start.started_at)
            self.waiting.pop(start.run, None)
        for wait in commit.runs_waiting:
            self._run(wait.run, state=RunState.WAITING)
            self.waiting[wait.run] = wait.wake_at
        for task in commit.waits_over:
            self.event_waits.pop(task, None)
        self.event_waits |= {each.task: each for each in commit.waits_opened}
        self.mail_taken |= {(taken.run, taken.n) for taken in commit.mail_taken}
        for clear in commit.cache_cleared:
            self.cached = {k: v for k, v in self.cached.items() if not clear.covers(v)}
        self.cached |= {each.key: each for each in commit.cache_stored}
        for mark in commit.runs_marked:
            self._run(mark.run, state=mark.state, verdict=mark.verdict, error=mark.error)
        for each in commit.runs_unfolded:
            self.graphs[each.graph] = read_graph(each.body)
            self._run(each.run, graph=each.graph, consts=each.consts)
        for row in commit.tasks_new:
            self.tasks.setdefault(row.id, row)
        for row in commit.tasks_again:
            self.tasks[row.id] = row
        for save in commit.tasks_saved:
            self.tasks[save.id] = self.tasks[save.id]._replace(**save._asdict())
            if save.state not in HOLDING:
                self._clear_orders(save.id)
        for end in commit.tasks_ended:
            row = self.tasks[end.id]
            if row.token == end.token:
                self.tasks[end.id] = row._replace(
                    state=TaskState.COMPLETED, output=end.output, ended_at=end.ended_at, held=None
                )
        for order in commit.orders:
            self.orders[order.worker, order.task] = order
        for run in commit.placed:
            self.unplaced.pop(run, None)
        self.unplaced = dict.fromkeys(commit.unplaced, ()) | self.unplaced | dict(commit.kept)
        if commit.lingers is not None:
            self.lingers = commit.lingers
        if commit.silences is not None:
            silent = {each.worker: each for each in commit.silences}
            for name, row in self.workers.items():
                each = silent.get(name, Silence(name, 0, 0))
                self.workers[name] = msgspec.structs.replace(
                    row, unanswered=each.unanswered, asked_again_at=each.until
                )
        for bucket in commit.buckets:
            self.buckets[bucket.pool] = bucket.tat
        for ended in commit.runs_ended:
            self.waiting.pop(ended.run, None)
            self._run(
                ended.run,
                state=ended.state,
                output=ended.output,
                error=ended.error,
                ended_at=ended.ended_at,
            )
            key = self.runs[ended.run].key
            if key is not None and self.keys.get(key) == ended.run:
                del self.keys[key]
        self.log(commit.at, commit.actor, commit.events, commit.term, commit.cycle)
        return True

    def _run(self, run: int, **changes: object) -> None:
        self.runs[run] = msgspec.structs.replace(self.runs[run], **changes)

    def _clear_orders(self, task: int) -> None:
        for key in [key for key in self.orders if key[1] == task]:
            del self.orders[key]

    def withdraw(
        self, tasks: list[tuple[int, int]], to: str, now: int, actor: str, term: int, cycle: int
    ) -> list[tuple[int, int]]:
        done: list[tuple[int, int]] = []
        for task, token in tasks:
            row = self.tasks[task]
            if row.state == TaskState.SCHEDULED and row.token == token:
                self.tasks[task] = row._replace(state=to, token=0, worker=None, held=None)
                self._clear_orders(task)
                change = Change(
                    "task", task, TaskState.SCHEDULED, to, token, {"reason": "withdrawn"}
                )
                self.log(now, actor, [RunEvents(ids.run_of(task), [change])], term, cycle)
                done.append((task, token))
        return done

    def expire(
        self, dead: list[DeadWorker], now: int, actor: str, term: int, cycle: int
    ) -> list[Lost]:
        several: list[Lost] = []
        for name, until, reason in dead:
            worker = self.workers.get(name)
            if worker is None or worker.lease_until != until:
                continue
            del self.workers[worker.id]
            lost = Lost(worker.id, reason, [], [])
            gone = RunEvents(NO_RUN, [worker_changes.lost(lost.worker, lost.reason)])
            self.log(now, actor, [gone], term, cycle)
            for row in list(self.tasks.values()):
                if row.worker != worker.id or row.state not in HOLDING:
                    continue
                change = worker_changes.take_back(lost, worker.leaves, row.id, row.token, row.state)
                self.log(now, actor, [RunEvents(ids.run_of(row.id), [change])], term, cycle)
                abandoned = change.after == TaskState.ABANDONED
                handed_back = change.after == TaskState.HANDED_BACK
                self.tasks[row.id] = row._replace(
                    state=change.after,
                    held=None,
                    abandons=row.abandons + abandoned,
                    error=worker_changes.LEFT_BEHIND if handed_back else row.error,
                    ended_at=now if abandoned or handed_back else row.ended_at,
                )
                self._clear_orders(row.id)
            several.append(lost)
        return several

    # -- workers -----------------------------------------------------------------------------------

    def accept(self, worker: str, task: int, token: int, now: int) -> bool:
        row = self.tasks.get(task)
        lease = self.workers.get(worker)
        if (
            row is None
            or lease is None
            or not lease.lease_until
            or (row.state, row.token, row.worker) != (TaskState.SCHEDULED, token, worker)
        ):
            self.stale += 1
            return False
        self.tasks[task] = row._replace(
            state=TaskState.RUNNING, attempt=row.attempt + 1, started_at=now
        )
        self.orders.pop((worker, task), None)
        change = Change(
            "task", task, TaskState.SCHEDULED, TaskState.RUNNING, token, {"worker": worker}
        )
        self.log(now, f"worker:{worker}", [RunEvents(ids.run_of(task), [change])])
        return True

    def finish(
        self,
        worker: str,
        task: int,
        token: int,
        state: str,
        now: int,
        output: bytes | None = None,
        error: bytes | None = None,
    ) -> bool:
        row = self.tasks.get(task)
        legal = HOLDING if state == TaskState.HANDED_BACK else {TaskState.RUNNING}
        if row is None or row.token != token or row.state not in legal or row.worker != worker:
            self.stale += 1
            return False
        self.tasks[task] = row._replace(
            state=state, output=output, error=error, ended_at=now, held=None
        )
        self._clear_orders(task)
        data: dict[str, object] = {"reason": state}
        if error is not None:
            failure = msgspec.json.decode(error)
            data = {
                "error": {"type": failure["type"], "message": failure["message"]},
                "retryable": failure.get("retryable", True),
            }
        change = Change("task", task, row.state, state, token, data)
        self.log(now, f"worker:{worker}", [RunEvents(ids.run_of(task), [change])])
        return True

    def stored_buckets(self) -> list[Bucket]:
        return [Bucket(pool, tat) for pool, tat in self.buckets.items()]
