"""The lease of held slots: they are given up before another process can get them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from locktender.base.clock import SECOND, ManualClock
from locktender.base.errors import StoreError
from locktender.client.slot_worker import Hold, SlotWorker
from locktender.store.lease_thread import LeaseThread
from locktender.store.protocol import Beat, Beaten
from locktender.store.sqlite.store import SqliteStore

LEASE_US = SECOND
NEARLY_ALL_US = LEASE_US - LEASE_US // 20
"""Less is left of it than the tenth in which a hold is given up."""


class Failing(SqliteStore):
    """A store that renews no lease any more once `answer` is set."""

    answer: Beaten | StoreError | None = None

    async def beat(self, beat: Beat) -> Beaten:
        if isinstance(self.answer, StoreError):
            raise self.answer
        return self.answer or await super().beat(beat)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (StoreError("disk full"), "could not be renewed in time"),
        (Beaten(0, 0), "declared lost"),
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
