"""The lease of held slots: they are given up before another process can get them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.beside import opened

from locktender import Client, LeaseLost, embedded, flow, step
from locktender.base.clock import SECOND, ManualClock
from locktender.base.errors import StoreError
from locktender.client.slot_worker import Hold, SlotWorker
from locktender.store.lease_thread import LeaseThread
from locktender.store.protocol import Heartbeat, Renewed
from locktender.store.sqlite.store import SqliteStore

LEASE_US = SECOND
NEARLY_ALL_US = LEASE_US - LEASE_US // 20
"""Less is left of it than the tenth in which a hold is given up."""


class Failing(SqliteStore):
    """A store that renews no lease any more once `answer` is set."""

    answer: Renewed | StoreError | None = None

    async def heartbeat(self, heartbeat: Heartbeat) -> Renewed:
        if isinstance(self.answer, StoreError):
            raise self.answer
        return self.answer or await super().heartbeat(heartbeat)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (StoreError("disk full"), "could not be renewed in time"),
        (Renewed(0, 0), "declared lost"),
    ],
)
async def test_a_hold_is_lost_before_its_lease_ends(tmp_path: Path, answer, why: str):
    # given a holder with something in its hands
    clock = ManualClock()
    store = SqliteStore(tmp_path / "locktender.db")
    renewing = Failing(tmp_path / "locktender.db")
    await store.open()
    leases = LeaseThread(lambda: renewing, clock)
    holder = SlotWorker(store, clock, leases, LEASE_US)
    await holder.open()
    lease_ends = clock.monotonic() + LEASE_US
    lost = asyncio.Event()
    hold = Hold(task=1, token=1, on_lost=[lost.set])
    holder._held[1] = hold  # pyright: ignore[reportPrivateUsage]
    # when its lease is renewed no more
    renewing.answer = answer
    clock.advance(NEARLY_ALL_US)
    async with asyncio.timeout(60):
        await lost.wait()
    # then it knows, with time to spare, and is of no use any more
    assert clock.monotonic() < lease_ends
    assert why in (hold.lost or "")
    assert holder.gone
    await holder.close()
    await leases.close()
    await store.close()


@step(pool="db")
async def uses_the_pool() -> int:
    return 1


@flow
def using() -> int:
    return uses_the_pool()


def lose_slots(engine: Client, path: Path) -> None:
    with (
        engine.slots("db", lease="1s") as held,
        opened(path) as foreign,
    ):
        foreign.execute("BEGIN IMMEDIATE")
        assert held.lost.wait(60)


def test_lost_slots_are_free_when_their_block_has_ended(tmp_path: Path):
    """Though the process lives: nothing in it relies on them any more."""
    path = tmp_path / "locktender.db"
    with embedded(path, worker_lease="10m", leader_lease="10m") as engine:
        engine.pools.set("db", limit=1)
        with pytest.raises(LeaseLost):
            lose_slots(engine, path)
        assert engine.submit(using).result("60s") == 1
