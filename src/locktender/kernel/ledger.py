"""The ledger: what every active task and run holds, and where each one waits.

A deterministic state machine; rebuilt from rows it makes the same decisions
(fair turns and bypass counts start again). It holds one entry per executing
run and per open task, and a few heads of each queue lane, never the backlog.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush

from locktender.base.changes import Bucket, Linger, Order
from locktender.base.clock import SECOND
from locktender.base.graph import starts_in_order
from locktender.base.limits import Limits, PoolRule
from locktender.base.model import WorkerRow
from locktender.base.states import TaskState
from locktender.kernel import lanes
from locktender.kernel.admission import AdmissionQueue
from locktender.kernel.entries import QueuedRun, RunEntry, TaskEntry
from locktender.kernel.estimates import Holds
from locktender.kernel.gates import SLOT_GATES
from locktender.kernel.gates.pool import PoolGate
from locktender.kernel.gates.protocol import Lane, SlotGate
from locktender.kernel.gates.worker import Requirement, WorkerGate
from locktender.kernel.placement import Worker, WorkerSet
from locktender.kernel.run_ledger import RunLedger
from locktender.kernel.wait_times import waits_of


def _in_line_since(task: TaskEntry) -> int:
    """By which it stands in line: an item asked for late is as old as its map, until it has begun once."""
    opened = 0 if task.attempt else task.run.opened.get(task.node, 0)
    return opened or task.requested_at


class Ledger(RunLedger):
    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.workers: WorkerSet = WorkerSet(limits.placement)
        self.task_queue: AdmissionQueue[TaskEntry] = AdmissionQueue()
        self.slot_gates: dict[str, tuple[SlotGate, ...]] = {}
        """Pool → its gates: the pool's own, and those that its rule asks for beside it."""
        self.offers: dict[int, TaskEntry] = {}
        """Tasks that are offered, by id, the oldest first."""
        self.look_at: dict[int, RunEntry] = {}
        """Runs that may have to give their place back: something of theirs changed."""
        self.holds: Holds = Holds()
        """How long attempts lasted, for estimates."""
        self.lingering: dict[tuple[int, int, str], tuple[int, int, str]] = {}
        """(task, token, pool) → (slots, until, worker): slots of dead holders whose pool has a longer lease."""
        self.lingering_changed: bool = False
        self._rank = (0, 0)
        """The last that was given, to tasks of this run that were requested then, in this cycle."""
        self._ranked: tuple[RunEntry | None, int, int] = None, 0, 0
        self.moved_us: int = 0
        """How far the store's clock was set in this term."""
        self._apply_common(limits)

    # -- limits ------------------------------------------------------------------------------------

    def set_limits(self, limits: Limits, now: int = 0) -> list[Bucket]:
        """In force from now on. Running work stays charged; nothing new starts above a lowered limit.

        Returns the stored state of gates that changed with their rule.
        """
        before = self.limits
        self.now: int = now or self.now
        self.limits: Limits = limits
        self._apply_common(limits)
        buckets = self._apply_pools(limits, now)
        if limits.fair != before.fair or limits.age_boost_us != before.age_boost_us:
            self._rerank_tasks()
        tags_changed = limits.tags != before.tags
        if tags_changed:
            self._recount_tags()
        paused = limits.paused_runs.keys() ^ before.paused_runs.keys()
        stopped = limits.runs_paused != before.runs_paused
        if lanes.rules(limits) != lanes.rules(before) or paused or stopped:
            self._requeue_heads()
        self.run_queue.opened(self.run_gate)
        return buckets

    def _apply_pools(self, limits: Limits, now: int) -> list[Bucket]:
        stored: list[Bucket | None] = []
        changed: set[str] = set()
        for name, gates in self.slot_gates.items():
            rule = limits.pool(name) or PoolRule()
            known = {type(gate): gate for gate in gates}
            for gate in gates:
                was_paused = gate.paused
                if gate.apply(rule, now):
                    stored.append(gate.dump())
                self.task_queue.opened(gate)
                if gate.paused != was_paused:
                    changed.add(name)
            wanted = [kind for kind in SLOT_GATES if kind.wanted(rule)]
            if wanted == list(known):
                continue
            changed.add(name)
            for gate in gates:
                if type(gate) not in wanted:
                    gate.restore(Bucket(name, 0))
                    stored.append(gate.dump())
            self.slot_gates[name] = tuple(known.get(kind) or kind(name, rule) for kind in wanted)
        if changed:
            self._set_lanes_needs(changed)
        return [bucket for bucket in stored if bucket is not None]

    def _set_lanes_needs(self, changed: set[str]) -> None:
        """Lanes of these pools are looked at again: they have other gates, or wait for another reason."""
        for lane in list(self.task_queue.lanes.values()):
            if any(gate.name in changed for gate, _ in lane.slots):
                pools = tuple((gate.name, slots) for gate, slots in lane.slots)
                self.task_queue.set_needs(lane, self._needs(pools))
        for run in self.runs.values():
            run.lanes.clear()

    def _needs(self, pools: tuple[tuple[str, int], ...]) -> tuple[tuple[SlotGate, int], ...]:
        return tuple((gate, slots) for name, slots in pools for gate in self.gates_of(name))

    def _apply_common(self, limits: Limits) -> None:
        self.run_gate.set(limits.max_concurrent_runs, paused=limits.runs_paused)
        self.workers.placement = limits.placement
        for queue in (self.run_queue, self.task_queue):
            queue.turns.set(limits.fair)
            queue.max_bypass = limits.max_bypass

    def _rerank_tasks(self) -> None:
        self._ranked = None, 0, 0
        waiting = [
            task for run in self.runs.values() for task in run.tasks.values() if task.in_line
        ]
        for task in waiting:
            self.withdraw_request(task)
        for run in self.runs.values():
            run.fair = self.fair_value(run.row)
            run.lanes.clear()
        for task in waiting:
            self._line_up(task)

    def _recount_tags(self) -> None:
        self.tag_gates.clear()
        for run in self.runs.values():
            if run.row.kind == "flow":
                run.gates = self.run_gates(run.row)
                charged = run.gates if run.placed else self.kept_gates(run.row.tags, run.keeps)
                for gate in charged:
                    if gate is not self.run_gate:
                        gate.used += 1
        self.keep_places(list(self.kept.values()))

    def _requeue_heads(self) -> None:
        heads = list(self.heads.values())
        heads += [run.returning for run in self.unplaced.values() if run.returning is not None]
        lined_up = [head for head in heads if head.lane is not None]
        for head in lined_up:
            if head.lane is not None:
                head.waits = waits_of(head, head.lane, self.now)
                self.run_queue.remove(head, head.lane)
        for head in heads:
            head.rank = lanes.rank(self.limits, head.row.priority, head.row.queued_at)
        for head in lined_up:
            self.line_up_run(head)

    # -- tasks -------------------------------------------------------------------------------------

    def gates_of(self, pool: str) -> tuple[SlotGate, ...]:
        gates = self.slot_gates.get(pool)
        if gates is None:
            rule = self.limits.pool(pool) or PoolRule()
            gates = tuple(kind(pool, rule) for kind in SLOT_GATES if kind.wanted(rule))
            self.slot_gates[pool] = gates
        return gates

    def pool(self, name: str) -> PoolGate:
        pool = self.gates_of(name)[0]
        assert isinstance(pool, PoolGate)  # noqa: S101
        return pool

    def enter(self, task: TaskEntry) -> None:
        """`task` exists and is not terminal."""
        run = task.run
        run.tasks[task.id] = task
        if run.some_in_order and starts_in_order(run.graph, task.spec):
            heappush(run.files.setdefault(task.node, []), task.id)

    def request(self, task: TaskEntry) -> None:
        """`task` is ready and stands at its gates. Back-off is the caller's: call when it is over."""
        # In a sequential flow an item stands aside until the one before it is terminal, retries included.
        if not task.run.files or self.turn_of(task) is task:
            self._line_up(task)

    def rank_of(self, task: TaskEntry) -> tuple[int, int]:
        """Where it stands in line: tasks that wait already keep their ranks when the store's clock is set."""
        at = _in_line_since(task)
        if at > self.now + SECOND:
            # Of a row that is older than a clock set back: it stands before all that come from now on.
            at = self.now
        return lanes.rank(self.limits, task.run.row.priority, at - self.moved_us)

    def turn_of(self, task: TaskEntry) -> TaskEntry:
        """`task` itself, or the earlier item of its sequential map that has to end first."""
        return task.run.first_in_file(task.node) or task

    def _line_up(self, task: TaskEntry) -> None:
        run = task.run
        ranked, at, now = self._ranked
        since = _in_line_since(task) if run.opened else task.requested_at
        if run is not ranked or at != since or now != self.now:
            self._ranked = run, since, self.now
            rank = self.rank_of(task)
            # One object for all that are asked for at once: their lane compares them faster.
            self._rank = self._rank if rank == self._rank else rank
        task.rank = self._rank
        task.lane = self.lane_of(run, task.node, task.pools)
        task.mark, task.joined = task.lane.clock, self.now
        if self.workers.some_unfit or run.paused:
            self.look_at[run.seq] = run
        if run.paused or (not run.placed and self._waits_for_place(run, task.lane)):
            return
        self.task_queue.add(task, task.lane)
        run.waiting[task.node] = run.waiting.get(task.node, 0) + 1

    def return_run(self, run: RunEntry) -> None:
        """A worker fits it now: it stands at its gates, and its tasks nowhere until it has passed them."""
        row = run.row
        run.returning = QueuedRun(row, lanes.rank(self.limits, row.priority, row.queued_at), run)
        for task in run.tasks.values():
            if task.in_line:
                self.withdraw_request(task)
        self.line_up_run(run.returning)

    def _waits_for_place(self, run: RunEntry, lane: Lane[TaskEntry]) -> bool:
        """Whether a task of a run without a place must stay out of the queue, because a worker could start it."""
        gate = lane.worker_gate
        if run.returning is None and not (isinstance(gate, WorkerGate) and gate.unfit):
            self.return_run(run)
        return run.returning is not None

    def lane_of(
        self, run: RunEntry, node: int, pools: tuple[tuple[str, int], ...]
    ) -> Lane[TaskEntry]:
        lane = run.lanes.get((node, pools))
        if lane is not None and self.task_queue.lanes.get(lane.key) in (lane, None):
            return lane
        spec = run.graph.nodes[node]
        requirement = Requirement.of(spec)
        window = run.windows.get(node)
        # Without gates of its own a run shares its lanes with all runs that need the same.
        own = run.seq if run.own_gates or window is not None else 0
        key = (own, node if window is not None else -1, requirement, pools, run.fair)
        lane = self.task_queue.lanes.get(key)
        if lane is None:
            gates = [window] if window is not None else []
            if run.parallel is not None:
                gates.append(run.parallel)
            if spec.executor in run.by_executor:
                gates.append(run.by_executor[spec.executor])
            # Not `Lane[TaskEntry](…)`: that costs as much again, and where turns are shared a lane is soon empty.
            made: Lane[TaskEntry] = Lane(
                key,
                tuple(gates),
                self._needs(pools) if pools else (),
                self.workers.gate(requirement),
                run.fair,
            )
            lane = made
        run.lanes[node, pools] = lane
        return lane

    def decide_tasks(self, now: int, budget: int) -> Iterator[tuple[TaskEntry, Worker, bool]]:
        """Tasks that start now, their worker, and whether they are offered to it; in global order.

        Everything is charged. The leader's own worker is offered nothing while it is the only one.
        """
        for gate in self.workers.reopened():
            self.task_queue.opened(gate)
        only = len(self.workers.by_id) == 1
        for task, worker in self.task_queue.decide(now, budget, self._place):
            assert isinstance(worker, Worker)  # noqa: S101
            offered = not worker.local or not (
                only or self.workers.alone(worker, self._requirement(task.lane))
            )
            self.workers.claim_permit(worker, task.spec.executor, offered=offered)
            if offered:
                self.offers[task.id] = task
            task.run.in_flight += 1
            task.run.waiting[task.node] -= 1
            if task.pools:
                self._note_holder(task, 1)
            if worker.unanswered:
                worker.trial = task.id
            if task.spec.affinity is not None:
                self.workers.prefer(task.spec.affinity, worker.id)
            yield task, worker, offered

    def _note_holder(self, task: TaskEntry, sign: int) -> None:
        """Its run holds its slots, or does not any more: for `why` and `blame`."""
        run = task.run.seq
        for gate, slots in task.lane.slots if task.lane is not None else ():
            if gate.parked:
                self.wait_book.touched[gate] = None
            left = gate.holders.get(run, 0) + sign * slots
            if left > 0:
                gate.holders[run] = left
            else:
                gate.holders.pop(run, None)

    def _place(self, lane: Lane[TaskEntry], task: TaskEntry) -> Worker | None:
        affinity, gate = task.spec.affinity, lane.worker_gate
        assert isinstance(gate, WorkerGate)  # noqa: S101
        prefer = None if affinity is None else self.workers.preferred(affinity)
        return self.workers.pick(gate.requirement, prefer)

    def _requirement(self, lane: Lane[TaskEntry] | None) -> Requirement:
        assert lane is not None  # noqa: S101
        assert isinstance(lane.worker_gate, WorkerGate)  # noqa: S101
        return lane.worker_gate.requirement

    def hold(self, task: TaskEntry) -> None:
        """A task found in flight at a rebuild: charge what its row says it holds, whatever the limits are now."""
        task.rank = self.rank_of(task)
        task.lane = self.lane_of(task.run, task.node, task.pools)
        task.run.in_flight += 1
        for gate in task.lane.gates:
            gate.used += 1
        for gate, slots in task.lane.slots:
            gate.used += slots
        self._note_holder(task, 1)
        if task.state == TaskState.SCHEDULED:
            self.offers[task.id] = task
        worker = self.workers.by_id.get(task.worker or "")
        if worker is not None:
            self.workers.claim_permit(
                worker, task.spec.executor, offered=task.state == TaskState.SCHEDULED
            )
            if worker.unanswered and task.state == TaskState.SCHEDULED:
                worker.trial = task.id
            if task.spec.affinity is not None:
                self.workers.prefer(task.spec.affinity, worker.id)

    def accepted(self, task: TaskEntry) -> None:
        self.offers.pop(task.id, None)
        self.workers.answered(task.worker or "")

    def unanswered_offers(self, before: int) -> list[Order]:
        """Offers made before that instant that have no known answer."""
        return [
            Order(task.worker, task.id, task.token, "offer")
            for task in self.offers.values()
            if task.worker is not None and task.scheduled_at <= before
        ]

    def release(self, task: TaskEntry, ended_at: int = 0) -> None:
        """`task` is no longer in flight: everything it held is free, exactly once.

        `ended_at`: when its body ended; 0: it did not, or nobody knows.
        """
        assert task.lane is not None  # noqa: S101
        if ended_at:
            self.holds.record(task.spec.step, ended_at - task.scheduled_at)
        self._release(task, task.lane, task.lane.slots)

    def release_lost(self, task: TaskEntry, dead_since: int, now: int) -> list[int]:
        """Its worker died. Slots of a pool with a lease of its own stay taken until `dead_since` plus that.

        Returns the instants at which `end_lingering` has something to do.
        """
        assert task.lane is not None  # noqa: S101
        free: list[tuple[SlotGate, int]] = []
        ends: list[int] = []
        for pool, slots in task.lane.slots:
            lease_us = pool.lease_us if isinstance(pool, PoolGate) else None
            until = dead_since + (lease_us or 0)
            if lease_us is None or until <= now:
                free.append((pool, slots))
                continue
            # By attempt: the next one may die too while the slots of this one are still kept.
            self.lingering[task.id, task.token, pool.name] = (slots, until, task.worker or "")
            self.lingering_changed = True
            ends.append(until)
        self._release(task, task.lane, tuple(free))
        return ends

    def _release(
        self, task: TaskEntry, lane: Lane[TaskEntry], slots: tuple[tuple[SlotGate, int], ...]
    ) -> None:
        self.task_queue.release(lane.gates, slots)
        task.run.in_flight -= 1
        if task.pools:
            self._note_holder(task, -1)
        if self.workers.some_unfit or task.run.paused:
            self.look_at[task.run.seq] = task.run
        if task.worker is not None:
            offered = task.state == TaskState.SCHEDULED
            if offered:
                self.offers.pop(task.id, None)
            self.workers.give_back(task.worker, task.spec.executor, offered=offered)

    def linger(self, linger: Linger) -> None:
        """Slots of a dead attempt that were still kept when the last leader's term ended."""
        held = (linger.task, linger.token, linger.pool)
        self.lingering[held] = (linger.slots, linger.until, linger.worker)
        self.pool(linger.pool).used += linger.slots

    def end_lingering(self, task: int, now: int) -> None:
        """Slots of `task`'s dead attempts whose own lease has passed are free now."""
        for held, (slots, until, _) in list(self.lingering.items()):
            if held[0] == task and until <= now:
                del self.lingering[held]
                self.lingering_changed = True
                self.task_queue.release((), ((self.pool(held[2]), slots),))

    def withdraw_request(self, task: TaskEntry) -> None:
        """A waiting task leaves its line (cancelled, skipped, timed out)."""
        if task.lane is not None:
            if task.in_line:
                task.waits = waits_of(task, task.lane, self.now)
                task.run.waiting[task.node] -= 1
            self.task_queue.remove(task, task.lane)

    def forget(self, task: TaskEntry) -> None:
        """`task` is terminal."""
        run = task.run
        run.tasks.pop(task.id, None)
        if self.workers.some_unfit:
            self.look_at[run.seq] = run
        following = run.first_in_file(task.node) if run.files else None
        if following is not None and following.aside:
            self._line_up(following)

    # -- workers -----------------------------------------------------------------------------------

    def end_pauses(self, now: int) -> None:
        """Workers that were passed over for long enough are offered one task again."""
        for worker in self.workers.by_id.values():
            if worker.passed_over and worker.asked_again_at <= now:
                worker.passed_over = False
                for gate in self.workers.waiting_for(worker, None):
                    self.task_queue.opened(gate)

    def put_worker(self, row: WorkerRow, *, local: bool = False) -> Worker:
        worker = self.workers.put(row, local=local)
        for gate in self.workers.waiting_for(worker, None):
            self.task_queue.opened(gate)
        return worker
