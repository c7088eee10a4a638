"""A holder's lease: what it holds is given up before anybody else may get it."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

import pytest

from locktender.base.clock import SECOND, ManualClock
from locktender.base.errors import StoreError
from locktender.client.slot_worker import Hold, SlotWorker
from locktender.store.protocol import Beat, Beaten

LEASE_US = 10 * SECOND


class Instant(selectors.SelectSelector):
    """Nobody waits: the time that would pass has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.passed += timeout or 0.0
        return super().select(0)


class InstantLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.waits = Instant()
        super().__init__(self.waits)

    def time(self) -> float:
        return self.waits.passed


class LoopClock(ManualClock):
    def monotonic(self) -> int:
        return round(asyncio.get_running_loop().time() * SECOND)


class Failing:
    """A store that renews no lease any more once `answer` is set."""

    answer: Beaten | StoreError | None = None

    async def beat(self, beat: Beat) -> Beaten:
        if isinstance(self.answer, StoreError):
            raise self.answer
        return self.answer or Beaten(LEASE_US, 0)

    async def wait(self, timeout_us: int, mark: int) -> int:
        await asyncio.sleep(timeout_us / SECOND)
        return mark

    async def orders(self, worker: str) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (StoreError("disk full"), "could not be renewed in time"),
        (Beaten(0, 0), "lease had passed"),
    ],
)
def test_a_hold_is_lost_before_its_lease_ends(answer: Beaten | StoreError, why: str):
    async def story() -> None:
        # given a holder with something in its hands
        clock = LoopClock()
        store: Any = Failing()
        holder = SlotWorker(store, clock, LEASE_US)
        await holder.open()
        lease_ends = clock.monotonic() + LEASE_US
        lost = asyncio.Event()
        hold = Hold(task=1, token=1, on_lost=[lost.set])
        holder._held[1] = hold  # pyright: ignore[reportPrivateUsage]
        # when its lease is renewed no more
        store.answer = answer
        await lost.wait()
        # then it knows, with time to spare, and is of no use any more
        assert clock.monotonic() < lease_ends
        assert why in (hold.lost or "")
        assert holder.gone
        await holder.close()

    with asyncio.Runner(loop_factory=InstantLoop) as runner:
        runner.run(story())
