"""The state that a history implies, event by event. Only `HistoryState.apply_*` changes it.

A rule sees the state *before* the event it gets, and at the end of a leader's
commit the state after it. A commit takes effect at once and its events are
grouped by run, so limits across runs are checked at its end.

A run that has ended with nothing open is forgotten between two pages of events, and
so are those that wait the longest, where very many do: they are rows, and may be so
for years.
If something of it happens later (a retry, or what must not happen), the caller
reads its events again and restores it first: `forgotten`, `restore`.

An illegal event is applied too (its `after` counts), so that one fault is
reported once and not again with every event that follows.
"""

from __future__ import annotations

from collections import deque
from sys import intern
from typing import Any, Final

from locktender.base.events import Event
from locktender.base.states import NEW, RunState, TaskState
from locktender.observe.checker.history import GraphPlan, History, plan_of
from locktender.observe.checker.limits_in_force import TagSlot
from locktender.observe.checker.place_counts import PlaceCounts
from locktender.observe.checker.state import (
    ACTIVE,
    COMPLETED,
    EXECUTING,
    FAILED,
    HOLDING_TASKS,
    NOTHING,
    OPEN,
    RUN_ENDS,
    STANDING,
    WAITING,
    CheckedRun,
    CheckedTask,
    CheckedWorker,
    HistoryCommit,
    Released,
    SeenRuns,
    UseCount,
    add_to,
    enrol,
)

_PENDING: Final = TaskState.PENDING.value
DECIDED_AHEAD: Final = 5
"""Cycles a leader may decide while others are on their way to the store, until it has read what workers did."""
MAX_GONE_WORKERS: Final = 10_000
"""Of workers that are gone the last so many are remembered."""
_NEEDED_LATER: Final = (
    *("graph", "deadline_at", "deadline_us"),
    *("queue_timeout_us", "dispatch_deadline_us"),
)
"""What is kept of the data of a submission: of 100,000 queued runs all of it would be 60 MB."""
MAX_WAITING_KEPT: Final = 20_000
"""Waiting runs in memory, about 2 kB each."""


class HistoryState(PlaceCounts):
    """Runs, tasks, usage, workers and limits at one prefix."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self.history = history
        self.commit: HistoryCommit = HistoryCommit()
        """The one whose events are being read."""
        self.events: int = 0
        """How many were read."""
        self.last_seq: int = 0
        self.complete: bool = False
        """See `History.complete`; known at the end."""
        self.runs: dict[int, CheckedRun] = {}
        """Without those that were forgotten."""
        self._seen = SeenRuns()
        self._ended: set[int] = set()
        """Runs that may be forgotten: they have ended, or began to wait."""
        self._waiting: dict[int, None] = {}
        """Waiting runs, those that began to wait earlier before others; without those that were forgotten."""
        self.asleep: set[int] = set()
        """Waiting runs that were forgotten."""
        self._ending: set[int] = set()
        """Those of them since the leader's last commit: rules still ask for their tasks."""
        self.clock_events: list[Event] = []
        self.workers: dict[str, CheckedWorker] = {}
        """Without some that are gone."""
        self._gone: deque[CheckedWorker] = deque()
        self.any_worker: bool = False
        self.used: dict[str, int] = {}
        self.active: int = 0
        self.most_active: int = 0
        self.active_tags: dict[TagSlot, int] = {}
        self.active_holds: int = 0
        self.active_keys: dict[str, set[int]] = {}
        self.grants: list[tuple[Event, CheckedTask]] = []
        self.waiting: int = 0
        self.waits: list[tuple[Event, CheckedTask]] = []
        self.released: list[Released] = []
        """What the leader may or may not have known of when it decided: everything since its last
        commit, and what workers gave back before that while the cycle may have been decided already,
        or so lately that it may not have heard of it (`History.unheard_us`)."""
        self._given_back: deque[list[Released]] = deque([[]], maxlen=DECIDED_AHEAD)
        self._unheard: deque[tuple[int, Released]] = deque()
        self.unreadable: str | None = None
        """Why the latest limit event could not be read."""
        self.clock_moved_us: int = 0
        """How far the store's clock was set, in all: without it an instant is one of a clock that never jumps."""
        self.clock_unknown: int = 0
        """How often the clock was set by a time that only a part is known of: rates begin anew then."""
        self._plans: dict[str, GraphPlan] = {}
        self._moved: list[CheckedWorker] = []
        self.workers_changed_at: int = 0
        """When one last came, left, stalled or went on."""

    def kept(self) -> dict[str, Any]:
        """What the events so far have come to."""
        return {
            name: value for name, value in vars(self).items() if name not in {"history", "_plans"}
        }

    def keep(self, kept: dict[str, Any]) -> None:
        vars(self).update(kept)

    # finding

    def run(self, number: int) -> CheckedRun:
        run = self.runs.get(number)
        if run is None:
            run = self.runs[number] = CheckedRun(number)
            self._seen.add(number)
        return run

    def task(self, event: Event) -> CheckedTask:
        run = self.run(event.run)
        task = run.tasks.get(event.task)
        if task is None:
            # Not kept until it is applied: rules must be able to see that the place is still free.
            data = event.data
            task = CheckedTask(event.task, run, data.get("node", -1), data.get("index", -1))
        return task

    def forgotten(self, number: int) -> bool:
        """Whether the run was read, and its state is needed again before the next event of it."""
        return number not in self.runs and number in self._seen

    def forget(self) -> None:
        """Drops runs that have ended. Not between two events of one row."""
        kept: set[int] = set()
        for number in self._ended - self._ending:
            run = self.runs[number]
            if run.state == WAITING:
                self._waiting[number] = None
            if run.state not in RUN_ENDS:
                continue  # retried, or it waits
            if run.in_flight or (run.open and not run.was_held):
                kept.add(number)  # a fault; what is left of it is reported at the end
            else:
                self._drop(number)
        self._ended = kept
        while len(self._waiting) > MAX_WAITING_KEPT:
            number = next(iter(self._waiting))
            del self._waiting[number]
            # What one keeps depends on limits of then, which its own events do not tell.
            if not self.runs[number].keeps:
                self.asleep.add(number)
                self._drop(number)
        while len(self._gone) > MAX_GONE_WORKERS:
            worker = self._gone.popleft()
            if worker.gone and not worker.in_flight and self.workers.get(worker.id) is worker:
                del self.workers[worker.id]

    def _drop(self, number: int) -> None:
        # A run and its tasks name each other: as they are, they would stay until a collection of cycles.
        run = self.runs.pop(number)
        run.tasks.clear()
        run.places.clear()

    def forget_plans(self) -> None:
        self._plans.clear()

    def restore(self, run: CheckedRun) -> None:
        """A forgotten run is known again."""
        self.runs[run.id] = run
        self._ended.add(run.id)
        self.asleep.discard(run.id)

    def plan(self, digest: str) -> GraphPlan | None:
        plan = self._plans.get(digest)
        if plan is None and (graph := self.history.graphs.get(digest)) is not None:
            plan = self._plans[digest] = plan_of(graph)
        return plan

    # runs

    def apply_run(self, event: Event, run: CheckedRun) -> None:
        before, after = run.state, event.after
        was_executing, is_executing = before in EXECUTING, after in EXECUTING
        was_active, is_active = before in ACTIVE, after in ACTIVE
        if was_executing and not is_executing:
            self.stop_executing(run, waits=after == WAITING)
        if run.keeps and (after in RUN_ENDS or after == RunState.HELD):
            self.keep_no_more(run)
        if was_active and not is_active:
            self._count_active(run, -1)
        if before == WAITING:
            self._count_waiting(run, -1)
            self._waiting.pop(run.id, None)
        if after in (RunState.QUEUED, WAITING) and not was_executing:
            self._queue(event, run)
            run.lifted = False
        run.was_held = after == RunState.HELD or (run.was_held and after in RUN_ENDS)
        run.priority = event.data.get("priority", run.priority)
        if is_active and not was_active:
            self._count_active(run, 1)
        if is_executing and not was_executing:
            self.start_executing(event, run)
        if after == WAITING:
            run.wake_at = event.data.get("wake_at", 0)
            self._count_waiting(run, 1)
        run.state = after
        if after in RUN_ENDS or after == WAITING:
            self._ending.add(run.id)

    def _queue(self, event: Event, run: CheckedRun) -> None:
        data = event.data
        if run.state == NEW:
            run.data = {name: data[name] for name in _NEEDED_LATER if name in data}
            run.flow = intern(data.get("flow") or "")
            run.plan = self.plan(data.get("graph") or "")
            run.tags = data.get("tags") or {}
            run.key = data.get("key")
            run.kind = data.get("kind") or "flow"
            run.generation = data.get("generation", 0)
        else:
            run.data |= {name: data[name] for name in _NEEDED_LATER if name in data}
            generation = data.get("generation", run.generation + 1)
            if generation != run.generation:
                run.generation, run.undone = generation, None
        run.waits_for = data.get("waits_for")
        run.queued_at = run.queued_at if run.state == WAITING else event.at
        again = data.get("again")
        run.again = frozenset(again) if again else NOTHING
        if graph := run.data.get("graph"):
            run.data["graph"] = intern(graph)

    def apply_trace(self, event: Event, run: CheckedRun) -> None:
        run.plan = self.plan(event.after)
        run.data = {**run.data, "graph": event.after}

    def _count_waiting(self, run: CheckedRun, step: int) -> None:
        self.waiting += step
        if run.key is not None:
            enrol(self.active_keys, run.key, run.id, step)

    def _count_active(self, run: CheckedRun, step: int) -> None:
        if run.key is not None:
            enrol(self.active_keys, run.key, run.id, step)
        self.active += step
        self.most_active = max(self.most_active, self.active)
        if run.kind == "hold":
            self.active_holds += step
        for key, value in run.tags.items():
            add_to(self.active_tags, (key, None), step)
            add_to(self.active_tags, (key, value), step)

    # tasks

    def apply_task(self, event: Event, task: CheckedTask) -> None:
        run, before, after = task.run, task.state, event.after
        tally = run.nodes.get(task.node)
        if tally is None:
            tally = run.nodes[task.node] = UseCount()
        if before == NEW:
            run.tasks[task.id] = task
            run.places.setdefault((task.node, task.index), task)
            tally.last = max(tally.last, task.index)
            if after == TaskState.PENDING:
                tally.opened_at = event.at
        task.begun = task.begun or before == TaskState.RUNNING
        if after in HOLDING_TASKS:
            if not task.holds:
                self._take(event, task, tally)
        elif task.holds:
            self._release(task, tally)
        if after == TaskState.REQUESTED:
            task.request(event)
        elif after == TaskState.ABANDONED:
            task.abandons += 1
        elif before == TaskState.RUNNING and STANDING.get(after) == FAILED:
            task.tries += 1
            task.retryable = event.data.get("retryable", True)
        old = task.standing
        task.passed = after == TaskState.SKIPPED and bool(event.data.get("passed"))
        _stand(run, task, tally, old, after, unneeded=bool(event.data.get("unneeded")))
        task.state = after

    def _take(self, event: Event, task: CheckedTask, tally: UseCount) -> None:
        run, data = task.run, event.data
        task.holds = True
        task.token = event.token
        task.worker = data.get("worker") or ""
        task.pools = data.get("pools") or {}
        executor = data.get("executor")
        if executor is None:
            executor = task.plan.node.executor if task.plan is not None else ""
        task.executor = executor
        for pool, slots in task.pools.items():
            self.used[pool] = self.used.get(pool, 0) + slots
        run.in_flight += 1
        run.by_executor[executor] = run.by_executor.get(executor, 0) + 1
        tally.in_flight += 1
        worker = self.workers.get(task.worker)
        if worker is not None:
            worker.in_flight += 1
            worker.by_executor[executor] = worker.by_executor.get(executor, 0) + 1
        self.grants.append((event, task))

    def _release(self, task: CheckedTask, tally: UseCount) -> None:
        run, executor = task.run, task.executor
        task.holds = False
        for pool, slots in task.pools.items():
            self.used[pool] -= slots
            if not self.used[pool]:
                del self.used[pool]
        run.in_flight -= 1
        run.by_executor[executor] -= 1
        tally.in_flight -= 1
        worker = self.workers.get(task.worker)
        if worker is not None and worker.by_executor.get(executor):
            worker.in_flight -= 1
            worker.by_executor[executor] -= 1
        released = Released(run.id, task.node, executor, task.pools)
        self.released.append(released)
        if not self.commit.leader:
            self._given_back[-1].append(released)
            self._unheard.append((self.commit.at, released))

    # limits, workers, leaders

    def apply_limit(self, event: Event) -> None:
        self.unreadable = None
        try:
            self.in_force.apply(event)
        except (KeyError, ValueError, TypeError) as error:
            self.unreadable = str(error)

    def apply_worker(self, event: Event) -> None:
        data = event.data
        name = data.get("worker") or event.actor.partition(":")[2]
        worker = self.workers.get(name)
        if worker is None:
            worker = self.workers[name] = CheckedWorker(name)
            self.any_worker = True
        self._moved.append(worker)
        if event.after != "changed":
            self.workers_changed_at = event.at
        if event.after in {"stalled", "resumed"}:
            worker.stalled = event.after == "stalled"
        elif event.after in {"joined", "changed"}:
            if event.after == "changed":
                worker.earlier = worker.permits, worker.total
            else:
                worker.gone = worker.leaving = False
            worker.permits = data.get("permits", worker.permits)
            worker.total = data.get("total", worker.total)
            worker.labels = data.get("labels", worker.labels)
        else:
            worker.leaving = True

    def apply_clock(self, event: Event) -> None:
        """The store's clock was set: instants that were to come have moved with it."""
        self.clock_events.append(event)
        by_us = event.data.get("by_us") or 0
        self.clock_moved_us += by_us
        self.workers_changed_at += by_us
        self.clock_unknown += bool(event.data.get("about"))
        for run in self.runs.values():
            run.move_instants(by_us, about=bool(event.data.get("about")))

    def pause_of(self, run: CheckedRun) -> str:
        """What is paused that holds `run`; empty: nothing."""
        in_force = self.in_force
        if run.lifted or run.kind == "hold" or run.state == "cancelling":
            return ""
        if run.flow in in_force.flows:
            return f"flow {run.flow}"
        return "it" if in_force.runs and run.id in in_force.runs.values() else ""

    def start_term(self) -> None:
        """A leader finds out anew which limits are in force and which workers are stalled."""
        self.in_force.start_term()
        for worker in self.workers.values():
            worker.stalled = False

    def close(self) -> None:
        """A leader's commit has ended: what happened before it is known to the next."""
        self.grants.clear()
        self.starts.clear()
        self.returns.clear()
        self.waits.clear()
        self.released = [each for several in self._given_back for each in several]
        unheard_us = max(self.history.slack_us, self.history.unheard_us)
        while self._unheard and self._unheard[0][0] <= self.commit.at - unheard_us:
            self._unheard.popleft()
        known = set(map(id, self.released))
        self.released += [each for _, each in self._unheard if id(each) not in known]
        self._given_back.append([])
        for worker in self._moved:
            worker.earlier = None
            if worker.leaving and not worker.gone:
                worker.gone = True
                self._gone.append(worker)
        self._moved.clear()
        self._ended |= self._ending
        self._ending.clear()


def _stand(
    run: CheckedRun, task: CheckedTask, tally: UseCount, old: int, after: str, *, unneeded: bool
) -> None:
    pending = (after == _PENDING) - (task.state == _PENDING)
    run.pending += pending
    if not task.unexpanded:  # it is no item: `counts` leaves it out, too
        tally.pending += pending
    new = COMPLETED if task.passed else STANDING.get(after, -1)
    tally.unneeded = unneeded
    if old == new:
        return
    if new > OPEN:
        task.ended_in = run.generation
    run.open += (new == OPEN) - (old == OPEN)
    run.failed += (new == FAILED) - (old == FAILED)
    if task.unexpanded:
        # A retried run has no use for it where the map has items now, or has none to have.
        tally.unexpanded = new > OPEN and not unneeded
        return
    if old >= 0:
        tally.counts[old] -= 1
    if new >= 0:
        tally.counts[new] += 1
