"""One thread renews every lease of a process, whatever the loops that own them do."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from locktender.base.background import end_tasks
from locktender.base.clock import SECOND, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import StoreError
from locktender.engine import Engine
from locktender.store.lease_thread import Lease, LeaseThread
from locktender.store.protocol import Store
from locktender.store.sqlite.store import SqliteStore


class Counted(Lease):
    """Counts its renewals; ends as its test wants."""

    def __init__(self, lease_us: int = 3600 * SECOND, margin_us: int | None = SECOND // 10) -> None:
        super().__init__("a lease", lease_us, SECOND // 20, margin_us)
        self.renewals = 0
        self.left = 0
        self.answer: str | StoreError | None = None
        self.why = asyncio.Event()
        self.said = ""
        self.stopped = asyncio.Event()

    async def renew(self, store: Store) -> str | None:
        if isinstance(self.answer, StoreError):
            raise self.answer
        self.renewals += 1
        return self.answer

    def lost(self, why: str) -> None:
        self.said = why
        self.why.set()

    async def after_loss(self) -> None:
        self.on_owner(self.stopped.set)

    async def leave(self, store: Store) -> None:
        self.left += 1


@pytest.fixture
def leases(tmp_path: Path) -> LeaseThread:
    return LeaseThread(lambda: SqliteStore(tmp_path / "locktender.db"), SystemClock())


async def test_several_leases_are_renewed_while_their_loop_is_blocked(leases: LeaseThread):
    several = [Counted(), Counted(), Counted()]
    for lease in several:
        await leases.add(lease)
    until = time.monotonic() + 60
    while min(lease.renewals for lease in several) < 3 and time.monotonic() < until:
        time.sleep(0.01)  # noqa: ASYNC251 — this is the block
    assert min(lease.renewals for lease in several) >= 3
    for lease in several:
        await leases.remove(lease)
    await leases.close()
    assert [lease.left for lease in several] == [1, 1, 1]


@pytest.mark.parametrize(
    ("answer", "why"),
    [("it was declared lost", "declared lost"), (StoreError("away"), "not be renewed in time")],
)
async def test_a_lost_lease_is_lost_alone_and_before_its_end(
    leases: LeaseThread, answer: str | StoreError, why: str
):
    lease, other = Counted(lease_us=SECOND), Counted()
    await leases.add(other)
    lease.answer = None if isinstance(answer, StoreError) else answer
    await leases.add(lease)
    lease.answer = answer
    async with asyncio.timeout(60):
        await lease.why.wait()
        await lease.stopped.wait()
    assert why in lease.said
    assert not other.over
    await leases.renew(other)
    await leases.remove(other)
    await leases.close()


async def test_a_lease_without_margin_survives_an_absent_store(
    leases: LeaseThread,
):
    lease = Counted(lease_us=SECOND // 10, margin_us=None)
    await leases.add(lease, held=True)
    lease.answer = StoreError("away")
    async with asyncio.timeout(60):
        while SystemClock().monotonic() < lease.ends_us + SECOND // 10:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not lease.over
    before, lease.answer = lease.renewals, None
    async with asyncio.timeout(60):
        while lease.renewals == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await leases.remove(lease)
    await leases.close()


async def test_a_lease_past_its_owner_is_left_when_its_work_ends(leases: LeaseThread):
    lease = Counted()
    runs = True
    await leases.add(lease)
    lease.keep_while = lambda: runs
    await leases.close()
    before = lease.renewals
    async with asyncio.timeout(60):
        while lease.renewals == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not lease.left
        runs = False
        while not lease.left:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await leases.close()  # now it waits for the end of the thread


async def test_a_store_that_cannot_be_opened_is_said_and_tried_again(tmp_path: Path):
    stores = iter([SqliteStore(tmp_path / "no" / "such" / "\0"), SqliteStore(tmp_path / "db")])
    leases = LeaseThread(lambda: next(stores), SystemClock())
    with pytest.raises((StoreError, ValueError)):
        await leases.add(Counted())
    lease = Counted()
    await leases.add(lease)
    await leases.remove(lease)
    await leases.close()


async def test_a_blocked_leader_loses_its_lease_unless_it_rebuilds(
    tmp_path: Path,
):
    store = SqliteStore(tmp_path / "locktender.db")
    await store.open()
    engine = Engine(store, Settings(work_dir=str(tmp_path / "work")), work=False)
    await engine.start()
    async with asyncio.timeout(60):
        while engine.leader is None or not engine.leader.sweep.demand_at:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    leader = engine.leader
    assert not leader.blocked_longer_than(3600 * SECOND)
    leader._loop_seen_us -= 3700 * SECOND  # pyright: ignore[reportPrivateUsage]
    assert leader.blocked_longer_than(3600 * SECOND)
    scheduler, leader._scheduler = leader._scheduler, None  # pyright: ignore[reportPrivateUsage]
    assert not leader.blocked_longer_than(3600 * SECOND)
    leader._scheduler = scheduler  # pyright: ignore[reportPrivateUsage]
    await engine.stop(0)
    await store.close()


class Slow(SqliteStore):
    """Opens when it may."""

    may_open = threading.Event()
    opens = 0

    async def open(self) -> None:
        Slow.opens += 1
        while not Slow.may_open.is_set():  # noqa: ASYNC110 — set by another thread
            await asyncio.sleep(0.001)
        await super().open()


@pytest.fixture
def slow(tmp_path: Path) -> LeaseThread:
    Slow.may_open, Slow.opens = threading.Event(), 0
    return LeaseThread(lambda: Slow(tmp_path / "locktender.db"), SystemClock())


async def give_up(leases: LeaseThread) -> None:
    """Asks for a lease, and is cancelled while the thread opens its store."""
    asking = asyncio.create_task(leases.add(Counted()))
    async with asyncio.timeout(60):
        while not Slow.opens:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await end_tasks([asking])


async def test_a_caller_that_gives_up_early_breaks_nothing(slow: LeaseThread):
    await give_up(slow)
    lease = Counted()
    asking = asyncio.create_task(slow.add(lease))
    await asyncio.sleep(0)
    Slow.may_open.set()
    async with asyncio.timeout(60):
        await asking
        await slow.remove(lease)
        await slow.close()
    assert (lease.renewals >= 1, lease.left, Slow.opens) == (True, 1, 1)


async def test_the_thread_ends_though_nobody_waited_for_its_start(slow: LeaseThread):
    await give_up(slow)
    closing = asyncio.create_task(slow.close())
    await asyncio.sleep(0)
    Slow.may_open.set()
    async with asyncio.timeout(60):
        await closing
    with pytest.raises(StoreError, match="no lease"):
        slow.renew_from_thread(Counted(), 1)
