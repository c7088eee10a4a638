"""What the pages of one server share: one reading of all active work, however many pages are open.

A reading is made at most twice a second, and takes at most a tenth of the time: the
more work is active, the older it may be. The rules that say where something waits
are the leader's own (`AdmissionQueue.blocks`), asked of a ledger rebuilt from rows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial
from heapq import nsmallest

import msgspec

from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.states import TaskState
from locktender.client.core import Core
from locktender.client.pool_holders import PoolHolder, pool_holders
from locktender.client.pools_async import pool_infos
from locktender.client.views import PoolInfo
from locktender.kernel import lanes
from locktender.kernel.entries import TaskEntry
from locktender.kernel.gates.count import CountGate
from locktender.kernel.gates.protocol import Block, Gate
from locktender.kernel.scheduler import Scheduler
from locktender.observe.holders import CostBook, LimitCost, MinuteCost
from locktender.observe.pool_use import pool_use
from locktender.observe.rebuilt import rebuild
from locktender.server.state import Fresh
from locktender.server.ui.live import LiveFeed
from locktender.store.open import store_for
from locktender.store.protocol import OpenRuns, Snapshot, Store, Traffic

WORK_SECONDS = 0.5
COST_SECONDS = 10.0
COST_LAST_US = 24 * 3600 * 1_000_000
HISTORY_MINUTES = 120
READ_TIMEOUT_SECONDS = 10.0
SOON_SECONDS = 0.05
MAX_LANES = 500
MAX_RUNS = 10_000
"""Of the newest runs the times are read, for charts."""
BUCKETS = 60
BUCKET_SECONDS = 15
"""Of the charts: the last quarter of an hour."""
RATE_US = 60 * SECOND
"""Rates are of the last minute."""
MAX_WAITERS = 50
"""Waiting tasks that are named for each pool."""
MAX_OPEN_HERE = 2_000
"""Open tasks up to which the ledger is rebuilt on the server's own loop."""


class PoolWaiter(msgspec.Struct, frozen=True):
    """A task that needs a pool and has not started."""

    run: str
    task: int
    step: str
    slots: int
    since: int


class GateCount(msgspec.Struct):
    """How many wait at a gate, and how full it is."""

    gate: str
    what: str
    """`run` or `task`."""
    waiting: int = 0
    used: int = 0
    limit: int = -1
    paused: bool = False
    never: int = 0
    """Of those that wait: how many can never pass, as limits are now."""
    ready: int = 0
    """Of those that wait: how many nothing blocks. They start with the next cycle."""


class ActiveWork(msgspec.Struct, frozen=True):
    """All active work at one instant."""

    now: int
    opened: OpenRuns
    max_active: int
    max_runs: int
    places: int
    """Runs that hold a place: one that sleeps or waits for an event has given it back."""
    gates: list[GateCount]
    tag_use: dict[str, tuple[int, int, str]]
    """Limit of a tag → of its fullest value: runs that execute, how many may, and which value it is."""
    shut_for: dict[str, int]
    """Limit of runs → queued runs that it lets not start now, alone or together with other limits."""
    lanes_cut: bool
    """There are more lanes of queued runs than were read: numbers of waiting runs are of the longest ones."""
    running: int
    """Tasks with a running body."""
    offered: int
    pools: list[PoolInfo]
    holders: dict[str, list[PoolHolder]]
    waiters: dict[str, list[PoolWaiter]]
    tags: dict[str, dict[str, str]]
    """Of the runs that are named: run → tags."""
    blocked: dict[str, tuple[str, int]]
    """Executing run → the gate where most of its tasks wait, and how many."""
    workers: int
    permits: int
    """Of live workers, over all executors; -1: one has no bound."""


class SharedReadings:
    """One per server."""

    def __init__(self, core: Core) -> None:
        self.feed: LiveFeed = LiveFeed(core)
        self._core = core
        self._large = False
        self._work: Fresh[tuple[float, int | None, ActiveWork]] = Fresh(
            self._read_work, WORK_SECONDS
        )
        self._lately: Fresh[Traffic] = Fresh(
            partial(core.store.traffic, 0, MAX_RUNS, RATE_US, BUCKETS * BUCKET_SECONDS * SECOND),
            WORK_SECONDS,
        )
        self._book = CostBook(core.store, COST_LAST_US)
        self._costs: Fresh[list[LimitCost]] = Fresh(self._book.read, COST_SECONDS)
        self._known = False

    async def work(self) -> tuple[ActiveWork, bool]:
        """All active work, and whether a change from before this question may be missing in it."""
        asked = asyncio.get_running_loop().time()
        began, mark, found = await self._work.get(READ_TIMEOUT_SECONDS)
        return found, began < asked and (mark is None or mark != self.feed.mark)

    async def lately(self) -> Traffic:
        """The newest runs, for rates and charts."""
        return await self._lately.get(READ_TIMEOUT_SECONDS)

    async def costs(self, *, soon: bool) -> list[LimitCost] | None:
        """What each limit cost in waiting in the last 24 hours. None: it is being read, and `soon` was asked."""
        try:
            found = await self._costs.get(SOON_SECONDS if soon else READ_TIMEOUT_SECONDS)
        except TimeoutError:
            if soon:
                return None
            raise
        self._known = True
        return found

    async def passed(self, now: int) -> dict[str, float] | None:
        """Gate → how many that had waited there went on in the last minute. None: the past is being read."""
        await self.costs(soon=True)
        return self._book.passed(now) if self._known else None

    def history(self, gates: Collection[str], now: int) -> list[MinuteCost]:
        """What each of the last minutes cost at these gates; of use when `costs` has answered."""
        return self._book.history(gates, now, HISTORY_MINUTES)

    def changed(self) -> None:
        """Somebody changed something through this server: the next page shows it."""
        self._work.drop()

    async def close(self) -> None:
        await self.feed.close()
        await self._work.close()
        await self._lately.close()
        await self._costs.close()

    async def _read_work(self) -> tuple[float, int | None, ActiveWork]:
        began, mark = asyncio.get_running_loop().time(), self.feed.mark
        if not self._large:
            found = await read_work(self._core.store)
        else:
            # It takes as long as a take-over: the server's own loop does not wait for it.
            settings = self._core.settings
            found = await asyncio.to_thread(lambda: asyncio.run(_elsewhere(settings)))
        open_tasks = found.running + found.offered + sum(
            each.waiting for each in found.gates if each.what == "task"
        )  # fmt: skip
        self._large = open_tasks > MAX_OPEN_HERE
        return began, mark, found


async def _elsewhere(settings: Settings) -> ActiveWork:
    store = store_for(settings)
    await store.open()
    try:
        return await read_work(store)
    finally:
        await store.close()


async def read_work(store: Store) -> ActiveWork:
    by_lane = (await store.traffic(MAX_LANES, 0)).by_lane
    opened = await store.open_runs()
    scheduler, snapshot = await rebuild(store)
    waiters = _waiters(scheduler)
    holders = await pool_holders(store, snapshot)
    named = {each.run for several in (*holders.values(), *waiters.values()) for each in several}
    states = [entry.state for entry in scheduler.lifecycle.tasks.values()]
    alive = [row for row in snapshot.workers if row.lease_until >= snapshot.now]
    return ActiveWork(
        now=snapshot.now,
        opened=opened,
        max_active=snapshot.limits.max_active,
        max_runs=snapshot.limits.max_concurrent_runs,
        places=scheduler.ledger.run_gate.used,
        gates=_gates(scheduler, snapshot, by_lane),
        tag_use=_tag_use(scheduler),
        shut_for=_shut_for(scheduler, snapshot.now, by_lane),
        lanes_cut=len(by_lane) >= MAX_LANES,
        running=states.count(TaskState.RUNNING),
        offered=states.count(TaskState.SCHEDULED),
        pools=pool_infos(pool_use(scheduler), snapshot.limits, snapshot.limit_rows),
        holders=holders,
        waiters=waiters,
        tags={row.id: row.tags for row in (*snapshot.runs, *snapshot.held) if row.id in named},
        blocked=_blocked(scheduler, snapshot.now),
        workers=len(alive),
        permits=-1 if any(row.total < 0 for row in alive) else sum(row.total for row in alive),
    )


def _gates(
    scheduler: Scheduler, snapshot: Snapshot, by_lane: list[tuple[str, int]]
) -> list[GateCount]:
    """Where queued runs and requested tasks wait, each at the first gate in the order of decision."""
    found: dict[tuple[str, str], GateCount] = {}

    def add(what: str, block: Block | None, waiting: int, name: str = "") -> None:
        gate = name or ("" if block is None else block.name)
        count = found.setdefault((what, gate), GateCount(gate, what))
        count.waiting += waiting
        if not gate:
            count.ready += waiting
        if block is not None:
            count.used, count.limit = block.used, block.limit
            count.paused = count.paused or block.reason == "paused"
            count.never += waiting if block.never else 0

    for signature, waiting in by_lane:
        if lanes.holds(signature):
            continue
        if signature == lanes.PAUSED:
            add("run", None, waiting, "paused")
            continue
        if any(part.startswith("k:") for part in signature.split(lanes.SEPARATOR)):
            add("run", None, waiting, "key")
            continue
        counters, _ = lanes.read(signature)
        add("run", _first(_run_gates(scheduler, counters), snapshot.now), waiting)
    queue = scheduler.ledger.task_queue
    for lane in queue.lanes.values():
        head = lane.head()
        if head is not None:
            blocks = queue.blocks(lane, head, snapshot.now)
            add("task", next(iter(blocks), None), len(lane))
    return sorted(found.values(), key=lambda each: (each.what, -each.waiting, each.gate))


def _shut_for(scheduler: Scheduler, now: int, by_lane: list[tuple[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for signature, waiting in by_lane:
        if not lanes.holds(signature) and signature != lanes.PAUSED:
            counters, _ = lanes.read(signature)
            for gate in _run_gates(scheduler, counters):
                if gate.blocks(1, now) is not None:
                    found[gate.name] += waiting
    return dict(found)


def _tag_use(scheduler: Scheduler) -> dict[str, tuple[int, int, str]]:
    found: dict[str, tuple[int, int, str]] = {}
    for counter, gate in sorted(scheduler.ledger.tag_gates.items()):
        if isinstance(gate, CountGate):
            rule = rule_name(counter)
            value = counter.removeprefix(rule) if rule.endswith("=*") else ""
            if rule not in found or gate.used > found[rule][0]:
                found[rule] = gate.used, gate.limit, value
    return found


def _blocked(scheduler: Scheduler, now: int) -> dict[str, tuple[str, int]]:
    """Where the tasks of each executing run wait."""
    found: dict[str, Counter[str]] = {}
    queue = scheduler.ledger.task_queue
    for lane in queue.lanes.values():
        head = lane.head()
        block = None if head is None else next(iter(queue.blocks(lane, head, now)), None)
        if block is not None:
            for run, waiting in Counter(each.run.row.id for each in lane.live.values()).items():
                found.setdefault(run, Counter())[block.name] += waiting
    return {run: counts.most_common(1)[0] for run, counts in found.items()}


def _run_gates(scheduler: Scheduler, counters: Iterable[str]) -> list[Gate]:
    ledger = scheduler.ledger
    rules = {rule.name: rule for rule in ledger.limits.tags}
    found = [ledger.run_gate]
    for counter in sorted(counters):
        gate, rule = ledger.tag_gates.get(counter), rules.get(rule_name(counter))
        if gate is None and rule is not None:
            # No run executes under it: the ledger has not counted there yet.
            gate = CountGate("tag", counter, rule.limit)
            gate.set(rule.limit, paused=rule.paused)
        if gate is not None:
            found.append(gate)
    return found


def rule_name(counter: str) -> str:
    """The limit that a counter belongs to: of `tenant=*acme`, one value of a limit for each, `tenant=*`."""
    key, each, _ = counter.partition("=*")
    return f"{key}{each}"


def _first(gates: list[Gate], now: int) -> Block | None:
    return next((block for gate in gates if (block := gate.blocks(1, now)) is not None), None)


def _waiters(scheduler: Scheduler) -> dict[str, list[PoolWaiter]]:
    by_pool: dict[str, list[TaskEntry]] = {}
    for entry in scheduler.lifecycle.tasks.values():
        if entry.state == TaskState.REQUESTED:
            for pool, _ in entry.pools:
                by_pool.setdefault(pool, []).append(entry)
    return {
        pool: [
            PoolWaiter(
                entry.run.row.id, entry.id, entry.spec.name, dict(entry.pools)[pool], entry.requested_at
            )
            for entry in nsmallest(MAX_WAITERS, entries, key=lambda each: (each.rank, each.id))
        ]
        for pool, entries in by_pool.items()
    }  # fmt: skip
