"""A simulated engine: virtual clock, workers that take time, fail and die, leaders that change.

Everything is an entry of one heap, drawn from one seed: the same seed gives the same history.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from locktender.base.changes import End, TaskRow
from locktender.base.clock import SECOND
from locktender.base.commits import RunEvents
from locktender.base.events import NO_RUN, Change, Event
from locktender.base.graph import Graph
from locktender.base.ids import RunId, run_of
from locktender.base.model import RunRow, WorkerLife
from locktender.base.states import TERMINAL_RUNS, TaskState
from locktender.kernel.clock_jump import ClockWatch, move_instants, restore
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.lifecycle import Defaults
from locktender.kernel.liveness import LeaseWatch, set_stalled
from locktender.kernel.scheduler import Scheduler
from locktender.simulate import waits
from locktender.simulate.model import Behaviour, Model, SimBody, SimWorker, peak_use, queued_run

LEASE = 10 * SECOND
BEAT = 2 * SECOND
STALL_GRACE = 300 * SECOND


class SimWorld:
    def __init__(self, seed: int, behaviour: Behaviour, defaults: Defaults | None = None) -> None:
        self.random: random.Random = random.Random(seed)  # noqa: S311
        self.seed = seed
        self.behaviour = behaviour
        self.defaults: Defaults = defaults or Defaults()
        self.steady: int = 1_000_000 * SECOND
        """Time as it passes."""
        self.ahead: int = 0
        """How far the store's clock is ahead of that."""
        self.model: Model = Model()
        self.workers: dict[str, SimWorker] = {}
        self.bodies: list[SimBody] = []
        self.rejections: list[tuple[int, int, int]] = []
        self.scheduler: Scheduler | None = None
        self.peak_demand: int = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0
        self._seen = 0
        self._due: int | None = None
        self._rules_seen: object = None
        self._leaders = 0
        self._fed: set[int] = set()
        self._local_ends: list[End] = []
        self._watch = LeaseWatch(STALL_GRACE)
        self._clock_watch = ClockWatch()

    # -- time --------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The store's time."""
        return self.steady + self.ahead

    def jump_clock(self, by: int) -> None:
        self.ahead += by

    def at(self, delay: int, action: Callable[[], None]) -> None:
        self._serial += 1
        heappush(self._heap, (self.steady + max(0, delay), self._serial, action))

    def run(self, until: int | None = None, steps: int = 200_000) -> None:
        """Until all is done (or `until`); bounded, so that a livelock is found and not waited for."""
        while self._heap and steps:
            if until is not None and self._heap[0][0] > until:
                self.steady = until
                return
            self.steady, _, action = heappop(self._heap)
            action()
            steps -= 1
            if until is None and self.idle:
                return
        if not steps:
            raise AssertionError(f"seed {self.seed}: no end after 200,000 steps")

    @property
    def idle(self) -> bool:
        """Every run has ended and nothing else is planned but heart-beats."""
        return not self._planned and all(
            run.state in TERMINAL_RUNS for run in self.model.runs.values()
        )

    _planned = 0

    def plan(self, delay: int, action: Callable[[], None]) -> None:
        """Something of the scenario that has to happen before the world may be called idle."""
        self._planned += 1

        def act() -> None:
            self._planned -= 1
            action()

        self.at(delay, act)

    # -- clients -----------------------------------------------------------------------------------

    def submit(
        self,
        graph: Graph,
        *,
        params: bytes = b"{}",
        consts: bytes = b"[]",
        tags: dict[str, str] | None = None,
        priority: int = 0,
        key: str | None = None,
        deadline: int | None = None,
        queue_timeout: int | None = None,
        dispatch_deadline: int | None = None,
        delay: int = 0,
        scheduled: tuple[str, int] | None = None,
    ) -> RunRow | None:
        self.model.graphs[graph.flow] = graph
        row = queued_run(
            RunId(f"run-{len(self.model.runs) + 1}"),
            graph,
            params=params,
            consts=consts,
            tags=tags or {},
            priority=priority,
            key=key,
            deadline_at=None if deadline is None else self.now + deadline,
            queue_timeout_us=queue_timeout,
            dispatch_deadline_us=dispatch_deadline,
        )
        stored = self.model.submit(row, self.now, scheduled, delay)
        if stored is None:
            active, limit = self.model.active(), self.model.limits.max_active
            self.rejections.append((active, limit, self.model.seq))
        self.poke()
        return stored

    def send(
        self, run: int, name: str, payload: object = None, task: int = 0, **match: object
    ) -> None:
        """An event is sent: to a run, to the wait of one task of it, or to a topic (0)."""
        waits.send(self.model, run, name, self.now, payload, task, match)
        self.poke()

    def cancel(self, run: int) -> None:
        self.model.cancels.append(run)
        self.poke()

    def set_rule(self, kind: str, name: str, rule: object) -> None:
        self.model.set_rule(kind, name, rule)
        self.poke()

    # -- workers -----------------------------------------------------------------------------------

    def add_worker(
        self,
        name: str,
        permits: dict[str, int] | None = None,
        *,
        total: int = -1,
        local: bool = False,
        labels: dict[str, str] | None = None,
        proof: bool = False,
    ) -> SimWorker:
        """`proof`: the machine knows whether its process lives."""
        worker = SimWorker(name, local, permits or {"async": 100, "thread": 8, "process": 2}, total)
        worker.proof = "held" if proof else "none"
        self.workers[name] = worker
        self.model.workers[name] = worker.row(len(self.workers), labels or {}, self.now, LEASE)
        self._beat(worker)
        self.poke()
        return worker

    def _beat(self, worker: SimWorker) -> None:
        row = self.model.workers.get(worker.id)
        if worker.alive and not worker.stalled and row is not None and row.lease_until:
            self.model.workers[worker.id] = msgspec.structs.replace(
                row, lease_until=self.now + LEASE
            )
            self.at(BEAT, lambda: self._beat(worker))

    def stall_worker(self, name: str, lasts: int) -> None:
        """Its bodies go on; it renews nothing and obeys nothing until it is over."""
        self.workers[name].stalled = True
        self.plan(lasts, lambda: self._resume(self.workers[name]))

    def _resume(self, worker: SimWorker) -> None:
        """It asks first: if its row is there, it goes on, else it stops everything and joins as another."""
        worker.stalled = False
        if worker.alive and worker.id in self.model.workers:
            self._beat(worker)
            self._obey(worker)
        elif worker.alive:
            self.kill_worker(worker.id)
            self.add_worker(f"{worker.id}-again", worker.permits, total=worker.total)

    def kill_worker(self, name: str) -> None:
        """SIGKILL: its bodies end at once and nothing is written."""
        worker = self.workers[name]
        worker.alive = False
        worker.proof = "gone" if worker.proof == "held" else "none"
        for body in worker.running.values():
            body.end = self.steady
            body.state = "killed"
        worker.running.clear()
        if worker.local:
            self.kill_leader()
        self.at(LEASE + SECOND, self.poke)

    def drain_worker(self, name: str) -> None:
        """SIGTERM, and bodies that outlast the grace: the worker writes its drain list and ends."""
        row = self.model.workers.get(name)
        if row is not None:
            leaves = tuple((body.task, token) for token, body in self.workers[name].running.items())
            self.model.workers[name] = msgspec.structs.replace(row, leaves=leaves)
        self.kill_worker(name)

    def _start(self, worker: SimWorker, row: TaskRow, *, offered: bool = True) -> None:
        node = self.model.graphs[self.model.runs[run_of(row.id)].graph].nodes[row.node]
        pools = msgspec.json.decode(row.held or b"{}", type=dict[str, int])
        body = SimBody(row.id, row.token, worker.id, node, pools, self.steady, offered=offered)
        worker.running[row.token] = body
        self.bodies.append(body)
        took = max(1, self.behaviour.duration(self.random, node))
        fate = None if self.behaviour.fate is None else self.behaviour.fate(row, node)
        if fate is not None:
            self.at(took, lambda: self._end(worker, row, fate))
        elif node.timeout_us is not None and took > node.timeout_us:
            self.at(node.timeout_us, lambda: self._end(worker, row, TaskState.TIMED_OUT))
        elif self.random.random() < self.behaviour.failure:
            self.at(took, lambda: self._end(worker, row, TaskState.FAILED))
        else:
            self.at(took, lambda: self._end(worker, row, TaskState.COMPLETED))

    def _end(self, worker: SimWorker, row: TaskRow, state: TaskState) -> None:
        if worker.stalled:
            self.at(BEAT, lambda: self._end(worker, row, state))
            return
        body = worker.running.pop(row.token, None)
        if body is None or not worker.alive:
            return
        body.end = self.steady
        body.state = state
        output, error = self.behaviour.result(row, body.node, state)
        if not body.offered and self.scheduler is not None:
            self._local_ends.append(End(row.id, row.token, state, output, error))
        else:
            self.model.finish(worker.id, row.id, row.token, state, self.now, output, error)
        self.poke()

    def _obey(self, worker: SimWorker) -> None:
        """A worker reads its orders."""
        if not worker.alive or worker.deaf or worker.stalled:
            return
        for order in [each for key, each in self.model.orders.items() if key[0] == worker.id]:
            if order.kind == "stop":
                self._stop(worker, order.task, order.token)
            elif self.model.accept(worker.id, order.task, order.token, self.now):
                self._start(worker, self.model.tasks[order.task])
        self.poke()

    def _stop(self, worker: SimWorker, task: int, token: int) -> None:
        body = worker.running.get(token)
        if body is not None:
            self._end(worker, self.model.tasks[task], TaskState.CANCELLED)

    # -- the leader --------------------------------------------------------------------------------

    def lead(self) -> None:
        """A leader takes over and rebuilds its ledger from rows."""
        model = self.model
        self.kill_leader()
        model.term += 1
        self._leaders += 1
        scheduler = Scheduler(
            model.limits, model.term, f"leader-{self._leaders}", self.defaults, self.seed
        )
        elected = Change("leader", 0, "", scheduler.owner)
        model.log(
            self.now, scheduler.commit_builder.actor, [RunEvents(NO_RUN, [elected])], model.term
        )
        scheduler.graphs = model.graphs
        scheduler.begin(list(model.rules.values()))
        self._rules_seen = dict(model.rules)
        self._seen = len(model.events)
        self._fed = set()
        local = next((each.id for each in self.workers.values() if each.local and each.alive), None)
        executing, rows = model.executing()
        for _ in restore(
            scheduler,
            executing,
            rows,
            list(model.workers.values()),
            model.stored_buckets(),
            self.now,
            local,
            model.lingers,
            model.unplaced,
            waits.kept_places(model),
        ):
            pass
        self.scheduler = scheduler
        self._watch, self._clock_watch = LeaseWatch(STALL_GRACE), ClockWatch()
        self._due = None
        self.poke()
        self._sweep(scheduler)

    def kill_leader(self) -> None:
        """Its term ends. Ends that were to go with its next commit are written by the worker itself."""
        self.scheduler = None
        self._due = None
        ends, self._local_ends = self._local_ends, []
        for task, token, state, output, error, *_ in ends:
            worker = self.model.tasks[task].worker or ""
            if self.workers[worker].alive:
                self.model.finish(worker, task, token, state, self.now, output, error)

    def poke(self) -> None:
        """Wakes the leader: its cycle runs after the latency of one message."""
        self._wake_at(self.now + self.behaviour.latency)

    def _wake_at(self, when: int) -> None:
        if self.scheduler is not None and (self._due is None or when < self._due):
            self._due = when
            scheduler = self.scheduler
            self.at(when - self.now, lambda: self._cycle(scheduler, when))

    def _sweep(self, scheduler: Scheduler) -> None:
        if self.scheduler is not scheduler:
            return
        self._expire(scheduler)
        self.peak_demand = max(self.peak_demand, scheduler.sweep(self.now).total)
        # As the leader does, at the same instant: what the sweep found is written when it is decided.
        self._wake_at(self.now)
        self.at(SECOND, lambda: self._sweep(scheduler))

    def _expire(self, scheduler: Scheduler) -> None:
        builder = scheduler.commit_builder
        lives = [
            WorkerLife(row.id, row.lease_until, LEASE, self.workers[row.id].proof)
            for row in self.model.workers.values()
        ]
        judged = self._watch.judge(lives, self.now, self.steady)
        cycle = builder.next_cycle() if judged.dead else 0
        lost = self.model.expire(judged.dead, self.now, builder.actor, self.model.term, cycle)
        for each in lost:
            scheduler.worker_lost(
                each.worker,
                each.reason,
                each.abandoned,
                each.withdrawn,
                self.now,
                handed_back=each.handed_back,
            )
        set_stalled(scheduler, judged.stalled, self.now)

    def _cycle(self, scheduler: Scheduler, when: int) -> None:
        if self.scheduler is not scheduler or self._due != when:
            return
        self._due = None
        if jump := self._clock_watch.observe(self.now, self.steady, self.steady):
            move_instants(scheduler, jump)
        self._fed -= waits.wake(scheduler, self.model, self.now)
        self._gather(scheduler)
        cycle = scheduler.cycle(self.now)
        if not self.model.commit(cycle.commit):
            raise AssertionError("a leader wrote after its term")
        self._act(scheduler, cycle)
        lifecycle = scheduler.lifecycle
        if cycle.unfinished or lifecycle.mail.wanted or lifecycle.cache.wanted:
            self.poke()
        if (wake_at := waits.next_wake(self.model, cycle.next_wake)) is not None:
            self._wake_at(max(wake_at, self.now + 1))

    def _gather(self, scheduler: Scheduler) -> None:
        model = self.model
        ends, self._local_ends = self._local_ends, []
        for end in ends:
            scheduler.ended(end, self.now, local=True)
        if self._rules_seen != model.rules:
            self._rules_seen = dict(model.rules)
            scheduler.set_limits(model.limits, list(model.rules.values()), self.now)
        fresh, self._seen = model.events[self._seen :], len(model.events)
        for event in fresh:
            if event.subject == "task" and event.actor.startswith("worker:"):
                self._apply_event(scheduler, event)
        for worker in model.workers.values():
            known = scheduler.ledger.workers.by_id.get(worker.id)
            if known is None or known.row != worker:
                scheduler.put_worker(worker, local=self.workers[worker.id].local)
        waits.cancel_asked(scheduler, model, self.now)
        waits.put_heads(scheduler, model, self._fed)
        waits.deliver(scheduler, model, fresh, self.now)

    def _apply_event(self, scheduler: Scheduler, event: Event) -> None:
        if event.after == TaskState.RUNNING:
            scheduler.accepted(event.task, event.token, event.at)
            return
        row = self.model.tasks[event.task]
        end = End(event.task, event.token, event.after, row.output, row.error)
        scheduler.ended(end, self.now, local=False, at=event.at)

    def _act(self, scheduler: Scheduler, cycle: Cycle) -> None:
        for entry in cycle.starts:
            worker = self.workers[entry.worker or ""]
            if worker.alive:
                self._start(worker, self.model.tasks[entry.id], offered=False)
        for task, token, _ in cycle.stops:
            for worker in self.workers.values():
                if worker.local and worker.alive:
                    self._stop(worker, task, token)
        for to in (TaskState.REQUESTED, TaskState.CANCELLED):
            wanted = [(task, token) for task, token, target in cycle.withdrawals if target == to]
            if wanted:
                done = self.model.withdraw(
                    wanted,
                    to,
                    self.now,
                    scheduler.commit_builder.actor,
                    scheduler.term,
                    scheduler.commit_builder.next_cycle(),
                )
                scheduler.withdrawn(done, to, self.now)
                self._wake_at(self.now)
        for name in sorted({order.worker for order in cycle.commit.orders}):
            worker = self.workers[name]
            self.at(self.behaviour.latency, lambda worker=worker: self._obey(worker))

    # -- what was seen -----------------------------------------------------------------------------

    def peak(self, of: Callable[[SimBody], int]) -> int:
        """The most of anything in use at one instant, measured from the bodies' own records."""
        return peak_use(self.bodies, of, self.steady)
