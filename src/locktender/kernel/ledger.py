"""The ledger: who holds what and who waits where, of all active work.

A deterministic state machine fed by the conductor; rebuilt from rows it gives
the same decisions (fair turns and bypass counts start anew). It holds one
entry per executing run and per task that waits or runs, and a few heads of
each lane of the queue: never the backlog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappush

import msgspec

from locktender.base.changes import Linger
from locktender.base.graph import Graph
from locktender.base.limits import Limits, TagRule
from locktender.base.model import RunRow, WorkerRow
from locktender.base.states import TaskState
from locktender.kernel import lanes
from locktender.kernel.admission import AdmissionQueue
from locktender.kernel.entries import QueuedRun, RunEntry, TaskEntry
from locktender.kernel.gates import Gate, Key, Lane, PoolGate
from locktender.kernel.placement import Requirement, Worker, WorkerGate, WorkerSet

MOST_POOLS = 10_000


class Ledger:
    def __init__(self, limits: Limits) -> None:
        self.limits: Limits = limits
        self.floor: WorkerSet = WorkerSet(limits.placement)
        self.queue: AdmissionQueue[QueuedRun] = AdmissionQueue()
        self.board: AdmissionQueue[TaskEntry] = AdmissionQueue()
        self.run_gate: Gate = Gate("runs", "max_concurrent_runs", limits.max_concurrent_runs)
        self.tag_gates: dict[str, Gate] = {}
        self.pools: dict[str, PoolGate] = {}
        self.runs: dict[int, RunEntry] = {}
        self.heads: dict[int, QueuedRun] = {}
        self.held_back: dict[int, list[QueuedRun]] = {}
        """Runs that wait for the run they replace to end, by that run."""
        self.lingering: dict[tuple[int, int, str], tuple[int, int, str]] = {}
        """(task, token, pool) → (slots, until, worker): slots of dead holders whose pool has a longer lease."""
        self.lingering_changed: bool = False
        self._apply_common(limits)

    # -- limits ------------------------------------------------------------------------------------

    def set_limits(self, limits: Limits, now: int = 0) -> list[PoolGate]:
        """In force from now on. Whoever is charged stays charged; nothing new starts above a lowered limit.

        Returns the pools whose rate changed: their buckets are to be stored anew.
        """
        before, self.limits = self.limits, limits
        self._apply_common(limits)
        rated: list[PoolGate] = []
        for name, pool in self.pools.items():
            if pool.apply(limits.pool(name), now):
                rated.append(pool)
            self.board.opened(pool)
        if limits.fair != before.fair or limits.age_boost_us != before.age_boost_us:
            self._rerank_tasks()
        tags_changed = limits.tags != before.tags
        if tags_changed:
            self._recount_tags()
        if tags_changed or limits.fair != before.fair or limits.age_boost_us != before.age_boost_us:
            self._requeue_heads()
        self.queue.opened(self.run_gate)
        return rated

    def _apply_common(self, limits: Limits) -> None:
        self.run_gate.set(limits.max_concurrent_runs, paused=limits.runs_paused)
        self.floor.placement = limits.placement
        for board in (self.queue, self.board):
            board.turns.set(limits.fair)
            board.max_bypass = limits.max_bypass

    def _rerank_tasks(self) -> None:
        waiting = [
            task for run in self.runs.values() for task in run.tasks.values() if task.in_line
        ]
        for task in waiting:
            self.withdraw_request(task)
        for run in self.runs.values():
            run.fair = self._fair(run.row)
            run.lanes.clear()
        for task in waiting:
            self._line_up(task)

    def _recount_tags(self) -> None:
        self.tag_gates = {}
        for run in self.runs.values():
            if run.row.kind == "flow":
                run.gates = self.run_gates(run.row)
                for gate in run.gates:
                    if gate is not self.run_gate:
                        gate.used += 1

    def _requeue_heads(self) -> None:
        lined_up = [head for head in self.heads.values() if head.lane is not None]
        for head in lined_up:
            if head.lane is not None:
                self.queue.remove(head, head.lane)
        for head in self.heads.values():
            head.rank = lanes.rank(self.limits, head.row.priority, head.row.queued_at)
        for head in lined_up:
            self._line_up_run(head)

    # -- runs --------------------------------------------------------------------------------------

    def put_head(self, row: RunRow) -> None:
        """A queued run that stands at the head of its lane."""
        known = self.heads.get(row.seq)
        if known is not None:
            if known.row.priority == row.priority:
                return
            self.drop_head(row.seq)
        head = QueuedRun(row, lanes.rank(self.limits, row.priority, row.queued_at))
        self.heads[row.seq] = head
        if row.waits_for is not None:
            self.held_back.setdefault(row.waits_for, []).append(head)
        else:
            self._line_up_run(head)

    def drop_head(self, run: int) -> None:
        head = self.heads.pop(run, None)
        if head is None:
            return
        if head.lane is not None:
            self.queue.remove(head, head.lane)
        elif head.row.waits_for is not None:
            waiting = self.held_back.get(head.row.waits_for, [])
            if head in waiting:
                waiting.remove(head)

    def _line_up_run(self, head: QueuedRun) -> None:
        row = head.row
        key = ("hold",) if row.kind == "hold" else lanes.signature(self.limits, row.tags)
        lane = self.queue.lanes.get(key)
        if lane is None:
            # A hold passes the queue at once: it is nobody's turn there.
            fair = None if row.kind == "hold" else self._fair(row)
            gates = self.run_gates(row)
            made: Lane[QueuedRun] = Lane(key, gates, fair=fair)
            lane = made
        head.lane = lane
        self.queue.add(head, lane)

    def run_gates(self, row: RunRow) -> tuple[Gate, ...]:
        """Every gate a queued run passes before it starts; holds of slots pass none."""
        if row.kind == "hold":
            return ()
        gates = [self.run_gate]
        for rule in self.limits.tags:
            counter = rule.counter(row.tags)
            if counter is not None and (rule.limit >= 0 or rule.paused):
                gates.append(self._tag_gate(rule, counter))
        return tuple(gates)

    def _tag_gate(self, rule: TagRule, counter: str) -> Gate:
        gate = self.tag_gates.get(counter)
        if gate is None:
            gate = self.tag_gates[counter] = Gate("tag", counter, rule.limit)
        gate.set(rule.limit, paused=rule.paused)
        return gate

    def _fair(self, row: RunRow) -> str | None:
        fair = self.limits.fair
        return None if fair is None else row.tags.get(fair.key, "")

    def decide_runs(self, now: int, budget: int) -> Iterator[QueuedRun]:
        """Queued runs that start now, charged at the run gates, in order."""
        for head, _ in self.queue.decide(now, budget):
            del self.heads[head.id]
            yield head

    def add_run(self, row: RunRow, graph: Graph, *, charged: bool) -> RunEntry:
        """An executing run; `charged` where `decide_runs` has charged its gates already."""
        run = self.runs[row.seq] = RunEntry(row, graph)
        run.fair = self._fair(row)
        if row.kind == "flow":
            run.gates = self.run_gates(row)
            if not charged:
                for gate in run.gates:
                    gate.used += 1
        return run

    def end_run(self, seq: int) -> None:
        run = self.runs.pop(seq, None)
        if run is not None:
            self.queue.release(run.gates, ())
            if len(self.tag_gates) > 2 * (len(self.runs) + len(self.queue.lanes)) + 1_000:
                self._forget_tag_gates()
        self.ended(seq)

    def _forget_tag_gates(self) -> None:
        """Gates of tag values that are gone; never one that a lane or a run still points to."""
        used = {gate.name for run in self.runs.values() for gate in run.gates}
        used |= {gate.name for lane in self.queue.lanes.values() for gate in lane.gates}
        for name in [name for name in self.tag_gates if name not in used]:
            del self.tag_gates[name]

    def ended(self, seq: int, behind: int | None = None) -> None:
        """Whoever waited to replace this run may be looked at now, or waits for the one it stood `behind`."""
        for head in self.held_back.pop(seq, ()):
            if behind is None:
                self._line_up_run(head)
            else:
                head.row = msgspec.structs.replace(head.row, waits_for=behind)
                self.held_back.setdefault(behind, []).append(head)

    # -- tasks -------------------------------------------------------------------------------------

    def pool(self, name: str) -> PoolGate:
        gate = self.pools.get(name)
        if gate is None:
            gate = self.pools[name] = PoolGate(name, self.limits.pool(name))
        return gate

    def enter(self, task: TaskEntry) -> None:
        """`task` exists and is not terminal."""
        run = task.run
        run.tasks[task.id] = task
        if run.graph.sequential and task.spec.over is not None:
            heappush(run.files.setdefault(task.node, []), task.id)

    def request(self, task: TaskEntry) -> None:
        """`task` is ready and stands at its gates. Back-off is the caller's: call when it is over."""
        # In a sequential flow an item stands aside until the one before it is terminal, retries included.
        if self.turn_of(task) is task:
            self._line_up(task)

    def turn_of(self, task: TaskEntry) -> TaskEntry:
        """`task` itself, or the earlier item of its sequential map that has to end first."""
        return task.run.first_in_file(task.node) or task

    def _line_up(self, task: TaskEntry) -> None:
        task.rank = lanes.rank(self.limits, task.run.row.priority, task.requested_at)
        task.lane = self.lane_of(task.run, task.node, task.pools)
        self.board.add(task, task.lane)

    def lane_of(
        self, run: RunEntry, node: int, pools: tuple[tuple[str, int], ...]
    ) -> Lane[TaskEntry]:
        lane = run.lanes.get((node, pools))
        if lane is not None and self.board.lanes.get(lane.key) in (lane, None):
            return lane
        spec = run.graph.nodes[node]
        skill = Requirement(
            spec.executor, spec.step, spec.signature, tuple(sorted(spec.needs.items()))
        )
        window = run.windows.get(node)
        # Without gates of its own a run shares its lanes with all runs that need the same.
        own = run.seq if run.own_gates or window is not None else 0
        key = (own, node if window is not None else -1, skill, pools, run.fair)
        lane = self.board.lanes.get(key)
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
                tuple((self.pool(name), slots) for name, slots in pools),
                self.floor.station(skill),
                run.fair,
            )
            lane = made
        run.lanes[node, pools] = lane
        return lane

    def decide_tasks(self, now: int, budget: int) -> Iterator[tuple[TaskEntry, Worker]]:
        """Tasks that start now and their worker, everything charged, in global order."""
        self.floor.now = now
        for station in self.floor.patience_ends():
            self.board.opened(station)
        for task, worker in self.board.decide(now, budget, self._place):
            assert isinstance(worker, Worker)  # noqa: S101
            self.floor.take(worker, task.spec.executor, offered=not worker.local)
            if self.floor.unequal and task.lane is not None:
                tally = self._station(task.lane).tally
                tally.gave(worker.id, task.id, now, offered=not worker.local)
            if task.spec.affinity is not None:
                self.floor.likes(task.spec.affinity, worker.id)
            yield task, worker
        self.floor.decided()

    def _place(self, lane: Lane[TaskEntry], task: TaskEntry) -> Worker | None:
        affinity = task.spec.affinity
        prefer = None if affinity is None else self.floor.liked(affinity)
        return self.floor.pick(self._station(lane).skill, prefer)

    def hold(self, task: TaskEntry) -> None:
        """A task found in flight at a rebuild: charge what its row says it holds, whatever the limits are now."""
        task.rank = lanes.rank(self.limits, task.run.row.priority, task.requested_at)
        task.lane = self.lane_of(task.run, task.node, task.pools)
        for gate in task.lane.gates:
            gate.used += 1
        for pool, slots in task.lane.pools:
            pool.used += slots
        worker = self.floor.workers.get(task.worker or "")
        if worker is not None:
            self.floor.take(worker, task.spec.executor, offered=task.state == TaskState.SCHEDULED)
            if task.spec.affinity is not None:
                self.floor.likes(task.spec.affinity, worker.id)
            if self.floor.unequal:
                since, offered = task.started_at, task.state == TaskState.SCHEDULED
                tally = self._station(task.lane).tally
                tally.gave(
                    worker.id, task.id, task.scheduled_at if offered else since, offered=offered
                )

    def accepted(self, task: TaskEntry, at: int) -> None:
        if self.floor.unequal and task.lane is not None:
            self._station(task.lane).tally.answered(task.worker or "", task.id, at)
        for station in self.floor.answered(task.worker or ""):
            self.board.opened(station)

    def ran(self, task: TaskEntry, until: int) -> None:
        """`task` has run until then: how fast its worker is at this, where that is compared."""
        if self.floor.unequal and task.lane is not None and task.worker in self.floor.workers:
            self._station(task.lane).tally.lasted(task.worker, until - task.started_at)

    def _station(self, lane: Lane[TaskEntry]) -> WorkerGate:
        assert isinstance(lane.station, WorkerGate)  # noqa: S101
        return lane.station

    def release(self, task: TaskEntry) -> None:
        """`task` is no longer in flight: everything it held is free, exactly once."""
        assert task.lane is not None  # noqa: S101
        self._release(task, task.lane, task.lane.pools)

    def release_lost(self, task: TaskEntry, dead_since: int, now: int) -> list[int]:
        """Its worker died. Slots of a pool with a lease of its own stay taken until `dead_since` plus that.

        Returns the instants at which `end_lingering` has something to do.
        """
        assert task.lane is not None  # noqa: S101
        free: list[tuple[PoolGate, int]] = []
        ends: list[int] = []
        for pool, slots in task.lane.pools:
            until = dead_since + (pool.lease_us or 0)
            if pool.lease_us is None or until <= now:
                free.append((pool, slots))
                continue
            # By attempt: the next one may die too while the slots of this one are still kept.
            self.lingering[task.id, task.token, pool.name] = (slots, until, task.worker or "")
            self.lingering_changed = True
            ends.append(until)
        self._release(task, task.lane, tuple(free))
        return ends

    def _release(
        self, task: TaskEntry, lane: Lane[TaskEntry], pools: tuple[tuple[PoolGate, int], ...]
    ) -> None:
        self.board.release(lane.gates, pools)
        if task.worker is not None:
            if self.floor.unequal:
                self.floor.left(self._station(lane), task.worker, task.id)
            offered = task.state == TaskState.SCHEDULED
            for station in self.floor.give_back(task.worker, task.spec.executor, offered=offered):
                self.board.opened(station)

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
                self.board.release((), ((self.pool(held[2]), slots),))

    def withdraw_request(self, task: TaskEntry) -> None:
        """A waiting task leaves its line (cancelled, skipped, timed out)."""
        if task.lane is not None:
            self.board.remove(task, task.lane)

    def forget(self, task: TaskEntry) -> None:
        """`task` is terminal."""
        run = task.run
        run.tasks.pop(task.id, None)
        following = run.first_in_file(task.node) if run.files else None
        if following is not None and following.aside:
            self._line_up(following)

    # -- workers -----------------------------------------------------------------------------------

    def put_worker(self, row: WorkerRow, *, local: bool = False) -> Worker:
        worker = self.floor.put(row, local=local)
        for station in self.floor.waiting_for(worker, None):
            self.board.opened(station)
        return worker

    def tidy(self, now: int) -> None:
        """Forget keyed pools and skills nobody has used for a while, so that neither grows without end."""
        if len(self.pools) <= MOST_POOLS and len(self.floor.stations) <= MOST_POOLS:
            return
        lanes_in_use = list(self.board.lanes.values())
        lanes_in_use += [
            task.lane
            for run in self.runs.values()
            for task in run.tasks.values()
            if task.lane is not None
        ]
        used = {pool.name for lane in lanes_in_use for pool, _ in lane.pools}
        used |= {pool for _, _, pool in self.lingering}
        # A bucket that is not full yet still bounds whoever comes next.
        used |= {name for name, pool in self.pools.items() if pool.used or pool.stored_tat > now}
        for name in [name for name in self.pools if name not in used]:
            del self.pools[name]
        stations = {id(lane.station) for lane in lanes_in_use}
        for skill in [key for key, each in self.floor.stations.items() if id(each) not in stations]:
            del self.floor.stations[skill]
        for run in self.runs.values():
            # Lanes kept for later point to gates that may be gone.
            run.lanes.clear()

    # -- demand ------------------------------------------------------------------------------------

    def eligible(self) -> Iterable[TaskEntry]:
        """Waiting tasks that pass every gate but the worker's, all at once: the demand for workers."""
        extra: dict[Gate, int] = {}
        waiting = [lane for lane in self.board.lanes.values() if lane.parked_at is lane.station]
        ordered: list[tuple[Key, Lane[TaskEntry]]] = []
        for lane in waiting:
            head = lane.head()
            if head is not None:
                ordered.append((self.board.key(lane, head), lane))
        ordered.sort(key=lambda each: each[0])
        for _, lane in ordered:
            room = len(lane)
            for gate in lane.gates:
                room = min(room, gate.room - extra.get(gate, 0))
            for pool, slots in lane.pools:
                room = min(room, (pool.room - extra.get(pool, 0)) // slots)
            if room <= 0:
                continue
            for gate in lane.gates:
                extra[gate] = extra.get(gate, 0) + room
            for pool, slots in lane.pools:
                extra[pool] = extra.get(pool, 0) + room * slots
            members = list(lane.live.values())
            if room < len(members):
                members = sorted(members, key=lambda task: (task.rank, task.id))[:room]
            yield from members
