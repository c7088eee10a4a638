"""The scene of the suite: stores on the same data, a clock, and a leader's hand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import msgspec

from locktender.base.changes import Order, TaskRow
from locktender.base.clock import SECOND, ManualClock
from locktender.base.commits import Commit, RunEnd, RunEvents, RunStart
from locktender.base.events import Change, Event, unpack
from locktender.base.ids import RunId, run_id, task_id, token
from locktender.base.limits import TagRule
from locktender.base.model import (
    DeadWorker,
    Keep,
    NewRun,
    OnDuplicate,
    RunKind,
    ThrottleLine,
    WorkerRow,
)
from locktender.store.protocol import (
    Committed,
    Elect,
    EventFilter,
    Expire,
    Heartbeat,
    Lost,
    Renewed,
    SetLimit,
    Store,
    Submit,
    Submitted,
)

GRAPH = b'{"flow":"demo","nodes":[]}'
DIGEST = hashlib.sha256(GRAPH).hexdigest()
LEASE = 10 * SECOND

_numbers = count(1)


class StoreScene:
    def __init__(self, make: Callable[[], Store], clock: ManualClock) -> None:
        self.clock = clock
        self._make = make
        self._stores: list[Store] = []

    async def open(self) -> Store:
        store = self._make()
        await store.open()
        self._stores.append(store)
        return store

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


def new_id() -> RunId:
    return run_id(next(_numbers) * 1_000, hashlib.sha256(str(next(_numbers)).encode()).digest())


def new_run(
    *,
    run: RunId | None = None,
    flow: str = "demo",
    params: Mapping[str, Any] | None = None,
    tags: dict[str, str] | None = None,
    priority: int = 0,
    key: str | None = None,
    on_duplicate: OnDuplicate = "attach",
    kind: RunKind = "flow",
    deadline_us: int | None = None,
    delay_us: int | None = None,
    start_at: int | None = None,
    keep: Keep | None = None,
    max_queued: int = 1,
    throttle: ThrottleLine | None = None,
) -> NewRun:
    return NewRun(
        id=new_id() if run is None else run,
        flow=flow,
        graph=DIGEST,
        params=msgspec.json.encode(params or {}),
        consts=b"[]",
        tags=tags or {},
        priority=priority,
        key=key,
        on_duplicate=on_duplicate,
        kind=kind,
        deadline_us=deadline_us,
        delay_us=delay_us,
        start_at=start_at,
        keep=keep,
        max_queued=max_queued,
        throttle=throttle,
    )


async def submit(store: Store, *runs: NewRun, partial: bool = False) -> list[Submitted]:
    return await store.submit(Submit(list(runs), {DIGEST: GRAPH}, partial))


async def submitted(store: Store, **fields: Any) -> Submitted:
    """One run, stored."""
    return (await submit(store, new_run(**fields)))[0]


async def set_rule(store: Store, kind: str, name: str, rule: object, **fields: Any) -> None:
    encoded = None if rule is None else msgspec.json.encode(rule)
    await store.set_limit([SetLimit(kind, name, encoded, fields.pop("who", "ops"), **fields)])


async def set_ceiling(store: Store, limit: int) -> None:
    await set_rule(store, "active", "", {"limit": limit})


async def set_tag(store: Store, rule: TagRule) -> None:
    await set_rule(store, "tag", rule.name, rule)


async def history(store: Store, run: int | None = None) -> list[Event]:
    rows = await store.events(EventFilter(run=run))
    return [event for row in rows for event in unpack(row)]


async def changes_of(store: Store, run: int) -> list[tuple[str, str]]:
    """(before, after) of every change of the run and its tasks, in order."""
    return [(event.before, event.after) for event in await history(store, run)]


async def expire_passed(store: Store, term: int, actor: str, cycle: int = 1) -> list[Lost]:
    """Declares lost who is dead by the store's time or by proof. (A leader measures by its own clock.)"""
    now = await store.now()
    dead = [
        DeadWorker(worker, until, "process died" if proof == "gone" else "lease expired")
        for worker, until, _, proof in await store.lives()
        if until < now or proof == "gone"
    ]
    return await store.expire(Expire(term, cycle, actor, dead))


async def join(store: Store, worker: str = "w1", lease_us: int = LEASE, **fields: Any) -> Renewed:
    row = WorkerRow(
        id=worker,
        host="host",
        pid=1,
        version="0",
        permits=fields.pop("permits", {"async": 10}),
        total=10,
        claim=fields.pop("claim", 10),
        **fields,
    )
    return await store.heartbeat(Heartbeat(row, lease_us))


class SceneLeader:
    """Commits what a leader would have decided."""

    def __init__(self, store: Store, owner: str, term: int) -> None:
        self.store = store
        self.owner = owner
        self.actor: str = f"leader:{owner}"
        self.term = term
        self.cycle: int = 0
        self._tokens = count(1)

    @classmethod
    async def stand(cls, store: Store, owner: str = "l1", lease_us: int = LEASE) -> SceneLeader:
        led = await store.elect(Elect(owner, lease_us))
        assert led.term, f"{led.owner} leads"  # noqa: S101
        return cls(store, owner, led.term)

    def token(self) -> int:
        return token(self.term, next(self._tokens))

    def plan(self, **parts: Any) -> Commit:
        self.cycle += 1
        return Commit(self.term, self.cycle, self.actor, **parts)

    async def commit(self, **parts: Any) -> Committed:
        return await self.store.commit(self.plan(**parts))

    async def start(self, *runs: int) -> None:
        now = await self.store.now()
        await self.commit(
            runs_started=[RunStart(run, now) for run in runs],
            events=[RunEvents(run, [Change("run", 0, "queued", "running")]) for run in runs],
        )

    async def end(self, run: int, state: str = "succeeded", before: str = "running") -> None:
        await self.commit(
            runs_ended=[RunEnd(run, state, b"1", None, await self.store.now())],
            events=[RunEvents(run, [Change("run", 0, before, state)])],
        )

    async def offer(
        self, run: int, worker: str = "w1", ordinals: int = 1, held: bytes = b'{"db":1}'
    ) -> list[tuple[int, int]]:
        """New tasks of a run, scheduled and offered to a worker; their (task, token)."""
        now = await self.store.now()
        offered = [(task_id(run, ordinal), self.token()) for ordinal in range(ordinals)]
        await self.commit(
            tasks_new=[
                TaskRow(
                    task,
                    node=0,
                    idx=ordinal,
                    state="scheduled",
                    offers=1,
                    token=given,
                    worker=worker,
                    held=held,
                    requested_at=now,
                    scheduled_at=now,
                )
                for ordinal, (task, given) in enumerate(offered)
            ],
            orders=[Order(worker, task, given, "offer") for task, given in offered],
            events=[
                RunEvents(
                    run,
                    [
                        change
                        for task, given in offered
                        for change in (
                            Change("task", task, "new", "requested", 0, {"node": 0}),
                            Change(
                                "task", task, "requested", "scheduled", given, {"worker": worker}
                            ),
                        )
                    ],
                )
            ],
        )
        return offered


async def offered(
    store: Store, worker: str = "w1", tasks: int = 1, lease_us: int = LEASE
) -> tuple[SceneLeader, int, list[tuple[int, int]]]:
    """A worker with offers: the leader, the run, and the (task, token) pairs."""
    leader = await SceneLeader.stand(store)
    await join(store, worker, lease_us)
    run = (await submitted(store)).seq
    await leader.start(run)
    return leader, run, await leader.offer(run, worker, tasks)
